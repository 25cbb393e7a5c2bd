//! `proxy_cache`: what is stored, for how long, under which key, and what is said of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, kill_process};
use weir_tests::{Scripted, Server, Signal, http, read_until, run, send, skip_on_oracle, until};

/// An origin that answers each request with these fields and a body that counts the requests.
fn counting(fields: &'static str) -> Scripted {
    let count = AtomicUsize::new(0);
    Scripted::start(move |stream, _| {
        while !read_until(stream, b"\r\n\r\n").is_empty() {
            let body = format!("answer {}", count.fetch_add(1, Ordering::SeqCst) + 1);
            let head = format!(
                "HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n",
                body.len()
            );
            send(stream, head + &body);
        }
    })
}

/// A configuration with a cache named `one` before this origin.
fn block(origin: &Scripted, directives: &str) -> String {
    let port = origin.port();
    format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%;
            add_header X-Cache $upstream_cache_status always;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; {directives} }} }}"
    )
}

fn cached(origin: &Scripted, directives: &str) -> Server {
    http(&block(origin, directives)).start()
}

/// What the cache said and what the client got.
fn seen(server: &Server, target: &str) -> (String, String) {
    let reply = server.get(target);
    let cache = if reply.has("X-Cache") {
        reply.field("X-Cache")
    } else {
        ""
    };
    (cache.to_owned(), reply.text())
}

#[track_caller]
fn assert_seen(server: &Server, target: &str, cache: &str, text: &str) {
    assert_eq!(
        seen(server, target),
        (cache.to_owned(), text.to_owned()),
        "{target}"
    );
}

#[test]
fn a_response_is_stored_as_long_as_it_says() {
    let origin = counting("Cache-Control: max-age=60\r\nX-Own: 1\r\n");
    let server = cached(&origin, "");
    assert_seen(&server, "/a", "MISS", "answer 1");
    let reply = server.get("/a");
    assert_eq!((reply.field("X-Cache"), reply.field("X-Own")), ("HIT", "1"));
    assert_eq!(reply.text(), "answer 1");
    assert_seen(&server, "/a?b", "MISS", "answer 2");
    assert_seen(&server, "/a", "HIT", "answer 1");
}

#[test]
fn what_says_nothing_is_stored_as_long_as_the_configuration_says() {
    let origin = counting("");
    let server = cached(&origin, "proxy_cache_valid 200 1m;");
    assert_seen(&server, "/a", "MISS", "answer 1");
    assert_seen(&server, "/a", "HIT", "answer 1");
    let origin = counting("");
    let server = cached(&origin, "");
    assert_seen(&server, "/a", "MISS", "answer 1");
    assert_seen(&server, "/a", "MISS", "answer 2");
}

#[test]
fn what_is_for_one_alone_is_not_stored() {
    for fields in [
        "Cache-Control: private\r\n",
        "Cache-Control: no-store\r\n",
        "Cache-Control: max-age=60\r\nSet-Cookie: a=b\r\n",
        "Cache-Control: max-age=60\r\nVary: *\r\n",
        "X-Accel-Expires: 0\r\n",
    ] {
        let origin = counting(fields);
        let server = cached(&origin, "proxy_cache_valid any 1m;");
        assert_seen(&server, "/a", "MISS", "answer 1");
        assert_seen(&server, "/a", "MISS", "answer 2");
        assert_seen(&server, "/a", "MISS", "answer 3");
    }
}

#[test]
fn ignored_headers_have_no_say() {
    let origin = counting("Cache-Control: no-store\r\nSet-Cookie: a=b\r\n");
    let server = cached(
        &origin,
        "proxy_ignore_headers Cache-Control Set-Cookie; proxy_cache_valid 1m;",
    );
    assert_seen(&server, "/a", "MISS", "answer 1");
    assert_seen(&server, "/a", "HIT", "answer 1");
}

#[test]
fn keys_bypass_and_no_cache() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_bypass $arg_bypass; proxy_no_cache $arg_private;",
    );
    assert_seen(&server, "/a?private=1", "MISS", "answer 1");
    assert_seen(&server, "/a?x", "MISS", "answer 2");
    assert_seen(&server, "/a?y", "HIT", "answer 2");
    assert_seen(&server, "/a?bypass=1", "BYPASS", "answer 3");
    assert_seen(&server, "/a", "HIT", "answer 3");
    assert_seen(&server, "/a?bypass=1&private=1", "BYPASS", "answer 4");
    assert_seen(&server, "/a", "HIT", "answer 3");
}

