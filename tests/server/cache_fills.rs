//! Fetches of the cache: one for a key, followed by everybody; what happens when somebody leaves or something breaks.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use weir_tests::{Reply, Server, http, read_until, skip_on_oracle};

/// An origin that serves its connections side by side. It lives as long as the test binary.
pub(crate) struct Origin {
    pub(crate) port: u16,
    /// The heads of the requests so far.
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
    /// The most requests that were under way at once.
    most: Arc<AtomicUsize>,
}

impl Origin {
    /// `answer` gets the connection, the head of the request and its number from 0; the connection closes afterwards.
    pub(crate) fn start(
        answer: impl Fn(&mut TcpStream, &str, usize) + Send + Sync + 'static,
    ) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let most = Arc::new(AtomicUsize::new(0));
        let (seen, peak, now) = (
            Arc::clone(&heads),
            Arc::clone(&most),
            Arc::new(AtomicUsize::new(0)),
        );
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let (seen, peak, now, answer) = (
                    Arc::clone(&seen),
                    Arc::clone(&peak),
                    Arc::clone(&now),
                    Arc::clone(&answer),
                );
                thread::spawn(move || {
                    let head = read_until(&mut stream, b"\r\n\r\n");
                    if head.is_empty() {
                        return;
                    }
                    let head = String::from_utf8_lossy(&head).into_owned();
                    let number = {
                        let mut seen = seen.lock().expect("no answer panics");
                        seen.push(head.clone());
                        seen.len() - 1
                    };
                    peak.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    answer(&mut stream, &head, number);
                    now.fetch_sub(1, SeqCst);
                });
            }
        });
        Origin { port, heads, most }
    }

    pub(crate) fn requests(&self) -> usize {
        self.heads.lock().expect("no answer panics").len()
    }
}

fn block(origin: &Origin, directives: &str) -> String {
    let port = origin.port;
    format!(
        "proxy_cache_path cache keys_zone=one:1m;
         server {{ listen 127.0.0.1:%%PORT%%; add_header X-Cache $upstream_cache_status;
            location / {{ proxy_pass http://127.0.0.1:{port}; proxy_cache one; {directives} }} }}"
    )
}

pub(crate) fn cached(origin: &Origin, directives: &str) -> Server {
    http(&block(origin, directives))
        .main("worker_processes 2;")
        .start()
}

/// Gets `target` with so many clients that begin together.
pub(crate) fn together(server: &Server, target: &str, clients: usize) -> Vec<Reply> {
    let begin = Barrier::new(clients);
    thread::scope(|scope| {
        let run = || {
            begin.wait();
            server.get(target)
        };
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(run)).collect();
        let replies = threads.into_iter().map(|thread| thread.join());
        replies
            .map(|reply| reply.expect("a client does not panic"))
            .collect()
    })
}

pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

pub(crate) fn head(fields: &str, length: usize) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n").into_bytes()
}

/// What an origin sends; a client that has left is no matter.
pub(crate) fn say(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
}

#[test]
fn many_clients_are_one_fetch() {
    if skip_on_oracle("its waiters look every 500 ms") {
        return;
    }
    let body = content(700_000);
    let sent = body.clone();
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head("Cache-Control: max-age=60\r\n", sent.len()));
        for piece in sent.chunks(100_000) {
            say(stream, piece);
            thread::yield_now();
        }
    });
    let server = cached(&origin, "");
    for reply in together(&server, "/a", 20) {
        assert!(reply.body == body);
    }
    assert_eq!(origin.requests(), 1);
}

#[test]
fn who_leaves_takes_nothing_away() {
    if skip_on_oracle("the first client's leaving costs a second request") {
        return;
    }
    let gate = Arc::new(Barrier::new(2));
    let held = Arc::clone(&gate);
    let origin = Origin::start(move |stream, _, _| {
        held.wait();
        say(stream, &head("Cache-Control: max-age=60\r\n", 5));
        say(stream, b"hello");
    });
    let server = cached(&origin, "");
    let mut first = server.connect();
    first.request("GET", "/a", &[]);
    while origin.requests() == 0 {
        thread::yield_now();
    }
    drop(first);
    server.line("error.log", "client prematurely closed connection");
    thread::scope(|scope| {
        let second = scope.spawn(|| server.get("/a"));
        gate.wait();
        let reply = second.join().expect("a client does not panic");
        assert_eq!(reply.text(), "hello");
    });
    assert_eq!(origin.requests(), 1);
}

#[test]
fn what_is_private_is_fetched_side_by_side() {
    const CLIENTS: usize = 10;
    let all = Arc::new(Barrier::new(CLIENTS - 1));
    let gate = Arc::clone(&all);
    let origin = Origin::start(move |stream, _, number| {
        if number > 0 {
            // All others are here before any of them is answered, or nobody ever is.
            gate.wait();
        }
        say(stream, &head("Cache-Control: private\r\n", 2));
        say(stream, b"me");
    });
    let server = cached(&origin, "");
    for reply in together(&server, "/a", CLIENTS) {
        assert_eq!(
            (reply.text().as_str(), reply.field("X-Cache")),
            ("me", "MISS")
        );
    }
    assert_eq!(origin.requests(), CLIENTS);
    assert!(origin.most.load(SeqCst) >= CLIENTS - 1);
}

