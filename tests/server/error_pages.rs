//! `error_page` in all its forms, the built-in pages, `recursive_error_pages`, `post_action`.

use weir_tests::{http, is_oracle};

#[test]
fn the_built_in_page_names_status_and_server() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    let reply = server.get("/none").expect(404);
    assert_eq!(reply.field("Content-Type"), "text/html");
    assert!(
        reply.text().contains("<h1>404 Not Found</h1>"),
        "{}",
        reply.text()
    );
    let name = reply.field("Server").to_owned();
    assert!(
        name.starts_with(if is_oracle() { "nginx/" } else { "weir/" }),
        "{name}"
    );
    assert!(reply.text().contains(&name), "{}", reply.text());
}

#[test]
fn server_tokens_off_hides_the_version() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; server_tokens off; }").start();
    let reply = server.get("/none").expect(404);
    let name = reply.field("Server");
    assert!(!name.contains('/') && !name.is_empty(), "{name}");
    assert!(
        !reply.text().contains(&format!("{name}/")),
        "{}",
        reply.text()
    );
}

#[test]
fn old_browsers_get_padding_unless_switched_off() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location /off { msie_padding off; return 404; } }",
    )
    .start();
    let msie = "User-Agent: Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1)";
    let padded = server.get_with("/on", &[msie]).body.len();
    assert!(padded > server.get("/on").body.len());
    assert_eq!(
        server.get_with("/off", &[msie]).body.len(),
        server.get("/off").body.len()
    );
}

#[test]
fn a_uri_keeps_the_status_and_an_equals_sign_changes_it() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        error_page 404 /404.html;
        error_page 500 502 /50x.html;
        location /keep { }
        location /to200 { error_page 404 =200 /404.html; }
        location /take { error_page 404 = /handler; }
        location /handler { return 201 \"handled $uri\"; }
        location /e500 { return 500; }
        location /e502 { return 502; }
        location /e503 { return 503; }
        location /missing { error_page 404 /no-such-page; }
    }";
    let server = http(conf)
        .file("html/404.html", "own 404")
        .file("html/50x.html", "own 50x")
        .start();
    server.answers(&[
        ("/keep", 404, "own 404"),
        ("/to200", 200, "own 404"),
        ("/take", 201, "handled /handler"),
        ("/e500", 500, "own 50x"),
        ("/e502", 502, "own 50x"),
        ("/e503", 503, ""),
        ("/missing", 404, ""),
    ]);
}

#[test]
fn a_redirect_a_named_location_and_a_variable() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /redirect { error_page 403 http://example.com/forbidden; deny all; }
        location /moved { error_page 404 =301 http://example.com/moved$uri; }
        location /named { error_page 404 = @fallback; }
        location /named402 { error_page 404 =402 @fallback; }
        location @fallback { return 200 \"fallback $uri $args\"; }
        location /variable { error_page 404 =200 /page/$arg_p; }
        location /page/ { return 200 \"page $uri\"; }
    }";
    http(conf).start().answers(&[
        ("/redirect", 302, "http://example.com/forbidden"),
        ("/moved", 301, "http://example.com/moved/moved"),
        ("/named?a=b", 200, "fallback /named a=b"),
        ("/variable?p=x", 200, "page /page/x"),
    ]);
}

#[test]
fn the_method_becomes_get_but_not_for_a_named_location() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        error_page 405 =200 /page;
        location /page { return 200 \"$request_method\"; }
        location /named { error_page 405 =200 @named; }
        location @named { return 200 \"$request_method\"; }
    }";
    let server = http(conf).file("html/a", "").file("html/named", "").start();
    assert_eq!(
        server.request("POST", "/a", &["Content-Length: 0"]).text(),
        "GET"
    );
    assert_eq!(
        server
            .request("POST", "/named", &["Content-Length: 0"])
            .text(),
        "POST"
    );
}

#[test]
fn recursive_error_pages_goes_on_only_when_asked() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /once { error_page 404 /deny; }
        location /deny { error_page 403 /page; deny all; }
        location /more { recursive_error_pages on; error_page 404 /deny2; }
        location /deny2 { recursive_error_pages on; error_page 403 /page; deny all; }
        location /page { return 200 page; }
        location /loop { recursive_error_pages on; error_page 404 /loop; }
    }";
    let server = http(conf).start();
    server.answers(&[
        ("/once", 403, ""),
        ("/more", 403, "page"),
        ("/loop", 500, ""),
    ]);
    server.line("error.log", "rewrite or internal redirection cycle");
}

