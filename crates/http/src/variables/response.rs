//! Variables of the response and of its progress.

use conf::Variable;
use host::error_log::LogLevel;

use super::{number, text};
use crate::request::{HttpVersion, Request};

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new("status", status, "The response status.").volatile(),
    Variable::new(
        "bytes_sent",
        |r: &mut Request, out| number(r.times.bytes_sent, out),
        "The number of bytes sent to the client, including the header.",
    )
    .volatile(),
    Variable::new(
        "body_bytes_sent",
        |r: &mut Request, out| number(r.times.body_bytes_sent, out),
        "The number of body bytes sent to the client.",
    )
    .volatile(),
    Variable::new(
        "request_completion",
        request_completion,
        "`OK` if the response was sent completely, otherwise empty.",
    )
    .volatile(),
    Variable::new(
        "request_time",
        request_time,
        "The time since the first byte of the request was read, in seconds with millisecond resolution.",
    )
    .volatile(),
    Variable::new(
        "limit_rate",
        limit_rate,
        "The rate limit of this response in bytes per second: what was set through the variable or, once it is sent, what `limit_rate` says; 0 if none.",
    )
    .volatile()
    .settable(set_limit_rate),
];

/// What is shown as the status of an HTTP/0.9 response, which has no head and no status: as in nginx, the version.
const SIMPLE_RESPONSE: u64 = 9;

/// The status of the response. One that is sent whatever the handler says comes first, since it is what the client
/// gets.
fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let status = match (request.flow.forced_status, request.out.status) {
        (Some(status), _) => status.into(),
        (None, 0) if request.head.version() == HttpVersion::Http09 => SIMPLE_RESPONSE,
        (None, status) => status.into(),
    };
    base::text::write_padded(status, 3, out);
    true
}

fn request_completion(request: &mut Request, out: &mut Vec<u8>) -> bool {
    !request.times.complete || text("OK", out)
}

fn request_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    base::text::write_seconds(request.elapsed_ms(), out);
    true
}

fn limit_rate(request: &mut Request, out: &mut Vec<u8>) -> bool {
    // As in nginx, the location's rate counts from when something is sent, and shows in the log.
    let rate = match request.times.responded.is_some() {
        true => crate::limit_rate::rate_of(request, &std::rc::Rc::clone(&request.site)),
        false => request.delivery.limit_rate.unwrap_or(0),
    };
    number(rate, out)
}

/// Sets the rate limit of this response. An invalid value is logged and leaves the limit as it is.
fn set_limit_rate(request: &mut Request, value: &[u8]) {
    match base::units::parse_size(value) {
        Some(rate) => request.delivery.limit_rate = Some(rate),
        None => {
            let value = bstr::BStr::new(value);
            request.log(
                LogLevel::Error,
                format_args!("invalid $limit_rate \"{value}\""),
            );
        }
    }
}
