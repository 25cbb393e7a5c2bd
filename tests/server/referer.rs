//! `valid_referers` and `$invalid_referer`.

use weir_tests::{Server, http};

fn is_valid(server: &Server, target: &str, referer: &str) -> bool {
    let reply = server.get_with(target, &[&format!("Referer: {referer}")]);
    match reply.text().as_str() {
        "[]" => true,
        "[1]" => false,
        other => panic!("{target}: {other}"),
    }
}

#[test]
fn names_wildcards_paths_and_patterns() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        server_name named ~^re.ex$ .below.net;
        location /none { valid_referers none example.org; return 200 [$invalid_referer]; }
        location /blocked { valid_referers blocked example.org; return 200 [$invalid_referer]; }
        location /names { valid_referers server_names; return 200 [$invalid_referer]; }
        location /front { valid_referers *.example.org; return 200 [$invalid_referer]; }
        location /end { valid_referers example.*; return 200 [$invalid_referer]; }
        location /path { valid_referers example.org/a/; return 200 [$invalid_referer]; }
        location /pattern { valid_referers ~\\.jpg$; return 200 [$invalid_referer]; }
        location / { return 200 [$invalid_referer]; }
    }";
    let server = http(conf).start();
    assert_eq!(server.get("/none").text(), "[]");
    assert_eq!(server.get("/blocked").text(), "[1]");
    for (target, referer, valid) in [
        ("/", "http://anything/", true),
        ("/none", "http://example.org", true),
        ("/none", "https://EXAMPLE.org:8080/x?y", true),
        ("/none", "http://other.org/", false),
        ("/none", "example.org", false),
        ("/blocked", "-", true),
        ("/blocked", "http://other.org/", false),
        ("/names", "http://named/x", true),
        ("/names", "http://regex/xx", true),
        ("/names", "http://a.below.net/", true),
        ("/names", "http://below.net/", true),
        ("/names", "http://elsewhere/", false),
        ("/front", "http://a.b.example.org/", true),
        ("/front", "http://example.org/", false),
        ("/end", "http://example.net/", true),
        ("/end", "http://www.example.net/", false),
        ("/path", "http://example.org/a/b", true),
        ("/path", "http://example.org/A/b", false),
        ("/path", "http://example.org", false),
        ("/pattern", "http://other.org/x.JPG", true),
        ("/pattern", "http://other.org/x.png", false),
    ] {
        assert_eq!(
            is_valid(&server, target, referer),
            valid,
            "{target} {referer}"
        );
    }
}

#[test]
fn none_alone_makes_no_sense() {
    let tested = http("server { valid_referers none blocked; }").test();
    assert!(
        tested.stderr.contains("without any valid referer"),
        "{}",
        tested.stderr
    );
    assert_ne!(tested.code, 0);
}
