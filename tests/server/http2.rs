//! HTTP/2 without TLS, by a client of our own: RFC 9113, and what a stream has in common with an HTTP/1 request.

use std::io::Read;

use proto::h2::ErrorCode;
use proto::h2::frame::{self, FrameHead, flag, kind};
use proto::h2::settings::id;
use weir_tests::{
    Heard, Http2, Scripted, Server, Signal, Site, http, is_oracle, read_until, send, skip_on_oracle,
};

/// A site whose first port speaks HTTP/2. nginx before 1.25 has a parameter for it instead of a directive.
fn site(rest: &str) -> Site {
    let (before, parameter) = match is_oracle() {
        true => ("", "http2"),
        false => ("http2 on;", ""),
    };
    http(&format!(
        "{before} server {{ listen 127.0.0.1:%%PORT%% {parameter}; {rest} }}"
    ))
}

fn client(server: &Server) -> Http2 {
    Http2::connect(server, &[])
}

#[test]
fn a_request_looks_as_on_http_1() {
    let server = site(
        "location / { add_header X-Seen '$request|$server_protocol|$http2|$host|$http_cookie'; return 200 hello; }",
    )
    .start();
    let mut client = client(&server);
    let fields = [("cookie", "a=1"), ("x-other", "2"), ("cookie", "b=2")];
    let stream = client.request("GET", "/a%20b?c=d", &fields, true);
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.text()), (200, "hello".to_owned()));
    assert_eq!(
        reply.field("x-seen"),
        "GET /a%20b?c=d HTTP/2.0|HTTP/2.0|h2c|localhost|a=1; b=2"
    );
    assert_eq!(reply.field("content-length"), "5");
    assert!(reply.field("connection").is_empty());
    let stream = client.request("HEAD", "/", &[], true);
    let head = client.reply(stream);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.field("content-length"), "5");
}

#[test]
fn a_file_comes_in_frames_as_the_windows_open() {
    let content: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    let server = site("").file("html/big", &content).start();
    let mut client = client(&server);
    client.takes_all = false;
    let stream = client.request("GET", "/big", &[], true);
    let mut got = Vec::new();
    while got.len() < 65_535 {
        if let Heard::Data { bytes, .. } = client.hear(|heard| heard.stream() == Some(stream)) {
            assert!(bytes.len() <= 16_384);
            got.extend(bytes);
        }
    }
    // Not a byte more than the window: the answer to a PING comes instead.
    client.frame(kind::PING, 0, 0, b"12345678");
    client.hear(|heard| {
        assert_eq!(heard.stream(), None, "{heard:?}");
        matches!(heard, Heard::Pong(_))
    });
    client.takes_all = true;
    client.window(0, 65_535);
    client.window(stream, 65_535);
    got.extend(client.reply(stream).body);
    assert!(got == content);
}

/// Less than a little is worth a frame, but a client that takes no more than this at a time gets that as it comes: were
/// each piece waited for until it had grown, these would take ten seconds.
#[test]
fn windows_that_are_always_small_are_used_as_they_are() {
    let content: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
    let server = site("").file("html/x", &content).start();
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 100)]);
    let reply = client.get("/x");
    assert_eq!(reply.status, 200);
    assert!(reply.body == content);
}

#[test]
fn a_small_initial_window_and_a_change_of_it() {
    let server = site("").file("html/a", vec![b'x'; 100]).start();
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 10)]);
    client.takes_all = false;
    let stream = client.request("GET", "/a", &[], true);
    let first = client.hear(|heard| matches!(heard, Heard::Data { .. }));
    assert!(matches!(first, Heard::Data { bytes, .. } if bytes.len() == 10));
    client.frame(kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 50]);
    let next = client.hear(|heard| matches!(heard, Heard::Data { .. }));
    assert!(matches!(next, Heard::Data { bytes, .. } if bytes.len() == 40));
    client.window(stream, 50);
    assert_eq!(client.reply(stream).body.len(), 50);
}

#[test]
fn many_requests_at_once_have_their_own_answers() {
    let server = site("location /n { return 200 $arg_n; }")
        .file("html/big", vec![b'b'; 200_000])
        .start();
    let mut client = client(&server);
    let big = client.request("GET", "/big", &[], true);
    let streams: Vec<(u32, String)> = (0..100)
        .map(|n| {
            let path = format!("/n?n={n}");
            (client.request("GET", &path, &[], true), n.to_string())
        })
        .collect();
    for (stream, expected) in streams {
        assert_eq!(client.reply(stream).text(), expected);
    }
    assert_eq!(client.reply(big).body.len(), 200_000);
}

