//! `gzip` on the fly and `gzip_static`, and `gunzip`'s absence where nobody asks.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use weir_tests::{Reply, Server, Site, http, is_oracle};

const ACCEPT: &str = "Accept-Encoding: gzip";

fn text() -> String {
    (0..2_000)
        .map(|i| format!("line {i} of a text that packs well\n"))
        .collect()
}

fn unpacked(reply: &Reply) -> String {
    let mut text = String::new();
    GzDecoder::new(reply.body.as_slice())
        .read_to_string(&mut text)
        .expect("the body is gzip");
    text
}

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text.as_bytes()).expect("a vector grows");
    encoder.finish().expect("a vector grows")
}

fn site(directives: &str) -> Site {
    let conf = format!(
        "types {{ text/html html; text/plain txt; image/png png; }} server {{ listen 127.0.0.1:%%PORT%%; gzip on; {directives} }}"
    );
    http(&conf)
        .file("html/a.html", text())
        .file("html/a.txt", text())
        .file("html/small.html", "small")
        .file("html/a.png", text())
}

fn is_packed(server: &Server, target: &str, lines: &[&str]) -> bool {
    let reply = server.get_with(target, lines).expect(200);
    let packed = reply.field("Content-Encoding") == "gzip";
    if packed {
        assert_eq!(unpacked(&reply), text(), "{target}");
    }
    packed
}

#[test]
fn a_packed_answer_is_chunked_and_its_etag_weak() {
    let server = site("gzip_vary on;").start();
    let plain = server.get("/a.html").expect(200);
    assert!(plain.field("ETag").starts_with('"') && plain.has("Content-Length"));
    let reply = server.get_with("/a.html", &[ACCEPT]).expect(200);
    assert_eq!(reply.field("Content-Encoding"), "gzip");
    assert_eq!(reply.field("Vary"), "Accept-Encoding");
    assert_eq!(
        plain.field("Vary"),
        "Accept-Encoding",
        "the plain answer varies too"
    );
    assert_eq!(reply.field("ETag"), format!("W/{}", plain.field("ETag")));
    assert!(reply.chunked && !reply.has("Content-Length") && !reply.has("Accept-Ranges"));
    assert_eq!(unpacked(&reply), text());
    assert!(reply.body.len() < text().len() / 4);
}

#[test]
fn the_client_must_accept_gzip() {
    let server = site("").start();
    for (value, accepted) in [
        ("gzip", true),
        ("GZIP", true),
        ("deflate, gzip", true),
        ("gzip;q=1", true),
        ("gzip;q=0.001", true),
        ("deflate,gzip;q=0.5", true),
        ("gzip;q=0", false),
        ("gzip;q=0.000", false),
        ("gzip; q=0", false),
        ("deflate", false),
        ("gzipped", false),
        ("xgzip", false),
        ("x-gzip", false),
        ("identity", false),
        ("", false),
    ] {
        let line = format!("Accept-Encoding: {value}");
        assert_eq!(is_packed(&server, "/a.html", &[&line]), accepted, "{value}");
    }
}

