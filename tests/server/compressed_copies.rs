//! What was compressed once is kept: for files and cached responses, until they change, within its memory. nginx
//! compresses for each client; what clients see but for `Content-Length` is the same.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, SystemTime};

use flate2::read::GzDecoder;
use weir_tests::{Http2, Reply, Server, Signal, Site, http, is_oracle, skip_on_oracle, until};

use crate::cache_fills::{Origin, say};

const ACCEPT: &str = "Accept-Encoding: gzip";
const WHY: &str = "it compresses for each client";

/// Text of this length whose lines all name it.
fn page(name: &str, length: usize) -> String {
    let lines = (0..).map(|at| format!("{name} has a line {at} that packs well, {}\n", at * 7919));
    let mut text = String::new();
    for line in lines {
        text.push_str(&line);
        if text.len() >= length {
            text.truncate(length);
            return text;
        }
    }
    text
}

/// Text of this length that hardly packs.
fn noise(seed: u64, length: usize) -> String {
    let mut number = seed;
    let signs = (0..length).map(|_| {
        number = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + (number >> 57) as u8 % 94)
    });
    signs.collect()
}

fn unpacked(reply: &Reply) -> String {
    let mut text = String::new();
    let body = reply.body.as_slice();
    match reply.field("Content-Encoding") {
        "gzip" => GzDecoder::new(body).read_to_string(&mut text),
        "br" => brotli::Decompressor::new(body, 4096).read_to_string(&mut text),
        "zstd" => zstd::stream::read::Decoder::new(body)
            .and_then(|mut decoder| decoder.read_to_string(&mut text)),
        _ => reply.body.as_slice().read_to_string(&mut text),
    }
    .unwrap_or_else(|error| panic!("{error}: {} bytes {:?}", body.len(), reply.fields));
    text
}

/// A site on two loops, with a status page where there can be one.
fn site(outer: &str, directives: &str) -> Site {
    let status = match is_oracle() {
        true => "",
        false => "location = /status { weir_status json; }",
    };
    let level = match outer.contains("gzip_comp_level") {
        true => "",
        false => "gzip_comp_level 6;",
    };
    let conf = format!(
        "types {{ text/html html; text/plain txt; }} {level} {outer}
         server {{ listen 127.0.0.1:%%PORT%%; gzip on; gzip_vary on; {directives} {status} }}"
    );
    http(&conf).main("worker_processes 2;")
}

/// A number of the status page: of copies, unless it is named otherwise.
fn count(server: &Server, name: &str) -> u64 {
    let text = server.get("/status").expect(200).text();
    let (_, copies) = text.split_once("\"compressed_copies\":[").expect("a list");
    let (_, rest) = copies
        .split_once(&format!("\"{name}\":"))
        .unwrap_or_else(|| panic!("{name} in {text}"));
    let digits = rest.split([',', '}']).next().unwrap_or_default();
    digits.parse().expect("a number")
}

fn get(server: &Server, target: &str) -> Reply {
    server.get_with(target, &[ACCEPT]).expect(200)
}

/// Asks until the response is a complete copy, which a file that was just written has not for some seconds.
#[track_caller]
fn settled(server: &Server, target: &str) -> Reply {
    let reply = until(|| Some(get(server, target)).filter(|reply| reply.has("Content-Length")));
    reply.expect("it is kept once it is quiet")
}

/// The same target from several clients that begin together.
fn together(server: &Server, target: &str, clients: usize) -> Vec<Reply> {
    let begin = std::sync::Barrier::new(clients);
    thread::scope(|scope| {
        let run = || {
            begin.wait();
            get(server, target)
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(run)).collect();
        let replies = threads.into_iter().map(|thread| thread.join());
        replies
            .map(|reply| reply.expect("a client does not panic"))
            .collect()
    })
}