#[test]
fn content_of_a_request_goes_on_to_an_upstream() {
    let origin = counting_origin();
    let port = origin.port();
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; }}"
    ))
    .start();
    let mut client = client(&server);
    let content = vec![b'c'; 200_000];
    let stream = client.request("POST", "/", &[("content-length", "200000")], false);
    let mut window = 65_535;
    let mut rest = &content[..];
    while !rest.is_empty() {
        if window == 0 {
            let more = client.hear(|heard| matches!(heard, Heard::Window(s, _) if *s == stream));
            if let Heard::Window(_, by) = more {
                window = by as usize;
            }
        }
        let n = rest.len().min(window).min(16_384);
        let (part, after) = rest.split_at(n);
        client.data(stream, part, after.is_empty());
        (rest, window) = (after, window - n);
    }
    assert_eq!(client.reply(stream).text(), "200000");
}

/// An origin that answers with the length of the content it got.
fn counting_origin() -> Scripted {
    Scripted::start(|stream, _| {
        let mut came = Vec::new();
        let mut buffer = [0; 4096];
        let head_length = loop {
            let end = came.windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(end) = end {
                break end + 4;
            }
            let n = stream.read(&mut buffer).expect("a head comes");
            came.extend_from_slice(&buffer[..n]);
        };
        let head = String::from_utf8_lossy(&came[..head_length]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|value| value.trim().parse::<usize>().ok())
            .unwrap_or(0);
        let mut body = vec![0; length - (came.len() - head_length)];
        stream.read_exact(&mut body).expect("all of it comes");
        let text = length.to_string();
        let length = text.len();
        send(
            stream,
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
            ),
        );
    })
}

#[test]
fn a_length_that_is_not_true_is_refused() {
    let server = site("location / { proxy_pass http://127.0.0.1:1; }").start();
    let mut client = client(&server);
    let stream = client.request("POST", "/", &[("content-length", "5")], false);
    client.data(stream, b"abc", true);
    assert_eq!(client.reply(stream).status, 400);
    let stream = client.request("POST", "/", &[("content-length", "5")], true);
    assert_eq!(client.reply(stream).status, 400);
}

