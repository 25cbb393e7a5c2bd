//! `prometheus`: what is counted, in which formats, and that clients cannot make it more.

use std::io::Write;
use std::process::{Command, Stdio};

use weir_tests::{Reply, Server, Site, http, skip_on_oracle};

use crate::cache_fills::Origin;

const METRICS: &str = "location = /metrics { prometheus; }";

fn site(block: &str) -> Option<Site> {
    if skip_on_oracle("nginx has no metrics") {
        return None;
    }
    Some(http(block))
}

/// The value of a sample.
#[track_caller]
fn sample(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(' '))
    });
    let line = line.unwrap_or_else(|| panic!("there is no {name} in {text}"));
    line[name.len() + 1..].to_owned()
}

fn metrics(server: &Server) -> String {
    server.get("/metrics").expect(200).text()
}

#[test]
fn requests_are_counted_by_server_and_zone() {
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name shop other; status_zone front; {METRICS}
         location / {{ return 200 hello; }}
         location /api/ {{ status_zone api; return 404; location /api/inner/ {{ return 301 /; }}
             location /api/off/ {{ status_zone off; return 301 /; }} }} }}"
    )) else {
        return;
    };
    let server = site.start();
    for path in ["/", "/", "/api/x", "/api/inner/x", "/api/off/"] {
        server.get(path);
    }
    let text = metrics(&server);
    for (name, value) in [
        (
            "weir_http_responses_total{server=\"shop\",class=\"2xx\"}",
            "2",
        ),
        (
            "weir_http_responses_total{server=\"shop\",class=\"4xx\"}",
            "1",
        ),
        (
            "weir_http_responses_total{zone=\"front\",class=\"3xx\"}",
            "2",
        ),
        ("weir_http_responses_total{zone=\"api\",class=\"4xx\"}", "1"),
        // A nested location inherits the zone of the one around it, unless it has `off`.
        ("weir_http_responses_total{zone=\"api\",class=\"3xx\"}", "1"),
        (
            "weir_http_request_duration_seconds_count{server=\"shop\"}",
            "5",
        ),
        (
            "weir_http_request_duration_seconds_bucket{server=\"shop\",le=\"+Inf\"}",
            "5",
        ),
        ("weir_http_first_byte_seconds_count{zone=\"front\"}", "5"),
        // The scrape itself.
        ("weir_http_requests_in_progress{server=\"shop\"}", "1"),
        ("weir_build_info{version=\"0.1.0\"}", "1"),
    ] {
        assert_eq!(sample(&text, name), value, "{name}");
    }
    let sent: u64 = sample(&text, "weir_http_sent_bytes_total{server=\"shop\"}")
        .parse()
        .expect("it is a number");
    assert!(sent > 400, "{sent}");
}

#[test]
fn the_format_is_the_one_that_was_asked_for() {
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name \"a\\\"b\"; {METRICS} }}"
    )) else {
        return;
    };
    let server = site.start();
    let plain = server.get("/metrics").expect(200);
    assert_eq!(
        plain.field("Content-Type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    assert!(
        plain
            .text()
            .contains("\n# TYPE weir_requests_total counter\n")
    );
    let accept = "Accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4";
    let open = server.get_with("/metrics", &[accept]).expect(200);
    assert_eq!(
        open.field("Content-Type"),
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    );
    let text = open.text();
    assert!(text.contains("\n# TYPE weir_requests counter\n"), "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    server.request("POST", "/metrics", &[]).expect(405);
}

/// A program that knows the format finds nothing wrong with it.
#[test]
fn promtool_accepts_the_metrics() {
    let Some(site) = site(&format!(
        "proxy_cache_path cache keys_zone=z:1m; limit_req_zone $uri zone=l:1m rate=100r/s;
         upstream u {{ zone u 64k; server 127.0.0.1:1; server 127.0.0.1:2 backup; queue 1; }}
         server {{ listen 127.0.0.1:%%PORT%%; server_name \"a\\\"b\"; status_zone \"with \\\"quotes\\\"\"; {METRICS}
             location / {{ limit_req zone=l; proxy_cache z; proxy_pass http://u; }} }}"
    )) else {
        return;
    };
    let text = metrics(&site.tolerate("connect() failed").start());
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        println!("skipped: promtool is not installed");
        return;
    };
    let mut input = promtool.stdin.take().expect("it is piped");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let output = promtool.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.is_empty(), "{said}\n{text}");
}

#[test]
fn clients_make_no_series() {
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name ~^(?<name>.*)$; {METRICS}
         location / {{ return 200 $name; }} }}"
    )) else {
        return;
    };
    let server = site.start();
    let series = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
    server.get("/");
    let before = series(&metrics(&server));
    let mut connection = server.connect();
    for number in 0..300 {
        let path = format!("/{number}?a={number}");
        connection.send(format!(
            "GET {path} HTTP/1.1\r\nHost: h{number}.example\r\nUser-Agent: {number}\r\n\r\n"
        ));
        connection.reply();
        connection.send(format!(
            "BREW /{number} HTTP/1.1\r\nHost: h{number}\r\n\r\n"
        ));
        connection.reply();
    }
    assert_eq!(series(&metrics(&server)), before);
}

