//! Byte ranges (RFC 9110 section 14): single, multiple, unsatisfiable, `If-Range`.

use weir_tests::{Reply, Server, http, skip_on_oracle};

/// A server with `/a`, the 26 letters.
fn alphabet(directives: &str) -> Server {
    let conf = format!("server {{ listen 127.0.0.1:%%PORT%%; {directives} }}");
    http(&conf)
        .file("html/a", "abcdefghijklmnopqrstuvwxyz")
        .file("html/empty", "")
        .start()
}

fn range(server: &Server, value: &str) -> Reply {
    server.get_with("/a", &[&format!("Range: {value}")])
}

#[test]
fn a_single_range_is_partial_content() {
    let server = alphabet("");
    let rows = [
        ("bytes=0-0", "a", "bytes 0-0/26"),
        ("bytes=0-4", "abcde", "bytes 0-4/26"),
        ("bytes=20-", "uvwxyz", "bytes 20-25/26"),
        ("bytes=-3", "xyz", "bytes 23-25/26"),
        ("bytes=-26", "abcdefghijklmnopqrstuvwxyz", "bytes 0-25/26"),
        ("bytes=-100", "abcdefghijklmnopqrstuvwxyz", "bytes 0-25/26"),
        ("bytes=24-1000", "yz", "bytes 24-25/26"),
        ("bytes=25-25", "z", "bytes 25-25/26"),
        ("bytes= 1 - 2", "bc", "bytes 1-2/26"),
        ("bytes=0-0,", "a", "bytes 0-0/26"),
        ("BYTES=1-1", "b", "bytes 1-1/26"),
    ];
    for (value, body, content_range) in rows {
        let reply = range(&server, value);
        if value.ends_with(',') {
            // A range-set with an empty member is not a valid one to nginx.
            assert_eq!(reply.status, 416, "{value}");
            continue;
        }
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (206, body),
            "{value}"
        );
        assert_eq!(reply.field("Content-Range"), content_range, "{value}");
        assert_eq!(
            reply.field("Content-Length"),
            body.len().to_string(),
            "{value}"
        );
        assert!(!reply.has("Accept-Ranges"), "{value}");
    }
}

#[test]
fn an_unsatisfiable_range_is_416_with_the_length() {
    let server = alphabet("");
    for value in [
        "bytes=26-",
        "bytes=100-200",
        "bytes=-0",
        "bytes=5-2",
        "bytes=a-b",
        "bytes=1",
        "bytes=--1",
        "bytes=0-1,x",
    ] {
        let reply = range(&server, value);
        assert_eq!(reply.status, 416, "{value}");
        assert_eq!(reply.field("Content-Range"), "bytes */26", "{value}");
    }
}

#[test]
fn another_unit_is_ignored() {
    let server = alphabet("");
    for value in ["lines=0-1", "bytes", "bytes=", "bytes 0-1", "0-1", ""] {
        assert_eq!(range(&server, value).status, 200, "{value}");
    }
}

#[test]
fn huge_numbers_do_not_overflow() {
    let server = alphabet("");
    for value in [
        "bytes=99999999999999999999-",
        "bytes=0-99999999999999999999",
        "bytes=-99999999999999999999",
    ] {
        assert_eq!(range(&server, value).status, 416, "{value}");
    }
    assert_eq!(
        range(&server, "bytes=0-9223372036854775800").text().len(),
        26
    );
}

#[test]
fn several_ranges_are_a_multipart_body() {
    let server = alphabet("types { } default_type text/x;");
    let reply = range(&server, "bytes=0-1,24-,-1").expect(206);
    let kind = reply.field("Content-Type").to_owned();
    let boundary = kind
        .strip_prefix("multipart/byteranges; boundary=")
        .expect("a boundary is named");
    let part = |content_range: &str, body: &str| {
        format!(
            "\r\n--{boundary}\r\nContent-Type: text/x\r\nContent-Range: bytes {content_range}/26\r\n\r\n{body}"
        )
    };
    let expected = part("0-1", "ab")
        + &part("24-25", "yz")
        + &part("25-25", "z")
        + &format!("\r\n--{boundary}--\r\n");
    assert_eq!(reply.text(), expected);
    assert_eq!(reply.field("Content-Length"), expected.len().to_string());
    assert!(!reply.has("Content-Range"));
}

#[test]
fn ranges_that_sum_up_to_more_than_the_file_are_ignored() {
    let server = alphabet("");
    let reply = range(&server, "bytes=0-20,0-20");
    assert_eq!((reply.status, reply.body.len()), (200, 26));
}

#[test]
fn unsatisfiable_members_are_left_out() {
    let server = alphabet("");
    let reply = range(&server, "bytes=0-1,50-60").expect(206);
    assert_eq!(
        (reply.text().as_str(), reply.field("Content-Range")),
        ("ab", "bytes 0-1/26")
    );
}

#[test]
fn max_ranges_bounds_the_number() {
    let server = alphabet("max_ranges 1; location /zero { alias %%DIR%%/html/a; max_ranges 0; }");
    assert_eq!(range(&server, "bytes=0-1").status, 206);
    assert_eq!(range(&server, "bytes=0-1,3-4").status, 200);
    let reply = server.get_with("/zero", &["Range: bytes=0-1"]).expect(200);
    assert!(!reply.has("Accept-Ranges"));
}

