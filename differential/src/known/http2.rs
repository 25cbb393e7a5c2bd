//! Choices of HTTP/2: frames that are none, and what belongs to a connection and not to a message.

use super::evidence::{any_of_case, any_pair, sends_chunks};
use super::{Reason, Rule, Seen};
use crate::case::{Body, Request, Step};
use crate::compare::DifferencePlace;
use crate::side::client::Event;

/// In the order of `docs/compat.md`.
pub(super) const HTTP2: &[Rule] = &[
    Rule {
        name: "frames-that-are-wrong",
        text: "A frame that HTTP/2 forbids (`DATA` or `RST_STREAM` of a stream that is idle, `HEADERS` of one that is closed, `SETTINGS` of a stream, one that is too \
               large, a header block that cannot be decoded) ends the connection at once, with the code that the RFC names; nginx \
               takes some silently, waits for the rest of others, or names another code.",
        reason: Reason::Rfc("RFC 9113, sections 4.2, 4.3, 5.1 and 6.5"),
        before: None,
        matches: |seen| {
            // PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, COMPRESSION_ERROR.
            ends_with_code(seen, &[1, 3, 5, 6, 9])
        },
    },
    Rule {
        name: "goaway-of-clients",
        text: "A client that has said `GOAWAY` gets no answer to requests that it begins after that; nginx overlooks the frame.",
        reason: Reason::Rfc("RFC 9113, section 6.8: it begins the shutdown of the connection"),
        before: None,
        matches: |seen| ends_with_code(seen, &[0]) && sends_frame_of_kind(seen, 7),
    },
    Rule {
        name: "trailers-of-requests",
        text: "A request of HTTP/2 may have trailers; nginx ends the connection.",
        reason: Reason::Rfc("RFC 9113, section 8.1"),
        before: None,
        matches: |seen| {
            let Some([oracle, _]) = seen.sides else {
                return false;
            };
            let with = http2_requests(seen)
                .filter(|(_, request)| {
                    matches!(&request.body, Body::Chunked(_, trailers) if !trailers.is_empty())
                })
                .map(|(connection, _)| connection);
            let with: Vec<usize> = with.collect();
            let ended = oracle.events.iter().any(|(connection, event)| {
                with.contains(connection) && matches!(event, Event::GoAway(_, 1))
            });
            let is_there = event_of(seen, |connection| with.contains(&connection));
            ended && (is_there || is_of_missing_lines(seen))
        },
    },
    Rule {
        name: "connection-fields-in-http2",
        text: "A request of HTTP/2 with `Connection`, or another field of a connection, or a `TE` other than `trailers`, is malformed: 400; nginx overlooks the field.",
        reason: Reason::Rfc("RFC 9113, section 8.2.2"),
        before: None,
        matches: |seen| {
            let names = [
                "Connection",
                "Keep-Alive",
                "Transfer-Encoding",
                "Upgrade",
                "TE",
            ];
            let has_one = http2_requests(seen).any(|(_, request)| {
                let mut fields = request.fields.iter();
                fields.any(|(name, _)| names.iter().any(|known| name.eq_ignore_ascii_case(known)))
            });
            let ends_so = seen.is("status ") && seen.difference.class.ends_with(" 400");
            has_one
                && (ends_so || seen.is("log: $"))
                && any_pair(seen, |a, b| a.status != 400 && b.status == 400)
        },
    },
    Rule {
        name: "connection-fields-to-http2",
        text: "`Upgrade` of an upstream's response is not passed on to a client of HTTP/2.",
        reason: Reason::Rfc("RFC 9113, section 8.2.2"),
        before: None,
        matches: |seen| seen.is("field Upgrade missing") && http2_requests(seen).next().is_some(),
    },
    Rule {
        name: "request-lines-of-421",
        text: "A 421 of HTTP/2 is logged with its request; nginx has not put that together yet.",
        reason: Reason::Safety("a log without it misleads who looks for a fault"),
        before: None,
        matches: |seen| {
            let is_one = |line: &Vec<(String, String)>| {
                let has = |name: &str, value: &str| {
                    line.iter()
                        .any(|(known, held)| known == name && held == value)
                };
                has("status", "421") && has("server_protocol", "HTTP/2.0")
            };
            // Lines that tell no request stand in another order, so that all of their values seem to differ.
            let is_unnamed = |line: &&Vec<(String, String)>| {
                is_one(line) && line.iter().all(|(name, _)| name != "request")
            };
            seen.is("log: $")
                && seen
                    .sides
                    .is_some_and(|[oracle, _]| oracle.log.iter().any(|line| is_unnamed(&line)))
        },
    },
    Rule {
        name: "length-of-what-has-come",
        text: "Content that has come before its request is passed on is whole, also with `proxy_request_buffering off`: it has a \
               `Content-Length`, and `$request_body` and `$content_length` tell of it; nginx sends chunks if the client told no length.",
        reason: Reason::Rfc("RFC 9110, section 8.6: a length should be sent where it is known"),
        before: None,
        matches: |seen| {
            let classes = [
                "behind: field Content-Length added",
                "behind: field Transfer-Encoding missing",
                "behind: framing chunked length",
                "behind: framing chunked none",
                "log: $request_body",
                "log: $content_length",
            ];
            let has_content = http2_requests(seen).any(|(_, request)| request.body != Body::None)
                || sends_chunks(seen);
            // What is too large is refused before a server is asked.
            let is_refused = (seen.is("behind 0: requests ") || seen.is("log: $upstream_addr"))
                && any_of_case(seen, |a, b| (a.status, b.status) == (413, 413));
            has_content
                && seen.has_ending("_request_buffering")
                && (is_refused || classes.iter().any(|class| seen.is(class)))
        },
    },
];

