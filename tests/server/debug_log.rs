//! Debug lines: for those who ask for them, and for nobody else.

use weir_tests::{http, whole};

#[test]
fn a_log_at_debug_level_tells_what_happens() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        error_log all.log debug; error_log some.log info;
        location / { }
    }";
    let server = http(conf).file("html/a", "a").start();
    assert_eq!(server.get_with("/a", &["X-One: 1"]).status, 200);
    server.line("all.log", "http filename: \"");
    let line = server.line("all.log", "using configuration \"/\"");
    assert!(line.contains("[debug]"), "{line}");
    if !weir_tests::is_oracle() {
        server.line("all.log", "http filter: range");
    }
    assert!(!server.read("some.log").contains("[debug]"));
    assert!(!server.read("error.log").contains("[debug]"));
}

#[test]
fn debug_connection_names_clients() {
    let conf = |network: &str| {
        format!(
            "events {{ debug_connection {network}; }}
             http {{ server {{ listen 127.0.0.1:%%PORT%%; error_log http.log crit; location / {{ return 200; }} }} }}"
        )
    };
    let server = whole(&conf("127.0.0.0/8")).start();
    assert_eq!(server.get_with("/a?b", &["X-One: 1"]).status, 200);
    server.line("http.log", "http header: \"X-One: 1\"");
    server.line("http.log", "http request line: \"GET /a?b HTTP/1.1\"");

    let server = whole(&conf("192.0.2.0/24")).start();
    assert_eq!(server.get("/").status, 200);
    assert_eq!(server.read("http.log"), "");
}
