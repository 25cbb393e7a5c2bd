//! OpenTelemetry: spans arrive at a collector, which decodes them with the types of OpenTelemetry's own crate.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use prost::Message;
use weir_tests::{Heard, Http2, Scripted, Site, http, skip_on_oracle, until};

/// A span as a test looks at it.
#[derive(Clone, Debug, Default)]
struct Span {
    name: String,
    kind: i32,
    trace: String,
    id: String,
    parent: String,
    state: String,
    is_error: bool,
    nanos: (u64, u64),
    attributes: HashMap<String, String>,
    resource: HashMap<String, String>,
}

impl Span {
    fn of(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", String::as_str)
    }
}

#[derive(Clone, Default)]
struct Received {
    spans: Arc<Mutex<Vec<Span>>>,
    /// The fields of the requests that brought them.
    fields: Arc<Mutex<Vec<(String, String)>>>,
}

impl Received {
    fn take(&self, fields: Vec<(String, String)>, message: &[u8]) {
        self.fields
            .lock()
            .expect("no test panics with it")
            .extend(fields);
        let request = ExportTraceServiceRequest::decode(message).expect("it is OTLP");
        let mut spans = self.spans.lock().expect("no test panics with it");
        for of_resource in request.resource_spans {
            let resource = of_resource.resource.unwrap_or_default();
            for of_scope in of_resource.scope_spans {
                assert_eq!(of_scope.scope.unwrap_or_default().name, "weir");
                for span in of_scope.spans {
                    spans.push(Span {
                        name: span.name,
                        kind: span.kind,
                        trace: hex(&span.trace_id),
                        id: hex(&span.span_id),
                        parent: hex(&span.parent_span_id),
                        state: span.trace_state,
                        is_error: span.status.is_some_and(|status| status.code == 2),
                        nanos: (span.start_time_unix_nano, span.end_time_unix_nano),
                        attributes: map(&span.attributes),
                        resource: map(&resource.attributes),
                    });
                }
            }
        }
    }

    /// The first span, which has come.
    fn first(&self) -> Span {
        self.spans.lock().expect("no test panics with it")[0].clone()
    }

    /// Waits for spans.
    #[track_caller]
    fn wait(&self, count: usize) -> Vec<Span> {
        let found = until(|| {
            let spans = self.spans.lock().expect("no test panics with it");
            (spans.len() >= count).then(|| spans.clone())
        });
        let spans = found.unwrap_or_else(|| panic!("{count} spans do not come"));
        assert_eq!(spans.len(), count, "{spans:?}");
        spans
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn map(attributes: &[KeyValue]) -> HashMap<String, String> {
    let pairs = attributes
        .iter()
        .map(|pair| (pair.key.clone(), text(pair.value.as_ref())));
    pairs.collect()
}

fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::ArrayValue(list)) => {
            let values: Vec<String> = list.values.iter().map(|value| text(Some(value))).collect();
            format!("[{}]", values.join(","))
        }
        other => panic!("{other:?}"),
    }
}

/// A collector that speaks OTLP/gRPC.
fn grpc_collector() -> (Scripted, Received) {
    let received = Received::default();
    let own = received.clone();
    let collector = Scripted::start(move |stream, _| {
        let mut http2 = Http2::accept(stream);
        while let Some(stream) = one_call(&mut http2, &own) {
            let head = [(":status", "200"), ("content-type", "application/grpc")];
            http2.headers(stream, &head, false);
            http2.data(stream, &[0; 5], false);
            http2.headers(stream, &[("grpc-status", "0")], true);
        }
    });
    (collector, received)
}