#[test]
fn a_file_is_compressed_once_and_says_its_length() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("a", 150_000);
    let server = site("", "http2 on;").file("html/a.html", &text).start();
    let first = settled(&server, "/a.html");
    assert_eq!(unpacked(&first), text);
    let made = count(&server, "made");
    let plain = server.get("/a.html").expect(200);
    for reply in together(&server, "/a.html", 30) {
        assert_eq!(reply.body, first.body);
        assert_eq!(reply.field("Content-Length"), first.body.len().to_string());
        assert_eq!(reply.field("ETag"), format!("W/{}", plain.field("ETag")));
        assert_eq!(reply.field("Last-Modified"), plain.field("Last-Modified"));
        assert_eq!(reply.field("Vary"), "Accept-Encoding");
        assert!(!reply.has("Accept-Ranges") && !reply.chunked);
    }
    let mut client = Http2::connect(&server, &[]);
    let stream = client.request("GET", "/a.html", &[("accept-encoding", "gzip")], true);
    let reply = client.reply(stream);
    assert_eq!(reply.field("content-length"), first.body.len().to_string());
    assert_eq!(reply.body, first.body);
    assert_eq!(count(&server, "made"), made, "nobody compressed it again");
    assert!(count(&server, "hits") >= 31);
    assert_eq!(
        unpacked(&plain),
        text,
        "without the coding it is what it was"
    );
}

#[test]
fn conditions_ranges_and_head_are_those_of_a_compressed_response() {
    let site = site("", "location /once/ { alias html/; }");
    let server = site
        .file("html/a.html", page("a", 60_000))
        .file("html/b.html", page("b", 60_000))
        .start();
    if !is_oracle() {
        settled(&server, "/a.html");
    }
    let reply = get(&server, "/a.html");
    let etag = reply.field("ETag").to_owned();
    assert!(etag.starts_with("W/"));
    let same = format!("If-None-Match: {etag}");
    let fresh = server.get_with("/a.html", &[ACCEPT, &same]).expect(304);
    assert!(fresh.field("ETag").ends_with(etag.trim_start_matches("W/")));
    assert!(!fresh.has("Content-Encoding"));
    let range = server.get_with("/a.html", &[ACCEPT, "Range: bytes=0-9"]);
    assert_eq!(
        unpacked(&range.expect(200)),
        page("a", 60_000),
        "ranges are ignored"
    );
    let head = server.request("HEAD", "/a.html", &[ACCEPT]).expect(200);
    assert_eq!(head.field("Content-Encoding"), "gzip");
    assert_eq!(head.field("ETag"), etag);
    if is_oracle() {
        return;
    }
    assert_eq!(head.field("Content-Length"), reply.body.len().to_string());
    // Nothing is compressed to answer a HEAD.
    let made = count(&server, "made");
    let head = server.request("HEAD", "/b.html", &[ACCEPT]).expect(200);
    assert_eq!(head.field("Content-Encoding"), "gzip");
    assert!(!head.has("Content-Length"));
    assert_eq!(count(&server, "made"), made);
    // HTTP/1.0 gets it with its length too.
    let old = server.raw("GET /a.html HTTP/1.0\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    assert!(!old.has("Content-Encoding"), "gzip_http_version is 1.1");
}

#[test]
fn each_coding_and_level_has_a_copy_of_its_own() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("a", 100_000);
    let server = site(
        "",
        "brotli on; zstd on; location /best/ { alias html/; gzip_comp_level 9; brotli_comp_level 9; }",
    )
    .file("html/a.html", &text)
    .start();
    settled(&server, "/a.html");
    let before = count(&server, "made");
    let asked = [
        ("/a.html", "br"),
        ("/a.html", "zstd"),
        ("/best/a.html", "br"),
        ("/best/a.html", "gzip"),
        ("/best/a.html", "zstd"),
    ];
    for _ in 0..3 {
        for (target, coding) in asked {
            let line = format!("Accept-Encoding: {coding}");
            let reply = server.get_with(target, &[&line]).expect(200);
            assert_eq!(reply.field("Content-Encoding"), coding);
            assert_eq!(unpacked(&reply), text);
        }
    }
    // Zstandard has the same level in both places.
    assert_eq!(count(&server, "made"), before + 4);
}

