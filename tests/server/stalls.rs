//! A loop that is stuck: others take its new clients, and the log tells what it does.
//!
//! `debug_block` exists only in a build with the feature `debug-stall`; without it these tests say so.

use std::time::{Duration, Instant};

use weir_tests::{http, run, skip_on_oracle, until};

const WHY: &str = "a worker of nginx that is stuck keeps its clients waiting";

fn can_not_block() -> bool {
    let missing = run(&["help", "debug_block"]).code != 0;
    if missing {
        eprintln!("skipped: a build without the feature debug-stall");
    }
    missing
}

#[test]
fn new_clients_do_not_wait_for_a_loop_that_is_stuck() {
    if skip_on_oracle(WHY) || can_not_block() {
        return;
    }
    for listen in ["", "reuseport"] {
        let server = http(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% {listen}; location / {{ return 200 ok; }} \
             location /block {{ debug_block 2s; }} }}"
        ))
        .main("worker_processes 2;")
        .start();
        server.get("/").expect(200);
        let mut stuck = server.connect();
        stuck.request("GET", "/block", &[]);
        let line = server.line("error.log", "has been stuck for");
        assert!(line.contains("[warn]"), "{line}");
        let began = Instant::now();
        let mut slow = 0;
        let mut clients = 0;
        while began.elapsed() < Duration::from_millis(1500) {
            let connected = Instant::now();
            server.get("/").expect(200);
            slow += u32::from(connected.elapsed() > Duration::from_millis(300));
            clients += 1;
        }
        // Machines that run tests are busy; a client that was left to the stuck loop waits for a second or more.
        assert_eq!(slow, 0, "of {clients} clients");
        assert_eq!(stuck.reply().status, 204);
        let named = until(|| {
            let log = server.read("error.log");
            log.contains("stack: weir_modules::http::debug_block::debug_block")
                .then_some(())
        });
        assert!(named.is_some(), "{}", server.read("error.log"));
        server.line("error.log", "an iteration took");
    }
}
