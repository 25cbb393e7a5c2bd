//! The variables `$upstream_…` (<https://nginx.org/en/docs/http/ngx_http_upstream_module.html#variables>).
//!
//! The values of several tries are separated by `, `, those before and after an internal redirect by ` : `.

use std::time::Duration;

use bstr::ByteSlice;
use conf::Variable;
use proto::fields::Fields;

use super::upstream_record::{UpstreamRecord, UpstreamTry};
use crate::request::Request;
use base::text::{write_number, write_seconds};

/// The variables. They are volatile, because each try changes them.
pub static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "upstream_addr",
        |r: &mut Request, out| {
            each(r, out, false, |t, out| {
                if let Some(peer) = &t.peer {
                    out.extend_from_slice(peer.as_bytes());
                }
            })
        },
        "The addresses of the servers that were tried.",
    )
    .volatile(),
    Variable::new(
        "upstream_status",
        |r: &mut Request, out| {
            each(r, out, true, |t, out| match t.status {
                0 => out.push(b'-'),
                status => write_number(status.into(), out),
            })
        },
        "The status codes of their responses.",
    )
    .volatile(),
    Variable::new(
        "upstream_connect_time",
        |r: &mut Request, out| each(r, out, true, |t, out| time(t.connect_time, out)),
        "The time spent connecting, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_header_time",
        |r: &mut Request, out| each(r, out, true, |t, out| time(t.header_time, out)),
        "The time until the response header was received, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_response_time",
        response_time,
        "The time until the whole response was received, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "upstream_response_length",
        response_length,
        "The number of bytes received after the response headers, framing included.",
    )
    .volatile(),
    Variable::new(
        "upstream_bytes_received",
        |r: &mut Request, out| each(r, out, true, |t, out| write_number(t.bytes_received, out)),
        "Bytes received.",
    )
    .volatile(),
    Variable::new("upstream_bytes_sent", bytes_sent, "Bytes sent.").volatile(),
    Variable::prefix(
        "upstream_http_",
        |r: &mut Request, name, out| field(r, name, out, |record| &record.head.fields),
        "A header of the upstream response, by name.",
    )
    .volatile(),
    Variable::prefix(
        "upstream_trailer_",
        |r: &mut Request, name, out| field(r, name, out, |record| &record.trailers),
        "A trailer of the upstream response, by name.",
    )
    .volatile(),
    Variable::prefix(
        "upstream_cookie_",
        cookie,
        "A cookie set by the upstream server, by name.",
    )
    .volatile(),
];

/// The response times. Until the client's response has been sent, that of the response that is passed on is shown as `-`,
/// as in nginx, even if all of it arrived with its head: `add_header` gives what an access log gives later.
fn response_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.times.responded.is_some() {
        return each(request, out, true, |t, out| time(t.response_time, out));
    }
    each(request, out, true, |t, out| {
        time(t.response_time.filter(|_| !t.is_in_progress), out)
    })
}

/// The lengths of the responses: nothing of the one that is passed on, until the client's response has been sent.
fn response_length(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.times.responded.is_some() {
        return each(request, out, true, |t, out| {
            write_number(t.response_length, out)
        });
    }
    each(request, out, true, |t, out| {
        write_number(
            if t.is_in_progress {
                0
            } else {
                t.response_length
            },
            out,
        )
    })
}

/// The bytes sent, which nginx counts when an exchange ends.
fn bytes_sent(request: &mut Request, out: &mut Vec<u8>) -> bool {
    if request.times.responded.is_some() {
        return each(request, out, true, |t, out| write_number(t.bytes_sent, out));
    }
    each(request, out, true, |t, out| {
        write_number(if t.is_in_progress { 0 } else { t.bytes_sent }, out)
    })
}

/// Writes a value for each try. `separators`: also for tries without a server.
fn each(
    request: &mut Request,
    out: &mut Vec<u8>,
    separators: bool,
    write: fn(&UpstreamTry, &mut Vec<u8>),
) -> bool {
    let Some(record) = request.upstream.get() else {
        return false;
    };
    // An entry without a server in the middle separates exchanges. As the only or the last entry, it is a try for which
    // no server was found.
    let last = record.tries.len().saturating_sub(1);
    let mut begins = true;
    for (index, entry) in record.tries.iter().enumerate() {
        if entry.peer.is_none() && index > 0 && index < last {
            out.extend_from_slice(b" : ");
            begins = true;
            continue;
        }
        if !begins {
            // nginx separates tries by a comma, so that log parsers find as many values in each of these variables.
            out.extend_from_slice(b", ");
        }
        begins = false;
        if separators || entry.peer.is_some() {
            write(entry, out);
        }
    }
    !record.tries.is_empty()
}

/// A time in seconds with milliseconds; `-` if the try did not get that far, as in nginx.
fn time(time: Option<Duration>, out: &mut Vec<u8>) {
    match time {
        // It was never reached. The place in the list stays, so that the lists of several variables match.
        None => out.push(b'-'),
        Some(time) => write_seconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), out),
    }
}

/// A field of the response's head or trailers. Several are joined (RFC 9110, section 5.3).
fn field(
    request: &mut Request,
    name: &str,
    out: &mut Vec<u8>,
    of: fn(&UpstreamRecord) -> &Fields,
) -> bool {
    let Some(record) = request.upstream.get() else {
        return false;
    };
    crate::variables::fields::write_joined(of(record), name, b", ", out)
}

/// A cookie that the upstream sets. Unlike other fields, `Set-Cookie` cannot be joined (RFC 9110, section 5.3), so the
/// first one with this name counts.
fn cookie(request: &mut Request, name: &str, out: &mut Vec<u8>) -> bool {
    let Some(record) = request.upstream.get() else {
        return false;
    };
    let mut lines = record.head.fields.all_known(proto::KnownField::SetCookie);
    let value = lines.find_map(|line| {
        let (key, rest) = line.split_at_checked(name.len())?;
        let rest = rest
            .trim_start_with(|c| c == ' ')
            .strip_prefix(b"=")?
            .trim_start_with(|c| c == ' ');
        key.eq_ignore_ascii_case(name.as_bytes())
            .then(|| &rest[..rest.find_byte(b';').unwrap_or(rest.len())])
    });
    value.is_some_and(|value| {
        out.extend_from_slice(value);
        true
    })
}
