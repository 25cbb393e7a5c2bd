//! The commonest mistakes in a configuration: the first line of each complaint is nginx's, the caret and the note show the
//! mistake itself, and nothing is said that only follows from it.

use weir_tests::{is_oracle, run, skip_on_oracle, whole};

/// Checks a configuration: the first line, which nginx has too, then what Weir shows below it.
#[track_caller]
fn mistake(configuration: &str, first: &str, below: &[&str]) {
    let finished = whole(configuration).test();
    let complaint = finished.first_line();
    let complaint = complaint.strip_prefix("weir: ").unwrap_or(complaint);
    assert_eq!(complaint, format!("[emerg] {first}"), "{}", finished.stderr);
    if is_oracle() {
        return;
    }
    for line in below {
        assert!(
            finished.stderr.lines().any(|found| found.trim() == *line),
            "no line {line:?} in\n{}",
            finished.stderr
        );
    }
    let complaints = finished.stderr.matches("[emerg]").count();
    assert_eq!(complaints, 1, "one mistake: {}", finished.stderr);
}

#[test]
fn a_missing_semicolon_before_the_next_directive() {
    mistake(
        "events {}\nhttp {\n  server {\n    listen 8080\n    server_name x;\n  }\n}\n",
        "invalid parameter \"server_name\" in %%DIR%%/nginx.conf:5",
        &["4 |     listen 8080", "= a \";\" is missing here"],
    );
    mistake(
        "events {}\nhttp {\n  server {\n    root /srv\n    location / {\n    }\n  }\n}\n",
        "directive \"root\" is not terminated by \";\" in %%DIR%%/nginx.conf:5",
        &["4 |     root /srv", "= a \";\" is missing here"],
    );
    mistake(
        "events {}\nhttp {\n  server {\n    root /srv\n    autoindex on;\n  }\n}\n",
        "invalid number of arguments in \"root\" directive in %%DIR%%/nginx.conf:5",
        &["4 |     root /srv", "|              ^"],
    );
}

/// The directive that was read as parameters is read again, with its block.
#[test]
fn a_missing_semicolon_hides_no_other_mistake() {
    for (lines, complaints) in [
        (
            "root /srv\n location / {\n autoindex onn;\n fooo;\n }",
            &[
                "directive \"root\" is not terminated by \";\" in %%DIR%%/nginx.conf:5",
                "invalid value \"onn\" in \"autoindex\" directive, it must be \"on\" or \"off\" in %%DIR%%/nginx.conf:6",
                "unknown directive \"fooo\" in %%DIR%%/nginx.conf:7",
            ][..],
        ),
        (
            "rooot /srv\n location / {\n fooo;\n }",
            &[
                "unknown directive \"rooot\" in %%DIR%%/nginx.conf:5",
                "unknown directive \"fooo\" in %%DIR%%/nginx.conf:6",
            ],
        ),
        (
            "listen 8080\n server_name x\n location / { fooo; }",
            &[
                "directive \"listen\" is not terminated by \";\" in %%DIR%%/nginx.conf:6",
                "directive \"server_name\" is not terminated by \";\" in %%DIR%%/nginx.conf:6",
                "unknown directive \"fooo\" in %%DIR%%/nginx.conf:6",
            ],
        ),
        (
            "listen 8080\n autoindex onn;",
            &[
                "invalid parameter \"autoindex\" in %%DIR%%/nginx.conf:5",
                "invalid value \"onn\" in \"autoindex\" directive, it must be \"on\" or \"off\" in %%DIR%%/nginx.conf:5",
            ],
        ),
        // What the two define is there for other lines.
        (
            "}\n limit_req_zone $uri zone=a:1m rate=1r/s\n server {\n limit_req zone=a;",
            &["directive \"limit_req_zone\" is not terminated by \";\" in %%DIR%%/nginx.conf:6"],
        ),
    ] {
        let text = format!("events {{}}\nhttp {{\n server {{\n {lines}\n }}\n}}\n");
        let finished = whole(&text).test();
        let found: Vec<&str> = finished
            .stderr
            .lines()
            .filter_map(|line| Some(line.split_once("[emerg] ")?.1))
            .map(|line| line.trim_start_matches(|c: char| c.is_ascii_digit() || "#: ".contains(c)))
            .collect();
        let expected = if is_oracle() {
            &complaints[..1]
        } else {
            complaints
        };
        assert_eq!(found, expected, "{}", finished.stderr);
    }
}

