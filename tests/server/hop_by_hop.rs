//! What belongs to one connection ends with it, and a response that was not asked for is none.

use std::sync::atomic::{AtomicUsize, Ordering};

use weir_tests::{Http2, Scripted, Server, http, read_until, send, skip_on_oracle};

const WHY: &str = "nginx passes on fields that Connection names, and what was not asked for";

/// An origin that answers with the head that it got.
fn mirror() -> Scripted {
    Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let length = head.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        send(stream, [answer.as_bytes(), &head].concat());
    })
}

/// An origin that answers each connection with these bytes.
fn saying(bytes: &'static str) -> Scripted {
    Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(stream, bytes);
    })
}

fn proxy(origin: &Scripted, directives: &str) -> Server {
    let port = origin.port();
    http(&format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status always;
         location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; {directives} }} }}"
    ))
    .start()
}

#[test]
fn what_the_client_s_connection_names_goes_no_further_and_the_configuration_s_fields_do() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = mirror();
    let server = proxy(
        &origin,
        "proxy_set_header X-Ours ours; proxy_set_header X-Copied $http_x_copied;",
    );
    let fields = [
        "Connection: close, X-One,x-two , X-Ours, X-Copied",
        "Connection: X-Three",
        "X-One: 1",
        "X-TWO: 2",
        "X-Three: 3",
        "X-Four: 4",
        "X-Ours: theirs",
        "X-Copied: copied",
    ];
    let text = server.get_with("/", &fields).expect(200).text();
    for gone in ["X-One", "X-TWO", "X-Three", "theirs"] {
        assert!(!text.contains(gone), "{gone} in {text}");
    }
    for sent in ["X-Four: 4\r\n", "X-Ours: ours\r\n", "X-Copied: copied\r\n"] {
        assert!(text.contains(sent), "{sent} not in {text}");
    }
}

#[test]
fn applications_do_not_get_what_the_client_s_connection_names() {
    if skip_on_oracle(WHY) {
        return;
    }
    let application = Scripted::start(|stream, _| {
        let request = read_until(stream, b"\0,");
        let shown = String::from_utf8_lossy(&request).replace('\0', " ");
        send(stream, format!("Content-Type: text/plain\r\n\r\n{shown}"));
    });
    let port = application.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; scgi_param SCGI 1; }} }}"
    ))
    .start();
    let fields = [
        "Connection: X-One, Upgrade",
        "X-One: 1",
        "Upgrade: x",
        "X-Two: 2",
    ];
    let text = server.get_with("/", &fields).expect(200).text();
    assert!(!text.contains("HTTP_X_ONE"), "{text}");
    assert!(text.contains("HTTP_UPGRADE x HTTP_X_TWO 2"), "{text}");
}

#[test]
fn a_client_that_names_who_it_is_or_what_it_asks_for_is_refused() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 204; }").start();
    for name in [
        "Host",
        "cookie",
        "Forwarded",
        "X-Forwarded-For",
        "x-forwarded-anything",
    ] {
        let field = format!("Connection: keep-alive, {name}");
        assert_eq!(server.get_with("/", &[&field]).status, 400, "{name}");
    }
    let names = |count| format!("Connection: {}", vec!["x"; count].join(","));
    assert_eq!(server.get_with("/", &[&names(64)]).status, 204);
    assert_eq!(server.get_with("/", &[&names(65)]).status, 400);
    for usual in [
        "keep-alive, Upgrade, HTTP2-Settings",
        "TE, close",
        "Authorization",
    ] {
        let field = format!("Connection: {usual}");
        assert_eq!(server.get_with("/", &[&field]).status, 204, "{usual}");
    }
}

#[test]
fn what_an_origin_s_connection_names_reaches_no_client_and_no_cache() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = saying(
        "HTTP/1.1 200 OK\r\nConnection: close, X-One, Content-Length\r\nX-One: 1\r\nX-Two: 2\r\n\
         Cache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok",
    );
    let server = proxy(&origin, "proxy_cache one;");
    for cache in ["MISS", "HIT"] {
        let reply = server.get("/").expect(200);
        assert_eq!(
            (reply.field("X-Cache"), reply.text().as_str()),
            (cache, "ok")
        );
        assert!(!reply.has("X-One") && reply.field("X-Two") == "2");
    }
}

const SWITCHED: &str =
    "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello";

