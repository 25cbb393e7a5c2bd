//! gRPC servers behind the proxy: trailers, and connections that are used again.

use proto::h2::ErrorCode;
use proto::h2::frame::kind;
use proto::h2::settings::id;
use weir_tests::{Heard, Http2, Scripted, Site, http, is_oracle, skip_on_oracle};

/// A site whose first port speaks HTTP/2 and passes everything on.
fn site(origin: &Scripted) -> Site {
    let (before, parameter) = match is_oracle() {
        true => ("", "http2"),
        false => ("http2 on;", ""),
    };
    let port = origin.port();
    http(&format!(
        "{before} upstream u {{ server 127.0.0.1:{port}; keepalive 1; }}
         server {{ listen 127.0.0.1:%%PORT%% {parameter}; location / {{ grpc_pass u; }} }}"
    ))
}

/// Waits for a request whose client has said all; gives its stream.
fn request(origin: &mut Http2) -> Option<u32> {
    let heard = origin.hear(|heard| {
        let ends = matches!(
            heard,
            Heard::Headers { ends: true, .. } | Heard::Data { ends: true, .. }
        );
        ends || *heard == Heard::Closed
    });
    heard.stream()
}

#[test]
fn trailers_come_although_the_length_is_known() {
    let origin = Scripted::start(|stream, _| {
        let mut origin = Http2::accept(stream);
        while let Some(stream) = request(&mut origin) {
            let head = [
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("content-length", "5"),
            ];
            origin.headers(stream, &head, false);
            origin.data(stream, b"hello", false);
            origin.headers(stream, &[("grpc-status", "0")], true);
        }
    });
    let server = site(&origin).start();
    let mut client = Http2::connect(&server, &[]);
    for _ in 0..2 {
        let stream = client.request("POST", "/a.B/c", &[("te", "trailers")], false);
        client.data(stream, b"x", true);
        let reply = client.reply(stream);
        assert_eq!((reply.status, reply.text()), (200, "hello".to_owned()));
        assert_eq!(reply.field("content-length"), "5");
        assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    }
}

#[test]
fn a_response_that_ends_with_its_header_is_known_to_be_empty() {
    let origin = Scripted::start(|stream, _| {
        let mut origin = Http2::accept(stream);
        while let Some(stream) = request(&mut origin) {
            let head = [
                (":status", "200"),
                ("content-type", "application/grpc"),
                ("etag", "\"x\""),
                ("grpc-status", "5"),
            ];
            origin.headers(stream, &head, true);
        }
    });
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ grpc_pass 127.0.0.1:{port}; sub_filter a b; sub_filter_types *; }} }}"
    ))
    .start();
    let reply = server.get("/a.B/c").expect(200);
    assert_eq!(reply.field("Content-Length"), "0");
    assert_eq!(reply.field("ETag"), "\"x\"");
    assert_eq!(reply.field("grpc-status"), "5");
}

#[test]
fn a_reset_without_an_error_after_the_end_leaves_the_connection_in_use() {
    if skip_on_oracle("older nginx closes it") {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let mut origin = Http2::accept(stream);
        while let Some(stream) = request(&mut origin) {
            // In one piece, so that nothing of it comes late.
            let mut out = Vec::new();
            let block = [0x88, 0x00, 0x0b];
            let field = [&block[..], b"grpc-status", &[0x02], b"12"].concat();
            proto::h2::frame::write_head(field.len() as u32, kind::HEADERS, 5, stream, &mut out);
            out.extend(field);
            proto::h2::frame::write_reset(stream, ErrorCode::NO_ERROR, &mut out);
            origin.send(&out);
        }
    });
    let server = site(&origin).start();
    let mut client = Http2::connect(&server, &[]);
    for _ in 0..3 {
        let reply = client.get("/a.B/c");
        assert_eq!((reply.status, reply.field("grpc-status")), (200, "12"));
    }
    assert_eq!(origin.connections(), 1);
}

#[test]
fn messages_both_ways_come_one_by_one_through_a_small_window() {
    let origin = Scripted::start(|stream, _| echo(&mut Http2::accept(stream)));
    let server = site(&origin).start();
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 100)]);
    let stream = client.request("POST", "/a.B/c", &[("te", "trailers")], false);
    // Smaller than the window, as large, larger, and again: each is answered before the next one is sent.
    for (n, size) in [1, 60, 60, 100, 101, 250, 7, 300, 99]
        .into_iter()
        .enumerate()
    {
        let message = vec![b'a' + n as u8; size];
        client.data(stream, &message, false);
        let mut got = Vec::new();
        while got.len() < size {
            let heard = client.hear(|heard| matches!(heard, Heard::Data { .. }));
            if let Heard::Data { bytes, ends, .. } = heard {
                assert!(bytes.len() <= 100 && !ends);
                got.extend(bytes);
            }
        }
        assert!(got == message, "message {n}: {got:?}");
    }
    client.data(stream, b"", true);
    let reply = client.reply(stream);
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(reply.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
}

