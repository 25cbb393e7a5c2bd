//! When each step of a request happened, for logs, metrics and explanations.
//!
//! The times are the loop's own clock, which is read once per iteration: taking one costs a copy, not a system call.

use std::time::Instant;

/// The times and sizes of one request.
#[derive(Clone, Debug)]
pub struct RequestTimes {
    /// When its first byte was read.
    pub started: Instant,
    /// The same moment in milliseconds since 1970, for `$msec` and dates.
    pub started_wall_ms: u64,
    /// When the head of the response was handed to the connection.
    pub responded: Option<Instant>,
    /// Bytes of the response on the wire, head included.
    pub bytes_sent: u64,
    /// Bytes of the response's content, without chunk framing.
    pub body_bytes_sent: u64,
    /// Whether the response was sent to its end.
    pub complete: bool,
}

impl RequestTimes {
    /// Times that start at the loop's current time.
    pub fn begin() -> RequestTimes {
        RequestTimes {
            started: rt::now(),
            started_wall_ms: rt::wall_millis(),
            responded: None,
            bytes_sent: 0,
            body_bytes_sent: 0,
            complete: false,
        }
    }
}
