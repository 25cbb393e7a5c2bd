//! `return`, `rewrite`, `break`, `set`, `if`, and the variables they make.

use weir_tests::{http, is_oracle, skip_on_oracle};

#[test]
fn return_in_all_its_forms() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /code { return 403; }
        location /text { return 200 \"text $uri\"; }
        location /empty { return 200 ''; }
        location /error-text { return 404 'own text'; }
        location /302 { return http://example.com/$arg_a; }
        location /301 { return 301 /elsewhere; }
        location /303 { return 303 https://example.com/; }
        location /307 { return 307 /a?b=c; }
        location /308 { return 308 /a; }
        location /204 { return 204; }
        location /405 { return 405; }
    }";
    let server = http(conf).start();
    let port = server.port(0);
    server.answers(&[
        ("/code", 403, ""),
        ("/text", 200, "text /text"),
        ("/empty", 200, ""),
        ("/error-text", 404, "own text"),
        ("/302?a=x", 302, "http://example.com/x"),
        ("/301", 301, &format!("http://localhost:{port}/elsewhere")),
        ("/303", 303, "https://example.com/"),
        ("/307", 307, &format!("http://localhost:{port}/a?b=c")),
        ("/308", 308, &format!("http://localhost:{port}/a")),
        ("/204", 204, ""),
        ("/405", 405, ""),
    ]);
    assert_eq!(server.get("/text").field("Content-Type"), "text/plain");
}

#[test]
fn return_444_closes_without_an_answer() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; return 444; }").start();
    assert!(
        server
            .raw_or_closed("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            .is_none()
    );
}

#[test]
fn rewrite_flags_do_what_they_say() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /last/ { rewrite ^/last/(.*)$ /target/$1 last; return 200 never; }
        location /break/ { rewrite ^/break/(.*)$ /target/$1 break; return 200 never; }
        location /redirect/ { rewrite ^/redirect/(.*)$ /target/$1 redirect; }
        location /permanent/ { rewrite ^/permanent/(.*)$ /target/$1 permanent; }
        location /absolute/ { rewrite ^/absolute/(.*)$ https://example.com/$1; }
        location /none/ { rewrite ^/none/a /none/b; rewrite ^/none/b /target/c; }
        location /target/ { add_header X-Location target; return 200 \"target $uri $args\"; }
    }";
    let server = http(conf).file("html/target/f", "file").start();
    let port = server.port(0);
    server.answers(&[
        ("/last/x?a=b", 200, "target /target/x a=b"),
        ("/break/f", 200, "file"),
        (
            "/redirect/x",
            302,
            &format!("http://localhost:{port}/target/x"),
        ),
        (
            "/redirect/x?q=1",
            302,
            &format!("http://localhost:{port}/target/x?q=1"),
        ),
        (
            "/permanent/x",
            301,
            &format!("http://localhost:{port}/target/x"),
        ),
        ("/absolute/x", 302, "https://example.com/x"),
        ("/none/a", 200, "target /target/c "),
        ("/last/a%20b", 200, "target /target/a b "),
    ]);
}

#[test]
fn arguments_are_appended_unless_a_question_mark_ends_the_replacement() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /show { return 200 $args; }
        rewrite ^/append$ /show?x=1 last;
        rewrite ^/drop$ /show?x=1? last;
        rewrite ^/none$ /show? last;
        rewrite ^/keep$ /show last;
        rewrite ^/cap/(.*)$ /show?c=$1 last;
    }";
    http(conf).start().answers(&[
        ("/append?y=2", 200, "x=1&y=2"),
        ("/append", 200, "x=1"),
        ("/drop?y=2", 200, "x=1"),
        ("/none?y=2", 200, ""),
        ("/keep?y=2", 200, "y=2"),
        ("/cap/a%26b", 200, "c=a%26b"),
    ]);
}

#[test]
fn ten_rewrites_and_no_more() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; location / { rewrite ^ /again last; } }";
    let server = http(conf).start();
    server.answers(&[("/", 500, "")]);
    server.line(
        "error.log",
        "rewrite or internal redirection cycle while processing \"/again\"",
    );
}

