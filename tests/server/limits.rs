//! Bounds on what a client may send and how slowly: header buffers, timeouts, `limit_rate`.

use std::time::{Duration, Instant};

use weir_tests::http;

#[test]
fn a_long_request_line_is_414_and_long_fields_400() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        client_header_buffer_size 1k;
        large_client_header_buffers 3 2k;
        location / { return 200 ok; }
    }";
    let server = http(conf).start();
    let line = |length: usize| {
        server
            .raw(format!(
                "GET /{} HTTP/1.1\r\nHost: a\r\n\r\n",
                "u".repeat(length)
            ))
            .status
    };
    assert_eq!(line(900), 200);
    assert_eq!(line(1_900), 200, "a large buffer holds it");
    assert_eq!(line(2_100), 414);
    assert_eq!(line(100_000), 414);

    let field = |length: usize| {
        server
            .raw(format!(
                "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
                "v".repeat(length)
            ))
            .status
    };
    assert_eq!(field(1_900), 200);
    assert_eq!(field(2_100), 400);
    assert_eq!(field(100_000), 400);

    let fields = |count: usize| {
        let lines: String = (0..count)
            .map(|i| format!("X-{i}: {}\r\n", "v".repeat(1_000)))
            .collect();
        server
            .raw(format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n"))
            .status
    };
    assert_eq!(fields(3), 200);
    assert_eq!(fields(10), 400);
    server.line("error.log", "client sent too long URI");
    server.line("error.log", "client sent too long header line");
}

#[test]
fn the_page_for_a_too_large_field_says_so() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; large_client_header_buffers 2 1k; }").start();
    let reply = server.raw(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: {}\r\n\r\n",
        "c".repeat(5_000)
    ));
    assert_eq!(reply.status, 400);
    assert!(
        reply.text().contains("Request Header Or Cookie Too Large"),
        "{}",
        reply.text()
    );
    assert_eq!(reply.field("Connection"), "close");
}

#[test]
fn client_header_timeout_is_408_or_a_close() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_header_timeout 200ms; location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut silent = server.connect();
    silent.assert_closed();
    let mut partial = server.connect();
    partial.send("GET / HTTP/1.1\r\nHost: a\r\n");
    let reply = partial.reply_or_closed();
    assert!(reply.is_none_or(|reply| reply.status == 408));
    partial.assert_closed();
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn client_header_timeout_is_for_the_whole_head() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_header_timeout 300ms; location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    let start = Instant::now();
    // A byte now and then does not buy more time. The pauses pace the client; nothing is
    // concluded from them.
    connection.send("GET / HTTP/1.1\r\n");
    while start.elapsed() < Duration::from_secs(2)
        && connection.is_quiet_for(Duration::from_millis(50))
    {
        connection.send("X: y\r\n");
    }
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "a slow client is never cut"
    );
}

#[test]
fn client_body_timeout_closes_a_stalled_upload() {
    // A body is read at the end of an answer that did not want it, or by who wants it; in both
    // cases a client that stalls is let go.
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_body_timeout 200ms; lingering_timeout 200ms; location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc");
    let reply = connection.reply_or_closed();
    assert!(reply.is_none_or(|reply| matches!(reply.status, 200 | 408)));
    connection.assert_closed();
}

#[test]
fn send_timeout_cuts_a_client_that_does_not_read() {
    let large = vec![b'x'; 20_000_000];
    let conf = "server { listen 127.0.0.1:%%PORT%% sndbuf=32k; send_timeout 200ms; reset_timedout_connection on; }";
    let server = http(conf).file("html/large", &large).start();
    let mut connection = server.connect();
    connection.request("GET", "/large", &[]);
    server.line("error.log", "client timed out");
    assert!(connection.rest().len() < large.len());
}

#[test]
fn limit_rate_bounds_the_speed_from_below() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { limit_rate 100k; }
        location /after { alias %%DIR%%/html/file; limit_rate 1k; limit_rate_after 200k; }
        location /variable { alias %%DIR%%/html/file; set $limit_rate 100k; }
        location /off { alias %%DIR%%/html/file; limit_rate $arg_none; }
    }";
    let server = http(conf).file("html/file", vec![b'x'; 150_000]).start();
    for target in ["/file", "/variable"] {
        let start = Instant::now();
        assert_eq!(server.get(target).expect(200).body.len(), 150_000);
        // 100 KB are allowed in the first second, so the rest cannot be there at once.
        assert!(
            start.elapsed() > Duration::from_millis(300),
            "{target} {:?}",
            start.elapsed()
        );
    }
    for target in ["/after", "/off"] {
        assert_eq!(
            server.get(target).expect(200).body.len(),
            150_000,
            "{target}"
        );
    }
}

#[test]
fn worker_connections_are_enough_or_the_client_is_closed() {
    let server = weir_tests::whole(
        "events { worker_connections 20; } http { access_log off; server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } } }",
    )
    .tolerate("worker_connections are not enough")
    .start();
    let mut connections: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for connection in &mut connections {
        connection.request("GET", "/", &[]);
    }
    drop(connections);
    // Once they are gone there is room again.
    let served = weir_tests::until(|| {
        let mut connection = server.connect();
        connection.request("GET", "/", &[]);
        connection
            .reply_or_closed()
            .filter(|reply| reply.status == 200)
    });
    assert!(served.is_some());
}
