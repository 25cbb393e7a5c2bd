//! `sub_filter`: text that is replaced on its way.

use weir_tests::{Site, http};

fn site(directives: &str) -> Site {
    let conf = format!(
        "types {{ text/html html; text/plain txt; }} server {{ listen 127.0.0.1:%%PORT%%; {directives} }}"
    );
    http(&conf)
}

/// What `text` becomes.
fn becomes(directives: &str, text: &str) -> String {
    let server = site(directives).file("html/a.html", text).start();
    server.get("/a.html?x=X&y=Y").expect(200).text()
}

#[test]
fn texts_are_replaced_in_any_case() {
    assert_eq!(becomes("sub_filter foo bar;", "a foo b foo"), "a bar b foo");
    assert_eq!(
        becomes(
            "sub_filter foo bar; sub_filter_once off;",
            "a foo b Foo FOO"
        ),
        "a bar b bar bar"
    );
    assert_eq!(
        becomes("sub_filter FoO ''; sub_filter_once off;", "foofoofo"),
        "fo"
    );
    assert_eq!(becomes("sub_filter x y;", ""), "");
    assert_eq!(
        becomes("sub_filter ab x; sub_filter_once off;", "aab"),
        "ax"
    );
    assert_eq!(
        becomes("sub_filter aab x; sub_filter_once off;", "aaab aab"),
        "ax x"
    );
}

#[test]
fn of_several_texts_each_is_replaced() {
    let directives = "sub_filter one 1; sub_filter two 2; sub_filter three 3;";
    assert_eq!(
        becomes(directives, "three two one two one"),
        "3 2 1 two one"
    );
    assert_eq!(
        becomes(
            &format!("{directives} sub_filter_once off;"),
            "onetwothree onetwothree"
        ),
        "123 123"
    );
    // What begins first wins, and of those that begin together the one that was named first.
    assert_eq!(
        becomes(
            "sub_filter abcd 1; sub_filter bc 2; sub_filter_once off;",
            "abcd abc-"
        ),
        "1 a2-"
    );
    assert_eq!(
        becomes(
            "sub_filter ab 1; sub_filter abc 2; sub_filter_once off;",
            "abc"
        ),
        "1c"
    );
}

#[test]
fn texts_and_replacements_may_hold_variables() {
    assert_eq!(
        becomes("sub_filter _${arg_x}_ '<$arg_y>';", "a _x_ b"),
        "a <Y> b"
    );
    assert_eq!(
        becomes(
            "sub_filter a$arg_none '<$arg_y>'; sub_filter $arg_none z;",
            "cab"
        ),
        "c<Y>b"
    );
    assert_eq!(becomes("sub_filter '$arg_none' z;", "cab"), "cab");
}

#[test]
fn types_validators_and_inheritance() {
    let server = site(
        "sub_filter a b;
         location /kept/ { alias %%DIR%%/html/; sub_filter_last_modified on; }
         location /plain/ { alias %%DIR%%/html/; sub_filter_types text/plain; }
         location /own/ { alias %%DIR%%/html/; sub_filter x y; }
         location /head { return 200 aaa; }",
    )
    .file("html/a.html", "aaa")
    .file("html/a.txt", "aaa")
    .start();
    server.answers(&[
        ("/a.html", 200, "baa"),
        ("/a.txt", 200, "aaa"),
        ("/kept/a.html", 200, "baa"),
        ("/plain/a.html", 200, "baa"),
        ("/plain/a.txt", 200, "baa"),
        ("/own/a.html", 200, "aaa"),
    ]);
    let reply = server.get("/a.html");
    assert!(!reply.has("Last-Modified") && !reply.has("ETag") && !reply.has("Content-Length"));
    assert!(!reply.has("Accept-Ranges"));
    let reply = server.get("/kept/a.html");
    assert!(reply.has("Last-Modified") && reply.field("ETag").starts_with("W/"));
    let reply = server.get("/a.txt");
    assert!(reply.field("ETag").starts_with('"') && reply.has("Content-Length"));
    assert!(
        !server
            .request("HEAD", "/a.html", &[])
            .expect(200)
            .has("Content-Length")
    );
}

#[test]
fn texts_are_found_across_pieces() {
    // 10 bytes, so that pieces of a power of two end at every place of it.
    let text = "..<needle>";
    let directives =
        "output_buffers 1 1k; sub_filter '<NEEDLE>' '[found it]'; sub_filter_once off;";
    let wanted = "..[found it]".repeat(50_000);
    assert!(becomes(directives, &text.repeat(50_000)) == wanted);
    let wanted = format!("{}..<need", "..[found it]".repeat(5_000));
    assert!(becomes(directives, &format!("{}..<need", text.repeat(5_000))) == wanted);
    // The beginning of a long text that does not come, and another one in it.
    let directives = "sub_filter aaaaaaaaaab 1; sub_filter ac 2; sub_filter_once off;";
    let wanted = format!("{}2", "a".repeat(99_999));
    assert!(becomes(directives, &format!("{}c", "a".repeat(100_000))) == wanted);
}

#[test]
fn wrong_lines_are_errors() {
    let many: String = (0..256).map(|i| format!("sub_filter a{i} b;")).collect();
    for (directives, why) in [
        ("sub_filter '' x;", "empty search pattern"),
        (&many, "number of search patterns exceeds 255"),
    ] {
        let tested = site(directives).test();
        assert!(
            tested.code != 0 && tested.stderr.contains(why),
            "{}",
            tested.stderr
        );
    }
}

#[test]
fn ranges_and_conditions_of_replaced_content() {
    let server = site("sub_filter a b; sub_filter_last_modified on;")
        .file("html/a.html", "aaa")
        .start();
    let reply = server
        .get_with("/a.html", &["Range: bytes=0-0"])
        .expect(200);
    assert_eq!(reply.text(), "baa");
    let modified = reply.field("Last-Modified").to_owned();
    server
        .get_with("/a.html", &[&format!("If-Modified-Since: {modified}")])
        .expect(304);
}
