//! `$upstream_*`: a list each, with a value for every server that was tried.

use std::time::Duration;

use base::text::write_seconds;
use conf::Variable;

use super::SessionTry;
use crate::session::StreamSession;

/// The variables.
pub(crate) static VARIABLES: &[Variable<StreamSession>] = &[
    Variable::new(
        "upstream_addr",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| out.extend_from_slice(&a_try.address)),
        "The addresses of the servers that were tried.",
    )
    .volatile(),
    Variable::new(
        "upstream_bytes_sent",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| number(a_try.sent, out)),
        "The number of bytes sent to each upstream server.",
    )
    .volatile(),
    Variable::new(
        "upstream_bytes_received",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| number(a_try.received, out)),
        "The number of bytes received from each upstream server.",
    )
    .volatile(),
    Variable::new(
        "upstream_connect_time",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| time(a_try.connect, out)),
        "The time to connect to each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_first_byte_time",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| time(a_try.first_byte, out)),
        "The time to the first byte from each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_session_time",
        |s: &mut StreamSession, out| list(s, out, |a_try, out| time(a_try.session, out)),
        "The duration of the session with each upstream server, in seconds with millisecond resolution.",
    )
    .volatile(),
];

/// Writes one value for each try.
fn list(
    session: &mut StreamSession,
    out: &mut Vec<u8>,
    write: fn(&SessionTry, &mut Vec<u8>),
) -> bool {
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
