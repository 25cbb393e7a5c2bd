//! Ranges and the cache: of what is stored, and (`proxy_cache_partial`) of what is asked for and kept as a part. nginx asks
//! for the whole, unless `proxy_set_header Range` makes it store what comes.

use std::net::TcpStream;

use weir_tests::{Reply, Server, skip_on_oracle};

use crate::cache_fills::{Origin, cached, content, head, say, together};

const LENGTH: usize = 600_000;
const STRONG: &str = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\n";
const NO_VALIDATOR: &str = "Cache-Control: max-age=60\r\n";
const PARTIAL: &str = "proxy_cache_partial on;";

/// The field's value in a request's head.
fn field<'a>(asked: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(": ");
    asked.lines().find_map(value).map(str::trim)
}

/// The range that is asked for: its first byte and the one behind its last.
fn asked_range(asked: &str) -> Option<(usize, usize)> {
    let (from, last) = field(asked, "Range")?
        .strip_prefix("bytes=")?
        .split_once('-')?;
    if from.is_empty() {
        return Some((LENGTH - last.parse::<usize>().ok()?, LENGTH));
    }
    let end = last.parse::<usize>().map_or(LENGTH, |last| last + 1);
    Some((from.parse().ok()?, end.min(LENGTH)))
}

fn say_part(stream: &mut TcpStream, fields: &str, body: &[u8], (from, end): (usize, usize)) {
    say_part_head(stream, fields, (from, end));
    say(stream, &body[from..end]);
}

fn say_part_head(stream: &mut TcpStream, fields: &str, (from, end): (usize, usize)) {
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\n{fields}Content-Range: bytes {from}-{}/{LENGTH}\r\nContent-Length: {}\r\n\r\n",
        end - 1,
        end - from
    );
    say(stream, head.as_bytes());
}

fn answer(stream: &mut TcpStream, fields: &str, body: &[u8], asked: &str) {
    match asked_range(asked) {
        Some(range) => say_part(stream, fields, body, range),
        None => {
            say(stream, &head(fields, body.len()));
            say(stream, body);
        }
    }
}

/// An origin that serves ranges.
fn ranged(fields: &'static str) -> Origin {
    Origin::start(move |stream, asked, _| answer(stream, fields, &content(LENGTH), asked))
}

/// What was asked for so far.
fn ranges_asked(origin: &Origin) -> Vec<Option<(usize, usize)>> {
    let heads = origin.heads.lock().expect("no answer panics");
    heads.iter().map(|head| asked_range(head)).collect()
}

/// Gets a range, which must be right, and tells what the cache did.
fn range_of(server: &Server, target: &str, (from, end): (usize, usize)) -> String {
    let range = format!("Range: bytes={from}-{}", end - 1);
    let reply = server.get_with(target, &[&range]).expect(206);
    assert!(!reply.cut && reply.body == content(LENGTH)[from..end]);
    let said = format!("bytes {from}-{}/{LENGTH}", end - 1);
    assert_eq!(reply.field("Content-Range"), said);
    reply.field("X-Cache").to_owned()
}

fn whole_of(server: &Server, target: &str) -> Reply {
    let reply = server.get(target).expect(200);
    assert!(!reply.cut && reply.body == content(LENGTH));
    reply
}

#[test]
fn a_part_is_asked_for_alone_and_kept() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "HIT");
    assert_eq!(range_of(&server, "/a", (1200, 1300)), "HIT");
    // Half of it is there.
    assert_eq!(range_of(&server, "/a", (1500, 2500)), "MISS");
    assert_eq!(range_of(&server, "/a", (1000, 2500)), "HIT");
    assert_eq!(range_of(&server, "/a", (500_000, 600_000)), "MISS");
    assert_eq!(whole_of(&server, "/a").field("X-Cache"), "MISS");
    assert_eq!(whole_of(&server, "/a").field("X-Cache"), "HIT");
    assert_eq!(
        ranges_asked(&origin),
        [
            Some((1000, 2000)),
            Some((2000, 2500)),
            Some((500_000, 600_000)),
            Some((0, 1000)),
            Some((2500, 500_000)),
        ]
    );
    let heads = origin.heads.lock().expect("no answer panics");
    assert_eq!(field(&heads[0], "If-Range"), None);
    for head in &heads[1..] {
        assert_eq!(field(head, "If-Range"), Some("\"v1\""));
    }
}

