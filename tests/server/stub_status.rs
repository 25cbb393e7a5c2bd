//! `stub_status`: nginx's page of counters, and its variables.

use weir_tests::http;

#[test]
fn the_page_counts_connections_and_requests() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; location /status { stub_status; } location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.get("/");
    }
    let page = connection.get("/status");
    assert_eq!(page.field("Content-Type"), "text/plain");
    let text = page.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0].trim_end(), "Active connections: 1");
    assert_eq!(lines[1].trim_end(), "server accepts handled requests");
    let numbers: Vec<u64> = lines[2]
        .split_whitespace()
        .map(|number| number.parse().expect("a number"))
        .collect();
    assert_eq!(numbers, [1, 1, 4]);
    assert_eq!(lines[3].trim_end(), "Reading: 0 Writing: 1 Waiting: 0");
}

#[test]
fn idle_connections_wait() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; location /status { stub_status; } location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut idle = server.connect();
    idle.get("/");
    let page = weir_tests::until(|| {
        let text = server.get("/status").text();
        text.contains("Reading: 0 Writing: 1 Waiting: 1")
            .then_some(text)
    });
    assert!(page.is_some_and(|text| text.starts_with("Active connections: 2")));
}

#[test]
fn the_counters_are_variables() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        location / { return 200 \"$connections_active $connections_reading $connections_writing $connections_waiting\"; } }";
    assert_eq!(http(conf).start().get("/").text(), "1 0 1 0");
}

#[test]
fn only_get_and_head() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { stub_status on; } }").start();
    assert_eq!(server.request("HEAD", "/", &[]).status, 200);
    assert_eq!(
        server.request("POST", "/", &["Content-Length: 0"]).status,
        405
    );
}

/// Sessions of `stream` are connections, too, and one that it passes on is one.
#[test]
fn the_page_counts_sessions_of_stream() {
    if crate::stream::is_missing() {
        return;
    }
    let server = weir_tests::whole(
        "events { }
        stream {
            server { listen 127.0.0.1:%%PORT1%%; return text; }
            server { listen 127.0.0.1:%%PORT2%% udp; return text; }
        }
        http { server { listen 127.0.0.1:%%PORT%%; location / { stub_status; } } }",
    )
    .start();
    assert_eq!(server.connect_to(1).rest(), b"text");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket
        .send_to(b"a", ("127.0.0.1", server.port(2)))
        .expect("it is sent");
    socket.recv(&mut [0; 8]).expect("an answer");
    let page = server.get("/").text();
    assert!(page.contains("\n 3 3 1 \n"), "{page}");
}
