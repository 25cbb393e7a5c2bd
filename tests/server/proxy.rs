//! `proxy_pass`: what the origin is asked, what the client gets, and what becomes of an origin that misbehaves.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use weir_tests::{Http2, Scripted, Server, http, read_until, send};

/// An origin that answers every connection with these bytes, after it has read a head.
fn origin(answer: impl Into<Vec<u8>>) -> Scripted {
    let answer = answer.into();
    Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(stream, &answer);
    })
}

/// An origin that answers with the head that it was sent.
fn mirror() -> Scripted {
    Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", head.len());
        send(stream, [answer.as_bytes(), &head].concat());
    })
}

/// A server whose `location /` has a `proxy_pass` to this origin and these directives.
fn proxy(origin: &Scripted, directives: &str) -> Server {
    let port = origin.port();
    http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; {directives} }} }}"
    ))
    .start()
}

#[test]
fn the_request_reaches_the_origin_as_nginx_sends_it() {
    let origin = mirror();
    let server = proxy(
        &origin,
        "proxy_set_header X-Real-IP $remote_addr; proxy_set_header Accept '';",
    );
    let head = server
        .get_with(
            "/a%20b?c=d",
            &["Accept: x", "X-Own: 1", "Connection: close", "TE: trailers"],
        )
        .text();
    let port = origin.port();
    let expected = format!(
        "GET /a%20b?c=d HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Real-IP: 127.0.0.1\r\nX-Own: 1\r\n\r\n"
    );
    if weir_tests::is_oracle() {
        // An older nginx speaks HTTP/1.0 unless told otherwise.
        assert!(head.starts_with("GET /a%20b?c=d HTTP/1."), "{head}");
    } else {
        assert_eq!(head, expected);
    }
}

