//! Choices that show frame by frame: which faults end a connection, and what has come of a request that ends early.

use super::exchange::{line, value};
use super::{Reason, Rule, Seen};
use crate::case::Step;
use crate::compare::DifferencePlace;
use crate::side::client::Event;
use crate::side::http2::{DATA, GOAWAY, HEADERS, PRIORITY, RESET, WINDOW};

/// In the order of `docs/compat.md`.
pub(super) const FRAMES: &[Rule] = &[
    Rule {
        name: "faults-of-a-stream",
        text: "What HTTP/2 calls an error of a stream resets the stream, and the connection goes on: a `WINDOW_UPDATE` by nothing, a \
               stream that depends on itself, a second header block of a stream that is half closed. Trailers of a request are no \
               error, nor is a malformed head that got its 400. nginx ends the connection.",
        reason: Reason::Rfc("RFC 9113, sections 5.1, 6.9 and 8.1.1; RFC 7540, section 5.3.1"),
        before: None,
        matches: |seen| {
            let Some(at) = ended_by_nginx_alone(seen) else {
                return false;
            };
            let has_fault = frames(seen).any(|frame| match frame.kind {
                WINDOW => frame.stream != 0 && frame.payload == [0; 4],
                HEADERS if frame.flags & PRIORITY != 0 => true,
                HEADERS => frames(seen).any(|other| {
                    other.kind == HEADERS
                        && other.stream == frame.stream
                        && other.step != frame.step
                }),
                _ => false,
            });
            (has_fault || has_malformed(seen)) && is_after(seen, at)
        },
    },
    Rule {
        name: "last-streams",
        text: "A `GOAWAY` because of a header block that is never complete, or that cannot be decoded, names the last stream before it; \
               nginx names its own, which it has not begun either. Of a stream that is reset for its dependency, or whose head is too large, it is \
               the other way round.",
        reason: Reason::Rfc(
            "RFC 9113, section 6.8: streams above the last one can be repeated safely",
        ),
        before: None,
        matches: |seen| {
            let number = |text: &str| text.parse::<u32>().ok();
            let sides = (
                number(&seen.difference.oracle),
                number(&seen.difference.weir),
            );
            let is_reset =
                frames(seen).any(|frame| frame.kind == HEADERS && frame.flags & PRIORITY != 0);
            let is_too_large =
                frames(seen).any(|frame| frame.kind == HEADERS && frame.payload.len() > 500);
            let is_other = sides.0 > sides.1 || is_reset || is_too_large;
            seen.is("last stream") && has_frames(seen) && is_other
        },
    },
    Rule {
        name: "too-large-heads-of-http2",
        text: "A head that is too large ends the connection with `ENHANCE_YOUR_CALM` also where the connection was about to end.",
        reason: Reason::Rfc(
            "RFC 9113, section 5.4.1: an error of the connection is told with its code",
        ),
        before: None,
        matches: |seen| {
            seen.is("event closed goaway 11")
                && frames(seen).any(|frame| frame.kind == HEADERS && frame.payload.len() > 500)
        },
    },
    Rule {
        name: "lines-of-unread-heads",
        text: "A header block of HTTP/2 that ends the connection is no request, and has a line in the error log only; nginx adds one \
               with the status 000 and nothing else to the access log.",
        reason: Reason::Rfc(
            "RFC 9113, section 4.3: a block that cannot be decoded is an error of the connection",
        ),
        before: None,
        matches: |seen| {
            // What else the lines tell is another rule's.
            let without = |text: &str| {
                let statuses = text.split(" / ").filter_map(|part| part.split(' ').next());
                let kept: Vec<String> = statuses
                    .filter(|status| *status != "000")
                    .map(str::to_owned)
                    .collect();
                kept
            };
            let difference = seen.difference;
            seen.is("log: lines ")
                && has_frames(seen)
                && difference.oracle.contains("000")
                && without(&difference.oracle) == without(&difference.weir)
        },
    },
    Rule {
        name: "malformed-heads-in-the-log",
        text: "The line of a malformed request of HTTP/2 has what was understood of it; nginx's lacks the request, or has other parts of it.",
        reason: Reason::Safety("a log without it misleads who looks for a fault"),
        before: None,
        matches: |seen| {
            let variables = [
                "request",
                "request_method",
                "server_protocol",
                "http_host",
                "host",
                "request_uri",
                "request_length",
                "uri",
                "document_uri",
                "request_filename",
                "fastcgi_script_name",
            ];
            let is_one = |name: &&str| seen.difference.class == format!("log: ${name}");
            let has_both = |side, number| {
                line(seen, side, number).is_some_and(|line| value(line, "status") == "400")
            };
            matches!(seen.difference.place, DifferencePlace::Lines(a, b) if has_both(0, a) && has_both(1, b))
                && has_frames(seen)
                && variables.iter().any(is_one)
        },
    },
    Rule {
        name: "streams-reset-early",
        text: "How far a request has come whose stream, or connection, ends at once by a fault or by its client: whether a server behind was \
               asked, what the log has of it, and how much of the response was sent.",
        reason: Reason::Chance("it depends on how many frames are read at a time"),
        before: None,
        matches: |seen| {
            let is_reset = |event: &Event| match event {
                Event::Bytes(bytes) => String::from_utf8_lossy(bytes).contains("reset"),
                Event::Reset(_) | Event::GoAway(..) => true,
                _ => false,
            };
            // A `GOAWAY` of a stream ends the connection, too.
            let ends =
                |frame: Sent| frame.kind == RESET || frame.kind == GOAWAY && frame.stream != 0;
            let by_client = frames(seen).any(ends);
            let both = seen.sides.is_some_and(|[a, b]| {
                let mut pairs = a.events.iter().zip(&b.events);
                pairs.any(|(a, b)| is_reset(&a.1) && is_reset(&b.1))
            });
            if !has_frames(seen) || !(by_client || both) {
                return false;
            }
            let event =
                |side: usize, at: usize| seen.sides.and_then(|sides| sides[side].events.get(at));
            match seen.difference.place {
                // Or the last line before the connection ends, which not all of the response has left.
                DifferencePlace::Lines(of_nginx, own) => {
                    let is = |side, number, name, wanted: &str| {
                        line(seen, side, number).is_some_and(|line| value(line, name) == wanted)
                    };
                    is(1, own, "status", "499")
                        || is(0, of_nginx, "request_completion", "")
                        || is(1, own, "request_completion", "")
                }
                DifferencePlace::Event(at) if seen.is("bytes") => [0, 1]
                    .into_iter()
                    .all(|side| event(side, at).is_some_and(|event| is_reset(&event.1))),
                // The response of a stream of which both sides tell next that it was reset.
                DifferencePlace::Event(at)
                    if seen.is("event ") && seen.difference.class.ends_with(" missing") =>
                {
                    [0, 1]
                        .into_iter()
                        .all(|side| event(side, at + 1).is_some_and(|event| is_reset(&event.1)))
                }
                DifferencePlace::Behind(..) | DifferencePlace::Case => seen.is("behind"),
                DifferencePlace::Event(_) => false,
            }
        },
    },
    Rule {
        name: "content-other-than-announced",
        text: "Content of HTTP/2 that is not of the announced length is not passed on, not even its beginning where all of it is there; \
               nginx with `proxy_request_buffering off`, and for gRPC, asks the server behind before it looks.",
        reason: Reason::Rfc("RFC 9113, section 8.1.1: malformed requests are not forwarded"),
        before: None,
        matches: |seen| {
            let tells_length = frames(seen).any(|frame| {
                frame.kind == HEADERS
                    && crate::case::fill::find(&frame.payload, b"content-length").is_some()
            });
            let sends = frames(seen).any(|frame| frame.kind == DATA);
            let is_400 = |side: usize, number: usize| {
                line(seen, side, number).is_some_and(|line| value(line, "status") == "400")
            };
            let is_there = match seen.difference.place {
                DifferencePlace::Lines(a, b) => is_400(0, a) && is_400(1, b) && seen.is("log: $"),
                DifferencePlace::Case => seen.is("behind ") && seen.difference.weir.is_empty(),
                DifferencePlace::Event(_) | DifferencePlace::Behind(..) => false,
            };
            tells_length && sends && is_there
        },
    },
    Rule {
        name: "ends-of-streams-to-grpc",
        text: "Whether a gRPC request without content ends with its header block, or with an empty frame behind it.",
        reason: Reason::Chance("both are the same message (RFC 9113, section 8.1)"),
        before: None,
        matches: |seen| {
            let framings = ["behind: framing frames none", "behind: framing none frames"];
            seen.has("grpc_pass") && framings.iter().any(|class| seen.is(class))
        },
    },
    Rule {
        name: "pages-of-413-in-http2",
        text: "`error_page 413` has its effect in HTTP/2 as in HTTP/1; nginx judges the length again for the page, and sends its own.",
        reason: Reason::Rfc("RFC 9113, section 8: the meaning is that of other versions"),
        before: None,
        matches: |seen| {
            let has_http2 = seen
                .case
                .talk
                .iter()
                .any(|step| matches!(step, Step::Http2 { .. }));
            let lines = matches!(seen.difference.place, DifferencePlace::Lines(a, _)
                if line(seen, 0, a).is_some_and(|line| value(line, "status") == "413"));
            has_http2
                && seen.has("error_page")
                && (seen.is("status 413 ") || (lines && seen.is("log: $")))
        },
    },
    Rule {
        name: "files-of-unannounced-content",
        text: "Content of HTTP/2 of no announced length stays in memory as long as it fits into `client_body_buffer_size`, also where it \
               comes in several frames; nginx then writes a file.",
        reason: Reason::Chance(
            "it depends on how many frames there are, which a client need not know",
        ),
        before: None,
        matches: |seen| {
            let variables = ["log: $request_body_file", "log: $request_body"];
            variables
                .iter()
                .any(|class| seen.difference.class == *class)
                && frames(seen).filter(|frame| frame.kind == DATA).count() > 1
        },
    },
];

