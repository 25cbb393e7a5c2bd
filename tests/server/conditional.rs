//! Conditional requests (RFC 9110 section 13): ETag, dates, and which of them wins.

use weir_tests::{Server, http, skip_on_oracle};

/// A server with one file `/a`, its `Last-Modified` and its `ETag`.
fn one_file(directives: &str) -> (Server, String, String) {
    let conf = format!("server {{ listen 127.0.0.1:%%PORT%%; {directives} }}");
    let server = http(&conf).file("html/a", "hello").start();
    let reply = server.get("/a").expect(200);
    let (modified, etag) = (
        reply.field("Last-Modified").to_owned(),
        reply.field("ETag").to_owned(),
    );
    (server, modified, etag)
}

const OLD: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const FUTURE: &str = "Sat, 01 Jan 2095 00:00:00 GMT";

#[test]
fn if_none_match_compares_weakly() {
    let (server, _, etag) = one_file("");
    let rows = [
        (etag.clone(), 304),
        (format!("W/{etag}"), 304),
        (format!("\"x\", {etag}"), 304),
        (format!("\"x\",{etag},\"y\""), 304),
        ("*".to_owned(), 304),
        ("\"x\"".to_owned(), 200),
        ("\"\"".to_owned(), 200),
        ("junk".to_owned(), 200),
        (etag.trim_matches('"').to_owned(), 200),
    ];
    for (value, status) in rows {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-None-Match: {value}")])
                .status,
            status,
            "{value}"
        );
    }
}

#[test]
fn a_304_has_validators_and_no_body() {
    let (server, modified, etag) = one_file("expires 1h; add_header X-Also yes;");
    let mut connection = server.connect();
    connection.request("GET", "/a", &[&format!("If-None-Match: {etag}")]);
    let reply = connection.reply().expect(304);
    assert_eq!(
        (reply.field("ETag"), reply.field("Last-Modified")),
        (etag.as_str(), modified.as_str())
    );
    assert_eq!(reply.field("Cache-Control"), "max-age=3600");
    assert_eq!(reply.field("X-Also"), "yes");
    assert!(!reply.has("Content-Length") && !reply.has("Content-Type"));
    assert_eq!(
        connection.get("/a").text(),
        "hello",
        "the connection goes on"
    );
}

#[test]
fn if_match_compares_strongly() {
    let (server, _, etag) = one_file("");
    let rows = [
        (etag.clone(), 200),
        (format!("\"x\", {etag}"), 200),
        ("*".to_owned(), 200),
        (format!("W/{etag}"), 412),
        ("\"x\"".to_owned(), 412),
    ];
    for (value, status) in rows {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-Match: {value}")])
                .status,
            status,
            "{value}"
        );
    }
}

#[test]
fn if_modified_since_is_exact_by_default() {
    let (server, modified, _) = one_file("");
    for (value, status) in [
        (modified.as_str(), 304),
        (OLD, 200),
        (FUTURE, 200),
        ("junk", 200),
        ("", 200),
    ] {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-Modified-Since: {value}")])
                .status,
            status,
            "{value}"
        );
    }
}

#[test]
fn if_modified_since_before_takes_any_later_date() {
    let (server, modified, _) = one_file("if_modified_since before;");
    for (value, status) in [(modified.as_str(), 304), (OLD, 200), (FUTURE, 304)] {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-Modified-Since: {value}")])
                .status,
            status,
            "{value}"
        );
    }
    let (server, modified, _) = one_file("if_modified_since off;");
    assert_eq!(
        server
            .get_with("/a", &[&format!("If-Modified-Since: {modified}")])
            .status,
        200
    );
}

#[test]
fn the_three_date_forms_mean_the_same() {
    let (server, modified, _) = one_file("if_modified_since before;");
    assert!(modified.ends_with("GMT"));
    let forms = [
        "Sat, 01 Jan 2095 00:00:00 GMT",
        "Saturday, 01-Jan-95 00:00:00 GMT",
        "Sat Jan  1 00:00:00 2095",
    ];
    // The two-digit year of the second form is 1995 to nginx, before any file here.
    for (form, status) in forms.iter().zip([304, 200, 304]) {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-Modified-Since: {form}")])
                .status,
            status,
            "{form}"
        );
    }
}