#[test]
fn the_path_of_the_url_replaces_the_locations() {
    let origin = mirror();
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%;
            location /a/ {{ proxy_pass http://127.0.0.1:{port}/b/; }}
            location /keep/ {{ proxy_pass http://127.0.0.1:{port}; }}
            location ~ ^/re/(.*) {{ proxy_pass http://127.0.0.1:{port}/x/$1?y=$arg_y; }}
            location /rw/ {{ rewrite ^/rw/(.*) /new/$1 break; proxy_pass http://127.0.0.1:{port}/ignored/; }}
            location = /slash {{ proxy_pass http://127.0.0.1:{port}/; }} }}"
    ))
    .start();
    for (target, sent) in [
        ("/a/x", "/b/x"),
        ("/a/x%20y?z", "/b/x%20y?z"),
        ("/a/./../a/x", "/b/x"),
        ("/keep/%7Ex/../y", "/keep/%7Ex/../y"),
        ("/re/q?y=1", "/x/q?y=1"),
        ("/rw/q?z", "/new/q?z"),
        ("/slash", "/"),
    ] {
        let head = server.get(target).text();
        let line = head.lines().next().unwrap_or_default().to_owned();
        assert_eq!(line.split(' ').nth(1), Some(sent), "{target}: {line}");
    }
}

#[test]
fn trailers_go_on_also_where_all_content_came_with_the_head() {
    if weir_tests::skip_on_oracle("proxy_pass_trailers came with 1.27.2") {
        return;
    }
    let origin = origin(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\nHost: x\r\n\r\n",
    );
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1; proxy_pass_trailers on;
            location /buffered {{ proxy_pass http://127.0.0.1:{port}; }}
            location /plain {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }}
            location /none {{ proxy_pass http://127.0.0.1:{port}; proxy_pass_trailers off; }} }}"
    ))
    .start();
    for (path, ends) in [
        ("/buffered", "\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"),
        ("/plain", "\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n"),
        ("/none", "\r\n\r\nok"),
    ] {
        let mut client = server.connect();
        client.request("GET", path, &["Connection: close"]);
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(answer.ends_with(ends), "{path}: {answer}");
    }
}

#[test]
fn connections_are_kept_and_used_again() {
    let origin = Scripted::start(|stream, _| {
        while !read_until(stream, b"\r\n\r\n").is_empty() {
            send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let port = origin.port();
    let server = http(&format!(
        "upstream u {{ server 127.0.0.1:{port}; keepalive 4; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; proxy_http_version 1.1;
            proxy_set_header Connection ''; }} }}"
    ))
    .start();
    for _ in 0..20 {
        assert_eq!(server.get("/").text(), "ok");
    }
    assert_eq!(origin.connections(), 1);
}

/// What an origin may do wrong before its head is complete: the client gets 502, and one line says whose fault it was.
#[test]
fn a_bad_head_is_a_bad_gateway_and_one_line_in_the_log() {
    if weir_tests::skip_on_oracle("older versions let some of these pass") {
        return;
    }
    for (answer, line) in [
        (
            "",
            "upstream prematurely closed connection while reading response header from upstream",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-",
            "upstream prematurely closed connection",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "upstream sent invalid \"Content-Length\" header",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "upstream sent duplicate header line",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nab",
            "upstream sent unknown \"Transfer-Encoding\"",
        ),
        (
            "HTTP/1.1 200 OK\r\nA: b\u{0}c\r\n\r\nab",
            "upstream sent invalid header",
        ),
    ] {
        let origin = origin(answer);
        let server = proxy(&origin, "");
        let reply = server.get("/");
        assert_eq!(reply.status, 502, "{answer:?}");
        server.line("error.log", line);
        let log = server.read("error.log");
        assert_eq!(
            log.lines().filter(|line| line.contains("[error]")).count(),
            1,
            "{answer:?}\n{log}"
        );
    }
}

#[test]
fn garbage_is_no_response() {
    if weir_tests::skip_on_oracle("nginx passes what is no HTTP on as HTTP/0.9") {
        return;
    }
    let origin = origin("SSH-2.0-OpenSSH\r\n");
    let server = proxy(&origin, "");
    assert_eq!(server.get("/").status, 502);
    server.line("error.log", "upstream sent no valid HTTP/1.0 header");
}

#[test]
fn a_head_larger_than_its_buffer_is_refused() {
    let origin = origin(format!(
        "HTTP/1.1 200 OK\r\nX: {}\r\n\r\n",
        "x".repeat(5000)
    ));
    let server = proxy(&origin, "proxy_buffer_size 4k;");
    assert_eq!(server.get("/").status, 502);
    server.line(
        "error.log",
        "upstream sent too big header while reading response header from upstream",
    );
}

/// A response that ends early must not look whole.
#[test]
fn a_response_that_ends_early_is_cut() {
    if weir_tests::skip_on_oracle("older versions may cut before the head was sent") {
        return;
    }
    for (answer, line) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
            "upstream prematurely closed connection while reading upstream",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
            "upstream prematurely closed connection while reading upstream",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshortXXXXX",
            "upstream sent invalid chunked response while reading upstream",
        ),
    ] {
        for directives in ["", "proxy_buffering off;"] {
            let origin = origin(answer);
            let server = proxy(&origin, directives);
            let mut connection = server.connect();
            connection.request("GET", "/", &[]);
            let received = String::from_utf8_lossy(&connection.rest()).into_owned();
            assert!(received.starts_with("HTTP/1.1 200"), "{received}");
            assert!(!received.ends_with("0\r\n\r\n"), "{received}");
            assert!(
                received.contains("Content-Length: 100") || received.contains("chunked"),
                "{received}"
            );
            server.line("error.log", line);
        }
    }
}

#[test]
fn more_than_was_announced_is_left_away() {
    let origin = origin("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n");
    let server = proxy(&origin, "");
    let mut connection = server.connect();
    assert_eq!(connection.get("/").text(), "ok");
    assert_eq!(connection.get("/").text(), "ok");
    server.line(
        "error.log",
        "upstream sent more data than specified in \"Content-Length\" header",
    );
}

#[test]
fn a_response_without_length_ends_with_its_connection() {
    let origin = origin("HTTP/1.1 200 OK\r\n\r\nall of it");
    let server = proxy(&origin, "");
    assert_eq!(server.get("/").text(), "all of it");
}

#[test]
fn a_reset_instead_of_an_answer_goes_to_the_next_server() {
    let bad = Scripted::start(|stream, _| {
        // Closing with unread input is a reset.
        let _ = stream.peek(&mut [0]);
    });
    let good = origin("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
    let (a, b) = (bad.port(), good.port());
    let server = http(&format!(
        "log_format l '$upstream_status $upstream_addr'; access_log access.log l;
         upstream u {{ server 127.0.0.1:{a}; server 127.0.0.1:{b}; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }}"
    ))
    .start();
    assert_eq!(server.get("/").text(), "good");
    let line = server.lines("access.log", 1).remove(0);
    assert_eq!(line, format!("502, 200 127.0.0.1:{a}, 127.0.0.1:{b}"));
}

#[test]
fn a_post_that_was_sent_is_not_sent_again() {
    let bad = Scripted::start(|stream, _| drop(read_until(stream, b"body")));
    let good = Scripted::start(|stream, _| {
        read_until(stream, b"body");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood");
    });
    let (a, b) = (bad.port(), good.port());
    let server = http(&format!(
        "upstream u {{ server 127.0.0.1:{a}; server 127.0.0.1:{b} backup; }}
         upstream v {{ server 127.0.0.1:{a}; server 127.0.0.1:{b} backup; }}
         server {{ listen 127.0.0.1:%%PORT%%;
            location /once {{ proxy_pass http://u; }}
            location /again {{ proxy_pass http://v; proxy_next_upstream error non_idempotent; }} }}"
    ))
    .start();
    let post = |target| {
        server.raw(format!(
            "POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody"
        ))
    };
    assert_eq!(post("/once").status, 502);
    assert_eq!(good.connections(), 0);
    assert_eq!(post("/again").text(), "good");
}

#[test]
fn silence_is_a_gateway_timeout() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        // Until the server gives up.
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let server = proxy(&origin, "proxy_read_timeout 100ms;");
    assert_eq!(server.get("/").status, 504);
    server.line("error.log", "upstream timed out (110: Connection timed out) while reading response header from upstream");
}

#[test]
fn a_dripping_response_arrives_whole() {
    let body = "x".repeat(200);
    let sent = body.clone();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{sent}",
            sent.len()
        );
        let _ = stream.set_nodelay(true);
        for byte in answer.bytes() {
            send(stream, [byte]);
        }
    });
    let server = proxy(&origin, "");
    assert_eq!(server.get("/").text(), body);
}

#[test]
fn interim_responses_end_here() {
    let origin = origin(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    if weir_tests::skip_on_oracle("an older nginx takes an interim response for the response") {
        return;
    }
    let server = proxy(&origin, "");
    let reply = server.get("/").expect(200);
    assert_eq!((reply.text().as_str(), reply.has("Link")), ("ok", false));
}

/// Answers with the length of the request's content, which it reads to its end by `Content-Length`.
fn counting_origin() -> Scripted {
    Scripted::start(|stream, _| {
        let mut received = Vec::new();
        let mut buffer = [0; 65536];
        let (mut head, mut total) = (0, usize::MAX);
        while received.len() < total {
            let Ok(n) = std::io::Read::read(stream, &mut buffer) else {
                return;
            };
            if n == 0 {
                return;
            }
            received.extend_from_slice(&buffer[..n]);
            if head == 0
                && let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n")
            {
                head = end + 4;
                let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
                let length = text
                    .split("content-length: ")
                    .nth(1)
                    .and_then(|rest| rest.split('\r').next());
                total = head
                    + length
                        .and_then(|length| length.parse::<usize>().ok())
                        .unwrap_or(0);
            }
        }
        let sum: u64 = received[head..].iter().map(|&byte| u64::from(byte)).sum();
        let text = format!("{} {sum}", total - head);
        send(
            stream,
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                text.len()
            ),
        );
    })
}

#[test]
fn request_content_goes_through_memory_and_through_a_file() {
    let origin = counting_origin();
    for directives in [
        "",
        "client_body_buffer_size 1k;",
        "client_body_in_file_only clean;",
        "proxy_request_buffering off;",
    ] {
        let server = proxy(&origin, directives);
        for size in [0, 1, 1000, 20_000, 300_000] {
            let body = vec![1; size];
            let mut connection = server.connect();
            connection.request("POST", "/", &[&format!("Content-Length: {size}")]);
            connection.send(&body);
            assert_eq!(
                connection.reply().text(),
                format!("{size} {size}"),
                "{directives} {size}"
            );
        }
    }
}

#[test]
fn chunked_content_is_sent_with_a_length_when_it_is_buffered() {
    let origin = counting_origin();
    let server = proxy(&origin, "");
    let reply = server.raw("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n\u{1}\u{1}\u{1}\r\n0\r\n\r\n");
    assert_eq!(reply.text(), "3 3");
}

#[test]
fn unbuffered_content_is_sent_while_the_client_sends_it() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        let _ = sender.send(read_until(stream, b"first\r\n"));
        let _ = sender.send(read_until(stream, b"0\r\n\r\n"));
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let server = proxy(
        &origin,
        "proxy_request_buffering off; proxy_http_version 1.1;",
    );
    let mut connection = server.connect();
    connection.request("POST", "/", &["Transfer-Encoding: chunked"]);
    connection.send("5\r\nfirst\r\n");
    // The origin has this before the client goes on.
    let first = receiver
        .recv_timeout(weir_tests::PATIENCE)
        .expect("the first piece arrives");
    assert!(first.ends_with(b"5\r\nfirst\r\n"));
    connection.send("6\r\nsecond\r\n0\r\n\r\n");
    assert_eq!(connection.reply().text(), "ok");
}

#[test]
fn expect_continue_is_answered_here() {
    let origin = counting_origin();
    let server = proxy(&origin, "");
    let mut connection = server.connect();
    connection.request("POST", "/", &["Content-Length: 5", "Expect: 100-continue"]);
    assert_eq!(connection.reply().status, 100);
    connection.send([1; 5]);
    assert_eq!(connection.reply().text(), "5 5");
}

#[test]
fn an_unbuffered_response_arrives_piece_by_piece() {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        );
        // The client says when it has that.
        let _ = receiver.recv_timeout(weir_tests::PATIENCE);
        send(stream, "6\r\nsecond\r\n0\r\n\r\n");
    });
    let server = proxy(&origin, "gzip on; gzip_types *; gzip_min_length 0;");
    let mut connection = server.connect();
    connection.request("GET", "/", &[]);
    let mut received = Vec::new();
    while !received.windows(5).any(|window| window == b"first") {
        received.extend(connection.at_least(1));
    }
    let _ = sender.send(());
    let rest = connection.at_least(16);
    assert!(String::from_utf8_lossy(&rest).contains("second"));
}

/// A response larger than all buffers, for a client that reads late: the origin is done before the client begins.
#[test]
fn a_slow_client_does_not_hold_the_origin() {
    const SIZE: usize = 12 * 1024 * 1024;
    let (sender, receiver) = std::sync::mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"),
        );
        let block: Vec<u8> = (0..=255).cycle().take(64 * 1024).collect();
        for _ in 0..SIZE / block.len() {
            send(stream, &block);
        }
        let _ = stream.shutdown(Shutdown::Write);
        let _ = sender.send(());
    });
    let server = proxy(&origin, "");
    let mut connection = server.connect();
    connection.request("GET", "/", &[]);
    receiver
        .recv_timeout(weir_tests::PATIENCE)
        .expect("the origin got rid of its response");
    let reply = connection.reply();
    assert_eq!(reply.body.len(), SIZE);
    assert!(
        reply
            .body
            .iter()
            .enumerate()
            .all(|(index, &byte)| byte == (index % 256) as u8)
    );
    server.line(
        "error.log",
        "an upstream response is buffered to a temporary file",
    );
}

#[test]
fn a_client_that_leaves_ends_the_request() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        let _ = sender.send(());
        // The end comes when the server closes.
        let _ = std::io::Read::read(stream, &mut [0]);
        let _ = sender.send(());
    });
    let port = origin.port();
    let server = http(&format!(
        "log_format l '$status'; access_log access.log l;
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let mut connection = server.connect();
    connection.request("GET", "/", &[]);
    receiver
        .recv_timeout(weir_tests::PATIENCE)
        .expect("the origin is asked");
    drop(connection);
    receiver
        .recv_timeout(weir_tests::PATIENCE)
        .expect("the origin is left");
    assert_eq!(server.lines("access.log", 1), ["499"]);
}

/// An origin that switches protocols and then sends everything back until the client's side ends.
fn echo() -> Scripted {
    Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\nhello ",
        );
        let mut copy: TcpStream = stream.try_clone().expect("a descriptor can be copied");
        let _ = std::io::copy(&mut copy, stream);
        send(stream, " bye");
    })
}

