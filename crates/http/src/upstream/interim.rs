//! Interim responses: 103 goes on to a client that understands it, all others end here (RFC 9110, section 15.2).

use proto::h1::response::{ResponseHead, write_end, write_field};

use super::settings::Settings;
use crate::request::{Request, Version};

/// Passes an interim response on, if it is to be. It is a hint: when the client's connection takes nothing now, it is
/// left away.
pub(super) fn pass_on(request: &mut Request, settings: &Settings, head: &ResponseHead) {
    let wanted = settings.pass_early_hints
        && head.status == 103
        && !request.is_subrequest()
        && request.head.version() == Version::Http11;
    if !wanted {
        return;
    }
    let mut out = b"HTTP/1.1 103 Early Hints\r\n".to_vec();
    for (known, name, value) in head.fields.iter_known() {
        if !settings.hide.contains(known, name) {
            write_field(name, value, &mut out);
        }
    }
    write_end(&mut out);
    // A part of a head would break the connection: all of it, or nothing.
    if let Ok(n) = request.client.stream.try_write(&out) {
        request
            .client
            .sent
            .set(request.client.sent.get() + n as u64);
        if n < out.len() {
            request.flow.close = true;
        }
    }
}
