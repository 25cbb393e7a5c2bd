//! Choices of heads and of what comes with them: what is counted of them, and what is answered behind a request that ends the
//! connection.

use super::evidence::{
    any_bytes, any_events, any_pair, counts_differ, is_of_traffic, logged_with, sends_chunks, sent,
};
use super::exchange::{asked_at, requests};
use super::{Reason, Rule, Seen};
use crate::case::{Body, Step};
use crate::compare::DifferencePlace;
use crate::side::client::Event;
use crate::side::reply::Framing;

/// In the order of `docs/compat.md`.
pub(super) const HEADS: &[Rule] = &[
    Rule {
        name: "requests-behind-kept-connections",
        text: "Requests that came behind one after which nginx closes, and Weir does not, are answered: see \
               `kept-after-412-and-416`, `length-instead-of-chunks` and `preconditions`. A server behind sees one request more.",
        reason: Reason::Rfc("RFC 9112, section 9.3.2: each of them is answered"),
        before: None,
        matches: |seen| {
            let behind = (0..events(seen))
                .filter(|at| is_behind_close(seen, *at))
                .count();
            match seen.difference.place {
                DifferencePlace::Event(at) if seen.is("event closed ") => is_behind_close(seen, at),
                DifferencePlace::Case => {
                    more(seen, "behind 0: requests ").is_some_and(|more| more <= behind)
                        || more(seen, "log: lines ") == Some(behind)
                }
                // The server behind has answered one request more, so that all others have its next answers.
                _ => behind > 0 && is_of_traffic(seen) && counts_differ(seen),
            }
        },
    },
    Rule {
        name: "pages-of-rejected-heads",
        text: "The page for a head that is rejected (400) is framed for any client, by its length or its end; nginx sends chunks and trailers \
               if a filter needs them.",
        reason: Reason::Rfc(
            "RFC 9112, section 6.1: chunks are for a client that has said HTTP/1.1",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "field Transfer-Encoding missing",
                "field Content-Length added",
                "trailer ",
                "framing Chunked ",
                "log: $body_bytes_sent",
                "log: $sent_http_transfer_encoding",
                "log: $sent_http_content_length",
            ];
            classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    (a.status, b.status) == (400, 400)
                        && a.framing == Framing::Chunked
                        && b.framing != Framing::Chunked
                        && b.field("Connection") == Some("close")
                })
        },
    },
    Rule {
        name: "interim-response-without-need",
        text: "`Expect: 100-continue` in a request that has no content, or whose content comes with its head, is not answered by a 100; \
               nginx sends one.",
        reason: Reason::Rfc(
            "RFC 9110, section 10.1.1: it may be left out, since nothing waits for it",
        ),
        before: None,
        matches: |seen| {
            const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Bytes(a) | Event::Silent(a), Event::Bytes(b) | Event::Silent(b)) => {
                    a.starts_with(INTERIM) && !b.starts_with(INTERIM)
                }
                _ => false,
            };
            let expects = |text: String| text.contains("\r\nexpect: 100-continue\r\n");
            let numbers = (
                seen.difference.oracle.parse::<usize>(),
                seen.difference.weir.parse::<usize>(),
            );
            // It counts as content in nginx.
            let is_counted = seen.is("log: $body_bytes_sent")
                && matches!(numbers, (Ok(a), Ok(b)) if a == b + INTERIM.len());
            let is_missing = seen.is("event 100 missing");
            let is_asked = |step: &Step| match step {
                Step::Request { request, .. } => {
                    let mut fields = request.fields.iter();
                    fields.any(|(name, _)| name == "Expect")
                }
                _ => false,
            };
            (sent(seen).any(expects) || seen.case.talk.iter().any(is_asked))
                && (is_counted || is_missing || (seen.is("bytes") && any_events(seen, is_one)))
        },
    },
    Rule {
        name: "spaces-after-versions",
        text: "`$server_protocol` has no space of a request line that ends with one.",
        reason: Reason::Rfc("RFC 9112, section 3: such space is ignored"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            seen.is("log: $server_protocol") && oracle != weir && oracle.trim_end() == weir
        },
    },
    Rule {
        name: "requests-behind-content",
        text: "`$pipe` is `p` also for a request that came with the content of the one before it; nginx looks at what came with its head.",
        reason: Reason::Chance("the kernel cuts the bytes"),
        before: None,
        matches: |seen| {
            let is_one = |step: &Step| match step {
                Step::Request { request, .. } => request.body != Body::None,
                _ => false,
            };
            seen.is("log: $pipe")
                && (
                    seen.difference.oracle.as_str(),
                    seen.difference.weir.as_str(),
                ) == (".", "p")
                && seen.case.talk.iter().any(is_one)
        },
    },
    Rule {
        name: "length-of-discarded-chunks",
        text: "`$content_length` of content in chunks that is not read is empty, and 0 at the end; nginx shows how much it would read next, \
               and 0 where all has come.",
        reason: Reason::Chance("the kernel cuts the bytes"),
        before: None,
        matches: |seen| {
            let classes = [
                "bytes",
                "body",
                "field Content-Length",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
            ];
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let is_logged = seen.is("log: $content_length")
                && is_number(oracle)
                && ["", "0"].contains(&weir.as_str());
            let is_sent = seen.has("return")
                && classes.iter().any(|class| seen.is(class))
                && any_events(seen, tells_next_read);
            let without = |text: &str| text.replace(|byte: char| byte.is_ascii_digit(), "");
            let is_shown = seen.is("field ")
                && seen.facts.text().contains("$content_length")
                && oracle.len() > weir.len()
                && without(oracle) == without(weir);
            sends_chunks(seen) && (is_logged || is_sent || is_shown)
        },
    },
    Rule {
        name: "lengths-below-that-of-a-head",
        text: "`$request_length` of a request whose content in chunks is discarded is that of its head; nginx's can be less than that, and \
               negative.",
        reason: Reason::Chance("the kernel cuts the bytes"),
        before: None,
        matches: |seen| {
            let is_shown = seen.is("field X-A") && seen.has("add_header");
            let Ok(oracle) = seen.difference.oracle.parse::<i64>() else {
                return false;
            };
            let is_below = |of: &dyn Fn(&str) -> String| {
                let line = of("request");
                let lengths = lengths_of_heads(seen, &line);
                let mut lengths = lengths.filter_map(|length| i64::try_from(length).ok());
                lengths.any(|length| oracle < length)
            };
            (seen.is("log: $request_length") || is_shown)
                && sends_chunks(seen)
                && logged_with(seen, "request_length", &seen.difference.oracle, is_below)
        },
    },
    Rule {
        name: "ports-that-are-none",
        text: "A `Host` whose port is no number, or none of TCP's, is refused: 400; nginx overlooks the port.",
        reason: Reason::Rfc("RFC 9112, section 3.2; RFC 3986, section 3.2.3"),
        before: None,
        matches: |seen| {
            let is_port = |text: &str| text.parse::<u16>().is_ok() || text.is_empty();
            let is_one = |text: String| {
                let mut lines = text
                    .split("\r\n")
                    .filter_map(|line| line.strip_prefix("host: "));
                lines.any(|host| {
                    let port = host.rsplit_once(':').map(|(_, port)| port);
                    port.is_some_and(|port| !port.ends_with(']') && !is_port(port))
                })
            };
            let classes = ["bytes", "log: $", "log: lines ", "event ", "status "];
            let is_refused = |text: &str| text.starts_with("HTTP/1.1 400 ");
            let is_pair = |a: &Event, b: &Event| match (a, b) {
                (Event::Response(a), Event::Response(b)) => a.status != 400 && b.status == 400,
                _ => false,
            };
            classes.iter().any(|class| seen.is(class))
                && sent(seen).any(is_one)
                && (any_bytes(seen, |a, b| !is_refused(a) && is_refused(b))
                    || any_events(seen, is_pair))
        },
    },
    Rule {
        name: "content-that-came-with-its-head",
        text: "Content beyond `client_body_buffer_size` is in a file, also where it came with its head; nginx leaves it in the buffer of \
               the head, and `$request_body` has it.",
        reason: Reason::Chance("the kernel cuts the bytes"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let is_warned = seen.is(
                "error log: added [warn] a client request body is buffered to a temporary file",
            );
            let is_one = is_warned
                || (seen.is("log: $request_body_file") && oracle.is_empty())
                || (seen.is("log: $request_body") && weir.is_empty());
            let sends_content = asked_at(seen)
                .and_then(|at| requests(seen).nth(at))
                .is_none_or(|request| request.body != Body::None);
            is_one && seen.has("client_body_buffer_size") && sends_content
        },
    },
];