/// The connections of HTTP/2 of the case.
fn connections(seen: &Seen<'_>) -> Vec<usize> {
    let numbers = seen.case.talk.iter().filter_map(|step| match step {
        Step::Http2 { connection, .. } => Some(*connection),
        _ => None,
    });
    numbers.collect()
}

/// The requests of HTTP/2 of the case, each with its connection.
fn http2_requests<'a>(seen: &Seen<'a>) -> impl Iterator<Item = (usize, &'a Request)> {
    let known = connections(seen);
    let all = seen.case.talk.iter().filter_map(|step| match step {
        Step::Request {
            connection,
            request,
        } => Some((*connection, request)),
        _ => None,
    });
    all.filter(move |(connection, _)| known.contains(connection))
}

/// The connections of HTTP/2 on which the case sends frames of its own.
fn with_frames(seen: &Seen<'_>) -> Vec<usize> {
    let known = connections(seen);
    let numbers = seen.case.talk.iter().filter_map(|step| match step {
        Step::Send { connection, .. } | Step::Frame { connection, .. }
            if known.contains(connection) =>
        {
            Some(*connection)
        }
        _ => None,
    });
    numbers.collect()
}

/// True when the case sends a frame of this kind by itself.
fn sends_frame_of_kind(seen: &Seen<'_>, kind: u8) -> bool {
    let known = connections(seen);
    seen.case.talk.iter().any(|step| match step {
        Step::Send { connection, bytes } => {
            known.contains(connection) && bytes.bytes().get(3) == Some(&kind)
        }
        Step::Frame { kind: own, .. } => *own == kind,
        _ => false,
    })
}

/// True when Weir ended a connection with frames of the case's own with one of these codes, and the difference is an event of
/// that connection, or a line of the log that is missing for it.
fn ends_with_code(seen: &Seen<'_>, codes: &[u32]) -> bool {
    let Some([_, weir]) = seen.sides else {
        return false;
    };
    let own = with_frames(seen);
    let ended = weir.events.iter().filter_map(|(connection, event)| {
        let is_one = matches!(event, Event::GoAway(_, code) if codes.contains(code));
        (is_one && own.contains(connection)).then_some(*connection)
    });
    let ended: Vec<usize> = ended.collect();
    let is_there = event_of(seen, |connection| ended.contains(&connection));
    !ended.is_empty() && (is_there || is_of_missing_lines(seen))
}

/// True when the difference is an event of such a connection.
fn event_of(seen: &Seen<'_>, is_one: impl Fn(usize) -> bool) -> bool {
    let Some([oracle, _]) = seen.sides else {
        return false;
    };
    let DifferencePlace::Event(at) = seen.difference.place else {
        return false;
    };
    let event = oracle.events.get(at);
    seen.is("event ") && event.is_some_and(|(connection, _)| is_one(*connection))
}

/// True when the logs have not the same number of lines, or one has a response that was not sent.
fn is_of_missing_lines(seen: &Seen<'_>) -> bool {
    let is_unsent = ["log: $status", "log: $body_bytes_sent", "log: $sent_http_"]
        .iter()
        .any(|class| seen.is(class));
    seen.is("log: lines ") || (is_unsent && seen.difference.oracle != seen.difference.weir)
}
