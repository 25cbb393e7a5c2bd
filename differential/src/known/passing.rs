//! Choices of what is passed on: answers that are none, interim ones, content that nobody wants.

use super::evidence::{
    answers, any_events, any_of_case, any_pair, has_page_for, is_of_line, is_of_traffic, logged,
    logged_with, said, sends_chunks, stores,
};
use super::exchange::{asked_at, requests};
use super::following::follows_in_order;
use super::{Reason, Rule, Seen};
use crate::case::Body;
use crate::side::client::Event;
use crate::side::reply::{Framing, Response};

/// In the order of `docs/compat.md`.
pub(super) const PASSING: &[Rule] = &[
    Rule {
        name: "interim-responses",
        text: "An interim response of an upstream server is forwarded or dropped, and the final one is awaited; nginx takes \
               a 100 or 103 for the final one, and what follows for its body.",
        reason: Reason::Rfc("RFC 9110, section 15.2"),
        before: None,
        matches: |seen| {
            let is_interim = |text: &str| {
                let mut words = text.split([',', ':', ' ']);
                words.any(|word| word == "100" || word == "103")
            };
            (is_of_traffic(seen) || seen.is("files"))
                && answers(seen, |text| text.starts_with("HTTP/1.1 10"))
                && logged(seen, |name, value| {
                    name == "upstream_status" && is_interim(value)
                })
        },
    },
    Rule {
        name: "unrequested-101",
        text: "A 101 that was not requested becomes a 502; nginx forwards it and becomes a tunnel.",
        reason: Reason::Rfc(
            "RFC 9110, section 7.8: a server switches only to a protocol that was requested",
        ),
        before: None,
        matches: |seen| {
            is_of_traffic(seen)
                && answers(seen, |text| text.starts_with("HTTP/1.1 101"))
                && (logged(seen, is_101) || is_of_line(seen) && was_silent(seen))
        },
    },
    Rule {
        name: "responses-without-a-status-line",
        text: "What does not begin as an HTTP/1 response becomes a 502; nginx forwards it unchanged, as the response of an \
               HTTP/0.9 server.",
        reason: Reason::Rfc("RFC 9110, section 15.6.3: an invalid response is a 502"),
        before: None,
        matches: |seen| {
            let has_status = |text: &str| {
                let rest = text
                    .strip_prefix("HTTP/1.1 ")
                    .or(text.strip_prefix("HTTP/1.0 "));
                rest.is_some_and(|rest| rest.bytes().take_while(u8::is_ascii_digit).count() == 3)
            };
            // What stands there is bytes for the client, not a response.
            let is_raw = |event: &Event| match event {
                Event::Silent(bytes) | Event::Bytes(bytes) => {
                    !has_status(&String::from_utf8_lossy(bytes))
                }
                Event::Broken(..) => true,
                Event::Response(response) => response.status == 9,
                _ => false,
            };
            let is_one = |a: &Event, b: &Event| match (a, b) {
                // To HEAD there is nothing to forward.
                (Event::Closed, Event::Response(b)) => b.status >= 500,
                (a, _) => is_raw(a),
            };
            let is_logged = |name: &str, value: &str| name == "status" && value == "009";
            is_of_traffic(seen)
                && answers(seen, |text| !text.is_empty() && !has_status(text))
                && (any_events(seen, is_one) || is_of_line(seen) && logged(seen, is_logged))
        },
    },
    Rule {
        name: "servers-without-a-status-line",
        text: "A server whose response does not begin as one of HTTP/1 has failed, so that the next request may go to another one; \
               see `responses-without-a-status-line`.",
        reason: Reason::Rfc("RFC 9110, section 15.6.3: an invalid response is a 502"),
        before: None,
        matches: |seen| {
            seen.has("upstream")
                && follows_in_order(seen, |exchange| exchange.logged("status") == "009")
        },
    },
    Rule {
        name: "what-was-being-done",
        text: "Whether the error log has `while reading response header from upstream`, `while reading upstream` or `while sending to client`.",
        reason: Reason::Chance("it depends on what one read brings"),
        before: None,
        matches: |seen| {
            let without = |line: &str| {
                [
                    " while reading response header from upstream",
                    " while reading upstream",
                    " while sending to client",
                ]
                .iter()
                .fold(line.to_owned(), |line, doing| line.replace(doing, ""))
            };
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            seen.is("error log: parts of ") && without(oracle) == without(weir)
        },
    },
    Rule {
        name: "sizes-of-chunked-bodies",
        text: "How much of a chunked body had come when it was found to be too large, in the error log.",
        reason: Reason::Chance("how content is divided has no meaning (RFC 9112, section 7.1)"),
        before: None,
        matches: |seen| {
            let words = "client intended to send too large chunked body: ";
            let rest = |line: &str| line.replace(|byte: char| byte.is_ascii_digit(), "");
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            seen.is("error log: ")
                && oracle.contains(words)
                && rest(oracle) == rest(weir)
                && sends_chunks(seen)
        },
    },
    Rule {
        name: "partial-interrupted-responses",
        text: "How much of an interrupted response has been sent: its header and part of the body, or nothing.",
        reason: Reason::Chance("an aborted response may end anywhere"),
        before: None,
        matches: |seen| {
            // Without a length its end is that of the connection.
            let ends = |b: &Response| b.cut || (b.framing == Framing::Close && b.body.is_empty());
            let is_one = |a: &Event, b: &Event| matches!((a, b), (Event::Closed, Event::Response(b)) if ends(b));
            let follows = [
                "log: $body_bytes_sent",
                "log: $request_completion",
                "log: $sent_http_",
                "event kept closed",
                "event closed ",
            ];
            let both_cut =
                seen.is("log: $body_bytes_sent") && any_pair(seen, |a, b| a.cut && b.cut);
            both_cut || (follows.iter().any(|class| seen.is(class)) && any_events(seen, is_one))
        },
    },
    Rule {
        name: "chunk-sizes",
        text: "How a body is divided into chunks, and so how many bytes frame it.",
        reason: Reason::Chance("a chunk's size has no meaning (RFC 9112, section 7.1)"),
        before: None,
        matches: |seen| {
            let sent =
                [&seen.difference.oracle, &seen.difference.weir].map(|text| text.parse().ok());
            seen.is("log: $body_bytes_sent")
                && any_pair(seen, |a, b| {
                    let both = a.framing == Framing::Chunked && b.framing == Framing::Chunked;
                    // What frames it comes in addition.
                    let is_more =
                        |sent: Option<usize>| sent.is_some_and(|sent| sent > a.body.len());
                    let is_same = a.status == b.status && a.body == b.body && !a.body.is_empty();
                    both && is_same && sent.into_iter().all(is_more)
                })
        },
    },
    Rule {
        name: "no-reason",
        text: "A status line without a reason gets the standard one; nginx's lacks even the mandatory space.",
        reason: Reason::Rfc("RFC 9112, section 4"),
        before: None,
        matches: |seen| {
            let oracle = &seen.difference.oracle;
            seen.is("status line")
                && !oracle.trim_end().bytes().skip(9).any(|byte| byte == b' ')
                && seen.difference.weir.starts_with(oracle.as_str())
        },
    },
    Rule {
        name: "no-length-of-204",
        text: "A 204 or 304 has no `Content-Length`; nginx forwards that of an origin.",
        reason: Reason::Rfc("RFC 9110, sections 8.6 and 15.4.5"),
        before: None,
        matches: |seen| {
            (seen.is("field Content-Length missing") || seen.is("log: $sent_http_content_length"))
                && seen.difference.weir.is_empty()
                && any_pair(seen, |a, b| {
                    [204, 304].contains(&a.status)
                        && a.status == b.status
                        && a.field("Content-Length") == Some(seen.difference.oracle.as_str())
                })
        },
    },
    Rule {
        name: "ranges-of-another-resource",
        text: "The `Accept-Ranges` of a response with `X-Accel-Redirect` is not applied to the file that it names; nginx \
               keeps it, and adds that of the file.",
        reason: Reason::Rfc("RFC 9110, section 14.3: it describes the target resource"),
        before: None,
        matches: |seen| {
            seen.is("field Accept-Ranges")
                && seen.difference.oracle.starts_with("bytes")
                && said(seen, |text| text.contains("X-Accel-Redirect: "))
        },
    },
    Rule {
        name: "reads-of-unused-bodies",
        text: "How much is read of a body that is not used: that of a response to HEAD, of one that an error page or a \
               redirect replaces, of one that may not have a body, or of one that is aborted; and what follows the body, also in \
               FastCGI.",
        reason: Reason::Chance("the kernel splits the bytes"),
        before: None,
        matches: |seen| {
            let variable = seen.difference.class.strip_prefix("log: $").unwrap_or("");
            // Behind the end that its length tells.
            let is_longer = said(seen, |text| text.contains("Content-Length: 6\r\n"));
            // Only what comes with the header is seen to be too much.
            let is_told = seen
                .is("error log: missing [warn] upstream sent more data than specified")
                && said(seen, |text| {
                    text.starts_with("Status: 204") || text.starts_with("Status: 304")
                });
            is_told
                || ["upstream_bytes_received", "upstream_response_length"].contains(&variable)
                    && logged_with(seen, variable, &seen.difference.oracle, |of| {
                        let first = of("upstream_status");
                        let last = first
                            .rsplit([',', ':', ' '])
                            .next()
                            .unwrap_or("")
                            .to_owned();
                        seen.has("fastcgi_pass")
                            || of("request_method") == "HEAD"
                            || of("request").starts_with("HEAD ")
                            || last != of("status")
                            || ["204", "304"].contains(&last.as_str())
                            || is_longer
                            || said(seen, |text| text.contains("X-Accel-Redirect: "))
                            || first.contains("502")
                            || of("request_completion").is_empty()
                            || first.contains(',')
                    })
        },
    },
    Rule {
        name: "bodies-behind-error-pages",
        text: "If a response that an error page replaces is stored, it is read, and appears in variables; nginx stores only \
               its status.",
        reason: Reason::Rfc("RFC 9111, section 3: it is the response that is stored"),
        before: None,
        matches: |seen| {
            let classes = [
                "log: $upstream_response_length",
                "log: $upstream_bytes_received",
                "log: $upstream_http_",
            ];
            classes.iter().any(|class| seen.is(class))
                && stores(seen)
                && seen.has_ending("_intercept_errors")
        },
    },
    Rule {
        name: "empty-gzip-responses",
        text: "An empty response with `Content-Encoding: gzip` stays empty with `gunzip`; nginx aborts it.",
        reason: Reason::Rfc("RFC 9112, section 8: a complete message is not aborted"),
        before: None,
        matches: |seen| {
            let classes = [
                "cut true false",
                "event closed ",
                "log: $body_bytes_sent",
                "log: $request_completion",
                "log: $sent_http_connection",
            ];
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Response(a), Event::Response(b)) => a.cut && !b.cut && b.body.is_empty(),
                (Event::Closed, Event::Response(b)) => !b.cut && b.body.is_empty(),
                _ => false,
            };
            seen.has("gunzip")
                && said(seen, |text| text.contains("Content-Encoding: gzip"))
                && classes.iter().any(|class| seen.is(class))
                && any_events(seen, is_one)
        },
    },
    Rule {
        name: "ranges-of-known-lengths",
        text: "With `fastcgi_force_ranges` and its equivalents, ranges are also served from a response of undeclared \
               length, once all of it has arrived.",
        reason: Reason::Rfc("RFC 9110, section 14.2"),
        before: None,
        matches: |seen| {
            seen.has_ending("_force_ranges")
                && (seen.is("status 200 ")
                    || seen.is("log: $")
                    || seen.is("field Accept-Ranges added"))
                && any_pair(seen, |a, b| {
                    a.status == 200
                        && [206, 416].contains(&b.status)
                        && a.field("Content-Length").is_none()
                })
        },
    },
    Rule {
        name: "temporary-file-numbers",
        text: "The numbers of temporary files.",
        reason: Reason::Chance("they only have to differ from each other"),
        before: None,
        matches: |seen| {
            let stem = |text: &str| {
                text.trim_end_matches(|c: char| c.is_ascii_digit())
                    .to_owned()
            };
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            seen.is("log: $request_body_file") && !oracle.is_empty() && stem(oracle) == stem(weir)
        },
    },
    Rule {
        name: "multipart-boundaries",
        text: "The boundary between the parts of a multi-range response.",
        reason: Reason::Chance("it only has to be absent from the content"),
        before: None,
        matches: |seen| {
            let plain = |text: &str| {
                let mut out = String::new();
                for c in text.chars() {
                    match c {
                        '0'..='9' if out.ends_with('#') => {}
                        '0'..='9' => out.push('#'),
                        c => out.push(c),
                    }
                }
                out
            };
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let class = seen.is("body") || seen.is("log: $sent_http_content_type");
            class
                && plain(oracle) == plain(weir)
                && any_pair(seen, |a, _| {
                    let kind = a.field("Content-Type").unwrap_or_default();
                    kind.starts_with("multipart/byteranges")
                })
        },
    },
    Rule {
        name: "headers-of-invalid-responses",
        text: "Headers of an upstream response whose header is invalid do not appear in `$upstream_http_…` and \
               `$upstream_cookie_…`; nginx shows those before the error.",
        reason: Reason::Safety("what is rejected is not trusted"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let is_logged = (seen.is("log: $upstream_http_") || seen.is("log: $upstream_cookie_"))
                && (weir.is_empty() || oracle.is_empty());
            // A field of the page may show one.
            let text = seen.facts.text();
            let is_shown = seen.is("field ")
                && (text.contains("$upstream_http_") || text.contains("$upstream_cookie_"))
                && oracle.len() > weir.len()
                && oracle.split('|').count() == weir.split('|').count()
                && oracle
                    .split('|')
                    .zip(weir.split('|'))
                    .all(|(oracle, weir)| oracle == weir || weir.trim().is_empty());
            let is_warned =
                seen.is("error log: missing [warn] upstream sent duplicate header line");
            (is_logged || is_shown || is_warned)
                && logged(seen, |name, value| {
                    name == "upstream_status" && value.contains("502")
                })
        },
    },
    Rule {
        name: "connections-after-complete-responses",
        text: "A response is complete with the empty record that ends its stream, and leaves the client's connection open, even if a FastCGI \
               connection that was to be kept breaks then; nginx aborts it, or closes the client's connection.",
        reason: Reason::Rfc("RFC 9112, section 9.3"),
        before: None,
        matches: |seen| {
            let classes = [
                "event closed kept",
                "cut true false",
                "log: $request_completion",
                "log: $sent_http_connection",
            ];
            // The empty record that ends what is sent has come, and not the one behind it.
            let is_ended = said(seen, |text| text.contains("\u{1}\u{6}\0\u{1}\0\0"));
            seen.has("fastcgi_keep_conn")
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    let is_whole = !a.cut || is_ended && b.body.starts_with(&a.body);
                    a.status == b.status && is_whole && !b.cut
                })
        },
    },
    Rule {
        name: "bodies-of-rejected-requests",
        text: "How much was read of a request body that is rejected for its size, or for invalid chunks.",
        reason: Reason::Chance("the kernel splits the bytes"),
        before: None,
        matches: |seen| {
            let variable = seen.difference.class.strip_prefix("log: $").unwrap_or("");
            // A page in its place has another status.
            let has_page = seen.has("client_max_body_size") && has_page_for(&seen.case.http, "413");
            let is_replaced = has_page
                && asked_at(seen)
                    .and_then(|at| requests(seen).nth(at))
                    .is_some_and(|request| request.body != Body::None);
            ["request_length", "content_length", "request_body"].contains(&variable)
                && logged_with(seen, variable, &seen.difference.oracle, |of| {
                    is_replaced
                        || of("status") == "413"
                        || (of("status") == "400" && sends_chunks(seen))
                })
        },
    },
    Rule {
        name: "status-in-the-log",
        text: "The log has the status that the client got; with `error_page … =200` nginx logs 200 even for a 304 or a 206.",
        reason: Reason::Safety("a wrong status in the log misleads the search for a fault"),
        before: None,
        matches: |seen| {
            let sent =
                |b: &crate::side::reply::Response| b.status.to_string() == seen.difference.weir;
            seen.is("log: $status")
                && seen.has("error_page")
                && any_of_case(seen, |a, b| a.status == b.status && sent(b))
        },
    },
    Rule {
        name: "error-page-after-accel-redirect",
        text: "The error page after an `X-Accel-Redirect` does not have the charset, the freshness lifetime and the \
               `Content-Disposition` of the response that named the path; nginx keeps them.",
        reason: Reason::Rfc(
            "RFC 9110, section 8.3: the type is that of the content; RFC 6266, section 4: an error is not the attachment",
        ),
        before: None,
        matches: |seen| {
            let begin = format!("{}; charset=", seen.difference.weir);
            let is_charset = (seen.is("field Content-Type")
                || seen.is("log: $sent_http_content_type"))
                && seen.difference.oracle.starts_with(&begin);
            let is_lifetime = (seen.is("field Expires missing")
                || seen.is("field Cache-Control")
                || seen.is("log: $sent_http_cache_control"))
                && any_pair(seen, |a, b| {
                    a.status == b.status && (a.status >= 400 || seen.has("error_page"))
                });
            let is_disposition = seen.is("field Content-Disposition missing")
                && seen.has("error_page")
                && any_pair(seen, |a, b| a.status == b.status);
            (is_charset || is_lifetime || is_disposition)
                && said(seen, |text| text.contains("X-Accel-Redirect: "))
        },
    },
    Rule {
        name: "ranges-of-changed-content",
        text: "A body that `sub_filter` changes has no `Accept-Ranges`; nginx forwards that of the origin.",
        reason: Reason::Rfc("RFC 9110, section 14.3: ranges apply to what is sent"),
        before: None,
        matches: |seen| {
            seen.difference
                .class
                .eq_ignore_ascii_case("field Accept-Ranges missing")
                && seen.has("sub_filter")
                && said(seen, |text| {
                    text.to_ascii_lowercase().contains("accept-ranges: ")
                })
        },
    },
    Rule {
        name: "trailers-once",
        text: "A trailer of `add_trailer` appears once, even if `add_after_body` or `add_before_body` join responses; nginx \
               sends it twice.",
        reason: Reason::Rfc("RFC 9110, section 5.3: a field that is not a list appears once"),
        before: None,
        matches: |seen| {
            let twice = format!("{0} | {0}", seen.difference.weir);
            let adds = seen.has("add_after_body") || seen.has("add_before_body");
            let is_trailer = seen.is("trailer ") && seen.difference.oracle == twice;
            let has_two = |a: &crate::side::reply::Response, b: &crate::side::reply::Response| {
                a.trailers.len() > b.trailers.len() && a.body.len() == b.body.len()
            };
            adds && (is_trailer || (seen.is("log: $body_bytes_sent") && any_pair(seen, has_two)))
        },
    },
    Rule {
        name: "incomplete-addresses",
        text: "`.0.0.1` is not an address: a number is missing. nginx takes it for 0.",
        reason: Reason::Rfc("RFC 3986, section 3.2.2"),
        before: None,
        matches: |seen| {
            is_of_traffic(seen)
                && logged(seen, |name, value| {
                    name == "proxy_host" && value.starts_with('.')
                })
        },
    },
];

/// True for an upstream's status 101.
fn is_101(name: &str, value: &str) -> bool {
    name == "upstream_status" && value.split([',', ':', ' ']).any(|word| word == "101")
}

/// True when nginx had taken the connection of a line for a tunnel before, so that nothing came of the request.
fn was_silent(seen: &Seen<'_>) -> bool {
    any_events(seen, |a, b| {
        matches!((a, b), (Event::Silent(_), Event::Response(_)))
    })
}
