//! What one version of the program leaves for another: on disk, and in connections that are handed over.
//!
//! `WEIR_LAST_RELEASE=PATH` names the binary of another version, with which the upgrade and the way back are tested.

use std::fs;
use std::path::PathBuf;

use weir_tests::{Server, Signal, http, skip_on_oracle, until};

use crate::upgrade::CACHED;

const WHY: &str = "nginx has other formats";

#[test]
fn a_store_of_another_format_is_left_alone() {
    if skip_on_oracle(WHY) {
        return;
    }
    let mut newer = b"WeirSto2".to_vec();
    newer.resize(4096, b'n');
    let server = http(CACHED)
        .file("cache/store", &newer)
        .file("cache/00000001.segment", "newer, too")
        .start();
    let first = server.get("/").expect(200).text();
    let line = server.line("error.log", "has format 2");
    assert!(line.contains("this version reads format 1"), "{line}");
    // Served, and not stored.
    assert_ne!(server.get("/").expect(200).text(), first);
    assert_eq!(fs::read(server.path("cache/store")).ok(), Some(newer));
    assert_eq!(server.read("cache/00000001.segment"), "newer, too");
}

/// Waits for an answer from the store, and gives it with the process that sent it.
fn hit(server: &Server) -> (String, String) {
    let hit = until(|| {
        let reply = server.get("/").expect(200);
        let found = (reply.text(), reply.field("X-Process").to_owned());
        (reply.field("X-Cache") == "HIT").then_some(found)
    });
    hit.expect("a hit")
}

/// Runs the binary that lies at the server's path now in the place of the one that runs, until its worker answers.
fn replace(server: &Server, binary: &PathBuf) {
    let before = hit(server).1;
    // A program that runs cannot be written to; another file takes its name.
    fs::copy(binary, server.path("program.new")).expect("the binary can be copied");
    fs::rename(server.path("program.new"), server.path("program")).expect("it is renamed");
    server.signal(Signal::USR2);
    let old = until(|| {
        let text = server.read("nginx.pid.oldbin");
        text.trim()
            .parse()
            .ok()
            .and_then(rustix::process::Pid::from_raw)
    });
    let old = old.expect("the old pid file is moved");
    let started = until(|| (!server.read("nginx.pid").is_empty()).then_some(()));
    assert!(started.is_some(), "the new binary starts");
    rustix::process::kill_process(old, Signal::QUIT).expect("the old master lives");
    let moved = until(|| {
        let gone = !server.path("nginx.pid.oldbin").exists();
        (gone && hit(server).1 != before).then_some(())
    });
    assert!(moved.is_some(), "the other binary serves");
}

#[test]
fn an_upgrade_from_the_last_release_and_back_keeps_cache_and_connections() {
    if skip_on_oracle(WHY) {
        return;
    }
    let Some(last) = std::env::var_os("WEIR_LAST_RELEASE").map(PathBuf::from) else {
        println!("skipped: WEIR_LAST_RELEASE names no binary");
        return;
    };
    let site = http(CACHED).main("worker_processes 2;").copied();
    let this = site.path("this");
    fs::copy(site.path("program"), &this).expect("the binary can be copied");
    fs::copy(&last, site.path("program")).expect("the binary can be copied");
    let mut server = site.start();
    let stored = hit(&server).0;
    let mut client = server.connect();
    let mut requests = 0;
    for next in [&this, &last, &this] {
        requests += 1;
        let reply = client.get("/").expect(200);
        assert_eq!(
            reply.field("X-Requests"),
            requests.to_string(),
            "the same socket"
        );
        replace(&server, next);
        assert_eq!(hit(&server).0, stored, "what the other version has stored");
    }
    requests += 1;
    assert_eq!(client.get("/").field("X-Requests"), requests.to_string());
    // The first master, which the harness has started, is gone; the last one is ended here.
    assert!(server.ended().success());
    server.signal(Signal::QUIT);
    let gone = until(|| (!server.path("nginx.pid").exists()).then_some(()));
    assert!(gone.is_some());
}