#[test]
fn if_unmodified_since_refuses_a_changed_file() {
    let (server, modified, _) = one_file("");
    for (value, status) in [(modified.as_str(), 200), (FUTURE, 200), (OLD, 412)] {
        assert_eq!(
            server
                .get_with("/a", &[&format!("If-Unmodified-Since: {value}")])
                .status,
            status,
            "{value}"
        );
    }
}

#[test]
fn if_none_match_and_if_modified_since_must_both_agree() {
    let (server, modified, etag) = one_file("");
    let both = |tag: &str, date: &str| {
        server
            .get_with(
                "/a",
                &[
                    &format!("If-None-Match: {tag}"),
                    &format!("If-Modified-Since: {date}"),
                ],
            )
            .status
    };
    assert_eq!(both(&etag, &modified), 304);
    assert_eq!(both("\"x\"", &modified), 200);
    assert_eq!(both("\"x\"", OLD), 200);
}

#[test]
fn etag_off_leaves_the_date_alone() {
    let (server, modified, etag) = one_file("etag off;");
    assert_eq!(etag, "");
    assert_eq!(
        server
            .get_with("/a", &[&format!("If-Modified-Since: {modified}")])
            .status,
        304
    );
    assert_eq!(server.get_with("/a", &["If-None-Match: *"]).status, 304);
}

#[test]
fn conditions_work_for_head_too() {
    let (server, _, etag) = one_file("");
    assert_eq!(
        server
            .request("HEAD", "/a", &[&format!("If-None-Match: {etag}")])
            .status,
        304
    );
    assert_eq!(
        server.request("HEAD", "/a", &["If-Match: \"x\""]).status,
        412
    );
}

#[test]
fn conditions_do_not_touch_other_statuses() {
    let (server, _, _) = one_file("location /r { return 200 text; } location /n { return 404; }");
    assert_eq!(server.get_with("/none", &["If-None-Match: *"]).status, 404);
    assert_eq!(server.get_with("/n", &["If-Match: \"x\""]).status, 404);
    assert_eq!(
        server
            .get_with("/r", &[&format!("If-Modified-Since: {OLD}")])
            .status,
        200
    );
}

#[test]
fn a_failed_condition_says_nothing_of_the_content() {
    let conf = "
    server { listen 127.0.0.1:%%PORT%%; add_header X-Always always always;
             location / { proxy_cache z; proxy_cache_valid 1m; proxy_pass http://127.0.0.1:%%PORT1%%; } }
    proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
    server { listen 127.0.0.1:%%PORT1%%; add_header X-Up up; location / { } }";
    let server = http(conf).file("html/f", "text").start();
    assert_eq!(server.get("/f").expect(200).field("X-Up"), "up");
    let reply = server.get_with("/f", &["If-Match: \"other\""]).expect(412);
    assert_eq!(
        (reply.all("X-Up"), reply.all("X-Always")),
        (vec![], vec!["always"])
    );
}

#[test]
fn what_is_made_here_has_conditions_too() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /text { return 200 text; }
        location /status { stub_status; }
        location /folder/ { autoindex on; }
        location /error { error_page 404 =200 /text; return 404; }
        location /created { return 201 text; }
        location /not-found { return 404 text; }
    }";
    let server = http(conf).folder("html/folder").start();
    let ask = |path: &str, line: &str| server.get_with(path, &[line]).status;
    for path in ["/text", "/status", "/folder/", "/error"] {
        assert_eq!(ask(path, "If-None-Match: *"), 304, "{path}");
        assert_eq!(ask(path, "If-None-Match: \"x\""), 200, "{path}");
        assert_eq!(ask(path, "If-Match: \"x\""), 412, "{path}");
        assert_eq!(ask(path, "If-Match: *"), 200, "{path}");
        assert_eq!(
            ask(path, &format!("If-Unmodified-Since: {FUTURE}")),
            412,
            "{path}"
        );
        assert_eq!(
            ask(path, &format!("If-Modified-Since: {FUTURE}")),
            200,
            "{path}"
        );
    }
    for line in ["If-None-Match: *", "If-Match: \"x\""] {
        assert_eq!(ask("/created", line), 201);
        assert_eq!(ask("/not-found", line), 404);
    }
}

