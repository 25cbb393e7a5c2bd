//! The upstream servers that a session has tried: for variables and for the error log.

use std::io::Write;
use std::ops::Deref;
use std::time::Duration;

use base::text::write_seconds;
use bstr::BString;
use conf::Variable;

use crate::session::Session;

/// The groups of servers of `stream`. Those of `http` are kept apart, even if they have the same name.
#[derive(Clone)]
pub struct StreamGroups(net::upstream::Groups);

impl Default for StreamGroups {
    fn default() -> Self {
        StreamGroups(net::upstream::Groups::of("stream "))
    }
}

impl Deref for StreamGroups {
    type Target = net::upstream::Groups;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The upstream servers that a session has tried.
#[derive(Default)]
pub struct Record {
    /// In the order in which they were tried.
    pub tries: Vec<Try>,
}

/// One server that was tried.
#[derive(Clone, Debug, Default)]
pub struct Try {
    /// Its address as text; the name of the group if it had no server to try, as in nginx.
    pub address: BString,
    /// The time until the connection was established.
    pub connect: Option<Duration>,
    /// The time until the first byte arrived.
    pub first_byte: Option<Duration>,
    /// The time until the session with it ended.
    pub session: Option<Duration>,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
}

impl Record {
    /// Appends what the error log says of the tries, in the words of nginx.
    pub(crate) fn describe(&self, received: u64, sent: u64, out: &mut Vec<u8>) {
        let last = self.tries.last().cloned().unwrap_or_default();
        if !last.address.is_empty() {
            out.extend_from_slice(b", upstream: \"");
            out.extend_from_slice(&last.address);
            out.push(b'"');
        }
        let (up, down) = (last.sent, last.received);
        // Writing to memory does not fail.
        let _ = write!(
            out,
            ", bytes from/to client:{received}/{sent}, bytes from/to upstream:{down}/{up}"
        );
    }
}

/// The variables.
pub static VARIABLES: &[Variable<Session>] = &[
    Variable::new(
        "upstream_addr",
        |s: &mut Session, out| list(s, out, |a_try, out| out.extend_from_slice(&a_try.address)),
        "The addresses of the servers that were tried.",
    )
    .volatile(),
    Variable::new(
        "upstream_bytes_sent",
        |s: &mut Session, out| list(s, out, |a_try, out| number(a_try.sent, out)),
        "The number of bytes sent to each upstream server.",
    )
    .volatile(),
    Variable::new(
        "upstream_bytes_received",
        |s: &mut Session, out| list(s, out, |a_try, out| number(a_try.received, out)),
        "The number of bytes received from each upstream server.",
    )
    .volatile(),
    Variable::new(
        "upstream_connect_time",
        |s: &mut Session, out| list(s, out, |a_try, out| time(a_try.connect, out)),
        "The time to connect to each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_first_byte_time",
        |s: &mut Session, out| list(s, out, |a_try, out| time(a_try.first_byte, out)),
        "The time to the first byte from each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_session_time",
        |s: &mut Session, out| list(s, out, |a_try, out| time(a_try.session, out)),
        "The duration of the session with each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
];

/// Writes one value for each try.
fn list(session: &mut Session, out: &mut Vec<u8>, write: fn(&Try, &mut Vec<u8>)) -> bool {
    // Without a try the variables have no value, which a log shows as `-`.
    let Some(record) = session
        .upstream
        .as_ref()
        .filter(|record| !record.tries.is_empty())
    else {
        return false;
    };
    for (index, a_try) in record.tries.iter().enumerate() {
        if index > 0 {
            // nginx separates tries by a comma, so that log parsers find as many values in each of these variables.
            out.extend_from_slice(b", ");
        }
        write(a_try, out);
    }
    true
}

fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}

/// A time, or `-` if what it measures never happened.
fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        // It was never reached. The place in the list stays, so that the lists of several variables match.
        None => out.push(b'-'),
        Some(time) => write_seconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), out),
    }
}
