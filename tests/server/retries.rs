//! `…_next_upstream` for a request whose body was on its way when its server failed: the next server gets all of the
//! request, or none of it.

use std::fmt::Write as _;
use std::io::Read;
use std::time::Duration;

use proto::h2::settings::id::INITIAL_WINDOW_SIZE;
use rustix::net::sockopt::set_socket_linger;
use weir_tests::{Connection, Heard, Http2, Scripted, Server, http, send, skip_on_oracle};

/// The byte that bodies consist of. It appears in no head.
const BYTE: u8 = 0xee;

/// The length of the bodies: more than the buffers of a connection to a server that does not read.
const SIZE: usize = 12 << 20;

/// A server that resets every connection in the middle of a body.
fn resetting() -> Scripted {
    Scripted::start(|stream, _| {
        let mut start = [0; 200_000];
        let _ = stream.read_exact(&mut start);
        let _ = set_socket_linger(&*stream, Some(Duration::ZERO));
    })
}

/// A server that answers when it has `size` bytes of body.
fn whole(answer: &'static [u8], size: usize) -> Scripted {
    Scripted::start(move |stream, _| {
        let mut buffer = vec![0; 65536];
        let mut received = 0;
        while received < size {
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => received += buffer[..n].iter().filter(|&&byte| byte == BYTE).count(),
            }
        }
        send(stream, answer);
    })
}

/// A server that passes requests on with `directives`, first to one server and then to the other.
fn two_servers(bad: &Scripted, good: &Scripted, pass: &str, directives: &str) -> Server {
    let (a, b) = (bad.port(), good.port());
    let mut servers = String::new();
    let _ = write!(
        servers,
        "server 127.0.0.1:{a} max_fails=0; server 127.0.0.1:{b} backup;"
    );
    http(&format!(
        "upstream u {{ {servers} }} client_max_body_size 0;
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ {pass}; {directives} }} }}"
    ))
    .start()
}

/// Sends a request with a body of `size` bytes.
fn put(server: &Server, method: &str, size: usize) -> Connection {
    let mut connection = server.connect();
    connection.request(method, "/", &[&format!("Content-Length: {size}")]);
    connection.send(vec![BYTE; size]);
    connection
}

#[test]
fn a_body_that_was_kept_is_sent_again_from_its_beginning() {
    let fastcgi: &[u8] = b"\x01\x06\x00\x01\x00\x15\x00\x00Status: 200\r\n\r\nwhole\n\x01\x03\x00\x01\x00\x08\x00\x00\0\0\0\0\0\0\0\0";
    let http: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nwhole\n";
    let cgi: &[u8] = b"Status: 200 OK\r\n\r\nwhole\n";
    for (pass, prefix, answer) in [
        ("proxy_pass http://u", "proxy", http),
        ("fastcgi_pass u", "fastcgi", fastcgi),
        ("scgi_pass u", "scgi", cgi),
        ("uwsgi_pass u", "uwsgi", cgi),
    ] {
        for buffer in [
            "client_body_buffer_size 32m;",
            "client_body_buffer_size 16k;",
        ] {
            let (bad, good) = (resetting(), whole(answer, SIZE));
            let more = format!("{buffer} {prefix}_next_upstream error non_idempotent;");
            let server = two_servers(&bad, &good, pass, &more);
            for method in ["PUT", "POST"] {
                let reply = put(&server, method, SIZE).reply();
                assert_eq!(
                    (reply.status, reply.text().as_str()),
                    (200, "whole\n"),
                    "{pass} {buffer} {method}"
                );
            }
            assert_eq!((bad.connections(), good.connections()), (2, 2));
        }
    }
}

#[test]
fn a_body_that_was_passed_on_is_not_sent_again() {
    for pass in ["proxy", "fastcgi", "scgi", "uwsgi"] {
        let (bad, good) = (resetting(), whole(b"", SIZE));
        let destination = if pass == "proxy" { "http://u" } else { "u" };
        let more =
            format!("{pass}_request_buffering off; {pass}_next_upstream error non_idempotent;");
        let server = two_servers(&bad, &good, &format!("{pass}_pass {destination}"), &more);
        let reply = put(&server, "PUT", SIZE).reply_or_closed();
        assert!(reply.is_none_or(|reply| reply.status == 502), "{pass}");
        server.line("error.log", ", upstream: ");
        assert_eq!((bad.connections(), good.connections()), (1, 0), "{pass}");
    }
}

