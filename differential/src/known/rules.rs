//! The choices: where Weir differs from every nginx.

use super::{Reason, Rule};

/// In the order of `docs/compat.md`.
pub const RULES: &[Rule] = &[
    Rule {
        name: "client-port",
        text: "The port of a client in a header of the PROXY protocol, and whether the header comes alone or with what follows it.",
        reason: Reason::Chance("the kernel chooses the port, and cuts the bytes"),
        before: None,
        matches: |seen| {
            let without = |text: &str| {
                let mut words: Vec<&str> = text.splitn(6, ' ').collect();
                (words.len() == 6 && words[0] == "PROXY").then(|| {
                    words.remove(4);
                    words.join(" ")
                })
            };
            let difference = seen.difference;
            let sides = (without(&difference.oracle), without(&difference.weir));
            let (Some(oracle), Some(weir)) = sides else {
                return false;
            };
            seen.is("behind: body") && (oracle.starts_with(&weir) || weir.starts_with(&oracle))
        },
    },
    Rule {
        name: "empty-cache-control",
        text: "`more_clear_headers Cache-Control` of a response that has none leaves none; nginx's module sends an empty one.",
        reason: Reason::Rfc("RFC 9110, section 5.6.1: no empty list elements"),
        before: None,
        matches: |seen| {
            let class =
                seen.is("field Cache-Control missing") || seen.is("log: $sent_http_cache_control");
            class
                && seen.difference.oracle.is_empty()
                && (seen.has("more_clear_headers") || seen.has("more_set_headers"))
        },
    },
    Rule {
        name: "type-of-304",
        text: "A 304 has no `Content-Type`, also where `more_set_headers` names one.",
        reason: Reason::Rfc("RFC 9110, section 15.4.5"),
        before: None,
        matches: |seen| {
            (seen.is("field Content-Type missing") || seen.is("log: $sent_http_content_type"))
                && seen.difference.weir.is_empty()
                && seen.has("more_set_headers")
        },
    },
    Rule {
        name: "lua-body-filter",
        text: "Content that `body_filter_by_lua` sees has no `Content-Length` and no `Accept-Ranges`, and a strong `ETag` becomes a weak \
               one; with nginx the head stays as it was, and what a script makes longer is taken for the next response.",
        reason: Reason::Safety(
            "a response that another one is hidden in (RFC 9112, section 11.1; RFC 9110, section 8.8.1)",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "field Content-Length missing",
                "field Accept-Ranges missing",
                "field ETag",
                "field Transfer-Encoding added",
                "framing Length Chunked",
                "event bytes kept",
                "log: $sent_http_content_length",
                "log: $sent_http_transfer_encoding",
                "log: $sent_http_etag",
            ];
            classes.iter().any(|class| seen.is(class))
                && [
                    "body_filter_by_lua_file",
                    "body_filter_by_lua_block",
                    "body_filter_by_lua",
                ]
                .iter()
                .any(|name| seen.has(name))
        },
    },
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
