//! What went wrong elsewhere: the conversations behind the published advisories of nginx, HAProxy, Varnish, h2o, Traffic
//! Server and Pingora that were mistakes of logic. `docs/advisories.md` lists each advisory with its test or with the
//! reason why Weir cannot have it; the first test here sees to it that the tests which the page names exist.
//!
//! Most of these are about one question: do the proxy and the server behind it agree where a request ends? So the server
//! behind is one that records, request by request, what it understood.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use proto::h2::frame::{self, flag, kind};
use weir_tests::{
    Heard, Http2, PATIENCE, Scripted, Server, Site, http, is_oracle, read_until, send,
    skip_on_oracle, until,
};

#[test]
fn each_test_that_the_page_names_exists() {
    const PAGE: &str = include_str!("../../docs/advisories.md");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/server/");
    let mut names = 0;
    for name in PAGE.split('`').skip(1).step_by(2) {
        let Some((file, test)) = name.split_once("::") else {
            continue;
        };
        let source = std::fs::read_to_string(format!("{folder}{file}.rs"))
            .unwrap_or_else(|error| panic!("docs/advisories.md names {name}: {error}"));
        assert!(
            source.contains(&format!("fn {test}(")),
            "docs/advisories.md names {name}, which is not there; name the test that took its place"
        );
        names += 1;
    }
    assert!(names > 50, "{names}");
}

/// One request as the origin understood it.
#[derive(Debug, Clone)]
struct Seen {
    /// Request line and header lines.
    head: String,
    body: Vec<u8>,
}

impl Seen {
    fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap_or_default()
    }
}

/// A server that keeps its connections, answers each request with `ok`, and remembers how it understood what came.
struct Origin {
    port: u16,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Origin {
    fn start() -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let all = Arc::clone(&seen);
        // It ends with the test's process; its connections end with the server under test.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                std::thread::spawn(move || keep(stream, &all));
            }
        });
        Origin { port, seen }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no thread failed").clone()
    }

    /// The targets of the requests so far, in their order.
    fn targets(&self) -> Vec<String> {
        let seen = self.seen();
        seen.iter().map(|seen| seen.target().to_owned()).collect()
    }

    /// A server under test that passes everything on over kept connections.
    fn proxy(&self, more: &str) -> Site {
        http(&format!(
            "upstream u {{ server 127.0.0.1:{}; keepalive 8; }}
             server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1; proxy_set_header Connection '';
                client_body_timeout 2s; client_header_timeout 2s; lingering_timeout 300ms;
                location / {{ proxy_pass http://u; }} {more} }}",
            self.port
        ))
    }
}

/// Reads requests one after the other; a broken one ends the connection, and is remembered too.
fn keep(mut stream: TcpStream, all: &Mutex<Vec<Seen>>) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut input = Vec::new();
    loop {
        let Some(end) = fill(&mut stream, &mut input, |input| {
            input.windows(4).position(|end| end == b"\r\n\r\n")
        }) else {
            return;
        };
        let head = String::from_utf8_lossy(&input[..end + 4]).into_owned();
        input.drain(..end + 4);
        let body = body(&mut stream, &mut input, &head);
        let whole = body.is_some();
        let body = body.unwrap_or_default();
        all.lock()
            .expect("no thread failed")
            .push(Seen { head, body });
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        if !whole || stream.write_all(answer).is_err() {
            return;
        }
    }
}

/// Reads until `found` finds something.
fn fill<T>(
    stream: &mut TcpStream,
    input: &mut Vec<u8>,
    found: impl Fn(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut buffer = [0; 65536];
    loop {
        if let Some(found) = found(input) {
            return Some(found);
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => input.extend_from_slice(&buffer[..count]),
        }
    }
}

/// The body that `head` announces, `None` if it does not come whole.
fn body(stream: &mut TcpStream, input: &mut Vec<u8>, head: &str) -> Option<Vec<u8>> {
    let head = head.to_ascii_lowercase();
    if head.contains("\r\ntransfer-encoding: chunked\r\n") {
        let mut body = Vec::new();
        loop {
            let line = fill(stream, input, |input| {
                input.windows(2).position(|end| end == b"\r\n")
            })?;
            let size = std::str::from_utf8(&input[..line]).ok()?;
            let size = usize::from_str_radix(size.split(';').next()?, 16).ok()?;
            let total = line + 2 + size + 2;
            fill(stream, input, |input| (input.len() >= total).then_some(()))?;
            body.extend_from_slice(&input[line + 2..line + 2 + size]);
            input.drain(..total);
            if size == 0 {
                return Some(body);
            }
        }
    }
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |value| value.parse().unwrap_or(usize::MAX));
    fill(stream, input, |input| (input.len() >= length).then_some(()))?;
    Some(input.drain(..length).collect())
}

