//! Variables of the response and of how far it is.

use conf::Variable;
use rt::error_log::Level;

use super::{number, text};
use crate::request::{Request, Version};

pub(super) static VARIABLES: &[Variable<Request>] = &[
    Variable::new("status", status, "The status of the response.").volatile(),
    Variable::new(
        "bytes_sent",
        |r: &mut Request, out| number(r.ledger.bytes_sent, out),
        "Bytes sent to the client, the head included.",
    )
    .volatile(),
    Variable::new(
        "body_bytes_sent",
        |r: &mut Request, out| number(r.ledger.body_bytes_sent, out),
        "Bytes of the response's content sent to the client.",
    )
    .volatile(),
    Variable::new(
        "request_completion",
        request_completion,
        "`OK` when the response was sent to its end, else nothing.",
    )
    .volatile(),
    Variable::new(
        "request_time",
        request_time,
        "Seconds with milliseconds since the first byte of the request.",
    )
    .volatile(),
    Variable::new(
        "limit_rate",
        limit_rate,
        "Bytes per second of this response, when they were limited by setting it.",
    )
    .volatile()
    .settable(set_limit_rate),
];

/// The status of a response without a head is shown as the version of its protocol.
const SIMPLE_RESPONSE: u64 = 9;

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let status = match (request.flow.forced_status, request.out.status) {
        (Some(status), _) => status.into(),
        (None, 0) if request.head.version() == Version::Http09 => SIMPLE_RESPONSE,
        (None, status) => status.into(),
    };
    base::text::write_padded(status, 3, out);
    true
}

fn request_completion(request: &mut Request, out: &mut Vec<u8>) -> bool {
    !request.ledger.complete || text("OK", out)
}

fn request_time(request: &mut Request, out: &mut Vec<u8>) -> bool {
    base::text::write_seconds(request.elapsed_ms(), out);
    true
}

fn limit_rate(request: &mut Request, out: &mut Vec<u8>) -> bool {
    number(request.flow.limit_rate.unwrap_or(0), out)
}

fn set_limit_rate(request: &mut Request, value: &[u8]) {
    match base::units::parse_size(value) {
        Some(rate) => request.flow.limit_rate = Some(rate),
        None => {
            let value = bstr::BStr::new(value);
            request.log(
                Level::Error,
                format_args!("invalid $limit_rate \"{value}\""),
            );
        }
    }
}