#[test]
fn set_and_if_in_server_and_location() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        set $a one;
        set $b \"$a two\";
        if ($arg_early) { return 200 early; }
        location / {
            set $c $b;
            if ($arg_x = 1) { set $c x-is-1; }
            if ($arg_x != 1) { set $d not; }
            return 200 \"$c $d\";
        }
        location /late { set $later 1; return 200 \"[$later][$never]\"; }
        location /never { set $never 1; }
    }";
    http(conf).start().answers(&[
        ("/", 200, "one two not"),
        ("/?x=1", 200, "x-is-1 "),
        ("/?early=1", 200, "early"),
        ("/?early=0", 200, "one two not"),
        ("/?early=", 200, "one two not"),
        ("/?early=00", 200, "early"),
        ("/late", 200, "[1][]"),
    ]);
}

#[test]
fn if_conditions_compare_match_and_look_for_files() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            set $r '';
            if ($arg_a = x) { set $r \"$r eq\"; }
            if ($arg_a != x) { set $r \"$r ne\"; }
            if ($arg_a ~ ^y(.*)$) { set $r \"$r re:$1\"; }
            if ($arg_a ~* ^Y) { set $r \"$r ci\"; }
            if ($arg_a !~ y) { set $r \"$r nre\"; }
            if ($arg_a !~* Y) { set $r \"$r nci\"; }
            if (-f $document_root$uri) { set $r \"$r f\"; }
            if (!-f $document_root$uri) { set $r \"$r !f\"; }
            if (-d $document_root$uri) { set $r \"$r d\"; }
            if (-e $document_root$uri) { set $r \"$r e\"; }
            if (!-e $document_root$uri) { set $r \"$r !e\"; }
            if (-x $document_root$uri) { set $r \"$r x\"; }
            return 200 $r;
        }
    }";
    let server = http(conf).file("html/file", "").folder("html/dir").start();
    server.answers(&[
        ("/none?a=x", 200, " eq nre nci !f !e"),
        ("/none?a=yes", 200, " ne re:es ci !f !e"),
        ("/none?a=Y", 200, " ne ci nre !f !e"),
        ("/file?a=z", 200, " ne nre nci f e"),
        ("/dir?a=z", 200, " ne nre nci !f d e x"),
    ]);
}

#[test]
fn an_if_block_is_a_location_of_its_own() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            add_header X-Outer yes;
            if ($arg_h) { add_header X-If yes; }
            if ($arg_d) { root %%DIR%%/other; }
        }
    }";
    let server = http(conf)
        .file("html/a", "html")
        .file("other/a", "other")
        .start();
    server.answers(&[("/a", 200, "html"), ("/a?d=1", 200, "other")]);
    let reply = server.get("/a?h=1");
    assert_eq!(
        (reply.field("X-If"), reply.field("X-Outer")),
        ("yes", ""),
        "add_header is not merged, it is replaced"
    );
    assert_eq!(server.get("/a").field("X-Outer"), "yes");
}

#[test]
fn break_ends_the_rewrite_directives() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { set $a 1; if ($arg_stop) { break; } set $a 2; rewrite ^ /show; }
        location /show { return 200 show; }
        location /file { break; return 200 never; }
    }";
    let server = http(conf)
        .file("html/a", "file")
        .file("html/file", "the file")
        .start();
    server.answers(&[
        ("/a", 200, "show"),
        ("/a?stop=1", 200, "file"),
        ("/file", 200, "the file"),
    ]);
}

#[test]
fn variables_of_a_request() {
    let rows = [
        ("$request_method", "GET"),
        ("$request_uri", "/v%61r?b=1&a=%20x&A=2"),
        ("$uri", "/var"),
        ("$document_uri", "/var"),
        ("$args", "b=1&a=%20x&A=2"),
        ("$query_string", "b=1&a=%20x&A=2"),
        ("$is_args", "?"),
        ("$arg_a", "%20x"),
        ("$arg_none", ""),
        ("$http_x_test", "value"),
        ("$http_host", "LOCALHOST:80"),
        ("$host", "localhost"),
        ("$cookie_c", "choc"),
        ("$server_name", "first"),
        ("$server_protocol", "HTTP/1.1"),
        ("$scheme", "http"),
        ("$https", ""),
        ("$remote_addr", "127.0.0.1"),
        ("$server_addr", "127.0.0.1"),
        ("$content_type", "text/x"),
        ("$content_length", "0"),
        ("$remote_user", ""),
        ("$request", "GET /v%61r?b=1&a=%20x&A=2 HTTP/1.1"),
        ("$document_root", "%%DIR%%/html"),
        ("$request_filename", "%%DIR%%/html/var"),
        ("$connection_requests", "1"),
        ("${uri}text", "/vartext"),
        ("$pipe", "."),
        ("$request_completion", ""),
        ("$limit_rate", "0"),
    ];
    let mut conf = String::from("server { listen 127.0.0.1:%%PORT%%; server_name first second;\n");
    for (i, (variable, _)) in rows.iter().enumerate() {
        conf.push_str(&format!("add_header X-{i} \"<{variable}>\" always;\n"));
    }
    conf.push_str("location / { return 200; } }");
    let server = http(&conf).start();
    let head = "GET /v%61r?b=1&a=%20x&A=2 HTTP/1.1\r\nHost: LOCALHOST:80\r\nX-Test: value\r\n\
                Cookie: a=b; c=choc; d=e\r\nContent-Type: text/x\r\nContent-Length: 0\r\n\r\n";
    let reply = server.raw(head);
    let folder = server
        .path("")
        .to_string_lossy()
        .trim_end_matches('/')
        .to_owned();
    for (i, (variable, value)) in rows.iter().enumerate() {
        let value = value.replace("%%DIR%%", &folder);
        assert_eq!(
            reply.field(&format!("X-{i}")),
            format!("<{value}>"),
            "{variable}"
        );
    }
}

#[test]
fn variables_with_changing_values_have_the_right_shape() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        return 200 \"$msec|$time_iso8601|$time_local|$pid|$connection|$request_length|$request_time|$request_id|$remote_port|$server_port|$hostname|$binary_remote_addr\"; }";
    let server = http(conf).start();
    let mut connection = server.connect();
    let text = connection.get("/").text();
    let parts: Vec<&str> = text.split('|').collect();
    assert!(
        parts[0]
            .split_once('.')
            .is_some_and(|(_, ms)| ms.len() == 3),
        "$msec {text}"
    );
    assert!(
        parts[1].len() == 25 && parts[1].as_bytes()[10] == b'T',
        "$time_iso8601 {text}"
    );
    assert!(
        parts[2].len() == 26 && parts[2].as_bytes()[11] == b':',
        "$time_local {text}"
    );
    assert!(parts[3].parse::<u32>().is_ok(), "$pid {text}");
    assert!(parts[4].parse::<u64>().is_ok(), "$connection {text}");
    assert_eq!(parts[5], "35", "$request_length");
    assert!(parts[6].starts_with("0."), "$request_time {text}");
    assert!(
        parts[7].len() == 32 && parts[7].bytes().all(|byte| byte.is_ascii_hexdigit()),
        "$request_id {text}"
    );
    assert_eq!(parts[8], connection.local_port().to_string());
    assert_eq!(parts[9], server.port(0).to_string());
    assert!(!parts[10].is_empty());
}

#[test]
fn set_args_and_limit_rate_are_writable() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { set $args changed=1; return 200 \"$args $arg_changed $is_args $request_uri\"; }
    }";
    http(conf)
        .start()
        .answers(&[("/?x=y", 200, "changed=1 1 ? /?x=y")]);
}

#[test]
fn uninitialized_variables_warn_unless_switched_off() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /set { set $v 1; }
        location /warn { return 200 \"[$v]\"; }
        location /quiet { uninitialized_variable_warn off; return 200 \"[$v]\"; }
    }";
    let server = http(conf).start();
    server.answers(&[("/quiet", 200, "[]"), ("/warn", 200, "[]")]);
    let line = server.line("error.log", "using uninitialized \"v\" variable");
    assert!(line.contains("GET /warn"), "{line}");
    assert!(line.contains("[warn]"), "{line}");
}

#[test]
fn rewrite_log_tells_at_notice() {
    let conf = "error_log error.log notice; server { listen 127.0.0.1:%%PORT%%; rewrite_log on;
        rewrite ^/a$ /b; location /b { return 200 b; } }";
    let server = http(conf).start();
    server.answers(&[("/a", 200, "b")]);
    server.line("error.log", "\"^/a$\" matches \"/a\"");
    server.line("error.log", "rewritten data: \"/b\", args: \"\"");
}

#[test]
fn captures_of_an_escaped_path_are_escaped_where_they_become_arguments() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /show { return 200 \"$uri|$args\"; }
        location /args/ { rewrite ^/args/(.*)$ /show/$1?e=$1; }
        location /found/ { rewrite ^/found/(.*)$ http://x/$1?z=$1 redirect; }
        location /set/ { if ($uri ~ ^/set/(.*)$) { set $v $1; } return 200 \"$v|$1\"; }
        location /break/ { rewrite ^/break/(.*)$ /b/$1 break; return 200 never; }
        location /after/ { rewrite ^/after/(.*)$ /b/$1; set $v $1; return 200 $v; }
    }";
    http(conf).start().answers(&[
        ("/args/ab?k=v", 200, "/show/ab|e=ab&k=v"),
        ("/args/a%20b%26c?k=v", 200, "/show/a b&c|e=a%20b%26c&k=v"),
        ("/args/a+b", 200, "/show/a+b|e=a%2Bb"),
        ("/found/a%20b?k=v", 302, "http://x/a%20b?z=a%20b&k=v"),
        ("/found/ab", 302, "http://x/ab?z=ab"),
        ("/set/a%20b", 200, "a%20b|a b"),
        ("/set/ab", 200, "ab|ab"),
        ("/after/a%20b", 200, "a b"),
    ]);
}

#[test]
fn a_text_may_show_the_status_it_comes_with() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { return 202 \"$status $request_method\"; }
        location /moved { error_page 302 /page; return 302 http://elsewhere/; }
        location /page { return 200 \"see there\"; }
    }";
    let server = http(conf).start();
    server.answers(&[("/", 202, "202 GET")]);
    let reply = server.get("/moved").expect(302);
    assert_eq!(reply.field("Location"), "http://elsewhere/");
    assert_eq!(reply.text(), "see there");
}

#[test]
fn a_rewritten_path_has_no_alias() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /a/ { alias %%DIR%%/html/; if ($arg_x) { rewrite ^ /a/f break; } }
    }";
    let server = http(conf)
        .file("html/f", "file")
        .tolerate("\"alias\" cannot be used in location")
        .start();
    server.answers(&[("/a/f", 200, "file"), ("/a/f?x=1", 500, "")]);
}

#[test]
fn a_rewritten_path_that_a_return_ends_has_no_alias_either() {
    let conf = "log_format f '[$request_filename]'; server {
        listen 127.0.0.1:%%PORT%%; access_log access.log f;
        location /a/ { alias %%DIR%%/html/; rewrite ^ /x; return 200 \"[$request_filename]\"; }
        location /b/ { alias %%DIR%%/html/; return 200 \"[$request_filename]\"; }
        location /c/ { alias %%DIR%%/html/; rewrite ^ /c/f; }
    }";
    let server = http(conf)
        .file("html/f", "file")
        .tolerate("\"alias\" cannot be used in location")
        .tolerate("rewrite or internal redirection cycle")
        .start();
    // nginx 1.31 reads what is behind the path in memory.
    assert_eq!(server.get("/a/f").text(), "[]");
    server.line("access.log", "[-]");
    // A cycle ends before another location is searched for. The path can still be placed, which nginx has found since 1.22.
    assert_eq!(server.get("/c/x").status, 500);
    if !is_oracle() {
        server.line("access.log", "/html/f]");
    }
    let path = server.path("html/f");
    assert_eq!(server.get("/b/f").text(), format!("[{}]", path.display()));
}

#[test]
fn a_closed_request_logs_close_where_nothing_is_kept() {
    let conf = "log_format f '$uri $sent_http_connection'; server {
        listen 127.0.0.1:%%PORT%%; access_log access.log f;
        location /kept { return 444; }
        location /not { keepalive_timeout 0; return 444; }
    }";
    let server = http(conf).start();
    for path in ["/kept", "/not"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(server.raw_or_closed(&request).is_none());
    }
    server.line("access.log", "/kept keep-alive");
    server.line("access.log", "/not close");
}

#[test]
fn links_are_resolved_in_realpath_root() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        root %%DIR%%/html/../html;
        location / { return 200 \"$document_root $realpath_root $request_filename\"; }
    }";
    let server = http(conf).folder("html").start();
    let root = server.path("html");
    let (root, real) = (
        format!("{}/../html", root.display()),
        root.canonicalize().expect("the folder is there"),
    );
    let expected = format!("{root} {} {root}/f", real.display());
    assert_eq!(server.get("/f").text(), expected);
}