#[test]
fn types_lengths_and_versions_decide() {
    let server = site("gzip_types text/plain; gzip_min_length 100;").start();
    assert!(is_packed(&server, "/a.html", &[ACCEPT]));
    assert!(is_packed(&server, "/a.txt", &[ACCEPT]));
    assert!(!is_packed(&server, "/a.png", &[ACCEPT]));
    assert!(!is_packed(&server, "/small.html", &[ACCEPT]));
    let old = server
        .raw("GET /a.html HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        .expect(200);
    assert!(
        !old.has("Content-Encoding"),
        "gzip_http_version is 1.1 by default"
    );

    let server = site("gzip_types *; gzip_http_version 1.0;").start();
    assert!(is_packed(&server, "/a.png", &[ACCEPT]));
    let old = server
        .raw("GET /a.html HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n")
        .expect(200);
    assert_eq!(unpacked(&old), text());
    assert!(!old.chunked, "HTTP/1.0 knows no chunks");
}

#[test]
fn gzip_disable_and_proxied_requests() {
    let server = site("gzip_disable 'MSIE [1-5]'; ").start();
    assert!(!is_packed(
        &server,
        "/a.html",
        &[ACCEPT, "User-Agent: MSIE 4.0"]
    ));
    assert!(is_packed(
        &server,
        "/a.html",
        &[ACCEPT, "User-Agent: other"]
    ));
    assert!(
        !is_packed(&server, "/a.html", &[ACCEPT, "Via: 1.1 proxy"]),
        "gzip_proxied is off by default"
    );

    let server = site("gzip_proxied any;").start();
    assert!(is_packed(&server, "/a.html", &[ACCEPT, "Via: 1.1 proxy"]));
    let server = site("gzip_proxied expired no-cache no-store private auth; expires -1;").start();
    assert!(is_packed(&server, "/a.html", &[ACCEPT, "Via: 1.1 proxy"]));
}

#[test]
fn levels_and_buffers_are_accepted() {
    for directives in [
        "gzip_comp_level 1;",
        "gzip_comp_level 9;",
        "gzip_buffers 4 4k;",
        "gzip_comp_level 6; gzip_buffers 2 1k;",
    ] {
        assert!(
            is_packed(&site(directives).start(), "/a.html", &[ACCEPT]),
            "{directives}"
        );
    }
}

#[test]
fn head_and_not_modified_are_not_packed() {
    let server = site("").start();
    let etag = server
        .get_with("/a.html", &[ACCEPT])
        .field("ETag")
        .to_owned();
    let reply = server.get_with("/a.html", &[ACCEPT, &format!("If-None-Match: {etag}")]);
    assert_eq!(reply.status, 304, "the weak tag that we gave is ours");
    let head = server.request("HEAD", "/a.html", &[ACCEPT]).expect(200);
    assert!(!head.has("Content-Length"));
}

#[test]
fn a_range_of_a_packed_answer_is_the_whole() {
    let server = site("").start();
    let reply = server.get_with("/a.html", &[ACCEPT, "Range: bytes=0-9"]);
    // The ranges of a file are those of its plain bytes; nginx leaves a 206 unpacked.
    assert!(matches!(reply.status, 200 | 206));
    if reply.status == 206 {
        assert_eq!(reply.text(), text()[..10]);
    }
}

#[test]
fn pipelined_packed_answers_are_kept_apart() {
    let server = site("").start();
    let mut connection = server.connect();
    for _ in 0..5 {
        connection.request("GET", "/a.html", &[ACCEPT]);
    }
    for _ in 0..5 {
        assert_eq!(unpacked(&connection.reply()), text());
    }
}

#[test]
fn error_pages_are_packed_when_long_enough() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; gzip on; gzip_min_length 0; error_page 404 /404.html; }";
    let server = http(conf).file("html/404.html", text()).start();
    let reply = server.get_with("/none", &[ACCEPT]).expect(404);
    assert_eq!(unpacked(&reply), text());
}

#[test]
fn gzip_static_sends_the_packed_neighbour() {
    let conf = "types { text/html html; } server { listen 127.0.0.1:%%PORT%%; gzip_static on; gzip_vary on;
        location /always/ { alias %%DIR%%/html/; gzip_static always; } location /off/ { alias %%DIR%%/html/; gzip_static off; } }";
    let server = http(conf)
        .file("html/a.html", "plain text")
        .file("html/a.html.gz", packed("packed text"))
        .file("html/only.html.gz", packed("only packed"))
        .file("html/b.html", "b")
        .start();
    let reply = server.get_with("/a.html", &[ACCEPT]).expect(200);
    assert_eq!(unpacked(&reply), "packed text");
    assert_eq!(
        reply.field("Content-Length"),
        packed("packed text").len().to_string()
    );
    assert_eq!(reply.field("Content-Type"), "text/html");
    assert_eq!(reply.field("Vary"), "Accept-Encoding");
    assert!(reply.has("ETag") && reply.has("Last-Modified"));

    server.answers(&[
        ("/a.html", 200, "plain text"),
        ("/b.html", 200, "b"),
        ("/only.html", 404, ""),
        ("/off/a.html", 200, "plain text"),
    ]);
    assert_eq!(
        unpacked(&server.get("/always/only.html").expect(200)),
        "only packed"
    );
    assert_eq!(server.get_with("/b.html", &[ACCEPT]).text(), "b");
    assert_eq!(
        server
            .get_with("/a.html", &[ACCEPT, "If-None-Match: *"])
            .status,
        304
    );
    let range = server.get_with("/a.html", &[ACCEPT, "Range: bytes=0-1"]);
    // nginx before 1.23.3 answers with the whole.
    assert!(range.body == [0x1f, 0x8b] || is_oracle() && range.status == 200);
}

#[test]
fn the_gzip_ratio_is_a_variable() {
    let conf = "log_format ratio '$gzip_ratio'; server { listen 127.0.0.1:%%PORT%%; gzip on; access_log access.log ratio; }";
    let server = http(conf).file("html/a.html", text()).start();
    server.get_with("/a.html", &[ACCEPT]).expect(200);
    let line = server.lines("access.log", 1).remove(0);
    assert!(line.parse::<f64>().is_ok_and(|ratio| ratio > 4.0), "{line}");
}
