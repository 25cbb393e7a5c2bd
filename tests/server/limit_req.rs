//! `limit_req`: the rate of requests by a key.

use std::time::{Duration, Instant};

use weir_tests::{Scripted, Signal, http, read_until, send, until, whole};

#[test]
fn more_than_the_rate_is_refused() {
    let conf = "limit_req_zone $arg_k zone=z:1m rate=1r/m;
        server { listen 127.0.0.1:%%PORT%%;
            location / { limit_req zone=z; }
            location /burst { limit_req zone=z burst=2 nodelay; limit_req_status 429; }
            location /dry { limit_req zone=z; limit_req_dry_run on; add_header X-Status $limit_req_status; }
            location /plain { } }";
    let mut site = http(conf);
    for name in ["a", "burst", "dry", "plain"] {
        site = site.file(&format!("html/{name}"), name);
    }
    let server = site.start();
    server.answers(&[
        ("/a?k=1", 200, "a"),
        ("/a?k=1", 503, ""),
        ("/a?k=2", 200, "a"),
        // Without a key nothing is counted.
        ("/a", 200, "a"),
        ("/a", 200, "a"),
        ("/plain?k=1", 200, "plain"),
        ("/burst?k=3", 200, "burst"),
        ("/burst?k=3", 200, "burst"),
        ("/burst?k=3", 200, "burst"),
        ("/burst?k=3", 429, ""),
    ]);
    assert_eq!(
        server.get("/dry?k=4").expect(200).field("X-Status"),
        "PASSED"
    );
    assert_eq!(
        server.get("/dry?k=4").expect(200).field("X-Status"),
        "REJECTED_DRY_RUN"
    );
    // 1.000, less what the time between two requests has paid back.
    server.line("error.log", "limiting requests, excess: ");
    server.line("error.log", "limiting requests, dry run, excess: ");
}

#[test]
fn a_burst_waits_for_its_turn() {
    let conf = "limit_req_zone $arg_k zone=z:1m rate=4r/s; server { listen 127.0.0.1:%%PORT%%;
        location / { limit_req zone=z burst=5; limit_req_log_level info; add_header X-Status $limit_req_status; } }";
    let server = http(conf).file("html/a", "").start();
    let start = Instant::now();
    assert_eq!(server.get("/a?k=1").expect(200).field("X-Status"), "PASSED");
    assert_eq!(
        server.get("/a?k=1").expect(200).field("X-Status"),
        "DELAYED"
    );
    assert!(
        start.elapsed() >= Duration::from_millis(240),
        "{:?}",
        start.elapsed()
    );
    server.line("error.log", "[info]");
    server.line("error.log", "delaying request, excess: ");
}

#[test]
fn a_request_is_counted_once_however_it_wanders() {
    let conf = "limit_req_zone $arg_k zone=z:1m rate=1r/m; limit_req_zone $arg_k zone=y:1m rate=1r/m;
        server { listen 127.0.0.1:%%PORT%%; limit_req zone=z; limit_req zone=y burst=1 nodelay; error_page 404 /page; }";
    let server = http(conf).file("html/page", "page").start();
    server.answers(&[("/none?k=1", 404, "page"), ("/none?k=1", 503, "")]);
}

#[test]
fn mistakes_are_told_in_nginx_s_words() {
    let zone = "limit_req_zone $uri zone=z:1m rate=1r/s;";
    for (line, message) in [
        (
            "limit_req_zone $uri zone=z rate=1r/s;",
            "invalid zone size \"zone=z\"",
        ),
        (
            "limit_req_zone $uri zone=z:1k rate=1r/s;",
            "zone \"zone=z:1k\" is too small",
        ),
        (
            "limit_req_zone $uri zone=z:1m rate=0r/s;",
            "invalid rate \"rate=0r/s\"",
        ),
        (
            "limit_req_zone $uri zone=z:1m x=y;",
            "invalid parameter \"x=y\"",
        ),
        (
            "limit_req burst=1;",
            "\"limit_req\" must have \"zone\" parameter",
        ),
        (
            "limit_req zone=z burst=x;",
            "invalid burst value \"burst=x\"",
        ),
        (
            "limit_req zone=z; limit_req zone=z;",
            "\"limit_req\" directive is duplicate",
        ),
        (
            "server { limit_req zone=other; }",
            "zero size shared memory zone \"other\"",
        ),
        (
            zone,
            "limit_req_zone \"z\" is already bound to key \"$uri\"",
        ),
    ] {
        let tested = whole(&format!("events {{ }} http {{ {zone} {line} }}")).test();
        assert!(tested.stderr.contains(message), "{line}: {}", tested.stderr);
        assert_ne!(tested.code, 0, "{line}");
    }
}

#[test]
fn a_client_that_leaves_does_not_wait_on() {
    let conf = "limit_req_zone $arg_k zone=z:1m rate=1r/m; log_format status $status;
        server { listen 127.0.0.1:%%PORT%%; access_log status.log status;
            location / { limit_req zone=z burst=5; } }";
    let server = http(conf).file("html/a", "").start();
    assert_eq!(server.get("/a?k=1").status, 200);
    let mut leaving = server.connect();
    leaving.request("GET", "/a?k=1", &[]);
    server.line("error.log", "delaying request");
    drop(leaving);
    server.line("status.log", "499");
}

#[test]
fn counters_survive_a_reload_and_a_key_can_not_change() {
    let origin = |text: &'static str| {
        Scripted::start(move |stream, _| {
            read_until(stream, b"\r\n\r\n");
            send(stream, format!("HTTP/1.0 200 OK\r\n\r\n{text}"));
        })
    };
    let (one, other) = (origin("one"), origin("other"));
    let conf = |key: &str, page: &str, origin: &Scripted| {
        format!(
            "limit_req_zone {key} zone=z:1m rate=1r/m;
             upstream group {{ server 127.0.0.1:{}; }}
             server {{ listen 127.0.0.1:%%PORT%%;
                 location /page {{ return 200 {page}; }}
                 location /group {{ proxy_pass http://group; }}
                 location / {{ limit_req zone=z; }} }}",
            origin.port()
        )
    };
    let mut server = http(&conf("$arg_k", "old", &one))
        .file("html/a", "")
        .tolerate("previously it used")
        .start();
    assert_eq!(server.get("/a?k=1").status, 200);
    server.reconfigure(&conf("$arg_k", "new", &one));
    server.signal(Signal::HUP);
    assert!(until(|| (server.get("/page").text() == "new").then_some(())).is_some());
    assert_eq!(server.get("/a?k=1").status, 503);

    server.reconfigure(&conf("$arg_other", "newer", &other));
    server.signal(Signal::HUP);
    server.line(
        "error.log",
        "limit_req \"z\" uses the \"$arg_other\" key while previously it used the \"$arg_k\" key",
    );
    assert_eq!(server.get("/page").text(), "new");
    // What a refused configuration says of shared state does not count either.
    assert_eq!(server.get("/group").text(), "one");
}
