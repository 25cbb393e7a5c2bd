//! What leaves together: a head and its first content, and the records of TLS that they are cut into.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use weir_tests::{Scripted, Server, is_oracle, read_until, send};

use crate::tls::{CERTIFICATE, Client, ask, https};

/// How long an origin is silent between two pieces of its response: enough for a server that sends the first one at once.
const GAP: Duration = Duration::from_millis(60);

/// A socket that keeps what it has read.
struct Taped(TcpStream, Vec<u8>);

impl Read for Taped {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.read(buf)?;
        self.1.extend_from_slice(&buf[..n]);
        Ok(n)
    }
}

impl Write for Taped {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.write(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// The length of each record that carries content.
fn records(tape: &[u8]) -> Vec<usize> {
    let (mut at, mut lengths) = (0, Vec::new());
    while let [kind, _, _, high, low, ..] = tape[at..] {
        let length = usize::from(high) << 8 | usize::from(low);
        if kind == 23 {
            lengths.push(length);
        }
        at += 5 + length;
    }
    lengths
}

fn tape(server: &Server) -> StreamOwned<ClientConnection, Taped> {
    // In TLS 1.3 other messages look the same.
    let client = Client::with(None, &[&rustls::version::TLS12]);
    let name = ServerName::try_from("localhost").expect("a host name");
    let connection =
        ClientConnection::new(client.config().clone().into(), name).expect("a good configuration");
    let socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    StreamOwned::new(connection, Taped(socket, Vec::new()))
}

/// The records of the answer to one request, and its text.
fn answer(server: &Server, target: &str) -> (Vec<usize>, String) {
    let mut stream = tape(server);
    let text = ask(&mut stream, target, "Host: a").expect("an answer");
    (records(&stream.sock.1), text)
}

/// An origin that sends its head, and after a while its content.
fn in_two(head: &'static str, content: &'static str) -> Scripted {
    Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(stream, head);
        // The server has nothing more to say: that takes its time.
        stream.set_read_timeout(Some(GAP)).expect("a time");
        assert!(stream.read(&mut [0]).is_err(), "more of the request");
        send(stream, content);
    })
}

const HEADS: [&str; 3] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
    "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n",
];

#[test]
fn a_head_and_the_content_that_follows_it_from_an_upstream_are_one_record() {
    for head in HEADS {
        let origin = in_two(head, "hello");
        let port = origin.port();
        let server = https(&format!(
            "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE}
             location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
        ))
        .start();
        let (records, text) = answer(&server, "/");
        assert!(text.contains("hello"), "{text}");
        // The end of chunks of unknown length is known later.
        let most = if text.contains("chunked") && !is_oracle() {
            2
        } else {
            1
        };
        assert!(records.len() <= most, "{head}: {records:?} {text}");
    }
}

#[test]
fn a_head_and_the_content_that_follows_it_are_one_write_over_plain_http() {
    let origin = in_two(HEADS[0], "hello");
    let port = origin.port();
    let server = weir_tests::http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let mut client = server.connect();
    client.request("GET", "/", &[]);
    let first = client.at_least(1);
    assert!(
        first.ends_with(b"\r\n\r\nhello"),
        "{:?}",
        String::from_utf8_lossy(&first)
    );
}