#[test]
fn a_missing_semicolon_before_a_brace() {
    mistake(
        "events {}\nhttp {\n  server {\n    location / { root \"/srv\" }\n  }\n}\n",
        "unexpected \"}\" in %%DIR%%/nginx.conf:4",
        &[
            "4 |     location / { root \"/srv\" }",
            "|                             ^",
            "= a \";\" is missing here",
        ],
    );
}

/// `server_name` takes any word, so nginx says nothing.
#[test]
fn a_missing_semicolon_that_makes_no_error_is_a_warning() {
    if skip_on_oracle("a warning of Weir's") {
        return;
    }
    let finished = whole(
        "events {}\nhttp {\n  access_log off;\n  server {\n    listen 127.0.0.1:%%PORT%%;\n    server_name x\n    charset y;\n  }\n}\n",
    )
    .test();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let warning =
        "[warn] \"server_name\" has another directive among its parameters in %%DIR%%/nginx.conf:6";
    assert!(finished.stderr.contains(warning), "{}", finished.stderr);
}

#[test]
fn a_missing_brace_is_found_by_the_depth_of_lines() {
    mistake(
        "events {}\nhttp {\n  server {\n    listen 8081;\n    location / {\n      return 200;\n  }\n}\n",
        "unexpected end of file, expecting \"}\" in %%DIR%%/nginx.conf:9",
        &[
            "5 |     location / {",
            "= this block is never closed; judging by the indentation, its \"}\" is missing before line 7",
        ],
    );
    // Without depth only nginx's line and the outermost open block are left.
    mistake(
        "events {}\nhttp {\nserver {\nlisten 8081;\n}\n",
        "unexpected end of file, expecting \"}\" in %%DIR%%/nginx.conf:6",
        &["2 | http {", "= this block is never closed"],
    );
}

/// nginx stops at the directive that now seems to stand in the wrong block.
#[test]
fn what_follows_a_missing_brace_is_read_as_if_it_were_there() {
    if skip_on_oracle("nginx stops at the first error, which is another one") {
        return;
    }
    mistake(
        "events {}\nhttp {\n  server {\n    listen 8081;\n  server {\n    listen 8082;\n  }\n}\n",
        "unexpected end of file, expecting \"}\" in %%DIR%%/nginx.conf:9",
        &["3 |   server {"],
    );
}

#[test]
fn a_quote_without_an_end() {
    mistake(
        "events {}\nhttp {\n  log_format x \"$uri;\n  server {\n    return 200 \"x\";\n  }\n}\n",
        "unexpected \"x\" in %%DIR%%/nginx.conf:5",
        &["= this closes the quote opened in line 3: is the closing quote missing there?"],
    );
    mistake(
        "events {}\nhttp {\n  log_format x '$uri;\n}\n",
        "unexpected end of file, expecting \";\" or \"}\" in %%DIR%%/nginx.conf:5",
        &["= this quote is never closed"],
    );
}

#[test]
fn what_cannot_be_read_makes_no_second_error() {
    let finished = whole(
        "events {}\nhttp {\n  server {\n    listen 8080 ssl;\n    ssl_certificate /none/a;\n    ssl_certificate_key /none/b;\n  }\n}\n",
    )
    .test();
    assert_eq!(
        finished.stderr.matches("[emerg]").count(),
        1,
        "{}",
        finished.stderr
    );
    let first = "cannot load certificate \"/none/a\": ";
    assert!(finished.first_line().contains(first), "{}", finished.stderr);
    let finished = run(&["-t", "-p", "/none/", "-c", "x.conf"]);
    assert_eq!(
        finished.stderr.matches("[emerg]").count(),
        1,
        "{}",
        finished.stderr
    );
}

#[test]
fn a_scheme_that_is_missing() {
    mistake(
        "events {}\nhttp {\n  server {\n    location / { proxy_pass 127.0.0.1:3000; }\n  }\n}\n",
        "invalid URL prefix in %%DIR%%/nginx.conf:4",
        &["= the scheme is missing: proxy_pass http://127.0.0.1:3000;"],
    );
}

#[test]
fn an_address_that_is_listened_on_twice() {
    mistake(
        "events {}\nhttp {\n  server {\n    listen 8080;\n    listen 8080;\n  }\n}\n",
        "a duplicate listen 0.0.0.0:8080 in %%DIR%%/nginx.conf:5",
        &["= first in %%DIR%%/nginx.conf:4"],
    );
}

