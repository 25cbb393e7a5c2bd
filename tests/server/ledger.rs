//! Where the time of a request went: stalls are made on purpose, and the ledger must put them into the right column.
//!
//! The stall is compared with its column, not with a clock: on a busy machine a stall is longer, and never shorter.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use weir_tests::{Server, Site, http, run, skip_on_oracle, until};

use crate::cache_fills::Origin;
use crate::lua::lua;
use crate::slow_disk::{FILE, LENGTH, SlowDisk};

const LOG: &str = "log_format ledger '$uri $status $weir_ledger'; access_log ledger.log ledger;";

/// Long compared with what a busy machine does in between.
const STALL: Duration = Duration::from_millis(2000);

fn site(block: &str) -> Option<Site> {
    if skip_on_oracle("nginx has no ledger") {
        return None;
    }
    Some(http(&format!("{LOG} {block}")))
}

/// A ledger as the log has it.
#[derive(Debug)]
struct Ledger {
    termination: String,
    total: f64,
    columns: HashMap<String, f64>,
    words: Vec<String>,
}

impl Ledger {
    /// The ledger of the request for this path.
    fn of(server: &Server, path: &str) -> Ledger {
        let line = server.line("ledger.log", &format!("{path} "));
        let field = line.split(' ').nth(2).expect("there are three fields");
        let mut parts = field.split('/');
        let mut ledger = Ledger {
            termination: parts.next().unwrap_or_default().to_owned(),
            total: parts
                .next()
                .and_then(|total| total.parse().ok())
                .expect(field),
            columns: HashMap::new(),
            words: Vec::new(),
        };
        for part in parts {
            match part.split_once('=') {
                Some((name, time)) => {
                    let time = time.parse().expect(field);
                    ledger.columns.insert(name.to_owned(), time);
                }
                None => ledger.words.push(part.to_owned()),
            }
        }
        ledger
    }

    /// Nearly all of the stall is there. What a busy machine adds to it may be elsewhere: that is no part of the stall.
    #[track_caller]
    fn assert_in(&self, column: &str) {
        let there = self.columns.get(column).copied().unwrap_or_default();
        let stall = STALL.as_millis() as f64;
        assert!(there >= stall * 0.95, "{column} has {there} of {self:?}");
        let share = there / self.total;
        println!(
            "{column}: {:.3} ms, {:.2} % of it there",
            self.total,
            share * 100.0
        );
    }
}

/// Waits as long as a stall: a peer that is silent, and does not close.
fn stall(stream: &mut TcpStream) {
    let _ = stream.set_read_timeout(Some(STALL));
    let _ = stream.read(&mut [0]);
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

#[test]
fn a_request_that_waits_for_nothing_has_no_column() {
    let Some(site) = site("server { listen 127.0.0.1:%%PORT%%; location / { return 200 x; } }")
    else {
        return;
    };
    let server = site.start();
    let mut connection = server.connect();
    connection.get("/first");
    connection.get("/second");
    let ledger = Ledger::of(&server, "/second");
    assert_eq!(ledger.termination, "--");
    assert!(ledger.words.is_empty(), "{ledger:?}");
    assert!(!ledger.columns.contains_key("accept"), "{ledger:?}");
}

#[test]
fn a_slow_first_byte() {
    let origin = Origin::start(|stream, _, _| {
        stall(stream);
        let _ = stream.write_all(ANSWER);
    });
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    server.get("/slow").expect(200);
    let ledger = Ledger::of(&server, "/slow");
    ledger.assert_in("first_byte");
    assert_eq!(ledger.termination, "--");
    assert_eq!(ledger.words, ["new"]);
}

#[test]
fn slow_content() {
    let origin = Origin::start(|stream, _, _| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab");
        stall(stream);
        let _ = stream.write_all(b"cd");
    });
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    assert_eq!(server.get("/slow").expect(200).text(), "abcd");
    Ledger::of(&server, "/slow").assert_in("body");
}

