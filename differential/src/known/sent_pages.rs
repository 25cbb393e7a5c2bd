//! Choices of the content of pages, and of what the access log tells of a response that was sent.

use super::evidence::{any_events, any_pair, said};
use super::{Reason, Rule};
use crate::side::client::Event;
use crate::side::reply::{Framing, Response};

/// In the order of `docs/compat.md`.
pub(super) const SENT_PAGES: &[Rule] = &[
    Rule {
        name: "parts-in-their-order",
        text: "What `add_after_body` adds comes behind all of a page of SSI; nginx sends it before what follows an `include` that it waits \
               for.",
        reason: Reason::Safety("a page whose parts change places"),
        before: None,
        matches: |seen| {
            let sorted = |text: &[u8]| {
                let mut text = text.to_vec();
                text.sort_unstable();
                text
            };
            let moved =
                |a: &Response, b: &Response| a.body != b.body && sorted(&a.body) == sorted(&b.body);
            seen.is("body")
                && seen.has("ssi")
                && seen.has("add_after_body")
                && any_pair(seen, moved)
        },
    },
    Rule {
        name: "parts-that-break-off",
        text: "A page one of whose parts (`add_after_body`, `add_before_body`, SSI) breaks off breaks off as well; nginx ends it as if it were \
               complete.",
        reason: Reason::Rfc("RFC 9112, section 8: an incomplete message must be recognisable"),
        before: None,
        matches: |seen| {
            let classes = [
                "cut false true",
                "event kept closed",
                "body",
                "log: $request_completion",
                "log: $sent_http_connection",
                "log: $body_bytes_sent",
            ];
            let parts = ["add_after_body", "add_before_body", "ssi"];
            parts.iter().any(|name| seen.has(name))
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    a.status == b.status && !a.cut && b.cut && a.body.starts_with(&b.body)
                })
        },
    },
    Rule {
        name: "ends-of-pages",
        text: "A page of SSI that ends with a part of `<!--#` keeps it; nginx drops it.",
        reason: Reason::Safety("a page that ends early"),
        before: None,
        matches: |seen| {
            let is_longer = |a: &Response, b: &Response| {
                let more = b.body.strip_prefix(a.body.as_slice()).unwrap_or(b"");
                a.status == b.status && !more.is_empty() && b"<!--#".starts_with(more)
            };
            let classes = ["body", "log: $body_bytes_sent"];
            seen.has("ssi")
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, is_longer)
        },
    },
    Rule {
        name: "charsets-of-rejected-responses",
        text: "An `X-Accel-Charset` in front of what makes a response invalid does not count for the error page; nginx takes it, or \
               reports that it does not know it.",
        reason: Reason::Safety("what is rejected is not trusted"),
        before: None,
        matches: |seen| {
            let begin = format!("{}; charset=", seen.difference.oracle);
            let is_charset = (seen.is("field Content-Type")
                || seen.is("log: $sent_http_content_type"))
                && seen.difference.weir.starts_with(&begin)
                && any_pair(seen, |a, b| a.status == b.status && a.status >= 500);
            let is_told = seen.is("error log: missing [error] unknown charset … to override");
            (is_charset || is_told) && said(seen, |text| text.contains("X-Accel-Charset: "))
        },
    },
    Rule {
        name: "completion-in-the-log",
        text: "`$request_completion` is empty for a response that broke off, also where its end is that of the connection; nginx logs `OK`.",
        reason: Reason::Safety(
            "a log that calls half a response complete misleads the search for a fault",
        ),
        before: None,
        matches: |seen| {
            seen.is("log: $request_completion")
                && seen.difference.oracle == "OK"
                && any_pair(seen, |a, b| {
                    let both = [a, b].iter().all(|one| one.framing == Framing::Close);
                    both && a.status == b.status && a.body == b.body
                })
        },
    },
    Rule {
        name: "connection-in-the-log",
        text: "`$sent_http_connection` is what was sent, also of a response that ends with its connection; nginx logs `keep-alive`.",
        reason: Reason::Safety(
            "a log that names what no client got misleads the search for a fault",
        ),
        before: None,
        matches: |seen| {
            let weir = seen.difference.weir.as_str();
            seen.is("log: $sent_http_connection")
                && any_events(seen, |a, b| match (a, b) {
                    (Event::Response(a), Event::Response(b)) => {
                        let is_sent = |one: &Response| one.field("Connection") == Some(weir);
                        // Where it broke off, the connection ended.
                        (is_sent(a) && is_sent(b)) || (a.cut && b.cut && weir == "close")
                    }
                    // Or the client left in the middle of it.
                    (Event::Silent(_), Event::Silent(_)) => weir == "close",
                    _ => false,
                })
        },
    },
];