#[test]
fn an_upgraded_connection_carries_both_directions_and_closes_by_halves() {
    let origin = echo();
    let server = proxy(
        &origin,
        "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;",
    );
    let mut connection = server.connect();
    connection.request("GET", "/", &["Upgrade: echo", "Connection: Upgrade"]);
    connection.send("early ");
    let mut received = Vec::new();
    while !received.ends_with(b"hello early ") {
        received.extend(connection.at_least(1));
    }
    assert!(String::from_utf8_lossy(&received).starts_with("HTTP/1.1 101"));
    let big = vec![b'x'; 1_000_000];
    connection.send(&big[..500_000]);
    assert_eq!(connection.at_least(500_000).len(), 500_000);
    if weir_tests::is_oracle() {
        // It ends a tunnel as soon as one side has ended.
        return;
    }
    connection.send("last");
    connection.half_close();
    assert_eq!(connection.rest(), b"last bye");
}

/// What is left of a request is of no use once its response is over, however fast the origin takes it.
#[test]
fn a_request_that_was_answered_is_not_sent_to_its_end() {
    if weir_tests::skip_on_oracle("how much it has sent by then is its own affair") {
        return;
    }
    const SIZE: usize = 32 << 20;
    let (sender, taken) = mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
            head.extend(byte);
        }
        // The answer is on its way before any of the content is taken.
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let mut buffer = vec![0; 1 << 20];
        let mut count = 0;
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            count += n;
        }
        let _ = sender.send(count);
    });
    let server = proxy(&origin, "client_max_body_size 0;");
    let mut connection = server.connect();
    connection.send(format!(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n"
    ));
    connection.send(vec![b'x'; SIZE]);
    assert_eq!(connection.reply().text(), "ok");
    let taken = taken.recv().expect("the origin had a request");
    assert!(taken < SIZE / 2, "{taken}");
}

