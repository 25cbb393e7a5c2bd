//! `worker_memory`: what ends when memory is short, and what does not.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use weir_tests::{Server, http, until};

/// Says how much of 100 MB is in use: `files` of them are pages of files.
fn fill(group: &Path, used: u64, files: u64) {
    // In place, since the server has the files open, and never empty: it may read at any moment.
    let write = |name: &str, text: String| {
        let mut options = fs::File::options();
        let file = options.write(true).create(true).truncate(false);
        let file = file.open(group.join(name));
        let written =
            file.and_then(|file| file.write_all_at(format!("{text:<40}\n").as_bytes(), 0));
        written.expect("the group's folder is writable");
    };
    write("memory.max", (100_u64 << 20).to_string());
    write("memory.stat", format!("active_file {}", files << 20));
    write("memory.current", (used << 20).to_string());
}

fn server(used: u64) -> Server {
    let site = http("server { listen 127.0.0.1:%%PORT%%; location / { return 200 ok; } }")
        .folder("group")
        .tolerate("refusing new connections");
    let group = site.path("group");
    fill(&group, used, 0);
    let group = group.display();
    site.main(&format!("worker_processes 1; worker_memory group={group};"))
        .start()
}

/// Whether a new connection gets an answer; otherwise it is closed without one.
fn is_served(server: &Server) -> bool {
    let mut text = String::new();
    let asked = TcpStream::connect(("127.0.0.1", server.port(0))).and_then(|mut stream| {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        stream.read_to_string(&mut text)
    });
    asked.is_ok() && text.starts_with("HTTP/1.1 200")
}

/// Waits for a line in the error log. A server that nobody uses does not look at memory.
fn said(server: &Server, text: &str) {
    let said = until(|| {
        is_served(server);
        server.read("error.log").contains(text).then_some(())
    });
    assert!(said.is_some(), "{text}: {}", server.read("error.log"));
}

#[test]
fn idle_connections_end_when_memory_is_short_and_new_ones_are_served() {
    if weir_tests::skip_on_oracle("nginx has no bound") {
        return;
    }
    let server = server(50);
    let mut idle: Vec<_> = (0..10).map(|_| server.connect()).collect();
    for connection in &mut idle {
        connection.get("/").expect(200);
    }
    fill(&server.path("group"), 88, 0);
    said(
        &server,
        "memory is short, 88 of 100 MB are in use: closing idle connections",
    );
    for connection in &mut idle {
        connection.assert_closed();
    }
    assert!(is_served(&server));
    let lines = server.read("error.log");
    assert_eq!(lines.matches("closing idle").count(), 1, "{lines}");
}

#[test]
fn new_connections_are_refused_until_there_is_memory_again() {
    if weir_tests::skip_on_oracle("nginx has no bound") {
        return;
    }
    let server = server(50);
    let mut busy = server.connect();
    busy.send("GET / HTTP/1.1\r\nHo");
    assert!(is_served(&server));
    fill(&server.path("group"), 95, 0);
    said(
        &server,
        "memory is short, 95 of 100 MB are in use: refusing new connections",
    );
    assert!(!is_served(&server));
    // What has begun is served.
    busy.send("st: a\r\n\r\n");
    busy.reply().expect(200);
    fill(&server.path("group"), 90, 0);
    assert!(!is_served(&server), "below 92 %, and not yet below 88 %");
    fill(&server.path("group"), 60, 0);
    assert!(until(|| is_served(&server).then_some(())).is_some());
    server.line("error.log", "accepting new connections again");
}

#[test]
fn pages_of_files_are_not_in_use() {
    if weir_tests::skip_on_oracle("nginx has no bound") {
        return;
    }
    let server = server(50);
    let mut idle = server.connect();
    idle.get("/").expect(200);
    fill(&server.path("group"), 99, 60);
    // Looked at every quarter of a second, and whenever there is something to do.
    assert!(idle.is_quiet_for(std::time::Duration::from_millis(600)));
    idle.get("/").expect(200);
    assert_eq!(
        server.read("error.log").matches("memory is short").count(),
        0
    );
}

/// How often a response has gone to a temporary file.
fn spooled(server: &Server) -> usize {
    let lines = server.read("error.log");
    lines.matches("is buffered to a temporary file").count()
}

#[test]
fn what_slow_clients_do_not_take_goes_to_files_while_memory_is_tight() {
    if weir_tests::skip_on_oracle("nginx has no bound") {
        return;
    }
    // Less than `proxy_buffers`, and more than the sockets take.
    let large: Vec<u8> = (0..150_000_u32).flat_map(u32::to_be_bytes).collect();
    let site = http(
        "server { listen 127.0.0.1:%%PORT%% sndbuf=16k;
            location / { return 200 ok; }
            location /large { alias %%DIR%%/large; }
            location /proxied { proxy_buffers 100 8k; proxy_pass http://127.0.0.1:%%PORT%%/large; } }",
    )
    .file("large", large.clone())
    .folder("group");
    let group = site.path("group");
    fill(&group, 40, 0);
    let shown = group.display().to_string();
    let server = site
        .main(&format!("worker_processes 1; worker_memory group={shown};"))
        .start();
    let reader = || {
        let mut reader = server.connect();
        reader.request("GET", "/proxied", &[]);
        reader
    };
    let mut patient = reader();
    patient.at_least(large.len());
    assert_eq!(spooled(&server), 0, "it fits into its buffers");
    fill(&group, 70, 0);
    let mut readers = Vec::new();
    let is_spooled = until(|| {
        readers.push(reader());
        (spooled(&server) > 0).then_some(())
    });
    assert!(is_spooled.is_some(), "{}", server.read("error.log"));
    for mut reader in readers {
        let body = reader.at_least(large.len());
        assert!(body.len() >= large.len());
    }
    assert!(is_served(&server), "new clients are served");
}