#[test]
fn the_last_bytes_are_a_part() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(&origin, PARTIAL);
    for cache in ["MISS", "HIT"] {
        let reply = server.get_with("/a", &["Range: bytes=-500"]).expect(206);
        assert!(reply.body == content(LENGTH)[LENGTH - 500..]);
        assert_eq!(reply.field("X-Cache"), cache);
    }
    assert_eq!(range_of(&server, "/a", (LENGTH - 100, LENGTH)), "HIT");
    assert_eq!(origin.requests(), 1);
}

#[test]
fn what_has_no_version_is_not_put_together() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(NO_VALIDATOR);
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(range_of(&server, "/a", (1100, 1900)), "HIT");
    assert_eq!(range_of(&server, "/a", (1500, 2500)), "MISS");
    assert_eq!(range_of(&server, "/a", (1500, 2500)), "HIT");
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(whole_of(&server, "/a").field("X-Cache"), "MISS");
    assert_eq!(range_of(&server, "/a", (0, 100)), "HIT");
    assert_eq!(
        ranges_asked(&origin),
        [
            Some((1000, 2000)),
            Some((1500, 2500)),
            Some((1000, 2000)),
            None,
        ]
    );
}

#[test]
fn a_part_of_another_version_takes_its_place() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let newer: Vec<u8> = content(LENGTH).into_iter().rev().collect();
    let sent = newer.clone();
    let origin = Origin::start(move |stream, asked, number| match number {
        0 => answer(stream, STRONG, &content(LENGTH), asked),
        // The new one, where a part of the old one is asked for.
        1 => answer(
            stream,
            "Cache-Control: max-age=60\r\nETag: \"v2\"\r\n",
            &sent,
            "",
        ),
        _ => say(stream, b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
    });
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    let reply = server
        .get_with("/a", &["Range: bytes=1500-2499"])
        .expect(206);
    assert!(reply.body == newer[1500..2500]);
    let reply = server
        .get_with("/a", &["Range: bytes=1000-1999"])
        .expect(206);
    assert!(reply.body == newer[1000..2000]);
    assert!(server.get("/a").expect(200).body == newer);
    assert_eq!(origin.requests(), 2);
}

#[test]
fn the_whole_that_comes_for_a_part_is_stored_as_such() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = Origin::start(|stream, _, _| answer(stream, NO_VALIDATOR, &content(LENGTH), ""));
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(range_of(&server, "/a", (300_000, 310_000)), "HIT");
    assert_eq!(whole_of(&server, "/a").field("X-Cache"), "HIT");
    assert_eq!(origin.requests(), 1);
}

#[test]
fn a_range_that_is_not_there_says_nothing_of_others() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = Origin::start(|stream, asked, _| match asked_range(asked) {
        Some((from, _)) if from >= LENGTH => {
            let head = format!(
                "HTTP/1.1 416 No\r\n{STRONG}Content-Range: bytes */{LENGTH}\r\nContent-Length: 0\r\n\r\n"
            );
            say(stream, head.as_bytes());
        }
        _ => answer(stream, STRONG, &content(LENGTH), asked),
    });
    let server = cached(&origin, PARTIAL);
    let beyond = ["Range: bytes=700000-"];
    server.get_with("/a", &beyond).expect(416);
    assert_eq!(range_of(&server, "/a", (0, 100)), "MISS");
    // The length is known by now.
    server.get_with("/a", &beyond).expect(416);
    assert_eq!(origin.requests(), 2);
}