#[test]
fn error_page_is_inherited_as_a_whole() {
    let conf = "
        error_page 404 /http.html;
        server {
            listen 127.0.0.1:%%PORT%%;
            location /own { error_page 403 /x; }
            location /inherit { }
        }";
    let server = http(conf).file("html/http.html", "http").start();
    assert_eq!(server.get("/inherit").text(), "http");
    assert!(server.get("/own").text().contains("<h1>404 Not Found</h1>"));
}

#[test]
fn a_bad_request_may_have_an_error_page_too() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        error_page 400 414 /bad;
        error_page 494 =431 /long;
        location /bad { return 200 \"bad $status\"; }
        location /long { return 200 long; }
        large_client_header_buffers 2 1k;
    }";
    let server = http(conf).start();
    let reply = server.raw("GET /\u{1}bad HTTP/1.1\r\nHost: a b\r\n\r\n");
    assert_eq!((reply.status, reply.text().as_str()), (400, "bad 400"));
    let reply = server.raw(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "x".repeat(3000)
    ));
    assert_eq!((reply.status, reply.text().as_str()), (431, "long"));
}

#[test]
fn error_page_takes_codes_from_300_to_599_but_499() {
    let text = |code: &str| format!("events {{ }}\nhttp {{\n    error_page {code} /x;\n}}\n");
    for (code, message) in [
        ("499", "invalid value \"499\""),
        ("200", "value \"200\" must be between 300 and 599"),
        ("600", "value \"600\" must be between 300 and 599"),
    ] {
        let finished = weir_tests::whole(&text(code)).test();
        assert_eq!(
            finished.first_line(),
            format!("weir: [emerg] {message} in %%DIR%%/nginx.conf:3")
        );
    }
}

#[test]
fn post_action_runs_after_the_answer() {
    let conf = "
        log_format post '$uri $status';
        access_log access.log post;
        server {
            listen 127.0.0.1:%%PORT%%;
            location /a { post_action /after; return 200 answer; }
            location /after { internal; return 204; }
        }";
    let server = http(conf).start();
    assert_eq!(server.get("/a").text(), "answer");
    let lines = server.lines("access.log", 1);
    assert!(lines[0].starts_with("/after 20"), "{lines:?}");
}

#[test]
fn internal_locations_answer_404_from_outside() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /private/ { internal; }
        location /via { rewrite ^ /private/a last; }
        error_page 403 /private/a;
        location /denied { deny all; }
    }";
    let server = http(conf).file("html/private/a", "inside").start();
    server.answers(&[
        ("/private/a", 404, ""),
        ("/via", 200, "inside"),
        ("/denied", 403, "inside"),
    ]);
}

#[test]
fn the_date_of_a_file_is_not_that_of_an_error() {
    let conf = "server {
        listen 127.0.0.1:%%PORT1%%;
        add_header Last-Modified 'Sun, 06 Nov 1994 08:49:37 GMT' always;
        return 404 here;
    }
    server {
        listen 127.0.0.1:%%PORT%%;
        error_page 403 404 /404.html;
        error_page 405 /e.gif;
        error_page 500 =200 /404.html;
        error_page 501 =206 /404.html;
        error_page 502 =201 /404.html;
        error_page 301 /404.html;
        location = /e.gif { empty_gif; }
        location /denied { deny all; }
        location /not-allowed { return 405; }
        location /to200 { return 500; }
        location /to206 { return 501; }
        location /to201 { return 502; }
        location /redirect { return 301 /x; }
        location /proxied { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /intercepted { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_intercept_errors on; }
        location /said { add_header Last-Modified 'Sun, 06 Nov 1994 08:49:37 GMT' always; return 404 x; }
    }";
    let server = http(conf).file("html/404.html", "not here").start();
    for (path, status, is_dated) in [
        ("/none", 404, false),
        ("/denied", 403, false),
        ("/not-allowed", 405, false),
        ("/to200", 200, true),
        ("/to206", 206, true),
        ("/to201", 201, false),
        ("/redirect", 301, false),
        ("/proxied", 404, true),
        ("/intercepted", 404, false),
        ("/said", 404, true),
        ("/404.html", 200, true),
    ] {
        for method in ["GET", "HEAD"] {
            let reply = server.request(method, path, &[]).expect(status);
            assert_eq!(reply.has("Last-Modified"), is_dated, "{method} {path}");
        }
    }
    assert!(server.get("/none").has("ETag"), "the rest of it stays");
}

