//! Clients of HTTP/2 that want to do harm for little: each is told to go or gets nowhere, the server's memory stays
//! where it was, and another client is served meanwhile.

use std::time::{Duration, Instant};

use proto::h2::ErrorCode;
use proto::h2::frame::{self, flag, kind};
use proto::h2::settings::id;
use weir_tests::{Heard, Http2, Scripted, Server, http, skip_on_oracle};

const WHY: &str = "what nginx does about these is its own affair";

/// What an attack may cost in memory, in bytes.
const MEMORY: u64 = 32 << 20;

/// How long an attack may go on before the server has had enough.
const LONG: Duration = Duration::from_secs(20);

fn server() -> Server {
    http(
        "http2 on; server { listen 127.0.0.1:%%PORT%%; send_timeout 2s; \
         location /pid { return 200 $pid; } location /slow { proxy_pass http://127.0.0.1:1; } }",
    )
    .file("html/big", vec![b'x'; 1 << 20])
    .start()
}

/// What the worker has in memory, in bytes.
fn memory(server: &Server) -> u64 {
    let pid = server.get("/pid").text();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>());
    kilobytes.expect("a line").expect("a number") * 1024
}

/// Repeats `attack` until it fails or the server says that it is over, and then looks at the server. Gives how often it
/// was done.
fn until_over(
    server: &Server,
    client: &mut Http2,
    mut attack: impl FnMut(&mut Http2, u32) -> bool,
) -> u32 {
    let before = memory(server);
    let began = Instant::now();
    let mut n = 0;
    while attack(client, n) && !client.is_over() {
        n += 1;
        assert!(began.elapsed() < LONG, "{n} times and no end");
        if n % 1000 == 0 {
            server.get("/pid").expect(200);
        }
    }
    server.get("/pid").expect(200);
    let after = memory(server);
    assert!(after < before + MEMORY, "{before} and then {after}");
    n
}

/// The connection ends with ENHANCE_YOUR_CALM, unless the close overtook it.
fn is_calmed(client: &mut Http2) {
    let code = client.end();
    assert!(
        code.is_none() || code == Some(ErrorCode::ENHANCE_YOUR_CALM),
        "{code:?}"
    );
}

#[test]
fn rapid_reset() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let mut client = Http2::connect(&server, &[]);
    let n = until_over(&server, &mut client, |client, _| {
        let stream = client.request("GET", "/slow", &[], true);
        client.frame(kind::RST_STREAM, 0, stream, &[0, 0, 0, 8])
    });
    assert!(n < 100_000, "{n}");
    is_calmed(&mut client);
}

#[test]
fn streams_that_the_server_is_made_to_reset() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let mut client = Http2::connect(&server, &[]);
    until_over(&server, &mut client, |client, _| {
        // A window update of nothing is a stream error, and the request has begun.
        let stream = client.request("GET", "/big", &[], true);
        client.window(stream, 0)
    });
    is_calmed(&mut client);
}

