//! Fetches that break off at an origin that cannot resume: the response is asked for once more, compared with what was sent
//! of it, and gone on with. nginx cuts all of these.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use weir_tests::{Reply, Server, http, skip_on_oracle};

use crate::cache_fills::{Origin, cached, content, head, say, together};

const WHY: &str = "clients are cut";
const LENGTH: usize = 3_000_000;
const BEGUN: usize = 1_700_000;
const CLIENTS: usize = 20;
const FIELDS: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";

fn reset(stream: &TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Sends a body in pieces, so that followers are at various places.
fn trickle(stream: &mut TcpStream, bytes: &[u8]) {
    for piece in bytes.chunks(100_000) {
        say(stream, piece);
        std::thread::yield_now();
    }
}

fn chunked(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in bytes.chunks(50_000) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// All are complete, and it is stored.
#[track_caller]
fn all_have(server: &Server, replies: &[Reply], body: &[u8]) {
    for (number, reply) in replies.iter().enumerate() {
        assert!(
            !reply.cut && reply.body == body,
            "{number}: {} bytes",
            reply.body.len()
        );
    }
    let again = server.get("/a");
    assert!(again.field("X-Cache") == "HIT" && again.body == body);
}

/// An origin that breaks off, and answers later requests with `second`.
fn breaking(
    fields: &'static str,
    second: impl Fn(&mut TcpStream, &str, usize) + Send + Sync + 'static,
) -> Origin {
    Origin::start(move |stream, asked, number| match number {
        0 => {
            say(stream, &head(fields, LENGTH));
            trickle(stream, &content(LENGTH)[..BEGUN]);
        }
        _ => second(stream, asked, number),
    })
}

fn whole(fields: &'static str) -> impl Fn(&mut TcpStream, &str, usize) + Send + Sync + 'static {
    move |stream, _, _| {
        say(stream, &head(fields, LENGTH));
        trickle(stream, &content(LENGTH));
    }
}

#[test]
fn an_origin_that_ignores_ranges_is_asked_once_and_cuts_nobody() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = breaking(FIELDS, whole(FIELDS));
    let server = cached(&origin, "");
    let replies = together(&server, "/a", CLIENTS);
    all_have(&server, &replies, &content(LENGTH));
    // The answer to the request for the rest was the whole.
    assert_eq!(origin.requests(), 2);
}

#[test]
fn a_refused_range_is_followed_by_a_request_for_the_whole() {
    if skip_on_oracle(WHY) {
        return;
    }
    for status in ["416 Range Not Satisfiable", "500 Internal Server Error"] {
        let origin = breaking(FIELDS, move |stream, asked, number| {
            if asked.contains("Range: ") {
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                return say(stream, head.as_bytes());
            }
            whole(FIELDS)(stream, asked, number);
        });
        let server = cached(&origin, "");
        let replies = together(&server, "/a", CLIENTS);
        all_have(&server, &replies, &content(LENGTH));
        assert_eq!(origin.requests(), 3, "{status}");
    }
}

#[test]
fn nobody_is_cut_however_it_breaks_off() {
    if skip_on_oracle(WHY) {
        return;
    }
    // Without validators; by FIN and by RST; with a length, in chunks, and until the connection closes.
    for way in [
        "length",
        "length, reset",
        "chunks",
        "chunks, reset",
        "close, reset",
    ] {
        let origin = Origin::start(move |stream, _, number| {
            let body = content(LENGTH);
            let bytes = match number {
                0 => &body[..BEGUN],
                _ => &body[..],
            };
            let framing = match way.split(',').next() {
                Some("length") => format!("Content-Length: {LENGTH}\r\n"),
                Some("chunks") => "Transfer-Encoding: chunked\r\n".to_owned(),
                _ => String::new(),
            };
            let head = format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n{framing}\r\n");
            say(stream, head.as_bytes());
            if way.starts_with("chunks") {
                trickle(stream, &chunked(bytes));
                if number > 0 {
                    say(stream, b"0\r\n\r\n");
                }
            } else {
                trickle(stream, bytes);
            }
            if number == 0 && way.ends_with("reset") {
                reset(stream);
            }
        });
        let server = cached(&origin, "");
        let replies = together(&server, "/a", CLIENTS);
        for reply in &replies {
            // A reset takes along what the kernel had not handed over: the second one has it all.
            assert!(
                !reply.cut && reply.body == content(LENGTH),
                "{way}: {}",
                reply.body.len()
            );
        }
        all_have(&server, &replies, &content(LENGTH));
        assert_eq!(origin.requests(), 2, "{way}");
    }
}

#[test]
fn an_origin_that_falls_silent_is_asked_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Origin::start(|stream, _, number| {
        say(stream, &head("Cache-Control: max-age=60\r\n", LENGTH));
        if number == 0 {
            say(stream, &content(LENGTH)[..BEGUN]);
            // Until the other side has had enough.
            weir_tests::read_until(stream, b"never");
            return;
        }
        say(stream, &content(LENGTH));
    });
    let server = cached(&origin, "proxy_read_timeout 1500ms;");
    let replies = together(&server, "/a", CLIENTS);
    all_have(&server, &replies, &content(LENGTH));
    assert_eq!(origin.requests(), 2);
}

#[test]
fn another_response_cuts_and_is_forgotten() {
    if skip_on_oracle("nothing is compared") {
        return;
    }
    type Second = fn(&mut TcpStream, usize);
    let seconds: [(&str, Second); 6] = [
        ("another tag", |stream, _| {
            say(
                stream,
                &head("Cache-Control: max-age=60\r\nETag: \"v2\"\r\n", LENGTH),
            );
            say(stream, &content(LENGTH));
        }),
        ("another length", |stream, _| {
            say(stream, &head(FIELDS, LENGTH + 1));
            say(stream, &content(LENGTH + 1));
        }),
        ("another type", |stream, _| {
            let fields = format!("{FIELDS}Content-Type: text/plain\r\n");
            say(stream, &head(&fields, LENGTH));
            say(stream, &content(LENGTH));
        }),
        ("another byte", |stream, _| {
            let mut body = content(LENGTH);
            body[BEGUN / 2] ^= 1;
            say(stream, &head(FIELDS, LENGTH));
            say(stream, &body);
        }),
        ("private by now", |stream, _| {
            say(
                stream,
                &head(
                    "Cache-Control: private\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n",
                    LENGTH,
                ),
            );
            say(stream, &content(LENGTH));
        }),
        ("shorter", |stream, _| {
            say(stream, &head(FIELDS, LENGTH));
            say(stream, &content(LENGTH)[..BEGUN / 2]);
        }),
    ];
    for (name, second) in seconds {
        let later = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&later);
        let origin = breaking(FIELDS, move |stream, asked, number| {
            count.fetch_add(1, SeqCst);
            match number {
                1 => second(stream, number),
                _ if name == "shorter" => reset(stream),
                _ => whole(FIELDS)(stream, asked, number),
            }
        });
        let server = cached(&origin, "");
        let reply = server.get("/a");
        assert!(reply.cut, "{name}");
        // Not one byte of the second one went out.
        assert!(content(LENGTH).starts_with(&reply.body), "{name}");
        if name != "shorter" {
            let again = server.get("/a");
            assert!(!again.cut && again.body == content(LENGTH), "{name}");
            assert_eq!(again.field("X-Cache"), "MISS", "{name}");
        }
    }
}

