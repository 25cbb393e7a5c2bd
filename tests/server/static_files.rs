//! Static files: types, `index`, `root` and `alias`, redirects to folders, odd paths.

use std::os::unix::fs::symlink;

use weir_tests::http;

#[test]
fn a_file_is_served_with_type_length_date_and_etag() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a.html", "hello")
        .start();
    let reply = server.get("/a.html").expect(200);
    assert_eq!(reply.text(), "hello");
    assert_eq!(reply.version, "HTTP/1.1");
    assert_eq!(reply.reason, "OK");
    assert_eq!(reply.field("Content-Type"), "text/html");
    assert_eq!(reply.field("Content-Length"), "5");
    assert_eq!(reply.field("Accept-Ranges"), "bytes");
    assert!(reply.field("Last-Modified").ends_with(" GMT"));
    assert!(reply.field("Date").ends_with(" GMT"));
    assert!(
        reply.field("ETag").ends_with("-5\""),
        "mtime and length in hexadecimal"
    );
}

#[test]
fn the_fields_come_in_the_order_that_nginx_sends() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a.html", "hello")
        .start();
    let reply = server.get("/a.html");
    let names: Vec<&str> = reply.fields.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "Server",
        "Date",
        "Content-Type",
        "Content-Length",
        "Last-Modified",
        "Connection",
        "ETag",
        "Accept-Ranges",
    ];
    assert_eq!(names, expected);
}

#[test]
fn head_has_the_fields_of_get_and_no_body() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a.html", "hello")
        .start();
    let mut connection = server.connect();
    connection.request("HEAD", "/a.html", &[]);
    let head = connection.reply_to("HEAD").expect(200);
    assert_eq!(head.field("Content-Length"), "5");
    // What follows is the next answer, not a body.
    assert_eq!(connection.get("/a.html").text(), "hello");
}

#[test]
fn types_choose_the_content_type_by_extension() {
    let conf = "
        types { text/css css; image/svg+xml svg svgz; application/x-Odd ODD; }
        default_type application/octet-stream;
        charset_types text/css;
        server {
            listen 127.0.0.1:%%PORT%%;
            location /plain/ { default_type text/plain; }
            location /none/ { types { } default_type x/y; }
            location /empty/ { types { } default_type ''; }
        }";
    let mut site = http(conf);
    let rows = [
        ("a.css", "text/css"),
        ("a.CSS", "text/css"),
        ("a.svgz", "image/svg+xml"),
        ("a.odd", "application/x-Odd"),
        ("a.css.bak", "application/octet-stream"),
        ("css", "application/octet-stream"),
        ("dir.css/file", "application/octet-stream"),
        ("plain/x", "text/plain"),
        ("plain/x.css", "text/css"),
        ("none/x.css", "x/y"),
        ("empty/x.css", ""),
    ];
    for (path, _) in rows {
        site = site.file(&format!("html/{path}"), "x");
    }
    let server = site.start();
    for (path, kind) in rows {
        assert_eq!(
            server
                .get(&format!("/{path}"))
                .expect(200)
                .field("Content-Type"),
            kind,
            "{path}"
        );
    }
}

#[test]
fn types_may_come_from_an_included_file() {
    let server = http("include mime.types; server { listen 127.0.0.1:%%PORT%%; }")
        .file(
            "mime.types",
            "types {\n    text/x-one  one;\n    text/x-two  two deux;\n}\n",
        )
        .file("html/a.deux", "x")
        .file("html/a.html", "x")
        .start();
    assert_eq!(server.get("/a.deux").field("Content-Type"), "text/x-two");
    assert_eq!(
        server.get("/a.html").field("Content-Type"),
        "text/plain",
        "the built-in types are replaced"
    );
}

