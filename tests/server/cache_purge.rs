//! `cache_purge` and `weir cache`: an operator's ways into a cache.

use weir_tests::{Scripted, Server, http, read_until, run, send, skip_on_oracle, until};

const OWN: &str = "the directive is Weir's own";

fn cached() -> Server {
    http(
        "proxy_cache_path cache keys_zone=one:1m;
         server { listen 127.0.0.1:%%PORT%%;
            location / {
                proxy_pass http://127.0.0.1:%%PORT1%%;
                proxy_cache one; proxy_cache_key $uri; proxy_cache_valid 200 1h; proxy_cache_revalidate on;
                add_header X-Cache $upstream_cache_status;
            }
            location = /cache { cache_purge one; }
            location ~ ^/purge(/.*) { cache_purge one $1; }
            location = /closed { cache_purge one; deny all; }
         }
         server { listen 127.0.0.1:%%PORT1%%;
            add_header Surrogate-Key \"all page$uri\";
            location /vary { add_header Vary X-Kind; add_header Surrogate-Key all; }
         }",
    )
    .file("html/a", "a")
    .file("html/d/b", "b")
    .file("html/d/c", "c")
    .file("html/vary", "v")
    .start()
}

/// What the cache says of each of these targets, asked for one after the other.
fn status(server: &Server, targets: &[&str]) -> String {
    let words = targets
        .iter()
        .map(|target| server.get(target).field("X-Cache").to_owned());
    words.collect::<Vec<_>>().join(" ")
}

const ALL: &[&str] = &["/a", "/d/b", "/d/c"];

#[test]
fn what_is_named_goes_and_nothing_else() {
    if skip_on_oracle(OWN) {
        return;
    }
    let server = cached();
    assert_eq!(status(&server, ALL), "MISS MISS MISS");
    let purge = |target: &str, fields: &[&str]| {
        let reply = server.request("PURGE", target, fields).expect(200);
        assert_eq!(reply.field("Content-Type"), "application/json");
    };
    purge("/cache?key=%2Fa", &[]);
    assert_eq!(status(&server, ALL), "MISS HIT HIT");
    purge("/cache?prefix=/d/", &[]);
    assert_eq!(status(&server, ALL), "HIT MISS MISS");
    purge("/cache?tag=page/d/b", &[]);
    assert_eq!(status(&server, ALL), "HIT MISS HIT");
    purge("/cache", &["Surrogate-Key: page/d/c other"]);
    assert_eq!(status(&server, ALL), "HIT HIT MISS");
    purge("/purge/a", &[]);
    assert_eq!(status(&server, ALL), "MISS HIT HIT");
    purge("/purge/d/*", &[]);
    assert_eq!(status(&server, ALL), "HIT MISS MISS");
    purge("/cache?all", &[]);
    assert_eq!(status(&server, ALL), "MISS MISS MISS");
}

#[test]
fn what_is_softened_is_asked_for_again() {
    if skip_on_oracle(OWN) {
        return;
    }
    let server = cached();
    assert_eq!(status(&server, ALL), "MISS MISS MISS");
    server
        .request("POST", "/cache?tag=all&soft", &[])
        .expect(200);
    assert_eq!(status(&server, ALL), "REVALIDATED REVALIDATED REVALIDATED");
    assert_eq!(status(&server, ALL), "HIT HIT HIT");
}

#[test]
fn what_is_softened_while_it_is_validated_is_asked_for_again() {
    if skip_on_oracle(OWN) {
        return;
    }
    let (asked, is_asked) = std::sync::mpsc::channel();
    let (go, may_go) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |stream, number| {
        read_until(stream, b"\r\n\r\n");
        if number == 0 {
            let fields = "ETag: \"x\"\r\nCache-Control: max-age=0\r\nContent-Length: 2";
            return send(stream, format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nok"));
        }
        if number == 1 {
            let _ = asked.send(());
            let _ = may_go.recv_timeout(weir_tests::PATIENCE);
        }
        send(
            stream,
            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nCache-Control: max-age=60\r\n\r\n",
        );
    });
    let port = origin.port();
    let server = http(&format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; proxy_cache_key $uri;
                proxy_cache_revalidate on; }}
            location = /cache {{ cache_purge one; }} }}"
    ))
    .start();
    assert_eq!(status(&server, &["/a"]), "MISS");
    let mut client = server.connect();
    client.request("GET", "/a", &[]);
    is_asked
        .recv_timeout(weir_tests::PATIENCE)
        .expect("it is validated");
    server
        .request("POST", "/cache?key=/a&soft", &[])
        .expect(200);
    go.send(()).expect("the origin waits");
    assert_eq!(client.reply().field("X-Cache"), "REVALIDATED");
    assert_eq!(status(&server, &["/a", "/a"]), "REVALIDATED HIT");
}