#[test]
fn requests_after_the_goaway() {
    if skip_on_oracle(WHY) {
        return;
    }
    let (release, held) = std::sync::mpsc::channel::<()>();
    let origin = Scripted::start(move |_, _| {
        let _ = held.recv_timeout(weir_tests::PATIENCE);
    });
    let port = origin.port();
    let server = http(&format!(
        "http2 on; server {{ listen 127.0.0.1:%%PORT%%; location /pid {{ return 200 $pid; }}
            location /slow {{ keepalive_requests 1; proxy_pass http://127.0.0.1:{port}; }} keepalive_requests 1; }}"
    ))
    .start();
    let mut client = Http2::connect(&server, &[]);
    client.request("GET", "/slow", &[], true);
    client.hear(|heard| matches!(heard, Heard::GoAway(..)));
    let n = until_over(&server, &mut client, |client, _| {
        client.request("GET", "/slow", &[], true);
        true
    });
    // Those that crossed the GOAWAY are no attack.
    assert!((1000..100_000).contains(&n), "{n}");
    drop(release);
}

#[test]
fn a_header_block_without_end() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    for size in [0, 1, 1000, 16_384] {
        let mut client = Http2::connect(&server, &[]);
        // Nothing else may come in between.
        client.hear(|heard| matches!(heard, Heard::Settings(_)));
        client.frame(kind::HEADERS, 0, 1, &[0x82]);
        let n = until_over(&server, &mut client, |client, _| {
            client.frame(kind::CONTINUATION, 0, 1, &vec![0x82; size])
        });
        assert!(n < 10_000, "{n}");
        is_calmed(&mut client);
    }
}

#[test]
fn floods_of_small_frames() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    for (kind, flags, stream, payload) in [
        (kind::PING, 0, 0, &[0; 8][..]),
        (kind::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]),
        (kind::SETTINGS, 0, 0, &[]),
        (kind::SETTINGS, flag::ACK, 0, &[]),
        (kind::PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
        (kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 9, b'i']),
        (kind::GOAWAY, 0, 0, &[0; 8]),
        (0x77, 0, 0, b"unknown"),
        (0x77, 0, 0, b""),
    ] {
        let mut client = Http2::connect(&server, &[]);
        client.get("/pid");
        let mut one = Vec::new();
        frame::write_head(payload.len() as u32, kind, flags, stream, &mut one);
        one.extend_from_slice(payload);
        let many = one.repeat(100);
        let n = until_over(&server, &mut client, |client, _| client.send(&many));
        assert!(n < 100_000, "{kind}: {n}");
    }
}

#[test]
fn content_that_is_none() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let mut client = Http2::connect(&server, &[]);
    let stream = client.request("POST", "/slow", &[], false);
    until_over(&server, &mut client, |client, _| {
        client.data(stream, b"", false)
    });
    is_calmed(&mut client);
}

#[test]
fn a_window_that_opens_by_single_bytes() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 0)]);
    client.takes_all = false;
    let streams: Vec<u32> = (0..100)
        .map(|_| client.request("GET", "/big", &[], true))
        .collect();
    let n = until_over(&server, &mut client, |client, n| {
        client.window(streams[n as usize % streams.len()], 1)
    });
    assert!(n < 100_000, "{n}");
    is_calmed(&mut client);
}

#[test]
fn windows_that_stay_shut() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let before = memory(&server);
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, 0)]);
    let streams: Vec<u32> = (0..100)
        .map(|_| client.request("GET", "/big", &[], true))
        .collect();
    for stream in streams {
        // After `send_timeout`.
        assert!(client.reply(stream).reset.is_some());
    }
    assert!(memory(&server) < before + MEMORY);
    assert_eq!(client.get("/pid").status, 200);
}

#[test]
fn header_blocks_that_unpack_to_much() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    // An entry of 4,000 bytes in the table, and then thousands of references to it.
    let mut bomb = vec![0x82, 0x86, 0x84, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    bomb.extend(std::iter::repeat_n(b'x', 4000));
    bomb.extend(std::iter::repeat_n(0xbe, 12_000));
    // Empty cookies, a byte each.
    let mut cookies = vec![0x82, 0x86, 0x84, 0x60, 0];
    cookies.extend(std::iter::repeat_n(0xbe, 16_000));
    for block in [bomb, cookies] {
        let mut client = Http2::connect(&server, &[]);
        until_over(&server, &mut client, |client, n| {
            client.frame(
                kind::HEADERS,
                flag::END_HEADERS | flag::END_STREAM,
                2 * n + 1,
                &block,
            )
        });
        is_calmed(&mut client);
    }
}

#[test]
fn a_client_that_reads_nothing_of_what_it_asks_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server();
    let before = memory(&server);
    let mut client = Http2::connect(&server, &[(id::INITIAL_WINDOW_SIZE, (1 << 31) - 1)]);
    client.window(0, (1 << 31) - 1 - 65_535);
    for _ in 0..100 {
        client.request("GET", "/big", &[], true);
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(1) {
        server.get("/pid").expect(200);
    }
    assert!(memory(&server) < before + MEMORY);
}
