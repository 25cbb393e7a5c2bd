//! Attacks of HTTP/3 clients: each is a loop that does one thing as often as it can.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::client::{QuicClients, Work};

/// One attack. It returns what it did.
pub(crate) struct Flood {
    pub(crate) name: &'static str,
    pub(crate) run: fn(u16, Duration) -> Result<String, String>,
}

pub(crate) const FLOODS: &[Flood] = &[
    Flood {
        name: "initials",
        run: initials,
    },
    Flood {
        name: "resets",
        run: resets,
    },
    Flood {
        name: "ids",
        run: ids,
    },
    Flood {
        name: "gaps",
        run: gaps,
    },
    Flood {
        name: "blocked",
        run: blocked,
    },
];

fn attackers(port: u16, streams: usize) -> Result<QuicClients, String> {
    let work = Work {
        path: "/1k".to_owned(),
        length: 1024,
        streams,
    };
    QuicClients::new(SocketAddr::from(([127, 0, 0, 1], port)), work)
}

/// Clients that say hello and nothing else.
fn initials(port: u16, time: Duration) -> Result<String, String> {
    let mut clients = attackers(port, 0)?;
    let (end, mut sent) = (Instant::now() + time, 0_u64);
    while Instant::now() < end {
        for _ in 0..50 {
            clients.add(1, [127, 0, 0, 1])?;
            sent += 1;
        }
        // Their sockets close without a word.
        clients.forget_all();
    }
    Ok(format!("{sent} hellos"))
}

/// Requests that are given up at once.
fn resets(port: u16, time: Duration) -> Result<String, String> {
    repeat(port, time, 8, |clients, index| {
        clients.reset_requests(index, 50)
    })
}

/// A client that comes from a new port with every packet: each takes ids and challenges.
fn ids(port: u16, time: Duration) -> Result<String, String> {
    let mut clients = attackers(port, 4)?;
    clients.add(8, [127, 0, 0, 1])?;
    let (end, mut moves) = (Instant::now() + time, 0_u64);
    while Instant::now() < end {
        for index in 0..8 {
            clients.rebind(index)?;
            moves += 1;
        }
        clients.run(Duration::from_millis(1))?;
    }
    Ok(format!("{moves} moves, {} lost", clients.lost().0))
}

/// Content of which every other packet never comes.
fn gaps(port: u16, time: Duration) -> Result<String, String> {
    repeat(port, time, 8, |clients, index| {
        clients.drop_every_other(index);
        let post = Bytes::from(vec![0; 60_000]);
        clients.send_bytes(index, 8, &post)
    })
}

/// Header blocks that wait for an entry that never comes.
fn blocked(port: u16, time: Duration) -> Result<String, String> {
    // A HEADERS frame of 2,000 bytes, whose block requires one insertion.
    let mut frame = vec![1, 0x47, 0xd0, 2, 0];
    frame.resize(3 + 2000, 0x80);
    let frame = Bytes::from(frame);
    repeat(port, time, 8, move |clients, index| {
        clients.send_bytes(index, 50, &frame)
    })
}

/// Attacks with some clients, each of which is replaced as soon as it is thrown out.
fn repeat(
    port: u16,
    time: Duration,
    count: usize,
    attack: impl Fn(&mut QuicClients, usize) -> Result<u64, String>,
) -> Result<String, String> {
    let mut clients = attackers(port, 0)?;
    clients.add(count, [127, 0, 0, 1])?;
    let (end, mut done, mut thrown_out) = (Instant::now() + time, 0_u64, 0_u64);
    while Instant::now() < end {
        for index in 0..count {
            done += attack(&mut clients, index)?;
            thrown_out += u64::from(clients.replace_lost(index)?);
        }
        clients.run(Duration::from_millis(1))?;
    }
    Ok(format!("{done} times, thrown out {thrown_out} times"))
}