#[test]
fn rewrites_and_internal_redirects_count_together() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { rewrite ^ /app last; }
        location /app { proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /named { error_page 404 = @a; proxy_intercept_errors on; recursive_error_pages on;
                          proxy_pass http://127.0.0.1:%%PORT1%%; }
        location @a { error_page 404 = @b; proxy_intercept_errors on; recursive_error_pages on;
                      proxy_pass http://127.0.0.1:%%PORT1%%; }
        location @b { error_page 404 = @a; proxy_intercept_errors on; recursive_error_pages on;
                      proxy_pass http://127.0.0.1:%%PORT1%%; }
        location /files/ { try_files /none @c; }
        location @c { add_header X-Named 1 always; rewrite ^ /files/again last; }
    }
    log_format path $uri;
    server {
        listen 127.0.0.1:%%PORT1%%;
        access_log %%DIR%%/asked.log path;
        location /app { add_header X-Accel-Redirect /again; return 200; }
    }";
    let server = http(conf).start();
    server.answers(&[("/", 500, "")]);
    // Eleven changes of place are one too many: a rewrite and a redirect each time, and a rewrite at the end.
    assert_eq!(server.lines("asked.log", 5), ["/app"; 5]);
    server.line(
        "error.log",
        "rewrite or internal redirection cycle while processing \"/app\"",
    );
    server.answers(&[("/named", 500, "")]);
    server.line(
        "error.log",
        "rewrite or internal redirection cycle while redirect to named location \"@a\"",
    );
    assert_eq!(server.lines("asked.log", 16).len(), 16);
    let refused = server.get("/files/x").expect(500);
    assert!(!refused.has("X-Named"), "the last one was not entered");
}

#[test]
fn statuses_have_the_phrases_that_nginx_has() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /300 { return 300 text; }
        location /302 { return 302 /; }
        location /418 { return 418 text; }
        location /451 { return 451; }
        location /498 { return 498; }
        location /511 { return 511 text; }
    }";
    let server = http(conf).start();
    for (status, phrase, text) in [
        (300, "", "text"),
        (302, "Moved Temporarily", ""),
        (418, "", "text"),
        (451, "", ""),
        (498, "", "404 Not Found"),
        (511, "", "text"),
    ] {
        let mut connection = server.connect();
        connection.request("GET", &format!("/{status}"), &["Connection: close"]);
        let reply = String::from_utf8_lossy(&connection.rest()).into_owned();
        let line = format!("HTTP/1.1 {status} {phrase}\r\n");
        assert!(reply.starts_with(&line) && reply.contains(text), "{reply}");
    }
}

