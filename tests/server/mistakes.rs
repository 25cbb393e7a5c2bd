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

#[test]
fn a_misspelt_signal() {
    if skip_on_oracle("nginx has one line") {
        return;
    }
    let finished = run(&["-s", "relaod"]);
    assert_eq!(finished.first_line(), "weir: invalid option: \"-s relaod\"");
    let help = "did you mean \"reload\"? -s takes stop, quit, reopen, reload";
    assert!(finished.stderr.contains(help), "{}", finished.stderr);
}