#[test]
fn an_error_page_knows_the_path_of_a_request_that_was_refused_by_its_head() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        large_client_header_buffers 2 1k;
        error_page 400 405 494 501 =200 $uri;
        location = /page { return 200 '$uri $args $request_method'; }
    }";
    let server = http(conf).start();
    let ask = |line: &str, fields: &str| {
        let reply = server.raw(format!("{line}\r\n{fields}Connection: close\r\n\r\n"));
        (reply.status, reply.text())
    };
    let page = (200, "/page  GET".to_owned());
    assert_eq!(ask("TRACE /page?a=b HTTP/1.1", "Host: a\r\n"), page);
    assert_eq!(ask("GET /page HTTP/1.1", ""), page, "without Host");
    assert_eq!(ask("GET /page HTTP/1.1", "Host: a\r\nHost: b\r\n"), page);
    assert_eq!(ask("GET /page HTTP/1.1", "Host: a b\r\n"), page);
    let coded = "Host: a\r\nTransfer-Encoding: x\r\n";
    assert_eq!(ask("GET /page HTTP/1.1", coded), page);
    assert_eq!(
        ask("GET /page HTTP/1.1", "Host: a\r\nContent-Length: z\r\n"),
        page
    );
    assert_eq!(ask("GET /page HTTP/1.1", "Host: a\r\nno field\r\n"), page);
    let long = format!("Host: a\r\nX: {}\r\n", "x".repeat(3_000));
    assert_eq!(ask("GET /page HTTP/1.1", &long), page);
    assert_eq!(ask("TRACE /none HTTP/1.1", "Host: a\r\n").0, 404);
    // What is no path is none.
    assert_eq!(ask("GET /%zz HTTP/1.1", "Host: a\r\n").0, 302);
}

