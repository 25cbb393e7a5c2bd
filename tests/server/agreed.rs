//! What the differential machine showed: small things of caches, gateways and filters in which both servers are alike.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_tests::{Scripted, Server, http, read_until, send};

/// A server of HTTP/1 that answers each request with this, and says in a field which one it was and by which method it came.
fn behind(answer: &'static str) -> Scripted {
    let count = AtomicUsize::new(0);
    Scripted::start(move |stream, _| {
        loop {
            let head = read_until(stream, b"\r\n\r\n");
            if head.is_empty() {
                return;
            }
            let method = String::from_utf8_lossy(&head).into_owned();
            let method = method.split(' ').next().unwrap_or_default();
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            let (line, rest) = answer.split_once("\r\n").expect("a status line");
            send(
                stream,
                format!("{line}\r\nX-Seen: {number} {method}\r\n{rest}"),
            );
        }
    })
}

/// A cache before a server that answers so. What a client gets of it is told by `X-Seen` and `X-Cache`.
fn cached(origin: &Scripted, directives: &str) -> Server {
    let port = origin.port();
    http(&format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%;
            add_header X-Cache $upstream_cache_status always;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; proxy_cache_valid 1h; {directives} }} }}"
    ))
    .start()
}

#[track_caller]
fn assert_seen(server: &Server, method: &str, target: &str, fields: &[&str], wanted: &str) {
    let reply = server.request(method, target, fields);
    let seen = format!("{} {}", reply.field("X-Seen"), reply.field("X-Cache"));
    assert_eq!(seen, wanted, "{method} {target}");
}

#[test]
fn what_is_not_buffered_is_not_stored() {
    let origin = behind("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    let server = cached(&origin, "proxy_buffering off;");
    assert_seen(&server, "GET", "/", &[], "1 GET MISS");
    assert_seen(&server, "GET", "/", &[], "2 GET MISS");

    let origin = behind("HTTP/1.1 200 OK\r\nX-Accel-Buffering: no\r\nContent-Length: 1\r\n\r\na");
    let server = cached(&origin, "");
    assert_seen(&server, "GET", "/", &[], "1 GET MISS");
    assert_seen(&server, "GET", "/", &[], "2 GET MISS");

    let server = cached(&origin, "proxy_ignore_headers X-Accel-Buffering;");
    assert_seen(&server, "GET", "/", &[], "3 GET MISS");
    assert_seen(&server, "GET", "/", &[], "3 GET HIT");
}

#[test]
fn a_head_past_the_cache_asks_for_get_and_renews_what_is_stored() {
    let origin = behind("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    let server = cached(&origin, "proxy_cache_bypass $http_past;");
    assert_seen(&server, "GET", "/", &[], "1 GET MISS");
    assert_seen(&server, "HEAD", "/", &["Past: 1"], "2 GET BYPASS");
    assert_seen(&server, "GET", "/", &[], "2 GET HIT");

    let server = cached(&origin, "proxy_cache_min_uses 3;");
    assert_seen(&server, "HEAD", "/", &[], "3 GET MISS");

    let server = cached(
        &origin,
        "proxy_cache_convert_head off; proxy_cache_bypass $http_past;",
    );
    assert_seen(&server, "HEAD", "/", &["Past: 1"], "4 HEAD BYPASS");
}

#[test]
fn a_head_that_is_asked_as_such_is_answered_by_what_a_get_stored() {
    let count = AtomicUsize::new(0);
    let application = Scripted::start(move |stream, _| {
        read_until(stream, b",");
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        send(stream, format!("X-Seen: {number}\r\n\r\ncontent"));
    });
    let port = application.port();
    let server = http(&format!(
        "scgi_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%; scgi_cache one; scgi_cache_valid 1h; scgi_cache_key $uri;
            scgi_param A b; location / {{ scgi_pass 127.0.0.1:{port}; }} }}"
    ))
    .start();
    assert_eq!(server.get("/a").field("X-Seen"), "1");
    let head = server.request("HEAD", "/a", &[]);
    assert_eq!((head.field("X-Seen"), head.text().as_str()), ("1", ""));
}

