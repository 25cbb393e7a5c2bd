//! `max_conns`, `queue` and `keepalive` of an upstream group: a slow application gets no more than it can take, everybody
//! else waits in turn, and all loops share the connections to it.

use std::io::Write;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_tests::{Connection, Server, http, read_until, skip_on_oracle, until, whole};

/// An HTTP/1.1 server with a thread for each connection, which answers when it is let.
struct Slow {
    port: u16,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
    /// The paths asked for, in order.
    paths: Mutex<Vec<String>>,
    /// How many more answers may be given; `None`: any number.
    allowed: Mutex<Option<usize>>,
    changed: Condvar,
    stop: AtomicBool,
}

impl Slow {
    /// Answers so many requests, and waits then; `None`: all.
    fn start(allowed: Option<usize>) -> Slow {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let seen = Arc::new(Seen::default());
        *seen.allowed.lock().expect("nobody panicked") = allowed;
        let shared = Arc::clone(&seen);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if shared.stop.load(Ordering::SeqCst) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let seen = Arc::clone(&shared);
                std::thread::spawn(move || seen.serve(stream));
            }
        });
        Slow {
            port,
            seen,
            thread: Some(thread),
        }
    }

    fn allow(&self, more: usize) {
        let mut allowed = self.seen.allowed.lock().expect("nobody panicked");
        *allowed = allowed.map(|allowed| allowed + more);
        self.seen.changed.notify_all();
    }

    fn paths(&self) -> Vec<String> {
        self.seen.paths.lock().expect("nobody panicked").clone()
    }

    /// Waits until so many requests have arrived.
    fn has(&self, count: usize) {
        let arrived = until(|| (self.paths().len() >= count).then_some(()));
        assert!(arrived.is_some(), "{:?} and no more", self.paths());
    }
}

impl Seen {
    fn serve(&self, mut stream: std::net::TcpStream) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
        loop {
            let head = read_until(&mut stream, b"\r\n\r\n");
            if head.is_empty() {
                return;
            }
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            let head = String::from_utf8_lossy(&head).into_owned();
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            self.paths.lock().expect("nobody panicked").push(path);
            let wait = self.allowed.lock().expect("nobody panicked");
            let mut allowed = self
                .changed
                .wait_while(wait, |allowed| *allowed == Some(0))
                .expect("nobody panicked");
            *allowed = allowed.map(|allowed| allowed - 1);
            drop(allowed);
            self.now.fetch_sub(1, Ordering::SeqCst);
            if stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .is_err()
            {
                return;
            }
        }
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::SeqCst);
        *self.seen.allowed.lock().expect("nobody panicked") = None;
        self.seen.changed.notify_all();
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn site(slow: &Slow, group: &str) -> Server {
    http(&format!(
        "upstream u {{ server 127.0.0.1:{} max_conns=1; {group} }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }}",
        slow.port
    ))
    .tolerate("upstream queue")
    .start()
}

fn ask(server: &Server, path: &str) -> Connection {
    let mut connection = server.connect();
    connection.request("GET", path, &[]);
    connection
}

fn is_missing() -> bool {
    skip_on_oracle("queue is of its commercial version")
}