/// Before the first byte there is nothing to compare, so that without a validator the whole head tells.
#[test]
fn a_head_without_content_is_completed_by_its_like_only() {
    if skip_on_oracle(WHY) {
        return;
    }
    for (version, is_same) in [("1", true), ("2", false)] {
        let origin = Origin::start(move |stream, _, number| {
            let version = if number == 0 { "1" } else { version };
            let times = format!("Date: Fri, 27 Nov 2026 11:00:0{} GMT\r\n", number % 10);
            let fields = format!("Cache-Control: max-age=60\r\nX-Version: {version}\r\n{times}");
            say(stream, &head(&fields, 1));
            if number > 0 {
                say(stream, version.as_bytes());
            }
        });
        let server = cached(&origin, "");
        let reply = server.get("/a");
        assert_eq!(reply.field("X-Version"), "1");
        match is_same {
            true => assert!(!reply.cut && reply.text() == "1"),
            false => assert!(reply.cut && reply.body.is_empty(), "{}", reply.text()),
        }
        let again = server.get("/a");
        assert_eq!(
            (again.field("X-Version"), again.text().as_str()),
            (version, version)
        );
    }
}

#[test]
fn what_must_not_be_asked_again_is_not() {
    for (fields, directives) in [
        ("ETag: \"v1\"\r\n", "proxy_next_upstream off;"),
        ("ETag: \"v1\"\r\n", "proxy_next_upstream_tries 1;"),
        ("", "proxy_cache_repeat_max 1m;"),
        ("Content-Type: text/event-stream\r\n", ""),
        ("Cache-Control: private\r\n", ""),
    ] {
        if directives.contains("repeat_max") && skip_on_oracle(WHY) {
            return;
        }
        let origin = Origin::start(move |stream, _, _| {
            say(
                stream,
                &head(&format!("Cache-Control: max-age=60\r\n{fields}"), LENGTH),
            );
            trickle(stream, &content(BEGUN));
        });
        let server = cached(&origin, directives);
        assert!(server.get("/a").cut, "{fields}{directives}");
        assert_eq!(origin.requests(), 1, "{fields}{directives}");
    }
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head("Cache-Control: max-age=60\r\n", LENGTH));
        trickle(stream, &content(BEGUN));
    });
    let server = cached(&origin, "proxy_cache_methods POST;");
    let mut client = server.connect();
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert!(client.reply().cut);
    assert_eq!(origin.requests(), 1, "POST");
}

