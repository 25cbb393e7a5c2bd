//! `-t`: the first line of each complaint is nginx's, word for word but for the program's name.

use weir_tests::{http, is_oracle, program, skip_on_oracle, whole};

/// Wraps text so that it stands at line 3 of an http block.
fn in_http(text: &str) -> String {
    format!("events {{ }}\nhttp {{ access_log off;\n{text}\n}}\n")
}

fn in_server(text: &str) -> String {
    format!(
        "events {{ }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%;\n{text}\n}} }}\n"
    )
}

/// Checks each configuration's first complaint, which ends in ` in FILE:3`.
#[track_caller]
fn complaints(wrap: fn(&str) -> String, rows: &[(&str, &str)]) {
    let mut wrong = Vec::new();
    for &(text, message) in rows {
        let finished = whole(&wrap(text)).test();
        let expected = format!("{message} in %%DIR%%/nginx.conf:3");
        let first = finished
            .first_line()
            .strip_prefix("weir: ")
            .unwrap_or(finished.first_line());
        if first != expected || finished.code != 1 {
            wrong.push(format!(
                "{text}\n  expected {expected}\n  got      {first} (exit {})",
                finished.code
            ));
        }
        let last = finished.stderr.lines().last().unwrap_or_default();
        if last != "weir: configuration file %%DIR%%/nginx.conf test failed" {
            wrong.push(format!("{text}\n  the last line is {last:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_good_file_says_so_on_two_lines() {
    let finished = whole(&in_server("return 200;")).test();
    assert_eq!(finished.code, 0);
    assert_eq!(
        finished.stderr,
        "weir: the configuration file %%DIR%%/nginx.conf syntax is ok\n\
         weir: configuration file %%DIR%%/nginx.conf test is successful"
    );
}

#[test]
fn quiet_says_nothing_of_success() {
    let finished = whole(&in_server("return 200;")).test_with(&["-q"]);
    assert_eq!((finished.code, finished.stderr.as_str()), (0, ""));
}

#[test]
fn unknown_misplaced_and_repeated_directives() {
    complaints(
        in_http,
        &[
            ("foo;", "[emerg] unknown directive \"foo\""),
            ("proxy_pas x;", "[emerg] unknown directive \"proxy_pas\""),
            (
                "location / { }",
                "[emerg] \"location\" directive is not allowed here",
            ),
            (
                "worker_processes 1;",
                "[emerg] \"worker_processes\" directive is not allowed here",
            ),
            (
                "worker_connections 1;",
                "[emerg] \"worker_connections\" directive is not allowed here",
            ),
            (
                "listen 80;",
                "[emerg] \"listen\" directive is not allowed here",
            ),
            (
                "sendfile on; sendfile off;",
                "[emerg] \"sendfile\" directive is duplicate",
            ),
            ("root a; root b;", "[emerg] \"root\" directive is duplicate"),
            ("http { }", "[emerg] \"http\" directive is not allowed here"),
        ],
    );
}

#[test]
fn what_a_server_may_not_have() {
    complaints(
        in_server,
        &[
            (
                "location / { limit_except GET { } limit_except POST { } }",
                "[emerg] \"limit_except\" directive is duplicate",
            ),
            (
                "location / { if ($uri) { fastcgi_param a b; } }",
                "[emerg] \"fastcgi_param\" directive is not allowed here",
            ),
            (
                "location / { if ($uri) { scgi_param a b; } }",
                "[emerg] \"scgi_param\" directive is not allowed here",
            ),
            (
                "location / { if ($uri) { uwsgi_modifier1 5; } }",
                "[emerg] \"uwsgi_modifier1\" directive is not allowed here",
            ),
            (
                "gzip_window 100;",
                "[emerg] \"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k",
            ),
            (
                "gzip_hash 1m;",
                "[emerg] \"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k",
            ),
        ],
    );
}

#[test]
fn wrong_numbers_of_arguments() {
    complaints(
        in_http,
        &[
            (
                "sendfile;",
                "[emerg] invalid number of arguments in \"sendfile\" directive",
            ),
            (
                "sendfile on off;",
                "[emerg] invalid number of arguments in \"sendfile\" directive",
            ),
            (
                "root;",
                "[emerg] invalid number of arguments in \"root\" directive",
            ),
            (
                "error_page 404;",
                "[emerg] invalid number of arguments in \"error_page\" directive",
            ),
            (
                "server x { }",
                "[emerg] invalid number of arguments in \"server\" directive",
            ),
            (
                "map $a { }",
                "[emerg] invalid number of arguments in \"map\" directive",
            ),
        ],
    );
}

#[test]
fn braces_and_semicolons() {
    complaints(
        in_http,
        &[
            (
                "server;",
                "[emerg] directive \"server\" has no opening \"{\"",
            ),
            (
                "sendfile on { }",
                "[emerg] directive \"sendfile\" is not terminated by \";\"",
            ),
            ("sendfile on }", "[emerg] unexpected \"}\""),
            ("; sendfile on;", "[emerg] unexpected \";\""),
            ("{ }", "[emerg] unexpected \"{\""),
            ("root \"a\"b;", "[emerg] unexpected \"b\""),
            ("root 'a'b;", "[emerg] unexpected \"b\""),
            (
                "root \"a\"{",
                "[emerg] directive \"root\" is not terminated by \";\"",
            ),
        ],
    );
}

#[test]
fn an_unfinished_file() {
    let first = |text: &str| whole(text).test().first_line().replace("weir: ", "");
    assert_eq!(
        first("events { }\nhttp {\n"),
        "[emerg] unexpected end of file, expecting \"}\" in %%DIR%%/nginx.conf:3"
    );
    assert_eq!(
        first("events { }\nhttp { sendfile on\n"),
        "[emerg] unexpected end of file, expecting \";\" or \"}\" in %%DIR%%/nginx.conf:3"
    );
    assert_eq!(
        first("events { }\n}\n"),
        "[emerg] unexpected \"}\" in %%DIR%%/nginx.conf:2"
    );
    assert_eq!(
        first("events { }\nhttp { root \"a\n}\n"),
        "[emerg] unexpected end of file, expecting \";\" or \"}\" in %%DIR%%/nginx.conf:4"
    );
    let finished = whole("http { }\n").test();
    assert_eq!(finished.code, 1);
    assert!(
        finished
            .stderr
            .contains("weir: [emerg] no \"events\" section in configuration\n"),
        "{}",
        finished.stderr
    );
}

#[test]
fn values_that_do_not_parse() {
    complaints(
        in_http,
        &[
            (
                "sendfile maybe;",
                "[emerg] invalid value \"maybe\" in \"sendfile\" directive, it must be \"on\" or \"off\"",
            ),
            (
                "client_max_body_size 1x;",
                "[emerg] \"client_max_body_size\" directive invalid value",
            ),
            (
                "client_header_buffer_size 1x;",
                "[emerg] \"client_header_buffer_size\" directive invalid value",
            ),
            (
                "client_body_timeout 1x;",
                "[emerg] \"client_body_timeout\" directive invalid value",
            ),
            (
                "keepalive_timeout x;",
                "[emerg] \"keepalive_timeout\" directive invalid value",
            ),
            (
                "keepalive_requests x;",
                "[emerg] \"keepalive_requests\" directive invalid number",
            ),
            (
                "keepalive_requests -1;",
                "[emerg] \"keepalive_requests\" directive invalid number",
            ),
            ("lingering_close maybe;", "[emerg] invalid value \"maybe\""),
            // What each protocol calls a reason for another server.
            (
                "grpc_next_upstream updating;",
                "[emerg] invalid value \"updating\"",
            ),
            (
                "fastcgi_next_upstream error http_502;",
                "[emerg] invalid value \"http_502\"",
            ),
            (
                "uwsgi_cache_use_stale http_504;",
                "[emerg] invalid value \"http_504\"",
            ),
            ("satisfy some;", "[emerg] invalid value \"some\""),
            (
                "if_modified_since never;",
                "[emerg] invalid value \"never\"",
            ),
            (
                "large_client_header_buffers 0 1k;",
                "[emerg] \"large_client_header_buffers\" directive invalid value",
            ),
            (
                "gzip_comp_level 10;",
                "[emerg] value must be between 1 and 9",
            ),
            (
                "gzip_comp_level 0;",
                "[emerg] value must be between 1 and 9",
            ),
            (
                "types_hash_max_size x;",
                "[emerg] \"types_hash_max_size\" directive invalid number",
            ),
            ("error_page 404 =x /a;", "[emerg] invalid value \"=x\""),
            (
                "error_page 999 /a;",
                "[emerg] value \"999\" must be between 300 and 599",
            ),
            (
                "keepalive_disable opera;",
                "[emerg] invalid value \"opera\"",
            ),
        ],
    );
}

#[test]
fn variables_that_are_not_there() {
    complaints(
        in_server,
        &[
            ("set novar 1;", "[emerg] invalid variable name \"novar\""),
            ("return 200 $;", "[emerg] invalid variable name"),
            (
                "return 200 ${a;",
                "[emerg] the closing bracket in \"a\" variable is missing",
            ),
            ("set $uri x;", "[emerg] the duplicate \"uri\" variable"),
            ("if (x) { }", "[emerg] invalid condition \"x\""),
            (
                "proxy_cookie_path off; proxy_cookie_path / /x/;",
                "[emerg] \"proxy_cookie_path\" directive is duplicate",
            ),
            (
                "proxy_cookie_flags a secure; proxy_cookie_flags off;",
                "[emerg] \"proxy_cookie_flags\" directive is duplicate",
            ),
            ("if ($a == b) { }", "[emerg] unexpected \"==\" in condition"),
        ],
    );
    let unknown = whole(&in_server("return 200 $no_such_thing;")).test();
    assert_eq!(
        unknown.first_line(),
        "weir: [emerg] unknown \"no_such_thing\" variable"
    );
}

#[test]
fn rewriting_and_returning() {
    complaints(
        in_server,
        &[
            ("return x;", "[emerg] invalid return code \"x\""),
            ("return 1000;", "[emerg] invalid return code \"1000\""),
            (
                "rewrite a;",
                "[emerg] invalid number of arguments in \"rewrite\" directive",
            ),
            ("rewrite a b c;", "[emerg] invalid parameter \"c\""),
            (
                "rewrite ^(a /b;",
                "[emerg] pcre2_compile() failed: missing closing parenthesis in \"^(a\"",
            ),
            (
                "location ~ ( { }",
                "[emerg] pcre2_compile() failed: missing closing parenthesis in \"(\"",
            ),
        ],
    );
}

#[test]
fn locations_that_cannot_be() {
    complaints(
        in_server,
        &[
            (
                "location / { } location / { }",
                "[emerg] duplicate location \"/\"",
            ),
            (
                "location = /a { } location = /a { }",
                "[emerg] duplicate location \"/a\"",
            ),
            (
                "location ! /a { }",
                "[emerg] invalid location modifier \"!\"",
            ),
            (
                "location /a { location /b { } }",
                "[emerg] location \"/b\" is outside location \"/a\"",
            ),
            (
                "location = /a { location /a/b { } }",
                "[emerg] location \"/a/b\" cannot be inside the exact location \"/a\"",
            ),
            (
                "location @a { location /b { } }",
                "[emerg] location \"/b\" cannot be inside the named location \"@a\"",
            ),
            (
                "location /a { location @b { } }",
                "[emerg] named location \"@b\" can be on the server level only",
            ),
            (
                "location / { alias a; root b; }",
                "[emerg] \"root\" directive is duplicate, \"alias\" directive was specified earlier",
            ),
            (
                "location / { root a; alias b; }",
                "[emerg] \"alias\" directive is duplicate, \"root\" directive was specified earlier",
            ),
            (
                "location @n { alias /a; }",
                "[emerg] the \"alias\" directive cannot be used inside the named location",
            ),
            (
                "location { }",
                "[emerg] invalid number of arguments in \"location\" directive",
            ),
        ],
    );
}

#[test]
fn addresses_that_cannot_be_listened_on() {
    complaints(
        in_server,
        &[
            (
                "listen x:y;",
                "[emerg] invalid port in \"x:y\" of the \"listen\" directive",
            ),
            (
                "listen 127.0.0.1:99999;",
                "[emerg] invalid port in \"127.0.0.1:99999\" of the \"listen\" directive",
            ),
            (
                "listen 127.0.0.1:1 foo;",
                "[emerg] invalid parameter \"foo\"",
            ),
            (
                "listen 127.0.0.1:1 backlog=x;",
                "[emerg] invalid backlog \"backlog=x\"",
            ),
            (
                "listen 127.0.0.1:1 so_keepalive=x;",
                "[emerg] invalid so_keepalive value: \"x\"",
            ),
            (
                "listen [::1;",
                "[emerg] invalid host in \"[::1\" of the \"listen\" directive",
            ),
        ],
    );
    let site = whole(&in_server("listen 127.0.0.1:%%PORT%%;"));
    let first = site.test().first_line().to_owned();
    assert!(
        first.starts_with("weir: [emerg] a duplicate listen 127.0.0.1:"),
        "{first}"
    );
}

#[test]
fn files_that_are_not_there() {
    let missing = whole(&in_http("include none.conf;")).test();
    assert_eq!(
        missing.first_line(),
        "weir: [emerg] open() \"%%DIR%%/none.conf\" failed (2: No such file or directory) in %%DIR%%/nginx.conf:3"
    );
    let glob = whole(&in_http("include none/*.conf;")).test();
    assert_eq!(glob.code, 0, "a mask may match nothing: {}", glob.stderr);
    let inside = whole(&in_http("include part.conf;"))
        .file("part.conf", "\n\nfoo;\n")
        .test();
    assert_eq!(
        inside.first_line(),
        "weir: [emerg] unknown directive \"foo\" in %%DIR%%/part.conf:3"
    );
}

#[test]
fn modules_complain_in_their_own_words() {
    complaints(
        in_http,
        &[
            (
                "map $a $b { a b; a c; }",
                "[emerg] conflicting parameter \"a\"",
            ),
            ("map $a b { }", "[emerg] invalid variable name \"b\""),
            (
                "map $a $b { hostnames; x; }",
                "[emerg] invalid number of the map parameters",
            ),
            (
                "map $a $b { default 1; default 2; }",
                "[emerg] duplicate default map parameter",
            ),
            (
                "geo $g { 1.2.3.4/33 x; }",
                "[emerg] invalid network \"1.2.3.4/33\"",
            ),
            ("geo $g { foo x; }", "[emerg] invalid network \"foo\""),
            (
                "split_clients $a $b { 60% x; 60% y; }",
                "[emerg] percent total is greater than 100%",
            ),
            (
                "split_clients $a $b { x% y; }",
                "[emerg] invalid percent value \"x%\"",
            ),
            (
                "log_format combined x;",
                "[emerg] duplicate \"log_format\" name \"combined\"",
            ),
            ("access_log a none;", "[emerg] unknown log format \"none\""),
            (
                "access_log a combined buffer=x;",
                "[emerg] invalid buffer size \"x\"",
            ),
            (
                "access_log a combined foo=x;",
                "[emerg] invalid parameter \"foo=x\"",
            ),
            (
                "allow 1.2.3.4.5;",
                "[emerg] invalid parameter \"1.2.3.4.5\"",
            ),
            ("expires x;", "[emerg] \"expires\" directive invalid value"),
            ("error_log a loud;", "[emerg] invalid log level \"loud\""),
            (
                "limit_rate x;",
                "[emerg] \"limit_rate\" directive invalid value",
            ),
            ("autoindex_format yaml;", "[emerg] invalid value \"yaml\""),
        ],
    );
}

#[test]
fn warnings_do_not_fail() {
    let site = whole(&in_http(
        "server { listen 127.0.0.1:%%PORT%%; server_name a; }\nserver { listen 127.0.0.1:%%PORT%%; server_name a; }",
    ));
    let finished = site.test();
    assert_eq!(finished.code, 0);
    assert!(
        finished
            .first_line()
            .starts_with("weir: [warn] conflicting server name \"a\" on 127.0.0.1:"),
        "{}",
        finished.stderr
    );
    assert!(finished.stderr.contains("ignored"), "{}", finished.stderr);

    let bits = whole(&in_http(
        "server { listen 127.0.0.1:%%PORT%%; allow 10.0.0.1/8; }",
    ))
    .test();
    assert_eq!(bits.code, 0);
    assert_eq!(
        bits.first_line(),
        "weir: [warn] low address bits of 10.0.0.1/8 are meaningless in %%DIR%%/nginx.conf:3"
    );
}

#[test]
fn a_bad_file_never_starts() {
    let finished = whole("events { }\nfoo;\n").run(&[]);
    assert_eq!(finished.code, 1);
    assert!(
        finished
            .first_line()
            .starts_with("weir: [emerg] unknown directive \"foo\""),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_missing_file_is_named() {
    let folder = std::env::temp_dir().join(format!("weir-test-nothing-{}", std::process::id()));
    let prefix = format!("{}/", folder.display());
    std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
    let finished = weir_tests::run(&["-p", &prefix, "-c", "none.conf", "-e", "error.log", "-t"]);
    std::fs::remove_dir_all(&folder).expect("it was just made");
    assert_eq!(finished.code, 1);
    let expected =
        format!("weir: [emerg] open() \"{prefix}none.conf\" failed (2: No such file or directory)");
    assert_eq!(finished.first_line(), expected);
}

#[test]
fn weir_shows_the_line_a_caret_and_the_nearest_name() {
    if skip_on_oracle("nginx has no such lines") {
        return;
    }
    let finished =
        whole("events { }\nhttp {\n    sendfle on;\n    keepalive_timeout x;\n}\n").test();
    let text = &finished.stderr;
    assert!(
        text.contains("sendfle on;"),
        "the source line is shown: {text}"
    );
    assert!(
        text.contains("^^^^^^^"),
        "a caret line is under the name: {text}"
    );
    assert!(text.contains("did you mean \"sendfile\"?"), "{text}");
    assert!(
        text.contains("keepalive_timeout"),
        "the second error is reported too: {text}"
    );
    let count = text.lines().filter(|line| line.contains("[emerg]")).count();
    assert_eq!(count, 2, "{text}");
}

#[test]
fn errors_about_settings_together_are_shown_at_one_of_them() {
    if skip_on_oracle("nginx shows no lines") {
        return;
    }
    for (text, line) in [
        (
            "proxy_buffers 4 4k;\nproxy_busy_buffers_size 64k;\nlocation / { proxy_pass http://127.0.0.1:1; }",
            4,
        ),
        (
            "location / {\nproxy_buffers 1 4k;\nproxy_pass http://127.0.0.1:1; }",
            4,
        ),
        (
            "location / {\nfastcgi_buffer_size 64k;\nfastcgi_pass 127.0.0.1:1; }",
            4,
        ),
        (
            "location / {\nproxy_ssl_certificate missing.crt;\nproxy_pass https://127.0.0.1:1; }",
            4,
        ),
    ] {
        let finished = whole(&in_server(text)).test();
        let directive = text.lines().nth(line - 3).unwrap_or_default();
        let shown = format!("{line} | {directive}");
        assert!(
            finished.code == 1 && finished.stderr.contains(&shown),
            "{text}\n{}",
            finished.stderr
        );
    }
}

#[test]
fn a_file_that_is_included_twice_complains_once_and_what_is_twice_names_the_first() {
    if skip_on_oracle("nginx stops at the first error") {
        return;
    }
    let text = "events { }\nhttp {\n    server { include both.conf; }\n    server { include both.conf; }\n}\n";
    let site = whole(text).file(
        "both.conf",
        "location / { root a; }\nallow 10.0.0.1/8;\nlocation / { root b; }\n",
    );
    let finished = site.test();
    let said = |what: &str| finished.stderr.matches(what).count();
    assert_eq!(said("low address bits"), 1, "{}", finished.stderr);
    assert_eq!(said("duplicate location"), 1, "{}", finished.stderr);
    assert_eq!(said("= first in "), 1, "{}", finished.stderr);
    assert_eq!(said("both.conf:1"), 1, "{}", finished.stderr);
}

#[test]
fn what_nginx_knows_and_weir_does_not_yet_is_named_so() {
    if skip_on_oracle("nginx knows its own directives") {
        return;
    }
    // `perl_set` needs an interpreter that Weir will hardly ever have.
    let finished = whole(&in_http("perl_set $a b;")).test();
    assert!(
        finished
            .first_line()
            .contains("unknown directive \"perl_set\""),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("does not support it yet"),
        "{}",
        finished.stderr
    );
}

#[test]
fn refused_directives() {
    if skip_on_oracle("refuse_directives is ours") {
        return;
    }
    let test = |names: &str, text: &str| {
        let site = whole(&format!(
            "refuse_directives {names};\nevents {{ }}\nhttp {{ access_log off; server {{ listen 127.0.0.1:%%PORT%%;\n{text}\n}} }}"
        ));
        site.file("part.conf", "root a;").test()
    };
    for (names, text, expected) in [
        (
            "root alias",
            "location /a/ { alias b/; }",
            "\"alias\" directive is refused in %%DIR%%/nginx.conf:4",
        ),
        (
            "*_by_lua_block",
            "location / { content_by_lua_block { } }",
            "\"content_by_lua_block\" directive is refused in",
        ),
        (
            "root",
            "include part.conf;",
            "\"root\" directive is refused in %%DIR%%/part.conf:1",
        ),
        (
            "listn",
            "",
            "no directive is named \"listn\"; did you mean \"listen\"? in %%DIR%%/nginx.conf:1",
        ),
        ("root;\nrefuse_directives alias", "", ""),
    ] {
        let finished = test(names, text);
        let first = finished.first_line();
        assert!(
            first.contains(expected) && finished.code == i32::from(!expected.is_empty()),
            "{names} {text}: {}",
            finished.stderr
        );
    }
    // A line inside a block cannot take back what the main context says.
    let finished = test("root", "refuse_directives alias; root a;");
    assert!(
        finished.stderr.contains("\"root\" directive is refused"),
        "{}",
        finished.stderr
    );
}

#[test]
fn the_program_speaks_under_its_own_name() {
    let raw = whole("foo;\n").test();
    assert!(
        raw.stderr.starts_with("weir: "),
        "the harness gives one name to both"
    );
    assert_eq!(program(), if is_oracle() { "nginx" } else { "weir" });
}

#[test]
fn variables_of_fields_that_no_server_inherits_need_not_exist() {
    for line in [
        "proxy_set_header X $undefined;",
        "grpc_set_header X $undefined;",
        "fastcgi_param X $undefined;",
        "uwsgi_param X $undefined;",
        "scgi_param X $undefined;",
    ] {
        let own = line.replace("$undefined", "own");
        let listen = "listen 127.0.0.1:%%PORT%%;";
        let test = |conf: &str| http(conf).test();
        let finished = test(&format!(
            "{line} server {{ {listen} {own} location / {{ }} }}"
        ));
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        for conf in [
            format!("{line} server {{ {listen} location / {{ {own} }} }}"),
            format!("{line} server {{ {listen} {own} }} server {{ listen 127.0.0.1:%%PORT1%%; }}"),
            format!("server {{ {listen} {line} }}"),
            format!("{line} server {{ {listen} {own} add_header X $undefined; }}"),
        ] {
            let finished = test(&conf);
            let said = finished.stderr.contains("unknown \"undefined\" variable");
            assert!(finished.code == 1 && said, "{conf}: {}", finished.stderr);
        }
    }
}

#[test]
fn spdy_is_as_unknown_as_it_is_to_nginx() {
    if skip_on_oracle("nginx 1.22 still warned of it") {
        return;
    }
    let finished = http("server { listen 127.0.0.1:%%PORT%% ssl spdy; }").test();
    assert!(
        finished
            .first_line()
            .contains("[emerg] invalid parameter \"spdy\" in ")
    );
}