#[test]
fn an_expression_that_is_none_is_shown_where_it_goes_wrong() {
    if skip_on_oracle("nginx 1.22 may be built with PCRE, whose words differ") {
        return;
    }
    mistake(
        "events {}\nhttp {\n  server {\n    location ~ a)b { }\n  }\n}\n",
        "pcre2_compile() failed: unmatched closing parenthesis in \"a)b\" at \")b\" in %%DIR%%/nginx.conf:4",
        &["4 |     location ~ a)b { }", "|                 ^"],
    );
}

#[test]
fn what_was_removed_has_its_own_help() {
    if skip_on_oracle("the notes are Weir's, and nginx 1.22 still has some of these") {
        return;
    }
    for (line, note) in [
        ("ssl on;", "listen 443 ssl;"),
        ("listen 8080 spdy;", "\"http2 on;\""),
        ("js_content a;", "*_by_lua_block"),
        ("limit_zone a $b 1m;", "limit_conn_zone"),
    ] {
        let finished = whole(&format!(
            "events {{}}\nhttp {{\n  server {{\n    {line}\n  }}\n}}\n"
        ))
        .test();
        assert_eq!(finished.code, 1);
        assert!(
            finished.stderr.contains(note),
            "{line}: {}",
            finished.stderr
        );
    }
}

/// The first line is nginx's; below it is what was probably meant.
#[test]
fn misspelt_options() {
    for (words, first, meant) in [
        (&["-x"][..], "invalid option: \"x\"", "see \"weir --help\""),
        (
            &["-C", "a"],
            "invalid option: \"C\"",
            "did you mean \"-c\"?",
        ),
        (
            &["-t", "serve"],
            "invalid option: \"serve\"",
            "a command comes first: weir serve",
        ),
        (
            &["-c"],
            "option \"-c\" requires file name",
            "see \"weir --help\"",
        ),
        (
            &["-s"],
            "option \"-s\" requires parameter",
            "see \"weir --help\"",
        ),
        (
            &["-s", "relaod"],
            "invalid option: \"-s relaod\"",
            "did you mean \"reload\"? -s takes stop, quit, reopen, reload",
        ),
    ] {
        let finished = run(words);
        let line = finished.first_line();
        let complaint = line
            .split_once(": ")
            .map_or(line, |(_, complaint)| complaint);
        assert_eq!(complaint, first, "{}", finished.stderr);
        assert_eq!(finished.code, 1);
        if !is_oracle() {
            assert!(finished.stderr.contains(meant), "{}", finished.stderr);
        }
    }
}