#[test]
fn a_bypass_does_not_overrule_what_the_client_asks_of_caches() {
    if skip_on_oracle("nginx has no `proxy_cache_request_control`") {
        return;
    }
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_bypass $arg_bypass; proxy_cache_request_control on;",
    );
    let seen = |target: &str, control: &str| {
        let reply = server.get_with(target, &[&format!("Cache-Control: {control}")]);
        (reply.status, reply.text())
    };
    assert_seen(&server, "/a", "MISS", "answer 1");
    // RFC 9111, section 5.2.1.5: the response is not stored.
    assert_eq!(
        seen("/a?bypass=1", "no-store"),
        (200, "answer 2".to_owned())
    );
    assert_seen(&server, "/a", "HIT", "answer 1");
    // Section 5.2.1.7: the origin is not asked.
    assert_eq!(seen("/a?bypass=1", "only-if-cached").0, 504);
    assert_seen(&server, "/a?bypass=1", "BYPASS", "answer 3");
}

/// nginx stores them under any key; that differs (docs/compat.md).
#[test]
fn what_credentials_brought_is_for_those_with_the_same_key() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(&origin, "proxy_cache_key $uri$http_authorization;");
    let seen = |who: &str| {
        let reply = server.get_with("/a", &[&format!("Authorization: Basic {who}")]);
        format!("{} {}", reply.field("X-Cache"), reply.text())
    };
    assert_eq!(seen("YTph"), "MISS answer 1");
    assert_eq!(seen("YTph"), "HIT answer 1");
    assert_eq!(seen("Yjpi"), "MISS answer 2");
    assert_eq!(seen("YTph"), "HIT answer 1");
}

#[test]
fn who_has_an_answer_finds_it_with_his_next_request() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_bypass $arg_bypass;",
    );
    assert_seen(&server, "/a", "MISS", "answer 1");
    for number in 2..60 {
        let answer = format!("answer {number}");
        assert_seen(&server, "/a?bypass=1", "BYPASS", &answer);
        assert_seen(&server, "/a", "HIT", &answer);
    }
}

#[test]
fn who_has_a_variant_finds_it_with_his_next_request() {
    let origin = counting("Cache-Control: max-age=60\r\nVary: X-Kind\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_bypass $arg_bypass;",
    );
    for number in 1..30 {
        let kind = format!("X-Kind: {}", number % 3);
        let renewed = server.get_with("/a?bypass=1", &[&kind]);
        let found = server.get_with("/a", &[&kind]);
        assert_eq!(renewed.text(), format!("answer {number}"));
        assert_eq!(
            (found.field("X-Cache"), found.text()),
            ("HIT", renewed.text())
        );
    }
}

#[test]
fn a_server_that_ends_writes_down_what_it_has() {
    if skip_on_oracle("a store of Weir's own") {
        return;
    }
    for signal in [Signal::QUIT, Signal::TERM] {
        let origin = counting("Cache-Control: max-age=60\r\n");
        let mut server = cached(&origin, "");
        assert_seen(&server, "/a", "MISS", "answer 1");
        server.signal(signal);
        server.ended();
        assert!(server.path("cache/checkpoint").exists(), "{signal:?}");
        let path = server.path("cache").display().to_string();
        let listed = run(&["cache", "stat", &path]);
        assert!(
            listed.stdout.starts_with("objects     1 "),
            "{}",
            listed.stdout
        );
    }
}

#[test]
fn seldom_asked_for_is_not_stored() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(&origin, "proxy_cache_min_uses 3;");
    assert_seen(&server, "/a", "MISS", "answer 1");
    assert_seen(&server, "/a", "MISS", "answer 2");
    assert_seen(&server, "/a", "MISS", "answer 3");
    assert_seen(&server, "/a", "HIT", "answer 3");
}

#[test]
fn a_head_is_answered_by_what_a_get_stored_and_stores_for_gets() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(&origin, "");
    let head = server.request("HEAD", "/a", &[]);
    assert_eq!(
        (head.field("X-Cache"), head.field("Content-Length")),
        ("MISS", "8")
    );
    assert_eq!(head.text(), "");
    assert_seen(&server, "/a", "HIT", "answer 1");
    assert_eq!(server.request("HEAD", "/a", &[]).field("X-Cache"), "HIT");
}