#[test]
fn index_files_are_tried_in_order() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        index none.html $arg_i.html second.html /fallback.html;
        location /fallback.html { return 200 'fallback $uri'; }
    }";
    let server = http(conf)
        .file("html/a/second.html", "second")
        .file("html/a/third.html", "third")
        .folder("html/b")
        .start();
    server.answers(&[
        ("/a/", 200, "second"),
        ("/a/?i=third", 200, "third"),
        ("/b/", 200, "fallback /fallback.html"),
    ]);
}

#[test]
fn an_index_file_is_an_internal_redirect() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location / { }
        location ~ \\.php$ { return 200 \"php $uri $args\"; }
        index index.php;
    }";
    let server = http(conf).file("html/a/index.php", "<?php").start();
    server.answers(&[("/a/?x=1", 200, "php /a/index.php x=1")]);
}

#[test]
fn a_folder_without_a_slash_is_redirected() {
    let conf = "
        server { listen 127.0.0.1:%%PORT%%; location /rel/ { absolute_redirect off; } location /noport/ { port_in_redirect off; } }
        server { listen 127.0.0.1:%%PORT%%; server_name named; server_name_in_redirect on; }";
    let server = http(conf)
        .folder("html/dir")
        .folder("html/with space")
        .folder("html/rel/dir")
        .folder("html/noport/dir")
        .start();
    let port = server.port(0);
    server.answers(&[
        ("/dir", 301, &format!("http://localhost:{port}/dir/")),
        (
            "/dir?a=b",
            301,
            &format!("http://localhost:{port}/dir/?a=b"),
        ),
        (
            "/with%20space",
            301,
            &format!("http://localhost:{port}/with%20space/"),
        ),
        ("/rel/dir", 301, "/rel/dir/"),
        ("/noport/dir", 301, "http://localhost/noport/dir/"),
    ]);
    let named = server
        .raw("GET /dir HTTP/1.0\r\nHost: NAMED\r\n\r\n")
        .expect(301);
    assert_eq!(named.field("Location"), format!("http://named:{port}/dir/"));
}

#[test]
fn a_folder_without_index_is_forbidden_and_a_missing_file_not_found() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .folder("html/dir")
        .file("html/file", "x")
        .start();
    server.answers(&[
        ("/dir/", 403, ""),
        ("/none", 404, ""),
        ("/none/", 404, ""),
        ("/file/", 404, ""),
        ("/file/x", 404, ""),
    ]);
    server.line("error.log", "directory index of \"");
    server.line("error.log", "open() \"");
}

#[test]
fn log_not_found_off_keeps_the_error_log_quiet() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; location /quiet { log_not_found off; } }";
    let server = http(conf).start();
    server.answers(&[("/quiet", 404, ""), ("/loud", 404, "")]);
    server.line("error.log", "/loud");
    assert!(!server.read("error.log").contains("html/quiet\" failed"));
}

#[test]
fn root_and_alias_map_paths_their_own_way() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /rooted/ { root %%DIR%%/other; }
        location /alias/ { alias %%DIR%%/other/rooted/; }
        location /noslash { alias %%DIR%%/other/rooted/f; }
        location /var/ { root %%DIR%%/$arg_d; }
        location ~ ^/re/(.*)$ { alias %%DIR%%/other/rooted/$1; }
        location = /exact { alias %%DIR%%/other/rooted/f1; }
    }";
    let server = http(conf)
        .file("other/rooted/f1", "one")
        .file("other/rooted/sub/f2", "two")
        .file("other/var/f3", "three")
        .start();
    server.answers(&[
        ("/rooted/f1", 200, "one"),
        ("/alias/f1", 200, "one"),
        ("/alias/sub/f2", 200, "two"),
        ("/noslash1", 200, "one"),
        ("/re/sub/f2", 200, "two"),
        ("/re/none", 404, ""),
        ("/exact", 200, "one"),
        ("/var/f3?d=other", 200, "three"),
        ("/var/f3", 404, ""),
    ]);
}

#[test]
fn alias_redirects_a_folder_by_its_uri() {
    let conf = "server { listen 127.0.0.1:%%PORT%%; absolute_redirect off; location /a/ { alias %%DIR%%/other/; } }";
    let server = http(conf).folder("other/sub").start();
    server.answers(&[("/a/sub", 301, "/a/sub/")]);
}

