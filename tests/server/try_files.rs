//! `try_files`: files, folders, fallbacks, and what an alias does to all of them.

use weir_tests::{Site, http};

fn site(locations: &str) -> Site {
    let conf = format!("server {{ listen 127.0.0.1:%%PORT%%; {locations} }}");
    http(&conf)
        .file("html/a.html", "file a")
        .file("html/d/index.html", "index of d")
        .file("html/other/b.txt", "file b")
        .file("html/fallback.html", "fallback")
}

#[test]
fn the_first_that_is_there_wins() {
    let server = site(
        "location / { try_files $uri $uri.html $uri/ /fallback.html; }
         location = /fixed { try_files /none /a.html =404; }",
    )
    .start();
    server.answers(&[
        ("/a.html", 200, "file a"),
        ("/a", 200, "file a"),
        ("/d/", 200, "index of d"),
        ("/nothing", 200, "fallback"),
        ("/nothing/at/all", 200, "fallback"),
        ("/fixed", 200, "file a"),
    ]);
}

#[test]
fn a_slash_means_a_folder_and_no_slash_a_file() {
    let server = site(
        "location = /file-as-folder { try_files /a.html/ =404; }
         location = /folder-as-file { try_files /d =404; }
         location = /folder { try_files /d/ =404; }",
    )
    .start();
    assert_eq!(server.get("/file-as-folder").status, 404);
    assert_eq!(server.get("/folder-as-file").status, 404);
    let folder = server.get("/folder").expect(301);
    assert!(folder.field("Location").ends_with("/d/"));
}

#[test]
fn the_last_is_a_status_a_named_location_or_a_path_with_arguments() {
    let server = site(
        "location /status { try_files $uri =410; }
         location /odd { try_files $uri =204; }
         location /named { try_files $uri @other; }
         location /path { try_files $uri /seen?x=$arg_a&y=2; }
         location @other { return 200 \"other $uri\"; }
         location = /seen { return 200 \"$uri $args\"; }",
    )
    .start();
    server.answers(&[
        ("/named/x", 200, "other /named/x"),
        ("/path?a=1", 200, "/seen x=1&y=2"),
    ]);
    assert_eq!(server.get("/status").status, 410);
    assert_eq!(server.get("/odd").status, 204);
}

#[test]
fn an_alias_is_looked_in_by_what_follows_the_location() {
    let server = site(
        "location /images/ { alias %%DIR%%/html/other/; try_files $uri $uri.txt =404; }
         location /fixed/ { alias %%DIR%%/html/; try_files a.html =404; }
         location ~ ^/re/(.*)$ { alias %%DIR%%/html/other; try_files /none /$1 =404; }
         location ~ ^/type/ { alias %%DIR%%/html; try_files /a.html =404; }",
    )
    .start();
    server.answers(&[
        ("/images/b.txt", 200, "file b"),
        ("/images/b", 200, "file b"),
        ("/fixed/x", 200, "file a"),
        ("/re/b.txt", 200, "file b"),
        ("/type/x", 200, "file a"),
    ]);
    assert_eq!(server.get("/images/none").status, 404);
    assert_eq!(server.get("/re/a.html").status, 404);
    assert_eq!(server.get("/type/x").field("Content-Type"), "text/html");
}

#[test]
fn it_is_not_inherited() {
    let server = site(
        "location /outer { try_files /a.html =404; location /outer/inner { } }
         try_files /fallback.html =404;",
    )
    .start();
    server.answers(&[("/outer", 200, "file a"), ("/elsewhere", 200, "fallback")]);
    assert_eq!(server.get("/outer/inner").status, 404);
}

#[test]
fn a_loop_of_fallbacks_ends() {
    let server = site("location / { try_files /none /again; }").start();
    server.get("/x").expect(500);
    server.line(
        "error.log",
        "rewrite or internal redirection cycle while internally redirecting to \"/again\"",
    );
}