/// What clients sent, each hiding a request for `/hidden` from somebody: the advisory, the bytes, and how many requests
/// the origin may see of them. Where it is 0 the request is refused.
fn hidden() -> Vec<(&'static str, Vec<u8>, usize)> {
    const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = HIDDEN.len();
    let post = "POST /first HTTP/1.1\r\nHost: a\r\n";
    let long_name = format!("Content-Length0{}:", "a".repeat(255));
    let row = |name, bytes: String, count| (name, bytes.into_bytes(), count);
    vec![
        row(
            "a vertical tab before the coding (HAProxy CVE-2019-18277)",
            format!(
                "{post}Content-Length: {length}\r\nTransfer-Encoding: \x0bchunked\r\n\r\n{HIDDEN}"
            ),
            0,
        ),
        row(
            "a name that is too long for its counter (HAProxy CVE-2021-40346)",
            format!("{post}{long_name}\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"),
            1,
        ),
        row(
            "an empty name (HAProxy CVE-2023-25725)",
            format!("{post}: x\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "an empty length (HAProxy CVE-2023-40225)",
            format!("{post}Content-Length:\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "an empty length before a good one",
            format!("{post}Content-Length:\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "two Hosts with a body (Varnish VSV00015)",
            format!("{post}Host: b\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "two lengths with a body (Varnish VSV00015)",
            format!("{post}Content-Length: {length}\r\nContent-Length: 0\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a chunk that does not end where it should (Varnish VSV00016)",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n1\r\nx0\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a chunk whose end is two other bytes (Varnish VSV00016)",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n1\r\nxAB0\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a line feed for the end of a chunk's size",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n2\nxx\r\n0\r\n\r\n"),
            1,
        ),
        row(
            "a quoted extension with a line end in it (ATS CVE-2026-24033)",
            format!("{post}Transfer-Encoding: chunked\r\n\r\n2;a=\"\r\nxx\r\n0\r\n\r\n"),
            1,
        ),
        row(
            "a length with a sign (ATS CVE-2021-32565)",
            format!("{post}Content-Length: +{length}\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a length with text behind it (ATS CVE-2021-32565)",
            format!("{post}Content-Length: {length}abc\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a length and a coding (ATS CVE-2018-8004)",
            format!(
                "{post}Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
            0,
        ),
        row(
            "a blank before the colon (ATS CVE-2018-8004)",
            format!("{post}Content-Length : {length}\r\n\r\n{HIDDEN}"),
            0,
        ),
        row(
            "a folded coding (ATS CVE-2023-33933)",
            format!(
                "{post}Transfer-Encoding:\r\n chunked\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"
            ),
            0,
        ),
        row(
            "a coding in HTTP/1.0 (Pingora CVE-2026-2835)",
            format!(
                "POST /first HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
            0,
        ),
        row(
            "codings of which the last is not chunked (Pingora CVE-2026-2835)",
            format!(
                "{post}Transfer-Encoding: chunked, identity\r\nContent-Length: {length}\r\n\r\n{HIDDEN}"
            ),
            0,
        ),
    ]
}

#[test]
fn a_request_within_a_request_reaches_no_origin() {
    for (name, bytes, count) in hidden() {
        if is_oracle() && name.contains("Varnish VSV00016") {
            // Debian's nginx reads the head first and passes it on; the request for /hidden does not follow.
            continue;
        }
        let origin = Origin::start();
        let server = origin.proxy("").start();
        let mut client = server.connect();
        client.send(&bytes);
        client.half_close();
        let answers = String::from_utf8_lossy(&client.rest())
            .matches("HTTP/1.1 ")
            .count();
        let targets = origin.targets();
        assert!(
            !targets.iter().any(|target| target == "/hidden"),
            "{name}: {targets:?}"
        );
        assert!(targets.len() <= count, "{name}: {targets:?}");
        assert!(answers <= 1, "{name}: {answers} answers");
        // The next client gets an answer of its own.
        assert_eq!(server.get("/next").expect(200).text(), "ok", "{name}");
        assert_eq!(
            origin.targets().last().map(String::as_str),
            Some("/next"),
            "{name}"
        );
    }
}

#[test]
fn pseudo_headers_over_http_2_write_no_line_of_http_1() {
    if skip_on_oracle("nginx before 1.25 has another way to say http2, and lets some of these pass")
    {
        return;
    }
    let origin = Origin::start();
    let server = http(&format!(
        "http2 on; server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    ))
    .start();
    // Varnish VSV00011, HAProxy CVE-2021-39240 to 39242, ATS CVE-2022-25763 and CVE-2026-58150.
    let ordinary = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        (":authority", "a"),
    ];
    let bent: &[(&str, &str)] = &[
        (":method", "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\nGET"),
        (":method", "GET /hidden"),
        (":path", "/ HTTP/1.1\r\nHost: a\r\n\r\nGET /hidden"),
        (":path", "/ HTTP/1.1"),
        (":path", "hidden"),
        (":path", ""),
        (":scheme", "http://hidden/"),
        (":scheme", "http\r\nx: y"),
        (":authority", "a\r\nX: y"),
        (":authority", "a b"),
        (":authority", "a/hidden"),
    ];
    for &(name, value) in bent {
        let fields: Vec<_> = ordinary
            .iter()
            .map(|&(n, v)| (n, if n == name { value } else { v }))
            .collect();
        is_refused(&server, &fields, &format!("{name} {value:?}"));
    }
    let more: &[(&str, &str)] = &[
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("upgrade", "h2c"),
        ("te", "chunked"),
        ("host", "b"),
        ("x", "a\r\nY: b"),
        ("x", "a\0b"),
        ("x y", "a"),
        ("", "no name"),
        ("x:", "a"),
    ];
    for &field in more {
        let fields: Vec<_> = ordinary.iter().copied().chain([field]).collect();
        is_refused(&server, &fields, &format!("{field:?}"));
    }
    assert!(origin.targets().is_empty(), "{:?}", origin.seen());
}

/// A request with these fields gets 400, a reset, or the end of its connection.
#[track_caller]
fn is_refused(server: &Server, fields: &[(&str, &str)], name: &str) {
    let mut client = Http2::connect(server, &[]);
    let stream = client.begin(fields, true);
    let refused = match client.hear(|heard| {
        heard.stream() == Some(stream) || matches!(heard, Heard::GoAway(..) | Heard::Closed)
    }) {
        Heard::Headers { fields, .. } => fields.contains(&(":status".to_owned(), "400".to_owned())),
        Heard::Data { .. } => false,
        _ => true,
    };
    assert!(refused, "{name}");
}

#[test]
fn a_body_that_a_hit_does_not_read_is_not_the_next_request() {
    // Pingora CVE-2025-4366: the hit answered, and what was left of the request became the next one.
    let origin = Origin::start();
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let server = http(&format!(
        "proxy_cache_path %%DIR%%/cache keys_zone=c:1m;
         server {{ listen 127.0.0.1:%%PORT%%; proxy_cache c; proxy_cache_valid 1h;
            add_header X-Cache $upstream_cache_status; location / {{ proxy_pass http://127.0.0.1:{}; }} }}",
        origin.port
    ))
    .start();
    server.get("/page").expect(200);
    assert!(until(|| (server.get("/page").field("X-Cache") == "HIT").then_some(())).is_some());
    let before = origin.targets().len();
    for framing in [
        format!("Content-Length: {}\r\n\r\n{hidden}", hidden.len()),
        format!(
            "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{hidden}\r\n0\r\n\r\n",
            hidden.len()
        ),
    ] {
        let mut client = server.connect();
        client.send(format!("GET /page HTTP/1.1\r\nHost: localhost\r\n{framing}GET /page HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
        for _ in 0..2 {
            assert_eq!(client.reply().field("X-Cache"), "HIT");
        }
        assert!(client.rest().is_empty());
    }
    assert_eq!(origin.targets().len(), before);
}

#[test]
fn nothing_follows_an_upgrade_before_the_server_agrees() {
    // Pingora CVE-2026-2833: bytes behind a request with Upgrade went to the server at once.
    let origin = Origin::start();
    let server = origin
        .proxy("location /ws { proxy_pass http://u; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }")
        .start();
    let mut client = server.connect();
    client.send(
        "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\
         GET /ws/two HTTP/1.1\r\nHost: localhost\r\nX-Forged: yes\r\nConnection: close\r\n\r\n",
    );
    client.reply().expect(200);
    client.reply().expect(200);
    // The second is a request of its own that went through the server: it has what the server adds.
    let seen = origin.seen();
    assert_eq!(origin.targets(), ["/ws", "/ws/two"]);
    assert!(seen[1].head.contains("\r\nHost: u\r\n"), "{seen:?}");
}

#[test]
fn a_connection_that_is_owed_a_body_is_not_used_again() {
    // ATS CVE-2025-31699: the server answered early, the client left, and the next request became the missing body.
    // A second request on the first connection would be what the first one owes.
    let origin = Scripted::start(|stream, _| {
        let head = read_until(stream, b"\r\n\r\n");
        if head.starts_with(b"GET ") {
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
            return send(stream, answer);
        }
        send(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    });
    let server = http(&format!(
        "upstream u {{ server 127.0.0.1:{}; keepalive 8; }}
         server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1; proxy_set_header Connection '';
            proxy_request_buffering off; location / {{ proxy_pass http://u; }} }}",
        origin.port()
    ))
    .start();
    for _ in 0..3 {
        let mut client = server.connect();
        client.send("POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
        client.reply().expect(200);
        drop(client);
        let mut next = server.connect();
        next.request("GET", "/next", &["Connection: close"]);
        next.reply().expect(200);
    }
}

#[test]
fn content_that_http_2_announced_and_did_not_send_is_no_chunk() {
    if skip_on_oracle("nginx before 1.25 has another way to say http2") {
        return;
    }
    // HAProxy CVE-2026-90678: the size of a DATA frame became the size of a chunk before the frame was there.
    let origin = Origin::start();
    let server = http(&format!(
        "http2 on; upstream u {{ server 127.0.0.1:{}; keepalive 8; }}
         server {{ listen 127.0.0.1:%%PORT%%; proxy_http_version 1.1; proxy_set_header Connection '';
            proxy_request_buffering off; location / {{ proxy_pass http://u; }} }}",
        origin.port
    ))
    .start();
    for _ in 0..3 {
        let mut client = Http2::connect(&server, &[]);
        let stream = client.request("POST", "/first", &[], false);
        let mut out = Vec::new();
        frame::write_head(100, kind::DATA, flag::END_STREAM, stream, &mut out);
        out.extend_from_slice(b"only this");
        client.send(&out);
        drop(client);
        let mut client = Http2::connect(&server, &[]);
        assert_eq!(client.get("/next").text(), "ok");
    }
    let seen = origin.seen();
    let next = seen.iter().filter(|seen| seen.target() == "/next").count();
    assert_eq!(next, 3, "{seen:?}");
    assert!(
        seen.iter()
            .all(|seen| !seen.body.windows(5).any(|part| part == b"/next")),
        "{seen:?}"
    );
}

#[test]
fn a_redirect_for_an_error_leaves_no_body_behind() {
    // nginx CVE-2019-20372: the body of a request that error_page redirected was read as the next request.
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; location / { deny all; error_page 403 http://elsewhere.example/; }
            location /hidden { return 200 hidden; } }",
    )
    .start();
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut client = server.connect();
    client.send(format!(
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{hidden}",
        hidden.len()
    ));
    client.reply().expect(302);
    client.half_close();
    assert!(client.rest().is_empty());
}

#[test]
fn a_fragment_is_no_part_of_a_path() {
    // HAProxy CVE-2023-45539, ATS CVE-2021-27577: a rule for `.png` matched what came behind the `#`.
    let origin = Origin::start();
    let server = origin
        .proxy("location ~ \\.png$ { return 200 image; }")
        .start();
    let reply = server.raw("GET /private#.png HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(reply.expect(200).text(), "ok");
    // What goes on is the target as it came, as with nginx, and so is the key of a cache: both see the same bytes.
    assert_eq!(origin.targets(), ["/private#.png"]);
}

#[test]
fn records_and_padding_of_any_size_keep_their_frame() {
    // HAProxy CVE-2026-55203: content and padding together overflowed a counter of 16 bits.
    const CONTENT: usize = 65535;
    let application = Scripted::start(|stream, number| {
        read_until(stream, &[1, 5, 0, 1, 0, 0, 0, 0]);
        let head = b"Content-Type: text/plain\r\n\r\n";
        let mut content = head.to_vec();
        // What would be taken for a record if the counter went wrong.
        content.resize(CONTENT, b'x');
        let padding = [1, 8, 255][number];
        let mut out = vec![1, 6, 0, 1, 0xff, 0xff, padding, 0];
        out.extend_from_slice(&content);
        out.extend(std::iter::repeat_n(b'p', padding as usize));
        out.extend_from_slice(&[1, 6, 0, 1, 0, 4, 0, 0]);
        out.extend_from_slice(b"tail");
        out.extend_from_slice(&[1, 6, 0, 1, 0, 0, 0, 0, 1, 3, 0, 1, 0, 8, 0, 0]);
        out.extend_from_slice(&[0; 8]);
        send(stream, out);
    });
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ fastcgi_pass 127.0.0.1:{}; }} }}",
        application.port()
    ))
    .start();
    for _ in 0..3 {
        let text = server.get("/").expect(200).text();
        let head = b"Content-Type: text/plain\r\n\r\n".len();
        assert_eq!(text, "x".repeat(CONTENT - head) + "tail");
    }
}

#[test]
fn padding_of_records_is_empty() {
    // HAProxy CVE-2023-0836: padding had what memory had.
    let (tell, told) = std::sync::mpsc::channel();
    let application = Scripted::start(move |stream, _| {
        let _ = tell.send(read_until(stream, &[1, 5, 0, 1, 0, 0, 0, 0]));
        send(stream, b"\x01\x06\x00\x01\x00\x04\x00\x00\r\n\r\n");
        send(stream, [[1, 3, 0, 1, 0, 8, 0, 0], [0; 8]].concat());
    });
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ fastcgi_pass 127.0.0.1:{}; fastcgi_param A $arg_a; }} }}",
        application.port()
    ))
    .start();
    for length in 0..9 {
        server.get(&format!("/?a={}", "x".repeat(length)));
        let bytes = told.recv_timeout(PATIENCE).expect("a request comes");
        let mut rest = &bytes[..];
        while let [_, _, _, _, high, low, padding, _, more @ ..] = rest {
            let content = usize::from(*high) << 8 | usize::from(*low);
            let (pad, next) = more[content..].split_at(usize::from(*padding));
            assert!(pad.iter().all(|byte| *byte == 0), "{pad:?}");
            rest = next;
        }
    }
}

#[test]
fn a_body_set_by_the_configuration_stays_within_its_frames() {
    if skip_on_oracle("proxy_http_version 2 is newer") {
        return;
    }
    // nginx CVE-2026-42926: proxy_set_body went out without a frame of its own, so that a client wrote frames.
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scripted::start(move |stream, _| {
        let mut origin = Http2::accept(stream);
        let mut body = Vec::new();
        let stream = loop {
            match origin.hear(|heard| heard.stream().is_some() || matches!(heard, Heard::Closed)) {
                Heard::Headers { stream, ends, .. } if ends => break stream,
                Heard::Data {
                    stream,
                    bytes,
                    ends,
                } => {
                    body.extend(bytes);
                    if ends {
                        break stream;
                    }
                }
                Heard::Closed => return,
                _ => {}
            }
        };
        let _ = tell.send(body);
        origin.headers(stream, &[(":status", "204")], true);
    });
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{}; proxy_http_version 2;
            proxy_set_body $arg_a; }} }}",
        origin.port()
    ))
    .start();
    // A frame of HEADERS for stream 3 as far as a request line can say it, many times over.
    let forged = "%00%00%01%01%05%00%00%00%03%82".repeat(200);
    server.get(&format!("/?a={forged}")).expect(204);
    let body = told.recv_timeout(PATIENCE).expect("a request comes");
    assert_eq!(body, forged.as_bytes());
}

#[test]
fn an_old_field_of_cookies_is_a_field() {
    // HAProxy CVE-2022-0711: Set-Cookie2 sent the loop that rewrites cookies round for ever.
    let origin = Scripted::start(|stream, _| {
        read_until(stream, b"\r\n\r\n");
        send(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie2: a=b; path=/one\r\nSet-Cookie: c=d; path=/one\r\n\r\nok",
        );
    });
    let server = http(&format!(
        "server {{ listen 127.0.0.1:%%PORT%%; location / {{ proxy_pass http://127.0.0.1:{}; proxy_cookie_path /one /two; }} }}",
        origin.port()
    ))
    .start();
    let reply = server.get("/").expect(200);
    assert_eq!(reply.field("Set-Cookie2"), "a=b; path=/one");
    assert_eq!(reply.field("Set-Cookie"), "c=d; path=/two");
}

#[test]
fn a_trace_shows_nothing_and_ranges_are_counted() {
    // ATS CVE-2022-47184 (TRACE told what the proxy had added), ATS CVE-2022-47185 (ranges without end).
    let origin = Origin::start();
    let server = origin
        .proxy("location /file { max_ranges 4; alias %%DIR%%/html/file; }")
        .file("html/file", "0123456789")
        .start();
    let reply = server.raw("TRACE / HTTP/1.1\r\nHost: a\r\nCookie: secret=1\r\n\r\n");
    assert_eq!(reply.status, 405);
    assert!(!reply.text().contains("secret"));
    let many = (0..1000).map(|_| "0-0").collect::<Vec<_>>().join(",");
    let reply = server.get_with("/file", &[&format!("Range: bytes={many}")]);
    assert_eq!(reply.expect(200).text(), "0123456789");
}

#[test]
fn broken_trailers_go_nowhere() {
    // ATS CVE-2024-35161: trailers went on to the server as they were.
    for trailers in [
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "X: a\r\n b\r\n",
        "X\x00: a\r\n",
        "X: a\rGET /hidden HTTP/1.1\r\n",
    ] {
        let origin = Origin::start();
        let server = origin.proxy("").start();
        let mut client = server.connect();
        client.send(format!(
            "POST /first HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n0\r\n{trailers}\r\n"
        ));
        client.half_close();
        let _ = client.rest();
        assert_eq!(server.get("/next").expect(200).text(), "ok");
        for seen in origin.seen() {
            let ending = seen.target() == "/next" || seen.body == b"xx" || seen.body.is_empty();
            assert!(
                ending && seen.target() != "/hidden",
                "{trailers:?}: {seen:?}"
            );
        }
    }
}

#[test]
fn a_client_that_does_not_finish_its_chunks_costs_no_time() {
    // HAProxy CVE-2026-110354: what was left of a chunked body was looked at again and again. nginx CVE-2026-118899: so was a
    // body over TLS.
    let server = http(
        "server { listen 127.0.0.1:%%PORT%%; lingering_timeout 300ms; lingering_time 1s; client_body_timeout 500ms;
            location / { return 200 ok; } location /pid { return 200 $pid; } }",
    )
    .start();
    let pid = server.get("/pid").text();
    let spent = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the worker lives");
        let after = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = after.split_whitespace().skip(11);
        let mut next = || {
            fields
                .next()
                .and_then(|field| field.parse::<u64>().ok())
                .unwrap_or(0)
        };
        next() + next()
    };
    let before = spent();
    for body in [
        "",
        "1",
        "1\r",
        "1\r\n",
        "1\r\nx",
        "1\r\nx\r",
        "5;ext",
        "0\r\n",
        "0\r\nX: y\r\n",
        "ffff\r\nxx",
    ] {
        let mut client = server.connect();
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}"
        ));
        // Answered or refused, and closed in its time.
        let _ = client.rest();
    }
    // In hundredths of a second: ten connections that each wait for their timeout use next to nothing.
    assert!(spent() - before < 100, "{}", spent() - before);
}
