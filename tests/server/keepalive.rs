//! Connections: keep-alive, its limits, pipelining, half-closed clients, HTTP/1.0 and 0.9.

use std::time::Duration;

use weir_tests::http;

const OK: &str = "server { listen 127.0.0.1:%%PORT%%; location / { return 200 $uri; } }";

#[test]
fn a_connection_serves_many_requests() {
    let server = http(OK).start();
    let mut connection = server.connect();
    for i in 0..50 {
        let reply = connection.get(&format!("/{i}"));
        assert_eq!(reply.text(), format!("/{i}"));
        assert_eq!(reply.field("Connection"), "keep-alive");
    }
}

#[test]
fn connection_close_is_honoured() {
    let server = http(OK).start();
    for line in ["Connection: close", "Connection: Close", "connection:close"] {
        let mut connection = server.connect();
        connection.request("GET", "/", &[line]);
        assert_eq!(connection.reply().field("Connection"), "close", "{line}");
        connection.assert_closed();
    }
}

#[test]
fn http_10_closes_unless_asked_to_keep() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.send("GET /a HTTP/1.0\r\n\r\n");
    let reply = connection.reply();
    assert_eq!(
        (reply.version.as_str(), reply.field("Connection")),
        ("HTTP/1.1", "close")
    );
    connection.assert_closed();

    let mut connection = server.connect();
    for _ in 0..2 {
        connection.send("GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(connection.reply().field("Connection"), "keep-alive");
    }
}

#[test]
fn http_09_has_a_body_only() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.send("GET /simple\r\n");
    assert_eq!(connection.rest(), b"/simple");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = http(OK).file("html/x", "x").start();
    let mut connection = server.connect();
    let requests: String = (0..100)
        .map(|i| format!("GET /{i} HTTP/1.1\r\nHost: a\r\n\r\n"))
        .collect();
    connection.send(requests);
    for i in 0..100 {
        assert_eq!(connection.reply().text(), format!("/{i}"));
    }
}

#[test]
fn pipelined_files_and_errors_mix() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a", "file a")
        .file("html/b", vec![b'b'; 200_000])
        .start();
    let mut connection = server.connect();
    connection.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /none HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\nHEAD /b HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(connection.reply().text(), "file a");
    assert_eq!(connection.reply().status, 404);
    assert_eq!(connection.reply().body.len(), 200_000);
    assert_eq!(connection.reply_to("HEAD").status, 200);
    assert_eq!(connection.reply().text(), "file a");
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.send_slowly("GET /slow HTTP/1.1\r\nHost: localhost\r\nX-Header: value\r\n\r\n");
    assert_eq!(connection.reply().text(), "/slow");
    connection.send_slowly("\r\n\r\nGET /slow2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(
        connection.reply().text(),
        "/slow2",
        "empty lines before a request are skipped"
    );
}

#[test]
fn keepalive_requests_bounds_the_number() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; keepalive_requests 3; location / { return 200 $connection_requests; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    for (number, state) in [("1", "keep-alive"), ("2", "keep-alive"), ("3", "close")] {
        let reply = connection.get("/");
        assert_eq!(
            (reply.text().as_str(), reply.field("Connection")),
            (number, state)
        );
    }
    connection.assert_closed();
}

#[test]
fn keepalive_timeout_zero_closes_at_once() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; keepalive_timeout 0; location / { return 200; } }",
    )
    .start();
    let mut connection = server.connect();
    assert_eq!(connection.get("/").field("Connection"), "close");
    connection.assert_closed();
}

#[test]
fn keepalive_timeout_closes_an_idle_connection() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; keepalive_timeout 100ms; location / { return 200; } }",
    )
    .start();
    let mut connection = server.connect();
    assert_eq!(connection.get("/").field("Connection"), "keep-alive");
    connection.assert_closed();
}

#[test]
fn the_keep_alive_field_appears_when_it_has_a_value() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; keepalive_timeout 75s 20s; location / { return 200; } }").start();
    assert_eq!(server.get("/").field("Keep-Alive"), "timeout=20");
}

#[test]
fn keepalive_disable_knows_old_browsers() {
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; keepalive_disable safari; location / { return 200; }
        location /none { keepalive_disable none; return 200; } }";
    let server = http(conf).start();
    let safari = "User-Agent: Mozilla/5.0 (Macintosh; Intel Mac OS X) AppleWebKit/534 (KHTML, like Gecko) Version/5.0 Safari/534";
    assert_eq!(server.get_with("/", &[safari]).field("Connection"), "close");
    assert_eq!(
        server.get_with("/none", &[safari]).field("Connection"),
        "keep-alive"
    );
    assert_eq!(server.get("/").field("Connection"), "keep-alive");
}

