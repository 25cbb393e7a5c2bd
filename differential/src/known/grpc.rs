//! Choices where a body is passed on as it comes, as with gRPC: what is said of its length, and when it is complete.

use super::evidence::{
    any_events, any_pair, is_of_traffic, logged_with, said, sends_chunks, stores,
};
use super::exchange::value;
use super::following::{Exchange, follows_in_order, is_own};
use super::{Reason, Rule, Seen};
use crate::case::{Act, Body, Protocol, Step};
use crate::compare::DifferencePlace;
use crate::side::client::Event;
use crate::side::reply::Response;

/// In the order of `docs/compat.md`.
pub(super) const GRPC: &[Rule] = &[
    Rule {
        name: "complete-grpc-responses",
        text: "A gRPC response whose stream has ended is complete, even if its server closes the connection at once; nginx \
               aborts it.",
        reason: Reason::Rfc("RFC 9113, section 8.1: the flag END_STREAM ends a response"),
        before: None,
        matches: |seen| {
            let is_aborted = |a: &Event, b: &Event| match (a, b) {
                (Event::Reset(_), _) => !matches!(b, Event::Reset(_)),
                (Event::Response(a), Event::Response(b)) => a.cut && !b.cut,
                _ => false,
            };
            // Where there is no content, only the log tells of the abortion.
            let is_told = seen.is("log: $sent_http_connection")
                && (
                    seen.difference.oracle.as_str(),
                    seen.difference.weir.as_str(),
                ) == ("close", "keep-alive");
            seen.has("grpc_pass")
                && closes_behind_an_end(seen)
                && tells_of_client(seen)
                && (is_told || any_events(seen, is_aborted))
        },
    },
    Rule {
        name: "requests-that-were-not-processed",
        text: "A gRPC request that its server has not begun, as `REFUSED_STREAM` or the last stream of its `GOAWAY` say, goes to the next \
               server, whatever its method; nginx answers 502.",
        reason: Reason::Rfc("RFC 9113, section 8.7"),
        before: None,
        matches: |seen| {
            let says_so =
                |text: &str| text.starts_with("RST_STREAM 7") || text.starts_with("GOAWAY 0");
            seen.has("grpc_pass")
                && said(seen, says_so)
                && follows_in_order(seen, |exchange| {
                    let count = |side: usize| {
                        value(exchange.lines[side], "upstream_status")
                            .split(", ")
                            .count()
                    };
                    exchange.logged("upstream_status").contains("502") && count(1) > count(0)
                })
        },
    },
    Rule {
        name: "priority-frames-of-upstreams",
        text: "A `PRIORITY` frame of a gRPC server is ignored; nginx aborts the response.",
        reason: Reason::Rfc("RFC 9113, sections 5.3.2 and 6.3"),
        before: None,
        matches: |seen| {
            let is_aborted = |a: &Event, b: &Event| match (a, b) {
                (Event::Reset(_), b) => !matches!(b, Event::Reset(_)),
                (Event::Response(a), Event::Response(b)) => {
                    (a.cut && !b.cut) || (a.status == 502 && b.status != 502)
                }
                _ => false,
            };
            seen.has("grpc_pass")
                && said(seen, |text| text.starts_with("RAW\n\0\0\u{5}\u{2}"))
                && tells_of_client(seen)
                && any_events(seen, is_aborted)
        },
    },
    Rule {
        name: "lengths-of-head-responses-of-grpc",
        text: "A response to HEAD that ends with its header has no `Content-Length`, which would be that of a GET; nginx sends 0.",
        reason: Reason::Rfc("RFC 9110, section 8.6"),
        before: None,
        matches: |seen| {
            let classes = [
                "field Content-Length missing",
                "log: $sent_http_content_length",
            ];
            let words = (
                seen.difference.oracle.as_str(),
                seen.difference.weir.as_str(),
            );
            seen.has("grpc_pass")
                && classes.iter().any(|class| seen.is(class))
                && words == ("0", "")
                && is_own(seen, |exchange| exchange.request.method == "HEAD")
        },
    },
    Rule {
        name: "length-of-streamed-bodies",
        text: "A chunked body that is passed on as it comes has no length for the upstream; nginx sends one if all of it \
               arrived together with its header.",
        reason: Reason::Chance("the kernel splits the bytes"),
        before: None,
        matches: |seen| {
            let lengths = ["content-length", "content_length"];
            let class = seen.difference.class.to_ascii_lowercase();
            let is_length = lengths
                .iter()
                .any(|name| class.starts_with(&format!("behind: field {name}")))
                && seen.difference.weir.is_empty();
            let is_framing = class == "behind: framing length chunked"
                || class == "behind: field transfer-encoding added";
            (is_length || is_framing) && sends_chunks(seen) && streams(seen)
        },
    },
    Rule {
        name: "streamed-bodies-in-the-log",
        text: "What `$content_length`, `$request_body` and `$request_length` have of a body without a length that is passed on as it comes.",
        reason: Reason::Chance("it depends on how much has arrived with the header"),
        before: None,
        matches: |seen| {
            let variables = ["log: $content_length", "log: $request_body"];
            let is_one = variables
                .iter()
                .any(|class| seen.difference.class == *class);
            let difference = seen.difference;
            // How much of it had been read when the response was complete.
            let is_length = difference.class == "log: $request_length"
                && is_own(seen, |exchange| exchange.request.body != Body::None);
            let is_empty = difference.oracle.is_empty() || difference.weir.is_empty();
            streams(seen) && (is_length || is_one && is_empty)
        },
    },
    Rule {
        name: "trailers-of-streamed-bodies",
        text: "The trailers of a request are passed on with a body that is passed on as it comes; nginx drops them.",
        reason: Reason::Rfc("RFC 9110, section 6.5.2: an intermediary may forward trailers"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let more = weir.strip_prefix(oracle.as_str()).unwrap_or("");
            seen.is("behind: body")
                && streams(seen)
                && (more.to_ascii_lowercase().starts_with("x-trailer")
                    || weir.to_ascii_lowercase().contains("x-trailer: "))
        },
    },
    Rule {
        name: "connection-fields-in-trailers",
        text: "`Connection` and other fields of a connection are not passed on as trailers.",
        reason: Reason::Rfc("RFC 9110, section 6.5.1"),
        before: None,
        matches: |seen| {
            let names = ["trailer Connection missing", "trailer connection missing"];
            names.iter().any(|class| seen.is(class))
        },
    },
    Rule {
        name: "type-of-204",
        text: "A 204 has the `Content-Type` that its origin sent; nginx removes it over HTTP/2, and from a response of gRPC.",
        reason: Reason::Rfc("RFC 9110, section 15.3.5: its metadata is that of the target"),
        before: None,
        matches: |seen| {
            let classes = ["field Content-Type added", "log: $sent_http_content_type"];
            let also = ["field Last-Modified added", "log: $sent_http_last_modified"];
            classes.iter().chain(&also).any(|class| seen.is(class))
                && seen.difference.oracle.is_empty()
                && any_pair(seen, |a, b| a.status == 204 && b.status == 204)
        },
    },
    Rule {
        name: "frames-of-an-exchange",
        text: "How many bytes of frames an HTTP/2 upstream sent before its response was complete.",
        reason: Reason::Chance("a frame that acknowledges something may come before or after"),
        before: None,
        matches: |seen| {
            // The frames behind the header count as the response's length.
            let classes = [
                "log: $upstream_bytes_received",
                "log: $upstream_response_length",
            ];
            // How many servers were asked is no matter of frames.
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let tries = |text: &str| text.split(", ").count();
            seen.has("grpc_pass")
                && classes.contains(&seen.difference.class.as_str())
                && tries(oracle) == tries(weir)
        },
    },
    Rule {
        name: "connections-of-http2-upstreams",
        text: "An HTTP/2 connection to an upstream stays open after a response that is complete; nginx closes it after some of \
               them, such as one without content.",
        reason: Reason::Rfc("RFC 9113, section 9.1: connections are persistent"),
        before: None,
        matches: |seen| seen.has("grpc_pass") && seen.is("behind: fresh true false"),
    },
    Rule {
        name: "paths-of-http2-requests-in-the-log",
        text: "The error log has the path that a server was asked for over HTTP/2, as over HTTP/1; nginx has its address alone.",
        reason: Reason::Safety("a log without it misleads who looks for a fault"),
        before: None,
        matches: |seen| {
            let parts = |line: &str| {
                let (before, rest) = line.split_once("upstream: \"")?;
                let (address, after) = rest.split_once('"')?;
                Some((before.to_owned(), address.to_owned(), after.to_owned()))
            };
            let (oracle, weir) = (parts(&seen.difference.oracle), parts(&seen.difference.weir));
            speaks_http2(seen)
                && seen.is("error log: parts of ")
                && oracle.zip(weir).is_some_and(|(a, b)| {
                    let path = b.1.strip_prefix(a.1.as_str()).unwrap_or_default();
                    // A long line is shown to its beginning.
                    let is_same = a.0 == b.0 && a.2.starts_with(&b.2);
                    is_same && path.starts_with('/')
                })
        },
    },
    Rule {
        name: "spelling-of-names",
        text: "Upper and lower case of the name of a field from an HTTP/2 upstream.",
        reason: Reason::Rfc("RFC 9110, section 5.1: names are not case-sensitive"),
        before: None,
        matches: |seen| {
            let class = seen.difference.class.strip_prefix("field ").unwrap_or("");
            let name = class
                .trim_end_matches(" added")
                .trim_end_matches(" missing");
            let of = |response: &crate::side::reply::Response| {
                let fields = response.fields.iter();
                let mut fields = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
                fields.next().cloned()
            };
            speaks_http2(seen)
                && any_pair(seen, |a, b| match (of(a), of(b)) {
                    (Some(a), Some(b)) => a.0 != b.0 && a.1 == b.1,
                    _ => false,
                })
        },
    },
    Rule {
        name: "connections-of-http10-origins",
        text: "An HTTP/1.0 response with `Connection: keep-alive` leaves the upstream connection open for the next request; \
               nginx closes it.",
        reason: Reason::Rfc("RFC 9112, section 9.3"),
        before: None,
        matches: |seen| {
            seen.is("behind: fresh true false")
                && said(seen, |text| {
                    text.starts_with("HTTP/1.0 ") && text.contains("\r\nConnection: keep-alive")
                })
        },
    },
    Rule {
        name: "ranges-of-responses-that-are-not-stored",
        text: "A response that a cache does not store has no `Accept-Ranges`, since ranges of it are not served; nginx passes \
               on the origin's.",
        reason: Reason::Rfc("RFC 9110, section 14.3"),
        before: None,
        matches: |seen| {
            stores(seen)
                && seen.is("field Accept-Ranges missing")
                && said(seen, |text| text.contains("Accept-Ranges: bytes"))
        },
    },
    Rule {
        name: "bytes-of-head-responses",
        text: "`$body_bytes_sent` of a response to HEAD is 0; nginx counts the field `Transfer-Encoding` as content.",
        reason: Reason::Rfc("RFC 9110, section 9.3.2: a response to HEAD has no content"),
        before: None,
        matches: |seen| {
            seen.is("log: $body_bytes_sent")
                && seen.difference.weir == "0"
                && logged_with(seen, "body_bytes_sent", &seen.difference.oracle, |of| {
                    of("request").starts_with("HEAD ")
                })
        },
    },
    Rule {
        name: "ratio-of-incomplete-responses",
        text: "An incomplete compressed response has no `$gzip_ratio`.",
        reason: Reason::Chance("how much of it was compressed is no promise"),
        before: None,
        matches: |seen| {
            seen.is("log: $gzip_ratio")
                && seen.difference.weir.is_empty()
                && (any_pair(seen, |_, b| b.cut)
                    || logged_with(seen, "gzip_ratio", &seen.difference.oracle, |of| {
                        of("request_completion").is_empty()
                    }))
        },
    },
    Rule {
        name: "trailers-of-grpc-responses-with-a-length",
        text: "The trailers of a gRPC response with a `Content-Length` are passed on, so that the client learns of the call's \
               outcome; nginx drops them.",
        reason: Reason::Rfc("RFC 9113, section 8.1: trailers are part of a response"),
        before: None,
        matches: |seen| {
            let classes = [
                "trailer ",
                "framing Empty Stream",
                "framing Length Chunked",
                "field Content-Length missing",
                "field Transfer-Encoding added",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
                "log: $sent_http_transfer_encoding",
            ];
            seen.has("grpc_pass")
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    a.field("Content-Length").is_some()
                        && (a.status, &a.body) == (b.status, &b.body)
                        && (b.trailers.len() > a.trailers.len() || b.framing != a.framing)
                })
        },
    },
    Rule {
        name: "interim-responses-of-grpc",
        text: "`$upstream_status` is the status of the final response of a gRPC server; nginx keeps that of an interim one, and \
               answers 502 if the final one has no content. One behind the final response aborts that.",
        reason: Reason::Rfc(
            "RFC 9113, section 8.1: any number of interim responses, then the final one",
        ),
        before: None,
        matches: |seen| {
            let classes = ["log: $upstream_status", "field X-S", "trailer X-T"];
            let is_reset = |a: &Event, b: &Event| {
                matches!(
                    (a, b),
                    (Event::Response(_), Event::Reset(_)) | (Event::Nothing, Event::Response(_))
                )
            };
            let is_status = classes.iter().any(|class| seen.is(class))
                && seen.difference.oracle.ends_with("103");
            let is_refused =
                tells_of_client(seen) && any_pair(seen, |a, b| a.status == 502 && b.status != 502);
            // A server that is taken for a failed one is not asked the next time.
            let is_followed = || {
                follows_in_order(seen, |exchange| {
                    let last = |side: usize| {
                        let all = value(exchange.lines[side], "upstream_status");
                        all.rsplit(", ").next().unwrap_or_default().to_owned()
                    };
                    last(0) == "502" && last(1) != "502"
                })
            };
            let is_reset = seen.is("event ") && any_events(seen, is_reset);
            seen.has("grpc_pass")
                && (is_status || is_refused || is_reset || is_followed())
                && said(seen, |text| text.contains(":status: 103"))
        },
    },
    Rule {
        name: "retries-of-streamed-bodies",
        text: "Whether a request whose body is passed on as it comes goes to another server: it does if all of the body had come when it \
               was begun.",
        reason: Reason::Chance("it depends on how much has arrived with the header"),
        before: None,
        matches: |seen| {
            let tries = |exchange: &Exchange<'_>, side: usize| {
                let line = exchange.lines[side];
                value(line, "upstream_status").split(", ").count()
            };
            streams(seen)
                && seen.has_ending("_next_upstream")
                && follows_in_order(seen, |exchange| {
                    exchange.request.body != Body::None && tries(exchange, 1) > tries(exchange, 0)
                })
        },
    },
    Rule {
        name: "control-frames-before-responses",
        text: "Frames of an HTTP/2 server that are not part of its response do not count in `grpc_buffer_size`; nginx answers 502 where \
               those in front of it fill the buffer, such as a `WINDOW_UPDATE` for each piece of a request body.",
        reason: Reason::Rfc("RFC 9113, section 5.1: frames of any type may come on an open stream"),
        before: None,
        matches: |seen| {
            seen.has("grpc_pass")
                && tells_of_client(seen)
                && is_own(seen, |exchange| {
                    let of = |side: usize, name: &str| {
                        let all = value(exchange.lines[side], name);
                        all.rsplit(", ").next().unwrap_or_default().to_owned()
                    };
                    // The buffer has been filled to its end.
                    let bytes = of(0, "upstream_bytes_received").parse().unwrap_or(0);
                    exchange.request.body != Body::None
                        && of(0, "upstream_status") == "502"
                        && of(1, "upstream_status") != "502"
                        && [512, 4096].contains(&bytes)
                })
        },
    },
    Rule {
        name: "streams-at-second-servers",
        text: "A gRPC request that goes to another server has the number of a stream of the connection there; nginx keeps that of the \
               first one, and answers 502 to its own mistake.",
        reason: Reason::Rfc("RFC 9113, section 5.1.1"),
        before: None,
        matches: |seen| {
            seen.has("grpc_pass")
                && tells_of_client(seen)
                && is_own(seen, |exchange| {
                    let [oracle, weir] = exchange.lines.map(|line| {
                        value(line, "upstream_status")
                            .split(", ")
                            .collect::<Vec<_>>()
                    });
                    oracle.len() > 1
                        && oracle.len() == weir.len()
                        && oracle.last() == Some(&"502")
                        && weir.last() != Some(&"502")
                })
        },
    },
    Rule {
        name: "connection-in-http2",
        text: "`$sent_http_connection` of a response over HTTP/2, which has no such field.",
        reason: Reason::Rfc("RFC 9113, section 8.2.2"),
        before: None,
        matches: |seen| {
            seen.is("log: $sent_http_connection")
                && is_own(seen, |exchange| {
                    exchange
                        .lines
                        .iter()
                        .all(|line| value(line, "request").ends_with("HTTP/2.0"))
                })
        },
    },
    Rule {
        name: "connections-behind-unread-bodies",
        text: "A connection stays open if a response says so and the rest of the request's body can be read; nginx closes it where the body \
               was passed on as it came and was not read to its end.",
        reason: Reason::Rfc("RFC 9112, section 9.6: a server that closes says so"),
        before: None,
        matches: |seen| {
            let sends_one = seen.case.talk.iter().any(
                |step| matches!(step, Step::Request { request, .. } if request.body != Body::None),
            );
            streams(seen)
                && sends_one
                && seen.is("event closed kept")
                && any_pair(seen, |a, b| {
                    let is_kept = |one: &Response| one.field("Connection") == Some("keep-alive");
                    a.status == b.status && is_kept(a) && is_kept(b)
                })
        },
    },
    Rule {
        name: "grpc-bodies-that-are-too-large",
        text: "Whether a gRPC server has been asked when a body without a length turns out to be larger than `client_max_body_size`.",
        reason: Reason::Chance("it depends on how much has arrived with the header"),
        before: None,
        matches: |seen| {
            let classes = [
                "log: $upstream_",
                "log: $request_length",
                "behind",
                "log: $request_completion",
            ];
            let is_one = |exchange: &Exchange<'_>| {
                exchange.logged("status") == "413"
                    && exchange.request.body != Body::None
                    && exchange
                        .lines
                        .iter()
                        .all(|line| ["", "413"].contains(&value(line, "upstream_status")))
            };
            seen.has("client_max_body_size")
                && (seen.has("grpc_pass") || streams(seen))
                && ((classes.iter().any(|class| seen.is(class)) && is_own(seen, is_one))
                    || follows_in_order(seen, is_one))
        },
    },
    Rule {
        name: "headers-of-rejected-grpc-responses",
        text: "`$upstream_http_…` of a gRPC response without `:status` shows what came before it was rejected.",
        reason: Reason::Chance("where the reading of an invalid header ends"),
        before: None,
        matches: |seen| {
            seen.has("grpc_pass")
                && seen.is("log: $upstream_http_")
                && seen.difference.oracle.is_empty()
                && is_own(seen, |exchange| {
                    exchange.logged("upstream_status").contains("502")
                })
        },
    },
    Rule {
        name: "fields-that-were-not-sent",
        text: "`$sent_http_…` is empty for a field that was removed before the response was sent; nginx logs it.",
        reason: Reason::Safety(
            "a log that names what no client got misleads the search for a fault",
        ),
        before: None,
        matches: |seen| {
            let name = seen.difference.class.strip_prefix("log: $sent_http_");
            name.is_some_and(|name| {
                seen.difference.weir.is_empty() && logged_more_than_sent(seen, name)
            })
        },
    },
];