#[test]
fn redirects_and_cookies_are_rewritten() {
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        let port = stream.local_addr().expect("it is bound").port();
        send(
            stream,
            format!(
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}/b/x\r\nContent-Length: 0\r\n\
                 Set-Cookie: a=b; path=/b; domain=origin.test\r\nRefresh: 5; url=http://127.0.0.1:{port}/b/y\r\n\r\n"
            ),
        );
    });
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location /a/ {{ proxy_pass http://127.0.0.1:{port}/b/;
            proxy_cookie_path /b /a; proxy_cookie_domain origin.test here.test; proxy_cookie_flags a secure samesite=lax; }} }}"
    ))
    .start();
    let reply = server.get("/a/q");
    assert_eq!(reply.status, 302);
    assert_eq!(
        reply.field("Location"),
        format!("http://localhost:{}/a/x", server.port(0))
    );
    assert_eq!(reply.field("Refresh"), "5; url=/a/y");
    assert_eq!(
        reply.field("Set-Cookie"),
        "a=b; path=/a; domain=here.test; Secure; SameSite=Lax"
    );
}

#[test]
fn an_application_may_point_at_a_file() {
    let origin = origin(
        "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /files/a.txt\r\nContent-Type: text/own\r\nContent-Length: 7\r\n\r\nignored",
    );
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; }}
            location /files/ {{ internal; }} }}"
    ))
    .file("html/files/a.txt", "from the disk")
    .start();
    let reply = server.get("/anything");
    assert_eq!(
        (reply.text().as_str(), reply.field("Content-Type")),
        ("from the disk", "text/own")
    );
}