/// How many more Weir has of what a class counts on both sides; nothing where it has no more.
fn more(seen: &Seen<'_>, class: &str) -> Option<usize> {
    let (oracle, weir) = seen.difference.class.strip_prefix(class)?.split_once(' ')?;
    let (oracle, weir): (usize, usize) = (oracle.parse().ok()?, weir.parse().ok()?);
    weir.checked_sub(oracle).filter(|more| *more > 0)
}

/// How many events there are.
fn events(seen: &Seen<'_>) -> usize {
    seen.sides.map_or(0, |[oracle, _]| oracle.events.len())
}

/// True when nginx had closed the connection of this event, and Weir not, behind a response of which another rule tells that.
fn is_behind_close(seen: &Seen<'_>, at: usize) -> bool {
    let Some([oracle, weir]) = seen.sides else {
        return false;
    };
    let (Some((connection, Event::Closed)), Some((_, Event::Response(_)))) =
        (oracle.events.get(at), weir.events.get(at))
    else {
        return false;
    };
    let before = oracle.events[..at].iter().zip(&weir.events[..at]);
    let mut own = before.filter(|((known, _), _)| known == connection);
    own.any(|((_, a), (_, b))| match (a, b) {
        (Event::Response(a), Event::Response(b)) => {
            [412, 416].contains(&a.status)
                || (a.framing == Framing::Close && b.framing != Framing::Close)
        }
        _ => false,
    })
}