#[test]
fn misspelt_commands_and_long_options() {
    if skip_on_oracle("nginx has neither") {
        return;
    }
    for (words, first, meant) in [
        (
            "--vesrion",
            "invalid option: \"--vesrion\"",
            "did you mean \"--version\"?",
        ),
        (
            "-t --hepl",
            "invalid option: \"--hepl\"",
            "did you mean \"--help\"?",
        ),
        (
            "--config x",
            "invalid option: \"--config\"",
            "did you mean \"-c FILE\"?",
        ),
        (
            "--relaod",
            "invalid option: \"--relaod\"",
            "did you mean \"-s reload\"?",
        ),
        (
            "--port 80 serve .",
            "invalid option: \"--port\"",
            "\"--port\" is an option of \"weir serve\" and \"weir proxy\", and follows the command",
        ),
        (
            "relaod",
            "unknown command \"relaod\"",
            "did you mean \"weir -s reload\"?",
        ),
        (
            "sevre .",
            "unknown command \"sevre\"",
            "did you mean \"serve\"?",
        ),
        (
            "serve . --pasword a",
            "invalid option '--pasword'",
            "did you mean \"--password\"?",
        ),
        (
            "serve . -o",
            "invalid option '-o'",
            "did you mean \"--open\"?",
        ),
        (
            "serve . --port",
            "missing argument for option '--port'",
            "usage: weir serve DIR [OPTION ...]",
        ),
        (
            "proxy --prot 80",
            "invalid option '--prot'",
            "did you mean \"--port\"?",
        ),
        (
            "init --domian x",
            "invalid option '--domian'",
            "did you mean \"--domain\"?",
        ),
        (
            "check --jsno",
            "invalid option '--jsno'",
            "did you mean \"--json\"?",
        ),
        (
            "check --config x",
            "invalid option '--config'",
            "did you mean \"-c FILE\"?",
        ),
        (
            "upgrade --config x",
            "invalid option: \"--config\"",
            "did you mean \"-c FILE\"?",
        ),
        (
            "check --explain alias-travesal",
            "unknown rule \"alias-travesal\"",
            "did you mean \"alias-traversal\"?",
        ),
        (
            "cache purg d",
            "unknown task \"purg\"",
            "did you mean \"purge\"?",
        ),
        (
            "cache purge d --tga x",
            "invalid option '--tga'",
            "did you mean \"--tag\"?",
        ),
        (
            "completions bahs",
            "no completions for \"bahs\"",
            "did you mean \"bash\"?",
        ),
        (
            "help $hots",
            "unknown variable \"$hots\"",
            "did you mean \"$host\"? weir help '$host'",
        ),
    ] {
        let finished = run(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(finished.first_line(), format!("weir: {first}"), "{words}");
        assert_ne!(finished.code, 0, "{words}");
        let is_told = finished.stderr.lines().any(|line| line.trim() == meant);
        assert!(is_told, "{words}: {}", finished.stderr);
    }
}

#[test]
fn the_name_of_an_upstream_that_is_misspelt() {
    if skip_on_oracle("nginx does not start") {
        return;
    }
    let finished = whole(
        "events {}\nhttp {\n  access_log off;\n  upstream backend { server 127.0.0.1:1; }\n  server {\n    listen 127.0.0.1:%%PORT%%;\n    location / { proxy_pass http://backnd; }\n  }\n}\n",
    )
    .test();
    let first = "weir: [warn] host not found in upstream \"backnd\" in %%DIR%%/nginx.conf:7";
    assert_eq!(finished.first_line(), first);
    let help = "= did you mean the upstream \"backend\"?";
    assert!(finished.stderr.contains(help), "{}", finished.stderr);
}

/// Protocols without a default port have another error.
#[test]
fn the_name_of_an_upstream_that_is_misspelt_without_a_port() {
    let upstream = "upstream backend { server 127.0.0.1:1; }";
    let help = &["= did you mean the upstream \"backend\"?"];
    for pass in ["fastcgi_pass backnd", "grpc_pass grpc://backnd"] {
        mistake(
            &format!(
                "events {{}}\nhttp {{\n  {upstream}\n  server {{\n    location / {{ {pass}; }}\n  }}\n}}\n"
            ),
            "no port in upstream \"backnd\" in %%DIR%%/nginx.conf:5",
            help,
        );
    }
    if skip_on_oracle("stream may be a module of its own there") {
        return;
    }
    mistake(
        &format!(
            "events {{}}\nstream {{\n  {upstream}\n  server {{\n    listen 127.0.0.1:1; proxy_pass backnd;\n  }}\n}}\n"
        ),
        "no port in upstream \"backnd\" in %%DIR%%/nginx.conf:5",
        help,
    );
}

/// Many configurations have these lines; what they are about has a page of its own.
#[test]
fn what_tls_has_no_more_is_one_line_each() {
    if skip_on_oracle("nginx has it still") {
        return;
    }
    let warned = |lines: &str| {
        let server = format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; ssl_certificate localhost.crt; ssl_certificate_key localhost.key; {lines} }}"
        );
        let text = format!("events {{}}\nhttp {{ access_log off;\n{server}\n}}\n");
        let finished = crate::tls::https_files(whole(&text)).test_with(&["-q"]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        finished.stderr
    };
    let said = warned(
        "ssl_dhparam /none; ssl_protocols TLSv1 TLSv1.1 TLSv1.2;
         ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256:DHE-RSA-AES256-SHA:AES128-SHA:AES256-SHA:AES128-SHA256:AES256-SHA256;",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 3, "{said}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains("see \"weir help tls\"")),
        "{said}"
    );
    assert!(
        said.contains("AES128-SHA, AES256-SHA, AES128-SHA256 and 1 more not available"),
        "{said}"
    );
    // What nobody misses.
    let quiet = "ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES128-GCM-SHA256:!aNULL;";
    assert_eq!(warned(quiet), "");
    let off = warned("ssl_ciphers AES128-SHA:AES256-SHA;");
    assert_eq!(off.lines().count(), 1, "{off}");
    assert!(off.contains("TLS 1.2 is disabled"), "{off}");
    assert!(run(&["help", "tls"]).stdout.contains("ssl_dhparam"));
}