/// What the application says of ranges stays beside what is said of the file, and its charset stays also on an error's page.
#[test]
fn an_application_that_points_at_a_file_has_said_some_fields() {
    let origin = origin(
        "HTTP/1.1 200 OK\r\nX-Accel-Redirect: /files/a.txt\r\nContent-Type: text/own; charset=koi8-r\r\n\
         Accept-Ranges: bytes\r\nContent-Length: 7\r\n\r\nignored",
    );
    let port = origin.port();
    let conf = |more: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%%; location / {{ {more} proxy_pass http://127.0.0.1:{port}; }}
                location /files/ {{ internal; }} }}"
        )
    };
    let server = http(&conf("")).file("html/files/a.txt", "file").start();
    let reply = server.get("/").expect(200);
    assert_eq!(reply.all("Accept-Ranges"), ["bytes", "bytes"]);
    assert_eq!(reply.field("Content-Type"), "text/own; charset=koi8-r");
    let reply = server.get_with("/", &["Range: bytes=9-"]).expect(416);
    assert_eq!(reply.field("Content-Type"), "text/html; charset=koi8-r");
    let server = http(&conf("")).start();
    let reply = server.get("/").expect(404);
    assert_eq!(reply.field("Content-Type"), "text/html; charset=koi8-r");
    // What a cache could have is in its own ranges, not in the application's.
    let zone = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;";
    let server = http(&format!("{zone} {}", conf("proxy_cache z;")))
        .file("html/files/a.txt", "file")
        .start();
    assert_eq!(server.get("/").expect(200).all("Accept-Ranges"), ["bytes"]);
}

