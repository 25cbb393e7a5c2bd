//! `auth_request`: another location decides; and `auth_delay`.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use weir_tests::http;

#[test]
fn the_status_of_the_question_decides() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /open { auth_request /auth/204; return 200 late; }
        location /file { auth_request /auth/204; }
        location /static { auth_request /allowed.txt; }
        location /401 { auth_request /auth/401; }
        location /403 { auth_request /auth/403; }
        location /404 { auth_request /auth/404; }
        location /500 { auth_request /auth/500; }
        location /off { auth_request /auth/403; location /off/inner { auth_request off; } }
        location = /auth/204 { internal; return 204; }
        location = /auth/401 { internal; return 401; }
        location = /auth/403 { internal; return 403; }
        location = /auth/404 { internal; return 404; }
        location = /auth/500 { internal; return 500; }
    }";
    let mut site = http(conf).file("html/allowed.txt", "secret content of the answer");
    for name in ["file", "static", "401", "403", "404", "500", "off/inner"] {
        site = site.file(&format!("html/{name}"), "inside");
    }
    let server = site.start();
    server.answers(&[
        // Rewriting comes before access.
        ("/open", 200, "late"),
        ("/file", 200, "inside"),
        ("/static", 200, "inside"),
        ("/401", 401, ""),
        ("/403", 403, ""),
        ("/404", 500, ""),
        ("/500", 500, ""),
        ("/off/inner", 200, "inside"),
        ("/auth/204", 404, ""),
    ]);
    server.line("error.log", "auth request unexpected status: 404");
}

#[test]
fn variables_are_set_from_the_question() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { auth_request /auth; auth_request_set $where \"<$uri>\"; add_header X-Where $where; }
        location /unset { add_header X-Where \"[$where]\"; }
        location = /auth { return 204; }
    }";
    let server = http(conf).file("html/a", "").file("html/unset", "").start();
    assert_eq!(server.get("/a").expect(200).field("X-Where"), "</auth>");
    assert_eq!(server.get("/unset").expect(200).field("X-Where"), "[]");
}

#[test]
fn the_body_of_a_post_survives_the_question() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { auth_request /auth; }
        location = /auth { return 204; }
    }";
    let server = http(conf).file("html/a", "").start();
    let mut connection = server.connect();
    connection.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(connection.reply_to("POST").status, 405);
    assert_eq!(connection.reply().status, 200);
}

#[test]
fn satisfy_any_takes_the_first_grant() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        satisfy any;
        location /in { deny all; auth_request /auth/204; }
        location /out { deny all; auth_request /auth/401; }
        location = /auth/204 { return 204; }
        location = /auth/401 { return 401; }
    }";
    let server = http(conf).file("html/in", "").file("html/out", "").start();
    server.answers(&[("/in", 200, ""), ("/out", 401, "")]);
}

#[test]
fn a_refusal_may_be_delayed_and_a_grant_is_not() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; auth_delay 300ms; auth_basic x; auth_basic_user_file users; }";
    let server = http(conf)
        .file("users", "bob:{PLAIN}pw\n")
        .file("html/a", "")
        .start();
    let timed = |password: &str| {
        let credentials = STANDARD.encode(format!("bob:{password}"));
        let start = Instant::now();
        let status = server
            .get_with("/a", &[&format!("Authorization: Basic {credentials}")])
            .status;
        // Not the 300 ms in full: a server may count from when its loop last looked at the clock.
        (status, start.elapsed() >= Duration::from_millis(200))
    };
    assert_eq!(timed("no"), (401, true));
    let fast = (0..20).any(|_| timed("pw") == (200, false));
    assert!(fast, "a grant has to wait for nothing");
    server.line("error.log", "delaying unauthorized request");
}
