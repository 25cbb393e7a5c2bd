//! Clients that take or send nothing for a while: what they get, and what arrives of them, is complete.

use std::time::Duration;

use weir_tests::{Connection, Server, http};

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
    for target in ["/copied", "/sent", "/proxied", "/streamed"] {
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