#[test]
fn nobody_listening_is_a_bad_gateway_at_once() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("it is bound").port()
    };
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let begun = std::time::Instant::now();
    assert_eq!(server.get("/").status, 502);
    assert!(begun.elapsed() < Duration::from_secs(5));
    server.line(
        "error.log",
        "connect() failed (111: Connection refused) while connecting to upstream",
    );
}

#[test]
fn mirrored_requests_reach_their_target_and_nobody_waits() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let copy = Scripted::start(move |stream, _| {
        let _ = sender.send(read_until(stream, b"body"));
        // No answer at all.
    });
    let origin = counting_origin();
    let (a, b) = (origin.port(), copy.port());
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ mirror /mirror; proxy_pass http://127.0.0.1:{a}; }}
            location = /mirror {{ internal; proxy_pass http://127.0.0.1:{b}$request_uri; }} }}"
    ))
    .start();
    let reply = server.raw("POST /x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert!(reply.text().starts_with("4 "));
    let copied = receiver
        .recv_timeout(weir_tests::PATIENCE)
        .expect("the copy arrives");
    assert!(
        copied.starts_with(b"POST /x?y HTTP/1."),
        "{}",
        String::from_utf8_lossy(&copied)
    );
}

#[test]
fn a_stored_response_is_a_file_with_its_time() {
    let origin = origin(
        "HTTP/1.1 200 OK\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 6\r\n\r\nstored",
    );
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ error_page 404 = @fetch; }}
            location @fetch {{ proxy_pass http://127.0.0.1:{port}; proxy_store on; proxy_store_access user:rw group:r all:r; }} }}"
    ))
    .folder("html/a")
    .start();
    assert_eq!(server.get("/a/b.txt").text(), "stored");
    assert_eq!(server.line("html/a/b.txt", "stored"), "stored");
    let again = server.get("/a/b.txt");
    assert_eq!((again.text().as_str(), origin.connections()), ("stored", 1));
    assert_eq!(
        again.field("Last-Modified"),
        "Sun, 06 Nov 1994 08:49:37 GMT"
    );
}