#[test]
fn conditions_and_ranges_are_answered_from_the_cache() {
    let origin = counting("Cache-Control: max-age=60\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n");
    let server = cached(&origin, "");
    assert_seen(&server, "/a", "MISS", "answer 1");
    server
        .get_with("/a", &["If-None-Match: \"v1\""])
        .expect(304);
    let part = server.get_with("/a", &["Range: bytes=7-"]).expect(206);
    assert_eq!(
        (part.field("Content-Range"), part.text().as_str()),
        ("bytes 7-7/8", "1")
    );
    let first = server.get_with("/b", &["Range: bytes=0-5"]).expect(206);
    assert_eq!(first.text(), "answer");
    server.get_with("/b", &["Range: bytes=90-"]).expect(416);
}

/// A client's conditions are not sent to the origin where a cache might store the response. If it may not after all, nobody
/// else has judged them.
#[test]
fn conditions_are_judged_of_what_is_not_stored_too() {
    let origin = counting("ETag: \"v1\"\r\n");
    let server = cached(&origin, "");
    // The second time the key is known not to be stored.
    for _ in 0..2 {
        let reply = server
            .get_with("/a", &["If-None-Match: \"v1\""])
            .expect(304);
        assert_eq!(reply.field("X-Cache"), "MISS");
        server
            .get_with("/a", &["If-None-Match: \"v2\""])
            .expect(200);
        server.get_with("/a", &["If-Match: \"v2\""]).expect(412);
        server.get("/a").expect(200);
    }
}

#[test]
fn variants_are_kept_apart() {
    let origin = Scripted::start(|stream, _| {
        loop {
            let head = read_until(stream, b"\r\n\r\n");
            if head.is_empty() {
                return;
            }
            let text = String::from_utf8_lossy(&head);
            let language = text
                .lines()
                .find_map(|line| line.strip_prefix("Accept-Language: "))
                .unwrap_or("none");
            let answer = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nVary: Accept-Language\r\nContent-Length: {}\r\n\r\n{language}",
                language.len()
            );
            send(stream, answer);
        }
    });
    let server = cached(&origin, "");
    let ask = |language: &str| {
        let reply = server.get_with("/a", &[&format!("Accept-Language: {language}")]);
        (reply.field("X-Cache").to_owned(), reply.text())
    };
    for _ in 0..3 {
        assert_eq!(ask("en").1, "en");
        assert_eq!(ask("de").1, "de");
        assert_eq!(server.get("/a").text(), "none");
    }
    assert_eq!(ask("en"), ("HIT".to_owned(), "en".to_owned()));
    assert_eq!(ask("de"), ("HIT".to_owned(), "de".to_owned()));
}

#[test]
fn a_cache_is_chosen_by_a_variable() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let port = origin.port();
    let server = http(&format!(
        "proxy_cache_path first keys_zone=first:1m levels=1:2 use_temp_path=off inactive=1h max_size=10m;
         proxy_cache_path second keys_zone=second:1m loader_files=10 manager_sleep=1s;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache $arg_c; proxy_cache_key $uri; }} }}"
    ))
    .start();
    assert_seen(&server, "/a?c=first", "MISS", "answer 1");
    assert_seen(&server, "/a?c=second", "MISS", "answer 2");
    assert_seen(&server, "/a?c=first", "HIT", "answer 1");
    assert_seen(&server, "/a?c=second", "HIT", "answer 2");
    assert_seen(&server, "/a?c=off", "", "answer 3");
    assert_seen(&server, "/a", "", "answer 4");
    server.get("/a?c=third").expect(500);
    server.line("error.log", "cache \"third\" not found");
}

#[test]
fn stale_objects_stand_in_for_an_origin_that_fails() {
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        match count.fetch_add(1, Ordering::SeqCst) {
            0 => send(
                stream,
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=1\r\nContent-Length: 4\r\n\r\ngood",
            ),
            1 => send(stream, "HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nbad"),
            _ => {}
        }
    });
    let server = cached(
        &origin,
        "proxy_cache_use_stale error http_500; proxy_http_version 1.0;",
    );
    assert_seen(&server, "/a", "MISS", "good");
    // The clock of the object is that of the server: it is stale after a second, and nothing tells when.
    let mut stale = 0;
    let twice = until(|| {
        let (word, text) = seen(&server, "/a");
        assert_eq!(text, "good");
        stale += usize::from(word == "STALE");
        (stale == 2).then_some(())
    });
    assert!(twice.is_some(), "nothing became stale");
}

