//! `dav`: files written, removed, copied and moved by clients.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use weir_tests::{Reply, Server, http, skip_on_oracle};

fn start() -> Server {
    let conf = "server { listen 127.0.0.1:%%PORT%%;
        absolute_redirect off;
        client_max_body_size 1m;
        location / { dav_methods PUT DELETE MKCOL COPY MOVE; dav_access group:rw all:r; min_delete_depth 2; }
        location /deep { dav_methods PUT; create_full_put_path on; }
        location /read { dav_methods off; }
    }";
    http(conf)
        .file("html/d/a", "first")
        .file("html/d/sub/b", "second")
        .file("html/read/a", "read")
        .start()
}

fn put(server: &Server, target: &str, content: &str) -> Reply {
    server.raw(format!(
        "PUT {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{content}",
        content.len()
    ))
}

fn status(server: &Server, method: &str, target: &str, lines: &[&str]) -> u16 {
    server.request(method, target, lines).status
}

#[test]
fn a_file_is_put() {
    let server = start();
    let reply = put(&server, "/d/new%20one", "content").expect(201);
    assert_eq!(reply.field("Location"), "/d/new%20one");
    assert_eq!(server.read("html/d/new one"), "content");
    let mode =
        fs::metadata(server.path("html/d/new one")).map(|file| file.permissions().mode() & 0o777);
    assert_eq!(mode.ok(), Some(0o664));
    assert_eq!(put(&server, "/d/new%20one", "").status, 204);
    assert_eq!(server.read("html/d/new one"), "");
    assert_eq!(put(&server, "/d/", "content").status, 409);
    assert_eq!(put(&server, "/d", "content").status, 409);
    assert!(matches!(
        put(&server, "/none/a", "content").status,
        409 | 500
    ));
    assert_eq!(put(&server, "/read/a", "content").status, 405);
    assert_eq!(put(&server, "/d/big", &"x".repeat(2_000_000)).status, 413);
    assert_eq!(server.read("html/d/big"), "");
}

#[test]
fn an_upload_that_breaks_off_leaves_the_old_file() {
    let server = start();
    let mut connection = server.connect();
    connection.send("PUT /d/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf");
    drop(connection);
    server.line("access.log", "PUT /d/a");
    assert_eq!(server.read("html/d/a"), "first");
}

#[test]
fn directories_on_the_way_are_made_when_that_is_allowed() {
    let server = start();
    assert_eq!(put(&server, "/deep/a/b/c", "content").status, 201);
    assert_eq!(server.read("html/deep/a/b/c"), "content");
}

#[test]
fn files_and_directories_are_removed() {
    let server = start();
    assert_eq!(
        status(&server, "DELETE", "/d/", &[]),
        409,
        "not deep enough"
    );
    assert_eq!(status(&server, "DELETE", "/d/none", &[]), 404);
    assert_eq!(
        status(&server, "DELETE", "/d/sub", &[]),
        409,
        "a directory has a slash"
    );
    assert_eq!(status(&server, "DELETE", "/d/sub/", &["Depth: 0"]), 400);
    assert_eq!(status(&server, "DELETE", "/d/a", &["Depth: 1"]), 400);
    assert_eq!(status(&server, "DELETE", "/d/a", &[]), 204);
    assert_eq!(status(&server, "DELETE", "/d/sub/", &[]), 204);
    assert!(!server.path("html/d/sub").exists() && !server.path("html/d/a").exists());
    let with_body = "DELETE /d/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
    assert_eq!(server.raw(with_body).status, 415);
}

#[test]
fn collections_are_made() {
    let server = start();
    assert_eq!(
        server.request("MKCOL", "/d/new/", &[]).expect(201).text(),
        ""
    );
    assert!(server.path("html/d/new").is_dir());
    assert_eq!(status(&server, "MKCOL", "/d/new/", &[]), 405);
    assert_eq!(status(&server, "MKCOL", "/d/other", &[]), 409);
    assert_eq!(status(&server, "MKCOL", "/none/new/", &[]), 409);
}

#[test]
fn files_are_copied_and_moved() {
    let server = start();
    let to = |method: &str, from: &str, lines: &[&str]| status(&server, method, from, lines);
    assert_eq!(to("COPY", "/d/a", &["Destination: /d/copy"]), 204);
    assert_eq!(server.read("html/d/copy"), "first");
    assert_eq!(
        to(
            "COPY",
            "/d/sub/b",
            &["Destination: /d/copy", "Overwrite: F"]
        ),
        412
    );
    assert_eq!(
        to(
            "COPY",
            "/d/sub/b",
            &["Destination: http://localhost/d/copy"]
        ),
        204
    );
    assert_eq!(server.read("html/d/copy"), "second");
    assert_eq!(
        to("MOVE", "/d/copy", &["Destination: /d/new/dir/moved"]),
        204
    );
    assert_eq!(server.read("html/d/new/dir/moved"), "second");
    assert!(!server.path("html/d/copy").exists());

    assert_eq!(to("COPY", "/d/a", &[]), 400);
    assert_eq!(
        to("COPY", "/d/a", &["Destination: http://elsewhere/d/copy"]),
        400
    );
    assert_eq!(
        to("COPY", "/d/a", &["Destination: /d/%2e%2e/%2e%2e/%2e%2e/x"]),
        400
    );
    assert_eq!(to("COPY", "/d/a", &["Destination: /d/dir/"]), 409);
    assert_eq!(to("COPY", "/d/none", &["Destination: /d/x"]), 404);
    assert_eq!(
        to("COPY", "/d/a", &["Destination: /d/x", "Overwrite: maybe"]),
        400
    );
    assert_eq!(to("MOVE", "/d/a", &["Destination: /d/x", "Depth: 0"]), 400);
}

#[test]
fn directories_are_copied_and_moved() {
    let server = start();
    let to = |method: &str, from: &str, lines: &[&str]| status(&server, method, from, lines);
    assert_eq!(to("COPY", "/d/", &["Destination: /copy/"]), 201);
    assert_eq!(server.read("html/copy/sub/b"), "second");
    assert_eq!(
        to("MOVE", "/d/sub/", &["Destination: /copy/", "Overwrite: F"]),
        412
    );
    assert_eq!(to("MOVE", "/d/sub/", &["Destination: /copy/"]), 201);
    assert_eq!(server.read("html/copy/b"), "second");
    assert!(!server.path("html/copy/a").exists() && !server.path("html/d/sub").exists());
}

#[test]
fn nothing_is_copied_onto_or_into_itself() {
    if skip_on_oracle("nginx 1.22 empties the file, and copies until the disk is full") {
        return;
    }
    let server = start();
    let to = |method: &str, from: &str, to: &str| status(&server, method, from, &[to]);
    assert_eq!(to("COPY", "/d/a", "Destination: /d/a"), 403);
    assert_eq!(to("MOVE", "/d/a", "Destination: /d/a"), 403);
    assert_eq!(to("COPY", "/d/", "Destination: /d/sub/inside/"), 403);
    assert_eq!(to("MOVE", "/d/sub/", "Destination: /d/"), 403);
    assert_eq!(server.read("html/d/a"), "first");
    assert_eq!(server.read("html/d/sub/b"), "second");
}
