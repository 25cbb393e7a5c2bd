//! Choices of what servers behind are sent, and of the connections to them.

use super::evidence::{asked, is_of_traffic, sends_chunks};
use super::exchange::{asked_at, requests};
use super::following::follows_in_order;
use super::{Reason, Rule, Seen};
use crate::case::{Act, Body, Step};
use crate::compare::DifferencePlace;
use crate::observe::Observation;

/// In the order of `docs/compat.md`.
pub(super) const SENT_BEHIND: &[Rule] = &[
    Rule {
        name: "closed-kept-connections",
        text: "A server that closes a kept connection without a word while a request is sent on it has not failed, and is asked the next \
               time; nginx counts it as failed.",
        reason: Reason::Rfc("RFC 9112, section 9.3.1: a connection may be closed at any time"),
        before: None,
        matches: |seen| {
            seen.has("upstream")
                && closes_kept_one(seen)
                && follows_in_order(seen, |exchange| {
                    exchange.logged("upstream_status").contains("502")
                })
        },
    },
    Rule {
        name: "length-of-a-suppressed-body",
        text: "`proxy_pass_request_body off` and its equivalents omit the length of the body; nginx announces the body and \
               does not send it.",
        reason: Reason::Safety(
            "an upstream server waits for the body, or takes the next request for it (RFC 9112, section 6.3)",
        ),
        before: None,
        matches: |seen| {
            // What came before it has nothing to do with it.
            let is_behind = asked_at(seen).is_none_or(|at| {
                let first = requests(seen).position(|request| request.body != Body::None);
                first.is_some_and(|first| first <= at)
            });
            is_of_traffic(seen)
                && seen.has_ending("_pass_request_body")
                && is_behind
                && asked(seen, announces_content)
        },
    },
    Rule {
        name: "spaces-in-targets",
        text: "A path built from variables for `proxy_pass` contains no space; nginx sends `GET /a b HTTP/1.1`.",
        reason: Reason::Safety("a request target that a client can end (RFC 9112, section 3.2)"),
        before: None,
        matches: |seen| {
            let line = |text: &str| text.split("\\r\\n").next().unwrap_or("").to_owned();
            let (oracle, weir) = (line(&seen.difference.oracle), line(&seen.difference.weir));
            let is_logged = seen.is("error log: parts of ")
                && seen.difference.weir.replace("%20", " ")
                    == seen.difference.oracle.replace("%20", " ");
            is_logged
                || (seen.is("behind: first line")
                    && oracle.split(' ').count() > 3
                    && weir == encoded(&oracle))
        },
    },
    Rule {
        name: "body-after-the-response",
        text: "How much of a request body is still sent after the response has arrived, and whether the client's connection \
               is reusable after that.",
        reason: Reason::Chance("it depends on which comes first"),
        before: None,
        matches: |seen| {
            let cut = |sides: &[crate::observe::Observation; 2]| {
                sides
                    .iter()
                    .flat_map(|side| side.received.iter().flatten())
                    .any(|one| one.cut)
            };
            let classes = ["behind: cut", "event closed kept", "event kept closed"];
            // More or less of the same.
            let is_part = || {
                let DifferencePlace::Behind(number, at) = seen.difference.place else {
                    return false;
                };
                seen.sides.is_some_and(|[a, b]| {
                    let of = |side: &Observation| {
                        let received = side.received.get(number)?.get(at)?;
                        Some(received.body.clone())
                    };
                    of(a)
                        .zip(of(b))
                        .is_some_and(|(a, b)| a.starts_with(&b) || b.starts_with(&a))
                })
            };
            (classes.iter().any(|class| seen.is(class)) || seen.is("behind: body") && is_part())
                && seen.has_ending("_request_buffering")
                && seen.sides.is_some_and(cut)
        },
    },
    Rule {
        name: "body-without-framing",
        text: "With `proxy_request_buffering off`, a chunked body that arrives completely with its header is sent in \
               chunks; nginx sends it with neither a length nor chunks.",
        reason: Reason::Safety("a body that is taken for the next request (RFC 9112, section 6.3)"),
        before: None,
        matches: |seen| {
            let classes = [
                "behind: framing none chunked",
                "behind: field Transfer-Encoding added",
                "log: $request_body",
            ];
            let is_unframed = match (seen.difference.place, seen.sides) {
                (DifferencePlace::Behind(server, number), Some(sides)) => {
                    let framing = |side: usize| {
                        let one = sides[side].received.get(server)?.get(number)?;
                        Some(one.framing)
                    };
                    (framing(0), framing(1)) == (Some("none"), Some("chunked"))
                }
                _ => false,
            };
            sends_chunks(seen)
                && seen.has_ending("_request_buffering")
                && (classes.iter().any(|class| seen.is(class))
                    || (seen.is("behind: body") && is_unframed))
        },
    },
    Rule {
        name: "connections-with-extra-data",
        text: "An upstream connection on which data follows the response to HEAD is not reused; nginx takes the data for \
               the next response if it arrives late enough.",
        reason: Reason::Safety("a response that another client gets"),
        before: None,
        matches: |seen| {
            let has_head = seen.case.talk.iter().any(
                |step| matches!(step, Step::Request { request, .. } if request.method == "HEAD"),
            );
            has_head && seen.is("behind: fresh false true")
        },
    },
];

/// True when a request that nginx sent on a kept connection was answered by its end.
fn closes_kept_one(seen: &Seen<'_>) -> bool {
    let Some([oracle, _]) = seen.sides else {
        return false;
    };
    let mut behind = oracle.received.iter().zip(&seen.case.upstreams);
    behind.any(|(received, upstream)| {
        let mut kept = received.iter().enumerate().filter(|(_, one)| !one.fresh);
        kept.any(|(number, _)| {
            let answer = upstream.answers.get(number).or(upstream.answers.last());
            answer.is_some_and(|acts| {
                let is_nothing = |act: &Act| match act {
                    Act::Send(content) => content.is_empty(),
                    _ => true,
                };
                acts.iter().all(is_nothing)
            })
        })
    })
}

/// True when a head says that there is content.
fn announces_content(head: &str) -> bool {
    let lengths = head.split("\r\n").filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = ["Content-Length", "CONTENT_LENGTH"].contains(&name);
        is_length.then(|| value.trim().to_owned())
    });
    let mut lengths = lengths;
    lengths.any(|value| !value.is_empty() && value != "0")
}

/// A request line whose target has its spaces encoded.
fn encoded(line: &str) -> String {
    let parts = line
        .split_once(' ')
        .and_then(|(method, rest)| Some((method, rest.rsplit_once(' ')?)));
    parts.map_or_else(String::new, |(method, (target, version))| {
        format!("{method} {} {version}", target.replace(' ', "%20"))
    })
}
