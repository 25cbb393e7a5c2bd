//! What nginx has changed since older oracles. Weir does as the newest; these rules hold for the older ones only, so that
//! the comparison runs with the nginx of a distribution.

use super::evidence::{
    any_bytes, any_events, any_of_case, any_pair, counts_differ, is_of_traffic, logged_with, said,
    stores,
};
use super::following::follows_in_order;
use super::{Reason, Rule, Seen, hellos};
use crate::case::Step;
use crate::side::client::Event;
use crate::side::reply::Response;
use crate::version::Version;

/// The version that Weir follows.
const NEWEST: Version = Version(1, 31, 0);

/// Since then fields of one name are lists.
const LISTS: Version = Version(1, 23, 0);

/// The first version that chooses a TLS server when the client's hello has come.
const CLIENT_HELLO: Version = Version(1, 27, 4);

/// Fields of a response of an upstream of which one counts.
const ONCE: &[&str] = &[
    "Status",
    "Date",
    "Server",
    "Last-Modified",
    "ETag",
    "Location",
    "Refresh",
    "Expires",
    "X-Accel-Expires",
    "X-Accel-Redirect",
    "X-Accel-Limit-Rate",
];

/// True when nginx has passed on several of such a field, and Weir one.
fn repeats_alone(seen: &Seen<'_>) -> bool {
    let class = seen.difference.class.to_ascii_lowercase();
    let is_one = |name: &&&str| {
        let logged = name.to_ascii_lowercase().replace('-', "_");
        class == format!("log: $sent_http_{logged}")
            || class == format!("field {}", name.to_ascii_lowercase())
    };
    ONCE.iter().find(is_one).is_some_and(|name| {
        let times = |response: &Response| {
            let fields = response.fields.iter();
            fields
                .filter(|(known, _)| known.eq_ignore_ascii_case(name))
                .count()
        };
        any_pair(seen, |a, b| times(a) > 1 && times(b) == 1)
    })
}