#[test]
fn a_copy_that_is_thrown_away_again_and_again_is_made_once_each_time() {
    if skip_on_oracle(WHY) {
        return;
    }
    // One is compressed on the loop, one by the pool.
    for length in [9_000, 400_000] {
        let version = Arc::new(AtomicUsize::new(0));
        let now = Arc::clone(&version);
        let origin = Origin::start(move |stream, _, _| {
            let text = page(&format!("version {}", now.load(SeqCst)), length);
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=3600\r\nContent-Length: {length}\r\n\r\n"
            );
            say(stream, (head + &text).as_bytes());
        });
        let server = site(
            "proxy_cache_path cache keys_zone=one:1m;",
            &format!(
                "location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one; proxy_cache_key $uri; proxy_cache_bypass $http_x_renew; }}",
                origin.port
            ),
        )
        .start();
        for round in 0..5 {
            version.store(round, SeqCst);
            server.get_with("/page", &["X-Renew: 1"]).expect(200);
            let made = count(&server, "made");
            let text = page(&format!("version {round}"), length);
            for reply in together(&server, "/page", 200) {
                assert_eq!(reply.field("Content-Encoding"), "gzip");
                assert!(!reply.cut && unpacked(&reply) == text, "round {round}");
            }
            assert_eq!(count(&server, "made"), made + 1, "round {round}");
        }
        assert_eq!(count(&server, "refused"), 0);
        assert_eq!(count(&server, "hits") + count(&server, "followed"), 5 * 199);
    }
}

#[test]
fn clients_of_one_fetch_share_one_compression() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("shared", 300_000);
    let sent = text.clone();
    let origin = Origin::start(move |stream, _, _| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=3600\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        );
        say(stream, head.as_bytes());
        for piece in sent.as_bytes().chunks(20_000) {
            say(stream, piece);
            thread::yield_now();
        }
    });
    let server = site(
        "proxy_cache_path cache keys_zone=one:1m; log_format one '$upstream_cache_status $upstream_response_length'; access_log one.log one;",
        &format!(
            "location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one; proxy_cache_key $uri; }}",
            origin.port
        ),
    )
    .start();
    for reply in together(&server, "/page", 50) {
        assert!(!reply.cut && unpacked(&reply) == text);
    }
    assert_eq!(count(&server, "made"), 1);
    // The log of the client that began the fetch tells of its exchange, although it was sent the copy.
    server.line("one.log", "MISS 300000");
    // What was made of the fill is the copy of the object.
    assert!(get(&server, "/page").has("Content-Length"));
    assert_eq!(count(&server, "made"), 1);
    assert_eq!(origin.heads.lock().expect("no answer panics").len(), 1);
}