/// Over HTTP/2 each connection has its own frames, so nothing of the first try can be used again.
#[test]
fn a_body_is_sent_again_over_http2() {
    if skip_on_oracle("proxy_http_version 2 is newer") {
        return;
    }
    // A window for all of the body, so that only the connection limits what is sent.
    let accept = |stream: &mut std::net::TcpStream| {
        let mut peer = Http2::accept(stream);
        let mut settings = Vec::new();
        proto::h2::frame::write_settings(&[(INITIAL_WINDOW_SIZE, 1 << 30)], &mut settings);
        peer.send(&settings);
        peer.window(0, 1 << 30);
        peer
    };
    for buffer in [
        "client_body_buffer_size 32m;",
        "client_body_buffer_size 16k;",
    ] {
        let bad = Scripted::start(move |stream, _| {
            let mut peer = accept(stream);
            peer.hear(|heard| matches!(heard, Heard::Data { .. }));
            let _ = set_socket_linger(&*stream, Some(Duration::ZERO));
        });
        let good = Scripted::start(move |stream, _| {
            let mut peer = accept(stream);
            let mut received = 0;
            loop {
                match peer.hear(|heard| matches!(heard, Heard::Data { .. } | Heard::Closed)) {
                    Heard::Data {
                        stream,
                        bytes,
                        ends,
                    } => {
                        received += bytes.len();
                        if ends {
                            peer.headers(stream, &[(":status", "200")], false);
                            peer.data(stream, received.to_string().as_bytes(), true);
                        }
                    }
                    _ => return,
                }
            }
        });
        let server = two_servers(
            &bad,
            &good,
            "proxy_pass http://u; proxy_http_version 2",
            buffer,
        );
        let reply = put(&server, "PUT", SIZE).reply();
        assert_eq!(
            (reply.status, reply.text()),
            (200, SIZE.to_string()),
            "{buffer}"
        );
    }
}

/// A server that resets connections before it has read anything: what the client has sent by then is not lost.
#[test]
fn a_streamed_body_of_which_nothing_was_sent_reaches_the_next_server_whole() {
    if skip_on_oracle("tries no other server once it is connected") {
        return;
    }
    const SMALL: usize = 100_000;
    let bad = Scripted::start(|stream, _| {
        let _ = set_socket_linger(&*stream, Some(Duration::ZERO));
    });
    let good = whole(
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nwhole\n",
        SMALL,
    );
    let server = two_servers(
        &bad,
        &good,
        "proxy_pass http://u",
        "proxy_request_buffering off; client_body_buffer_size 1k;",
    );
    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(put(&server, "PUT", SMALL).reply().status);
    }
    // 502: the head had been sent.
    assert!(
        statuses.iter().all(|status| [200, 502].contains(status)),
        "{statuses:?}"
    );
}

/// The only server that is left closes its idle connection as the next request comes. nginx counts that as a try of the server, and
/// has no other.
#[test]
fn the_last_server_gets_a_request_that_found_its_idle_connection_closed() {
    if skip_on_oracle("nginx answers 502") {
        return;
    }
    let origin = Scripted::start(|stream, _| {
        let mut head = [0; 4096];
        if stream.read(&mut head).is_ok_and(|length| length > 0) {
            send(stream, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            // The next request is read, and gets no response.
            let _ = stream.read(&mut head);
        }
    });
    let port = origin.port();
    let server = http(&format!(
        "upstream u {{ server 127.0.0.1:{port}; server 127.0.0.1:{port} down; keepalive 4; }}
         server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://u; proxy_http_version 1.1; \
         proxy_set_header Connection ''; }} }}"
    ))
    .tolerate("prematurely closed")
    .start();
    for _ in 0..4 {
        assert_eq!(server.get("/").status, 200);
    }
}