#[test]
fn purges_by_key_and_by_prefix() {
    if weir_tests::skip_on_oracle("proxy_cache_purge is in the commercial version") {
        return;
    }
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge;",
    );
    assert_seen(&server, "/a/1", "MISS", "answer 1");
    assert_seen(&server, "/a/2", "MISS", "answer 2");
    server.get_with("/a/1", &["X-Purge: 1"]).expect(204);
    server.get_with("/a/1", &["X-Purge: 1"]).expect(412);
    assert_seen(&server, "/a/1", "MISS", "answer 3");
    server.get_with("/a/*", &["X-Purge: 1"]).expect(204);
    assert_seen(&server, "/a/1", "MISS", "answer 4");
    assert_seen(&server, "/a/2", "MISS", "answer 5");
}

/// What an earlier purge has hit is not stored any more, though the index of the cache still has it after a restart.
#[test]
fn a_purge_of_what_was_purged_by_its_prefix_finds_nothing() {
    if weir_tests::skip_on_oracle("proxy_cache_purge is in the commercial version") {
        return;
    }
    let origin = counting("Cache-Control: max-age=600\r\n");
    let server = cached(
        &origin,
        "proxy_cache_key $uri; proxy_cache_purge $http_x_purge; add_header X-Pid $pid;
            add_header X-Cache $upstream_cache_status;",
    );
    let worker = || server.get("/pid").field("X-Pid").to_owned();
    for path in ["/a/1", "/b/1"] {
        server.get(path).expect(200);
        assert_eq!(server.get(path).field("X-Cache"), "HIT");
    }
    server.get_with("/a/*", &["X-Purge: 1"]).expect(204);
    // A new worker has nothing in memory.
    let old = worker();
    let process = old.parse().ok().and_then(Pid::from_raw);
    kill_process(process.expect("a process"), Signal::QUIT).expect("it runs");
    until(|| (!server.refuses() && worker() != old).then_some(())).expect("a new worker");
    server.get_with("/a/1", &["X-Purge: 1"]).expect(412);
    server.get_with("/b/1", &["X-Purge: 1"]).expect(204);
    server.get_with("/b/1", &["X-Purge: 1"]).expect(412);
}

#[test]
fn a_change_makes_the_cache_forget() {
    if weir_tests::skip_on_oracle("nginx goes on serving what was stored before") {
        return;
    }
    let origin = counting("Cache-Control: max-age=60\r\n");
    let server = cached(&origin, "");
    assert_seen(&server, "/a", "MISS", "answer 1");
    server
        .request("PUT", "/a", &["Content-Length: 0"])
        .expect(200);
    assert_seen(&server, "/a", "MISS", "answer 3");
}

#[test]
fn large_objects_come_whole_and_in_parts_and_stay_over_a_reload() {
    let body: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    let answer = body.clone();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        let head = format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nAccept-Ranges: bytes\r\nETag: \"x\"\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        send(stream, [head.as_bytes(), &answer].concat());
    });
    let mut server = cached(&origin, "");
    assert!(server.get("/big").body == body);
    assert_eq!(server.get("/big").field("X-Cache"), "HIT");
    server.reconfigure(&block(&origin, "proxy_cache_valid 200 1m;"));
    let again = server.get("/big");
    assert_eq!(again.field("X-Cache"), "HIT");
    assert!(again.body == body);
    let part = server
        .get_with("/big", &["Range: bytes=262140-262150,2999990-"])
        .expect(206);
    assert!(part.text().contains("bytes 262140-262150/3000000"));
    let one = server
        .get_with("/big", &["Range: bytes=262140-524300"])
        .expect(206);
    assert!(one.body == body[262_140..=524_300]);
}

