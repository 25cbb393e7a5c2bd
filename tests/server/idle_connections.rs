//! Connections that wait: how little they cost, and that they are served, closed and timed out as if they had not
//! waited.

use std::time::{Duration, Instant};

use weir_tests::{Connection, Server, Signal, http, until};

const PAGES: &str = "keepalive_timeout 60s; server { listen 127.0.0.1:%%PORT%%;
    location /pid { return 200 $pid; } location / { return 200 $connection_requests; } }";

/// How many connections a test has.
const MANY: usize = 400;

/// What they may cost together, in bytes: 12 KB each, which leaves room for what the process needs besides. With the
/// memory for a request they would have more than twice as much.
const MEMORY: u64 = MANY as u64 * 12 * 1024;

/// What the worker has in memory of its own, in bytes.
pub(crate) fn memory(server: &Server) -> u64 {
    let pid = server.get("/pid").text();
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it lives");
    let line = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"));
    let kilobytes = line.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>());
    kilobytes.expect("a line").expect("a number") * 1024
}

fn connect(server: &Server, count: usize) -> Vec<Connection> {
    (0..count).map(|_| server.connect()).collect()
}

#[test]
fn connections_without_a_byte_cost_little() {
    let server = http(PAGES).main("worker_processes 1;").start();
    let before = memory(&server);
    let mut silent = connect(&server, MANY);
    // Accepted in order: the last one is served, so all are there.
    silent[MANY - 1].get("/").expect(200);
    let after = memory(&server);
    assert!(after < before + MEMORY, "{before} and then {after}");
    for connection in &mut silent[..MANY - 1] {
        assert_eq!(connection.get("/").text(), "1");
    }
}

#[test]
fn idle_connections_give_the_memory_for_a_request_back() {
    let server = http(PAGES).main("worker_processes 1;").start();
    let before = memory(&server);
    let mut idle = connect(&server, MANY);
    for connection in &mut idle {
        assert_eq!(connection.get("/").text(), "1");
    }
    let is_little = || (memory(&server) < before + MEMORY).then_some(());
    // Memory goes back some seconds after a peak, when a thread of the pool has time for it.
    let few = until(is_little).or_else(|| until(is_little));
    assert!(few.is_some(), "{before} and then {}", memory(&server));
    for connection in &mut idle {
        assert_eq!(connection.get("/").text(), "2");
    }
}

/// Longer than a connection waits in the task that served it.
#[test]
fn the_keepalive_timeout_runs_on() {
    let conf =
        "keepalive_timeout 2s; server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }";
    let server = http(conf).start();
    let mut connection = server.connect();
    for wait in [Duration::from_millis(1300), Duration::from_millis(10)] {
        connection.get("/").expect(200);
        assert!(connection.is_quiet_for(wait));
    }
    connection.get("/").expect(200);
    let began = Instant::now();
    connection.assert_closed();
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(1900), "{waited:?}");
    assert!(waited < Duration::from_secs(15), "{waited:?}");
}

#[test]
fn a_request_in_pieces_after_a_long_silence() {
    let server = http(PAGES).start();
    let mut connection = server.connect();
    for requests in ["1", "2"] {
        assert!(connection.is_quiet_for(Duration::from_millis(1200)));
        for piece in ["G", "ET / HTTP/1.1\r\nHo", "st: a\r\n\r\n"] {
            assert!(connection.is_quiet_for(Duration::from_millis(20)));
            connection.send(piece);
        }
        assert_eq!(connection.reply().text(), requests);
    }
}

/// nginx lets a connection that has sent nothing wait for its timeout, though no server is left for it.
#[test]
fn a_silent_connection_ends_with_its_address() {
    if weir_tests::skip_on_oracle("nginx lets it wait for its timeout") {
        return;
    }
    let server = |port: &str, text: &str| {
        format!("server {{ listen 127.0.0.1:%%{port}%%; location / {{ return 200 {text}; }} }}")
    };
    let mut running = http(&(server("PORT", "old") + &server("PORT1", "gone"))).start();
    let mut silent = running.connect_to(1);
    running.get("/").expect(200);
    running.reconfigure(&server("PORT", "new"));
    running.signal(Signal::HUP);
    assert!(until(|| (running.get("/").text() == "new").then_some(())).is_some());
    silent.assert_closed();
}