#[test]
fn clients_of_one_part_are_one_fetch() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(&origin, PARTIAL);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| range_of(&server, "/a", (100_000, 400_000)));
        }
    });
    assert_eq!(origin.requests(), 1);
}

#[test]
fn a_part_that_breaks_off_is_resumed() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = Origin::start(|stream, asked, number| {
        let Some((from, end)) = asked_range(asked) else {
            return;
        };
        match number {
            0 => {
                say_part_head(stream, STRONG, (from, end));
                say(stream, &content(LENGTH)[from..end - 10_000]);
            }
            _ => say_part(stream, STRONG, &content(LENGTH), (from, end)),
        }
    });
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (100_000, 150_000)), "MISS");
    assert_eq!(
        ranges_asked(&origin),
        [Some((100_000, 150_000)), Some((140_000, 150_000))]
    );
}

#[test]
fn what_is_far_inside_is_a_part_and_what_is_not_is_the_whole() {
    if skip_on_oracle("it stores nothing of what is far inside") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(
        &origin,
        "proxy_cache_partial on; proxy_cache_max_range_offset 1000;",
    );
    assert_eq!(range_of(&server, "/far", (1000, 2000)), "MISS");
    assert_eq!(range_of(&server, "/far", (1000, 2000)), "HIT");
    assert_eq!(range_of(&server, "/near", (900, 2000)), "MISS");
    assert_eq!(whole_of(&server, "/near").field("X-Cache"), "HIT");
    assert_eq!(ranges_asked(&origin), [Some((1000, 2000)), None]);
}

#[test]
fn a_purge_takes_parts_too() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(
        &origin,
        "proxy_cache_partial on; proxy_cache_purge $http_purge;",
    );
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    server.get_with("/a", &["Purge: 1"]).expect(204);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(origin.requests(), 2);
}

#[test]
fn parts_of_variants_are_kept_apart() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = Origin::start(|stream, asked, _| {
        let byte = field(asked, "X-Which").map_or(b'0', |which| which.as_bytes()[0]);
        let fields = format!(
            "{NO_VALIDATOR}Vary: X-Which\r\nETag: \"{}\"\r\n",
            byte as char
        );
        answer(stream, &fields, &vec![byte; LENGTH], asked);
    });
    let server = cached(&origin, PARTIAL);
    for (which, range, cache) in [
        ("1", "1000-1999", "MISS"),
        ("2", "1000-1999", "MISS"),
        ("1", "1500-1899", "HIT"),
        ("2", "1500-1899", "HIT"),
        ("1", "1500-2999", "MISS"),
    ] {
        let fields = [format!("X-Which: {which}"), format!("Range: bytes={range}")];
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let reply = server.get_with("/a", &fields).expect(206);
        assert!(reply.body.iter().all(|byte| *byte == which.as_bytes()[0]));
        assert_eq!(reply.field("X-Cache"), cache, "{which} {range}");
    }
    assert_eq!(origin.requests(), 3);
}

#[test]
fn compression_makes_the_whole_of_a_part() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let fields = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\nContent-Type: text/html\r\n";
    let origin = ranged(fields);
    let server = cached(
        &origin,
        "proxy_cache_partial on; gunzip on; gzip on; gzip_proxied any;",
    );
    for _ in 0..2 {
        let fields = ["Range: bytes=1000-1999", "Accept-Encoding: gzip"];
        let reply = server.get_with("/a", &fields).expect(200);
        assert!(!reply.cut);
        assert_eq!(reply.field("Content-Encoding"), "gzip");
    }
    assert_eq!(whole_of(&server, "/a").field("X-Cache"), "HIT");
}