/// Ten more, as people make them.
#[test]
fn slips_of_the_pen() {
    let server = |line: &str| format!("events {{}}\nhttp {{\n  server {{\n    {line}\n  }}\n}}\n");
    for (text, first, below) in [
        (
            server("if($host = a) { return 403; }"),
            "unknown directive \"if($host\" in %%DIR%%/nginx.conf:4",
            "= a space is missing: if (",
        ),
        (
            server("listen 8080;;"),
            "unexpected \";\" in %%DIR%%/nginx.conf:4",
            "= there is no directive before it: remove this \";\"",
        ),
        (
            server("}"),
            "unexpected \"}\" in %%DIR%%/nginx.conf:6",
            "= one \"}\" too many: every block is closed before it",
        ),
        (
            server("location / { fastcgi_pass /run/php.sock; }"),
            "invalid host in upstream \"/run/php.sock\" in %%DIR%%/nginx.conf:4",
            "= write a socket as unix:/run/php.sock",
        ),
        (
            "events {}\nhttp {\n  upstream b {\n    server http://127.0.0.1:1;\n  }\n}\n"
                .to_owned(),
            "invalid host in upstream \"http://127.0.0.1:1\" in %%DIR%%/nginx.conf:4",
            "= without a scheme: 127.0.0.1:1",
        ),
        (
            server("worker_connections 10;"),
            "\"worker_connections\" directive is not allowed here in %%DIR%%/nginx.conf:4",
            "= allowed in: events",
        ),
        (
            server("client_max_body_size 10mb;"),
            "\"client_max_body_size\" directive invalid value in %%DIR%%/nginx.conf:4",
            "= a length is a number of bytes, kilobytes, megabytes or gigabytes: 4096, 8k, 1m, 2g",
        ),
        (
            server("auth_basic_user_fil x;"),
            "unknown directive \"auth_basic_user_fil\" in %%DIR%%/nginx.conf:4",
            "= did you mean \"auth_basic_user_file\"?",
        ),
        (
            server("location / { } location / { }"),
            "duplicate location \"/\" in %%DIR%%/nginx.conf:4",
            "= first in %%DIR%%/nginx.conf:4",
        ),
        (
            server("location / { return 200 $hots; }"),
            "unknown \"hots\" variable",
            "= did you mean \"$host\"?",
        ),
        (
            server("rewrite ^/a /b lastt;"),
            "invalid parameter \"lastt\" in %%DIR%%/nginx.conf:4",
            "= syntax: rewrite regex replacement [last | break | redirect | permanent];",
        ),
    ] {
        mistake(&text, first, &[below]);
    }
}

#[test]
fn http2_in_a_listen_line() {
    if skip_on_oracle("nginx 1.22 has no other place for it") {
        return;
    }
    let finished = whole(
        "events {}\nhttp {\n  access_log off;\n  server {\n    listen 127.0.0.1:%%PORT%% http2;\n  }\n}\n",
    )
    .test();
    let first = "weir: [warn] the \"listen ... http2\" directive is deprecated, use the \"http2\" directive instead in %%DIR%%/nginx.conf:5";
    assert_eq!(finished.first_line(), first);
    assert!(
        finished.stderr.contains("write \"http2 on;\""),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_user_that_is_not_there() {
    if skip_on_oracle("the notes are Weir's") {
        return;
    }
    let finished = whole("user nobdy;\nevents {}\n").test();
    // Only root looks.
    if finished.first_line().contains("getpwnam") {
        let told = "this system has no user \"nobdy\"";
        assert!(finished.stderr.contains(told), "{}", finished.stderr);
    }
}

#[test]
fn files_of_other_programs_are_recognised() {
    for (text, format) in [
        ("{\"listen\": 80}\n", "JSON"),
        ("server:\n  listen: 80\n", "YAML"),
        (
            "<VirtualHost *:80>\n  DocumentRoot /srv\n</VirtualHost>\n",
            "an Apache configuration",
        ),
        (
            "example.com {\n  reverse_proxy localhost:3000\n}\n",
            "a Caddyfile",
        ),
    ] {
        let finished = whole(text).test();
        assert_eq!(finished.code, 1);
        if is_oracle() {
            continue;
        }
        let told = format!("= this looks like {format}; Weir reads an nginx.conf");
        assert!(finished.stderr.contains(&told), "{}", finished.stderr);
        // The blocks that are missing are not the mistake.
        assert!(
            !finished.stderr.contains("no \"events\""),
            "{}",
            finished.stderr
        );
    }
}

#[test]
fn a_server_without_a_certificate_is_shown() {
    for context in ["http", "stream"] {
        if context == "stream" && is_oracle() {
            // Debian's is a module that has to be loaded.
            continue;
        }
        mistake(
            &format!(
                "events {{}}\n{context} {{\n  server {{\n    listen 127.0.0.1:8443 ssl;\n  }}\n}}\n"
            ),
            "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive in %%DIR%%/nginx.conf:3",
            &["3 |   server {", "|   ^^^^^^^^"],
        );
    }
}
