//! HTTP/3 (RFC 9114), by a client that shares no code with the server: what a stream has in common with an HTTP/1 request,
//! and what the protocol demands of both sides.
//!
//! The oracle has no QUIC before 1.25, and Debian's none at all: these tests run on Weir alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use weir_tests::{Scripted, Server, Signal, Site, read_until, send, skip_on_oracle};

use crate::http3_client::{Http3, Quic, block, frame, head, varint, with};
use crate::tls::{CERTIFICATE, Client, https};

const WHY: &str = "the oracle has no QUIC";

/// A site with HTTP/3 on its first port.
fn site(rest: &str) -> Site {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {rest} }}"
    ))
}

#[test]
fn a_request_looks_as_on_http_2() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "location / { add_header X-Seen '$request|$server_protocol|$http3|$host|$http_cookie|$scheme'; return 200 hello; }",
    )
    .start();
    let mut client = Http3::connect(&server);
    let fields = [("cookie", "a=1"), ("x-other", "2"), ("cookie", "b=2")];
    let reply = client.ask("GET", "/a%20b?c=d", &fields, b"");
    assert_eq!((reply.status, reply.text()), (200, "hello".to_owned()));
    assert_eq!(
        reply.field("x-seen"),
        "GET /a%20b?c=d HTTP/3.0|HTTP/3.0|h3|localhost|a=1; b=2|https"
    );
    assert_eq!(reply.field("content-length"), "5");
    let head = client.ask("HEAD", "/", &[], b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("content-length"), "5");
    for _ in 0..300 {
        assert_eq!(client.get("/").text(), "hello");
    }
}

#[test]
fn files_and_parts_of_them() {
    if skip_on_oracle(WHY) {
        return;
    }
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let server = site("")
        .file("html/big", &content)
        .file("html/small", "small")
        .file("html/empty", "")
        .start();
    let mut client = Http3::connect(&server);
    assert_eq!(client.get("/small").text(), "small");
    let empty = client.get("/empty");
    assert_eq!((empty.status, empty.body.len()), (200, 0));
    assert!(client.get("/big").body == content);
    let part = client.ask("GET", "/big", &[("range", "bytes=1000-200999")], b"");
    assert_eq!(part.status, 206);
    assert!(part.body == content[1000..201_000]);
    assert_eq!(client.get("/none").status, 404);
    // Several at once.
    let mut streams: Vec<_> = (0..10).map(|_| client.begin("GET", "/big", &[])).collect();
    for stream in &mut streams {
        client.end(stream);
    }
    for stream in &mut streams {
        assert!(client.reply(stream).body == content);
    }
}

/// An upstream server that answers with what it has got.
fn mirror() -> Scripted {
    Scripted::start(|stream, _| {
        let mut got = Vec::new();
        let mut buffer = [0; 65_536];
        let (body, length) = loop {
            let n = std::io::Read::read(stream, &mut buffer).expect("the request comes");
            got.extend_from_slice(&buffer[..n]);
            let Some(end) = got.windows(4).position(|four| four == b"\r\n\r\n") else {
                continue;
            };
            let head = String::from_utf8_lossy(&got[..end]).to_ascii_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |text| text.trim().parse().expect("a number"));
            break (end + 4, length);
        };
        while got.len() < body + length {
            let n = std::io::Read::read(stream, &mut buffer).expect("the body comes");
            got.extend_from_slice(&buffer[..n]);
        }
        let body = &got[body..];
        let answer = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        send(stream, answer);
        send(stream, body);
    })
}