#[test]
fn a_request_that_timed_out_gets_no_answer() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        error_page 408 /page;
        location / { return 408; }
        location /text { return 408 text; }
    }";
    let server = http(conf).start();
    let get = |path: &str| server.raw_or_closed(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert!(get("/").is_none());
    assert_eq!(get("/text").map(|reply| reply.status), Some(408));
}

#[test]
fn an_interim_status_is_sent_without_content() {
    if skip_on_oracle("nginx sends a length and text (docs/compat.md, Responses and logs)") {
        return;
    }
    let conf = "server { listen 127.0.0.1:%%PORT%%; return 103 text; }";
    let server = http(conf).start();
    let mut connection = server.connect();
    connection.request("GET", "/", &[]);
    let reply = String::from_utf8_lossy(&connection.rest()).into_owned();
    let is_whole = reply.starts_with("HTTP/1.1 103 Early Hints\r\n") && reply.ends_with("\r\n\r\n");
    assert!(is_whole && !reply.contains("Content-"), "{reply}");
}

#[test]
fn the_whole_word_is_the_name_of_a_variable_that_a_condition_tests() {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        set $own-name $arg_own;
        location / {
            if ($arg_go-get) { return 200 'go $arg_go-get'; }
            if ( $own-name = x.y ) { return 200 own; }
            if ($arg_a.b ~ ^(.)z$) { return 200 $1; }
            return 200 none; } }";
    let server = http(conf).start();
    for (target, text) in [
        ("/", "none"),
        ("/?go-get=0", "none"),
        // In other texts a name ends where it cannot continue.
        ("/?go-get=1", "go -get"),
        ("/?own=x.y", "own"),
        ("/?a.b=yz", "y"),
    ] {
        assert_eq!(server.get(target).expect(200).text(), text, "{target}");
    }
}