#[test]
fn mistakes_in_cache_lines_are_told_as_nginx_tells_them() {
    for (lines, message) in [
        (
            "proxy_cache_path c;",
            "invalid number of arguments in \"proxy_cache_path\" directive",
        ),
        (
            "proxy_cache_path c inactive=1m;",
            "\"proxy_cache_path\" must have \"keys_zone\" parameter",
        ),
        (
            "proxy_cache_path c keys_zone=a;",
            "invalid keys zone size \"keys_zone=a\"",
        ),
        (
            "proxy_cache_path c keys_zone=a:1k;",
            "keys zone \"keys_zone=a:1k\" is too small",
        ),
        (
            "proxy_cache_path c keys_zone=a:1m levels=3;",
            "invalid \"levels\" \"levels=3\"",
        ),
        (
            "proxy_cache_path c keys_zone=a:1m inactive=x;",
            "invalid inactive value \"inactive=x\"",
        ),
        (
            "proxy_cache_path c keys_zone=a:1m max_size=x;",
            "invalid max_size value \"max_size=x\"",
        ),
        (
            "proxy_cache_path c keys_zone=a:1m unknown=x;",
            "invalid parameter \"unknown=x\"",
        ),
        (
            "proxy_cache missing;",
            "\"proxy_cache\" zone \"missing\" is unknown",
        ),
        ("proxy_cache_valid 600 1m;", "invalid status \"600\""),
        ("proxy_cache_valid x;", "invalid time value \"x\""),
        (
            "proxy_cache_lock maybe;",
            "invalid value \"maybe\" in \"proxy_cache_lock\" directive",
        ),
        (
            "proxy_cache_use_stale sometimes;",
            "invalid value \"sometimes\"",
        ),
    ] {
        let finished = http(&format!("{lines} server {{ listen 127.0.0.1:%%PORT%%; }}")).test();
        assert!(
            finished.stderr.contains(message),
            "{lines}: {}",
            finished.stderr
        );
    }
}

#[test]
fn a_change_makes_the_cache_forget_what_it_names() {
    if weir_tests::skip_on_oracle("nginx goes on serving what was stored before") {
        return;
    }
    let origin = counting(
        "Cache-Control: max-age=60\r\nLocation: /b?c\r\nContent-Location: http://elsewhere/d\r\n",
    );
    let server = cached(&origin, "");
    assert_seen(&server, "/b?c", "MISS", "answer 1");
    assert_seen(&server, "/d", "MISS", "answer 2");
    server
        .request("POST", "/a", &["Content-Length: 0"])
        .expect(200);
    assert_seen(&server, "/b?c", "MISS", "answer 4");
    assert_seen(&server, "/d", "HIT", "answer 2");
}