/// True when a difference is one of what a client got, or of what the access log tells of it: of an exchange, whose events and
/// lines are known.
fn tells_of_client(seen: &Seen<'_>) -> bool {
    is_of_traffic(seen)
        && !matches!(
            seen.difference.place,
            DifferencePlace::Case | DifferencePlace::Behind(..)
        )
}

/// True when a server behind speaks HTTP/2, for `grpc_pass` or for `proxy_http_version 2`.
fn speaks_http2(seen: &Seen<'_>) -> bool {
    let mut all = seen.case.upstreams.iter();
    all.any(|upstream| upstream.protocol == Protocol::Grpc)
}

/// True when a body goes to the upstream as it comes.
fn streams(seen: &Seen<'_>) -> bool {
    seen.has("grpc_pass") || seen.has_ending("_request_buffering")
}

/// True when a gRPC server of the case closes its connection behind an answer that has ended.
fn closes_behind_an_end(seen: &Seen<'_>) -> bool {
    let servers = seen.case.upstreams.iter();
    let mut servers = servers.filter(|upstream| upstream.protocol == Protocol::Grpc);
    let is_end = |act: &Act| match act {
        Act::Send(content) => String::from_utf8_lossy(&content.bytes()).contains(" end"),
        _ => false,
    };
    servers.any(|upstream| {
        let mut answers = upstream.answers.iter();
        answers.any(|acts| {
            acts.iter().any(is_end)
                && acts
                    .iter()
                    .any(|act| matches!(act, Act::Close | Act::Reset))
        })
    })
}

/// True when nginx's log has a value of a field more often than a client of it was sent that.
fn logged_more_than_sent(seen: &Seen<'_>, variable: &str) -> bool {
    let Some([oracle, _]) = seen.sides else {
        return false;
    };
    let value = &seen.difference.oracle;
    let logged = oracle.log.iter().flatten().filter(|(name, logged)| {
        name.strip_prefix("sent_http_") == Some(variable) && logged == value
    });
    // The log escapes quotes.
    let plain = value.replace("\\x22", "\"");
    let name = variable.replace('_', "-");
    let sent = oracle.events.iter().filter(|(_, event)| match event {
        Event::Response(response) => response
            .fields
            .iter()
            .any(|(field, sent)| field.eq_ignore_ascii_case(&name) && *sent == plain),
        _ => false,
    });
    let reads = seen.case.talk.iter();
    let read = reads
        .filter(|step| matches!(step, Step::Read { .. }))
        .count();
    // What was not read is not known.
    read >= oracle.log.len() && logged.count() > sent.count()
}