#[test]
fn the_length_of_a_response_counts_what_frames_it() {
    let chunks =
        behind("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
    let application = Scripted::start(|stream, _| {
        read_until(stream, &[1, 5, 0, 1, 0, 0, 0, 0]);
        let mut answer = vec![1, 6, 0, 1, 0, 19, 5, 0];
        answer.extend_from_slice(b"Status: 200\r\n\r\nabcd\0\0\0\0\0");
        answer.extend_from_slice(&[1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        send(stream, answer);
    });
    let (http1, fastcgi) = (chunks.port(), application.port());
    let server = http(&format!(
        "log_format length $upstream_response_length;
         server {{ listen 127.0.0.1:%%PORT%%; access_log length.log length;
            location /chunks {{ proxy_pass http://127.0.0.1:{http1}; proxy_http_version 1.1; }}
            location /unbuffered {{ proxy_pass http://127.0.0.1:{http1}; proxy_http_version 1.1; proxy_buffering off; }}
            location /records {{ fastcgi_pass 127.0.0.1:{fastcgi}; fastcgi_param A b; }} }}"
    ))
    .start();
    assert_eq!(server.get("/chunks").text(), "abc");
    assert_eq!(server.get("/unbuffered").text(), "abc");
    assert_eq!(server.request("HEAD", "/chunks", &[]).text(), "");
    assert_eq!(server.get("/records").text(), "abcd");
    // Content, its chunks; nothing of what a HEAD does not want; content, padding and the record of the end.
    assert_eq!(
        server.lines("length.log", 4),
        ["13", "13", "0", &(4 + 5 + 16).to_string()]
    );
}

#[test]
fn a_piece_is_told_only_where_one_was_asked_for() {
    let origin = behind("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    let port = origin.port();
    let server = http(&format!(
        "log_format piece '$request_method [$slice_range]';
         server {{ listen 127.0.0.1:%%PORT%%; access_log piece.log piece; slice 10;
            location /asks {{ proxy_pass http://127.0.0.1:{port}; proxy_set_header Range $slice_range; }}
            location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    server.get("/asks").expect(200);
    server.request("POST", "/", &["Content-Length: 0"]);
    assert_eq!(
        server.lines("piece.log", 2),
        ["GET [-]", "POST [-]"],
        "what came is no piece, and nobody asked for one"
    );
}

#[test]
fn values_of_memcached_have_ranges() {
    let memcached = Scripted::start(|stream, _| {
        let line = String::from_utf8_lossy(&read_until(stream, b"\r\n")).into_owned();
        let key = line.split(' ').nth(1).unwrap_or_default().trim().to_owned();
        send(stream, format!("VALUE {key} 0 5\r\nhello\r\nEND\r\n"));
    });
    let port = memcached.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%;
            location / {{ set $memcached_key key; memcached_pass 127.0.0.1:{port}; }} }}"
    ))
    .start();
    assert_eq!(server.get("/").expect(200).field("Accept-Ranges"), "bytes");
    let part = server
        .request("GET", "/", &["Range: bytes=1-2"])
        .expect(206);
    assert_eq!(
        (part.field("Content-Range"), part.text().as_str()),
        ("bytes 1-2/5", "el")
    );
}

#[test]
fn content_whose_length_nobody_said_is_not_taken_for_empty() {
    let origin =
        behind("HTTP/1.1 204 No Content\r\nContent-Type: text/html\r\nETag: \"e\"\r\n\r\n");
    let port = origin.port();
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; root html; sub_filter a b;
            location /behind {{ proxy_pass http://127.0.0.1:{port}; }}
            location /joined {{ alias html; add_after_body /after.html; }}
            location / {{ }}
            location /any {{ alias html; sub_filter_types *; }} }}"
    ))
    .file("html/empty.html", "")
    .file("html/page.html", "page")
    .file("html/after.html", "after")
    .start();
    assert!(!server.get("/behind").expect(204).has("ETag"));
    let joined = server.get("/joined/empty.html").expect(200);
    assert_eq!(
        (joined.has("ETag"), joined.text().as_str()),
        (false, "bfter")
    );
    assert!(server.get("/empty.html").expect(200).has("ETag"));
    let date = server.get("/empty.html");
    let since = format!("If-Modified-Since: {}", date.field("Last-Modified"));
    let reply = server.request("GET", "/any/page.html", &[&since]);
    assert_eq!((reply.status, reply.has("ETag")), (304, false));
}

#[test]
fn a_request_that_is_refused_was_passed_to_nobody() {
    let origin = behind("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na");
    let port = origin.port();
    let server = http(&format!(
        "log_format host '$status [$proxy_host]';
         server {{ listen 127.0.0.1:%%PORT%%; access_log host.log host; client_max_body_size 8;
            location / {{ proxy_pass http://127.0.0.1:{port}; limit_except GET {{ deny all; }} }} }}"
    ))
    .start();
    server.get("/").expect(200);
    server.request("DELETE", "/", &[]).expect(403);
    let mut client = server.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ntoo large\r\n0\r\n\r\n");
    client.reply().expect(413);
    assert_eq!(
        server.lines("host.log", 3),
        [
            format!("200 [127.0.0.1:{port}]"),
            "403 [-]".to_owned(),
            format!("413 [127.0.0.1:{port}]")
        ],
        "what is too long was on its way"
    );
}

#[test]
fn a_location_that_refuses_what_another_one_was_told_has_passed_nothing() {
    let origin = behind("HTTP/1.1 200 OK\r\nX-Accel-Redirect: /in/x\r\nContent-Length: 1\r\n\r\na");
    let port = origin.port();
    let server = http(&format!(
        "log_format host '$status [$proxy_host] $upstream_status';
         server {{ listen 127.0.0.1:%%PORT%%; access_log host.log host;
            location / {{ proxy_pass http://127.0.0.1:{port}; }}
            location /in/ {{ proxy_pass http://127.0.0.1:{port}; deny all; }} }}"
    ))
    .start();
    server.get("/").expect(403);
    assert_eq!(server.lines("host.log", 1), ["403 [-] 200"]);
}

#[test]
fn a_subrequest_has_no_length() {
    let server = http(
        "log_format lengths '$uri $request_length';
         server { listen 127.0.0.1:%%PORT%%; access_log lengths.log lengths; root html; ssi on; log_subrequest on; }",
    )
    .file("html/page.html", "<!--# include virtual=\"/part.html\" -->")
    .file("html/part.html", "part")
    .start();
    let request = "GET /page.html HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = server.connect();
    client.send(request);
    assert_eq!(client.reply().text(), "part");
    let whole = format!("/page.html {}", request.len());
    assert_eq!(
        server.lines("lengths.log", 2),
        ["/part.html 0".to_owned(), whole]
    );
}

#[test]
fn a_page_that_includes_itself_stands_52_times() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; root html; ssi on; }")
        .file(
            "html/page.html",
            "<!--# include virtual=\"/page.html\" -->x",
        )
        .start();
    let text = server.get("/page.html").text();
    assert_eq!(text.matches('x').count(), 52);
}

#[test]
fn chunks_of_an_old_server_end_with_its_connection() {
    let connections = std::sync::Arc::new(Mutex::new(0));
    let count = std::sync::Arc::clone(&connections);
    let origin = Scripted::start(move |stream, _| {
        *count.lock().expect("nobody panics") += 1;
        while !read_until(stream, b"\r\n\r\n").is_empty() {
            send(
                stream,
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            );
        }
    });
    let port = origin.port();
    let server = http(&format!(
        "upstream kept {{ server 127.0.0.1:{port}; keepalive 2; }}
         server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1; proxy_set_header Connection '';
            location / {{ proxy_pass http://kept; }} }}"
    ))
    .start();
    for _ in 0..3 {
        assert_eq!(server.get("/").text(), "a");
    }
    assert_eq!(*connections.lock().expect("nobody panics"), 3);
}
