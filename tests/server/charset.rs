//! `charset`: naming it, and translating.

use weir_tests::{http, skip_on_oracle};

#[test]
fn a_charset_is_named_for_its_media_types() {
    let conf = "
        types { text/html html; text/css css; }
        default_type application/octet-stream;
        server {
            listen 127.0.0.1:%%PORT%%;
            charset utf-8;
            location /off/ { charset off; }
            location /all/ { charset_types *; }
            location /css/ { charset_types text/css; }
            location /variable/ { charset $arg_c; }
            location /return { default_type text/plain; return 200 x; }
            location /redirect { return 301 /x; }
        }";
    let mut site = http(conf);
    for name in [
        "a.html",
        "a.css",
        "off/a.html",
        "all/a.css",
        "css/a.css",
        "css/a.html",
        "variable/a.html",
    ] {
        site = site.file(&format!("html/{name}"), "x");
    }
    let server = site.start();
    for (target, media_type) in [
        ("/a.html", "text/html; charset=utf-8"),
        ("/a.css", "text/css"),
        ("/off/a.html", "text/html"),
        ("/all/a.css", "text/css; charset=utf-8"),
        ("/css/a.css", "text/css; charset=utf-8"),
        ("/css/a.html", "text/html; charset=utf-8"),
        ("/variable/a.html?c=koi8-r", "text/html; charset=koi8-r"),
        ("/return", "text/plain; charset=utf-8"),
        ("/redirect", "text/html"),
    ] {
        assert_eq!(
            server.get(target).field("Content-Type"),
            media_type,
            "{target}"
        );
    }
}

#[test]
fn content_is_translated() {
    let conf = "
        charset_map koi8-r windows-1251 { C0 FE; C1 E0; }
        charset_map koi8-r utf-8 { C0 D18E; C1 D0B0; }
        types { text/html html; }
        server {
            listen 127.0.0.1:%%PORT%%;
            location /bytes/ { alias html/; source_charset koi8-r; charset windows-1251; }
            location /utf8/ { alias html/; source_charset koi8-r; charset utf-8; }
            location /back/ { alias html/utf8/; source_charset utf-8; charset koi8-r; }
        }";
    let server = http(conf)
        .file("html/a.html", b"a \xc0\xc1\xff".repeat(20_000))
        .file("html/utf8/a.html", "a юа€".repeat(20_000))
        .start();
    let reply = server.get("/bytes/a.html").expect(200);
    assert_eq!(reply.body, b"a \xfe\xe0?".repeat(20_000));
    assert_eq!(
        reply.field("Content-Type"),
        "text/html; charset=windows-1251"
    );
    assert_eq!(reply.field("Content-Length"), "100000");
    let reply = server.get("/utf8/a.html").expect(200);
    assert_eq!(reply.text(), "a юа?".repeat(20_000));
    assert!(!reply.has("Content-Length"));
    assert_eq!(
        server.get("/back/a.html").body,
        b"a \xc0\xc1&#8364;".repeat(20_000)
    );
    assert_eq!(
        server
            .request("HEAD", "/bytes/a.html", &[])
            .expect(200)
            .field("Content-Length"),
        "100000"
    );
}

#[test]
fn a_missing_map_is_an_error_at_the_start() {
    let tested = http("server { charset utf-8; source_charset koi8-r; }").test();
    let message = "no \"charset_map\" between the charsets \"koi8-r\" and \"utf-8\"";
    assert!(tested.stderr.contains(message), "{}", tested.stderr);
}

#[test]
fn maps_must_make_sense() {
    for (map, message) in [
        (
            "charset_map a A { }",
            "\"charset_map\" between the same charsets \"a\" and \"A\"",
        ),
        ("charset_map a b { 58 100; }", "invalid value \"100\""),
        (
            "charset_map a b { } charset_map b a { }",
            "duplicate \"charset_map\" between \"b\" and \"a\"",
        ),
    ] {
        let tested = http(map).test();
        assert!(tested.stderr.contains(message), "{map}: {}", tested.stderr);
    }
}

