//! headers-more: fields of responses and requests set, replaced and taken away.
//!
//! Stated about nginx too, where its module is installed.

use weir_tests::{Server, Site, http, is_oracle, skip_on_oracle};

/// A site that may use modules of others. `None` where nginx is under test and has not got them.
pub(super) fn with_modules(block: &str, modules: &[&str]) -> Option<Site> {
    let site = http(block);
    if !is_oracle() {
        return Some(site);
    }
    let folder = std::path::Path::new("/usr/lib/nginx/modules");
    let modules: Vec<_> = modules
        .iter()
        .map(|name| folder.join(name).with_extension("so"))
        .collect();
    if !modules.iter().all(|module| module.exists()) {
        println!("skipped on nginx: a module is not installed");
        return None;
    }
    let lines = modules
        .iter()
        .map(|module| format!("load_module {};\n", module.display()));
    Some(site.main(&lines.collect::<String>()))
}

fn site(block: &str) -> Option<Site> {
    with_modules(block, &["ngx_http_headers_more_filter_module"])
}

fn with(locations: &str) -> Option<Server> {
    let block = format!("server {{ listen 127.0.0.1:%%PORT%%; {locations} }}");
    Some(site(&block)?.start())
}

#[test]
fn responses_of_every_status_get_fields() {
    let Some(server) = with(
        "more_set_headers 'X-All: a $uri' 'X-Without' 'X-Empty: ';
         location / { return 200 ok; }
         location /none { return 404; }
         location /gone { return 301 /; }
         location /nothing { return 204; }
         location /broken { proxy_pass http://127.0.0.1:1; }",
    ) else {
        return;
    };
    for target in ["/", "/none", "/gone", "/nothing", "/broken"] {
        let reply = server.get(target);
        assert_eq!(reply.field("X-All"), format!("a {target}"));
        assert!(!reply.has("X-Without") && !reply.has("X-Empty"), "{target}");
    }
}

#[test]
fn the_server_and_its_clock_can_be_silent() {
    let Some(server) = with(
        "location / { more_clear_headers Server Date; return 200 ok; }
         location /named { more_set_headers 'Server: mine'; return 200 ok; }
         location /page { more_clear_headers 'Server'; return 404; }",
    ) else {
        return;
    };
    let reply = server.get("/");
    assert!(!reply.has("Server") && !reply.has("Date"));
    assert_eq!(server.get("/named").all("Server"), ["mine"]);
    assert!(!server.get("/page").has("Server"));
}

#[test]
fn lines_of_blocks_come_on_top_of_outer_ones() {
    let Some(server) = with(
        "more_set_headers 'X-A: server' 'X-B: server';
         location / {
            more_set_headers 'X-B: location';
            if ($arg_if) { more_set_headers 'X-C: if'; }
            location /inner { more_clear_headers X-A; return 200 ok; }
            return 200 ok;
         }
         location /page { more_set_headers 'X-D: lost'; error_page 404 /shown; return 404; }
         location /shown { return 200 shown; }",
    ) else {
        return;
    };
    let seen = |target: &str| {
        let reply = server.get(target);
        ["X-A", "X-B", "X-C", "X-D"].map(|name| reply.field(name).to_owned())
    };
    assert_eq!(seen("/"), ["server", "location", "", ""]);
    assert_eq!(seen("/?if=1"), ["server", "location", "if", ""]);
    assert_eq!(seen("/inner"), ["", "location", "", ""]);
    assert_eq!(seen("/page"), ["server", "server", "", ""]);
}

#[test]
fn statuses_and_types_choose_responses() {
    let Some(site) = site(
        "types { text/html html; text/css css; }
         server { listen 127.0.0.1:%%PORT%%;
            more_set_headers -s '404 500' 'X-Error: yes';
            more_set_headers -t 'text/html text/plain' -s 200 'X-Page: yes';
            more_set_headers -t 'text/html' 'X-Html: yes';
         }",
    ) else {
        return;
    };
    let server = site
        .file("html/a.html", "a")
        .file("html/a.css", "a")
        .start();
    let seen = |target: &str, lines: &[&str]| {
        let reply = server.get_with(target, lines);
        ["X-Error", "X-Page", "X-Html"].map(|name| reply.has(name))
    };
    assert_eq!(seen("/a.html", &[]), [false, true, true]);
    assert_eq!(seen("/a.css", &[]), [false, false, false]);
    assert_eq!(seen("/none", &[]), [true, false, true]);
    // A 304 is about a page too, although it does not name its type.
    let tag = server.get("/a.html").field("ETag").to_owned();
    let known = format!("If-None-Match: {tag}");
    assert_eq!(seen("/a.html", &[&known]), [false, false, true]);
}

#[test]
fn fields_of_upstreams_are_replaced_and_taken_away() {
    let Some(server) = with(
        "location /up { add_header X-A 1; add_header X-A 2; add_header X-Powered-By php; add_header X-Powered-For php;
            add_header Set-Cookie a=b; add_header Cache-Control private; return 200 ok; }
         proxy_pass_header Server;
         proxy_pass_header Date;
         location /set { more_set_headers 'X-A: 3' 'Cache-Control: public'; proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /clear { more_clear_headers 'X-Powered-*' X-A; proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /all { more_clear_headers 'X-*' 'S*' 'D*' 'C*'; proxy_pass http://127.0.0.1:%%PORT%%/up; }",
    ) else {
        return;
    };
    let reply = server.get("/set");
    assert_eq!(reply.all("X-A"), ["3"]);
    assert_eq!(reply.all("Cache-Control"), ["public"]);
    let reply = server.get("/clear");
    assert!(!reply.has("X-A") && !reply.has("X-Powered-By") && !reply.has("X-Powered-For"));
    assert!(reply.has("Set-Cookie") && reply.has("Server"));
    let reply = server.get("/all");
    for name in ["X-A", "Set-Cookie", "Cache-Control", "Server", "Date"] {
        assert!(!reply.has(name), "{name}");
    }
    assert!(reply.has("Content-Type") && reply.has("Content-Length"));
}

#[test]
fn what_describes_the_content_can_be_set() {
    let Some(site) = site(
        "types { text/html html; }
         server { listen 127.0.0.1:%%PORT%%;
            location /type/ { more_set_headers 'Content-Type: text/x; charset=koi8-r'; }
            location /untyped/ { more_clear_headers Content-Type; }
            location /unknown/ { more_clear_headers Last-Modified ETag Accept-Ranges; }
            location /known/ { more_set_headers 'Last-Modified: then' 'ETag: tag'; }
            location /stays/ { more_clear_headers Expires; expires 1d; }
            location /moved { more_set_headers 'Location: /there'; return 302 /here; }
            location /unmoved { more_clear_headers Location; return 302 /here; }
         }",
    ) else {
        return;
    };
    let mut site = site;
    for folder in ["type", "untyped", "unknown", "known", "stays"] {
        site = site.file(&format!("html/{folder}/a.html"), "content");
    }
    let server = site.start();
    let reply = server.get("/type/a.html");
    assert_eq!(reply.all("Content-Type"), ["text/x; charset=koi8-r"]);
    assert!(!server.get("/untyped/a.html").has("Content-Type"));
    let reply = server.get_with("/unknown/a.html", &["Range: bytes=0-1"]);
    assert_eq!((reply.status, reply.text().as_str()), (200, "content"));
    assert!(!reply.has("Last-Modified") && !reply.has("ETag") && !reply.has("Accept-Ranges"));
    let reply = server.get("/known/a.html");
    assert_eq!(
        (reply.field("Last-Modified"), reply.field("ETag")),
        ("then", "tag")
    );
    let reply = server.get("/stays/a.html");
    assert_eq!(
        (reply.has("Expires"), reply.field("Cache-Control")),
        (false, "max-age=86400")
    );
    let address = format!("http://localhost:{}/there", server.port(0));
    assert_eq!(server.get("/moved").field("Location"), address);
    assert!(!server.get("/unmoved").has("Location"));
}

#[test]
fn a_length_that_is_taken_away_makes_chunks() {
    let Some(server) =
        with("location / { more_clear_headers Content-Length; return 200 content; }")
    else {
        return;
    };
    let reply = server.get("/");
    assert_eq!(
        (
            reply.has("Content-Length"),
            reply.field("Transfer-Encoding")
        ),
        (false, "chunked")
    );
    assert_eq!(reply.text(), "content");
}

#[test]
fn a_length_that_is_set_is_that_of_what_is_sent() {
    if skip_on_oracle("nginx sends the rest behind the response: compat.md, Third-party modules") {
        return;
    }
    let Some(server) = with(
        "location /less { more_set_headers 'Content-Length: 3'; return 200 content; }
         location /more { more_set_headers 'Content-Length: 30'; return 200 content; }
         location /none { more_set_headers 'Content-Length: x'; return 200 content; }",
    ) else {
        return;
    };
    let mut connection = server.connect();
    for (target, status, text) in [("/less", 200, "con"), ("/more", 200, "content")] {
        let reply = connection.get(target);
        assert_eq!((reply.status, reply.text().as_str()), (status, text));
        assert_eq!(reply.field("Content-Length"), text.len().to_string());
    }
    assert_eq!(connection.get("/none").status, 500);
}

#[test]
fn fields_are_added_beside_others() {
    if skip_on_oracle("Debian's module is older than -a") {
        return;
    }
    let Some(server) = with(
        "location / { more_set_headers 'X-A: 1'; more_set_headers -a 'X-A: 2' 'X-B: 3'; return 200 ok; }",
    ) else {
        return;
    };
    let reply = server.get("/");
    assert_eq!(
        (reply.all("X-A"), reply.all("X-B")),
        (vec!["1", "2"], vec!["3"])
    );
}

#[test]
fn requests_are_changed_before_they_are_passed_on() {
    let Some(server) = with(
        "location /up { return 200 '$http_host|$http_x_a|$http_x_b|$http_user_agent|$http_cookie'; }
         location /set { more_set_input_headers 'X-A: $arg_a' 'User-Agent: me' 'Cookie: c=d';
            proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /replace { more_set_input_headers -r 'X-A: 1' 'X-C: 1'; add_header X-C \"c$http_x_c\";
            proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /clear { more_clear_input_headers 'X-*' Cookie; proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /json { more_set_input_headers -t application/json 'X-A: json'; proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /host { more_set_input_headers 'Host: Other:81'; proxy_set_header Host $http_host;
            add_header X-Host $host; proxy_pass http://127.0.0.1:%%PORT%%/up; }
         location /early { set $early $http_x_a; more_set_input_headers 'X-A: late'; return 200 $early; }
         location /rewritten { more_set_input_headers 'X-A: kept'; rewrite ^ /up last; }",
    ) else {
        return;
    };
    let host = format!("127.0.0.1:{}", server.port(0));
    let lines = [
        "X-A: a",
        "X-B: b",
        "User-Agent: curl",
        "Cookie: a=b",
        "Content-Type: text/x",
    ];
    let seen = |target: &str| server.get_with(target, &lines).text();
    assert_eq!(seen("/up"), "localhost|a|b|curl|a=b");
    assert_eq!(seen("/set?a=x%20y"), format!("{host}|x%20y|b|me|c=d"));
    assert_eq!(seen("/set"), format!("{host}||b|me|c=d"));
    assert_eq!(seen("/replace"), format!("{host}|1|b|curl|a=b"));
    assert_eq!(server.get_with("/replace", &lines).field("X-C"), "c");
    assert_eq!(seen("/clear"), format!("{host}|||curl|"));
    assert_eq!(seen("/json"), format!("{host}|a|b|curl|a=b"));
    assert_eq!(seen("/host"), "Other:81|a|b|curl|a=b");
    assert_eq!(server.get("/host").field("X-Host"), "other");
    // The rewrites of the location come first.
    assert_eq!(seen("/early"), "a");
    assert_eq!(seen("/rewritten"), "localhost|kept|b|curl|a=b");
    let json = server.get_with("/json", &["Content-Type: application/json"]);
    assert_eq!(json.text(), format!("{host}|json|||"));
}

#[test]
fn a_changed_request_decides_what_is_sent() {
    let Some(site) = site(
        "server { listen 127.0.0.1:%%PORT%%;
            location /part/ { more_set_input_headers 'Range: bytes=1-2'; }
            location /fresh/ { more_clear_input_headers If-None-Match Range; }
            location /last/ { more_set_input_headers 'Connection: close'; }
         }",
    ) else {
        return;
    };
    let server = site
        .file("html/part/a", "content")
        .file("html/fresh/a", "content")
        .file("html/last/a", "content")
        .start();
    assert_eq!(server.get("/part/a").expect(206).text(), "on");
    let tag = server.get("/fresh/a").field("ETag").to_owned();
    let lines = [format!("If-None-Match: {tag}"), "Range: bytes=0-0".into()];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    assert_eq!(
        server.get_with("/fresh/a", &lines).expect(200).text(),
        "content"
    );
    if is_oracle() {
        // Debian's module is older than this.
        return;
    }
    let mut connection = server.connect();
    assert_eq!(connection.get("/last/a").field("Connection"), "close");
    connection.assert_closed();
}

#[test]
fn a_client_that_wants_to_close_is_obeyed_whatever_becomes_of_its_field() {
    let Some(server) = with(
        "location /other { more_set_input_headers 'Connection: b'; }
         location /none { more_clear_input_headers Connection; }",
    ) else {
        return;
    };
    for target in ["/other", "/none"] {
        let mut connection = server.connect();
        connection.request("GET", target, &["Connection: close"]);
        let reply = connection.reply();
        assert_eq!((reply.status, reply.field("Connection")), (404, "close"));
        connection.assert_closed();
    }
}

#[test]
fn lines_that_cannot_be_are_errors() {
    for (line, message) in [
        ("more_set_headers -x 'A: b';", "invalid option name: \"-x\""),
        (
            "more_set_headers 'A: b' -s;",
            "option -s takes an argument.",
        ),
        (
            "more_set_headers -s 40x 'A: b';",
            "invalid digit \"x\" found in the status code list \"40x\"",
        ),
        ("more_clear_headers '*';", "wildcard key too short: *"),
        (
            "more_set_headers ' ';",
            "no key found in the header argument:  ",
        ),
        (
            "more_set_input_headers -s 200 'A: b';",
            "invalid option name: \"-s\"",
        ),
    ] {
        let block = format!("server {{ listen 127.0.0.1:%%PORT%%; {line} }}");
        let Some(site) = site(&block) else {
            return;
        };
        let finished = site.run(&["-t"]);
        assert_eq!(finished.code, 1, "{line}");
        assert!(
            finished.stderr.contains(message),
            "{line}: {}",
            finished.stderr
        );
    }
}

/// A block of `if` is chosen in the midst of the phase: what it says of the request counts, also where the location outside says
/// nothing.
#[test]
fn requests_are_changed_in_blocks_of_if() {
    let Some(site) = site(
        "server {
            listen 127.0.0.1:%%PORT%%;
            location / { if ($arg_a) { more_set_input_headers 'X-A: x'; set $w 1; } rewrite ^ /up last; }
            location /pass { if ($arg_a) { more_set_input_headers 'X-A: x'; } proxy_pass http://127.0.0.1:%%PORT%%/up; }
            location /up { return 200 \"[$http_x_a]\"; }
        }",
    ) else {
        return;
    };
    let server = site.start();
    for (target, seen) in [
        ("/?a=1", "[x]"),
        ("/", "[]"),
        ("/pass?a=1", "[x]"),
        ("/pass", "[]"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), seen, "{target}");
    }
}

#[test]
fn an_offer_of_ranges_that_a_directive_makes_stays_on_a_part() {
    let Some(site) = site(
        "server { listen 127.0.0.1:%%PORT%%; location / { more_set_headers 'Accept-Ranges: lines'; } }",
    ) else {
        return;
    };
    let server = site.file("html/f", "0123456789").start();
    let reply = server.get_with("/f", &["Range: bytes=1-2"]).expect(206);
    assert_eq!(reply.field("Accept-Ranges"), "lines");
}

#[test]
fn lines_behind_a_change_of_the_type_refer_to_the_new_one() {
    let Some(site) = site(
        "server { listen 127.0.0.1:%%PORT%%; more_clear_headers 'Content-Type';
            location / { more_clear_headers -t 'text/plain' 'ETag'; } }",
    ) else {
        return;
    };
    let server = site.file("html/f.txt", "0123456789").start();
    for (condition, status) in [("If-None-Match: x", 200), ("If-None-Match: *", 304)] {
        let reply = server.get_with("/f.txt", &[condition]).expect(status);
        assert!(reply.has("ETag"), "{condition}");
    }
}