#[test]
fn nobody_gets_wrong_bytes_of_a_key_without_the_range() {
    if skip_on_oracle("it gives everybody the range of the first") {
        return;
    }
    for fields in [STRONG, NO_VALIDATOR] {
        let origin = ranged(fields);
        let server = cached(&origin, "proxy_set_header Range $http_range;");
        assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
        assert_eq!(range_of(&server, "/a", (1000, 2000)), "HIT");
        range_of(&server, "/a", (3000, 4000));
        whole_of(&server, "/a");
        range_of(&server, "/a", (3000, 4000));
        // A range and the whole at once.
        std::thread::scope(|scope| {
            for at in 0..4 {
                let server = &server;
                scope.spawn(move || range_of(server, "/b", (at * 100, 100_000)));
                scope.spawn(|| whole_of(server, "/b"));
            }
        });
    }
}

#[test]
fn a_key_with_the_range_keeps_each_as_it_is() {
    let origin = ranged(STRONG);
    let server = cached(
        &origin,
        "proxy_set_header Range $http_range; proxy_cache_key $uri$http_range;",
    );
    for cache in ["MISS", "HIT"] {
        assert_eq!(range_of(&server, "/a", (1000, 2000)), cache);
        assert_eq!(range_of(&server, "/a", (1500, 2500)), cache);
        assert_eq!(whole_of(&server, "/a").field("X-Cache"), cache);
    }
    assert_eq!(origin.requests(), 3);
}

/// What stands between the lines of a multipart response.
fn parts(reply: &Reply) -> Vec<Vec<u8>> {
    let boundary = reply.field("Content-Type").split_once("boundary=");
    let boundary = format!("\r\n--{}", boundary.expect("it is multipart").1);
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    let parts = text
        .split(&boundary)
        .filter(|part| part.contains("Content-Range"));
    let bodies = parts.filter_map(|part| part.split_once("\r\n\r\n"));
    bodies.map(|(_, body)| body.as_bytes().to_vec()).collect()
}

#[test]
fn several_ranges_of_what_is_stored() {
    if skip_on_oracle(
        "1.22 leaves the Content-Range of the origin, and stores after it has answered",
    ) {
        return;
    }
    let text: String = (0..20_000).map(|at| format!("{at:08}")).collect();
    let sent = text.clone();
    let origin = Origin::start(move |stream, _, _| {
        let fields = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\nContent-Range: stub\r\n";
        say(stream, &head(fields, sent.len()));
        say(stream, sent.as_bytes());
    });
    let server = cached(&origin, "proxy_force_ranges on;");
    server.get("/a").expect(200);
    let ranges = "Range: bytes=8-15,100000-100007,-8";
    let reply = server.get_with("/a", &[ranges]).expect(206);
    assert_eq!(reply.field("X-Cache"), "HIT");
    assert_eq!(reply.all("Content-Range"), [""; 0]);
    let text = text.as_bytes();
    assert_eq!(
        parts(&reply),
        [
            &text[8..16],
            &text[100_000..100_008],
            &text[text.len() - 8..]
        ]
    );
    // The condition decides.
    let reply = server
        .get_with("/a", &[ranges, "If-Range: \"v1\""])
        .expect(206);
    assert_eq!(parts(&reply).len(), 3);
    for other in [
        "If-Range: \"v2\"",
        "If-Range: Mon, 28 Sep 1970 06:00:00 GMT",
    ] {
        let reply = server.get_with("/a", &[ranges, other]).expect(200);
        assert!(reply.body == text);
        assert_eq!(reply.field("X-Cache"), "HIT");
    }
    assert_eq!(origin.requests(), 1);
}

#[test]
fn several_ranges_of_parts_that_are_stored() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = ranged(STRONG);
    let server = cached(&origin, PARTIAL);
    assert_eq!(range_of(&server, "/a", (1000, 2000)), "MISS");
    assert_eq!(range_of(&server, "/a", (5000, 6000)), "MISS");
    let ranges = ["Range: bytes=1100-1199,5100-5199"];
    let reply = server.get_with("/a", &ranges).expect(206);
    assert_eq!(reply.field("X-Cache"), "HIT");
    assert!(
        reply
            .field("Content-Type")
            .starts_with("multipart/byteranges")
    );
    assert_eq!(origin.requests(), 2);
    for reply in together(&server, "/a", 3) {
        assert!(!reply.cut && reply.body == content(LENGTH));
    }
}

