//! `secure_link`: links that cannot be made up.

use weir_tests::http;

/// MD5 of `secret/a.html`, in base64url.
const HASH: &str = "BT2w_TVigDibQdWgH-N1aQ";
/// MD5 of `secret/timed.html4000000000`, in base64url.
const FUTURE: &str = "SR9yA7j4PL9hrxGZJnhAGg";
/// MD5 of `secret/timed.html1000000000`, in base64url with padding.
const PAST: &str = "y6KPxjcB_CVhA0zuRzgT2A==";
/// MD5 of `a.htmlword`, in hexadecimal.
const PATH: &str = "aa73b8cee19a178220c32e33793e1154";
/// MD5 of `a.html?x=1word`, in hexadecimal.
const PATH_WITH_ARGS: &str = "5b2fa4edc1cce879e583703ca70dcdc1";

#[test]
fn the_result_is_a_variable() {
    let server = http(
        "server {
            listen 127.0.0.1:%%PORT%%;
            secure_link $arg_h;
            secure_link_md5 secret$uri;
            location / { return 200 '($secure_link)($secure_link_expires)'; }
            location /timed.html {
                secure_link $arg_h,$arg_e;
                secure_link_md5 secret$uri$arg_e;
                return 200 '($secure_link)($secure_link_expires)';
            }
            location /p/ { secure_link_secret word; return 200 '($secure_link)'; }
        }",
    )
    .start();
    let rows = [
        (format!("/a.html?h={HASH}"), "(1)()"),
        (format!("/a.html?h={HASH}=="), "(1)()"),
        (format!("/b.html?h={HASH}"), "()()"),
        ("/a.html".to_owned(), "()()"),
        (format!("/a.html?h={}", &HASH[1..]), "()()"),
        (format!("/a.html?h={HASH}AAAA"), "()()"),
        ("/a.html?h=%00".to_owned(), "()()"),
        (
            format!("/timed.html?h={FUTURE}&e=4000000000"),
            "(1)(4000000000)",
        ),
        (
            format!("/timed.html?h={PAST}&e=1000000000"),
            "(0)(1000000000)",
        ),
        (
            format!("/timed.html?h={FUTURE}&e=4000000001"),
            "()(4000000001)",
        ),
        (format!("/timed.html?h={FUTURE}&e=x"), "()()"),
        (format!("/timed.html?h={FUTURE}&e=0"), "()()"),
        (format!("/p/{PATH}/a.html"), "(a.html)"),
        (format!("/p/{}/a.html", PATH.to_uppercase()), "(a.html)"),
        (format!("/p/{PATH_WITH_ARGS}/a.html?x=1"), "(a.html?x=1)"),
        (format!("/p/{PATH}/b.html"), "()"),
        (format!("/p/{PATH}/"), "()"),
        (format!("/p/{}/a.html", &PATH[1..]), "()"),
        ("/p/x/a.html".to_owned(), "()"),
        ("/p/a.html".to_owned(), "()"),
    ];
    let rows: Vec<_> = rows
        .iter()
        .map(|(target, text)| (target.as_str(), 200, *text))
        .collect();
    server.answers(&rows);
}

#[test]
fn the_two_forms_do_not_mix() {
    let tested =
        http("server { secure_link_secret word; secure_link $arg_h; secure_link_md5 x; }").test();
    assert!(tested.code != 0, "{}", tested.stderr);
    let why = "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"";
    assert!(tested.stderr.contains(why), "{}", tested.stderr);
}