/// A frame that the case sends by itself.
struct Sent {
    step: usize,
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

fn frames(seen: &Seen<'_>) -> impl Iterator<Item = Sent> {
    let steps = seen.case.talk.iter().enumerate();
    steps.filter_map(|(step, sent)| match sent {
        Step::Frame {
            kind,
            flags,
            stream,
            payload,
            ..
        } => Some(Sent {
            step,
            kind: *kind,
            flags: *flags,
            stream: *stream,
            payload: payload.bytes(),
        }),
        _ => None,
    })
}

fn has_frames(seen: &Seen<'_>) -> bool {
    frames(seen).next().is_some()
}

/// True when both sides, or Weir alone, answered a request with 400.
fn has_malformed(seen: &Seen<'_>) -> bool {
    seen.sides.is_some_and(|[_, weir]| {
        let mut events = weir.events.iter();
        events
            .any(|(_, event)| matches!(event, Event::Response(response) if response.status == 400))
    })
}

/// The event by which nginx ended a connection that Weir kept.
fn ended_by_nginx_alone(seen: &Seen<'_>) -> Option<usize> {
    let [oracle, weir] = seen.sides?;
    let mut pairs = oracle.events.iter().zip(&weir.events);
    pairs.position(|(a, b)| {
        let is_fault = |event: &Event| matches!(event, Event::GoAway(_, code) if *code != 0);
        is_fault(&a.1) && !is_fault(&b.1)
    })
}

/// True when a difference is at an event, or behind it on the same connection, or in the logs.
fn is_after(seen: &Seen<'_>, at: usize) -> bool {
    let Some([oracle, _]) = seen.sides else {
        return false;
    };
    match seen.difference.place {
        DifferencePlace::Event(own) => own >= at && oracle.events[own].0 == oracle.events[at].0,
        DifferencePlace::Lines(..) | DifferencePlace::Case => seen.is("log: "),
        DifferencePlace::Behind(..) => false,
    }
}