/// In the order of the versions.
pub const CHANGES: &[Rule] = &[
    Rule {
        name: "host-beside-authority",
        text: "A `Host` field of HTTP/2 that repeats `:authority` is accepted.",
        reason: Reason::Changed("it was a second host, and a 400"),
        before: Some(NEWEST),
        matches: |seen| {
            let is_one = |a: u16, b: u16| (a, b) == (400, 200);
            let sends = seen.case.talk.iter().any(|step| match step {
                Step::Frame { payload, .. } => {
                    crate::case::fill::find(&payload.bytes(), b"\0\x04host\tlocalhost").is_some()
                }
                _ => false,
            });
            sends
                && (seen.is("status 400 200")
                    || seen.is("log: $") && any_of_case(seen, |a, b| is_one(a.status, b.status)))
        },
    },
    Rule {
        name: "closes-after-421",
        text: "A 421 closes the connection.",
        reason: Reason::Changed("it stayed open"),
        before: Some(NEWEST),
        matches: |seen| {
            let classes = [
                "field Connection",
                "event ",
                "log: lines ",
                "log: $sent_http_connection",
            ];
            classes.iter().any(|class| seen.is(class))
                && any_of_case(seen, |a, b| {
                    let closes =
                        |response: &Response| response.field("Connection") == Some("close");
                    (a.status, b.status) == (421, 421) && !closes(a) && closes(b)
                })
        },
    },
    Rule {
        name: "ranges-of-gzip-static",
        text: "Files of `gzip_static` are sent with ranges.",
        reason: Reason::Changed("not there before"),
        before: Some(NEWEST),
        matches: |seen| {
            let classes = [
                "field Accept-Ranges added",
                "status 200 206",
                "status 200 416",
            ];
            let is_logged = seen.is("log: $")
                && any_pair(seen, |a, b| {
                    a.status == 200 && [206, 416].contains(&b.status)
                });
            let is_one = classes.iter().any(|class| seen.is(class)) || is_logged;
            seen.has("gzip_static") && is_one
        },
    },
    Rule {
        name: "connection-to-upstreams",
        text: "Requests to upstream servers have no `Connection: close` (and use HTTP/1.1, which the machine sets for \
               both).",
        reason: Reason::Changed("the default was 1.0, without keep-alive connections"),
        before: Some(NEWEST),
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            // A server behind that takes bytes as they are has the head in them.
            let is_field = seen.is("behind: field Connection missing") && oracle == "close";
            is_field
                || (seen.is("behind: body")
                    && oracle != weir
                    && oracle.replace("Connection: close\\r\\n", "") == *weir)
        },
    },
    Rule {
        name: "kept-connections-to-upstreams",
        text: "Connections to upstream servers are kept without `keepalive`.",
        reason: Reason::Changed("the default was to close them"),
        before: Some(NEWEST),
        matches: |seen| {
            // The server behind may be one of the case, which logs how many requests a connection had.
            let is_logged = seen.is("log: $connection_requests")
                && seen.has("proxy_pass")
                && seen.difference.oracle == "1";
            is_logged || seen.is("behind: fresh true false")
        },
    },
    Rule {
        name: "protocols-of-named-servers",
        text: "`ssl_protocols` counts in the server that the client's name chooses.",
        reason: Reason::Changed("those of the port's default server counted"),
        before: Some(CLIENT_HELLO),
        matches: |seen| {
            let is_accepted = any_pair(seen, |a, b| a.status == 502 && b.status != 502);
            // A server behind that is one of the case logs a request more.
            let is_logged = seen.is("log: lines ") && seen.difference.oracle.contains("502 ");
            seen.has("ssl_protocols")
                && seen.has("proxy_ssl_protocols")
                && ((is_of_traffic(seen) && is_accepted) || is_logged)
        },
    },
    Rule {
        name: "host-for-applications",
        text: "Applications get `HTTP_HOST` with `…_pass_request_headers off` too.",
        reason: Reason::Changed("not with the others"),
        before: Some(NEWEST),
        matches: |seen| {
            let is_first = seen.is("behind: first line")
                && seen.difference.weir.starts_with("HTTP_HOST: ")
                && !seen.difference.oracle.starts_with("HTTP_HOST: ");
            seen.is("behind: field HTTP_HOST added") || is_first
        },
    },
    Rule {
        name: "order-of-freshness-fields",
        text: "`X-Accel-Expires`, `Cache-Control` and `Expires` count in this order of precedence, and all lines of \
               `Cache-Control` count.",
        reason: Reason::Changed("the order in which they were sent decided"),
        before: Some(NEWEST),
        matches: |seen| {
            let has_two = |text: &str| {
                let names = ["\nCache-Control: ", "\nExpires: ", "\nX-Accel-Expires: "];
                let lines: usize = names.iter().map(|name| text.matches(name).count()).sum();
                lines > 1
            };
            stores(seen) && is_of_traffic(seen) && said(seen, has_two)
        },
    },
    Rule {
        name: "malformed-heads-of-http2",
        text: "Heads of HTTP/2 in which a host or a scheme is invalid are refused.",
        reason: Reason::Changed("some were accepted, or reset"),
        before: Some(NEWEST),
        matches: |seen| {
            let has_frames = seen
                .case
                .talk
                .iter()
                .any(|step| matches!(step, Step::Frame { .. }));
            let is_refused = seen.is("event reset 1 400")
                || seen.is("status 200 400")
                || seen.is("log: $")
                    && any_of_case(seen, |a, b| (a.status, b.status) == (200, 400))
                || seen.is("log: $") && logged_with(seen, "status", "000", |_| true);
            has_frames && is_refused
        },
    },
    Rule {
        name: "versions-to-tls-upstreams",
        text: "TLS 1.3 is used with upstream servers by default.",
        reason: Reason::Changed("TLS 1.2 was the newest"),
        before: Some(Version(1, 23, 4)),
        matches: |seen| {
            let is_shown = seen.is("body")
                && seen.difference.oracle.contains("TLSv1.2")
                && seen.difference.weir.contains("TLSv1.3");
            let is_length = (seen.is("field Content-Length") || seen.is("log: $"))
                && any_pair(seen, |a, b| {
                    let has = |response: &Response, version: &str| {
                        String::from_utf8_lossy(&response.body).contains(version)
                    };
                    has(a, "TLSv1.2") && has(b, "TLSv1.3")
                });
            is_shown || is_length
        },
    },
    Rule {
        name: "repeated-request-headers",
        text: "Request headers with the same name are one value in variables, separated by commas.",
        reason: Reason::Changed("the first one, or the last, was the value"),
        before: Some(LISTS),
        matches: |seen| {
            let values = seen.difference.weir.split(", ");
            let is_among = |value: &str| value == seen.difference.oracle;
            // A script or a directive may show a variable in a field.
            let is_shown = seen.is("field ") && seen.facts.text().contains(": $");
            (seen.is("log: $") || is_shown)
                && values.clone().count() > 1
                && values.clone().any(is_among)
        },
    },
    Rule {
        name: "repeated-response-headers",
        text: "Of several upstream headers that may appear only once (`Expires`, `Content-Type`, `Location`, `Last-Modified`), the first one \
               counts, and the error log warns of the others.",
        reason: Reason::Changed("all were passed on, or the last one counted"),
        before: Some(LISTS),
        matches: |seen| {
            let names_rates = |text: &str| {
                text.to_ascii_lowercase()
                    .matches("x-accel-limit-rate: ")
                    .count()
                    > 1
            };
            let is_rate = seen.is("log: $limit_rate") && said(seen, names_rates);
            if repeats_alone(seen)
                || is_rate
                || seen.is("error log: added [warn] upstream sent duplicate header line")
            {
                return true;
            }
            let classes = [
                ("field Expires", "Expires: "),
                ("log: $sent_http_expires", "Expires: "),
                ("field Location", "Location: "),
                ("log: $sent_http_location", "Location: "),
                ("field ETag", "ETag: "),
                ("log: $sent_http_etag", "ETag: "),
                ("field Content-Range", "Content-Range: "),
                ("log: $sent_http_content_range", "Content-Range: "),
                ("field Content-Type", "Content-Type: "),
                ("log: $sent_http_content_type", "Content-Type: "),
            ];
            let text = seen.facts.text();
            let of_type = ("body", "Content-Type: ");
            classes.iter().chain([&of_type]).any(|(class, name)| {
                // A range of a response that was one already has the field a second time.
                let most = usize::from(*name != "Content-Range: ");
                let is_twice = |line: &str| {
                    // Fields of gRPC are in lower case.
                    let small = name.to_ascii_lowercase();
                    let times = line.matches(name).count().max(line.matches(&small).count());
                    line.starts_with("send ") && times > most
                };
                let own = seen.difference.class.get(..class.len());
                own.is_some_and(|own| own.eq_ignore_ascii_case(class)) && text.lines().any(is_twice)
            })
        },
    },
    Rule {
        name: "repeated-fields",
        text: "A request in which `If-Modified-Since`, or another field that may be there once, is twice is refused.",
        reason: Reason::Changed("the last one counted"),
        before: Some(LISTS),
        matches: |seen| {
            let is_twice = |step: &Step| match step {
                Step::Send { bytes, .. } => {
                    let bytes = bytes.bytes();
                    let text = String::from_utf8_lossy(&bytes);
                    text.matches("\r\nIf-Modified-Since: ").count() > 1
                }
                _ => false,
            };
            let is_refused = |bytes: &str| bytes.starts_with("HTTP/1.1 400 ");
            seen.case.talk.iter().any(is_twice)
                && (is_refused(&seen.difference.weir) && !is_refused(&seen.difference.oracle)
                    || (seen.is("log: ")
                        && any_bytes(seen, |a, b| !is_refused(a) && is_refused(b))))
        },
    },
    Rule {
        name: "lengths-of-responses",
        text: "A response of an upstream whose `Content-Length` is no number, or stands twice, or beside chunks, or whose `Transfer-Encoding` is unknown, is a 502.",
        reason: Reason::Changed("the length was overlooked"),
        before: Some(LISTS),
        matches: |seen| {
            let is_bad = |text: &str| {
                let text = text.to_ascii_lowercase();
                // An application's may be the first line, and in several records.
                let lengths = text.matches("content-length: ").count();
                let is_beside = lengths > 0 && text.contains("transfer-encoding: ");
                let is_unknown = text.contains("transfer-encoding: gzip\r\n");
                let bad = [
                    "content-length: x\r\n",
                    "length: -1",
                    "length: 9, 9",
                    "\ncontent-length: x\n",
                ];
                let is_no_number = bad.iter().any(|bad| text.contains(bad));
                lengths > 1 || is_beside || is_unknown || is_no_number
            };
            let is_stored = (seen.is("files") || seen.is("file ")) && seen.has_ending("_store");
            let is_told = seen.is("error log: added [error] upstream sent ")
                || seen.is("error log: added [warn] upstream server temporarily disabled");
            // It is asked again, or another server is, so that all that follows may differ.
            let is_refused = any_pair(seen, |a, b| {
                let has_page = seen.has("error_page") && a.status == b.status && a.body != b.body;
                has_page || (a.status != 502 && b.status == 502)
            }) || any_events(seen, |a, b| match (a, b) {
                (Event::Closed, Event::Response(b)) => b.status == 502,
                _ => false,
            });
            let is_answered = is_of_traffic(seen) && (counts_differ(seen) || is_refused);
            said(seen, is_bad) && (is_told || is_answered || is_stored)
        },
    },
    Rule {
        name: "characters-of-hosts",
        text: "A `Host` with characters that no host has is refused: 400.",
        reason: Reason::Changed("only `/`, NUL and a few others were"),
        before: Some(NEWEST),
        matches: |seen| {
            let is_host =
                |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
            let has_others = |step: &Step| match step {
                Step::Send { bytes, .. } => {
                    let bytes = bytes.bytes();
                    let text = String::from_utf8_lossy(&bytes);
                    let lines = text.split("\r\n");
                    let mut hosts = lines.filter_map(|line| line.strip_prefix("Host: "));
                    hosts.any(|host| !host.bytes().all(|byte| is_host(&byte)))
                }
                _ => false,
            };
            let is_refused = |bytes: &str| bytes.starts_with("HTTP/1.1 400 ");
            seen.case.talk.iter().any(has_others)
                && (is_refused(&seen.difference.weir) && !is_refused(&seen.difference.oracle)
                    || (seen.is("log: ")
                        && any_bytes(seen, |a, b| !is_refused(a) && is_refused(b))))
        },
    },
    Rule {
        name: "filenames-after-rewrites",
        text: "`$request_filename` of a rewritten path that no other location has got has a value with `alias`.",
        reason: Reason::Changed("it had none"),
        before: Some(NEWEST),
        matches: |seen| {
            seen.is("log: $request_filename")
                && seen.difference.oracle.is_empty()
                && seen.has("alias")
                && seen.has("rewrite")
        },
    },
    Rule {
        name: "hellos-of-two-meanings",
        text: "With `ssl_preread`, a ClientHello with two server names or two lists of protocols, or whose lengths do not fit each other, is none.",
        reason: Reason::Changed(
            "it was read, and a TLS server might read another name in it (CVE-2026-123640)",
        ),
        before: Some(Version(1, 31, 9)),
        matches: |seen| {
            let sends_one = seen.case.talk.iter().any(|step| match step {
                Step::Send { bytes, .. } => hellos::is_ambiguous(&bytes.bytes()),
                _ => false,
            });
            let class = seen.is("bytes") || seen.is("behind") || seen.is("event ");
            class && seen.has("ssl_preread") && sends_one
        },
    },
    Rule {
        name: "hosts-without-a-value",
        text: "A `proxy_set_header Host` whose value is empty leaves the usual one.",
        reason: Reason::Changed("there was none"),
        before: Some(NEWEST),
        matches: |seen| seen.is("behind: field Host added") && seen.has("proxy_set_header"),
    },
    Rule {
        name: "authority-of-grpc-requests",
        text: "`grpc_set_header Host` sets `:authority`.",
        reason: Reason::Changed("it set the field `host`"),
        before: Some(NEWEST),
        matches: |seen| {
            seen.has("grpc_set_header")
                && (seen.is("behind: field host missing") || seen.is("behind: first line"))
        },
    },
    Rule {
        name: "lengths-of-grpc-responses-without-content",
        text: "A gRPC response that ends with its header keeps its `Content-Length`, and is incomplete if that is not 0.",
        reason: Reason::Changed("the length became 0"),
        before: Some(NEWEST),
        matches: |seen| {
            let is_one =
                |text: &str| text.contains("HEADERS end") && text.contains("\ncontent-length: ");
            let names_length = |response: &Response| {
                let length = response.field("Content-Length");
                length.is_some_and(|length| length != "0")
            };
            // The complete one, without content, has a length here, and is aborted where that is not 0.
            let is_told = |a: &Event, b: &Event| match (a, b) {
                (Event::Response(a), Event::Response(b)) => {
                    a.status == b.status && a.body.is_empty() && (b.cut || names_length(b))
                }
                (Event::Response(a), Event::Reset(_) | Event::Closed) => a.body.is_empty(),
                _ => false,
            };
            seen.has("grpc_pass")
                && is_of_traffic(seen)
                && said(seen, is_one)
                && any_events(seen, is_told)
        },
    },
    Rule {
        name: "windows-of-nothing",
        text: "A `WINDOW_UPDATE` of 0 of a gRPC server is an error: 502.",
        reason: Reason::Changed("it was overlooked"),
        before: Some(NEWEST),
        matches: |seen| {
            let sends_one =
                seen.has("grpc_pass") && said(seen, |text| text.contains("WINDOW_UPDATE 0"));
            // It is no error that another server is asked for.
            let is_followed = || {
                follows_in_order(seen, |exchange| {
                    let statuses = exchange.logged("upstream_status");
                    statuses.starts_with("502, ")
                })
            };
            sends_one
                && is_of_traffic(seen)
                && (is_followed()
                    || any_events(seen, |a, b| match (a, b) {
                        (Event::Response(a), Event::Response(b)) => {
                            a.status != b.status && b.status == 502 || b.cut && !a.cut
                        }
                        (Event::Response(_), Event::Reset(_) | Event::Closed) => true,
                        // It waited for the rest, if there was none.
                        (Event::Silent(_), Event::Response(_)) => true,
                        _ => false,
                    }))
        },
    },
    Rule {
        name: "removed-directives",
        text: "`ssl on;` is unknown: `listen … ssl` says it.",
        reason: Reason::Changed("it was deprecated"),
        before: Some(Version(1, 25, 1)),
        matches: |seen| seen.is("refused by Weir alone: unknown directive") && seen.has("ssl"),
    },
    Rule {
        name: "authority-form",
        text: "`CONNECT host:port` is a request with a target, which is refused where no tunnel is configured: 405.",
        reason: Reason::Changed("400: the target was no path"),
        before: Some(NEWEST),
        matches: |seen| {
            let asks = |step: &Step| match step {
                Step::Send { bytes, .. } => bytes.bytes().starts_with(b"CONNECT "),
                _ => false,
            };
            // An error page for 405 may have another status.
            let is_one = |a: &str, b: &str| {
                a.starts_with("HTTP/1.1 400 ")
                    && (b.starts_with("HTTP/1.1 405 ") || seen.has("error_page"))
            };
            let is_pair = (seen.is("status 400 ") || seen.is("log: $"))
                && any_pair(seen, |a, b| a.status == 400 && b.status != 400);
            seen.case.talk.iter().any(asks)
                && (is_pair
                    || is_one(&seen.difference.oracle, &seen.difference.weir)
                    || ((seen.is("log: $") || seen.is("event ")) && any_bytes(seen, is_one)))
        },
    },
    Rule {
        name: "newer-directives",
        text: "Directives, parameters and variables that are newer than the oracle.",
        reason: Reason::Changed("not there before"),
        before: Some(NEWEST),
        matches: |seen| {
            let news = [
                "unknown directive",
                "invalid parameter",
                "invalid value",
                "unknown \"",
                "host not found in resolver \"ipv",
            ];
            // A module that is not installed is no news.
            let is_missing = seen.difference.class.ends_with(" \"stream\"");
            let mut news = news.iter();
            !is_missing && news.any(|word| seen.is(&format!("refused by nginx alone: {word}")))
        },
    },
];