/// The lengths of the heads that begin with this line, of requests whose content comes in chunks.
fn lengths_of_heads<'a>(seen: &Seen<'a>, line: &'a str) -> impl Iterator<Item = usize> + 'a {
    let requests = seen.case.talk.iter().filter_map(|step| match step {
        Step::Request { request, .. } => Some(request.bytes()),
        _ => None,
    });
    let raw = sent(seen).map(String::into_bytes);
    requests.chain(raw).filter_map(move |bytes| {
        let text = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
        let at = text.find(&line.to_ascii_lowercase())?;
        let end = text.get(at..)?.find("\r\n\r\n")? + 4;
        text[at..at + end]
            .contains("transfer-encoding: chunked")
            .then_some(end)
    })
}

/// True when nginx's content is that of Weir with a number in it.
fn tells_next_read(a: &Event, b: &Event) -> bool {
    let last = |text: &[u8]| {
        let text = String::from_utf8_lossy(text).into_owned();
        text.rsplit("\r\n").next().unwrap_or("").to_owned()
    };
    let (a, b) = match (a, b) {
        (Event::Response(a), Event::Response(b)) => (last(&a.body), last(&b.body)),
        (Event::Bytes(a), Event::Bytes(b)) => (last(a), last(b)),
        _ => return false,
    };
    // Wherever the text has it, and however often.
    let mut b = b.bytes().peekable();
    let mut has_one = false;
    for byte in a.bytes() {
        if b.peek() == Some(&byte) {
            b.next();
        } else if byte.is_ascii_digit() {
            has_one = true;
        } else {
            return false;
        }
    }
    has_one && b.peek().is_none()
}
