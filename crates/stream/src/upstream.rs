//! What is known of the upstream servers that a session was passed to: for variables and for the error log.

use std::io::Write;
use std::ops::Deref;
use std::time::Duration;

use base::text::write_seconds;
use bstr::BString;
use conf::Variable;

use crate::session::Session;

/// The groups of servers of `stream`, apart from those of `http`, also where they have the same name.
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

/// The tries of a session.
#[derive(Default)]
pub struct Record {
    /// One after the other.
    pub tries: Vec<Try>,
}

/// One server that was tried.
#[derive(Clone, Debug, Default)]
pub struct Try {
    /// Its address as text; the name of the group when it had none to try.
    pub address: BString,
    /// How long it took until the connection stood.
    pub connect: Option<Duration>,
    /// Until the first byte came.
    pub first_byte: Option<Duration>,
    /// Until it was over.
    pub session: Option<Duration>,
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
}

impl Record {
    /// Appends what the error log says of it.
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

fn list(session: &mut Session, out: &mut Vec<u8>, write: fn(&Try, &mut Vec<u8>)) -> bool {
    let Some(record) = session
        .upstream
        .as_ref()
        .filter(|record| !record.tries.is_empty())
    else {
        return false;
    };
    for (index, a_try) in record.tries.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        write(a_try, out);
    }
    true
}

fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        None => out.push(b'-'),
        Some(time) => write_seconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), out),
    }
}