#[test]
fn an_upstream_server_that_is_too_slow_ends_the_request() {
    let origin = Origin::start(|stream, _, _| stall(stream));
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_read_timeout 100ms;
         location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    server.get("/slow").expect(504);
    assert_eq!(Ledger::of(&server, "/slow").termination, "sH");
}

#[test]
fn a_slow_connection() {
    // Nobody accepts, and the queue of the socket is full: the kernel ignores further attempts.
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let address: SocketAddr = listener.local_addr().expect("it is bound");
    let mut filling = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        filling.push(stream);
        assert!(filling.len() < 10_000, "the queue has no end");
    }
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; proxy_connect_timeout {}ms;
         location / {{ proxy_pass http://{address}; }} }}",
        STALL.as_millis()
    )) else {
        return;
    };
    let server = site.start();
    server.get("/slow").expect(504);
    let ledger = Ledger::of(&server, "/slow");
    ledger.assert_in("connect");
    assert_eq!(ledger.termination, "sC");
}

#[test]
fn a_full_queue() {
    let origin = Origin::start(|stream, head, _| {
        if head.starts_with("GET /first") {
            stall(stream);
        }
        let _ = stream.write_all(ANSWER);
    });
    let Some(site) = site(&format!(
        "upstream u {{ zone u 64k; server 127.0.0.1:{} max_conns=1; queue 10; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    let mut first = server.connect();
    first.request("GET", "/first", &[]);
    // The only place is taken.
    assert!(
        weir_tests::until(|| (!origin.heads.lock().expect("no panic").is_empty()).then_some(()))
            .is_some()
    );
    server.get("/second").expect(200);
    first.reply();
    Ledger::of(&server, "/second").assert_in("queue");
}

#[test]
fn a_fill_of_another_request() {
    let origin = Origin::start(|stream, _, _| {
        stall(stream);
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nCache-Control: max-age=60\r\n\r\nok",
        );
    });
    let Some(site) = site(&format!(
        "proxy_cache_path cache keys_zone=z:1m; proxy_cache_lock on;
         server {{ listen 127.0.0.1:%%PORT%%; location / {{
             proxy_cache z; proxy_cache_key x; proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    )) else {
        return;
    };
    let server = site.start();
    let mut leader = server.connect();
    leader.request("GET", "/leader", &[]);
    assert!(
        weir_tests::until(|| (!origin.heads.lock().expect("no panic").is_empty()).then_some(()))
            .is_some()
    );
    server.get("/follower").expect(200);
    leader.reply();
    let follower = Ledger::of(&server, "/follower");
    follower.assert_in("fill");
    assert!(
        follower.words.contains(&"follower".to_owned()),
        "{follower:?}"
    );
    // The one whose fetch it was knows what the fetch waited for.
    let leader = Ledger::of(&server, "/leader");
    leader.assert_in("first_byte");
    assert!(leader.words.contains(&"leader".to_owned()), "{leader:?}");
}

#[test]
fn a_slow_client() {
    let Some(site) = site("server { listen 127.0.0.1:%%PORT%% sndbuf=64k; sendfile on; }") else {
        return;
    };
    let server = site.file("html/big", vec![b'x'; 4_000_000]).start();
    let mut connection = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    // Otherwise the kernel takes megabytes for a client that reads nothing.
    rustix::net::sockopt::set_socket_recv_buffer_size(&connection, 64 * 1024)
        .expect("a socket has a buffer");
    connection
        .write_all(b"GET /big HTTP/1.0\r\n\r\n")
        .expect("it reads");
    // Only its beginning: the head may come together with content.
    connection.read_exact(&mut [0; 16]).expect("a response");
    // It takes nothing for a while.
    let (_kept, wait) = std::sync::mpsc::channel::<()>();
    assert!(wait.recv_timeout(STALL).is_err());
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).expect("it comes whole");
    Ledger::of(&server, "/big").assert_in("client");
}

#[test]
fn a_script_that_computes() {
    if skip_on_oracle("nginx has no ledger") {
        return;
    }
    let Some(site) = lua(&format!(
        "{LOG} server {{ listen 127.0.0.1:%%PORT%%; location / {{ content_by_lua_block {{
            -- Not os.clock(), which the other threads of the process advance as well.
            ngx.update_time()
            local ends = ngx.now() + 2.0
            while ngx.now() < ends do ngx.update_time() end
            ngx.say('done')
        }} }} }}"
    )) else {
        return;
    };
    let server = site.start();
    server.get("/hog").expect(200);
    Ledger::of(&server, "/hog").assert_in("script");
}