fn one_call(http2: &mut Http2, received: &Received) -> Option<u32> {
    let is_end = |heard: &Heard| *heard == Heard::Closed;
    let head = http2.hear(|heard| matches!(heard, Heard::Headers { .. }) || is_end(heard));
    let Heard::Headers { stream, fields, .. } = head else {
        return None;
    };
    let mut content = Vec::new();
    loop {
        match http2.hear(|heard| matches!(heard, Heard::Data { .. }) || is_end(heard)) {
            Heard::Data { bytes, ends, .. } => {
                content.extend(bytes);
                if ends {
                    break;
                }
            }
            _ => return None,
        }
    }
    let length = u32::from_be_bytes(content[1..5].try_into().expect("a prefix"));
    assert_eq!((content[0], length as usize), (0, content.len() - 5));
    received.take(fields, &content[5..]);
    Some(stream)
}

/// A collector that speaks OTLP/HTTP.
fn http_collector() -> (Scripted, Received) {
    let received = Received::default();
    let own = received.clone();
    let collector = Scripted::start(move |stream, _| {
        while let Some((fields, content)) = one_post(stream) {
            own.take(fields, &content);
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer);
        }
    });
    (collector, received)
}

type Fields = Vec<(String, String)>;

fn one_post(stream: &mut TcpStream) -> Option<(Fields, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(": ").unwrap_or((":line", line));
        fields.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let length = fields.iter().find(|(name, _)| name == "content-length");
    let length: usize = length?.1.parse().ok()?;
    let mut content = vec![0; length];
    reader.read_exact(&mut content).ok()?;
    Some((fields, content))
}

fn site(collector: &Scripted, block: &str) -> Option<Site> {
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return None;
    }
    let port = collector.port();
    let exporter = format!("otel_exporter {{ endpoint 127.0.0.1:{port}; interval 10ms; }}");
    Some(http(&format!("{exporter} {block}")))
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[test]
fn a_request_is_a_span_with_the_attributes_of_nginx_otel() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        "otel_service_name shop; otel_resource_attr deployment.environment test; otel_trace on;
         server { listen 127.0.0.1:%%PORT%%; server_name shop.example;
         location /a/ { otel_span_attr my.trace $otel_trace_id; return 200 hello; otel_span_attr my.arg $arg_x; otel_span_attr http.request.header.x $http_x; }
         location = /b { return 503; otel_span_name \"B $status\"; }
         location = /off { otel_trace off; return 200; } }",
    ) else {
        return;
    };
    let server = site.start();
    server
        .get_with("/a/b?x=1", &["User-Agent: me", "X: y"])
        .expect(200);
    server.get("/off").expect(200);
    server.get("/b").expect(503);
    let spans = received.wait(2);
    let (a, b) = (&spans[0], &spans[1]);
    let port = server.port(0).to_string();
    for (key, value) in [
        ("http.method", "GET"),
        ("http.target", "/a/b?x=1"),
        ("http.route", "/a/"),
        ("http.scheme", "http"),
        ("http.flavor", "1.1"),
        ("http.user_agent", "me"),
        ("http.request_content_length", "0"),
        ("http.response_content_length", "5"),
        ("http.status_code", "200"),
        ("net.host.name", "shop.example"),
        ("net.host.port", &port),
        ("net.sock.peer.addr", "127.0.0.1"),
        ("my.arg", "1"),
        ("http.request.header.x", "[y]"),
    ] {
        assert_eq!(a.of(key), value, "{key} of {a:?}");
    }
    assert_eq!(a.of("my.trace"), a.trace);
    assert_eq!((a.name.as_str(), a.kind, a.is_error), ("/a/", 2, false));
    assert_eq!((a.trace.len(), a.id.len(), a.parent.as_str()), (32, 16, ""));
    assert!(a.nanos.0 <= a.nanos.1 && a.nanos.0 > 1_700_000_000_000_000_000);
    assert_eq!(a.resource["service.name"], "shop");
    assert_eq!(a.resource["deployment.environment"], "test");
    assert_eq!((b.name.as_str(), b.is_error), ("B 503", true));
    assert_ne!(a.trace, b.trace);
}

