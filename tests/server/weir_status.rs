//! `weir_status`: what loops and pools do.

use weir_tests::{http, skip_on_oracle, until};

#[test]
fn a_table_for_people_and_json_for_programs() {
    if skip_on_oracle("nginx has no such page") {
        return;
    }
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        location /text { weir_status; }
        location /json { weir_status json; }
        location / { return 200; } }";
    let server = http(conf).main("worker_processes 2;").start();
    for _ in 0..4 {
        server.get("/");
    }
    let page = server.get("/text").expect(200);
    assert_eq!(page.field("Content-Type"), "text/plain");
    assert_eq!(page.field("Vary"), "Accept");
    let text = page.text();
    for part in [
        "loop connections",
        "\n   0 ",
        "iterations by duration",
        "\npool ",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let page = server.get("/json").expect(200);
    assert_eq!(page.field("Content-Type"), "application/json");
    assert_eq!(page.field("Cache-Control"), "no-store");
    let text = page.text();
    let loops = text.split("\"pools\":").next().unwrap_or_default();
    let counts = loops
        .split("\"requests\":")
        .skip(1)
        .filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), 6, "{text}");
    // The second loop may begin a moment after the first.
    let both = until(|| {
        (server
            .get("/json")
            .text()
            .matches("\"turn_times_log2_us\":[")
            .count()
            == 2)
            .then_some(())
    });
    assert!(both.is_some(), "each loop is shown");
    assert_eq!(
        server
            .request("POST", "/json", &["Content-Length: 0"])
            .status,
        405
    );
}

#[test]
fn a_browser_gets_a_page_that_may_run_nothing_else() {
    if skip_on_oracle("nginx has no such page") {
        return;
    }
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location = /s { weir_status; } }").start();
    let browser = "Accept: text/html,application/xhtml+xml,*/*;q=0.8";
    let page = server.get_with("/s", &[browser]).expect(200);
    assert_eq!(page.field("Content-Type"), "text/html; charset=utf-8");
    let policy = page.field("Content-Security-Policy").to_owned();
    let nonce = policy
        .split("'nonce-")
        .nth(1)
        .and_then(|rest| rest.split('\'').next());
    let nonce = nonce.expect("the policy has one");
    let text = page.text();
    assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let again = server.get_with("/s", &[browser]).expect(200);
    assert_ne!(again.field("Content-Security-Policy"), policy);
    let data = server
        .get_with("/s", &["Accept: application/json"])
        .expect(200);
    assert_eq!(data.field("Content-Type"), "application/json");
    let text = data.text();
    for name in [
        "servers",
        "upstreams",
        "errors",
        "slowest",
        "stalls",
        "certificates",
        "limits",
    ] {
        assert!(text.contains(&format!("\"{name}\":")), "{name} in {text}");
    }
}

#[test]
fn the_page_is_for_this_machine_unless_a_rule_says_otherwise() {
    if skip_on_oracle("nginx has no such page") {
        return;
    }
    let server = http(
        "set_real_ip_from 127.0.0.1; real_ip_header X-Client;
         server { listen 127.0.0.1:%%PORT%%; server_name own.example;
             location = /bare { weir_status; }
             location = /open { weir_status; allow all; }
             location = /closed { weir_status; deny all; } }
         server { listen 127.0.0.1:%%PORT1%% proxy_protocol; location = /bare { weir_status; } }",
    )
    .tolerate("access forbidden")
    .start();
    let status = |path: &str, host: &str, more: &[&str]| {
        let lines: String = more.iter().map(|line| format!("{line}\r\n")).collect();
        let text =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{lines}Connection: close\r\n\r\n");
        server.raw(text).status
    };
    for (host, expected) in [
        ("localhost", 200),
        ("a.localhost", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]", 200),
        ("own.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
    ] {
        assert_eq!(status("/bare", host, &[]), expected, "{host}");
    }
    // A client that has come through a proxy is not on this machine.
    for field in [
        "X-Forwarded-For: 127.0.0.1",
        "Forwarded: for=x",
        "Via: 1.1 x",
        "X-Real-IP: 127.0.0.1",
    ] {
        assert_eq!(status("/bare", "localhost", &[field]), 403, "{field}");
    }
    // `realip` changes whom rules judge, not where the socket comes from.
    assert_eq!(status("/bare", "localhost", &["X-Client: 192.0.2.1"]), 200);
    assert_eq!(status("/open", "evil.example", &["Via: 1.1 x"]), 200);
    assert_eq!(status("/closed", "localhost", &[]), 403);
    let mut proxied = server.connect_to(1);
    proxied.send(
        "PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\nGET /bare HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    assert_eq!(proxied.reply().status, 403);
}

#[test]
fn errors_are_grouped_and_requests_that_were_slow_explained() {
    if skip_on_oracle("nginx has no such page") {
        return;
    }
    let server = http(
        "upstream u { server 127.0.0.1:1; server 127.0.0.1:2; }
         server { listen 127.0.0.1:%%PORT%%; location /status { weir_status; }
             location / { proxy_pass http://u; } location /files/ { root html; } }",
    )
    .tolerate("connect() failed")
    .tolerate("no live upstreams")
    .tolerate("temporarily disabled")
    .tolerate("open() \"")
    .start();
    for number in 0..5 {
        server.get(&format!("/files/{number}?secret=1")).expect(404);
    }
    server.get("/x").expect(502);
    let text = server.get("/status").expect(200).text();
    let line = |part: &str| {
        let line = text.lines().find(|line| line.contains(part));
        line.unwrap_or_else(|| panic!("no {part} in {text}"))
            .to_owned()
    };
    let missing = line("open() \"");
    assert!(
        missing.starts_with("error ") && missing.contains("       5  "),
        "{missing}"
    );
    assert!(
        !text.contains("secret") && !text.contains("client:"),
        "{text}"
    );
    assert!(line("127.0.0.1:1 ").contains("unavail"), "{text}");
    assert!(line("upstream u").contains("(http)"), "{text}");
}