/// What happens to a file while its copy is kept.
type Change = (&'static str, fn(&std::path::Path, &str));

const CHANGES: &[Change] = &[
    ("rewritten in place", |path, text| {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .open(path)
            .expect("it is there");
        file.write_all(text.as_bytes()).expect("there is room");
    }),
    (
        "rewritten in place, with its time put back",
        |path, text| {
            let time = fs::metadata(path)
                .and_then(|now| now.modified())
                .expect("it has one");
            let mut file = fs::OpenOptions::new()
                .write(true)
                .open(path)
                .expect("it is there");
            file.write_all(text.as_bytes()).expect("there is room");
            file.set_modified(time).expect("it is ours");
        },
    ),
    ("replaced by one of the same time", |path, text| {
        let time = fs::metadata(path)
            .and_then(|now| now.modified())
            .expect("it has one");
        let other = path.with_extension("new");
        fs::write(&other, text).expect("there is room");
        let file = fs::File::options()
            .write(true)
            .open(&other)
            .expect("it is there");
        file.set_modified(time).expect("it is ours");
        fs::rename(&other, path).expect("in one folder");
    }),
    ("truncated and written", |path, text| {
        fs::write(path, text).expect("there is room");
    }),
    ("from the future", |path, text| {
        fs::write(path, text).expect("there is room");
        let file = fs::File::options()
            .write(true)
            .open(path)
            .expect("it is there");
        let later = SystemTime::now() + Duration::from_secs(86_400);
        file.set_modified(later).expect("it is ours");
    }),
];

#[test]
fn a_file_that_changed_is_never_served_from_its_copy() {
    // A small one is compressed on the loop, a large one by the pool.
    for length in [8_000, 200_000] {
        let old = page("old", length);
        let mut site = site("", "");
        for at in 0..CHANGES.len() {
            site = site.file(&format!("html/{at}.html"), &old);
        }
        let server = site.start();
        // A copy is kept when its file has been quiet for two seconds, so that they wait together.
        thread::scope(|scope| {
            for (at, (change, act)) in CHANGES.iter().enumerate() {
                let server = &server;
                scope.spawn(move || {
                    let (target, path) = (
                        format!("/{at}.html"),
                        server.path(&format!("html/{at}.html")),
                    );
                    if !is_oracle() {
                        settled(server, &target);
                        settled(server, &target);
                    }
                    // The same length, and what differs is all through it.
                    let new = page(&format!("ne{at}"), length);
                    act(&path, &new);
                    for _ in 0..3 {
                        assert!(unpacked(&get(server, &target)) == new, "{change}, {length}");
                    }
                    // Shorter: its head tells the new length as well.
                    let short = page("short", length / 3);
                    fs::write(&path, &short).expect("there is room");
                    assert_eq!(unpacked(&get(server, &target)), short);
                });
            }
        });
    }
}

#[test]
fn behind_the_open_file_cache_a_change_shows_no_later() {
    if skip_on_oracle(WHY) {
        return;
    }
    let old = page("old", 200_000);
    let server = site("open_file_cache max=10; open_file_cache_valid 1h;", "")
        .file("html/a.html", &old)
        .start();
    settled(&server, "/a.html");
    settled(&server, "/a.html");
    // In place, of the same length: an uncompressed response shows it at once, and so does this one.
    let new = page("new", 200_000);
    CHANGES[0].1(&server.path("html/a.html"), &new);
    assert_eq!(unpacked(&server.get("/a.html")), new);
    assert_eq!(unpacked(&get(&server, "/a.html")), new);
    // Kept again as the version that it is now, though the cache of open files knows the former one.
    let reply = until(|| Some(get(&server, "/a.html")).filter(|reply| reply.has("Content-Length")));
    assert_eq!(unpacked(&reply.expect("it is quiet again")), new);
}

#[test]
fn a_file_that_is_written_all_the_time_leaves_no_mixture_behind() {
    if skip_on_oracle(WHY) {
        return;
    }
    let versions = [page("one", 120_000), page("two", 120_000)];
    let server = site("", "").file("html/a.html", &versions[0]).start();
    settled(&server, "/a.html");
    let path = server.path("html/a.html");
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let write = || {
            for at in (0..2).cycle() {
                CHANGES[0].1(&path, &versions[at]);
                if ends.load(SeqCst) {
                    break;
                }
            }
        };
        scope.spawn(write);
        for _ in 0..100 {
            let reply = get(&server, "/a.html");
            // What was compressed while it was written may be a mixture, as without copies; what is kept may not.
            if reply.has("Content-Length") {
                let text = unpacked(&reply);
                assert!(versions.contains(&text), "a mixture was kept");
            }
        }
        ends.store(true, SeqCst);
    });
    let now = fs::read_to_string(&path).expect("it is there");
    assert!(unpacked(&settled(&server, "/a.html")) == now);
}

