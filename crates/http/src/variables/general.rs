//! Variables of the server itself: time, process, names, and an identifier per request.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::sync::LazyLock;

use conf::Variable;

use super::{number, text};
use crate::clock;
use crate::request::Request;

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "request_id",
        request_id,
        "A unique identifier of the request: 32 random hexadecimal digits.",
    ),
    Variable::new(
        "msec",
        |_: &mut Request, out| written(out, clock::write_millis),
        "The current time in seconds since the epoch, with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "time_local",
        |_: &mut Request, out| written(out, clock::write_local_time),
        "The local time in the Common Log Format.",
    )
    .volatile(),
    Variable::new(
        "time_iso8601",
        |_: &mut Request, out| written(out, clock::write_iso8601),
        "The local time in ISO 8601 format.",
    )
    .volatile(),
    Variable::new(
        "pid",
        |_, out| number(std::process::id().into(), out),
        "The process ID of the worker.",
    ),
    Variable::new(
        "hostname",
        |_, out| text(&*HOSTNAME, out),
        "The host name of the machine.",
    ),
    Variable::new(
        "nginx_version",
        |r, out| text(&r.site.identity.version, out),
        "The version of the server.",
    ),
];

/// Read once: the name is expected not to change while the server runs.
static HOSTNAME: LazyLock<String> = LazyLock::new(host::process::hostname);

/// Appends what a function of the clock writes.
fn written(out: &mut Vec<u8>, write: fn(&mut Vec<u8>)) -> bool {
    write(out);
    true
}

rt::local! {
    static KEY: rt::random::RandomState = rt::random::RandomState::new();
    static COUNTER: Cell<u64> = const { Cell::new(0) };
}

/// A keyed hash of a counter. It is unique on this loop as far as the hash does not collide, and seeing some of them
/// does not allow guessing the next.
fn request_id(_: &mut Request, out: &mut Vec<u8>) -> bool {
    // A hash has 64 bits, and nginx's identifier has 128.
    for _ in 0..2 {
        let count = COUNTER.get();
        COUNTER.set(count.wrapping_add(1));
        let half = KEY.with(|key| key.hash_one(count));
        base::text::write_hex(&half.to_be_bytes(), out);
    }
    true
}
