//! How long a request head takes to parse: `cargo run --release -p weir-proto --example
//! head_speed`.

use std::hint::black_box;
use std::time::Instant;
use weir_proto::h1::{HeadLimits, RequestParser};
use weir_proto::message::RequestHead;
use weir_proto::{KnownField, host, uri};

const SMALL: &[u8] =
    b"GET /index.html HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: bench/1.0\r\nAccept: */*\r\n\
    Accept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n";

const BROWSER: &[u8] = b"GET /assets/app-3f2a9c1b.js?v=20261121 HTTP/1.1\r\nHost: www.example.com\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0\r\nAccept: */*\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nReferer: https://www.example.com/\r\n\
    Connection: keep-alive\r\nCookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\nSec-Fetch-Dest: script\r\n\
    Sec-Fetch-Mode: no-cors\r\nSec-Fetch-Site: same-origin\r\nIf-None-Match: \"65a1b2c3-1f40\"\r\nPriority: u=2\r\n\r\n";

fn main() {
    for (name, wire) in [("5 fields", SMALL), ("13 fields", BROWSER)] {
        measure(name, "parse", || {
            let head = parsed(wire);
            black_box(head.fields.len());
        });
        let (mut parser, mut head, limits) = (
            RequestParser::new(),
            RequestHead::new(),
            HeadLimits::default(),
        );
        measure(name, "parse, reused", || {
            parser.reset();
            head.clear();
            let _ = black_box(parser.parse(black_box(wire), &limits, &mut head));
        });
        let mut path = Vec::new();
        measure(name, "and host, uri, checks", || {
            parser.reset();
            head.clear();
            let _ = black_box(parser.parse(black_box(wire), &limits, &mut head));
            path.clear();
            let _ = black_box(uri::normalize_path(
                head.target(),
                uri::SlashMerging::Merge,
                &mut path,
            ));
            let _ = black_box(host::parse(
                head.fields.get_known(KnownField::Host).unwrap_or_default(),
            ));
            let _ = black_box(head.check(false));
            black_box(head.wants_keep_alive());
        });
    }
}

fn parsed(wire: &[u8]) -> RequestHead {
    let mut head = RequestHead::new();
    let _ = RequestParser::new().parse(black_box(wire), &HeadLimits::default(), &mut head);
    head
}

/// The best of several rounds, which is the least disturbed one.
fn measure(name: &str, what: &str, mut run: impl FnMut()) {
    const TURNS: u32 = 2_000;
    let mut best = f64::INFINITY;
    for _ in 0..500 {
        let start = Instant::now();
        (0..TURNS).for_each(|_| run());
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(TURNS));
    }
    println!("{name:10} {what:22} {best:7.1} ns");
}
