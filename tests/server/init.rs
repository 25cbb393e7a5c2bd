//! `weir init`: configurations to begin with. Those without TLS are nginx's language, so nginx takes them too.

use weir_tests::{Finished, run, server_path, skip_on_oracle, whole};

const KINDS: [&str; 8] = [
    "static", "spa", "php", "proxy", "cache", "s3", "balance", "stream",
];

/// Tests a configuration. `/var/cache` is not everybody's to write, and ports below 1024 are not.
fn tested(text: &str) -> Finished {
    let text = text
        .replace("/var/cache/weir", "%%DIR%%/cache")
        .replace("listen 80;", "listen 127.0.0.1:%%PORT%%;")
        .replace("listen 443", "listen 127.0.0.1:%%PORT1%%")
        .replace("listen 127.0.0.1:8443", "listen 127.0.0.1:%%PORT2%%")
        // Names of the network are not known everywhere.
        .replace("server s3.eu-central-1.amazonaws.com", "server 127.0.0.1");
    whole(&text).test()
}

#[test]
fn each_passes_the_test() {
    let weir = match std::env::var_os("ORACLE") {
        None => server_path().to_owned(),
        // Weir writes them for nginx, where it was built before.
        Some(_) => match std::env::var_os("WEIR_BIN") {
            Some(weir) => weir.into(),
            None => return println!("skipped on nginx: WEIR_BIN names no Weir to write them"),
        },
    };
    for kind in KINDS {
        let written = std::process::Command::new(&weir)
            .args(["init", kind])
            .output();
        let text = written.expect("it runs").stdout;
        let text = String::from_utf8(text).expect("text");
        assert!(
            text.lines().any(|line| line.trim_start().starts_with("# ")),
            "{text}"
        );
        // Debian's nginx has stream as a module.
        if kind == "stream" && weir_tests::is_oracle() {
            continue;
        }
        let finished = tested(&text);
        assert_eq!(finished.code, 0, "{kind}: {}", finished.stderr);
        let is_known = |line: &&str| !line.contains("\"user\"");
        let mut warned = finished
            .stderr
            .lines()
            .filter(|line| line.contains("[warn]"));
        assert_eq!(warned.find(is_known), None, "{kind}");
    }
}

#[test]
fn each_has_tls_for_a_name() {
    if skip_on_oracle("certificates that renew themselves are a module there") {
        return;
    }
    for kind in KINDS {
        let written = run(&["init", kind, "--domain", "www.example.org"]);
        assert!(written.stdout.contains("acme_certificate"), "{kind}");
        let finished = tested(&written.stdout);
        assert_eq!(finished.code, 0, "{kind}: {}", finished.stderr);
    }
}

#[test]
fn a_file_that_is_there_is_left_alone() {
    if skip_on_oracle("nginx has no `init`") {
        return;
    }
    let site = whole("events {}").file("old.conf", "mine");
    let path = |name: &str| site.path(name).display().to_string();
    let refused = run(&["init", "static", &path("old.conf")]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.stderr.contains("already exists"),
        "{}",
        refused.stderr
    );
    let written = run(&["init", "static", &path("new.conf")]);
    assert_eq!(written.code, 0, "{}", written.stderr);
    assert!(site.path("new.conf").exists());
    let listed = run(&["init"]);
    for kind in KINDS {
        assert!(listed.stdout.contains(kind), "{}", listed.stdout);
    }
}