#[test]
fn dot_segments_never_leave_the_root() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("secret", "secret")
        .file("html/a/b", "b")
        .file("html/...", "three dots")
        .file("html/..x", "x")
        .start();
    server.answers(&[
        ("/a/../a/b", 200, "b"),
        ("/a/./b", 200, "b"),
        ("/./a/b", 200, "b"),
        ("/x/../a/b", 200, "b"),
        ("/%61/%2e%2E/a/b", 200, "b"),
        ("/a%2fb", 200, "b"),
        ("//a///b", 200, "b"),
        ("/...", 200, "three dots"),
        ("/..x", 200, "x"),
        ("/../secret", 400, ""),
        ("/a/../../secret", 400, ""),
        ("/%2e%2e/secret", 400, ""),
        ("/a/..%2f..%2fsecret", 400, ""),
        ("/..", 400, ""),
        ("/a/../..", 400, ""),
        ("/a/%00", 400, ""),
        ("/%zz", 400, ""),
        ("/%2", 400, ""),
    ]);
}

#[test]
fn percent_encoded_names_find_their_files() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a b", "space")
        .file("html/a?b", "question")
        .file("html/a#b", "hash")
        .file("html/ü", "umlaut")
        .file("html/a+b", "plus")
        .start();
    server.answers(&[
        ("/a%20b", 200, "space"),
        ("/a%3Fb", 200, "question"),
        ("/a%23b", 200, "hash"),
        ("/%c3%bc", 200, "umlaut"),
        ("/ü", 200, "umlaut"),
        ("/a+b", 200, "plus"),
        ("/a%20b#fragment", 200, "space"),
    ]);
}

#[test]
fn merge_slashes_off_keeps_them() {
    let conf =
        "server { listen 127.0.0.1:%%PORT%%; merge_slashes off; location / { return 200 $uri; } }";
    http(conf)
        .start()
        .answers(&[("//a///b", 200, "//a///b"), ("/a/b", 200, "/a/b")]);
}

#[test]
fn only_get_and_head_read_files() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a", "x")
        .start();
    for (method, status) in [
        ("GET", 200),
        ("HEAD", 200),
        ("POST", 405),
        ("PUT", 405),
        ("DELETE", 405),
        ("OPTIONS", 405),
    ] {
        assert_eq!(
            server.request(method, "/a", &["Content-Length: 0"]).status,
            status,
            "{method}"
        );
    }
}

#[test]
fn an_empty_and_a_large_file_are_whole() {
    let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        sendfile off;
        location /sendfile/ { alias %%DIR%%/html/; sendfile on; }
        location /chunked/ { alias %%DIR%%/html/; sendfile on; sendfile_max_chunk 64k; }
        location /tcp/ { alias %%DIR%%/html/; sendfile on; tcp_nopush on; tcp_nodelay off; }
        location /directio/ { alias %%DIR%%/html/; directio 1m; output_buffers 2 64k; }
    }";
    let server = http(conf)
        .file("html/empty", "")
        .file("html/large", &large)
        .start();
    for prefix in ["", "/sendfile", "/chunked", "/tcp", "/directio"] {
        let empty = server.get(&format!("{prefix}/empty")).expect(200);
        assert_eq!((empty.body.len(), empty.field("Content-Length")), (0, "0"));
        assert!(
            server.get(&format!("{prefix}/large")).expect(200).body == large,
            "{prefix}"
        );
    }
}

