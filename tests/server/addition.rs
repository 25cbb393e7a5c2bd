//! `add_before_body` and `add_after_body`.

use std::io::Read;

use flate2::read::GzDecoder;
use weir_tests::{Scripted, Site, http, send};

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

/// An application that answers with the request line and the content that it got, which ends with a dot.
fn forms() -> Scripted {
    Scripted::start(|stream, _| {
        let (mut got, mut buffer) = (Vec::new(), [0; 4096]);
        let is_whole = |got: &[u8]| {
            let text = String::from_utf8_lossy(got);
            let has_content = text.contains("Content-Length: ");
            text.contains("\r\n\r\n") && (!has_content || text.ends_with('.'))
        };
        while !is_whole(&got) {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(count) => got.extend_from_slice(&buffer[..count]),
            }
        }
        let text = String::from_utf8_lossy(&got);
        let line = text.lines().next().unwrap_or_default();
        let content = text.split("\r\n\r\n").nth(1).unwrap_or_default();
        let type_and_end = "Content-Type: text/html\r\nConnection: close";
        let command = match line.contains("/page") {
            true => "<!--#include virtual=\"/part\" -->",
            false => "",
        };
        send(
            stream,
            format!("HTTP/1.0 200 OK\r\n{type_and_end}\r\n\r\n[{line}|{content}]{command}"),
        );
    })
}

#[test]
fn what_a_page_is_made_of_gets_the_content_that_the_client_sent() {
    let application = forms();
    let port = application.port();
    let server = http(&format!(
        "proxy_set_header Connection close; proxy_http_version 1.0;
        server {{ listen 127.0.0.1:%%PORT%%;
            location / {{ proxy_pass http://127.0.0.1:{port}; }}
            location /added {{ proxy_pass http://127.0.0.1:{port}; add_after_body /part; }}
            location /filed {{ proxy_pass http://127.0.0.1:{port}; add_after_body /part; client_body_in_file_only clean; }}
            location /page {{ proxy_pass http://127.0.0.1:{port}; ssi on; }} }}"
    ))
    .start();
    for path in ["/added", "/filed", "/page"] {
        let mut connection = server.connect();
        connection.request("POST", path, &["Content-Length: 6"]);
        connection.send("a=b&c.");
        assert_eq!(
            connection.reply().expect(200).text(),
            format!("[POST {path} HTTP/1.0|a=b&c.][GET /part HTTP/1.0|a=b&c.]"),
        );
        let without = server.get(path).expect(200).text();
        assert_eq!(
            without,
            format!("[GET {path} HTTP/1.0|][GET /part HTTP/1.0|]")
        );
    }
}
