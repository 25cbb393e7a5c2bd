//! `weir check`, and what `-t` says of attacks.

use std::path::Path;

use weir_tests::{Finished, Site, http, run, skip_on_oracle, whole};

const LEAKING: &str = "server {
    listen 127.0.0.1:%%PORT%%;
    listen 8.8.8.8:80;
    location /img { alias /srv/img/; }
    location /old { return 301 https://new.test$uri; }
}";

fn check(site: &Site, more: &[&str]) -> Finished {
    let prefix = site.path("").display().to_string();
    let words = ["check", "-p", &prefix, "-c", "nginx.conf"];
    run(&[&words[..], more].concat())
}

/// The site as a file that the program reads.
fn written(block: &str) -> Site {
    let text = format!(
        "events {{ }} http {{ access_log off; {} }}",
        block.replace("%%PORT%%", "80")
    );
    whole("").file("nginx.conf", text).folder("logs")
}

#[test]
fn findings_have_their_line_why_and_what_to_write() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let site = written(LEAKING);
    let finished = check(&site, &[]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    let place = site.path("nginx.conf").display().to_string();
    for text in [
        format!("attack: \"/img../\" escapes from the directory \"/srv/img/\" in {place}:4"),
        "alias-traversal: ".to_owned(),
        "= fix: add a trailing slash to the location".to_owned(),
        format!("risk: $uri can contain line breaks in {place}:5"),
        "2 findings, 1 exploitable".to_owned(),
    ] {
        assert!(
            finished.stdout.contains(&text),
            "{text} in {}",
            finished.stdout
        );
    }
}

#[test]
fn findings_are_there_for_programs_too() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let finished = check(&written(LEAKING), &["--json"]);
    assert_eq!(finished.code, 1);
    let text = &finished.stdout;
    assert!(
        text.starts_with("{\n  \"errors\": [],\n  \"findings\": [\n"),
        "{text}"
    );
    for part in [
        "{\"rule\": \"alias-traversal\", \"danger\": \"attack\", \"message\": \"\\\"/img../\\\" escapes from",
        "nginx.conf\", \"line\": 4, \"column\": 21, \"text\": \"alias /srv/img/;\", \"why\": \"",
        "{\"rule\": \"line-breaks\", \"danger\": \"risk\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(text.ends_with("\"}]\n}\n"), "{text}");
    let clean = check(&written("server { listen 80; }"), &["--json"]);
    assert_eq!(clean.code, 0, "{}", clean.stdout);
}

#[test]
fn a_rule_is_explained_with_an_example() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let one = run(&["check", "--explain", "alias-traversal"]);
    assert_eq!(one.code, 0);
    assert!(
        one.stdout
            .contains("found:      server { location /x { alias"),
        "{}",
        one.stdout
    );
    let all = run(&["check", "--explain", "all"]);
    assert!(all.stdout.lines().count() > 20, "{}", all.stdout);
    assert_eq!(run(&["check", "--explain", "nothing"]).code, 2);
}

/// Also of a configuration that this machine cannot run.
#[test]
fn what_cannot_be_used_is_checked_all_the_same() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let site = written(&format!("no_such_directive; {LEAKING}"));
    let finished = check(&site, &[]);
    assert_eq!(finished.code, 2);
    assert!(
        finished
            .stderr
            .contains("unknown directive \"no_such_directive\"")
    );
    assert!(
        finished.stdout.contains("alias-traversal"),
        "{}",
        finished.stdout
    );
}

#[test]
fn a_comment_says_what_is_meant() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let at_the_end = LEAKING.replace(
        "/srv/img/; }",
        "/srv/img/; } # weir check: allow alias-traversal",
    );
    let above = at_the_end.replace(
        "    location /old",
        "    # weir check: allow line-breaks, other\n    location /old",
    );
    let finished = check(&written(&above), &[]);
    assert_eq!(finished.code, 0);
    assert!(finished.stdout.starts_with("nothing found in "));
}

#[test]
fn a_test_warns_of_what_attackers_can_use() {
    if skip_on_oracle("nginx does not look") {
        return;
    }
    let test = |address: &str| {
        let block = LEAKING.replace("127.0.0.1", address);
        let block = block.replace("listen 8.8.8.8:80;", "");
        whole(&format!("events {{ }} http {{ access_log off; {block} }}")).test()
    };
    // There may be a proxy in front that brings clients.
    let local = test("127.0.0.1");
    assert_eq!(local.code, 0, "{}", local.stderr);
    assert!(local.stderr.contains("escapes from"), "{}", local.stderr);
    let finished = test("0.0.0.0");
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(
        finished
            .stderr
            .contains("[warn] \"/img../\" escapes from the directory"),
        "{}",
        finished.stderr
    );
    assert!(
        !finished.stderr.contains("line breaks"),
        "{}",
        finished.stderr
    );
}

#[test]
fn what_lies_below_a_root_is_seen() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let server = |more: &str| format!("server {{ listen 80; root site; {more} }}");
    let files = |more: &str| {
        written(&server(more))
            .file("site/.git/HEAD", "ref")
            .file("site/index.html", "")
    };
    let open = check(&files(""), &[]);
    assert!(
        open.stdout.contains("/.git/HEAD\", as /.git/HEAD"),
        "{}",
        open.stdout
    );
    for more in [
        "location ~ /\\. { deny all; }",
        "location / { proxy_pass http://127.0.0.1:1; }",
        "if ($request_uri ~ /\\.git) { return 404; }",
        "location ^~ /.git { return 404; }",
        "auth_basic a; auth_basic_user_file /nowhere/users;",
        "try_files /index.html =404;",
    ] {
        let finished = check(&files(more), &[]);
        assert!(
            !finished.stdout.contains("secret-served"),
            "{more}: {}",
            finished.stdout
        );
    }
}

/// No false alarm at the examples of this repository.
#[test]
fn nothing_is_found_in_the_examples() {
    if skip_on_oracle("weir's own command") {
        return;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(&examples).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|end| end == "conf") {
            let folder = examples.display().to_string();
            let file = path.display().to_string();
            let finished = run(&["check", "-p", &folder, "-c", &file]);
            assert!(finished.stdout.starts_with("nothing found in "), "{file}");
            seen += 1;
        }
    }
    assert!(seen > 3);
}

/// The blocks that the other tests of a page have, in one server that runs: a finding does not keep it from starting.
#[test]
fn a_server_starts_whatever_is_found() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; location /img { alias html/; } }")
        .file("html/a.txt", "text")
        .start();
    server.answers(&[("/img/a.txt", 200, "text")]);
}