#[test]
fn early_hints_go_on_to_a_client_for_which_they_are_wanted() {
    if weir_tests::skip_on_oracle("early_hints is newer") {
        return;
    }
    let origin = origin(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\nX-Accel-Buffering: no\r\n\r\n\
         HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let server = proxy(&origin, "early_hints '' $arg_hints;");
    let received = |target: &str, version: &str| {
        let mut connection = server.connect();
        connection.send(format!(
            "GET {target} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        String::from_utf8_lossy(&connection.rest()).into_owned()
    };
    let hinted = received("/?hints=1", "1.1");
    let (hints, rest) = hinted.split_once("\r\n\r\n").expect("two heads");
    assert_eq!(hints, "HTTP/1.1 103 Early Hints\r\nLink: </a.css>");
    assert!(rest.starts_with("HTTP/1.1 200 OK"), "{hinted}");
    assert!(rest.ends_with("\r\n\r\nok"), "{hinted}");
    for (target, version) in [("/?hints=0", "1.1"), ("/", "1.1"), ("/?hints=1", "1.0")] {
        let plain = received(target, version);
        assert!(plain.starts_with("HTTP/1.1 200 OK"), "{plain}");
    }
}

/// RFC 9110, section 15.2: a proxy forwards them, but for the 100 that it has asked for itself.
#[test]
fn interim_responses_go_on_to_a_client_for_which_they_are_wanted() {
    if weir_tests::skip_on_oracle("nginx drops them") {
        return;
    }
    let origin = origin(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n\
         HTTP/1.1 104 Upload Resumption Supported\r\nUpload-Offset: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let server = proxy(&origin, "interim_responses '' $arg_interim;");
    let heads = |target: &str, version: &str| {
        let mut connection = server.connect();
        connection.send(format!(
            "GET {target} HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        let rest = String::from_utf8_lossy(&connection.rest()).into_owned();
        let lines = rest.lines().filter(|line| {
            line.starts_with("HTTP/") || line.starts_with("Upload") || line.starts_with("Link")
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let wanted = heads("/?interim=1", "1.1");
    assert_eq!(wanted.len(), 4, "{wanted:?}");
    assert_eq!(wanted[0], "HTTP/1.1 102 Processing");
    assert!(wanted[1].starts_with("HTTP/1.1 104"), "{wanted:?}");
    assert_eq!(wanted[2..], ["Upload-Offset: 5", "HTTP/1.1 200 OK"]);
    for (target, version) in [("/?interim=0", "1.1"), ("/", "1.1"), ("/?interim=1", "1.0")] {
        assert_eq!(heads(target, version), ["HTTP/1.1 200 OK"]);
    }
}

#[test]
fn interim_responses_without_end_are_a_bad_gateway() {
    if weir_tests::skip_on_oracle("nginx reads them for as long as they come") {
        return;
    }
    let origin = origin("HTTP/1.1 100 Continue\r\n\r\n".repeat(1000));
    let server = proxy(&origin, "");
    assert_eq!(server.get("/").status, 502);
    server.line("error.log", "upstream sent too many interim responses");
}

/// The file is for everybody: that its first client leaves does not matter to it.
#[test]
fn a_response_is_stored_though_its_client_leaves() {
    let (left, leaving) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 600000\r\n\r\nbegin",
        );
        // The client is gone before the rest comes.
        let _ = leaving.recv_timeout(Duration::from_secs(5));
        send(stream, "x".repeat(599_992));
        send(stream, "end");
    });
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_store on; }} }}"
    ))
    .folder("html")
    .start();
    let mut connection = server.connect();
    connection.request("GET", "/file", &[]);
    connection.at_least(100);
    drop(connection);
    left.send(()).expect("the origin waits");
    let stored = weir_tests::until(|| {
        let stored = std::fs::read(server.path("html/file")).ok()?;
        (stored.len() == 600_000).then_some(stored)
    });
    assert!(stored.is_some_and(|stored| stored.ends_with(b"xend")));
}