#[test]
fn all_variants_of_a_key_go_at_once() {
    if skip_on_oracle(OWN) {
        return;
    }
    let server = cached();
    let kind = |value: &str| {
        let reply = server.get_with("/vary", &[&format!("X-Kind: {value}")]);
        reply.field("X-Cache").to_owned()
    };
    assert_eq!([kind("1"), kind("2"), kind("1")], ["MISS", "MISS", "HIT"]);
    server.request("PURGE", "/cache?key=/vary", &[]).expect(200);
    assert_eq!([kind("1"), kind("2"), kind("2")], ["MISS", "MISS", "HIT"]);
}

#[test]
fn a_lookup_shows_the_stored_head() {
    if skip_on_oracle(OWN) {
        return;
    }
    let server = cached();
    server.get("/cache?key=/a").expect(404);
    server.get("/a").expect(200);
    // The client has the response a moment before the store has it.
    let stored = || Some(server.get("/purge/a")).filter(|reply| reply.status == 200);
    let text = until(stored).expect("it is stored").text();
    for line in [
        "\"key\": \"/a\"",
        "\"status\": 200",
        "\"complete\": true",
        "\"page/a\"",
        "\"length\": 1",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(status(&server, &["/a"]), "HIT", "looking changes nothing");
}

#[test]
fn access_rules_and_mistakes() {
    if skip_on_oracle(OWN) {
        return;
    }
    let server = cached();
    server.request("PURGE", "/closed?all", &[]).expect(403);
    server.request("PURGE", "/cache", &[]).expect(400);
    server.get("/cache?all").expect(405);
    server
        .request("PUT", "/cache?key=x", &["Content-Length: 0"])
        .expect(405);
}

#[test]
fn the_command_line_lists_verifies_and_leaves_a_running_server_alone() {
    if skip_on_oracle(OWN) {
        return;
    }
    let mut server = cached();
    assert_eq!(status(&server, ALL), "MISS MISS MISS");
    let folder = server.path("cache");
    let path = folder.to_str().expect("a path of ours").to_owned();
    let refused = run(&["cache", "purge", &path, "--all"]);
    assert_eq!(refused.code, 1);
    assert!(refused.stderr.contains("cache_purge"), "{}", refused.stderr);
    server.signal(weir_tests::Signal::QUIT);
    server.ended();
    let listed = run(&["cache", "ls", &path, "--prefix", "/d/"]);
    let keys: Vec<&str> = listed
        .stdout
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert_eq!(keys.len(), 2, "{}", listed.stdout);
    assert!(keys.contains(&"/d/b") && keys.contains(&"/d/c"));
    let shown = run(&["cache", "show", &path, "http://example.org/d/b"]);
    for text in [
        "/d/b\n",
        ", complete\n",
        "status    200\n",
        "page/d/b\n",
        "  ETag: \"",
    ] {
        assert!(shown.stdout.contains(text), "{text} in {}", shown.stdout);
    }
    let nothing = run(&["cache", "show", &path, "/d/"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("nothing is stored"));
    assert_eq!(run(&["cache", "verify", &path]).code, 0);
    assert_eq!(run(&["cache", "purge", &path, "--key", "/d/b"]).code, 0);
    let left = run(&["cache", "stat", &path]);
    assert!(left.stdout.starts_with("objects     2 "), "{}", left.stdout);
}