#[test]
fn it_is_asked_again_once() {
    if skip_on_oracle(WHY) {
        return;
    }
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head("Cache-Control: max-age=60\r\n", LENGTH));
        trickle(stream, &content(BEGUN));
    });
    let server = cached(&origin, "");
    let reply = server.get("/a");
    assert!(reply.cut && content(BEGUN).starts_with(&reply.body));
    assert_eq!(origin.requests(), 2);
}

/// A record of FastCGI.
fn record(kind: u8, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("a record is short");
    let mut out = vec![1, kind, 0, 1];
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    out.extend_from_slice(data);
    out
}

/// An application that breaks off at its first connection. It does not look at what it is asked.
fn application(protocol: &'static str) -> weir_tests::Scripted {
    weir_tests::Scripted::start(move |stream, number| {
        let mut some = [0; 16];
        let _ = std::io::Read::read(stream, &mut some);
        let body = content(LENGTH);
        let bytes = match number {
            0 => &body[..BEGUN],
            _ => &body[..],
        };
        let head = format!(
            "Status: 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {LENGTH}\r\nCache-Control: max-age=60\r\n\r\n"
        );
        if protocol == "fastcgi" {
            say(stream, &record(6, head.as_bytes()));
            bytes
                .chunks(60_000)
                .for_each(|piece| say(stream, &record(6, piece)));
            if number > 0 {
                say(stream, &record(6, b""));
                say(stream, &record(3, &[0; 8]));
            }
        } else {
            say(stream, head.as_bytes());
            trickle(stream, bytes);
        }
        let _ = stream.shutdown(Shutdown::Write);
        // What was not read would make a reset of the end.
        weir_tests::read_until(stream, b"never");
    })
}

#[test]
fn applications_are_asked_again_too() {
    if skip_on_oracle(WHY) {
        return;
    }
    for protocol in ["fastcgi", "uwsgi", "scgi"] {
        let application = application(protocol);
        let port = application.port();
        let server = http(&format!(
            "{protocol}_cache_path cache keys_zone=one:1m;
             server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
                location / {{ {protocol}_pass 127.0.0.1:{port}; {protocol}_cache one; {protocol}_cache_key $uri;
                    {protocol}_param REQUEST_METHOD $request_method; }} }}"
        ))
        .main("worker_processes 2;")
        .start();
        let replies = together(&server, "/a", CLIENTS);
        all_have(&server, &replies, &content(LENGTH));
        assert_eq!(application.connections(), 2, "{protocol}");
    }
}

#[test]
fn a_slice_is_asked_for_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    const SLICE: usize = 1 << 20;
    let origin = Origin::start(|stream, asked, number| {
        let range = asked
            .lines()
            .find_map(|line| line.strip_prefix("Range: bytes="));
        let from = range.and_then(|range| range.split('-').next()?.parse::<usize>().ok());
        let from = from.unwrap_or(0);
        let end = LENGTH.min(from + SLICE);
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nCache-Control: max-age=60\r\nETag: \"v1\"\r\nContent-Range: bytes {from}-{}/{LENGTH}\r\nContent-Length: {}\r\n\r\n",
            end - 1,
            end - from
        );
        say(stream, head.as_bytes());
        let end = if number == 1 { end - 300_000 } else { end };
        say(stream, &content(LENGTH)[from..end]);
    });
    let server = cached(
        &origin,
        "slice 1m; proxy_cache_key $uri$slice_range; proxy_set_header Range $slice_range; proxy_cache_valid 206 1m;",
    );
    for reply in together(&server, "/a", 5) {
        assert!(
            !reply.cut && reply.body == content(LENGTH),
            "{}",
            reply.body.len()
        );
    }
    assert_eq!(origin.requests(), 4);
}
