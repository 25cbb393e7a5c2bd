//! `gunzip`: one packed form for all clients.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use weir_tests::{Server, http};

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).expect("a vector grows");
    encoder.finish().expect("a vector grows")
}

fn server(files: &[(&str, &[u8])]) -> Server {
    let conf = "types { text/html html; }
        server { listen 127.0.0.1:%%PORT%%; gzip_static always; gunzip on; gzip_vary on;
            location /off/ { alias %%DIR%%/html/; gunzip off; } }";
    let mut site = http(conf);
    for (name, content) in files {
        site = site.file(&format!("html/{name}"), content);
    }
    site.start()
}

#[test]
fn who_does_not_take_gzip_gets_the_plain_form() {
    let text = "plain text, ".repeat(10_000);
    let file = packed(text.as_bytes());
    let server = server(&[("a.html.gz", &file)]);
    let reply = server.get("/a.html").expect(200);
    assert!(reply.text() == text);
    assert!(
        !reply.has("Content-Encoding")
            && !reply.has("Content-Length")
            && !reply.has("Accept-Ranges")
    );
    assert_eq!(reply.field("Vary"), "Accept-Encoding");
    assert!(reply.field("ETag").starts_with("W/"));

    let reply = server
        .get_with("/a.html", &["Accept-Encoding: gzip"])
        .expect(200);
    assert_eq!(reply.field("Content-Encoding"), "gzip");
    assert!(reply.body == file && reply.field("ETag").starts_with('"'));

    let reply = server.get("/off/a.html").expect(200);
    assert!(reply.field("Content-Encoding") == "gzip" && reply.body == file);
    let head = server.request("HEAD", "/a.html", &[]).expect(200);
    assert!(!head.has("Content-Encoding") && !head.has("Content-Length"));
}

#[test]
fn several_members_are_one_text() {
    let file = [packed(b"one, "), packed(b""), packed(b"two")].concat();
    let server = server(&[("a.html.gz", &file)]);
    assert_eq!(server.get("/a.html").expect(200).text(), "one, two");
}

#[test]
fn a_little_that_is_packed_may_be_a_lot() {
    let text = vec![b'x'; 20_000_000];
    let file = packed(&text);
    assert!(file.len() < 100_000);
    let server = server(&[("a.html.gz", &file)]);
    assert!(server.get("/a.html").expect(200).body == text);
}

#[test]
fn what_is_not_gzip_or_is_cut_is_not_taken_for_whole() {
    let text = "not so easy to pack: ".repeat(5_000);
    let whole = packed(text.as_bytes());
    let server = server(&[
        ("cut.html.gz", &whole[..whole.len() - 20]),
        (
            "plain.html.gz",
            b"this is no gzip, but plain text that is long enough",
        ),
    ]);
    for target in ["/cut.html", "/plain.html"] {
        let reply = server.raw_or_closed(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(reply.is_none_or(|reply| reply.cut), "{target}");
    }
    server.line("error.log", "inflate() ");
}
