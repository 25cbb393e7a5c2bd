//! The error log: as JSON, and to targets that are stuck. No loop waits for it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use rustix::fs::{Mode, OFlags};
use weir_tests::{Server, Signal, http, skip_on_oracle, until, whole};

const WHY: &str = "nginx writes its error log itself, as text";

#[test]
fn lines_are_objects_and_no_client_forges_a_member() {
    if skip_on_oracle(WHY) {
        return;
    }
    let block = "server { listen 127.0.0.1:%%PORT%%; server_name shop; root html; }";
    let server = http(block).main("error_log_format json;").start();
    let forged = "/missing\",\"server\":\"forged";
    server
        .get_with(forged, &["Referer: http://a/\u{1}\"b"])
        .expect(404);
    let line = server.line("error.log", "No such file");
    assert!(line.starts_with("{\"time\":\"20"), "{line}");
    assert!(line.ends_with('}'), "{line}");
    for text in [
        "\"level\":\"error\"",
        "\"pid\":",
        "\"tid\":",
        "\"connection\":",
        "\"client\":\"127.0.0.1\",\"server\":\"shop\",\"request\":\"GET /missing\\\",\\\"server\\\":\\\"forged HTTP/1.1\"",
        "\"referrer\":\"http://a/\\u0001\\\"b\"",
    ] {
        assert!(line.contains(text), "{text}: {line}");
    }
    // All of it, the master's lines too; a reload with the other format changes both.
    let log = server.read("error.log");
    let started = log
        .lines()
        .filter(|line| line.contains("start worker process"));
    assert!(
        started.into_iter().all(|line| line.starts_with('{')),
        "{log}"
    );
    let text = std::fs::read_to_string(server.path("nginx.conf")).expect("it is there");
    let plain = text.replace("error_log_format json;", "error_log_format text;");
    std::fs::write(server.path("nginx.conf"), plain).expect("it can be written");
    server.signal(Signal::HUP);
    let changed = until(|| {
        server.get("/again");
        let log = server.read("error.log");
        log.lines()
            .any(|line| line.contains("/again") && line.starts_with("20"))
            .then_some(())
    });
    assert!(changed.is_some(), "{}", server.read("error.log"));
}

#[test]
fn another_format_is_an_error() {
    if skip_on_oracle(WHY) {
        return;
    }
    let finished = whole("error_log_format xml; events { }").test();
    assert_eq!(finished.code, 1);
    assert!(
        finished.stderr.contains("invalid value \"xml\""),
        "{}",
        finished.stderr
    );
}

/// Asks for something that is missing so often that its lines fill any pipe, and expects an answer each time.
fn fill(server: &Server) {
    for number in 0..4 {
        let mut client = server.connect();
        for index in 0..500 {
            let target = format!("/missing/{number}/{index}/{}", "x".repeat(200));
            client.get(&target).expect(404);
        }
    }
}

#[test]
fn a_pipe_that_nobody_empties_holds_no_loop_also_after_a_reload() {
    if skip_on_oracle(WHY) {
        return;
    }
    let block = "server { listen 127.0.0.1:%%PORT%%; root html; error_log stuck.log; }";
    let site = http(block)
        .main("worker_processes 1;")
        .tolerate("lines lost");
    let pipe = site.path("stuck.log");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("a file system with pipes");
    let open = || -> OwnedFd {
        // Also for writing, so that it does not wait for the server.
        rustix::fs::open(
            &pipe,
            OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .expect("it is there")
    };
    let reader = open();
    let server = site.start();
    fill(&server);
    server.signal(Signal::HUP);
    server.line("error.log", "reconfiguring");
    until(|| {
        server
            .read("error.log")
            .contains("exited with code 0")
            .then_some(())
    })
    .expect("the end of the old one");
    fill(&server);
    server.signal(Signal::USR1);
    server.line("error.log", "reopening logs");
    fill(&server);
    // The end must not wait for it either: nobody can read any more.
    drop(reader);
}

#[test]
fn a_syslog_server_that_reads_nothing_holds_no_loop() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = http(
        "server { listen 127.0.0.1:%%PORT%%; root html; error_log syslog:server=unix:%%DIR%%/log.sock,tag=weir; }",
    )
    .tolerate("lines lost");
    let socket = UnixDatagram::bind(site.path("log.sock")).expect("a socket");
    let server = site.start();
    fill(&server);
    let mut buffer = [0; 4096];
    let length = socket.recv(&mut buffer).expect("the first one came");
    let line = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(
        line.starts_with("<187>") && line.contains("/missing/0/"),
        "{line}"
    );
    // The server goes away, and another one comes: lines reach it.
    drop(socket);
    std::fs::remove_file(server.path("log.sock")).expect("it was there");
    let socket = UnixDatagram::bind(server.path("log.sock")).expect("a socket");
    socket.set_nonblocking(true).expect("it can");
    let came = until(|| {
        server.get("/other");
        let length = socket.recv(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length])
            .contains("/other")
            .then_some(())
    });
    assert!(came.is_some());
}
