//! `add_before_body` and `add_after_body`.

use std::io::Read;

use flate2::read::GzDecoder;
use weir_tests::{Site, http};

fn site(directives: &str) -> Site {
    let conf = format!(
        "types {{ text/html html; text/plain txt; }}
        server {{
            listen 127.0.0.1:%%PORT%%;
            add_before_body /parts/before.html;
            add_after_body /parts/after.html;
            location /parts/ {{ alias %%DIR%%/parts/; }}
            location /one/ {{ alias %%DIR%%/html/; add_before_body ''; }}
            location /missing/ {{ alias %%DIR%%/html/; add_before_body /none.html; }}
            {directives}
        }}"
    );
    http(&conf)
        .file("html/a.html", "<body>")
        .file("html/a.txt", "text")
        .file("html/empty.html", "")
        .file("parts/before.html", "before")
        .file("parts/after.html", "after")
}

#[test]
fn both_stand_around_the_content() {
    let server = site("").start();
    server.answers(&[
        ("/a.html", 200, "before<body>after"),
        ("/a.txt", 200, "text"),
        ("/empty.html", 200, "beforeafter"),
        ("/one/a.html", 200, "<body>after"),
        ("/parts/before.html", 200, "beforebeforeafter"),
        ("/none.html", 404, ""),
    ]);
    let reply = server.get("/a.html");
    assert!(!reply.has("Content-Length") && !reply.has("Accept-Ranges"));
    assert!(reply.has("Last-Modified") && reply.field("ETag").starts_with("W/"));
    assert!(
        server
            .get("/missing/a.html")
            .expect(200)
            .text()
            .contains("404 Not Found")
    );
    let text = server.get("/a.txt");
    assert!(text.has("Content-Length") && text.field("ETag").starts_with('"'));
    let head = server.request("HEAD", "/a.html", &[]).expect(200);
    assert!(!head.has("Content-Length"));
}

#[test]
fn types_are_chosen() {
    let server = site("addition_types text/plain;").start();
    server.answers(&[
        ("/a.txt", 200, "beforetextafter"),
        ("/a.html", 200, "before<body>after"),
    ]);
}

#[test]
fn what_is_added_passes_its_own_filters_and_is_packed_with_the_rest() {
    let server = site(
        "sub_filter o 0; sub_filter_once off; gzip on; gzip_min_length 0;
         location = /parts/after.html { alias %%DIR%%/parts/after.html; sub_filter a 4; }",
    )
    .start();
    // `/parts/before.html` has the outer `sub_filter`, `/parts/after.html` its own.
    assert_eq!(server.get("/a.html").text(), "bef0re<b0dy>4fter");
    let reply = server
        .get_with("/a.html", &["Accept-Encoding: gzip"])
        .expect(200);
    assert_eq!(reply.field("Content-Encoding"), "gzip");
    let mut text = String::new();
    GzDecoder::new(reply.body.as_slice())
        .read_to_string(&mut text)
        .expect("the body is gzip");
    assert_eq!(text, "bef0re<b0dy>4fter");
}