#[test]
fn the_first_location_decides() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        "server { listen 127.0.0.1:%%PORT%%;
         location /on { otel_trace on; return 200; }
         location /off { return 200; }
         location /rewritten/on { otel_trace on; rewrite ^ /off last; }
         location /rewritten/off { rewrite ^ /on last; }
         location /redirected/on { otel_trace on; error_page 403 /off; deny all; }
         location /redirected/off { error_page 403 /on; deny all; } }",
    ) else {
        return;
    };
    let server = site.start();
    for path in [
        "/rewritten/off",
        "/redirected/off",
        "/rewritten/on",
        "/redirected/on",
    ] {
        server.get(path);
    }
    for (span, target) in received
        .wait(2)
        .iter()
        .zip(["/rewritten/on", "/redirected/on"])
    {
        assert_eq!(
            (span.name.as_str(), span.of("http.target")),
            ("/off", target)
        );
    }
}

#[test]
fn otlp_travels_by_http_too() {
    let (collector, received) = http_collector();
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    let port = collector.port();
    let server = http(&format!(
        "otel_exporter {{ endpoint http://127.0.0.1:{port}/v1/traces; interval 10ms; header X-Token secret; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ otel_trace on; return 200; }} }}"
    ))
    .start();
    for count in 1..=3 {
        server.get("/").expect(200);
        received.wait(count);
    }
    let fields = received.fields.lock().expect("no test panics with it");
    let has = |name: &str, value: &str| fields.contains(&(name.to_owned(), value.to_owned()));
    assert!(has(":line", "POST /v1/traces HTTP/1.1"), "{fields:?}");
    assert!(has("content-type", "application/x-protobuf"));
    assert!(has("x-token", "secret"));
    // The connection is kept.
    assert_eq!(collector.connections(), 1);
}

#[test]
fn a_collector_behind_tls_is_verified() {
    let (collector, received) = grpc_collector();
    let made =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let port = collector.port();
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    // The server itself is the TLS in front of the collector.
    let block = |trusted: &str| {
        format!(
            "otel_exporter {{ endpoint https://localhost:%%PORT2%%; interval 10ms; {trusted} }}
             server {{ listen 127.0.0.1:%%PORT%%; location / {{ otel_trace on; return 200; }} }}
             server {{ listen 127.0.0.1:%%PORT2%% ssl; http2 on; ssl_certificate cert.pem; ssl_certificate_key key.pem;
             location / {{ grpc_pass 127.0.0.1:{port}; }} }}"
        )
    };
    let start = |trusted: &str| {
        http(&block(trusted))
            .file("cert.pem", made.cert.pem())
            .file("key.pem", made.signing_key.serialize_pem())
            .tolerate("otel: spans cannot be exported")
            .start()
    };
    let server = start("trusted_certificate cert.pem;");
    server.get("/").expect(200);
    received.wait(1);
    server.stop();
    // Without the certificate the system's are trusted, and this is none of them.
    let server = start("");
    server.get("/").expect(200);
    let line = server.line("error.log", "otel: spans cannot be exported");
    assert!(line.contains("certificate verify error"), "{line}");
    received.wait(1);
}