#[test]
fn content_goes_up_buffered_and_not() {
    if skip_on_oracle(WHY) {
        return;
    }
    let upstream = mirror();
    let port = upstream.port();
    let server = site(&format!(
        "client_max_body_size 10m; \
         location /buffered {{ proxy_pass http://127.0.0.1:{port}; }} \
         location /unbuffered {{ proxy_pass http://127.0.0.1:{port}; proxy_request_buffering off; proxy_http_version 1.1; }} \
         location /refused {{ client_max_body_size 10; proxy_pass http://127.0.0.1:{port}; }}"
    ))
    .start();
    let content: Vec<u8> = (0..1_500_000u32).map(|n| (n % 253) as u8).collect();
    let length = content.len().to_string();
    let mut client = Http3::connect(&server);
    for path in ["/buffered", "/unbuffered"] {
        let fields = [("content-length", length.as_str())];
        let reply = client.ask("POST", path, &fields, &content);
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.body == content, "{path}");
    }
    // Without a length the body ends with the stream.
    let reply = client.ask("POST", "/buffered", &[], &content);
    assert!(reply.status == 200 && reply.body == content);
    let fields = [("content-length", "100")];
    let reply = client.ask("POST", "/refused", &fields, &[b'x'; 100]);
    assert_eq!(reply.status, 413);
    assert_eq!(client.get("/none").status, 404);
}

/// The head of what the server answers on a stream, and what follows it, of a client that looks at bytes.
fn answer(quic: &Quic, bytes: &[u8]) -> Result<Vec<u8>, u64> {
    let mut stream = quic.ask(bytes);
    quic.read(&mut stream)
}

/// The HEADERS frame that begins an answer contains this status.
fn has_status(answer: &[u8], status: &str) -> bool {
    let table = [
        ("200", 25u8),
        ("404", 27),
        ("400", 67),
        ("103", 24),
        ("100", 63),
    ];
    let index = table
        .iter()
        .find(|(known, _)| *known == status)
        .map(|row| row.1);
    match index {
        Some(index) if index < 63 => answer.contains(&(0xc0 | index)),
        Some(index) => answer.windows(2).any(|two| two == [0xff, index - 63]),
        None => answer.windows(3).any(|three| three == status.as_bytes()),
    }
}

#[test]
fn interim_responses_come_before_the_response() {
    if skip_on_oracle(WHY) {
        return;
    }
    let upstream = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\n\r\n\
             HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        );
    });
    let server = site(&format!(
        "location / {{ early_hints 1; proxy_http_version 1.1; proxy_pass http://127.0.0.1:{}; }}",
        upstream.port()
    ))
    .start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let answer = answer(&quic, &head("GET", &[])).expect("no reset");
    assert_eq!(answer[0], 1, "{answer:x?}");
    assert_eq!(answer[3..6], [0, 0, 0xc0 | 24], "{answer:x?}");
    assert!(has_status(&answer[6..], "200"), "{answer:x?}");
    assert!(answer.ends_with(b"ok"));
}

#[test]
fn trailers_of_a_response() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("location / { add_trailer X-Sum abc; return 200 hello; }").start();
    let mut client = Http3::connect(&server);
    let reply = client.get("/");
    assert_eq!(reply.text(), "hello");
    assert_eq!(reply.trailers, [("x-sum".to_owned(), "abc".to_owned())]);
}

#[test]
fn a_websocket_over_http_3() {
    if skip_on_oracle(WHY) {
        return;
    }
    let upstream = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        assert!(head.starts_with("get /chat http/1.1"), "{head}");
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"));
        send(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
        );
        let said = read_until(stream, b"!");
        send(stream, said);
    });
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{}; proxy_http_version 1.1; \
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }} \
         location /plain {{ return 200 plain; }}",
        upstream.port()
    ))
    .start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let connect = |path| {
        let fields = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", path),
            ("sec-websocket-version", "13"),
        ];
        frame(1, &block(&fields))
    };
    let (mut up, mut down) = quic.open();
    let all = quic.run(async {
        up.write_all(&connect("/chat")).await.expect("it is open");
        let mut got = Vec::new();
        while !got.ends_with(b"hello") {
            let chunk = down.read_chunk(4096, true).await.expect("no reset");
            got.extend_from_slice(&chunk.expect("it goes on").bytes);
        }
        up.write_all(&frame(0, b"hi!")).await.expect("it is open");
        got.extend(down.read_to_end(4096).await.expect("no reset"));
        got
    });
    assert!(has_status(&all, "200") && all.ends_with(b"hi!"), "{all:x?}");
    // Where no WebSocket is configured, an ordinary page must not look like one.
    let plain = answer(&quic, &connect("/plain")).expect("no reset");
    assert!(has_status(&plain, "501"), "{plain:x?}");
}