/// The content comes only when the client has the head: with `proxy_buffering off`, by `X-Accel-Buffering` and where the
/// head is longer than `postpone_output` it does not wait.
#[test]
fn a_head_does_not_wait_for_content_where_nginx_does_not_either() {
    let long: &'static str = format!("X-Long: {}\r\n", "x".repeat(1500)).leak();
    for (fields, directives) in [
        ("", "proxy_buffering off;"),
        ("X-Accel-Buffering: no\r\n", ""),
        (long, ""),
        ("", "postpone_output 0;"),
    ] {
        let (seen, waits) = std::sync::mpsc::channel::<()>();
        let origin = Scripted::start(move |stream, _| {
            read_until(stream, b"\r\n\r\n");
            send(
                stream,
                format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 5\r\n\r\n"),
            );
            let _ = waits.recv_timeout(Duration::from_secs(5));
            send(stream, "hello");
        });
        let port = origin.port();
        let server = weir_tests::http(&format!(
            "server {{ listen 127.0.0.1:%%PORT%%; {directives}
             location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
        ))
        .start();
        let mut client = server.connect();
        client.request("GET", "/", &[]);
        let first = client.at_least(40);
        assert!(first.starts_with(b"HTTP/1.1 200"), "{directives}");
        assert!(!first.ends_with(b"hello"), "{directives}");
        seen.send(()).expect("the origin waits");
        assert_eq!(client.at_least(5).split_off(0).last(), Some(&b'o'));
    }
}

#[test]
fn a_stream_of_events_begins_before_its_first_event() {
    if weir_tests::skip_on_oracle("nginx's buffers hold the head back, too") {
        return;
    }
    let (seen, waits) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
        );
        let _ = waits.recv_timeout(Duration::from_secs(5));
        send(stream, "data: 1\n\n");
    });
    let port = origin.port();
    let server = weir_tests::http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let mut client = server.connect();
    client.request("GET", "/", &[]);
    assert!(client.at_least(1).starts_with(b"HTTP/1.1 200"));
    seen.send(()).expect("the origin waits");
}

#[test]
fn a_head_and_the_content_that_follows_it_are_one_record_over_http_2() {
    let origin = in_two(HEADS[0], "hello");
    let port = origin.port();
    let (before, parameter) = match is_oracle() {
        true => ("", "http2"),
        false => ("http2 on;", ""),
    };
    let server = https(&format!(
        "{before} server {{ listen 127.0.0.1:%%PORT%% ssl {parameter}; {CERTIFICATE}
         location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    ))
    .start();
    let client = Client::with(None, &[&rustls::version::TLS12]).offering(&[b"h2".to_vec()]);
    let name = ServerName::try_from("localhost").expect("a host name");
    let connection =
        ClientConnection::new(client.config().clone().into(), name).expect("a good configuration");
    let socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("it listens");
    let mut stream = StreamOwned::new(connection, Taped(socket, Vec::new()));
    // GET https://localhost/, by the static table alone.
    let authority = b"\x41\x09localhost";
    let block = [&[0x82, 0x84, 0x87][..], authority].concat();
    let mut request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    request.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
    request.extend_from_slice(&[0, 0, block.len() as u8, 1, 5, 0, 0, 0, 1]);
    request.extend_from_slice(&block);
    stream.write_all(&request).expect("it listens");
    let mut frames = Vec::new();
    while !frames.ends_with(b"hello") {
        let mut buf = [0; 4096];
        let n = stream.read(&mut buf).expect("frames");
        assert!(n > 0, "the connection ended: {frames:?}");
        frames.extend_from_slice(&buf[..n]);
    }
    // The end of the stream may be a frame of its own, behind the content.
    let lengths = records(&stream.sock.1);
    let overhead = (lengths.iter().sum::<usize>() - frames.len()) / lengths.len();
    let mut rest = &frames[..];
    for length in lengths {
        let (record, others) = rest.split_at(length - overhead);
        rest = others;
        // HEADERS of stream 1 stand in the record that has the content.
        if record.windows(6).any(|window| window == [1, 4, 0, 0, 0, 1]) {
            assert!(record.ends_with(b"hello"), "{frames:?}");
            return;
        }
    }
    panic!("no HEADERS: {frames:?}");
}

#[test]
fn a_file_is_cut_into_whole_records() {
    let server = https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} }}"
    ))
    .file("html/big", vec![b'x'; 300_000])
    .start();
    let (records, text) = answer(&server, "/big");
    assert!(text.len() > 300_000);
    let (_, whole) = records.split_last().expect("records");
    assert!(
        whole.iter().all(|length| *length > 16 * 1024),
        "{records:?}"
    );
}