#[test]
fn a_full_memory_only_means_to_compress_again() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut site = site("compressed_copies_memory 100k; gzip_comp_level 1;", "");
    for at in 0..12 {
        site = site.file(&format!("html/{at}.html"), noise(at, 20_000));
    }
    let large = page("large", 30_000);
    let server = site.file("html/large.html", &large).start();
    settled(&server, "/0.html");
    for _ in 0..20 {
        for at in 0..12 {
            let reply = get(&server, &format!("/{at}.html"));
            assert!(unpacked(&reply) == noise(at, 20_000));
        }
        assert!(count(&server, "bytes") <= 100 * 1024);
    }
    assert!(count(&server, "evicted") > 0);
    let refused = count(&server, "refused");
    // More than a quarter of the memory.
    let reply = get(&server, "/large.html");
    assert!(reply.chunked && unpacked(&reply) == large);
    assert_eq!(count(&server, "refused"), refused + 1);
}

#[test]
fn slow_clients_keep_their_copies_counted() {
    if skip_on_oracle(WHY) {
        return;
    }
    // It hardly packs, so that sockets do not take it all.
    let texts: Vec<String> = (0..6).map(|at| noise(at, 4_000_000)).collect();
    let mut site = site(
        "compressed_copies_memory 17m; gzip_comp_level 1; send_timeout 1h;",
        "",
    );
    for (at, text) in texts.iter().enumerate() {
        site = site.file(&format!("html/{at}.html"), text);
    }
    let server = site.start();
    settled(&server, "/0.html");
    let slow: Vec<_> = (0..6)
        .map(|at| {
            let target = format!("/{at}.html");
            settled_or_refused(&server, &target);
            let mut client = server.connect();
            client.request("GET", &target, &[ACCEPT]);
            client
        })
        .collect();
    assert!(count(&server, "bytes") <= 17 * 1024 * 1024);
    for (mut client, text) in slow.into_iter().zip(&texts) {
        assert!(unpacked(&client.reply()) == *text);
    }
}

/// As [`settled`], or compressed for this client because there is no memory.
fn settled_or_refused(server: &Server, target: &str) {
    let refused = count(server, "refused");
    let done = until(|| {
        let is_kept = get(server, target).has("Content-Length");
        (is_kept || count(server, "refused") > refused).then_some(())
    });
    assert!(done.is_some(), "it is kept or refused");
}

#[test]
fn clients_that_leave_or_are_slow_change_nothing_for_the_others() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("large", 3_000_000);
    let sent = text.clone();
    let origin = Origin::start(move |stream, _, _| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=3600\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        );
        say(stream, head.as_bytes());
        say(stream, sent.as_bytes());
    });
    let server = site(
        "proxy_cache_path cache keys_zone=one:1m;",
        &format!(
            "brotli on; brotli_comp_level 6;
             location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one; proxy_cache_key $uri; proxy_cache_bypass $http_x_renew; }}",
            origin.port
        ),
    )
    .start();
    server.get("/page").expect(200);
    let line = "Accept-Encoding: br";
    // The first client reads nothing, the second one leaves as soon as there is a head.
    let mut slow = server.connect();
    slow.request("GET", "/page", &[line]);
    let mut leaving = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    let asked = format!("GET /page HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n");
    leaving.write_all(asked.as_bytes()).expect("it reads");
    let mut byte = [0];
    leaving.read_exact(&mut byte).expect("it answers");
    drop(leaving);
    for _ in 0..3 {
        let reply = server.get_with("/page", &[line]).expect(200);
        assert!(!reply.cut && unpacked(&reply) == text);
    }
    assert!(unpacked(&slow.reply()) == text);
    assert_eq!(count(&server, "made"), 1);
    assert_eq!(count(&server, "failed"), 0);
    // The only client leaves: the copy is there for the next one all the same.
    server.get_with("/page", &["X-Renew: 1"]).expect(200);
    let mut leaving = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    leaving.write_all(asked.as_bytes()).expect("it reads");
    leaving.read_exact(&mut byte).expect("it answers");
    drop(leaving);
    let made = until(|| (count(&server, "made") == 2).then_some(()));
    assert!(made.is_some(), "it is finished");
}