#[test]
fn methods_and_heads_that_are_refused() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("error_log error.log info; location / { return 200 hello; }").start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let status = |fields: &[(&str, &str)], status: &str| {
        let answer = answer(&quic, &frame(1, &block(fields))).expect("no reset");
        assert!(has_status(&answer, status), "{fields:?} {answer:x?}");
    };
    status(&with("GET", &[]), "200");
    status(&with("GET", &[])[..3], "400");
    status(&with("GET", &[])[1..], "400");
    status(&with("GET", &[(":method", "GET")]), "400");
    status(&with("GET", &[("X-Upper", "a")]), "400");
    status(&with("GET", &[("x-line", "a\nb")]), "400");
    status(&with("GET", &[("connection", "close")]), "400");
    status(&with("GET", &[("transfer-encoding", "chunked")]), "400");
    status(&with("GET", &[("te", "gzip")]), "400");
    status(&with("GET", &[("te", "trailers")]), "200");
    status(&with("GET", &[("host", "other")]), "400");
    status(&with("GET", &[("content-length", "x")]), "400");
    status(&with("GET", &[("content-length", "5")]), "400");
    status(&with("TRACE", &[]), "405");
    status(&with("CONNECT", &[]), "405");
    status(&with("CONNECT", &[(":protocol", "x")]), "501");
    // Larger than `large_client_header_buffers`, and larger than what is read at all.
    let long = "x".repeat(10_000);
    status(&with("GET", &[("x-long", &long)]), "400");
    let huge = "x".repeat(200_000);
    let huge = frame(1, &block(&with("GET", &[("x-long", &huge)])));
    let (mut send, mut receive) = quic.open();
    // The server stops it before its end.
    let _ = quic.run(send.write_all(&huge));
    assert_eq!(quic.read(&mut receive), Err(0x107));
    status(&with("GET", &[]), "200");
}

#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("location / { return 200 hello; }").start();
    let request = |bytes: &[u8], code: u64| {
        let quic = Quic::connect(&server);
        let _control = quic.control();
        let _stream = quic.ask(bytes);
        assert_eq!(quic.closed(), code, "{bytes:x?}");
    };
    let uni = |bytes: &[u8], code: u64| {
        let quic = Quic::connect(&server);
        let _stream = quic.open_uni(bytes);
        assert_eq!(quic.closed(), code, "{bytes:x?}");
    };
    let and = |first: Vec<u8>, second: Vec<u8>| [first, second].concat();
    // Frames where they must not be.
    request(&frame(0, b"x"), 0x105);
    request(&and(head("GET", &[]), frame(4, b"")), 0x105);
    request(&and(head("GET", &[]), frame(7, b"\0")), 0x105);
    request(&and(head("GET", &[]), frame(2, b"")), 0x105);
    request(&and(head("GET", &[]), frame(5, b"\0\0\0")), 0x105);
    request(&and(head("GET", &[]), vec![0, 9, b'x']), 0x106);
    // Blocks that cannot be decompressed.
    request(&frame(1, &[0, 0, 0xff, 0x24]), 0x200);
    request(&frame(1, &[0, 0, 0x27]), 0x200);
    request(&frame(1, &[0xff, 0xff, 0]), 0x200);
    // The control stream.
    uni(&[0, 7, 1, 0], 0x10a);
    uni(&[0, 4, 0, 4, 0], 0x105);
    uni(&[0, 4, 2, 2, 0], 0x109);
    uni(&[0, 4, 4, 6, 1, 6, 1], 0x109);
    uni(&[0, 4, 2, 8, 2], 0x109);
    uni(&[0, 4, 1, 6], 0x106);
    uni(&[0, 4, 0, 0, 1, b'x'], 0x105);
    uni(&[0, 4, 0, 0x0d, 1, 5, 0x0d, 1, 4], 0x108);
    uni(&[0, 4, 0, 7, 1, 4, 7, 1, 5], 0x108);
    uni(&[0, 4, 0, 3, 1, 0], 0x108);
    uni(&[0, 4, 0, 7, 2, 0, 0], 0x106);
    // Streams that must not be, or not twice.
    uni(&[1, 0], 0x103);
    let quic = Quic::connect(&server);
    let (_one, _two) = (quic.control(), quic.control());
    assert_eq!(quic.closed(), 0x103);
    // A stream that the connection needs ends.
    for kind in [0u8, 2, 3] {
        let quic = Quic::connect(&server);
        let mut stream = quic.open_uni(&[kind]);
        stream.finish().expect("it is open");
        assert_eq!(quic.closed(), 0x104, "{kind}");
    }
    // QPACK.
    uni(&[2, 0x3f, 0xff, 0x7f], 0x201);
    uni(&[2, 0xc0, 0], 0x201);
    uni(&[3, 0x01], 0x202);
    uni(&[3, 0x80], 0x202);
    // Others are not of interest, and nothing happens.
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let mut other = quic.open_uni(&varint(0x21 + 31 * 7));
    quic.run(async { drop(other.write_all(b"grease").await) });
    let plain = answer(&quic, &head("GET", &[])).expect("no reset");
    assert!(plain.ends_with(b"hello"));
}

