//! Clients of HTTP/3 that want to do harm for little: each is told to go or gets nowhere, the server's memory stays where it
//! was, and another client is served meanwhile.

use weir_tests::{Server, skip_on_oracle};

use crate::http3_client::{Http3, Quic, block, frame, head, varint, with};
use crate::tls::{CERTIFICATE, https};

const WHY: &str = "the oracle has no QUIC";

/// H3_EXCESSIVE_LOAD.
const CALM: u64 = 0x107;

/// What an attack may cost in memory, in bytes.
const MEMORY: u64 = 32 << 20;

/// How often an attack is repeated at most.
const OFTEN: usize = 40_000;

fn server(more: &str) -> Server {
    https(&format!(
        "server {{ listen 127.0.0.1:%%PORT%% quic; listen 127.0.0.1:%%PORT%% ssl; {CERTIFICATE} {more} \
         location /pid {{ return 200 $pid; }} location / {{ return 200 hello; }} \
         location /slow {{ proxy_pass http://127.0.0.1:1; }} }}"
    ))
    .file("html/big", vec![b'x'; 1 << 20])
    .start()
}

/// What the worker has in memory, in bytes.
pub(crate) fn memory(server: &Server) -> u64 {
    let pid = Http3::connect(server).get("/pid").text();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the worker lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.map(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>());
    kilobytes.expect("a line").expect("a number") * 1024
}

/// Sends `piece` again and again on a stream that begins with `begin`, until the server closes the connection. Gives the
/// code.
fn flood(quic: &Quic, uni: bool, begin: &[u8], piece: &[u8]) -> u64 {
    quic.run(async {
        let mut send = match uni {
            true => quic.connection.open_uni().await.expect("it is open"),
            false => quic.connection.open_bi().await.expect("it is open").0,
        };
        send.write_all(begin).await.expect("it is open");
        let pieces = piece.repeat(64);
        for _ in 0..OFTEN {
            if send.write_all(&pieces).await.is_err() {
                break;
            }
        }
    });
    quic.closed()
}

/// An attack that ends with the connection: others are served, and no memory is lost.
fn is_stopped(server: &Server, attack: impl FnOnce(&Quic) -> u64) {
    let before = memory(server);
    let quic = Quic::connect(server);
    assert_eq!(attack(&quic), CALM);
    assert_eq!(Http3::connect(server).get("/").text(), "hello");
    let after = memory(server);
    assert!(after < before + MEMORY, "{before} and then {after}");
}

#[test]
fn floods_of_frames_that_mean_nothing() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("");
    // Unknown frames, on either kind of stream; empty DATA.
    let unknown = frame(0x21, b"");
    is_stopped(&server, |quic| flood(quic, true, &[0, 4, 0], &unknown));
    is_stopped(&server, |quic| {
        let _control = quic.control();
        flood(quic, false, &head("POST", &[]), &unknown)
    });
    is_stopped(&server, |quic| {
        let _control = quic.control();
        flood(quic, false, &head("POST", &[]), &frame(0, b""))
    });
    // MAX_PUSH_ID and PRIORITY_UPDATE.
    let push = frame(0x0d, &[5]);
    is_stopped(&server, |quic| flood(quic, true, &[0, 4, 0], &push));
    let update = frame(0xf0700, b"\x04u=1");
    is_stopped(&server, |quic| flood(quic, true, &[0, 4, 0], &update));
    // Unknown frames with long payloads: nothing of what is sent is of use.
    let long = frame(0x21, &[0; 10_000]);
    is_stopped(&server, |quic| flood(quic, true, &[0, 4, 0], &long));
}

#[test]
fn instructions_that_copy_more_than_they_cost() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("");
    // Capacity 4096, an entry of some 4,000 bytes, and then a byte for each copy of it.
    let mut begin = vec![2, 0x3f, 0xe1, 0x1f, 0x41, b'a', 0x7f, 0x81, 0x1e];
    begin.extend([b'x'; 4000]);
    is_stopped(&server, |quic| flood(quic, true, &begin, &[0]));
    // Changes of the capacity, cancellations.
    is_stopped(&server, |quic| flood(quic, true, &[2], &[0x20]));
    is_stopped(&server, |quic| flood(quic, true, &[3], &[0x40]));
}