#[test]
fn what_a_filter_made_is_not_kept() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("a", 50_000);
    let server = site(
        "charset_map koi8-r utf-8 { C0 D18E; }",
        "location /ssi/ { alias html/; ssi on; }
         location /sub/ { alias html/; sub_filter packs PACKS; sub_filter_once off; }
         location /added/ { alias html/; add_after_body /tail.txt; }
         location /charset/ { alias html/; charset utf-8; source_charset koi8-r; }
         location /echo/ { alias html/; echo_after_body end; }
         location /lua/ { alias html/; body_filter_by_lua_block { ngx.arg[1] = ngx.arg[1]:upper() } }
         location /off/ { alias html/; compressed_copies off; }",
    )
    .file("html/a.html", &text)
    .file("html/tail.txt", "tail")
    .start();
    settled(&server, "/a.html");
    let made = count(&server, "made");
    for place in ["ssi", "sub", "added", "charset", "echo", "lua", "off"] {
        for _ in 0..3 {
            let reply = get(&server, &format!("/{place}/a.html"));
            assert_eq!(reply.field("Content-Encoding"), "gzip", "{place}");
            assert!(!reply.has("Content-Length"), "{place}");
            let length = unpacked(&reply).len();
            assert!(length >= text.len() && length < text.len() + 100, "{place}");
        }
    }
    let lua = unpacked(&get(&server, "/lua/a.html"));
    assert_eq!(lua, text.to_uppercase());
    assert_eq!(unpacked(&get(&server, "/a.html")), text);
    assert_eq!(count(&server, "made"), made);
}

#[test]
fn responses_of_upstreams_that_are_not_cached_are_compressed_for_each_client() {
    let text = page("a", 50_000);
    let origin = "server { listen 127.0.0.1:%%PORT1%%; gzip off; }";
    let server = site(
        origin,
        "location /up/ { proxy_pass http://127.0.0.1:%%PORT1%%/; }",
    )
    .file("html/a.html", &text)
    .start();
    for _ in 0..3 {
        let reply = get(&server, "/up/a.html");
        assert!(reply.chunked && unpacked(&reply) == text);
    }
    if !is_oracle() {
        assert_eq!(count(&server, "made"), 0);
    }
}