#[test]
fn a_dynamic_table_and_streams_that_wait_for_it() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site("location / { return 200 '$http_x_long|$host'; }").start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    // A block that needs one insertion, which has not come.
    let mut waiting = vec![2, 0];
    waiting.extend_from_slice(&block(&with("GET", &[]))[2..]);
    waiting.push(0x80);
    let (mut send, mut receive) = quic.open();
    quic.run(async {
        send.write_all(&frame(1, &waiting))
            .await
            .expect("it is open");
        send.finish().expect("it is open");
    });
    // Others do not wait.
    let plain = answer(&quic, &head("GET", &[])).expect("no reset");
    assert!(plain.ends_with(b"|localhost"), "{plain:x?}");
    // Capacity 4096; x-long: value, in pieces.
    let mut encoder = quic.open_uni(&[2, 0x3f, 0xe1, 0x1f, 0x46, b'x']);
    quic.run(async {
        encoder.write_all(b"-long").await.expect("it is open");
        encoder.write_all(b"\x05value").await.expect("it is open");
    });
    let waited = quic.read(&mut receive).expect("no reset");
    assert!(waited.ends_with(b"value|localhost"), "{waited:x?}");
    // The server says what has arrived: one insertion, and the section of stream 0.
    let said = quic.run(async {
        loop {
            let mut stream = quic.connection.accept_uni().await.expect("it is open");
            let mut kind = [0];
            stream.read_exact(&mut kind).await.expect("it is open");
            if kind == [3] {
                let mut said = [0; 2];
                stream.read_exact(&mut said).await.expect("it is open");
                return said;
            }
        }
    });
    assert_eq!(said, [0x01, 0x80]);
}

#[test]
fn keepalive_requests_end_with_goaway() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server =
        site("keepalive_requests 3; location / { return 200 $connection_requests; }").start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    for n in 1..=3 {
        let answer = answer(&quic, &head("GET", &[])).expect("no reset");
        assert!(answer.ends_with(n.to_string().as_bytes()), "{answer:x?}");
    }
    assert_eq!(quic.closed(), 0x100);
    let lines = server.lines("access.log", 0);
    assert!(
        lines.iter().all(|line| line.contains("HTTP/3.0")),
        "{lines:?}"
    );
}

