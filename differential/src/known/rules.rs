//! The choices: where Weir differs from every nginx.

use super::{Reason, Rule};

/// In the order of `docs/compat.md`.
pub const RULES: &[Rule] = &[
    Rule {
        name: "sent-connection",
        text: "`$sent_http_connection` and `$sent_http_keep_alive` in the access log tell what was sent; nginx has lost it by then, and says \
           `close`.",
        reason: Reason::Open("the log tells more than nginx's"),
        before: None,
        matches: |seen| {
            seen.is("log: $sent_http_connection") || seen.is("log: $sent_http_keep_alive")
        },
    },
    Rule {
        name: "length-instead-of-chunks",
        text: "A response of which all has come before its head goes out has a `Content-Length`, also where its origin sent chunks \
           or closed the connection; nginx sends chunks.",
        reason: Reason::Rfc("RFC 9110, section 8.6: a length should be sent where it is known"),
        before: None,
        matches: |seen| {
            let known_length = seen.is("framing Chunked Length") || seen.is("framing Close Length");
            let field =
                seen.is("field Content-Length added") || seen.is("field Transfer-Encoding missing");
            let log = seen.is("log: $sent_http_content_length")
                || seen.is("log: $sent_http_transfer_encoding");
            known_length || (super::rules::has_known_length(seen) && (field || log))
        },
    },
];

/// True when the pair of responses to which the difference belongs is framed by a length on Weir's side alone.
fn has_known_length(seen: &super::Seen<'_>) -> bool {
    use crate::side::client::Event;
    use crate::side::reply::Framing;
    let Some([a, b]) = seen.sides else {
        return false;
    };
    a.events
        .iter()
        .zip(&b.events)
        .any(|(a, b)| match (&a.1, &b.1) {
            (Event::Response(a), Event::Response(b)) => {
                a.framing != Framing::Length && b.framing == Framing::Length && a.body == b.body
            }
            _ => false,
        })
}
