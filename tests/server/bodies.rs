//! Request bodies: lengths, chunks, `Expect`, limits, and what is left of a body nobody read.

use std::io::Write;

use weir_tests::{Scripted, http, read_until, send, until};

/// A server that discards bodies and answers.
const OK: &str = "server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }";

fn chunked(body: &str, size: usize) -> String {
    let mut text = String::new();
    for part in body.as_bytes().chunks(size) {
        text.push_str(&format!(
            "{:x}\r\n{}\r\n",
            part.len(),
            String::from_utf8_lossy(part)
        ));
    }
    text + "0\r\n\r\n"
}

#[test]
fn a_body_nobody_wants_is_read_and_the_connection_goes_on() {
    let server = http(OK).start();
    let mut connection = server.connect();
    for _ in 0..3 {
        connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789");
        assert_eq!(connection.reply().text(), "ok");
        connection.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            chunked("0123456789", 3)
        ));
        assert_eq!(connection.reply().text(), "ok");
    }
    assert_eq!(connection.get("/").text(), "ok");
}

#[test]
fn a_chunked_body_may_come_byte_by_byte_with_extensions_and_trailers() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    connection.send_slowly("5;ext=1\r\nhello\r\n00a\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n");
    assert_eq!(connection.reply().text(), "ok");
    assert_eq!(connection.get("/").text(), "ok");
}

#[test]
fn malformed_chunks_are_a_bad_request() {
    let server = http(OK).start();
    for body in [
        "x\r\n",
        "-1\r\n",
        " \r\n",
        "\r\n",
        "5\r\nhelloXX",
        "0x5\r\nhello\r\n",
        "ffffffffffffffff1\r\n",
        "5\r\nhello!\r\n",
    ] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let reply = server.raw_or_closed(format!("{head}{body}"));
        assert!(
            reply
                .as_ref()
                .is_none_or(|reply| reply.status == 400 || reply.text() == "ok"),
            "{body:?} {reply:?}"
        );
    }
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn expect_100_continue_is_answered_before_the_body() {
    // Only a location that reads the body asks for it.
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_max_body_size 100;
        location / { error_page 405 =200 /done; } location /done { return 200 done; } }";
    let server = http(conf).file("html/a", "").start();
    let mut connection = server.connect();
    connection.request("POST", "/a", &["Expect: 100-continue", "Content-Length: 5"]);
    let first = connection.reply();
    if first.status == 100 {
        connection.send("hello");
        assert_eq!(connection.reply().text(), "done");
    } else {
        assert_eq!(first.text(), "done");
    }

    let mut connection = server.connect();
    connection.request(
        "POST",
        "/a",
        &["Expect: 100-continue", "Content-Length: 500"],
    );
    assert_eq!(
        connection.reply().status,
        413,
        "a body that is too long is never asked for"
    );
}

#[test]
fn client_max_body_size_refuses_by_length_and_while_reading() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        client_max_body_size 10;
        location / { return 200 ok; }
        location /any { client_max_body_size 0; return 200 ok; }
        location /large { client_max_body_size 1g; return 200 ok; }
    }";
    let server = http(conf).start();
    let post = |target: &str, length: usize| {
        let head = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        server.raw(head + &"x".repeat(length)).status
    };
    assert_eq!(post("/any", 11), 200);
    assert_eq!(post("/large", 11), 200);
    assert_eq!(post("/", 10), 200);
    // `return` answers in the rewrite phase, but the limit is checked where the location is found.
    assert_eq!(post("/", 11), 413);
    server.line(
        "error.log",
        "client intended to send too large body: 11 bytes",
    );
}

#[test]
fn a_too_large_chunked_body_is_refused_where_it_is_read() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_max_body_size 10; error_page 405 =200 /; location = / { return 200 ok; } }";
    let server = http(conf).start();
    let body = chunked(&"x".repeat(100), 10);
    let reply = server.raw(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
    ));
    assert!(matches!(reply.status, 200 | 413), "{}", reply.status);
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn a_large_unread_body_is_lingered_over_so_that_the_answer_arrives() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; client_max_body_size 1k; location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n");
    for _ in 0..30 {
        connection.send(vec![b'x'; 100_000]);
    }
    connection.half_close();
    assert_eq!(connection.reply().status, 413);
}

#[test]
fn a_body_that_ends_early_is_no_request() {
    let server = http(OK).start();
    let mut connection = server.connect();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n012");
    connection.half_close();
    // nginx answers first and then waits for the rest; a close is right too.
    let reply = connection.reply_or_closed();
    assert!(reply.is_none_or(|reply| matches!(reply.status, 200 | 400)));
    assert_eq!(server.get("/").text(), "ok");
}

#[test]
fn client_body_temp_path_is_made_at_the_start() {
    let server = http(OK).start();
    assert_eq!(server.get("/").text(), "ok");
    assert!(until(|| server.path("body_temp").is_dir().then_some(())).is_some());
}

#[test]
fn pipelined_bodies_are_kept_apart() {
    let server =
        http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 $uri; } }").start();
    let mut connection = server.connect();
    let mut bytes = Vec::new();
    for i in 0..20 {
        let body = if i % 2 == 0 {
            format!("Content-Length: {i}\r\n\r\n{}", "x".repeat(i))
        } else {
            format!(
                "Transfer-Encoding: chunked\r\n\r\n{}",
                chunked(&"y".repeat(i), 4)
            )
        };
        write!(bytes, "POST /{i} HTTP/1.1\r\nHost: a\r\n{body}").expect("a vector grows");
    }
    connection.send(bytes);
    for i in 0..20 {
        assert_eq!(connection.reply().text(), format!("/{i}"));
    }
}

#[test]
fn a_refusal_stays_what_it_is_if_the_content_is_invalid() {
    let conf = "error_log error.log error; server { listen 127.0.0.1:%%PORT%%; location /ok { return 200; } }";
    let server = http(conf).file("html/a.txt", "a").start();
    for (path, status) in [("/a.txt", 405), ("/ok", 400)] {
        let mut connection = server.connect();
        connection.send(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"
        ));
        let reply = connection.reply().expect(status);
        assert_eq!(reply.field("Connection"), "close", "{path}");
        connection.assert_closed();
    }
    for path in ["/a.txt", "/ok"] {
        let request = format!("server: , request: \"POST {path} HTTP/1.1\"");
        let line = server.line("error.log", &request);
        assert!(
            line.contains("client sent invalid chunked body, client: "),
            "{line}"
        );
    }
}

#[test]
fn content_that_is_invalid_at_once_asks_no_server() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\nabc");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    });
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1;
            location / {{ proxy_request_buffering off; proxy_pass http://127.0.0.1:{port}; }}
            location /small {{ client_body_buffer_size 16; proxy_request_buffering off; proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let small = head.replace("POST /", "POST /small");
    for (head, rest) in [
        (head, ""),
        (small.as_str(), "and more than the buffer holds\r\n"),
    ] {
        let mut connection = server.connect();
        connection.send(format!("{head}3\r\nabcd\r\n0\r\n\r\n{rest}"));
        connection.reply().expect(400);
        connection.assert_closed();
    }
    // All of it has come, and what follows it is the next request: it is sent with its length, not in chunks.
    let mut connection = server.connect();
    connection.send(format!(
        "{head}3\r\nabc\r\n0\r\nX: y\r\n\r\n{head}3\r\nabc\r\n0\r\n\r\n"
    ));
    connection.reply().expect(200);
    connection.reply().expect(200);
}