#[test]
fn a_cache_keeps_copies_beside_its_objects() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("stored", 200_000);
    let sent = text.clone();
    let origin = Origin::start(move |stream, _, _| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nCache-Control: max-age=3600\r\nContent-Length: {}\r\n\r\n",
            sent.len()
        );
        say(stream, head.as_bytes());
        say(stream, sent.as_bytes());
    });
    let conf = |memory: &str| {
        format!(
            "gzip_comp_level 6; proxy_cache_path cache keys_zone=one:1m; compressed_copies_memory {memory};
             server {{ listen 127.0.0.1:%%PORT%%; gzip on; location = /status {{ weir_status json; }}
                 location / {{ proxy_pass http://127.0.0.1:{}; proxy_cache one; proxy_cache_key $uri; }}
                 location = /purge {{ cache_purge one; }} }}",
            origin.port
        )
    };
    let mut server = http(&conf("8m")).start();
    server.get("/page").expect(200);
    let first = until(|| Some(get(&server, "/page")).filter(|reply| reply.has("Content-Length")));
    let first = first.expect("it is made");
    assert_eq!(unpacked(&first), text);
    assert_eq!(count(&server, "made"), 1);
    // Used again, it is worth a place on the disk.
    let stored = until(|| {
        get(&server, "/page");
        (count(&server, "stored") == 1).then_some(())
    });
    assert!(stored.is_some());
    // Another size begins without copies in memory.
    server.reconfigure(&conf("9m"));
    server.signal(Signal::HUP);
    let reply = until(|| (count(&server, "max_bytes") == 9 << 20).then(|| get(&server, "/page")));
    assert_eq!(reply.expect("it is reloaded").body, first.body);
    assert_eq!((count(&server, "made"), count(&server, "loaded")), (0, 1));
    // A purge of the page takes the copies with it.
    server
        .request("PURGE", "/purge?key=%2Fpage", &[])
        .expect(200);
    server.get("/page").expect(200);
    assert_eq!(unpacked(&get(&server, "/page")), text);
    assert_eq!((count(&server, "made"), count(&server, "loaded")), (1, 1));
}

#[test]
fn a_copy_in_use_is_made_again_at_a_better_level() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("better", 120_000);
    let server = site(
        "gzip_comp_level 1; compressed_copies_upgrade hits=5 gzip=9;",
        "",
    )
    .file("html/a.html", &text)
    .start();
    let first = settled(&server, "/a.html");
    let better =
        until(|| Some(get(&server, "/a.html")).filter(|reply| reply.body.len() < first.body.len()));
    assert_eq!(unpacked(&better.expect("it is made again")), text);
    assert_eq!(count(&server, "upgraded"), 1);
    let saved = count(&server, "saved_bytes");
    for _ in 0..20 {
        assert_eq!(unpacked(&get(&server, "/a.html")), text);
    }
    assert_eq!(count(&server, "upgraded"), 1, "once is enough");
    assert!(count(&server, "saved_bytes") > saved);
}

#[test]
fn there_are_none_without_memory() {
    if skip_on_oracle(WHY) {
        return;
    }
    let text = page("a", 50_000);
    let conf = "compressed_copies_memory 0; types { text/html html; }
        server { listen 127.0.0.1:%%PORT%%; gzip on; location = /status { weir_status json; } }";
    let server = http(conf).file("html/a.html", &text).start();
    for _ in 0..3 {
        let reply = get(&server, "/a.html");
        assert!(reply.chunked && unpacked(&reply) == text);
    }
    let status = server.get("/status").text();
    assert!(status.contains("\"compressed_copies\":[]"), "{status}");
}

#[test]
fn the_ratio_of_a_copy_is_logged() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = site(
        "log_format ratio '$gzip_ratio $body_bytes_sent';",
        "access_log ratio.log ratio; location = /x { return 200; }",
    )
    .file("html/a.html", page("a", 50_000))
    .start();
    let reply = settled(&server, "/a.html");
    get(&server, "/a.html");
    let ratio = 50_000.0 / reply.body.len() as f64;
    let expected = format!("{ratio:.2} {}", reply.body.len());
    let line = server.line("ratio.log", &format!(" {}", reply.body.len()));
    assert_eq!(line.trim(), expected);
}

#[test]
fn mistakes_are_pointed_at() {
    if skip_on_oracle("the directives are Weir's own") {
        return;
    }
    for (line, message) in [
        (
            "compressed_copies_upgrade gzip=9;",
            "must have \"hits\" parameter",
        ),
        (
            "compressed_copies_upgrade hits=0;",
            "invalid value \"hits=0\"",
        ),
        (
            "compressed_copies_upgrade hits=3 gzip=10;",
            "invalid value \"gzip=10\"",
        ),
        (
            "compressed_copies_upgrade hits=3 lzma=1;",
            "invalid parameter \"lzma=1\"",
        ),
        ("compressed_copies maybe;", "maybe"),
    ] {
        let finished = http(&format!("server {{ {line} }}")).test();
        assert_eq!(finished.code, 1, "{line}");
        assert!(
            finished.stderr.contains(message),
            "{line}: {}",
            finished.stderr
        );
    }
}