#[test]
fn if_range_takes_an_etag_or_a_date() {
    let server = alphabet("");
    let whole = server.get("/a");
    let (etag, modified) = (whole.field("ETag"), whole.field("Last-Modified"));
    let rows = [
        (etag.to_owned(), 206),
        (modified.to_owned(), 206),
        ("\"x\"".to_owned(), 200),
        (format!("W/{etag}"), 200),
        ("Sun, 06 Nov 1994 08:49:37 GMT".to_owned(), 200),
        ("Sat, 01 Jan 2095 00:00:00 GMT".to_owned(), 200),
        ("junk".to_owned(), 200),
    ];
    for (value, status) in rows {
        let reply = server.get_with("/a", &["Range: bytes=0-1", &format!("If-Range: {value}")]);
        assert_eq!(reply.status, status, "{value}");
    }
}

#[test]
fn head_with_a_range_has_its_fields() {
    let reply = alphabet("").request("HEAD", "/a", &["Range: bytes=0-1"]);
    assert_eq!((reply.status, reply.field("Content-Length")), (206, "2"));
}

#[test]
fn an_empty_file_has_no_ranges() {
    let server = alphabet("");
    assert_eq!(server.get_with("/empty", &["Range: bytes=0-0"]).status, 200);
    assert_eq!(server.get_with("/empty", &["Range: bytes=-1"]).status, 200);
}

#[test]
fn ranges_cross_buffers_and_sendfile_alike() {
    let large: Vec<u8> = (0..1_000_000_u32).map(|i| (i % 251) as u8).collect();
    let conf = "server { listen 127.0.0.1:%%PORT%%; sendfile off; output_buffers 1 32k;
        location /s/ { alias %%DIR%%/html/; sendfile on; sendfile_max_chunk 10k; } }";
    let server = http(conf).file("html/large", &large).start();
    for prefix in ["", "/s"] {
        for (from, to) in [
            (0_usize, 0_usize),
            (32_767, 32_768),
            (1, 999_998),
            (999_999, 999_999),
            (500_000, 700_000),
        ] {
            let reply = server.get_with(
                &format!("{prefix}/large"),
                &[&format!("Range: bytes={from}-{to}")],
            );
            assert!(
                reply.expect(206).body == large[from..=to],
                "{prefix} {from}-{to}"
            );
        }
        let reply = server
            .get_with(
                &format!("{prefix}/large"),
                &["Range: bytes=10-20,900000-900010"],
            )
            .expect(206);
        let at = |part: &[u8]| reply.body.windows(part.len()).any(|window| window == part);
        assert!(at(&large[10..=20]) && at(&large[900_000..=900_010]));
    }
}

#[test]
fn a_slow_client_gets_all_parts() {
    let large: Vec<u8> = (0..8_000_000_u32)
        .map(|i| (i % 251) as u8 ^ (i >> 12) as u8)
        .collect();
    let conf = "server { listen 127.0.0.1:%%PORT%% sndbuf=32k; sendfile_max_chunk 64k; }";
    let server = http(conf).file("html/large", &large).start();
    // So much does not fit into the socket's buffers: the server has to wait for the client again and again.
    let range = "Range: bytes=0-2999999,4000000-6999999";
    let reply = server.get_with("/large", &[range]).expect(206);
    assert!(!reply.cut && reply.body.len() > 6_000_000);
    let has = |part: &[u8]| reply.body.windows(part.len()).any(|window| window == part);
    assert!(has(&large[2_999_000..3_000_000]) && has(&large[6_999_000..7_000_000]));
}

#[test]
fn a_range_that_cannot_be_had_says_what_the_content_varies_by() {
    let conf = "gzip on; gzip_vary on; gzip_types text/plain; default_type text/plain;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { }
        location /page/ { error_page 416 /small; }
        location /other/ { gzip off; }
    }";
    let server = http(conf)
        .file("html/f", "x".repeat(100))
        .file("html/page/f", "x".repeat(100))
        .file("html/other/f", "x".repeat(100))
        .file("html/small", "small")
        .start();
    for (path, vary) in [("/f", "Accept-Encoding"), ("/page/f", ""), ("/other/f", "")] {
        let reply = server.get_with(path, &["Range: bytes=200-"]).expect(416);
        assert_eq!(reply.field("Vary"), vary, "{path}");
    }
}

#[test]
fn a_range_that_cannot_be_had_has_added_fields_once() {
    if skip_on_oracle("nginx adds its fields twice: docs/compat.md, Responses and logs") {
        return;
    }
    let conf = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
    add_header X-Some some;
    add_header X-Always always always;
    server { listen 127.0.0.1:%%PORT%%; location /f { }
             location / { proxy_cache z; proxy_cache_valid 1m; proxy_pass http://127.0.0.1:%%PORT1%%; }
             location /page/ { error_page 416 /f; alias html/; } }
    server { listen 127.0.0.1:%%PORT1%%; add_header X-Up up; }";
    let server = http(conf)
        .file("html/f", "x".repeat(100))
        .file("html/g", "x".repeat(100))
        .start();
    for path in ["/f", "/g", "/g", "/page/f"] {
        let reply = server.get_with(path, &["Range: bytes=200-"]).expect(416);
        assert_eq!(reply.all("X-Always"), ["always"], "{path}");
    }
    assert_eq!(
        server.get_with("/g", &["Range: bytes=200-"]).field("X-Up"),
        "up"
    );
}

#[test]
fn another_word_about_ranges_stays_beside_the_servers() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; add_header Accept-Ranges none; }";
    let server = http(conf).file("html/a", "content").start();
    assert_eq!(server.get("/a").all("Accept-Ranges"), ["none", "bytes"]);
}