#[test]
fn who_may_not_have_what_is_on_its_way_starts_a_fetch_that_others_join() {
    if skip_on_oracle("it has no fetches that clients join") {
        return;
    }
    let gate = Arc::new(Barrier::new(2));
    let held = Arc::clone(&gate);
    let origin = Origin::start(move |stream, _, number| {
        say(stream, &head("Cache-Control: max-age=60\r\n", 2));
        say(stream, &[b"ac"[number]]);
        if number == 0 {
            held.wait();
        }
        say(stream, &[b"bd"[number]]);
    });
    let server = cached(&origin, "proxy_cache_request_control on;");
    let mut first = server.connect();
    first.request("GET", "/a", &["Connection: close"]);
    // With the first byte of the body the head is there, and the other byte is not before the gate opens.
    let mut begun = Vec::new();
    while !begun.ends_with(b"\r\n\r\na") {
        begun.extend(first.at_least(1));
    }
    let mut joined = server.connect();
    joined.request("GET", "/a", &["Connection: close"]);
    // This one wants something newer than what has come, and waits for nobody.
    let fresh = server.get_with("/a", &["Cache-Control: no-cache"]);
    assert_eq!(
        (fresh.text().as_str(), fresh.field("X-Cache")),
        ("cd", "MISS")
    );
    assert_eq!(server.get("/a").text(), "cd");
    gate.wait();
    assert_eq!(first.rest(), b"b");
    let text = joined.reply().text();
    // It may have come before or after the newer fetch.
    assert!(text == "ab" || text == "cd", "{text}");
    // The older one has ended last, and is not what is stored.
    let last = server.get("/a");
    assert_eq!((last.text().as_str(), last.field("X-Cache")), ("cd", "HIT"));
    assert_eq!(origin.requests(), 2);
}

#[test]
fn what_breaks_off_is_resumed() {
    if skip_on_oracle("clients are cut") {
        return;
    }
    let body = content(600_000);
    let sent = body.clone();
    let fields = "Cache-Control: max-age=60\r\nETag: \"v1\"\r\nAccept-Ranges: bytes\r\n";
    let origin = Origin::start(move |stream, asked, number| {
        if number == 0 {
            say(stream, &head(fields, sent.len()));
            return say(stream, &sent[..250_000]);
        }
        let from = asked
            .lines()
            .find_map(|line| line.strip_prefix("Range: bytes="))
            .and_then(|range| range.trim_end_matches('-').parse::<usize>().ok())
            .unwrap_or(0);
        let length = sent.len();
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\n{fields}Content-Range: bytes {from}-{}/{length}\r\nContent-Length: {}\r\n\r\n",
            length - 1,
            length - from
        );
        say(stream, head.as_bytes());
        say(stream, &sent[from..]);
    });
    let server = cached(&origin, "");
    for reply in together(&server, "/a", 5) {
        assert!(!reply.cut && reply.body == body);
    }
    let heads = origin.heads.lock().expect("no answer panics");
    assert_eq!(heads.len(), 2);
    assert!(heads[1].contains("Range: bytes=250000-") && heads[1].contains("If-Range: \"v1\""));
    drop(heads);
    assert_eq!(server.get("/a").field("X-Cache"), "HIT");
}

#[test]
fn what_breaks_off_for_good_is_cut_and_not_stored() {
    let origin = Origin::start(move |stream, _, _| {
        say(stream, &head("Cache-Control: max-age=60\r\n", 100_000));
        say(stream, &content(50_000));
    });
    let server = cached(&origin, "proxy_next_upstream off;");
    for _ in 0..2 {
        let reply = server.get("/a");
        assert!(reply.cut);
        assert_eq!(reply.field("X-Cache"), "MISS");
    }
    assert_eq!(origin.requests(), 2);
}

#[test]
fn a_fetch_each_without_the_lock() {
    let all = Arc::new(Barrier::new(3));
    let gate = Arc::clone(&all);
    let origin = Origin::start(move |stream, _, _| {
        gate.wait();
        say(stream, &head("Cache-Control: max-age=60\r\n", 2));
        say(stream, b"ok");
    });
    let server = cached(&origin, "proxy_cache_lock off;");
    for reply in together(&server, "/a", 3) {
        assert_eq!(reply.field("X-Cache"), "MISS");
    }
    assert_eq!(server.get("/a").field("X-Cache"), "HIT");
}

#[test]
fn a_folder_in_use_is_said_and_passed_by() {
    if skip_on_oracle("two of it may share a folder") {
        return;
    }
    let origin = Origin::start(|stream, _, _| {
        say(stream, &head("Cache-Control: max-age=600\r\n", 2));
        say(stream, b"ok");
    });
    let first = cached(&origin, "");
    // A server accepts before its worker has opened the folder, and answers afterwards.
    assert_eq!(first.get("/a").field("X-Cache"), "MISS");
    let folder = first.path("cache");
    let text = block(&origin, "").replace(
        "proxy_cache_path cache",
        &format!("proxy_cache_path {}", folder.display()),
    );
    let second = http(&text).start();
    assert_eq!(second.get("/a").text(), "ok");
    second.line("error.log", "is used by another process");
    assert_eq!(first.get("/a").field("X-Cache"), "HIT");
}