#[test]
fn a_part_that_is_not_as_long_as_it_says_is_not_stored() {
    if skip_on_oracle("it asks for the whole") {
        return;
    }
    let origin = Origin::start(|stream, _, _| {
        let head = "HTTP/1.1 206 Partial Content\r\nCache-Control: max-age=60\r\nContent-Range: bytes 4-9/10\r\n";
        say(
            stream,
            format!("{head}Content-Length: 5\r\n\r\n01234").as_bytes(),
        );
    });
    let server = cached(&origin, PARTIAL);
    for _ in 0..2 {
        let reply = server.get_with("/a", &["Range: bytes=-5"]).expect(206);
        assert_eq!(
            (reply.text(), reply.field("X-Cache")),
            ("01234".to_owned(), "MISS")
        );
    }
    assert_eq!(origin.requests(), 2);
}

/// What the origin says of ranges is said of the whole.
#[test]
fn parts_of_what_is_stored_have_the_fields_of_nginx() {
    let fields = "Content-Type: text/html; charset=utf-8\r\nAccept-Ranges: bytes\r\nCache-Control: max-age=60\r\n";
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head(fields, LENGTH));
        say(stream, &content(LENGTH));
    });
    let server = cached(&origin, "");
    assert_eq!(server.get("/a").expect(200).all("Accept-Ranges"), ["bytes"]);
    for range in ["0-4", "0-1,3-4"] {
        let reply = server.get_with("/a", &[&format!("Range: bytes={range}")]);
        assert!(!reply.expect(206).has("Accept-Ranges"), "{range}");
    }
    let reply = server.get_with("/a", &["Range: bytes=700000-"]).expect(416);
    assert!(!reply.has("Accept-Ranges"));
}

/// Of what is only coming there is one part at a time.
#[test]
fn several_ranges_of_what_is_being_fetched() {
    let origin = Origin::start(move |stream, _, _| {
        say(
            stream,
            &head(
                "Cache-Control: max-age=60\r\nAccept-Ranges: bytes\r\n",
                LENGTH,
            ),
        );
        say(stream, &content(LENGTH));
    });
    let server = cached(&origin, "");
    let ranges = "Range: bytes=0-1,3-4";
    assert_eq!(
        server.get_with("/a", &[ranges]).expect(200).body,
        content(LENGTH)
    );
    server.get_with("/b", &["Range: bytes=0-1"]).expect(206);
    server.get("/c").expect(200);
    assert_eq!(
        parts(&server.get_with("/c", &[ranges]).expect(206)).len(),
        2
    );
}

/// The origin never hears of the range: it is made here, one part of it.
#[test]
fn ranges_of_what_passes_the_cache_by() {
    let origin = Origin::start(move |stream, asked, _| {
        let says = if asked.contains("silent") {
            ""
        } else {
            "Accept-Ranges: bytes\r\n"
        };
        say(stream, &head(says, LENGTH));
        say(stream, &content(LENGTH));
    });
    let server = cached(&origin, "proxy_cache_bypass 1; proxy_no_cache 1;");
    assert_eq!(server.get("/a").expect(200).all("Accept-Ranges"), ["bytes"]);
    let reply = server.get_with("/a", &["Range: bytes=1-4"]).expect(206);
    assert_eq!(reply.body, content(LENGTH)[1..5]);
    server.get_with("/a", &["Range: bytes=0-1,3-4"]).expect(200);
    server.get_with("/a", &["Range: bytes=700000-"]).expect(416);
    let reply = server
        .get_with("/silent", &["Range: bytes=1-4"])
        .expect(200);
    assert!(!reply.has("Accept-Ranges"));
}