#[test]
fn only_a_stale_200_is_asked_for_on_condition() {
    let conf = "proxy_cache_path %%DIR%%/cache keys_zone=z:1m;
    log_format asked escape=none \"$uri [$http_if_none_match]\";
    server {
        listen 127.0.0.1:%%PORT%%;
        location / { proxy_cache z; proxy_cache_valid any 1s; proxy_cache_revalidate on;
                     add_header X-Status $upstream_cache_status always;
                     proxy_pass http://127.0.0.1:%%PORT1%%; }
    }
    server {
        listen 127.0.0.1:%%PORT1%%;
        access_log %%DIR%%/asked.log asked;
        add_header ETag '\"a\"' always;
        location /200 { if ($http_if_none_match) { return 304; } return 200 text; }
        location /201 { return 201 text; }
        location /301 { return 301 /; }
        location /404 { return 404 text; }
    }";
    let server = http(conf).start();
    let statuses = [200, 201, 301, 404];
    for status in statuses {
        server.get(&format!("/{status}")).expect(status);
    }
    for (status, outcome) in
        statuses
            .into_iter()
            .zip(["REVALIDATED", "EXPIRED", "EXPIRED", "EXPIRED"])
    {
        let reply = weir_tests::until(|| {
            let reply = server.get(&format!("/{status}")).expect(status);
            (reply.field("X-Status") != "HIT").then_some(reply)
        });
        assert_eq!(
            reply.expect("it is stale after a second").field("X-Status"),
            outcome
        );
    }
    let asked = server.lines("asked.log", 8);
    assert_eq!(
        asked[4..],
        ["/200 [\"a\"]", "/201 []", "/301 []", "/404 []"]
    );
}

/// `proxy_cache_language`: what a client prefers to all else is what it gets, whatever else it names.
#[test]
fn a_variant_in_the_language_that_a_client_prefers_answers_it() {
    if skip_on_oracle("nginx compares the fields as they are") {
        return;
    }
    let origin =
        counting("Cache-Control: max-age=60\r\nVary: Accept-Language\r\nContent-Language: de\r\n");
    let server = cached(&origin, "proxy_cache_language on;");
    let accepting = |languages: &str| {
        let reply = server.get_with("/", &[&format!("Accept-Language: {languages}")]);
        (reply.field("X-Cache").to_owned(), reply.text())
    };
    let is = |languages: &str, cache: &str, text: &str| {
        assert_eq!(
            accepting(languages),
            (cache.to_owned(), text.to_owned()),
            "{languages}"
        );
    };
    is("en, de", "MISS", "answer 1");
    is("fr;q=0.5, de;q=1.0", "HIT", "answer 1");
    is("DE", "HIT", "answer 1");
    is("en, de", "HIT", "answer 1");
    // Another one may be had by who prefers another: it was chosen by these words.
    is("fr, de;q=0.9", "MISS", "answer 2");
    is("fr, de;q=0.9", "HIT", "answer 2");
    is("fr", "MISS", "answer 3");
    is("*", "MISS", "answer 4");
    assert_eq!(server.get("/").field("X-Cache"), "MISS");
}

/// RFC 9110, section 9.3.3.
#[test]
fn a_response_to_post_that_is_what_get_gets_is_stored_for_get() {
    if skip_on_oracle("nginx stores a POST's response only for POST") {
        return;
    }
    let fresh = "Cache-Control: max-age=60\r\n";
    for (location, freshness, cache, count) in [
        ("Content-Location: /a\r\n", fresh, "HIT", 1),
        ("Content-Location: http://a/a\r\n", fresh, "HIT", 1),
        ("Content-Location: /b\r\n", fresh, "MISS", 2),
        ("", fresh, "MISS", 2),
        ("Content-Location: http://b/a\r\n", fresh, "MISS", 2),
        // What is not said is not guessed.
        ("Content-Location: /a\r\n", "", "MISS", 2),
        (
            "Content-Location: /a\r\n",
            "Cache-Control: no-store\r\n",
            "MISS",
            2,
        ),
    ] {
        let origin = counting(format!("{location}{freshness}").leak());
        let server = cached(
            &origin,
            "proxy_cache_post on; proxy_cache_valid 1m; proxy_cache_lock off;",
        );
        let post = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(server.raw(post).text(), "answer 1");
        let reply = server.raw("GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let expected = (cache.to_owned(), format!("answer {count}"));
        assert_eq!(
            (reply.field("X-Cache").to_owned(), reply.text()),
            expected,
            "{location}{freshness}"
        );
        // The next POST goes to the origin, and what is stored is no longer true.
        assert_eq!(server.raw(post).text(), format!("answer {}", count + 1));
    }
}

#[test]
fn a_post_takes_the_place_of_what_was_stored() {
    if skip_on_oracle("nginx stores a POST's response only for POST") {
        return;
    }
    let origin = counting("Cache-Control: max-age=60\r\nContent-Location: /a\r\nETag: \"1\"\r\n");
    let server = cached(&origin, "proxy_cache_post on;");
    assert_seen(&server, "/a", "MISS", "answer 1");
    // Its conditions are for the origin, which did not mind.
    // Without a body, which the origin would have to tell from the next request.
    let post = "POST /a HTTP/1.1\r\nHost: 127.0.0.1\r\nIf-Match: \"0\"\r\nRange: bytes=0-1\r\n\
                Content-Length: 0\r\nConnection: close\r\n\r\n";
    let reply = server.raw(post);
    assert_eq!((reply.status, reply.text().as_str()), (200, "answer 2"));
    let reply = server.raw("GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
    assert_eq!(
        (reply.field("X-Cache"), reply.text().as_str()),
        ("HIT", "answer 2")
    );
}

/// As in nginx, `add_header` sees an exchange that is under way, even if all of the response arrived at once; an access log
/// sees its end.
#[test]
fn an_exchange_is_over_when_the_client_has_the_response() {
    let origin = counting("Cache-Control: max-age=60\r\n");
    let port = origin.port();
    let conf = format!(
        "proxy_cache_path cache keys_zone=one:1m;
         log_format end '$uri $upstream_response_length';
         add_header X-Seen '$upstream_response_time|$upstream_response_length|$upstream_bytes_sent' always;
         server {{ listen 127.0.0.1:%%PORT%%; access_log end.log end;
            location / {{ proxy_pass http://127.0.0.1:{port}; }}
            location /unbuffered {{ proxy_buffering off; proxy_pass http://127.0.0.1:{port}; }}
            location /cached {{ proxy_cache one; proxy_pass http://127.0.0.1:{port}; }} }}"
    );
    let server = http(&conf).start();
    for target in ["/plain", "/unbuffered", "/cached"] {
        assert_eq!(
            server.get(target).expect(200).field("X-Seen"),
            "-|0|0",
            "{target}"
        );
        let line = format!("{target} 8\n");
        let is_logged = until(|| server.read("end.log").contains(&line).then_some(()));
        assert!(is_logged.is_some(), "{target}: {}", server.read("end.log"));
    }
}