/// Says what an upstream server was told.
const ORIGIN: &str = "server { listen 127.0.0.1:%%PORT2%%; otel_trace off;
    location / { return 200 \"$http_traceparent $http_tracestate\"; } }";

#[test]
fn contexts_are_ignored_extracted_and_injected() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        &format!(
            "{ORIGIN} server {{ listen 127.0.0.1:%%PORT%%; otel_trace on;
             location /ignore {{ proxy_pass http://127.0.0.1:%%PORT2%%; }}
             location /extract {{ otel_trace_context extract; proxy_pass http://127.0.0.1:%%PORT2%%; }}
             location /inject {{ otel_trace_context inject; proxy_pass http://127.0.0.1:%%PORT2%%; }}
             location /propagate {{ otel_trace_context propagate; proxy_pass http://127.0.0.1:%%PORT2%%; }} }}"
        ),
    ) else {
        return;
    };
    let server = site.start();
    let header = format!("Traceparent: {PARENT}");
    let lines = [header.as_str(), "Tracestate: a=1", "Tracestate: b=2"];
    let (trace, parent) = (&PARENT[3..35], &PARENT[36..52]);
    for (count, path) in ["/ignore", "/extract", "/inject", "/propagate"]
        .into_iter()
        .enumerate()
    {
        let told = server.get_with(path, &lines).expect(200).text();
        let span = received.wait(count + 1).pop().expect("there is one");
        let own = format!("00-{}-{}-01", span.trace, span.id);
        let (expected, is_child) = match path {
            "/ignore" => (format!("{PARENT} a=1"), false),
            "/extract" => (format!("{PARENT} a=1"), true),
            "/inject" => (format!("{own} "), false),
            _ => (format!("{own} a=1,b=2"), true),
        };
        // `$http_` joins lines, as nginx does.
        let told = told.replace("a=1, b=2", "a=1");
        assert_eq!(told, expected, "{path}");
        assert_eq!(span.trace == *trace, is_child, "{path}");
        assert_eq!(span.parent == *parent, is_child, "{path}");
        assert_eq!(span.state, if is_child { "a=1,b=2" } else { "" }, "{path}");
    }
    // In HTTP/1 and with what is no context, a trace begins.
    let told = server
        .get_with("/propagate", &["Traceparent: 00-0-0-01"])
        .text();
    assert!(!told.starts_with("00-0-0"), "{told}");
}

#[test]
fn every_upstream_protocol_is_told() {
    let (collector, received) = grpc_collector();
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let own = Arc::clone(&seen);
    let gateway = Scripted::start(move |stream, _| {
        let mut buffer = [0; 8192];
        let read = stream.read(&mut buffer).unwrap_or(0);
        own.lock()
            .expect("no test panics with it")
            .extend_from_slice(&buffer[..read]);
    });
    let port = gateway.port();
    let Some(site) = site(
        &collector,
        &format!(
            "server {{ listen 127.0.0.1:%%PORT%%; http2 on; otel_trace on; otel_trace_context inject;
             location /proxy {{ proxy_pass http://127.0.0.1:{port}; }}
             location /fastcgi {{ fastcgi_pass 127.0.0.1:{port}; }}
             location /uwsgi {{ uwsgi_pass 127.0.0.1:{port}; }}
             location /scgi {{ scgi_pass 127.0.0.1:{port}; }} }}"
        ),
    ) else {
        return;
    };
    let server = site.start();
    let mut client = Http2::connect(&server, &[]);
    let all = ["/proxy", "/fastcgi", "/uwsgi", "/scgi"];
    for path in all {
        client.get(path);
    }
    let spans = received.wait(all.len());
    let seen = seen.lock().expect("no test panics with it");
    let seen = String::from_utf8_lossy(&seen);
    for span in spans {
        let own = format!("00-{}-{}-01", span.trace, span.id);
        assert!(
            seen.contains(&own),
            "{} was not told",
            span.of("http.target")
        );
        assert_eq!(span.of("http.flavor"), "2.0");
        assert!(span.is_error && span.of("http.status_code") == "502");
        assert_eq!(span.of("weir.termination"), "SH");
    }
    assert_eq!(seen.matches("HTTP_TRACEPARENT").count(), 3);
}

#[test]
fn grpc_servers_are_told() {
    let (collector, received) = grpc_collector();
    let told: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let own = Arc::clone(&told);
    let origin = Scripted::start(move |stream, _| {
        let mut http2 = Http2::accept(stream);
        let heard = http2.hear(|heard| matches!(heard, Heard::Headers { .. } | Heard::Closed));
        if let Heard::Headers { stream, fields, .. } = heard {
            own.lock().expect("no test panics with it").extend(fields);
            http2.headers(stream, &[(":status", "200"), ("grpc-status", "0")], true);
        }
    });
    let port = origin.port();
    let Some(site) = site(
        &collector,
        &format!(
            "server {{ listen 127.0.0.1:%%PORT%%; http2 on; otel_trace on; otel_trace_context inject;
             location / {{ grpc_pass 127.0.0.1:{port}; }} }}"
        ),
    ) else {
        return;
    };
    let server = site.start();
    let mut client = Http2::connect(&server, &[]);
    let stream = client.request("POST", "/a.B/c", &[("te", "trailers")], true);
    assert_eq!(client.reply(stream).status, 200);
    let span = received.wait(1).remove(0);
    let own = format!("00-{}-{}-01", span.trace, span.id);
    let told = told.lock().expect("no test panics with it");
    assert!(told.contains(&("traceparent".to_owned(), own)), "{told:?}");
}

#[test]
fn parents_and_ratios_decide_what_is_recorded() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        "split_clients $otel_trace_id $half { 50% on; * off; }
         log_format ids '$uri $otel_trace_id $otel_span_id $otel_parent_id $otel_parent_sampled'; access_log ids.log ids;
         server { listen 127.0.0.1:%%PORT%%;
         location /parent { otel_trace $otel_parent_sampled; otel_trace_context propagate; return 200; }
         location /half { otel_trace $half; return 200; } }",
    ) else {
        return;
    };
    let server = site.start();
    for (flags, recorded) in [("00", 0), ("01", 1)] {
        let parent = format!("Traceparent: {}{flags}", &PARENT[..53]);
        server.get_with("/parent", &[&parent]).expect(200);
        received.wait(recorded);
    }
    server.get("/parent").expect(200);
    for _ in 0..40 {
        server.get("/half").expect(200);
    }
    let lines = server.lines("ids.log", 43);
    let span = received.first();
    let fields: Vec<&str> = lines[1].split(' ').collect();
    assert_eq!(fields[1..4], [&*span.trace, &*span.id, &*span.parent]);
    assert!(lines[0].ends_with(" 0") && lines[1].ends_with(" 1") && lines[2].ends_with(" - 0"));
    let mut ids: Vec<&str> = lines
        .iter()
        .skip(2)
        .filter_map(|line| line.split(' ').nth(1))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 41);
}

#[test]
fn tries_subrequests_and_fills_are_children() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        &format!(
            "{ORIGIN} proxy_cache_path cache keys_zone=c:1m;
             upstream u {{ server 127.0.0.1:1; server 127.0.0.1:%%PORT2%%; }}
             otel_trace on; otel_trace_context inject; otel_child_spans upstream fill subrequest;
             server {{ listen 127.0.0.1:%%PORT%%;
             location /tries {{ proxy_pass http://u; proxy_next_upstream error; }}
             location /auth {{ auth_request /judge; empty_gif; }}
             location = /judge {{ proxy_pass http://127.0.0.1:%%PORT2%%; }}
             location /cached {{ proxy_pass http://127.0.0.1:%%PORT2%%; proxy_cache c; proxy_cache_valid 1m; }}
             location /redirected {{ try_files /missing @other; }}
             location @other {{ return 200; }} }}"
        ),
    ) else {
        return;
    };
    let server = site.tolerate("Connection refused").start();
    server.get("/tries").expect(200);
    let spans = received.wait(3);
    let root = &spans[0];
    for (span, status) in spans[1..].iter().zip(["502", "200"]) {
        assert_eq!((span.name.as_str(), span.kind), ("upstream", 3));
        assert_eq!((&span.parent, &span.trace), (&root.id, &root.trace));
        assert_eq!(span.of("http.status_code"), status);
        assert!(
            span.nanos.0 >= root.nanos.0 && span.nanos.1 <= root.nanos.1,
            "{spans:?}"
        );
    }
    assert_eq!(spans[1].of("weir.upstream.server"), "127.0.0.1:1");
    assert_eq!(spans[2].of("http.resend_count"), "1");
    server.get("/auth").expect(200);
    let spans = received.wait(6).split_off(3);
    // The subrequest ends before the request.
    let (part, of_part, root) = (&spans[0], &spans[1], &spans[2]);
    assert_eq!((part.name.as_str(), part.kind), ("/judge", 1));
    assert_eq!((&part.parent, &of_part.parent), (&root.id, &part.id));
    server.get("/cached").expect(200);
    let spans = received.wait(9).split_off(6);
    let by_name = |name: &str| {
        let found = spans.iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {spans:?}"))
    };
    let (fill, of_fill, root) = (by_name("fill"), by_name("upstream"), by_name("/cached"));
    assert_eq!((&fill.parent, &of_fill.parent), (&root.id, &fill.id));
    assert_eq!(
        (root.of("weir.fill_role"), root.of("weir.cache_zone")),
        ("leader", "c")
    );
    server.get("/cached").expect(200);
    server.get("/redirected").expect(200);
    let spans = received.wait(11).split_off(9);
    assert_eq!(spans[0].of("weir.cache_tier"), "memory");
    assert_eq!(spans[1].name, "@other");
}

#[test]
fn a_copy_of_mirror_is_a_child_although_its_request_has_ended() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        &format!(
            "{ORIGIN} otel_trace on; otel_trace_context inject; otel_child_spans subrequest upstream;
             server {{ listen 127.0.0.1:%%PORT%%;
             location / {{ mirror /copy; return 200; }}
             location /shown {{ mirror /copy; empty_gif; }}
             location = /copy {{ internal; error_page 404 = @other; return 404; }}
             location @other {{ proxy_pass http://127.0.0.1:%%PORT2%%; }} }}"
        ),
    ) else {
        return;
    };
    let server = site.start();
    server.get("/shown").expect(200);
    let spans = received.wait(3);
    let by_name = |name: &str| {
        let found = spans.iter().find(|span| span.name == name);
        found.unwrap_or_else(|| panic!("no {name} in {spans:?}"))
    };
    let (root, copy, of_copy) = (by_name("/shown"), by_name("@other"), by_name("upstream"));
    assert_eq!((&copy.parent, &copy.trace), (&root.id, &root.trace));
    assert_eq!((&of_copy.parent, &of_copy.trace), (&copy.id, &root.trace));
}

#[test]
fn attributes_that_requests_have_in_common_are_those_of_each() {
    let (collector, received) = grpc_collector();
    let Some(site) = site(
        &collector,
        "otel_trace on;
         server { listen 127.0.0.1:%%PORT%%; server_name a; location / { return 200 $request_method; } }
         server { listen 127.0.0.1:%%PORT%%; server_name b; location / { if ($arg_bad) { return 503; } return 200; } }",
    ) else {
        return;
    };
    let server = site.start();
    // In turn and more than once, so that what is kept of one kind of request is met by the others.
    let asked: Vec<(&str, &str, &str, &str)> = [
        ("GET", "a", "/", "200"),
        ("HEAD", "a", "/", "200"),
        ("PURGE", "a", "/", "200"),
        ("LINK", "a", "/", "200"),
        ("GET", "b", "/", "200"),
        ("GET", "b", "/?bad=1", "503"),
    ]
    .repeat(3);
    let mut connection = server.connect();
    for (method, host, target, status) in &asked {
        connection.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        ));
        connection
            .reply_to(method)
            .expect(status.parse().expect("a number"));
    }
    let spans = received.wait(asked.len());
    for (span, (method, host, target, status)) in spans.iter().zip(&asked) {
        let said = [
            "http.method",
            "net.host.name",
            "http.target",
            "http.status_code",
        ]
        .map(|key| span.of(key));
        assert_eq!(said, [*method, *host, *target, *status]);
        assert_eq!(span.attributes["http.flavor"], "1.1");
    }
}

#[test]
fn a_collector_that_is_away_costs_bounded_memory_and_one_line() {
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    let server = http(
        "otel_exporter { endpoint 127.0.0.1:1; interval 10ms; batch_size 2; batch_count 2; }
         server { listen 127.0.0.1:%%PORT%%; location / { otel_trace on; return 200; }
         location = /metrics { prometheus; } location = /status { weir_status; } location = /json { weir_status json; } }",
    )
    .main("worker_processes 1;")
    .tolerate("otel: spans cannot be exported")
    .start();
    server.get("/").expect(200);
    server.line(
        "error.log",
        "otel: spans cannot be exported to 127.0.0.1:1: connect() to",
    );
    for _ in 0..50 {
        server.get("/").expect(200);
    }
    let text = server.get("/metrics").expect(200).text();
    let dropped = text
        .lines()
        .find_map(|line| line.strip_prefix("weir_otel_spans_total{result=\"dropped\"} "));
    let dropped: u64 = dropped.and_then(|count| count.parse().ok()).expect(&text);
    assert!((40..51).contains(&dropped), "{dropped}");
    assert!(server.get("/status").text().contains("\nspans\n"));
    assert!(
        server
            .get("/json")
            .text()
            .contains("\"spans\":[{\"exported\":0,")
    );
    let log = server.read("error.log");
    assert_eq!(log.matches("otel: ").count(), 1, "{log}");
}

#[test]
fn spans_of_the_last_requests_are_sent_before_the_end() {
    let (collector, received) = grpc_collector();
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    let port = collector.port();
    let server = http(&format!(
        "otel_exporter {{ endpoint 127.0.0.1:{port}; interval 1h; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ otel_trace on; return 200; }} }}"
    ))
    .start();
    for _ in 0..5 {
        server.get("/").expect(200);
    }
    server.stop();
    received.wait(5);
}

#[test]
fn a_full_batch_is_sent_at_once_and_bad_bytes_do_no_harm() {
    let (collector, received) = grpc_collector();
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    let port = collector.port();
    let server = http(&format!(
        "otel_exporter {{ endpoint 127.0.0.1:{port}; interval 1h; batch_size 300; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ otel_trace on; return 200; }} }}"
    ))
    .main("worker_processes 1;")
    .start();
    let mut client = server.connect();
    // More than the window of a new connection: the rest waits for the collector.
    let agent = "\u{fc}".repeat(500);
    for _ in 0..301 {
        client.send("GET /?%01%7f HTTP/1.1\r\nHost: a\r\n\r\n");
        client.reply();
    }
    let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: \xff\xfe".to_vec();
    bytes.extend_from_slice(agent.as_bytes());
    bytes.extend_from_slice(b"\r\nConnection: close\r\n\r\n");
    server.raw(bytes).expect(200);
    let spans = received.wait(300);
    assert_eq!(spans[0].of("http.target"), "/?%01%7f");
    server.stop();
    let last = received.wait(302).pop().expect("there is one");
    assert!(
        last.of("http.user_agent")
            .starts_with("\u{fffd}\u{fffd}\u{fc}"),
        "{last:?}"
    );
}

#[test]
fn the_contrib_module_is_understood() {
    let (collector, received) = grpc_collector();
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    let port = collector.port();
    let config = format!(
        "exporter = \"otlp\"\nprocessor = \"batch\"\n[exporters.otlp]\nhost = \"127.0.0.1\"\nport = {port}\n\
         [processors.batch]\nschedule_delay_millis = 10\n[service]\nname = \"ingress\"\n\
         [sampler]\nname = \"AlwaysOn\"\nparent_based = true\n"
    );
    let server = http(&format!(
        "{ORIGIN} opentelemetry_config %%DIR%%/otel.toml; opentelemetry_ignore_paths ^/healthz;
         server {{ listen 127.0.0.1:%%PORT%%; opentelemetry on; opentelemetry_propagate;
         opentelemetry_trust_incoming_spans on; opentelemetry_operation_name \"HTTP $request_method\";
         opentelemetry_attribute ingress.namespace default;
         location / {{ proxy_pass http://127.0.0.1:%%PORT2%%; add_header X-Trace $opentelemetry_context_traceparent;
           opentelemetry_capture_headers on; opentelemetry_sensitive_header_names ^x-key$;
           opentelemetry_sensitive_header_values hunter2; }}
         location /off {{ opentelemetry off; return 200; }}
         location /b3 {{ opentelemetry_propagate b3; return 200 \"$http_b3 $opentelemetry_context_b3\"; }} }}"
    ))
    .file("otel.toml", config)
    .main("load_module modules/otel_ngx_module.so;")
    .start();
    server.get("/off").expect(200);
    server.get("/healthz").expect(200);
    let unsampled = format!("Traceparent: {}00", &PARENT[..53]);
    server.get_with("/", &[&unsampled]).expect(200);
    let header = format!("Traceparent: {PARENT}");
    let lines = [
        &*header,
        "X-Key: a",
        "X-Pass: my hunter2",
        "Authorization: Basic x",
        "X-Plain: p",
    ];
    let reply = server.get_with("/", &lines).expect(200);
    let span = received.wait(1).remove(0);
    let own = format!("00-{}-{}-01", span.trace, span.id);
    assert_eq!(
        (reply.field("X-Trace"), reply.text()),
        (&*own, format!("{own} "))
    );
    assert_eq!(
        (span.name.as_str(), &*span.resource["service.name"]),
        ("HTTP GET", "ingress")
    );
    for (key, value) in [
        ("ingress.namespace", "default"),
        ("http.request.header.x_key", "[[REDACTED]]"),
        ("http.request.header.x_pass", "[[REDACTED]]"),
        ("http.request.header.authorization", "[[REDACTED]]"),
        ("http.request.header.x_plain", "[p]"),
        ("http.response.header.content_type", "[text/plain]"),
    ] {
        assert_eq!(span.of(key), value, "{key} of {span:?}");
    }
    let b3 = "B3: 0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1";
    let told = server.get_with("/b3", &[b3]).expect(200).text();
    let span = received.wait(2).remove(1);
    assert_eq!(told, format!("{0}-{1}-1 {0}-{1}-1", span.trace, span.id));
    assert_eq!(span.parent, "b7ad6b7169203331");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    if skip_on_oracle("Debian's nginx has no module for OpenTelemetry") {
        return;
    }
    for (block, message) in [
        (
            "otel_exporter { interval 1s; }",
            "\"otel_exporter\" requires \"endpoint\"",
        ),
        (
            "otel_exporter { endpoint a:1; endpoint b:1; }",
            "\"endpoint\" directive of \"otel_exporter\" is duplicate",
        ),
        (
            "otel_exporter { endpoint a:1; speed 1; }",
            "unknown directive \"speed\" in \"otel_exporter\"",
        ),
        (
            "otel_exporter { endpoint a:1; header x; }",
            "invalid number of arguments in \"header\" directive of \"otel_exporter\"",
        ),
        (
            "otel_exporter { endpoint a:1; header grpc-x y; }",
            "has invalid header name",
        ),
        (
            "otel_exporter { endpoint a:1; batch_size 0; }",
            "invalid value",
        ),
        (
            "otel_exporter { endpoint http://127.0.0.1:1/v1/traces; protocol grpc; }",
            "an endpoint with a path is one of HTTP",
        ),
        (
            "otel_exporter { endpoint 127.0.0.1:1; } otel_exporter { endpoint 127.0.0.1:2; }",
            "\"otel_exporter\" directive is duplicate",
        ),
        (
            "otel_exporter { endpoint 127.0.0.1:1; trusted_certificate missing.pem; }",
            "missing.pem",
        ),
        ("otel_trace on;", "\"otel_exporter\" block is missing"),
        ("otel_trace_context both;", "invalid value"),
        ("opentelemetry on;", "there is no exporter"),
        ("opentelemetry_config missing.toml;", "missing.toml"),
        ("otel_child_spans off upstream;", "invalid value"),
        ("opentelemetry_traces_sampler sometimes;", "invalid value"),
    ] {
        let tested = http(&format!("{block} server {{ listen 127.0.0.1:%%PORT%%; }}")).test();
        assert!(
            tested.code != 0 && tested.stderr.contains(message),
            "{block}: {}",
            tested.stderr
        );
    }
}