/// A server that sends back each piece as it comes.
fn echo(origin: &mut Http2) {
    loop {
        match origin.hear(|heard| heard.stream().is_some() || *heard == Heard::Closed) {
            Heard::Headers { stream, .. } => {
                let head = [(":status", "200"), ("content-type", "application/grpc")];
                origin.headers(stream, &head, false);
            }
            Heard::Data {
                stream,
                bytes,
                ends,
            } => {
                if !bytes.is_empty() {
                    origin.data(stream, &bytes, false);
                }
                if ends {
                    origin.headers(stream, &[("grpc-status", "0")], true);
                }
            }
            _ => return,
        }
    }
}

/// There is no usual port, as in nginx.
#[test]
fn a_server_without_a_port_is_refused() {
    for address in ["127.0.0.1", "grpc://127.0.0.1", "grpcs://127.0.0.1"] {
        let told = http(&format!(
            "server {{ listen 127.0.0.1:%%PORT%%; location / {{ grpc_pass {address}; }} }}"
        ))
        .test();
        assert_ne!(told.code, 0, "{address}");
        assert!(
            told.stderr.contains("no port in upstream \"127.0.0.1\""),
            "{address}: {}",
            told.stderr
        );
    }
}

/// A connection that is used again may be told off: by GOAWAY with an older stream, or because its stream is refused. Nothing
/// was done with the request then, so that it goes out again, also when it is a POST.
#[test]
fn what_a_server_did_not_look_at_is_sent_again() {
    if skip_on_oracle("nginx does not send a POST again") {
        return;
    }
    for refuses in [true, false] {
        let origin = Scripted::start(move |stream, connection| {
            let mut origin = Http2::accept(stream);
            let mut served = 0;
            while let Some(stream) = request(&mut origin) {
                served += 1;
                let mut out = Vec::new();
                if connection == 0 && served == 2 {
                    match refuses {
                        true => {
                            let code = ErrorCode::REFUSED_STREAM;
                            proto::h2::frame::write_reset(stream, code, &mut out);
                        }
                        false => {
                            let (last, code) = (stream - 2, ErrorCode::NO_ERROR);
                            proto::h2::frame::write_goaway(last, code, &mut out);
                        }
                    }
                    origin.send(&out);
                } else {
                    origin.headers(stream, &[(":status", "200"), ("grpc-status", "0")], true);
                }
            }
        });
        let server = site(&origin).tolerate("upstream ").start();
        let mut client = Http2::connect(&server, &[]);
        for _ in 0..3 {
            let stream = client.request("POST", "/a.B/c", &[("te", "trailers")], true);
            assert_eq!(client.reply(stream).status, 200, "refuses: {refuses}");
        }
        assert_eq!(origin.connections(), 2);
    }
}

#[test]
fn a_response_has_a_date_although_the_servers_would_be_passed_on() {
    let origin = Scripted::start(|stream, _| {
        let mut origin = Http2::accept(stream);
        while let Some(stream) = request(&mut origin) {
            let head = [(":status", "200"), ("content-type", "application/grpc")];
            origin.headers(stream, &head, false);
            origin.headers(stream, &[("grpc-status", "0")], true);
        }
    });
    let (before, parameter) = match is_oracle() {
        true => ("", "http2"),
        false => ("http2 on;", ""),
    };
    let port = origin.port();
    let server = http(&format!(
        "{before} server {{ listen 127.0.0.1:%%PORT%% {parameter}; location / {{ grpc_pass 127.0.0.1:{port};
            grpc_pass_header Date; grpc_pass_header Server; }} }}"
    ))
    .start();
    let reply = Http2::connect(&server, &[]).get("/a.B/c");
    for name in ["date", "server"] {
        assert!(!reply.field(name).is_empty(), "{name}");
    }
}

#[test]
fn a_length_that_is_none_is_502_and_of_repeated_fields_the_first_counts() {
    if skip_on_oracle(
        "Debian's takes any length, and the last of repeated fields; newer ones do not",
    ) {
        return;
    }
    // A connection with a wrong response is not used again.
    let origin = Scripted::start(|stream, number| {
        let mut origin = Http2::accept(stream);
        let more = [
            [("content-length", "x"), ("x-a", "1")],
            [("content-length", "5"), ("content-length", "5")],
            [("location", "/a"), ("location", "/b")],
        ];
        let (Some(stream), Some(more)) = (request(&mut origin), more.get(number)) else {
            return;
        };
        let head = [&[(":status", "200")], &more[..]].concat();
        origin.headers(stream, &head, false);
        origin.data(stream, b"hello", true);
    });
    let server = site(&origin).start();
    let mut client = Http2::connect(&server, &[]);
    let mut ask = || {
        let stream = client.request("POST", "/a.B/c", &[("te", "trailers")], true);
        client.reply(stream)
    };
    assert_eq!([ask().status, ask().status], [502, 502]);
    let reply = ask();
    assert_eq!((reply.status, reply.field("location")), (200, "/a"));
    server.line(
        "error.log",
        "upstream sent duplicate header line: \"location: /b\", previous value: \"location: /a\", ignored",
    );
}
