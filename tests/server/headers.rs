//! Fields of the answer: `add_header`, `add_trailer`, `expires`, `charset`.

use weir_tests::http;

#[test]
fn add_header_is_for_good_answers_unless_always() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        add_header X-A \"a $uri\";
        add_header X-B b always;
        add_header X-Empty $arg_none;
        location / { return 200 ok; }
        location /404 { return 404; }
        location /204 { return 204; }
        location /301 { return 301 /x; }
        location /500 { return 500; }
    }";
    let server = http(conf).start();
    for (target, a) in [
        ("/", "a /"),
        ("/204", "a /204"),
        ("/301", "a /301"),
        ("/404", ""),
        ("/500", ""),
    ] {
        let reply = server.get(target);
        assert_eq!(
            (reply.field("X-A"), reply.field("X-B")),
            (a, "b"),
            "{target}"
        );
        assert!(!reply.has("X-Empty"), "a field without a value is not sent");
    }
}

#[test]
fn add_header_is_inherited_as_a_whole() {
    let conf = "
        add_header X-Http 1;
        server {
            listen 127.0.0.1:%%PORT%%;
            location / { return 200; }
            location /own { add_header X-Own 1; return 200; location /own/nested { return 200; } }
        }";
    let server = http(conf).start();
    let seen = |target: &str| {
        let reply = server.get(target);
        (reply.has("X-Http"), reply.has("X-Own"))
    };
    assert_eq!(seen("/"), (true, false));
    assert_eq!(seen("/own"), (false, true));
    assert_eq!(seen("/own/nested"), (false, true));
}

#[test]
fn the_same_field_may_be_added_twice_and_known_ones_replaced() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { add_header X-A 1; add_header X-A 2; return 200; }
        location /file {
            add_header Last-Modified \"Sun, 06 Nov 1994 08:49:37 GMT\"; add_header ETag '\"own\"'; add_header Cache-Control one; add_header Cache-Control two;
        }
        location /drop { alias %%DIR%%/html/file; add_header Last-Modified ''; add_header ETag ''; }
    }";
    let server = http(conf).file("html/file", "x").start();
    assert_eq!(server.get("/").all("X-A"), ["1", "2"]);
    let file = server.get("/file").expect(200);
    assert_eq!(file.all("Last-Modified"), ["Sun, 06 Nov 1994 08:49:37 GMT"]);
    assert_eq!(file.all("ETag"), ["\"own\""]);
    assert_eq!(file.all("Cache-Control").join(", "), "one, two");
    let drop = server.get("/drop").expect(200);
    assert!(
        !drop.has("Last-Modified") && !drop.has("ETag"),
        "{:?}",
        drop.fields
    );
}

#[test]
fn expires_sets_two_fields() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { return 200; }
        location /1h { expires 1h; return 200; }
        location /past { expires -1; return 200; }
        location /epoch { expires epoch; return 200; }
        location /max { expires max; return 200; }
        location /off { expires off; return 200; }
        location /daily { expires @15h30m; return 200; }
        location /modified { expires modified +24h; }
        location /variable { expires $arg_e; return 200; }
        location /404 { expires 1h; return 404; }
    }";
    let server = http(conf).file("html/modified", "x").start();
    let control = |target: &str| server.get(target).field("Cache-Control").to_owned();
    let expires = |target: &str| server.get(target).field("Expires").to_owned();
    assert_eq!((control("/").as_str(), expires("/").as_str()), ("", ""));
    assert_eq!(control("/1h"), "max-age=3600");
    assert!(expires("/1h").ends_with(" GMT"));
    assert_eq!(control("/past"), "no-cache");
    assert!(expires("/past").ends_with(" GMT"));
    assert_eq!(
        (control("/epoch").as_str(), expires("/epoch").as_str()),
        ("no-cache", "Thu, 01 Jan 1970 00:00:01 GMT")
    );
    assert_eq!(
        (control("/max").as_str(), expires("/max").as_str()),
        ("max-age=315360000", "Thu, 31 Dec 2037 23:55:55 GMT")
    );
    assert_eq!(control("/off"), "");
    assert!(expires("/daily").contains(" 15:30:00 "));
    assert!(control("/modified").starts_with("max-age=86"));
    assert_eq!(control("/variable?e=30s"), "max-age=30");
    assert_eq!(control("/variable?e=epoch"), "no-cache");
    assert_eq!(control("/variable"), "");
    assert_eq!(control("/404"), "");
}

#[test]
fn add_trailer_follows_a_chunked_body() {
    let conf = "types { text/html html; } server { listen 127.0.0.1:%%PORT%%; gzip on; gzip_min_length 0; add_trailer X-T \"t $uri\"; }";
    let server = http(conf)
        .file("html/a.html", "some text to be packed and chunked")
        .start();
    let mut connection = server.connect();
    connection.request(
        "GET",
        "/a.html",
        &["Accept-Encoding: gzip", "Connection: close"],
    );
    let text = String::from_utf8_lossy(&connection.rest()).into_owned();
    assert!(text.ends_with("0\r\nX-T: t /a.html\r\n\r\n"), "{text}");
}

#[test]
fn charset_is_added_to_text() {
    let conf = "types { text/html html; text/plain txt; image/png png; } server { listen 127.0.0.1:%%PORT%%; charset utf-8;
        location /off/ { alias %%DIR%%/html/; charset off; }
        location /types/ { alias %%DIR%%/html/; charset koi8-r; charset_types image/png; } }";
    let server = http(conf)
        .file("html/a.html", "x")
        .file("html/a.txt", "x")
        .file("html/a.png", "x")
        .start();
    for (target, expected) in [
        ("/a.html", "text/html; charset=utf-8"),
        ("/a.txt", "text/plain; charset=utf-8"),
        ("/a.png", "image/png"),
        ("/off/a.html", "text/html"),
        ("/types/a.png", "image/png; charset=koi8-r"),
    ] {
        assert_eq!(
            server.get(target).field("Content-Type"),
            expected,
            "{target}"
        );
    }
}

#[test]
fn the_sent_fields_are_variables() {
    let conf = "log_format sent '$sent_http_content_type|$sent_http_content_length|$sent_http_x_a|$sent_http_location|$sent_http_cache_control|$body_bytes_sent';
        server { listen 127.0.0.1:%%PORT%%; access_log access.log sent; location / { add_header X-A yes; expires 1m; return 200 hello; } location /r { return 301 http://x/; } }";
    let server = http(conf).start();
    server.get("/");
    server.lines("access.log", 1);
    server.get("/r");
    let lines = server.lines("access.log", 2);
    assert_eq!(lines[0], "text/plain|5|yes|-|max-age=60|5");
    assert!(
        lines[1].starts_with("text/html|") && lines[1].contains("|http://x/|"),
        "{}",
        lines[1]
    );
}