#[test]
fn malformed_requests_are_refused_and_the_connection_lives() {
    if skip_on_oracle("nginx before 1.29 takes fields that belong to a connection") {
        return;
    }
    let server = site("location / { return 200 ok; }").start();
    let mut client = client(&server);
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "localhost"),
    ];
    let with = |more: (&'static str, &'static str)| {
        let mut fields = get.to_vec();
        fields.push(more);
        fields
    };
    let mut cases: Vec<Vec<(&str, &str)>> = vec![
        with(("connection", "close")),
        with(("transfer-encoding", "chunked")),
        with(("te", "gzip")),
        with((":path", "/again")),
        with(("content-length", "x")),
        [&[(":protocol", "websocket")], &get[..]].concat(),
        get[1..].to_vec(),
        get[..2].to_vec(),
        get[..3].to_vec(),
    ];
    let mut bad_path = get;
    bad_path[2].1 = "no-slash";
    cases.push(bad_path.to_vec());
    for fields in cases {
        let stream = client.begin(&fields, true);
        assert_eq!(client.reply(stream).status, 400, "{fields:?}");
    }
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn frames_that_break_the_protocol_end_the_connection() {
    let server = site("").start();
    for (frame, code) in [
        ((kind::DATA, 0, 5, &b"x"[..]), ErrorCode::PROTOCOL_ERROR),
        ((kind::PING, 0, 0, b"short"), ErrorCode::FRAME_SIZE_ERROR),
        (
            (kind::SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            (kind::HEADERS, flag::END_HEADERS, 1, &[0xbe]),
            ErrorCode::COMPRESSION_ERROR,
        ),
        (
            (kind::HEADERS, flag::END_HEADERS, 2, &[0x82]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        ((kind::CONTINUATION, 0, 1, b""), ErrorCode::PROTOCOL_ERROR),
        // For a stream that is pushed.
        (
            (kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x02u=1"),
            ErrorCode::PROTOCOL_ERROR,
        ),
    ] {
        if is_oracle() && matches!(frame.0, kind::DATA | kind::PRIORITY_UPDATE) {
            continue; // nginx overlooks it.
        }
        let mut client = client(&server);
        let (kind, flags, stream, payload) = frame;
        client.frame(kind, flags, stream, payload);
        assert_eq!(client.end(), Some(code), "{frame:?}");
    }
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let server =
        site("http2_max_concurrent_streams 2; location / { proxy_pass http://127.0.0.1:1; }")
            .start();
    let mut client = client(&server);
    let settings = client.hear(|heard| matches!(heard, Heard::Settings(_)));
    assert!(
        matches!(settings, Heard::Settings(list) if list.contains(&(id::MAX_CONCURRENT_STREAMS, 2)))
    );
    for _ in 0..2 {
        client.request("POST", "/", &[("content-length", "10")], false);
    }
    let third = client.request("POST", "/", &[("content-length", "10")], false);
    assert_eq!(client.reply(third).reset, Some(ErrorCode::REFUSED_STREAM));
}

#[test]
fn keepalive_requests_end_the_connection_in_peace() {
    let server = site("keepalive_requests 2; location / { return 200 ok; }").start();
    let mut client = client(&server);
    assert_eq!(client.get("/").status, 200);
    assert_eq!(client.get("/").status, 200);
    let goaway = client.hear(|heard| matches!(heard, Heard::GoAway(..)));
    assert_eq!(goaway, Heard::GoAway(3, ErrorCode::NO_ERROR));
}

#[test]
fn a_stop_waits_for_responses() {
    let server = site("").file("html/big", vec![b'x'; 100_000]).start();
    let mut client = client(&server);
    client.takes_all = false;
    let stream = client.request("GET", "/big", &[], true);
    client.hear(|heard| matches!(heard, Heard::Data { .. }));
    server.signal(Signal::QUIT);
    assert_eq!(
        client.hear(|heard| matches!(heard, Heard::GoAway(..))),
        Heard::GoAway(stream, ErrorCode::NO_ERROR)
    );
    client.takes_all = true;
    client.window(0, 100_000);
    client.window(stream, 100_000);
    client.reply(stream);
    client.hear(|heard| *heard == Heard::Closed);
}

#[test]
fn trailers_follow_the_content() {
    let server = site("location / { add_trailer X-End $request_method; }")
        .file("html/a", "abc")
        .start();
    let mut client = client(&server);
    let reply = client.get("/a");
    assert_eq!(reply.text(), "abc");
    assert_eq!(reply.trailers, [("x-end".to_owned(), "GET".to_owned())]);
    // Unlike chunks, frames leave room for both.
    assert_eq!(reply.field("content-length"), "3");
}

#[test]
fn each_request_keeps_its_number() {
    let server = http(
        "log_format number '$request_uri $connection_requests';
         server {
             listen 127.0.0.1:%%PORT%% http2;
             access_log number.log number;
             location / { limit_rate 1k; }
             location /quick { return 200; }
         }",
    )
    .file("html/slow", [b'a'; 1500])
    .start();
    let mut client = client(&server);
    let slow = client.request("GET", "/slow", &[], true);
    let quick = client.request("GET", "/quick", &[], true);
    client.reply(quick);
    client.reply(slow);
    let mut lines = server.lines("number.log", 2);
    lines.sort();
    assert_eq!(lines, ["/quick 2", "/slow 1"]);
}

#[test]
fn both_protocols_on_one_port() {
    if skip_on_oracle("nginx before 1.25 does not tell them apart") {
        return;
    }
    let server = site("location / { return 200 $server_protocol; }").start();
    assert_eq!(server.get("/").text(), "HTTP/1.1");
    assert_eq!(client(&server).get("/").text(), "HTTP/2.0");
    let mut slow = server.connect();
    slow.send_slowly("PRI / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(slow.reply().text(), "HTTP/1.1");
}

#[test]
fn a_websocket_over_http_2() {
    if skip_on_oracle("nginx has no extended CONNECT (RFC 8441)") {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let head = String::from_utf8_lossy(&head).to_lowercase();
        assert!(head.starts_with("get /chat http/1.1"), "{head}");
        assert!(head.contains("upgrade: websocket") && head.contains("connection: upgrade"));
        send(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhello",
        );
        let said = read_until(stream, b"!");
        send(stream, said);
    });
    let port = origin.port();
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; \
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }}"
    ))
    .start();
    let mut client = client(&server);
    let settings = client.hear(|heard| matches!(heard, Heard::Settings(_)));
    assert!(
        matches!(settings, Heard::Settings(list) if list.contains(&(id::ENABLE_CONNECT_PROTOCOL, 1)))
    );
    let stream = connect_websocket(&mut client, "/chat");
    let head = client.hear(|heard| matches!(heard, Heard::Headers { .. }));
    let Heard::Headers { fields, ends, .. } = head else {
        panic!("a head comes first");
    };
    assert!(fields.contains(&(":status".into(), "200".into())) && !ends);
    client.data(stream, b"and you!", false);
    assert_eq!(client.reply(stream).text(), "helloand you!");
}