#[test]
fn utf_8_stands_second() {
    if skip_on_oracle("older versions take it, and translate wrongly") {
        return;
    }
    let tested = http("charset_map utf-8 a { }").test();
    assert!(
        tested
            .stderr
            .contains("should be given in the second column"),
        "{}",
        tested.stderr
    );
}

#[test]
fn a_part_is_translated_into_the_charset_of_the_whole() {
    let conf = "
        types { text/html html; }
        charset_map a utf-8 { 80 D0B0; 81 D0B1; }
        server {
            listen 127.0.0.1:%%PORT%%;
            location / { ssi on; charset utf-8; }
            location /a/ { source_charset a; }
            location /own/ { charset utf-8; source_charset a; }
            location /a-page/ { ssi on; charset a; source_charset a; }
            location /utf/ { source_charset utf-8; alias %%DIR%%/html/u/; }
        }";
    let include = |path: &str| format!("<!--#include virtual=\"{path}\" -->");
    let server = http(conf)
        .file(
            "html/page.html",
            format!("({}{})", include("/a/x.html"), include("/own/x.html")),
        )
        .file(
            "html/a-page/page.html",
            [b"\x80", include("/utf/y.html").as_bytes()].concat(),
        )
        .file("html/a/x.html", b"x\x80")
        .file("html/own/x.html", b"x\x81")
        .file("html/u/y.html", "б")
        .start();
    let reply = server.get("/page.html").expect(200);
    assert_eq!(reply.field("Content-Type"), "text/html; charset=utf-8");
    assert_eq!(reply.text(), "(xаxб)");
    let reply = server.get("/a-page/page.html").expect(200);
    assert_eq!(reply.field("Content-Type"), "text/html; charset=a");
    assert_eq!(reply.body, b"\x80\x81");
}

#[test]
fn an_upstream_chooses_among_the_charsets_that_are_named() {
    let conf = "
        charset_map koi8-r utf-8 { C0 D18E; C1 D0B0; }
        server {
            listen 127.0.0.1:%%PORT%%;
            location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
            location /named/ { charset windows-1251; proxy_pass http://127.0.0.1:%%PORT1%%/; }
            location /ignored/ { charset windows-1251; proxy_ignore_headers X-Accel-Charset;
                                 proxy_pass http://127.0.0.1:%%PORT1%%/; }
            location /source/ { source_charset koi8-r; proxy_pass http://127.0.0.1:%%PORT1%%/; }
            location /file { default_type text/plain; alias html/file; }
        }
        server {
            listen 127.0.0.1:%%PORT1%%;
            default_type text/plain;
            add_header X-Accel-Charset $arg_c;
            location / { return 200 text; }
            location /image { default_type image/gif; return 200 gif; }
            location /own { default_type \"text/plain; charset=koi8-r\"; return 200 own; }
            location /two { add_header X-Accel-Charset utf-8; add_header X-Accel-Charset koi8-r; return 200 text; }
            location /away { add_header X-Accel-Charset utf-8; add_header X-Accel-Redirect /file; return 200 text; }
        }";
    let server = http(conf).file("html/file", "file").start();
    for (target, media_type) in [
        ("/?c=utf-8", "text/plain; charset=utf-8"),
        ("/?c=KOI8-R", "text/plain; charset=KOI8-R"),
        ("/?c=unknown", "text/plain"),
        ("/", "text/plain"),
        ("/image?c=utf-8", "image/gif; charset=utf-8"),
        ("/own?c=utf-8", "text/plain; charset=utf-8"),
        ("/named/?c=utf-8", "text/plain; charset=utf-8"),
        ("/named/?c=unknown", "text/plain"),
        ("/named/", "text/plain; charset=windows-1251"),
        ("/ignored/?c=utf-8", "text/plain; charset=windows-1251"),
        ("/source/?c=utf-8", "text/plain; charset=utf-8"),
        ("/two", "text/plain; charset=koi8-r"),
        ("/away", "text/plain; charset=utf-8"),
    ] {
        let reply = server.get(target);
        assert_eq!(reply.field("Content-Type"), media_type, "{target}");
    }
    server.line("error.log", "unknown charset \"unknown\" to override");
}
