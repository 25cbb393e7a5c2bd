//! Objects of which a part is missing, because a fetch broke off for good: what is there is served, and only the rest is
//! fetched. nginx stores nothing of such responses.

use std::net::TcpStream;

use weir_tests::{Server, skip_on_oracle};

use crate::cache_fills::{Origin, cached, content, head, say, together};

const FIELDS: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";
const LENGTH: usize = 600_000;
/// What an origin that breaks off sends before.
const BEGUN: usize = 300_000;

/// The range that is asked for: its first byte and the one behind its last.
fn asked_range(asked: &str) -> Option<(usize, usize)> {
    let range = asked
        .lines()
        .find_map(|line| line.strip_prefix("Range: bytes="))?;
    let (from, last) = range.trim().split_once('-')?;
    let end = last.parse::<usize>().map_or(LENGTH, |last| last + 1);
    Some((from.parse().ok()?, end))
}

fn say_part(stream: &mut TcpStream, fields: &str, body: &[u8], (from, end): (usize, usize)) {
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{fields}Content-Range: bytes {from}-{}/{}\r\nContent-Length: {}\r\n\r\n",
        end - 1,
        body.len(),
        end - from
    );
    say(stream, head.as_bytes());
    say(stream, &body[from..end]);
}

/// An origin that breaks off at first and is gone for those who ask for the rest then; from the fifth request on `answer`
/// serves.
fn breaking(answer: impl Fn(&mut TcpStream, &str) + Send + Sync + 'static) -> Origin {
    Origin::start(move |stream, asked, number| match number {
        0 => {
            say(stream, &head(FIELDS, LENGTH));
            say(stream, &content(LENGTH)[..BEGUN]);
        }
        // The rest is asked for, and not to be had.
        1 => say(
            stream,
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        ),
        _ => answer(stream, asked),
    })
}

/// Serves ranges and the whole.
fn well(stream: &mut TcpStream, asked: &str) {
    let body = content(LENGTH);
    match asked_range(asked) {
        Some(range) => say_part(stream, FIELDS, &body, range),
        None => {
            say(stream, &head(FIELDS, LENGTH));
            say(stream, &body);
        }
    }
}

/// A server that has the first part of `/a`.
fn begun(origin: &Origin) -> Server {
    let server = cached(origin, "");
    assert!(server.get("/a").cut);
    assert_eq!(origin.requests(), 2);
    server
}

fn ranges_asked(origin: &Origin) -> Vec<Option<(usize, usize)>> {
    let heads = origin.heads.lock().expect("no answer panics");
    heads[2..].iter().map(|head| asked_range(head)).collect()
}

#[test]
fn only_the_rest_is_fetched() {
    if skip_on_oracle("it stores nothing of it") {
        return;
    }
    let origin = breaking(well);
    let server = begun(&origin);
    for reply in together(&server, "/a", 4) {
        assert!(!reply.cut && reply.body == content(LENGTH));
    }
    let asked = ranges_asked(&origin);
    assert_eq!(asked[0], Some((BEGUN, LENGTH)));
    assert!(
        origin.heads.lock().expect("no answer panics")[2].contains("If-Range: \"v1\""),
        "it may be another version by now"
    );
    let reply = server.get("/a");
    assert_eq!(reply.field("X-Cache"), "HIT");
    assert!(reply.body == content(LENGTH));
    assert_eq!(origin.requests(), 2 + asked.len());
}

#[test]
fn a_range_of_what_is_there_asks_nobody() {
    if skip_on_oracle("it stores nothing of it") {
        return;
    }
    let origin = breaking(well);
    let server = begun(&origin);
    let reply = server
        .get_with("/a", &["Range: bytes=1000-200000"])
        .expect(206);
    assert_eq!(reply.field("X-Cache"), "HIT");
    assert_eq!(
        reply.field("Content-Range"),
        format!("bytes 1000-200000/{LENGTH}")
    );
    assert!(reply.body == content(LENGTH)[1000..=200_000]);
    assert_eq!(origin.requests(), 2);
    // HEAD has no content that could be missing.
    let reply = server.request("HEAD", "/a", &["Range: bytes=0-9"]);
    assert_eq!(reply.text(), "");
    assert_eq!(origin.requests(), 2);
}

#[test]
fn a_range_over_the_edge_fetches_what_it_lacks() {
    if skip_on_oracle("it stores nothing of it") {
        return;
    }
    let origin = breaking(well);
    let server = begun(&origin);
    let get = |from: usize, last: usize| {
        let range = format!("Range: bytes={from}-{last}");
        let reply = server.get_with("/a", &[&range]).expect(206);
        assert!(reply.body == content(LENGTH)[from..=last]);
        reply.field("X-Cache").to_owned()
    };
    assert_eq!(get(BEGUN - 1000, BEGUN + 1999), "MISS");
    assert_eq!(get(400_000, 449_999), "MISS");
    assert_eq!(get(400_000, 449_999), "HIT");
    assert_eq!(get(BEGUN - 10, BEGUN + 1999), "HIT");
    // Two holes are left.
    let reply = server.get("/a");
    assert!(!reply.cut && reply.body == content(LENGTH));
    assert_eq!(
        ranges_asked(&origin),
        [
            Some((BEGUN, BEGUN + 2000)),
            Some((400_000, 450_000)),
            Some((BEGUN + 2000, 400_000)),
            Some((450_000, LENGTH)),
        ]
    );
    assert_eq!(server.get("/a").field("X-Cache"), "HIT");
    assert_eq!(origin.requests(), 6);
}

#[test]
fn another_version_is_another_response() {
    if skip_on_oracle("it stores nothing of it") {
        return;
    }
    let newer: Vec<u8> = content(LENGTH).into_iter().rev().collect();
    let body = newer.clone();
    // As the origin should, and as it should not, answer a request for a part of another version.
    for kind in ["200", "206", "416"] {
        let body = body.clone();
        let origin = breaking(move |stream, asked| {
            let fields = FIELDS.replace("v1", "v2");
            match (kind, asked_range(asked)) {
                ("206", Some(range)) => say_part(stream, &fields, &body, range),
                ("416", Some(_)) => say(
                    stream,
                    b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n",
                ),
                _ => {
                    say(stream, &head(&fields, LENGTH));
                    say(stream, &body);
                }
            }
        });
        let server = begun(&origin);
        for reply in together(&server, "/a", 3) {
            assert!(!reply.cut && reply.body == newer, "{kind}");
        }
        let reply = server.get("/a");
        assert_eq!(reply.field("X-Cache"), "HIT", "{kind}");
        assert!(reply.body == newer, "{kind}");
    }
}
