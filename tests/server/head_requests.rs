//! HEAD: the head that a GET would get (RFC 9110, section 9.3.2), whatever the content comes from.

use std::io::Read as _;
use std::net::TcpStream;

use weir_tests::{Http2, Scripted, Server, http, read_until, send, skip_on_oracle};

const FIELDS: &str = "Content-Type: text/html\r\nETag: \"e\"\r\n";

/// A server of HTTP/1 that answers HEAD requests, with a length only where the path says so.
fn origin() -> Scripted {
    Scripted::start(|stream, _| {
        let request = String::from_utf8_lossy(&read_until(stream, b"\r\n\r\n")).into_owned();
        assert!(request.starts_with("HEAD "), "{request}");
        let framing = match request.contains("/length") {
            true => "Content-Length: 1215",
            false => "Transfer-Encoding: chunked",
        };
        send(
            stream,
            format!("HTTP/1.1 200 OK\r\n{framing}\r\n{FIELDS}\r\n"),
        );
    })
}

/// One record of FastCGI.
fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    bytes.extend_from_slice(content);
    bytes
}

fn answer_over_fastcgi(stream: &mut TcpStream) {
    read_until(stream, &[1, 5, 0, 1, 0, 0, 0, 0]);
    send(stream, record(6, format!("{FIELDS}\r\n").as_bytes()));
    send(stream, record(6, b""));
    send(stream, record(3, &[0; 8]));
}

#[track_caller]
fn assert_lengthless(server: &Server, path: &str, lines: &[&str]) {
    let reply = server.request("HEAD", path, lines).expect(200);
    assert!(!reply.has("Content-Length"), "{path}: {reply:?}");
    assert!(!reply.has("Transfer-Encoding"), "{path}: {reply:?}");
    assert_eq!(reply.field("Vary"), "Accept-Encoding", "{path}: {reply:?}");
}

#[test]
fn no_length_is_claimed_that_nobody_knows() {
    let origin = origin();
    let fastcgi = Scripted::start(|stream, _| answer_over_fastcgi(stream));
    let scgi = Scripted::start(|stream, _| {
        read_until(stream, b",");
        send(stream, format!("{FIELDS}\r\n"));
    });
    let uwsgi = Scripted::start(|stream, _| {
        let mut head = [0; 4];
        stream.read_exact(&mut head).expect("a packet");
        let mut variables = vec![0; usize::from(u16::from_le_bytes([head[1], head[2]]))];
        stream
            .read_exact(&mut variables)
            .expect("as long as it says");
        send(stream, format!("{FIELDS}\r\n"));
    });
    let (http1, fastcgi_port, scgi_port, uwsgi_port) =
        (origin.port(), fastcgi.port(), scgi.port(), uwsgi.port());
    let conf = format!(
        "server {{
            listen 127.0.0.1:%%PORT%%;
            gzip on;
            gzip_vary on;
            proxy_http_version 1.1;
            location /http {{ proxy_pass http://127.0.0.1:{http1}; }}
            location /unbuffered {{ proxy_pass http://127.0.0.1:{http1}; proxy_buffering off; }}
            location /fastcgi {{ fastcgi_pass 127.0.0.1:{fastcgi_port}; fastcgi_param A b; }}
            location /scgi {{ scgi_pass 127.0.0.1:{scgi_port}; scgi_param A b; }}
            location /uwsgi {{ uwsgi_pass 127.0.0.1:{uwsgi_port}; uwsgi_param URI $uri; }}
            error_page 404 = /fastcgi;
            location /error {{ return 404; }}
        }}"
    );
    let server = http(&conf).start();
    for path in [
        "/http",
        "/unbuffered",
        "/fastcgi",
        "/scgi",
        "/uwsgi",
        "/error",
    ] {
        assert_lengthless(&server, path, &[]);
    }
    let gzip = ["Accept-Encoding: gzip"];
    for path in ["/http", "/fastcgi"] {
        let reply = server.request("HEAD", path, &gzip).expect(200);
        assert_eq!(reply.field("Content-Encoding"), "gzip", "{path}");
        assert_eq!(reply.field("ETag"), "W/\"e\"", "{path}");
        assert_lengthless(&server, path, &gzip);
    }
    let reply = server.request("HEAD", "/http/length", &[]).expect(200);
    assert_eq!(reply.field("Content-Length"), "1215");
}

#[test]
fn a_stored_head_claims_no_length_either() {
    let origin = origin();
    let port = origin.port();
    let conf = format!(
        "proxy_cache_path cache keys_zone=zone:1m;
        server {{
            listen 127.0.0.1:%%PORT%%;
            gzip on;
            gzip_vary on;
            proxy_cache zone;
            proxy_cache_valid 1h;
            proxy_cache_convert_head off;
            proxy_cache_key $uri$request_method;
            proxy_http_version 1.1;
            location / {{ proxy_pass http://127.0.0.1:{port}; add_header X-Status $upstream_cache_status; }}
        }}"
    );
    let server = http(&conf).start();
    for status in ["MISS", "HIT"] {
        let reply = server.request("HEAD", "/chunks", &[]).expect(200);
        assert_eq!(reply.field("X-Status"), status);
        assert!(!reply.has("Content-Length"), "{status}: {reply:?}");
        let reply = server.request("HEAD", "/length", &[]).expect(200);
        assert_eq!(reply.field("X-Status"), status);
        assert_eq!(reply.field("Content-Length"), "1215");
    }
}

#[test]
fn over_http2_it_is_the_same() {
    if skip_on_oracle("`http2 on` is not known to Debian's nginx") {
        return;
    }
    let origin = origin();
    let port = origin.port();
    let conf = format!(
        "server {{ listen 127.0.0.1:%%PORT%%; http2 on; proxy_http_version 1.1;
            location / {{ proxy_pass http://127.0.0.1:{port}; }} }}"
    );
    let server = http(&conf).start();
    let mut client = Http2::connect(&server, &[]);
    for (path, length) in [("/chunks", ""), ("/length", "1215")] {
        let stream = client.request("HEAD", path, &[], true);
        let reply = client.reply(stream);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.field("content-length"), length, "{path}");
        assert!(reply.body.is_empty(), "{path}");
    }
}