#[test]
fn conditions_of_what_an_upstream_answers_are_its_own_business() {
    let conf = "
        proxy_cache_path cache keys_zone=zone:1m;
        server {
            listen 127.0.0.1:%%PORT1%%;
            if_modified_since off;
            location / { add_header X-Seen \"$http_if_none_match$http_if_match\"; root %%DIR%%/html; try_files /a =404; etag off; }
        }
        server {
            listen 127.0.0.1:%%PORT%%;
            location / { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_set_header If-None-Match ''; proxy_set_header If-Match ''; }
            location /stored { proxy_pass http://127.0.0.1:%%PORT1%%; proxy_cache zone; proxy_cache_valid 1h; }
        }";
    let server = http(conf).file("html/a", "hello").start();
    let ask = |path: &str, line: &str| server.get_with(path, &[line]).status;
    assert_eq!(ask("/passed", "If-None-Match: *"), 200);
    assert_eq!(ask("/passed", "If-Match: \"x\""), 200);
    for _ in 0..2 {
        assert_eq!(ask("/stored", "If-None-Match: *"), 304);
        assert_eq!(ask("/stored", "If-Match: \"x\""), 412);
    }
}

#[test]
fn a_304_is_for_those_who_read() {
    if skip_on_oracle("nginx answers a POST with 304, against RFC 9110 section 13.1.2") {
        return;
    }
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 200 text; }").start();
    let ask = |method: &str, line: &str| server.request(method, "/", &[line]).status;
    assert_eq!(ask("HEAD", "If-None-Match: *"), 304);
    assert_eq!(ask("POST", "If-None-Match: *"), 412);
    assert_eq!(ask("POST", "If-None-Match: \"x\""), 200);
    assert_eq!(ask("POST", "If-Match: \"x\""), 412);
    assert_eq!(ask("POST", &format!("If-Modified-Since: {FUTURE}")), 200);
    assert_eq!(ask("OPTIONS", "If-None-Match: *"), 200);
    assert_eq!(ask("OPTIONS", "If-Match: \"x\""), 200);
}

#[test]
fn an_error_page_of_a_412_may_be_refused_itself() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        add_header X-Also yes always;
        error_page 412 =200 /a;
        location /many { recursive_error_pages on; }
    }";
    let server = http(conf)
        .file("html/a", "hello")
        .file("html/many", "hello")
        .start();
    for path in ["/a", "/many"] {
        let reply = server.get_with(path, &["If-Match: \"x\""]);
        assert_eq!(reply.status, 412, "{path}");
        assert_eq!(reply.field("X-Also"), "yes", "{path}");
    }
}

/// The page of a 412 has nothing of the response that it replaces.
#[test]
fn a_refused_response_does_not_leave_its_charset_to_the_page() {
    let site = http(
        "server { listen 127.0.0.1:%%PORT%%; location / { proxy_pass http://127.0.0.1:%%PORT1%%; }
            location /inside { internal; } }
         server { listen 127.0.0.1:%%PORT1%%; default_type 'text/plain; charset=utf-8';
            location / { add_header X-Accel-Redirect /inside; return 200; } }",
    );
    let server = site.file("html/inside", "text").start();
    let reply = server.get("/").expect(200);
    assert_eq!(reply.field("Content-Type"), "text/plain; charset=utf-8");
    let reply = server.get_with("/", &[&format!("If-Unmodified-Since: {OLD}")]);
    assert_eq!(
        (reply.status, reply.field("Content-Type")),
        (412, "text/html")
    );
}