#[test]
fn a_name_server_that_is_silent() {
    let dns = weir_tests::Dns::start(weir_tests::Answer::Silence);
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; resolver 127.0.0.1:{}; resolver_timeout 2s;
         location / {{ set $name origin.test; proxy_pass http://$name; }} }}",
        dns.port()
    )) else {
        return;
    };
    let server = site.tolerate("could not be resolved").start();
    server.get("/lost").expect(502);
    let ledger = Ledger::of(&server, "/lost");
    ledger.assert_in("resolve");
    assert_eq!(ledger.termination, "SN");
}

#[test]
fn a_limit_delays_and_refuses() {
    let Some(site) = site(
        "limit_req_zone $server_name zone=one:1m rate=30r/m;
         server { listen 127.0.0.1:%%PORT%%; server_name a;
             location / { limit_req zone=one burst=1; } location /no { deny all; } }",
    ) else {
        return;
    };
    let server = site.file("html/x", "x").file("html/y", "y").start();
    server.get("/x").expect(200);
    server.get("/y").expect(200);
    Ledger::of(&server, "/y").assert_in("limit");
    server.get("/no").expect(403);
    assert_eq!(Ledger::of(&server, "/no").termination, "PA");
}

/// Whether the server can block on purpose.
fn can_block() -> bool {
    run(&["help", "debug_block"]).code == 0
}

#[test]
fn a_loop_that_another_task_holds() {
    if !can_block() {
        println!("skipped: a build without the feature debug-stall");
        return;
    }
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ return 200 x; }}
         location /block {{ debug_block {}ms; }} }}",
        STALL.as_millis()
    )) else {
        return;
    };
    let server = site.main("worker_processes 1;").start();
    let mut victim = server.connect();
    victim.get("/before");
    let mut blocker = server.connect();
    let mut tries = 0;
    // On a busy machine the victim's request may be read before the blocker's.
    let ledger = until(|| {
        tries += 1;
        let path = format!("/victim{tries}");
        blocker.request("GET", "/block", &[]);
        victim.get(&path);
        blocker.reply();
        Some(Ledger::of(&server, &path)).filter(|ledger| ledger.total >= STALL.as_secs_f64() / 2.0)
    });
    let ledger = ledger.expect("it waits at last");
    let share = ledger.columns.get("loop").copied().unwrap_or_default() / ledger.total;
    assert!(share >= 0.95, "{ledger:?}");
}

#[test]
fn a_cold_disk() {
    let Some(site) = site("server { listen 127.0.0.1:%%PORT%%; sendfile on; }") else {
        return;
    };
    let site = site.folder("html/disk");
    let Some(disk) = SlowDisk::mount(&site.path("html/disk"), STALL) else {
        return;
    };
    let server = site.start();
    let path = format!("/disk/{FILE}");
    let mut client = server.connect();
    client.request("GET", &path, &[]);
    // Nobody else waits for the disk.
    server.get("/other").expect(404);
    assert_eq!(client.reply().expect(200).body.len(), LENGTH);
    Ledger::of(&server, &path).assert_in("disk");
    drop(disk);
}

#[test]
fn a_disk_that_is_slow() {
    if !can_block() {
        println!("skipped: a build without the feature debug-stall");
        return;
    }
    let Some(site) = site(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location /slow {{ debug_block {}ms disk; }} }}",
        STALL.as_millis()
    )) else {
        return;
    };
    let server = site.start();
    server.get("/slow").expect(204);
    Ledger::of(&server, "/slow").assert_in("disk");
}