#[test]
fn thread_pools_are_accepted_and_serve() {
    let large = vec![b'x'; 1_000_000];
    let conf = "
        events { }
        thread_pool one threads=4 max_queue=0;
        thread_pool two threads=2;
        http {
            access_log off;
            server {
                listen 127.0.0.1:%%PORT%%;
                root html;
                location /default/ { alias %%DIR%%/html/; aio threads; }
                location /one/ { alias %%DIR%%/html/; aio threads=one; sendfile on; }
                location /two/ { alias %%DIR%%/html/; aio threads=two; sendfile off; aio_write on; }
                location /var/ { alias %%DIR%%/html/; aio threads=$arg_pool; }
                location /off/ { alias %%DIR%%/html/; aio off; }
            }
        }";
    let server = weir_tests::whole(conf).file("html/f", &large).start();
    for target in [
        "/default/f",
        "/one/f",
        "/two/f",
        "/var/f?pool=two",
        "/off/f",
    ] {
        assert!(server.get(target).expect(200).body == large, "{target}");
    }
}

#[test]
fn a_symlink_is_followed_unless_disabled() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        location /on/ { alias %%DIR%%/html/; disable_symlinks on; }
        location /owner/ { alias %%DIR%%/html/; disable_symlinks if_not_owner; }
        location /from/ { alias %%DIR%%/html/linked/; disable_symlinks on from=%%DIR%%/html/linked; }
    }";
    let site = http(conf)
        .file("html/real", "real")
        .file("html/folder/f", "f");
    symlink(site.path("html/real"), site.path("html/link")).expect("the folder is writable");
    symlink(site.path("html/folder"), site.path("html/linked")).expect("the folder is writable");
    let server = site.start();
    server.answers(&[
        ("/link", 200, "real"),
        ("/linked/f", 200, "f"),
        ("/on/real", 200, "real"),
        ("/on/link", 403, ""),
        ("/on/linked/f", 404, ""),
        ("/owner/link", 200, "real"),
        ("/from/f", 200, "f"),
    ]);
}

#[test]
fn open_file_cache_serves_the_same() {
    let conf = "server {
        listen 127.0.0.1:%%PORT%%;
        open_file_cache max=100 inactive=20s;
        open_file_cache_valid 30s;
        open_file_cache_min_uses 1;
        open_file_cache_errors on;
    }";
    let server = http(conf).file("html/a", "one").start();
    for _ in 0..3 {
        server.answers(&[("/a", 200, "one"), ("/none", 404, "")]);
    }
}

#[test]
fn a_changed_file_is_served_as_it_is_now() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; }")
        .file("html/a", "one")
        .start();
    let first = server.get("/a").expect(200);
    std::fs::write(server.path("html/a"), "two, longer").expect("the folder is writable");
    let second = server.get("/a").expect(200);
    assert_eq!(second.text(), "two, longer");
    assert_ne!(first.field("ETag"), second.field("ETag"));
    std::fs::remove_file(server.path("html/a")).expect("the folder is writable");
    server.answers(&[("/a", 404, "")]);
}

#[test]
fn an_unreadable_file_is_forbidden() {
    // A name longer than the file system takes is not found; a fifo is not a file to be served.
    let server = http("server { listen 127.0.0.1:%%PORT%%; }").start();
    server.answers(&[(&format!("/{}", "n".repeat(300)), 404, "")]);
    rustix::fs::mkfifoat(
        rustix::fs::CWD,
        server.path("html/fifo"),
        rustix::fs::Mode::RUSR,
    )
    .expect("the folder is writable");
    server.answers(&[("/fifo", 404, "")]);
}

#[test]
fn the_root_can_be_the_whole_file_system() {
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location %%DIR%% { root /; add_header X-Name $request_filename; } }",
    )
    .file("html/a.html", "hello")
    .start();
    let path = server.path("html/a.html").display().to_string();
    let reply = server.get(&path).expect(200);
    assert_eq!(
        (reply.text(), reply.field("X-Name")),
        ("hello".to_owned(), path.as_str())
    );
}

#[test]
fn an_empty_root_is_the_prefix() {
    let server = http("server { listen 127.0.0.1:%%PORT%%; root \"\"; }")
        .file("page.html", "page")
        .start();
    server.answers(&[("/page.html", 200, "page"), ("/html/none", 404, "")]);
}