#[test]
fn a_server_without_http3_is_not_reached_by_a_connection_to_another() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic; server_name localhost; {CERTIFICATE} return 200 here; }} \
         server {{ listen 127.0.0.1:%%PORT%% quic; server_name other; http3 off; {CERTIFICATE} return 200 there; }}"
    ))
    .start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let mut fields = with("GET", &[]);
    fields[2].1 = "other";
    let other = answer(&quic, &frame(1, &block(&fields))).expect("no reset");
    assert!(has_status(&other, "421") || other.windows(2).any(|two| two == [0xff, 6]));
    let here = answer(&quic, &head("GET", &[])).expect("no reset");
    assert!(here.ends_with(b"here"));
}

#[test]
fn a_reload_keeps_the_connection_and_changes_the_next_request() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = |word: &str| {
        format!(
            "server {{ listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} return 200 {word}; }}"
        )
    };
    let mut server = https(&text("one")).start();
    let mut client = Http3::connect(&server);
    assert_eq!(client.get("/").text(), "one");
    server.reconfigure(&text("two"));
    server.signal(Signal::HUP);
    let began = Instant::now();
    while client.get("/").text() != "two" {
        assert!(began.elapsed() < weir_tests::PATIENCE);
    }
    assert!(client.quic.connection.close_reason().is_none());
}

#[test]
fn a_stop_finishes_what_has_begun() {
    if skip_on_oracle(WHY) {
        return;
    }
    let content = vec![b'x'; 4 << 20];
    let mut server = site("").file("html/big", &content).start();
    let mut client = Http3::connect(&server);
    let mut stream = client.begin("GET", "/big", &[]);
    client.end(&mut stream);
    let head = client.head(&mut stream);
    assert_eq!(head.status, 200);
    server.signal(Signal::QUIT);
    let mut length = 0;
    while let Some(piece) = client.piece(&mut stream) {
        length += piece.len();
    }
    assert_eq!(length, content.len());
    assert_eq!(client.quic.closed(), 0x100);
    assert!(server.ended().success());
}

#[test]
fn a_client_that_leaves_is_noticed() {
    if skip_on_oracle(WHY) {
        return;
    }
    let upstream = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        // Until the proxy gives up.
        let mut byte = [0];
        let _ = std::io::Read::read(stream, &mut byte);
    });
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{}; access_log left.log; }}",
        upstream.port()
    ))
    .start();
    let quic = Quic::connect(&server);
    let _control = quic.control();
    for how in ["stop", "reset"] {
        let (mut send, mut receive) = quic.open();
        quic.run(async {
            let length = [("content-length", "5")];
            let more: &[_] = if how == "reset" { &length } else { &[] };
            send.write_all(&head("GET", more))
                .await
                .expect("it is open");
            if how == "stop" {
                send.finish().expect("it is open");
            }
        });
        if how == "stop" {
            quic.run(async { tokio_until(|| upstream.connections() == 1).await });
            receive.stop(0x10cu32.into()).expect("it is open");
        } else {
            send.reset(0x10cu32.into()).expect("it is open");
        }
        // The reset leaves while the connection is driven.
        quic.run(async {
            tokio_until(|| !server.read("left.log").is_empty() || how == "reset").await
        });
        drop(receive);
    }
    let line = server.line("left.log", "HTTP/3.0");
    assert!(line.contains(" 499 "), "{line}");
}

#[test]
fn early_data_that_may_change_something_waits_for_the_handshake() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "ssl_early_data on; location / { return 200 '$request_method early=$ssl_early_data.$ssl_session_reused'; }",
    )
    .start();
    let client = Client::new();
    let ask = |method: &str| {
        // Tickets come behind the handshake: the first connections may end before they have one.
        for _ in 0..20 {
            if let Some(early) = Quic::connect_early(&server, &client) {
                let answer = answer(&early, &head(method, &[])).expect("no reset");
                return String::from_utf8_lossy(&answer).into_owned();
            }
            let quic = Quic::connect_as(&server, 0, &client, "localhost").expect("it listens");
            answer(&quic, &head("GET", &[])).expect("no reset");
        }
        panic!("no session is resumed");
    };
    let got = ask("POST");
    assert!(got.ends_with("POST early=.r"), "{got:?}");
    // What changes nothing may come before the end of the handshake or behind it.
    let got = ask("GET");
    assert!(got.contains("GET early="), "{got:?}");
}