#[test]
fn everybody_gets_an_answer_and_the_application_no_more_than_it_can_take() {
    if is_missing() {
        return;
    }
    let slow = Slow::start(None);
    let server = whole(&format!(
        "worker_processes 2; events {{}}
         http {{ upstream u {{ server 127.0.0.1:{} max_conns=3; queue 200; keepalive 3; }}
            server {{ listen 127.0.0.1:%%PORT%% reuseport; location / {{ proxy_pass http://u; }} }} }}",
        slow.port
    ))
    .start();
    let mut clients: Vec<Connection> = (0..100).map(|n| ask(&server, &format!("/{n}"))).collect();
    for client in &mut clients {
        client.reply().expect(200);
    }
    // Once more, from both loops, over what is idle.
    for client in &mut clients {
        client.request("GET", "/", &[]);
    }
    for client in &mut clients {
        client.reply().expect(200);
    }
    assert_eq!(slow.paths().len(), 200);
    assert!(slow.seen.most.load(Ordering::SeqCst) <= 3);
    // Three at a time need three. A loop that is late is not asked for what it holds, which may cost a few more.
    let connections = slow.seen.connections.load(Ordering::SeqCst);
    assert!((1..=8).contains(&connections), "{connections} connections");
}

/// With two loops `keepalive 2` keeps four.
#[test]
fn keepalive_counts_for_each_loop() {
    if skip_on_oracle("a worker of nginx can not use the connections of another one") {
        return;
    }
    let slow = Slow::start(Some(0));
    let server = whole(&format!(
        "worker_processes 2; events {{}}
         http {{ upstream u {{ server 127.0.0.1:{}; keepalive 2; }}
            server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }} }}",
        slow.port
    ))
    .start();
    let mut clients: Vec<Connection> = (0..4).map(|_| server.connect()).collect();
    let mut rounds = 0;
    // A loop that is late is not asked for what it holds: it may need a few rounds. With fewer than four kept, none is.
    let kept = until(|| {
        let before = slow.seen.connections.load(Ordering::SeqCst);
        for client in &mut clients {
            client.request("GET", "/", &[]);
        }
        rounds += 1;
        slow.has(4 * rounds);
        slow.allow(4);
        for client in &mut clients {
            client.reply().expect(200);
        }
        (slow.seen.connections.load(Ordering::SeqCst) == before).then_some(())
    });
    assert!(kept.is_some(), "{rounds} rounds");
}

#[test]
fn the_queue_is_first_in_first_out_and_bounded() {
    if is_missing() {
        return;
    }
    let slow = Slow::start(Some(0));
    let server = site(&slow, "queue 3 timeout=20s;");
    let mut first = ask(&server, "/0");
    slow.has(1);
    let mut waiting = Vec::new();
    for path in ["/1", "/2", "/3"] {
        waiting.push(ask(&server, path));
        // Each is in the queue before the next one comes: it is quiet for a moment.
        assert!(
            waiting
                .last_mut()
                .is_some_and(|client| client.is_quiet_for(Duration::from_millis(50)))
        );
    }
    let refused = ask(&server, "/4").reply();
    assert_eq!(refused.status, 503);
    assert!(refused.has("Retry-After"));
    server.line("error.log", "upstream queue is full");
    slow.allow(4);
    first.reply().expect(200);
    for client in &mut waiting {
        client.reply().expect(200);
    }
    assert_eq!(slow.paths(), ["/0", "/1", "/2", "/3"]);
}

#[test]
fn a_client_that_leaves_leaves_the_queue() {
    if is_missing() {
        return;
    }
    let slow = Slow::start(Some(0));
    let server = site(&slow, "queue 1 timeout=20s;");
    let mut first = ask(&server, "/0");
    slow.has(1);
    drop(ask(&server, "/left"));
    // Its place is free once its leaving was seen.
    let mut next = None;
    let queued = until(|| {
        let mut client = ask(&server, "/next");
        let quiet = client.is_quiet_for(Duration::from_millis(50));
        next = quiet.then_some(client);
        quiet.then_some(())
    });
    assert!(queued.is_some());
    slow.allow(2);
    first.reply().expect(200);
    next.expect("it is queued").reply().expect(200);
    assert_eq!(slow.paths(), ["/0", "/next"]);
}

#[test]
fn who_waits_for_too_long_is_told() {
    if is_missing() {
        return;
    }
    let slow = Slow::start(Some(0));
    let server = site(&slow, "queue 10 timeout=100ms;");
    let mut first = ask(&server, "/0");
    slow.has(1);
    assert_eq!(ask(&server, "/1").reply().status, 502);
    server.line("error.log", "upstream queue timed out");
    slow.allow(1);
    first.reply().expect(200);
    assert_eq!(slow.paths(), ["/0"]);
}
