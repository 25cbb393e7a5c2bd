//! Clients that take or send nothing for a while: what they get, and what arrives of them, is complete.

use std::time::Duration;

use weir_tests::{Connection, Server, http, until};

use crate::idle_connections::memory;

/// Longer than the server keeps what it has read for a client that does not take it.
const SILENCE: Duration = Duration::from_millis(1300);

/// Larger than the buffers of the sockets.
const LARGE: usize = 1 << 20;

/// No part of it is equal to another.
fn content() -> Vec<u8> {
    (0..LARGE as u32 / 4).flat_map(u32::to_be_bytes).collect()
}

/// A small buffer in the kernel, so that a client that does not read is noticed.
fn server() -> Server {
    let large = content();
    http(
        "server { listen 127.0.0.1:%%PORT%% sndbuf=16k; client_max_body_size 2m;
            location /pid { return 200 $pid; }
            location /copied { alias %%DIR%%/large; }
            location /sent { sendfile on; alias %%DIR%%/large; }
            location /proxied { proxy_pass http://127.0.0.1:%%PORT%%/copied; }
            location /bounded { proxy_max_temp_file_size 0; proxy_pass http://127.0.0.1:%%PORT%%/copied; }
            location /small-file { proxy_max_temp_file_size 200k; proxy_pass http://127.0.0.1:%%PORT%%/copied; }
            location /tight { proxy_buffers 2 4k; proxy_busy_buffers_size 4k; proxy_temp_file_write_size 8k;
                proxy_pass http://127.0.0.1:%%PORT%%/copied; }
            location /streamed { proxy_buffering off; proxy_pass http://127.0.0.1:%%PORT%%/copied; }
            location /put/ { proxy_pass http://127.0.0.1:%%PORT%%/files/; }
            location /put-streamed/ { proxy_http_version 1.1; proxy_request_buffering off;
                proxy_pass http://127.0.0.1:%%PORT%%/files/; }
            location /files/ { dav_methods PUT; root %%DIR%%; } }",
    )
    .file("large", large)
    .folder("files")
    .main("worker_processes 1;")
    .start()
}

fn slow_reader(server: &Server, target: &str) -> Connection {
    let mut connection = server.connect();
    connection.request("GET", target, &[]);
    connection
}

#[test]
fn what_a_slow_reader_gets_is_complete() {
    let server = server();
    let large = content();
    for target in [
        "/copied",
        "/sent",
        "/proxied",
        "/bounded",
        "/small-file",
        "/tight",
        "/streamed",
    ] {
        let mut reader = slow_reader(&server, target);
        // It is the silence that is tested, not something that has happened by its end.
        std::thread::park_timeout(SILENCE);
        let mut body = reader.at_least(200_000);
        // It is known to be slow by now: each part that it takes is read again.
        std::thread::park_timeout(SILENCE);
        body.extend(reader.at_least(200_000));
        std::thread::park_timeout(SILENCE);
        let start = body
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .expect("a head")
            + 4;
        let missing = start + LARGE - body.len();
        body.extend(reader.at_least(missing));
        assert!(body[start..] == large, "{target}");
        assert_eq!(reader.get("/pid").status, 200, "{target}");
    }
}

#[test]
fn what_a_slow_client_uploads_is_complete() {
    let server = server();
    let large = content();
    for target in ["/put/a", "/put-streamed/b"] {
        let mut client = server.connect();
        let length = format!("Content-Length: {LARGE}");
        client.request("PUT", target, &[&length]);
        for part in large.chunks(LARGE / 2 - 1000) {
            client.send(part);
            assert!(client.is_quiet_for(SILENCE) || part.len() < LARGE / 2 - 1000);
        }
        assert!(matches!(client.reply().status, 201 | 204), "{target}");
        let file = target.rsplit('/').next().expect("a name");
        let written = std::fs::read(server.path("files").join(file));
        assert!(written.expect("a file") == large, "{target}");
    }
}

#[test]
fn what_comes_in_chunks_and_slowly_is_complete() {
    let server = server();
    let large = content();
    for target in ["/put/c", "/put-streamed/d"] {
        let mut client = server.connect();
        client.request("PUT", target, &["Transfer-Encoding: chunked"]);
        for part in large.chunks(LARGE / 2 - 1000) {
            client.send(format!("{:x}\r\n", part.len()));
            client.send(part);
            assert!(client.is_quiet_for(SILENCE));
            client.send("\r\n");
        }
        client.send("0\r\n\r\n");
        assert!(matches!(client.reply().status, 201 | 204), "{target}");
        let file = target.rsplit('/').next().expect("a name");
        let written = std::fs::read(server.path("files").join(file));
        assert!(written.expect("a file") == large, "{target}");
    }
}

/// Framing that arrives alone carries no content, and must leave no trace in what is passed on.
#[test]
fn chunks_that_arrive_byte_by_byte_are_one_body() {
    let server = server();
    for target in ["/put/e", "/put-streamed/f"] {
        let mut client = server.connect();
        client.request("PUT", target, &["Transfer-Encoding: chunked"]);
        for byte in b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\n" {
            client.send([*byte]);
            assert!(client.is_quiet_for(Duration::from_millis(20)), "{target}");
        }
        client.send("\r\n");
        assert_eq!(client.reply().status, 201, "{target}");
        let file = target.rsplit('/').next().expect("a name");
        let written = std::fs::read_to_string(server.path("files").join(file));
        assert_eq!(written.expect("a file"), "hello world", "{target}");
    }
}

/// How many clients the tests of memory have.
const MANY: usize = 400;

/// What one of them may cost, in bytes: 30 KB, of which 10 are the loop's buffers for all of them. What one of them
/// takes before it turns out to be slow is about twice as much.
const MEMORY: u64 = 30 * 1024;

/// Waits until clients cost as little as they may. On a busy machine it takes longer than one wait until all of them
/// have been silent for a second, and the memory has gone back five seconds later.
fn assert_little_memory(server: &Server, before: u64, clients: usize) {
    let most = before + clients as u64 * MEMORY;
    let is_little = || (memory(server) < most).then_some(());
    let little = (0..4).any(|_| until(is_little).is_some());
    let after = memory(server);
    assert!(little, "{before} and then {after}");
}

#[test]
fn slow_readers_cost_little_memory_while_they_are_connected() {
    if weir_tests::skip_on_oracle("nginx keeps what it has read for them") {
        return;
    }
    let server = server();
    let before = memory(&server);
    let mut readers: Vec<_> = (0..MANY).map(|_| slow_reader(&server, "/copied")).collect();
    for reader in &mut readers {
        reader.at_least(1);
    }
    assert_little_memory(&server, before, MANY);
}

#[test]
fn slow_uploads_cost_little_memory_while_they_last() {
    if weir_tests::skip_on_oracle("nginx keeps what it has read of them") {
        return;
    }
    let server = server();
    let part = &content()[..100_000];
    let upload = |index: usize| {
        let mut client = server.connect();
        let length = format!("Content-Length: {LARGE}");
        client.request("PUT", &format!("/put/{index}"), &[&length]);
        client.send(part);
        client
    };
    // What is made once, the threads that write files among it, is there before the first look.
    let first: Vec<_> = (MANY..MANY + 40).map(upload).collect();
    assert_eq!(server.get("/pid").status, 200);
    std::thread::park_timeout(SILENCE);
    let before = memory(&server);
    let clients: Vec<_> = (0..MANY).map(upload).collect();
    // Accepted in order: one that came after all of them has an answer, so they have been read, too.
    assert_eq!(server.get("/pid").status, 200);
    assert_little_memory(&server, before, MANY);
    drop((first, clients));
}
