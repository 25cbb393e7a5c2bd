//! Choices about what is left of something else: of a response that an error page replaces, of a session that has ended.

use super::evidence::{any_events, any_pair, has_field, replaces_conditions, said};
use super::{Reason, Rule};
use crate::case::tree::Node;
use crate::compare::DifferencePlace;
use crate::observe::Observation;
use crate::side::client::Event;

/// In the order of `docs/compat.md`.
pub(super) const LEFTOVERS: &[Rule] = &[
    Rule {
        name: "several-headers-once",
        text: "A 416 or 412 has each of several `add_header` of one name once; nginx repeats those with `always`.",
        reason: Reason::Rfc("RFC 9110, section 5.3: a header that is not a list appears once"),
        before: None,
        matches: |seen| {
            let own: Vec<&str> = seen.difference.weir.split(" | ").collect();
            let more = seen
                .difference
                .oracle
                .strip_prefix(seen.difference.weir.as_str());
            let mut repeated = more
                .and_then(|more| more.strip_prefix(" | "))
                .map(|more| more.split(" | "));
            let all_known = repeated
                .as_mut()
                .is_some_and(|values| values.all(|value| own.contains(&value)));
            seen.is("field ")
                && seen.has("add_header")
                && all_known
                && any_pair(seen, |a, _| [412, 416].contains(&a.status))
        },
    },
    Rule {
        name: "fields-of-replaced-responses",
        text: "An error page for 412 or 416 has no `ETag`, `Accept-Ranges` or freshness lifetime of the response that it \
               replaces; nginx keeps them.",
        reason: Reason::Rfc(
            "RFC 9110, section 8.8.3: an entity tag is that of the representation that is sent",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "field ETag missing",
                "log: $sent_http_etag",
                "field Accept-Ranges missing",
                "field Cache-Control missing",
                "field Expires missing",
                "log: $sent_http_cache_control",
            ];
            let name = seen
                .difference
                .class
                .strip_prefix("field ")
                .unwrap_or_default();
            let name = name.strip_suffix(" missing").unwrap_or_default();
            let is_added = !name.is_empty() && adds_header(&seen.case.http, name);
            (is_added || classes.iter().any(|class| seen.is(class)))
                && seen.difference.weir.is_empty()
                && replaces_conditions(seen)
                && has_field(seen, &["Range", "If-Match", "If-Unmodified-Since"])
        },
    },
    Rule {
        name: "fields-of-several-redirects",
        text: "Where one `X-Accel-Redirect` follows another, what the last response said counts; nginx adds the fields of each, so that \
               `Content-Disposition` or `Expires` stand there several times.",
        reason: Reason::Rfc("RFC 9110, section 5.3: a header that is not a list appears once"),
        before: None,
        matches: |seen| {
            let names = [
                "Content-Disposition",
                "Expires",
                "Cache-Control",
                "Accept-Ranges",
            ];
            let mut values = seen.difference.oracle.split(" | ");
            let is_repeated =
                values.clone().count() > 1 && values.all(|value| value == seen.difference.weir);
            names
                .iter()
                .any(|name| seen.difference.class == format!("field {name}"))
                && is_repeated
                && said(seen, |text| text.contains("X-Accel-Redirect: "))
        },
    },
    Rule {
        name: "kept-after-replaced-412-and-416",
        text: "An error page in place of a 412 or 416 is complete and leaves the connection open, as its header says; nginx \
               says `keep-alive`, closes the connection, and logs the response as incomplete.",
        reason: Reason::Rfc("RFC 9112, section 9.6: a server that closes says so"),
        before: None,
        matches: |seen| {
            let classes = [
                "event closed kept",
                "log: $request_completion",
                "log: $sent_http_connection",
                "log: $sent_http_keep_alive",
            ];
            classes.iter().any(|class| seen.is(class))
                && replaces_conditions(seen)
                && has_field(seen, &["Range", "If-Match", "If-Unmodified-Since"])
                && any_events(seen, |a, b| matches!((a, b), (Event::Closed, Event::Kept)))
        },
    },
    Rule {
        name: "connections-after-parts",
        text: "A part of a response of memcached, or the header of one to HEAD, is complete, and leaves the connection open, \
               even if what it was taken from breaks off; nginx closes it.",
        reason: Reason::Rfc("RFC 9112, section 9.3"),
        before: None,
        matches: |seen| {
            seen.is("event closed kept")
                && seen.has("memcached_pass")
                && any_pair(seen, |a, b| a.status == b.status && !a.cut && !b.cut)
        },
    },
    Rule {
        name: "status-of-try-files-without-keepalive",
        text: "`try_files … =200` also responds where `keepalive_timeout` is 0; nginx closes the connection without a response.",
        reason: Reason::Safety("a client that loses its response does not know why"),
        before: None,
        matches: |seen| {
            let follows = [
                "event closed 2",
                "log: $sent_http_content_length",
                "log: $status",
            ];
            seen.has("try_files")
                && follows.iter().any(|class| seen.is(class))
                && any_events(seen, |a, b| match (a, b) {
                    (Event::Closed, Event::Response(b)) => (200..300).contains(&b.status),
                    _ => false,
                })
        },
    },
    Rule {
        name: "whole-bodies-for-scgi",
        text: "With `scgi_request_buffering off`, an SCGI server gets the whole body and its length; nginx tells it the length \
               of what arrived first, and sends no more.",
        reason: Reason::Safety("half a request that looks complete"),
        before: None,
        matches: |seen| {
            let is_length = seen.is("behind: first line")
                && seen.difference.oracle.starts_with("CONTENT_LENGTH: ");
            let is_longer = seen.is("behind: body")
                && seen.difference.weir.starts_with(&seen.difference.oracle);
            seen.has("scgi_request_buffering") && (is_length || is_longer)
        },
    },
    Rule {
        name: "order-of-mirrors",
        text: "The order in which a request and its mirrors arrive.",
        reason: Reason::Chance("they run side by side"),
        before: None,
        matches: |seen| {
            let DifferencePlace::Behind(number, _) = seen.difference.place else {
                return false;
            };
            let sorted = |side: &Observation| {
                let all = side.received.get(number).into_iter().flatten();
                let mut all: Vec<_> = all.map(|one| (&one.head, &one.body)).collect();
                all.sort();
                format!("{all:?}")
            };
            let is_same = seen.sides.is_some_and(|[a, b]| sorted(a) == sorted(b));
            seen.has("mirror") && is_same
        },
    },
    Rule {
        name: "families-of-proxy-protocol",
        text: "A PROXY protocol header for an IPv6 client and an IPv4 server has both as IPv6 addresses; nginx mixes them.",
        reason: Reason::Rfc(
            "the PROXY protocol, section 2.1: `TCP6` is followed by IPv6 addresses",
        ),
        before: None,
        matches: |seen| {
            let mapped = seen.difference.weir.replace("::ffff:", "");
            let class = seen.is("behind: body") || seen.is("bytes");
            class && mapped == seen.difference.oracle && mapped.contains("PROXY TCP6 ")
        },
    },
    Rule {
        name: "whole-datagrams",
        text: "A datagram is passed on whole, or not at all; nginx cuts it at `proxy_buffer_size`.",
        reason: Reason::Safety("half a datagram is another message"),
        before: None,
        matches: |seen| {
            let is_cut = |oracle: &[u8], weir: &[u8]| weir.is_empty() || weir.starts_with(oracle);
            let is_one = match seen.difference.place {
                DifferencePlace::Event(_) => any_events(seen, |a, b| match (a, b) {
                    (Event::Bytes(a), Event::Bytes(b)) => {
                        let (a, b) = (datagrams(a), datagrams(b));
                        b.is_empty()
                            || a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_cut(a, b))
                    }
                    _ => false,
                }),
                DifferencePlace::Behind(number, at) => seen.sides.is_some_and(|sides| {
                    let [a, b] = sides.each_ref().map(|side| {
                        let received = side.received.get(number)?.get(at)?;
                        Some(received.body.as_slice())
                    });
                    a.zip(b).is_some_and(|(a, b)| is_cut(a, b))
                }),
                DifferencePlace::Case | DifferencePlace::Lines(..) => false,
            };
            !seen.case.stream.is_empty() && seen.has("proxy_buffer_size") && is_one
        },
    },
    Rule {
        name: "datagrams-after-the-last",
        text: "Whether datagrams of an upstream are passed on that arrive together with the last one that `proxy_responses` \
               waits for.",
        reason: Reason::Chance("it depends on how many are read at a time"),
        before: None,
        matches: |seen| {
            !seen.case.stream.is_empty()
                && seen.has("proxy_responses")
                && (seen.is("event bytes silent") || seen.is("bytes") || seen.is("behind"))
        },
    },
];

/// What a client got, each behind its length in brackets.
fn datagrams(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    while let Some(end) = bytes.iter().position(|byte| *byte == b']') {
        let (length, rest) = bytes.split_at(end + 1);
        let digits = length
            .get(1..end)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let length = digits.and_then(|digits| digits.parse().ok()).unwrap_or(0);
        let Some((one, after)) = rest.split_at_checked(length) else {
            break;
        };
        all.push(one);
        bytes = after;
    }
    all
}

/// True when `add_header` of a tree adds a header of this name.
fn adds_header(nodes: &[Node], name: &str) -> bool {
    nodes.iter().any(|node| {
        let is_one =
            node.name() == "add_header" && node.words.get(1).is_some_and(|word| word == name);
        is_one || adds_header(node.children(), name)
    })
}