#[test]
fn a_half_closed_client_still_gets_its_answer() {
    let large = vec![b'x'; 3_000_000];
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/large", &large)
        .start();
    let mut connection = server.connect();
    connection.request("GET", "/large", &[]);
    connection.half_close();
    assert_eq!(connection.reply().body.len(), large.len());
    connection.assert_closed();
}

#[test]
fn a_client_that_leaves_in_mid_answer_harms_nobody() {
    let large = vec![b'x'; 5_000_000];
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/large", &large)
        .file("html/a", "a")
        .start();
    for _ in 0..10 {
        let mut connection = server.connect();
        connection.request("GET", "/large", &[]);
        connection.at_least(1000);
    }
    assert_eq!(server.get("/a").text(), "a");
}

#[test]
fn an_idle_connection_stays_open() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.get("/");
    assert!(connection.is_quiet_for(Duration::from_millis(100)));
    assert_eq!(connection.get("/again").text(), "/again");
}

#[test]
fn many_connections_at_once() {
    let server = http(OK).start();
    let mut connections: Vec<_> = (0..200).map(|_| server.connect()).collect();
    for (i, connection) in connections.iter_mut().enumerate() {
        connection.request("GET", &format!("/{i}"), &[]);
    }
    for (i, connection) in connections.iter_mut().enumerate() {
        assert_eq!(connection.reply().text(), format!("/{i}"));
    }
}

#[test]
fn variables_in_the_answer_make_no_chunks_for_known_lengths() {
    let server = http(OK).start();
    let reply = server.get("/length");
    assert_eq!(reply.field("Content-Length"), "7");
    assert!(!reply.chunked);
}

#[test]
fn several_loops_serve_one_port() {
    for listen in ["127.0.0.1:%%PORT%%", "127.0.0.1:%%PORT%% reuseport"] {
        let server = http(&format!(
            "server {{ listen {listen}; location / {{ return 200 $uri; }} }}"
        ))
        .main("worker_processes 4;")
        .start();
        let mut connections: Vec<_> = (0..40).map(|_| server.connect()).collect();
        for connection in &mut connections {
            assert_eq!(connection.get("/x").text(), "/x");
        }
    }
}

#[test]
fn each_location_on_the_way_may_close() {
    let server = http(
        "server {
            listen 127.0.0.1:%%PORT%%;
            location /way { keepalive_timeout 0; rewrite ^ /end last; }
            location /fails { keepalive_requests 1; error_page 404 /end; return 404; }
            location /end { return 200 end; }
        }",
    )
    .start();
    for (path, connection) in [
        ("/end", "keep-alive"),
        ("/way", "close"),
        ("/fails", "close"),
    ] {
        let reply = server.connect().get(path);
        assert_eq!(reply.field("Connection"), connection, "{path}");
    }
}

#[test]
fn the_server_block_is_on_the_way_of_an_internal_redirect() {
    let server = http(
        "server {
            listen 127.0.0.1:%%PORT%%;
            keepalive_requests 1;
            location /fails { keepalive_requests 9; error_page 404 /end; return 404; }
            location /rewrites { keepalive_requests 9; rewrite ^ /end last; }
            location /end { keepalive_requests 9; return 200 end; }
        }
        server {
            listen 127.0.0.1:%%PORT%%;
            server_name browsers;
            keepalive_disable msie6;
            location /fails { keepalive_disable safari; try_files /none /end; }
            location /passes { rewrite ^ /end last; }
            location /end { keepalive_disable safari; return 200 end; }
        }",
    )
    .start();
    for (host, path, connection) in [
        ("any", "/end", "keep-alive"),
        ("any", "/fails", "close"),
        ("any", "/rewrites", "keep-alive"),
        ("browsers", "/end", "keep-alive"),
        ("browsers", "/fails", "close"),
        ("browsers", "/passes", "close"),
    ] {
        let agent = match host {
            "browsers" => "Mozilla/4.0 (compatible; MSIE 6.0; x)",
            _ => "x",
        };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {agent}\r\nContent-Length: 0\r\n\r\n"
        );
        let reply = server.raw(head);
        assert_eq!(reply.field("Connection"), connection, "{host}{path}");
    }
}
