//! `brotli` and `zstd`, on the way and from files made beforehand, and which coding wins. nginx has neither.

use std::io::Read;

use weir_tests::{Reply, Server, Site, http, skip_on_oracle};

const NOT_IN_NGINX: &str = "nginx has no such module in its tree";

fn text() -> String {
    (0..20_000)
        .map(|i| format!("line {i} of a text that packs well\n"))
        .collect()
}

fn unpacked(reply: &Reply) -> String {
    let mut text = String::new();
    match reply.field("Content-Encoding") {
        "br" => brotli::Decompressor::new(reply.body.as_slice(), 4096)
            .read_to_string(&mut text)
            .expect("the body is Brotli"),
        "zstd" => {
            let plain = zstd::decode_all(reply.body.as_slice()).expect("the body is Zstandard");
            text = String::from_utf8(plain).expect("the content is text");
            text.len()
        }
        other => panic!("coded by {other:?}"),
    };
    text
}

fn site(directives: &str) -> Site {
    let conf = format!(
        "types {{ text/html html; text/plain txt; }} log_format ratio '$brotli_ratio $zstd_ratio';
         server {{ listen 127.0.0.1:%%PORT%%; access_log access.log ratio; {directives} }}"
    );
    http(&conf)
        .file("html/a.html", text())
        .file("html/empty.html", "")
        .file("html/a.txt", text())
}

fn coding(server: &Server, target: &str, accept: &str) -> String {
    let reply = server
        .get_with(target, &[&format!("Accept-Encoding: {accept}")])
        .expect(200);
    reply.field("Content-Encoding").to_owned()
}

#[test]
fn every_level_gives_the_content_back() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    for directives in [
        "brotli on; brotli_comp_level 0;",
        "brotli on;",
        // On the thread pool.
        "brotli on; brotli_comp_level 9; brotli_window 16m;",
        "brotli on; brotli_comp_level 11; brotli_window 1k;",
        "zstd on;",
        "zstd on; zstd_comp_level 19;",
    ] {
        let server = site(directives).start();
        let reply = server
            .get_with("/a.html", &["Accept-Encoding: br, zstd"])
            .expect(200);
        assert_eq!(unpacked(&reply), text(), "{directives}");
        assert!(reply.body.len() < text().len() / 5, "{directives}");
        assert!(reply.field("ETag").starts_with("W/"), "{directives}");
        let line = server.lines("access.log", 1).remove(0);
        let is_ratio = |text: &str| text.parse::<f64>().is_ok_and(|ratio| ratio > 5.0);
        assert!(line.split(' ').any(is_ratio), "{directives}: {line}");
    }
}

#[test]
fn content_of_a_producer_is_flushed_as_it_comes() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let origin =
        http("types { text/html html; } server { listen 127.0.0.1:%%PORT%%; limit_rate 400k; }")
            .file("html/a.html", text())
            .start();
    for coding in ["brotli", "zstd"] {
        let conf = format!(
            "server {{ listen 127.0.0.1:%%PORT%%; {coding} on; location / {{ proxy_pass http://127.0.0.1:{}; proxy_buffering off; }} }}",
            origin.port(0)
        );
        let server = http(&conf).start();
        let reply = server
            .get_with("/a.html", &["Accept-Encoding: br, zstd"])
            .expect(200);
        assert_eq!(unpacked(&reply), text(), "{coding}");
    }
}

#[test]
fn the_client_chooses_and_then_brotli_wins() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let server =
        site("brotli on; zstd on; gzip on; gzip_vary on; brotli_types text/plain;").start();
    for (accept, expected) in [
        ("gzip, br, zstd", "br"),
        ("gzip, zstd", "zstd"),
        ("gzip", "gzip"),
        ("br;q=0, gzip", "gzip"),
        ("brotli", ""),
        ("identity", ""),
    ] {
        assert_eq!(coding(&server, "/a.html", accept), expected, "{accept}");
    }
    assert_eq!(coding(&server, "/a.txt", "br"), "br");
    assert_eq!(coding(&server, "/a.txt", "zstd"), "");
    assert_eq!(coding(&server, "/empty.html", "br"), "");
    assert_eq!(server.get("/a.html").field("Vary"), "Accept-Encoding");
}

#[test]
fn files_made_beforehand_go_out_as_they_are() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    let server = site("brotli_static on; zstd_static on; gzip_static on; gzip_vary on; location /always/ { alias %%DIR%%/html/; zstd_static always; }")
        .file("html/a.html.br", "made by brotli")
        .file("html/a.html.zst", "made by zstd")
        .start();
    for (target, accept, expected) in [
        ("/a.html", "zstd, br", "made by brotli"),
        ("/a.html", "zstd", "made by zstd"),
        ("/always/a.html", "identity", "made by zstd"),
    ] {
        let reply = server
            .get_with(target, &[&format!("Accept-Encoding: {accept}")])
            .expect(200);
        assert_eq!(reply.text(), expected, "{target} {accept}");
        assert_eq!(reply.field("Content-Type"), "text/html");
        assert_eq!(reply.field("Content-Length"), expected.len().to_string());
    }
    let plain = server.get("/a.html").expect(200);
    assert_eq!(plain.text(), text());
    assert_eq!(plain.field("Vary"), "Accept-Encoding");
}

#[test]
fn settings_out_of_range_are_named() {
    if skip_on_oracle(NOT_IN_NGINX) {
        return;
    }
    for (directive, text) in [
        ("brotli_comp_level 12;", "must be between 0 and 11"),
        ("brotli_window 3k;", "must be a power of two"),
        ("zstd_comp_level 23;", "must be between 1 and 22"),
    ] {
        let finished = site(directive).test();
        assert!(
            finished.code != 0 && finished.stderr.contains(text),
            "{directive}: {}",
            finished.stderr
        );
    }
}

#[test]
fn what_has_no_announced_length_is_compressed_however_short_it_is() {
    let conf = "gzip on; gzip_min_length 1000; gzip_types text/plain; gzip_proxied any;
    proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { proxy_http_version 1.1; proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /stored { proxy_http_version 1.1; proxy_cache z; proxy_cache_valid 1m;
                           proxy_pass http://127.0.0.1:%%PORT1%%/chunked; }
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        gzip off;
        default_type text/plain;
        location /announced { return 200 text; }
        location /chunked { add_trailer X x; return 200 text; }
    }";
    let server = http(conf).start();
    for (path, coding) in [
        ("/announced", ""),
        ("/chunked", "gzip"),
        ("/stored", "gzip"),
        ("/stored", "gzip"),
    ] {
        let reply = server
            .get_with(path, &["Accept-Encoding: gzip"])
            .expect(200);
        assert_eq!(reply.field("Content-Encoding"), coding, "{path}");
    }
}