/// Begins a WebSocket as RFC 8441 has it.
fn connect_websocket(client: &mut Http2, path: &str) -> u32 {
    client.begin(
        &[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("sec-websocket-version", "13"),
        ],
        false,
    )
}

#[test]
fn a_websocket_that_breaks_or_is_none_does_not_seem_to_be_one() {
    if skip_on_oracle("nginx has no extended CONNECT (RFC 8441)") {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        );
        // What is not read when it closes makes the end a reset.
        let mut first = [0];
        let _ = std::io::Read::read(stream, &mut first);
    });
    let port = origin.port();
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; proxy_http_version 1.1; \
         proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $http_connection; }} \
         location /page {{ return 200 page; }}"
    ))
    .start();
    let mut client = client(&server);
    let stream = connect_websocket(&mut client, "/page");
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.text()), (501, String::new()));
    let stream = connect_websocket(&mut client, "/");
    client.data(stream, b"and you!", false);
    let end = client.hear(|heard| matches!(heard, Heard::Reset(number, _) if *number == stream));
    assert!(matches!(end, Heard::Reset(_, ErrorCode::CANCEL)));
}

#[test]
fn frames_may_be_larger_than_most_peers_allow() {
    let origin = counting_origin();
    let port = origin.port();
    let server = site(&format!(
        "large_client_header_buffers 4 64k; client_max_body_size 1m; \
         location / {{ add_header X-Length $http_x_long; return 200 ok; }}
         location /post {{ proxy_pass http://127.0.0.1:{port}; }}"
    ))
    .start();
    let mut client = client(&server);
    let settings = client.hear(|heard| matches!(heard, Heard::Settings(_)));
    let largest = match settings {
        Heard::Settings(list) => list
            .into_iter()
            .find(|(number, _)| *number == id::MAX_FRAME_SIZE),
        _ => None,
    };
    assert!(
        largest.is_some_and(|(_, size)| size >= 1 << 16),
        "{largest:?}"
    );
    client.largest_frame = 1 << 16;
    let long = "~".repeat(40_000);
    let stream = client.request("GET", "/", &[("x-long", &long)], true);
    assert!(client.reply(stream).field("x-length") == long);
    let stream = client.request("POST", "/post", &[("content-length", "60000")], false);
    client.data(stream, &vec![b'c'; 60_000], true);
    assert_eq!(client.reply(stream).text(), "60000");
}

#[test]
fn large_frames_that_would_have_to_be_kept_are_refused_before_they_come() {
    if skip_on_oracle("nginx reads them in pieces") {
        return;
    }
    let server = site("large_client_header_buffers 4 20k;").start();
    for (kind, stream, length) in [
        (kind::SETTINGS, 0, 60_000),
        (kind::GOAWAY, 0, 60_000),
        (kind::PRIORITY_UPDATE, 0, 60_000),
        (kind::HEADERS, 1, 600_000),
    ] {
        let mut client = client(&server);
        let mut head = Vec::new();
        proto::h2::frame::write_head(length, kind, 0, stream, &mut head);
        client.send(&head);
        assert_eq!(client.end(), Some(ErrorCode::ENHANCE_YOUR_CALM), "{kind}");
    }
}

#[test]
fn frames_have_the_usual_size_where_fields_have_it() {
    if skip_on_oracle("nginx lets them be larger always") {
        return;
    }
    let server = site("").start();
    let mut client = client(&server);
    let mut head = Vec::new();
    proto::h2::frame::write_head(16_385, kind::HEADERS, 0, 1, &mut head);
    client.send(&head);
    assert_eq!(client.end(), Some(ErrorCode::FRAME_SIZE_ERROR));
}

#[test]
fn a_response_may_take_longer_than_a_head() {
    let (done, wait) = std::sync::mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        wait.recv().expect("the test goes on");
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    });
    let port = origin.port();
    let server = site(&format!(
        "client_header_timeout 200ms; location / {{ proxy_pass http://127.0.0.1:{port}; }}"
    ))
    .start();
    let mut busy = client(&server);
    busy.hear(|heard| matches!(heard, Heard::Settings(_)));
    let stream = busy.request("GET", "/", &[], true);
    // The clock is another client, who says nothing and has come later.
    let mut idle = client(&server);
    idle.hear(|heard| *heard == Heard::Closed);
    done.send(()).expect("the origin waits");
    assert_eq!(busy.reply(stream).text(), "ok");
}

