//! `weir serve DIR`: a folder as a site without a configuration. nginx has no such command.

use weir_tests::{Signal, Site, run, skip_on_oracle, whole};

const WHY: &str = "nginx has no `serve`";

fn site() -> Site {
    whole("")
        .file("html/index.html", "the index")
        .file("html/a.css", "css { }\n".repeat(500))
        .file("html/list/one.txt", "one")
}

#[test]
fn a_folder_is_served_with_sensible_defaults() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site().serve(&["--port", "%%PORT%%"]);
    server.answers(&[
        ("/", 200, "the index"),
        ("/list/one.txt", 200, "one"),
        ("/none", 404, ""),
    ]);
    let packed = server.get_with("/a.css", &["Accept-Encoding: gzip"]);
    assert_eq!(packed.field("Content-Encoding"), "gzip");
    assert!(packed.field("Content-Type").starts_with("text/css"));
    assert!(server.get("/").has("ETag"));
    let list = server.get("/list/").expect(200).text();
    assert!(list.contains("one.txt"), "{list}");
}

#[test]
fn a_folder_may_have_any_name() {
    if skip_on_oracle(WHY) {
        return;
    }
    for name in [
        "@LISTEN@ @NAME@",
        "$uri",
        "a$",
        "${x}",
        "\"q\" ; {}",
        "a'\\n#",
    ] {
        let site = whole("")
            .file(&format!("{name}/index.html"), name)
            .file(&format!("{name}/list/$1"), "one");
        let server = site.serve_folder(name, &["--port", "%%PORT%%"]);
        server.answers(&[("/", 200, name), ("/list/$1", 200, "one"), ("/x", 404, "")]);
        assert!(server.get("/list/").expect(200).text().contains("$1"));
    }
}

#[test]
fn it_says_where_and_logs_requests() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site().serve(&["--port", "%%PORT%%"]);
    server.line("stderr", &format!("http://127.0.0.1:{}", server.port(0)));
    server.get("/list/one.txt");
    let told = weir_tests::until(|| {
        let said = server.read("stdout") + &server.read("stderr");
        said.contains("/list/one.txt").then_some(said)
    });
    let said = told.expect("a request is logged");
    assert!(
        !said.contains('\u{1b}'),
        "no colours where no terminal is: {said}"
    );
}

#[test]
fn an_interrupt_stops_gracefully() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut server = site().serve(&["--listen", "127.0.0.1:%%PORT%%"]);
    let mut idle = server.connect();
    idle.get("/");
    server.signal(Signal::INT);
    assert!(server.ended().success());
    idle.assert_closed();
}

#[test]
fn a_missing_folder_and_a_taken_port_are_told() {
    if skip_on_oracle(WHY) {
        return;
    }
    let missing = run(&["serve", "no-such-folder"]);
    assert_eq!(missing.code, 1);
    assert!(
        missing.stderr.contains("no-such-folder"),
        "{}",
        missing.stderr
    );

    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback is there");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let folder = std::env::temp_dir();
    let refused = run(&["serve", &folder.to_string_lossy(), "--port", &port]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains(&port), "{}", refused.stderr);
}

#[test]
fn it_writes_nothing_into_the_folder() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site().serve(&["--port", "%%PORT%%"]);
    server.get("/");
    let entries = std::fs::read_dir(server.path("html")).expect("the folder is there");
    let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.css", "index.html", "list"]);
}
