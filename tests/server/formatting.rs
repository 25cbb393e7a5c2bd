//! `weir fmt`: one layout, the same configuration.

use std::io::Write as _;
use std::process::{Command, Stdio};

use weir_tests::{Finished, Site, server_path, skip_on_oracle, whole};

const UGLY: &str = "# top\nevents{}\nhttp{map $a $b{default 1;longer 2;}\n\n\n\n  server {listen 80;# here\n root '/a b';}}\n";
const NICE: &str = "# top\nevents {}\nhttp {\n    map $a $b {\n        default 1;\n        longer  2;\n    }\n\n    \
                    server {\n        listen 80; # here\n        root '/a b';\n    }\n}\n";

fn fmt(site: &Site, arguments: &[&str]) -> Finished {
    let folder = site.path("");
    let output = Command::new(server_path())
        .arg("fmt")
        .args(arguments)
        .current_dir(folder)
        .output();
    Finished::from(output.expect("the binary runs"))
}

fn read(site: &Site, file: &str) -> String {
    std::fs::read_to_string(site.path(file)).expect("the file is there")
}

#[test]
fn files_are_written_checked_and_compared() {
    if skip_on_oracle("nginx does not format") {
        return;
    }
    let site = whole("events {}").file("a.conf", UGLY).file("b.conf", NICE);
    let checked = fmt(&site, &["--check", "a.conf", "b.conf"]);
    assert_eq!((checked.code, checked.stdout.as_str()), (1, "a.conf\n"));
    let compared = fmt(&site, &["--diff", "a.conf"]);
    assert_eq!(compared.code, 1);
    assert!(
        compared.stdout.contains("-events{}\n"),
        "{}",
        compared.stdout
    );
    assert!(
        compared.stdout.contains("+events {}\n"),
        "{}",
        compared.stdout
    );
    assert_eq!(read(&site, "a.conf"), UGLY, "neither writes");
    assert_eq!(fmt(&site, &["a.conf"]).code, 0);
    assert_eq!(read(&site, "a.conf"), NICE);
    assert_eq!(fmt(&site, &["--check", "a.conf", "b.conf"]).code, 0);
}

#[test]
fn what_does_not_parse_is_left_alone() {
    if skip_on_oracle("nginx does not format") {
        return;
    }
    let broken = "events {\n  a\n}\n";
    let site = whole("events {}")
        .file("broken.conf", broken)
        .file("a.conf", UGLY);
    let finished = fmt(&site, &["broken.conf", "a.conf", "missing.conf"]);
    assert_eq!(finished.code, 2);
    assert!(
        finished.stderr.contains("unexpected \"}\""),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("broken.conf:3"),
        "{}",
        finished.stderr
    );
    assert!(
        finished.stderr.contains("missing.conf"),
        "{}",
        finished.stderr
    );
    assert_eq!(read(&site, "broken.conf"), broken);
    assert_eq!(
        read(&site, "a.conf"),
        NICE,
        "the others are written nevertheless"
    );
}

#[test]
fn includes_only_when_asked() {
    if skip_on_oracle("nginx does not format") {
        return;
    }
    let site = whole("events {}")
        .file("main.conf", "include  part/*.conf;\n")
        .file("part/a.conf", "a  b;\n");
    assert_eq!(fmt(&site, &["main.conf"]).code, 0);
    assert_eq!(read(&site, "main.conf"), "include part/*.conf;\n");
    assert_eq!(read(&site, "part/a.conf"), "a  b;\n");
    assert_eq!(fmt(&site, &["--includes", "main.conf"]).code, 0);
    assert_eq!(read(&site, "part/a.conf"), "a b;\n");
}

#[test]
fn rights_and_links_stay() {
    use std::os::unix::fs::PermissionsExt as _;
    if skip_on_oracle("nginx does not format") {
        return;
    }
    let site = whole("events {}").file("real.conf", UGLY);
    let (real, link) = (site.path("real.conf"), site.path("link.conf"));
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
    std::os::unix::fs::symlink("real.conf", &link).expect("the folder is ours");
    assert_eq!(fmt(&site, &["link.conf"]).code, 0);
    assert!(link.symlink_metadata().expect("there").is_symlink());
    let mode = real.metadata().expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
    assert_eq!(read(&site, "real.conf"), NICE);
}

#[test]
fn from_input_to_output() {
    if skip_on_oracle("nginx does not format") {
        return;
    }
    let mut child = Command::new(server_path())
        .args(["fmt", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(UGLY.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), NICE);
}