#[test]
fn empty_content_is_announced_as_such() {
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let said = head.contains("\r\ncontent-length: 0\r\n");
        send(
            stream,
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{said}"),
        );
    });
    let port = origin.port();
    let server = site(&format!(
        "location / {{ proxy_pass http://127.0.0.1:{port}; }}"
    ))
    .start();
    let mut client = client(&server);
    let stream = client.request("POST", "/", &[], false);
    client.data(stream, b"", true);
    assert_eq!(client.reply(stream).text(), "true");
    let stream = client.request("POST", "/", &[], true);
    assert_eq!(client.reply(stream).text(), "false");
}

/// As an empty chunked one of HTTP/1.
#[test]
fn content_that_turns_out_to_be_empty_has_a_length() {
    let origin = counting_origin();
    let server = site(&format!(
        "location / {{ add_header X-Length '[$content_length]' always; proxy_pass http://127.0.0.1:{}; }}",
        origin.port()
    ))
    .start();
    let mut client = client(&server);
    let stream = client.request("POST", "/", &[], false);
    client.data(stream, b"", true);
    assert_eq!(client.reply(stream).field("x-length"), "[0]");
    assert_eq!(client.get("/").field("x-length"), "[]");
}

/// Two window updates for each frame of a hundred bytes, which is the size that the configuration asks for.
#[test]
fn a_client_that_returns_each_small_frame_at_once_gets_all_of_them() {
    let content: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    let server = site("http2_chunk_size 100;")
        .file("html/big", &content)
        .start();
    let reply = client(&server).get("/big");
    assert_eq!(reply.reset, None);
    assert!(reply.body == content, "{} bytes", reply.body.len());
}

/// A closed stream does not count (RFC 9113, section 5.1.2), whatever the server still does for it.
#[test]
fn streams_that_were_reset_make_room_for_others_at_once() {
    let server = site("http2_max_concurrent_streams 2;")
        .file("html/index.html", vec![b'x'; 1000])
        .start();
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 10)]);
    client.takes_all = false;
    let first = [(); 2].map(|()| client.request("GET", "/index.html", &[], true));
    for stream in first {
        client.hear(|heard| matches!(heard, Heard::Data { .. }) && heard.stream() == Some(stream));
    }
    // In one write, so that nothing of the server's own ends in between.
    let mut bytes = Vec::new();
    for stream in first {
        frame::write_reset(stream, ErrorCode::CANCEL, &mut bytes);
    }
    frame::write_settings(&[(id::INITIAL_WINDOW_SIZE, 65_535)], &mut bytes);
    let next = first.map(|stream| stream + 4);
    for stream in next {
        // GET, http, /index.html, and a name of one letter.
        let block = [0x82, 0x86, 0x85, 0x01, 1, b'a'];
        let head = FrameHead {
            length: block.len() as u32,
            kind: kind::HEADERS,
            flags: flag::END_HEADERS | flag::END_STREAM,
            stream,
        };
        bytes.extend(head.bytes());
        bytes.extend(block);
    }
    client.send(&bytes);
    for stream in next {
        let reply = client.reply(stream);
        assert_eq!(
            (reply.status, reply.body.len()),
            (200, 1000),
            "{:?}",
            reply.reset
        );
    }
}

/// RST_STREAM of a stream that has not begun would be an error of the server's own.
#[test]
fn a_wrong_priority_of_a_stream_that_has_not_begun_ends_the_connection() {
    let server = site("").start();
    for (payload, code) in [
        (&[0, 0, 0, 3][..], ErrorCode::FRAME_SIZE_ERROR),
        (&[0, 0, 0, 3, 15], ErrorCode::PROTOCOL_ERROR),
    ] {
        let mut client = client(&server);
        client.frame(kind::PRIORITY, 0, 3, payload);
        assert_eq!(client.end(), Some(code));
    }
}
