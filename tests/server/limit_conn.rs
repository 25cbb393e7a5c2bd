//! `limit_conn`: requests of one key at the same time. A request that takes its time is one whose content the client
//! has not sent yet.

use weir_tests::{Connection, Server, http, whole};

const CONF: &str = "limit_conn_zone $arg_k zone=z:1m;
    limit_conn_zone $arg_o zone=other:1m;
    limit_conn_zone $arg_k zone=dry:1m;
    log_format status '$uri $limit_conn_status';
    server { listen 127.0.0.1:%%PORT%%;
        add_header X-Status $limit_conn_status always;
        access_log status.log status;
        location / { limit_conn z 1; dav_methods PUT; }
        location /two { limit_conn z 2; }
        location /status { limit_conn z 1; limit_conn_status 429; limit_conn_log_level info; }
        location /other { limit_conn other 1; }
        location /both { limit_conn other 1; limit_conn z 1; }
        location /dry { limit_conn dry 1; limit_conn_dry_run on; dav_methods PUT; }
        location /free { }
    }";

fn start() -> Server {
    let mut site = http(CONF);
    for name in ["a", "two", "status", "other", "both", "free", "dry/a"] {
        site = site.file(&format!("html/{name}"), name);
    }
    site.start()
}

/// Begins a request that is under way until its last byte is sent, which is what `finish` does.
fn begin(server: &Server, target: &str) -> Connection {
    let mut connection = server.connect();
    let lines = ["Content-Length: 3", "Expect: 100-continue"];
    connection.request("PUT", target, &lines);
    let told = connection.at_least(25);
    assert!(
        told.starts_with(b"HTTP/1.1 100"),
        "{:?}",
        String::from_utf8_lossy(&told)
    );
    connection
}

fn finish(mut connection: Connection) {
    connection.send("abc");
    let reply = String::from_utf8_lossy(&connection.at_least(60)).into_owned();
    assert!(
        reply.contains(" 201 ") || reply.contains(" 204 "),
        "{reply}"
    );
}

#[test]
fn a_second_request_of_the_key_is_refused() {
    let server = start();
    let busy = begin(&server, "/new?k=1");
    server.answers(&[
        ("/a?k=1", 503, ""),
        ("/status?k=1", 429, ""),
        ("/two?k=1", 200, "two"),
        ("/a?k=2", 200, "a"),
        ("/other?k=1&o=1", 200, "other"),
        ("/free?k=1", 200, "free"),
        // An empty key is not counted.
        ("/a", 200, "a"),
    ]);
    finish(busy);
    assert_eq!(server.get("/a?k=1").expect(200).field("X-Status"), "PASSED");
    assert!(!server.get("/free?k=1").has("X-Status"));
    server.line("error.log", "limiting connections by zone \"z\"");
    let line = server.line("error.log", "request: \"GET /status");
    assert!(line.contains("[info]"), "{line}");
}

#[test]
fn places_are_free_when_the_request_ends_though_the_connection_stays() {
    let server = start();
    let mut first = server.connect();
    let mut second = server.connect();
    for _ in 0..3 {
        assert_eq!(first.get("/a?k=1").status, 200);
        assert_eq!(second.get("/a?k=1").status, 200);
    }
}

#[test]
fn a_client_that_leaves_gives_its_place_back() {
    let server = start();
    drop(begin(&server, "/new?k=1"));
    server.line("status.log", "/new");
    assert_eq!(server.get("/a?k=1").status, 200);
}

#[test]
fn who_is_refused_by_one_limit_holds_no_place_of_another() {
    let server = start();
    let busy = begin(&server, "/new?k=1");
    let mut refused = server.connect();
    assert_eq!(
        refused.get("/both?k=1&o=1").expect(503).field("X-Status"),
        "REJECTED"
    );
    assert_eq!(server.get("/other?o=1").status, 200);
    finish(busy);
}

#[test]
fn a_dry_run_only_tells() {
    let server = start();
    let busy = begin(&server, "/dry/new?k=1");
    assert_eq!(
        server.get("/dry/a?k=1").expect(200).field("X-Status"),
        "REJECTED_DRY_RUN"
    );
    server.line(
        "error.log",
        "limiting connections, dry run, by zone \"dry\"",
    );
    finish(busy);
}

#[test]
fn mistakes_are_told_in_nginx_s_words() {
    for (line, message) in [
        (
            "limit_conn_zone $uri zone=z;",
            "invalid zone size \"zone=z\"",
        ),
        (
            "limit_conn_zone $uri zone=z:1k;",
            "zone \"zone=z:1k\" is too small",
        ),
        ("limit_conn_zone $uri x=y;", "invalid parameter \"x=y\""),
        ("limit_conn z 0;", "invalid number of connections \"0\""),
        ("limit_conn z 65536;", "connection limit must be less 65536"),
        (
            "limit_conn z 1; limit_conn z 2;",
            "\"limit_conn\" directive is duplicate",
        ),
        ("limit_conn z 1;", "zero size shared memory zone \"z\""),
        (
            "limit_conn_zone $uri zone=z:1m; limit_conn_zone $host zone=z:1m;",
            "limit_conn_zone \"z\" is already bound to key \"$uri\"",
        ),
        (
            "limit_conn_zone $uri zone=z:1m; limit_req zone=z;",
            "the shared memory zone \"z\" is already declared for a different use",
        ),
    ] {
        let tested = whole(&format!("events {{ }} http {{ {line} server {{ }} }}")).test();
        assert!(tested.stderr.contains(message), "{line}: {}", tested.stderr);
        assert_ne!(tested.code, 0, "{line}");
    }
}