/// CVE-2026-40898 of quic-go: 60 KB that stand for 240 MB of fields, as the head of a request and as its trailers.
#[test]
fn a_header_block_that_stands_for_much_more() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("");
    let before = memory(&server);
    let quic = Quic::connect(&server);
    let _control = quic.control();
    // An entry of some 4,000 bytes, as above.
    let mut insert = vec![2, 0x3f, 0xe1, 0x1f, 0x41, b'a', 0x7f, 0x81, 0x1e];
    insert.extend([b'x'; 4000]);
    let _encoder = quic.open_uni(&insert);
    // One insertion is needed; then a byte for each copy.
    let bomb = |fields: &[u8]| {
        let mut bomb = vec![2, 0];
        bomb.extend_from_slice(fields);
        bomb.resize(60_000, 0x80);
        frame(1, &bomb)
    };
    let fields = [
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/slow"),
    ];
    for _ in 0..3 {
        let mut stream = quic.ask(&bomb(&block(&with("GET", &[]))[2..]));
        let answer = quic.read(&mut stream).expect("no reset");
        // nginx's page for it.
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            text.contains("Request Header Or Cookie Too Large"),
            "{text}"
        );
        let mut message = frame(1, &block(&fields));
        message.extend(frame(0, b"content"));
        message.extend(bomb(&[]));
        // H3_MESSAGE_ERROR.
        let mut stream = quic.ask(&message);
        assert_eq!(quic.read(&mut stream), Err(0x10e));
    }
    let after = memory(&server);
    assert!(after < before + MEMORY, "{before} and then {after}");
}

#[test]
fn requests_that_are_taken_back_at_once() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("");
    is_stopped(&server, |quic| {
        let _control = quic.control();
        quic.run(async {
            for _ in 0..OFTEN {
                let Ok((mut send, mut receive)) = quic.connection.open_bi().await else {
                    return;
                };
                if send.write_all(&head("GET", &[])).await.is_err() {
                    return;
                }
                let _ = send.reset(0x10cu32.into());
                let _ = receive.stop(0x10cu32.into());
            }
        });
        quic.closed()
    });
}

#[test]
fn blocked_streams_have_a_number_and_a_size() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("http3_max_concurrent_streams 100;");
    let waiting = |more: &[(&str, &str)]| {
        let mut waiting = vec![2, 0];
        waiting.extend_from_slice(&block(&with("GET", more))[2..]);
        waiting.push(0x80);
        frame(1, &waiting)
    };
    // As many as may be open may wait, for as long as `client_header_timeout` lets them.
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let streams: Vec<_> = (0..100).map(|_| quic.ask(&waiting(&[]))).collect();
    let _encoder = quic.open_uni(b"\x02\x3f\xe1\x1f\x41a\x01b");
    for mut stream in streams {
        let answer = quic.read(&mut stream).expect("no reset");
        assert!(answer.ends_with(b"hello"));
    }
    // But not with as much as they like.
    let long = "x".repeat(30_000);
    is_stopped(&server, |quic| {
        let _control = quic.control();
        let streams: Vec<_> = (0..10)
            .map(|_| quic.ask(&waiting(&[("x-long", &long)])))
            .collect();
        let code = quic.closed();
        drop(streams);
        code
    });
}

#[test]
fn a_head_that_never_ends_is_given_up() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("client_header_timeout 3s;");
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let (mut send, mut receive) = quic.open();
    quic.run(async {
        send.write_all(&head("GET", &[])[..10])
            .await
            .expect("it is open")
    });
    assert_eq!(quic.read(&mut receive), Err(0x101));
    // A block that waits for insertions that never come.
    let mut waiting = vec![2, 0];
    waiting.extend_from_slice(&block(&with("GET", &[]))[2..]);
    let mut stream = quic.ask(&frame(1, &waiting));
    assert_eq!(quic.read(&mut stream), Err(0x101));
    let mut stream = quic.ask(&head("GET", &[]));
    assert!(
        quic.read(&mut stream)
            .expect("no reset")
            .ends_with(b"hello")
    );
}

#[test]
fn a_large_settings_frame_is_not_waited_for() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("");
    is_stopped(&server, |quic| {
        let mut begin = vec![0, 4];
        begin.extend(varint(1 << 20));
        let _control = quic.open_uni(&begin);
        quic.closed()
    });
}

#[test]
fn a_client_that_reads_nothing_holds_little() {
    if skip_on_oracle(WHY) {
        return;
    }
    let server = server("send_timeout 2s;");
    let before = memory(&server);
    let quic = Quic::connect(&server);
    let _control = quic.control();
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "localhost"),
        (":path", "/big"),
    ];
    let streams: Vec<_> = (0..50)
        .map(|_| quic.ask(&frame(1, &block(&fields))))
        .collect();
    let after = memory(&server);
    assert!(after < before + MEMORY, "{before} and then {after}");
    drop(streams);
    assert_eq!(Http3::connect(&server).get("/").text(), "hello");
}