#[test]
fn early_data_can_be_answered_with_425_and_is_asked_for_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "ssl_early_data on; location / { if ($ssl_early_data) { return 425; } return 200 later; }",
    )
    .start();
    let client = Client::new();
    // Tickets come behind the handshake: the first connections may end before they have one. And whether a request comes before
    // the end of the handshake is for the packets to decide.
    for _ in 0..100 {
        let Some(early) = Quic::connect_early(&server, &client) else {
            let quic = Quic::connect_as(&server, 0, &client, "localhost").expect("it listens");
            answer(&quic, &head("GET", &[])).expect("no reset");
            continue;
        };
        let mut early = Http3::over(early);
        let first = early.get("/");
        if first.status != 425 {
            assert_eq!((first.status, first.text()), (200, "later".to_owned()));
            continue;
        }
        // The same connection, whose handshake is complete (RFC 8470, section 5.2).
        let second = early.get("/");
        assert_eq!((second.status, second.text()), (200, "later".to_owned()));
        return;
    }
    panic!("no request came as early data");
}

/// Waits while the connection goes on.
async fn tokio_until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}

/// Whether the server has gone on by itself: used where a client only listens.
#[test]
fn the_settings_of_the_server() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server: Server =
        site("http3_max_concurrent_streams 7; location / { return 200 x; }").start();
    let quic = Quic::connect(&server);
    let settings = quic.run(async {
        loop {
            let mut stream = quic.connection.accept_uni().await.expect("it is open");
            let mut start = [0; 3];
            stream
                .read_exact(&mut start[..1])
                .await
                .expect("it is open");
            if start[0] == 0 {
                stream
                    .read_exact(&mut start[1..])
                    .await
                    .expect("it is open");
                let mut payload = vec![0; start[2].into()];
                stream.read_exact(&mut payload).await.expect("it is open");
                assert_eq!(start[1], 4);
                return payload;
            }
        }
    });
    // QPACK_MAX_TABLE_CAPACITY 4096, QPACK_BLOCKED_STREAMS 7, ENABLE_CONNECT_PROTOCOL 1.
    assert_eq!(settings, [1, 0x50, 0, 7, 7, 8, 1]);
}

/// All streams of a connection share what its client takes and what may wait for it: who fills it first must not keep it.
#[test]
fn an_urgent_response_overtakes_those_that_fill_the_connection() {
    if skip_on_oracle(WHY) {
        return;
    }
    const LENGTH: usize = 4 << 20;
    let server = site("root html;")
        .file("html/large", vec![b'x'; LENGTH])
        .start();
    let quic = Quic::connect_with(&server, &Client::new(), |config| {
        let mut transport = quinn::TransportConfig::default();
        transport.receive_window(quinn::VarInt::from_u32(128 * 1024));
        config.transport_config(Arc::new(transport));
    });
    let quic = quic.expect("it listens");
    let _control = quic.control();
    let ask = |priority| {
        let fields = [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/large"),
            ("priority", priority),
        ];
        quic.ask(&frame(1, &block(&fields)))
    };
    let patient = [ask("u=7"), ask("u=7"), ask("u=7")];
    let mut urgent = ask("u=0");
    let others = Arc::new(AtomicUsize::new(0));
    let all = quic.run(async {
        for mut stream in patient {
            let others = Arc::clone(&others);
            tokio::spawn(async move {
                while let Ok(Some(chunk)) = stream.read_chunk(usize::MAX, true).await {
                    others.fetch_add(chunk.bytes.len(), Relaxed);
                }
            });
        }
        urgent.read_to_end(2 * LENGTH).await
    });
    assert!(all.expect("no reset").len() > LENGTH);
    let others = others.load(Relaxed);
    assert!(others < LENGTH, "{others} bytes of the others");
}