#[test]
fn what_is_not_buffered_is_not_stored() {
    let origin = origin("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_store on;
            location / {{ proxy_pass http://127.0.0.1:{port}; }}
            location /unbuffered {{ proxy_pass http://127.0.0.1:{port}; proxy_buffering off; }} }}"
    ))
    .folder("html")
    .start();
    assert_eq!(server.get("/unbuffered").text(), "ok");
    assert_eq!(server.get("/stored").text(), "ok");
    let is_there = |name: &str| server.path(name).exists().then_some(());
    assert!(weir_tests::until(|| is_there("html/stored")).is_some());
    assert!(is_there("html/unbuffered").is_none());
}

#[test]
fn a_date_that_is_to_be_the_origins_is_not_ours() {
    let origin = origin("HTTP/1.1 200 OK\r\nServer: origin\r\nContent-Length: 2\r\n\r\nok");
    let server = proxy(&origin, "proxy_pass_header Date; proxy_pass_header Server;");
    let reply = server.get("/").expect(200);
    assert_eq!(
        (reply.field("Server"), reply.has("Date")),
        ("origin", false)
    );
}

#[test]
fn the_variables_of_proxy_pass_can_be_set_and_keep_what_was_set() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT1%%; return 200 '$request_uri $http_x_host $http_x_port'; }
         server { listen 127.0.0.1:%%PORT%%;
            location ~ ^/to/(.*?)/(.*) {
                set $proxy_host $1; set $proxy_path $2; set $proxy_port 7;
                proxy_set_header X-Host $proxy_host; proxy_set_header X-Port $proxy_port;
                proxy_pass http://$proxy_host/$proxy_path; }
            location / { proxy_set_header X-Host set-$proxy_host; proxy_pass http://127.0.0.1:%%PORT1%%; } }",
    )
    .start();
    let port = server.port(1);
    let reply = server.get(&format!("/to/127.0.0.1:{port}/there"));
    assert_eq!(reply.text(), format!("/there 127.0.0.1:{port} 7"));
    let reply = server.get("/plain");
    assert_eq!(reply.text(), format!("/plain set-127.0.0.1:{port} "));
}

/// A 204 or 304 that is passed on says of its content what the origin said. One that was made here says nothing.
#[test]
fn a_204_and_a_304_that_are_passed_on_keep_their_content_type() {
    for status in ["204 No Content", "304 Not Modified"] {
        let origin = origin(format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/x-a\r\n\r\n"
        ));
        let server = proxy(&origin, "");
        let reply = server.get("/");
        assert_eq!(reply.field("Content-Type"), "text/x-a", "{status}");
        assert!(!reply.has("Content-Length"), "{status}");
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 204; }").start();
    assert!(!server.get("/").has("Content-Type"));
}

/// Both protocols say of the content what the origin said, in its words.
#[test]
fn a_content_type_that_is_passed_on_is_the_same_over_http2() {
    for (status, sent) in [
        ("200 OK", "text/html;charset=\"UTF-8\""),
        ("200 OK", "text/html;  charset=koi8-r"),
        ("200 OK", "text/html; charset=utf-8; x=y"),
        ("304 Not Modified", "text/x-a"),
        ("204 No Content", "text/x-a"),
    ] {
        let origin = origin(format!("HTTP/1.1 {status}\r\nContent-Type: {sent}\r\n\r\n"));
        let (before, parameter) = match weir_tests::is_oracle() {
            true => ("", "http2"),
            false => ("http2 on;", ""),
        };
        let port = origin.port();
        let server = http(&format!(
            "{before} server {{ listen 127.0.0.1:%%PORT%% {parameter}; listen 127.0.0.1:%%PORT1%%;
                location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
        ))
        .start();
        let mut client = server.connect_to(1);
        assert_eq!(client.get("/").field("Content-Type"), sent, "{status}");
        let reply = Http2::connect(&server, &[]).get("/");
        // As in nginx, a 204 has no type over HTTP/2, though over HTTP/1.
        let wanted = if status.starts_with("204") { "" } else { sent };
        assert_eq!(reply.field("content-type"), wanted, "{status} over HTTP/2");
    }
}