#[test]
fn content_that_is_too_large_has_its_error_page() {
    let conf = "server { listen 127.0.0.1:%%PORT1%%; return 200 'length $content_length'; }
    server {
        listen 127.0.0.1:%%PORT%%;
        client_max_body_size 3;
        error_page 413 /413.html;
        location /to200 { error_page 413 =200 /413.html; }
        location /named { error_page 413 @proxied; }
        location /read { proxy_pass http://127.0.0.1:%%PORT1%%; error_page 413 /413.html; }
        location /read/named { proxy_pass http://127.0.0.1:%%PORT1%%; error_page 413 @proxied; }
        location @proxied { proxy_pass http://127.0.0.1:%%PORT1%%; }
    }";
    let server = http(conf).file("html/413.html", "too large").start();
    let ask = |path: &str, content: &str| {
        let reply = server.raw(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{content}"
        ));
        (reply.status, reply.text())
    };
    let long = "Content-Length: 10\r\n\r\n0123456789";
    let chunked = "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n";
    assert_eq!(ask("/x", long), (413, "too large".into()));
    assert_eq!(ask("/to200", long), (200, "too large".into()));
    assert_eq!(ask("/read", long), (413, "too large".into()));
    assert_eq!(ask("/read", chunked), (413, "too large".into()));
    assert_eq!(ask("/named", long), (413, "length 0".into()));
    if !weir_tests::is_oracle() {
        // nginx announces the content that it has thrown away.
        assert_eq!(ask("/read/named", chunked), (413, "length 0".into()));
        // The client need not send what nobody wants.
        let unsent = "Content-Length: 10\r\n\r\n";
        assert_eq!(ask("/named", unsent), (413, "length 0".into()));
        assert_eq!(ask("/x", unsent), (413, "too large".into()));
    }
}

#[test]
fn post_action_does_not_wait_for_content_that_nobody_read() {
    let conf = "
        log_format post '$request_method $uri $status $content_length';
        server {
            listen 127.0.0.1:%%PORT1%%;
            access_log origin.log post;
            location / { proxy_pass http://127.0.0.1:%%PORT2%%; }
        }
        server { listen 127.0.0.1:%%PORT2%%; return 204; }
        server {
            listen 127.0.0.1:%%PORT%%;
            access_log access.log post;
            location = /e.gif { empty_gif; post_action @told; }
            location @told { proxy_pass http://127.0.0.1:%%PORT1%%; }
        }";
    let server = http(conf).start();
    let head = "POST /e.gif HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n";
    let mut connection = server.connect();
    connection.send(format!("{head}hello"));
    connection.reply().expect(405);
    // The connection goes on, and the origin has heard of it, without content.
    connection.send(format!("{head}hello"));
    connection.reply().expect(405);
    let lines = server.lines("access.log", 2);
    assert!(
        lines.iter().all(|line| line.starts_with("POST /e.gif 405")),
        "{lines:?}"
    );
    let lines = server.lines("origin.log", 2);
    assert!(
        lines.iter().all(|line| line == "POST /e.gif 204 0"),
        "{lines:?}"
    );
    if !weir_tests::is_oracle() {
        // nginx announces what never comes.
        let mut silent = server.connect();
        silent.send(head);
        silent.reply().expect(405);
        let lines = server.lines("origin.log", 3);
        assert_eq!(lines[2], "POST /e.gif 204 0");
    }
}

#[test]
fn a_target_that_makes_no_sense_is_not_in_request_uri() {
    let conf = "log_format uri '[$request_uri]'; server { listen 127.0.0.1:%%PORT%%; access_log access.log uri;
        error_page 400 = /bad;
        location / { return 200 '$request_uri'; }
        location = /bad { return 301 http://other.example$request_uri; }
    }";
    let server = http(conf).start();
    assert_eq!(server.get("/%7a").text(), "/%7a");
    let reply = server.get("/%zz");
    assert_eq!(reply.field("Location"), "http://other.example");
    assert_eq!(server.lines("access.log", 2), ["[/%7a]", "[-]"]);
}

/// The page of a 500 may be the location whose absence is the 500.
#[test]
fn a_named_location_that_is_not_there_is_tried_a_few_times() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; recursive_error_pages on; error_page 404 500 @none; }",
    )
    .start();
    let reply = server.get("/x").expect(500);
    assert!(reply.text().contains("500 Internal Server Error"));
}

#[test]
fn a_page_that_a_malformed_request_cannot_reach_is_a_500() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; error_page 400 =302 @named; location @named { return 200 x; } }",
    )
    .start();
    let reply = server.get("/..").expect(500);
    assert!(reply.text().contains("500 Internal Server Error"));
}

/// The request has come to its directory once more when the index is refused.
#[test]
fn a_cycle_of_an_index_leaves_the_arguments() {
    let server = http(
        "log_format seen '$status $uri?$args'; access_log access.log seen;
         server { listen 127.0.0.1:%%PORT%%; rewrite ^/a/index.html$ /a/ last; }",
    )
    .file("html/a/index.html", "index")
    .start();
    assert_eq!(server.get("/a/?x=1").status, 500);
    server.line("access.log", "500 /a/?x=1");
}

/// What an application sets for its client does not depend on a file.
#[test]
fn a_missing_file_leaves_the_cookies_of_the_application_that_named_it() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; error_page 404 /404.html;
            location /app {
                add_header Set-Cookie a=b; add_header X-Own c; add_header X-Accel-Redirect /none; return 200;
            }
            location / { proxy_pass http://127.0.0.1:%%PORT%%/app; }
            location = /none { root html; }
            location = /404.html { root html; } }",
    )
    .file("html/404.html", "not here")
    .start();
    let reply = server.get("/").expect(404);
    assert_eq!(reply.text(), "not here");
    assert_eq!(reply.all("Set-Cookie"), ["a=b"]);
    assert!(!reply.has("X-Own"));
}