#[test]
fn an_unasked_switch_of_protocols_is_a_bad_gateway() {
    if skip_on_oracle(WHY) {
        return;
    }
    let asks: &[&str] = &["Upgrade: echo", "Connection: Upgrade"];
    let passes = "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;";
    let sets = "proxy_set_header Upgrade echo; proxy_set_header Connection upgrade;";
    for (directives, fields) in [
        // Neither asked; the client alone; the configuration alone.
        ("", &[][..]),
        ("", asks),
        (passes, &[][..]),
        (sets, &[][..]),
    ] {
        let origin = saying(SWITCHED);
        let server = proxy(&origin, directives);
        assert_eq!(
            server.get_with("/", fields).status,
            502,
            "{directives} {fields:?}"
        );
        server.line(
            "error.log",
            "upstream switched protocols without being asked",
        );
    }
    for directives in [passes, sets] {
        let origin = saying(SWITCHED);
        let server = proxy(&origin, directives);
        let mut connection = server.connect();
        connection.request("GET", "/", asks);
        let received = connection.rest();
        assert!(received.starts_with(b"HTTP/1.1 101") && received.ends_with(b"hello"));
    }
    let application = Scripted::start(|stream, _| {
        read_until(stream, b",");
        send(
            stream,
            "Status: 101\r\nContent-Type: text/plain\r\n\r\nhello",
        );
    });
    let port = application.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; scgi_param SCGI 1; }} }}"
    ))
    .start();
    assert_eq!(server.get("/").status, 502);
}

/// An origin that answers everything with the same part.
fn partial() -> Scripted {
    let count = AtomicUsize::new(0);
    Scripted::start(move |stream, _| {
        while !read_until(stream, b"\r\n\r\n").is_empty() {
            let n = count.fetch_add(1, Ordering::SeqCst);
            send(
                stream,
                format!(
                    "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-1/10\r\nETag: \"e\"\r\n\
                     Cache-Control: max-age=60\r\nContent-Length: 2\r\n\r\np{n}"
                ),
            );
        }
    })
}

#[test]
fn a_part_that_was_not_asked_for_is_never_stored() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = partial();
    let server = proxy(&origin, "proxy_cache one; proxy_cache_valid any 1m;");
    for text in ["p0", "p1", "p2"] {
        let reply = server.get("/");
        assert_eq!((reply.status, reply.text().as_str()), (206, text));
    }
    // Where the location itself asks for the part, it is what stands under the key.
    let origin = partial();
    let server = proxy(
        &origin,
        "proxy_cache one; proxy_cache_valid any 1m; proxy_set_header Range bytes=0-1;",
    );
    for _ in 0..2 {
        assert_eq!(server.get("/").text(), "p0");
    }
}

#[test]
fn status_lines_that_make_no_sense_are_a_bad_gateway_and_are_not_stored() {
    if skip_on_oracle(WHY) {
        return;
    }
    for line in [
        "HTTP/9.9 200 OK",
        "HTTP/2.0 200 OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
    ] {
        let head = format!("{line}\r\nCache-Control: max-age=60\r\nContent-Length: 2\r\n\r\nok");
        let origin = Scripted::start(move |stream, _| {
            read_until(stream, b"\r\n\r\n");
            send(stream, &head);
        });
        let server = proxy(&origin, "proxy_cache one;");
        for _ in 0..2 {
            assert_eq!(server.get("/").status, 502, "{line:?}");
        }
        assert_eq!(origin.connections(), 2, "{line:?}");
    }
    let application = Scripted::start(|stream, _| {
        read_until(stream, b",");
        send(
            stream,
            "HTTP/9.9 200 OK\r\nContent-Type: text/plain\r\n\r\nhello",
        );
    });
    let port = application.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ scgi_pass 127.0.0.1:{port}; scgi_param SCGI 1; }} }}"
    ))
    .start();
    assert_eq!(server.get("/").status, 502);
}

#[test]
fn http_2_requests_are_judged_as_the_rfc_has_it() {
    if skip_on_oracle("nginx takes white space around values, 8-bit names and lists of hosts") {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; http2 on; return 204; }").start();
    let mut client = Http2::connect(&server, &[]);
    let usual = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    for (fields, status) in [
        (&[(":authority", "a"), ("x-a", "b c")][..], 204),
        (&[(":authority", "a"), ("x-a", " b")], 400),
        (&[(":authority", "a"), ("x-a", "b ")], 400),
        (&[(":authority", "a"), ("x-a", "\tb")], 400),
        (&[(":authority", "a"), ("cookie", "b\t")], 400),
        (&[(":authority", "a"), ("x-\u{e4}", "b")], 400),
        (&[(":authority", "a,b")], 400),
        (&[("host", "a,b")], 400),
        (&[(":authority", "[zz]")], 400),
        (&[(":authority", "a%zz")], 400),
        (&[(":authority", " a")], 400),
    ] {
        let stream = client.begin(&[&usual[..], fields].concat(), true);
        assert_eq!(client.reply(stream).status, status, "{fields:?}");
    }
}
