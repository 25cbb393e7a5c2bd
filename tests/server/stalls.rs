//! A loop that is stuck: others take its new clients, and the log tells what it does.
//!
//! `debug_block` exists only in a build with the feature `debug-stall`; without it tests that need it say so. A script can
//! hold a loop in every build.

use std::time::{Duration, Instant};

use weir_tests::{Server, http, run, skip_on_oracle, until};

use crate::http3_client::Http3;
use crate::lua::lua;
use crate::tls::{CERTIFICATE, https_files};

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
             location /block {{ debug_block 4s; }} }}"
        ))
        .main("worker_processes 2;")
        .start();
        server.get("/").expect(200);
        let mut stuck = server.connect();
        stuck.request("GET", "/block", &[]);
        let line = server.line("error.log", "has been stuck for");
        assert!(line.contains("[error]"), "{line}");
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
        let line = server.line("error.log", "an iteration took 4");
        assert!(line.contains("request: \"GET /block HTTP/1.1\""), "{line}");
        assert!(line.ends_with("location: \"/block\""), "{line}");
    }
}

#[test]
fn new_clients_over_quic_do_not_wait_for_a_loop_that_is_stuck() {
    if skip_on_oracle(WHY) {
        return;
    }
    let Some(site) = lua(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; listen 127.0.0.1:%%PORT%% quic reuseport; {CERTIFICATE}
             location / {{ return 200 ok; }}
             location /block {{ content_by_lua_block {{
                 os.execute('timeout 60 cat ' .. ngx.config.prefix() .. 'gate') ngx.say('x') }} }} }}"
    )) else {
        return;
    };
    let server = https_files(site).main("worker_processes 2;").start();
    let made = std::process::Command::new("mkfifo")
        .arg(server.path("gate"))
        .status();
    assert!(made.expect("it is everywhere").success());
    let mut stuck = server.connect();
    stuck.request("GET", "/block", &[]);
    server.line("error.log", "has been stuck for");
    // The kernel leads about half of them to the socket that nobody reads.
    for _ in 0..12 {
        assert_eq!(Http3::connect(&server).get("/").text(), "ok");
    }
    // Its reader is there, and ends with this writer.
    std::fs::write(server.path("gate"), "").expect("the server reads it");
    assert_eq!(stuck.reply().status, 200);
}

/// A server with these locations, which has logged nothing that a loop did.
fn with(locations: &str) -> Option<Server> {
    if skip_on_oracle("nginx does not watch its loops") {
        return None;
    }
    let site = lua(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; server_name shop; {locations} }}"
    ))?;
    Some(site.start())
}

/// The line about a stall of the request for this path.
fn report(server: &Server, path: &str) -> String {
    let found = until(|| {
        let log = server.read("error.log");
        let mut lines = log
            .lines()
            .filter(|line| line.contains("an iteration took"));
        lines
            .find(|line| line.contains(&format!("request: \"GET {path} HTTP/1.1\"")))
            .map(str::to_owned)
    });
    found.unwrap_or_else(|| panic!("no stall of {path} in:\n{}", server.read("error.log")))
}

#[test]
fn a_script_that_blocks_is_named_with_its_request_at_the_default_level() {
    let Some(server) =
        with("location /block { content_by_lua_block { os.execute('sleep 2') ngx.say('x') } }")
    else {
        return;
    };
    server.get("/block?a=1").expect(200);
    let line = report(&server, "/block?a=1");
    assert!(line.contains(" [error] "), "{line}");
    for text in [
        "in content_by_lua(nginx.conf:",
        ", in request *",
        "client: 127.0.0.1",
        "server: shop",
        "location: \"/block\"",
    ] {
        assert!(line.contains(text), "{text}: {line}");
    }
    // It was reported while it lasted, with its stack.
    let stuck = server.line("error.log", "has been stuck for");
    assert!(stuck.contains(" [error] "), "{stuck}");
    server.line("error.log", "stack: ");
}

#[test]
fn a_worse_stall_is_not_hidden_by_a_harmless_one_before_it() {
    let Some(server) = with(
        "location / { content_by_lua_block {
            ngx.update_time() local ends = ngx.now() + tonumber(ngx.var.arg_for)
            while ngx.now() < ends do ngx.update_time() end ngx.say('x') } }",
    ) else {
        return;
    };
    server.get("/short?for=0.03").expect(200);
    report(&server, "/short?for=0.03");
    server.get("/long?for=0.9").expect(200);
    report(&server, "/long?for=0.9");
}

#[test]
fn a_pattern_that_backtracks_is_named() {
    let Some(server) = with("location / { if ($arg_x ~ \"^(a+)+$\") { return 204; } return 200; }")
    else {
        return;
    };
    let target = format!("/match?x={}!", "a".repeat(40));
    server.get(&target);
    let line = report(&server, &target);
    assert!(
        line.contains("in pattern \"^(a+)+$\", in request *"),
        "{line}"
    );
}

#[test]
fn a_loop_that_is_late_again_and_again_writes_few_lines() {
    let Some(server) = with(
        "location / { content_by_lua_block {
            ngx.update_time() local ends = ngx.now() + 0.015
            while ngx.now() < ends do ngx.update_time() end ngx.say('x') } }",
    ) else {
        return;
    };
    let mut client = server.connect();
    for _ in 0..300 {
        client.get("/late").expect(200);
    }
    let log = server.read("error.log");
    let lines = log
        .lines()
        .filter(|line| line.contains("an iteration took"));
    let count = lines.count();
    assert!(count < 100, "{count} lines");
    // What was kept back is counted.
    server.line("error.log", " more took 10 ms or longer");
}