#[test]
fn counters_go_on_over_a_reload() {
    let block = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name one; {METRICS} location / {{ return 200 x; }} }}"
    );
    let Some(site) = site(&block) else { return };
    let mut server = site.start();
    server.get("/");
    server.get("/");
    server.reconfigure(&format!(
        "{block} server {{ listen 127.0.0.1:%%PORT%%; server_name two; }}"
    ));
    server.signal(weir_tests::Signal::HUP);
    let until = weir_tests::until(|| metrics(&server).contains("server=\"two\"").then_some(()));
    assert!(until.is_some(), "the new server has counters");
    server.get("/");
    let text = metrics(&server);
    let count: u64 = sample(
        &text,
        "weir_http_responses_total{server=\"one\",class=\"2xx\"}",
    )
    .parse()
    .expect("it is a number");
    // The pages count, too.
    assert!(count >= 4, "{text}");
    assert_eq!(sample(&text, "weir_config_loads_total"), "2");
}

#[test]
fn upstream_servers_caches_and_limits_are_counted() {
    let origin = Origin::start(|stream, _, _| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=60\r\n\r\nok",
        );
    });
    let port = origin.port;
    let Some(site) = site(&format!(
        "proxy_cache_path cache keys_zone=z:1m; limit_req_zone $server_name zone=l:1m rate=1r/m;
         upstream u {{ zone u 64k; server 127.0.0.1:{port}; }}
         server {{ listen 127.0.0.1:%%PORT%%; {METRICS}
             location / {{ proxy_cache z; proxy_pass http://u; }}
             location /limited {{ limit_req zone=l; return 200 x; }} }}"
    )) else {
        return;
    };
    let server = site
        .tolerate("limiting requests")
        .file("html/limited", "x")
        .start();
    server.get("/a").expect(200);
    server.get("/a").expect(200);
    let text = metrics(&server);
    let peer = format!("upstream=\"u\",server=\"127.0.0.1:{port}\"");
    for (name, value) in [
        (format!("weir_upstream_requests_total{{{peer}}}"), "1"),
        (format!("weir_upstream_header_seconds_count{{{peer}}}"), "1"),
        (format!("weir_upstream_state{{{peer},state=\"up\"}}"), "1"),
        (
            "weir_cache_requests_total{cache=\"z\",outcome=\"hit\"}".to_owned(),
            "1",
        ),
        (
            "weir_cache_requests_total{cache=\"z\",outcome=\"miss\"}".to_owned(),
            "1",
        ),
        (
            "weir_cache_sent_bytes_total{cache=\"z\",from=\"store\"}".to_owned(),
            "2",
        ),
    ] {
        assert_eq!(sample(&text, &name), value, "{name}");
    }
}

#[test]
fn why_something_is_not_cached() {
    let origin = Origin::start(|stream, head, _| {
        let fields = match head.split(' ').nth(1).unwrap_or_default() {
            "/cookie" => "Cache-Control: max-age=60\r\nSet-Cookie: a=b",
            "/private" => "Cache-Control: private",
            "/plain" => "X-A: b",
            _ => "Cache-Control: max-age=60",
        };
        let _ = stream.write_all(
            format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{fields}\r\n\r\nok").as_bytes(),
        );
    });
    let Some(site) = site(&format!(
        "proxy_cache_path cache keys_zone=z:1m;
         server {{ listen 127.0.0.1:%%PORT%%; location / {{
             proxy_cache z; proxy_cache_status_header on; proxy_no_cache $arg_not;
             proxy_cache_bypass $arg_past; proxy_pass http://127.0.0.1:{};
             add_header X-Why $upstream_cache_reason; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    let why = |reply: &Reply| reply.field("X-Why").to_owned();
    for (target, reason) in [
        ("/cookie", "set-cookie"),
        ("/private", "private"),
        ("/plain", "no freshness"),
        ("/good", ""),
    ] {
        let reply = server.get(target).expect(200);
        assert_eq!(why(&reply), reason, "{target}");
        let status = reply.field("Cache-Status").to_owned();
        let is_said = match reason {
            "" => status.contains("; stored"),
            "no freshness" => status.ends_with("; detail=\"no freshness\""),
            word => status.ends_with(&format!("; detail={word}")),
        };
        assert!(is_said, "{status}");
    }
    let again = server.get("/cookie").expect(200);
    assert_eq!(why(&again), "uncacheable remembered, set-cookie");
    for (target, rule) in [("/good?past=1", "bypass ("), ("/new?not=1", "no_cache (")] {
        let reply = server.get(target).expect(200);
        let reason = why(&reply);
        assert!(reason.starts_with(rule), "{target}: {reason}");
        let (_, place) = reason.rsplit_once(':').unwrap_or_default();
        assert!(
            place.trim_end_matches(')').parse::<u32>().is_ok(),
            "{reason}"
        );
        assert!(!reason.contains('/'), "{reason}");
    }
    assert_eq!(why(&server.get("/good").expect(200)), "");
}

#[test]
fn the_status_page_has_the_slowest_requests() {
    let origin = Origin::start(|stream, _, _| {
        let _ = stream.set_read_timeout(Some(std::time::Duration::from_millis(50)));
        let _ = std::io::Read::read(stream, &mut [0]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name here; location = /status {{ weir_status; }}
         location / {{ server_timing on; proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    let reply = server.get("/slow/%1b?secret=1").expect(200);
    let timing = reply.field("Server-Timing");
    assert!(timing.starts_with("total;dur="), "{timing}");
    assert!(timing.contains("first_byte;dur="), "{timing}");
    let page = server.get("/status").expect(200).text();
    let line = page.lines().find(|line| line.contains("/slow/"));
    let line = line.unwrap_or_else(|| panic!("the request is not in {page}"));
    assert!(line.starts_with("200 GET here/slow/?  --/"), "{line}");
    assert!(
        line.contains("first_byte=") && !line.contains("secret"),
        "{line}"
    );
}
