//! Which request a late loop was serving: see [`rt::suspect`].

use host::error_log::{ContextWriter, LogContext as _};
use rt::slow_turn::SuspectKind;

use crate::request::Request;

/// Called after what may have held the loop for long: if the loop is late, this is the request to blame. One load
/// otherwise.
#[inline]
pub fn blame_if_late(request: &Request) {
    if rt::slow_turn::loop_is_late() {
        suspect_request(request);
    }
}

/// The loop may be late: names the request as the error log does, and its location.
#[cold]
pub fn suspect_request(request: &Request) {
    rt::suspect(SuspectKind::Whole, || {
        let mut text = format!("request *{}", request.client.number).into_bytes();
        request.describe(&mut ContextWriter::text(&mut text));
        let mut text = String::from_utf8_lossy(&text).into_owned();
        let location = &request.site.location(request.location).name;
        if !location.is_empty() {
            text.push_str(&format!(", location: \"{location}\""));
        }
        text
    });
}
