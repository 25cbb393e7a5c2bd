//! Choices of what is seldom configured: files that requests write, heads of applications, names, and what a variable shows before
//! there is a response.

use super::evidence::{any_events, any_pair, counts_differ, given, is_of_traffic, logged, said};
use super::exchange::{asked_at, is_of_subrequest, line, requests, value};
use super::following::{Exchange, any_exchange, is_behind, is_own};
use super::{Reason, Rule, Seen, hellos};
use crate::case::{Body, Request, Step};
use crate::compare::DifferencePlace;
use crate::observe::CONNECTION;
use crate::side::client::Event;
use crate::side::reply::Response;

/// In the order of `docs/compat.md`.
pub(super) const SELDOM: &[Rule] = &[
    Rule {
        name: "early-values-of-responses",
        text: "`$sent_http_…`, `$request_completion` and `$body_bytes_sent` show at each use what is so then; nginx remembers what was so \
               at the first use, so that a log has nothing, or another `Connection`, if a condition has asked before.",
        reason: Reason::Safety("a log, or a decision, by what was not sent misleads"),
        before: None,
        matches: |seen| {
            let Some(name) = seen.difference.class.strip_prefix("log: $") else {
                return false;
            };
            // What nginx remembers is from before there was a response: nothing, or another word for the connection.
            let is_early = match name {
                "request_completion" => seen.difference.oracle.is_empty(),
                "body_bytes_sent" => seen.difference.oracle == "0",
                "sent_http_connection" => true,
                "sent_http_content_length" if !seen.difference.oracle.is_empty() => {
                    any_pair(seen, |a, b| {
                        let [a, b] = [a, b].map(|one| one.field("Content-Length"));
                        a == b && b == Some(seen.difference.weir.as_str())
                    })
                }
                name => name.starts_with("sent_http_") && seen.difference.oracle.is_empty(),
            };
            is_early && uses(seen, name)
        },
    },
    Rule {
        name: "early-words-for-connections",
        text: "`$sent_http_connection` in the text of a response says what was known when the text was made; nginx has remembered, or not yet \
               decided, something else.",
        reason: Reason::Safety("a log, or a decision, by what was not sent misleads"),
        before: None,
        matches: |seen| {
            let classes = [
                "body",
                "field ",
                "trailer ",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
            ];
            let is_one = |a: &Response, b: &Response| {
                let has = |response: &Response, word: &str| {
                    let fields = response.fields.iter().chain(&response.trailers);
                    let fields = fields.filter(|(name, _)| name != "Connection");
                    let fields = fields.map(|(_, value)| value.as_bytes());
                    let mut texts = fields.chain([response.body.as_slice()]);
                    texts.any(|text| crate::case::fill::find(text, word.as_bytes()).is_some())
                };
                has(a, "close") && has(b, "keep-alive") || has(a, "keep-alive") && has(b, "close")
            };
            classes.iter().any(|class| seen.is(class))
                && uses(seen, "sent_http_connection")
                && any_pair(seen, is_one)
        },
    },
    Rule {
        name: "all-locations",
        text: "`$sent_http_location` has all lines that are sent; nginx's has one where it knows it for that of a redirect.",
        reason: Reason::Safety("a log by what was not sent misleads"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            seen.is("log: $sent_http_location")
                && seen.has("add_header")
                && weir
                    .strip_prefix(oracle.as_str())
                    .is_some_and(|more| more.starts_with(", "))
        },
    },
    Rule {
        name: "lines-of-subrequests",
        text: "With `log_subrequest`, what the line of a subrequest shows of a header, which no client is sent, and how much of the body of all had \
               been sent by then.",
        reason: Reason::Safety("a log that names what no client got misleads"),
        before: None,
        matches: |seen| {
            let DifferencePlace::Lines(oracle, weir) = seen.difference.place else {
                return false;
            };
            seen.has("log_subrequest")
                && is_of_subrequest(seen, 0, oracle)
                && is_of_subrequest(seen, 1, weir)
                && (seen.is("log: $sent_http_") || seen.is("log: $body_bytes_sent"))
        },
    },
    Rule {
        name: "values-of-subrequests",
        text: "With `log_subrequest`, the line of the client's request has its own values; nginx's has those of the subrequest that was logged \
               before, where a variable is remembered: it says of none that it was complete, and names another type or length.",
        reason: Reason::Safety("a log by what was not sent misleads"),
        before: None,
        matches: |seen| {
            let DifferencePlace::Lines(own, _) = seen.difference.place else {
                return false;
            };
            let Some(name) = seen.difference.class.strip_prefix("log: $") else {
                return false;
            };
            let of =
                |number: usize, name: &str| line(seen, 0, number).map(|line| value(line, name));
            let is_before = |number: usize| {
                let names = [CONNECTION, "connection_requests", name];
                names.iter().all(|name| of(number, name) == of(own, name))
            };
            seen.has("log_subrequest")
                && (name == "request_completion" || name.starts_with("sent_http_"))
                && !is_of_subrequest(seen, 0, own)
                && (0..own).any(is_before)
        },
    },
    Rule {
        name: "sizes-of-heads-in-records",
        text: "`fastcgi_buffer_size` counts the header; nginx counts the records that it comes in, with their padding.",
        reason: Reason::Rfc("the FastCGI specification, section 3.3: padding is ignored"),
        before: None,
        matches: |seen| {
            seen.has("fastcgi_buffer_size")
                && is_of_traffic(seen)
                && any_pair(seen, |a, b| a.status == 502 && b.status != 502)
        },
    },
    Rule {
        name: "filenames-of-short-paths",
        text: "A rewritten path that is shorter than the name of its location has no `$request_filename` with `alias`; nginx reads the \
               memory behind it.",
        reason: Reason::Safety("memory of other requests is shown"),
        before: None,
        matches: |seen| {
            seen.is("log: $request_filename")
                && seen.difference.weir.is_empty()
                && seen.has("alias")
                && seen.has("rewrite")
        },
    },
    Rule {
        name: "fallbacks-with-alias",
        text: "The last argument of `try_files` is the path that it spells, also with `alias`; nginx removes the location's name from one with \
               variables, and goes on with a path that does not begin with `/`.",
        reason: Reason::Safety("such a path is in no location, and passes the rules of all"),
        before: None,
        matches: |seen| {
            let is_one = |exchange: &Exchange<'_>| !exchange.logged("uri").starts_with('/');
            // What Weir answers may end the connection.
            let is_ended = seen.is("event kept closed") && any_exchange(seen, is_one);
            seen.has("try_files")
                && seen.has("alias")
                && is_of_traffic(seen)
                && (is_own(seen, is_one) || is_ended)
        },
    },
    Rule {
        name: "line-breaks-in-fields",
        text: "A line break in the value of a field that the configuration adds becomes a space; nginx sends it.",
        reason: Reason::Safety("what stands behind it would be another field"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let class = ["field ", "trailer "];
            class.iter().any(|class| seen.is(class))
                && oracle.contains(['\n', '\r'])
                && oracle.replace(['\n', '\r'], " ").trim() == weir.trim()
        },
    },
    Rule {
        name: "fields-named-in-connection",
        text: "A field that `Connection` names is not passed on; nginx passes it on.",
        reason: Reason::Rfc("RFC 9110, section 7.6.1"),
        before: None,
        matches: |seen| {
            let Some(rest) = seen.difference.class.strip_prefix("behind: field ") else {
                return false;
            };
            let Some(name) = rest.strip_suffix(" missing") else {
                return false;
            };
            let name = name.strip_prefix("HTTP_").unwrap_or(name).replace('_', "-");
            requests(seen).any(|request| {
                request.fields.iter().any(|(field, value)| {
                    field.eq_ignore_ascii_case("Connection")
                        && value
                            .split(',')
                            .any(|word| word.trim().eq_ignore_ascii_case(&name))
                })
            })
        },
    },
    Rule {
        name: "pages-for-old-heads",
        text: "A HEAD in the form of HTTP/0.9 is refused without content; nginx sends the page.",
        reason: Reason::Rfc("RFC 9110, section 9.3.2: a response to HEAD has no content"),
        before: None,
        matches: |seen| {
            let is_one = |request: &Request| request.version.is_empty() && request.method == "HEAD";
            seen.is("event 9 closed") && requests(seen).any(is_one)
        },
    },
    Rule {
        name: "destinations-of-other-hosts",
        text: "The host of `Destination` is compared as a host is: in any case, and whole; nginx compares the beginning, byte by byte.",
        reason: Reason::Rfc("RFC 3986, section 6.2.2.1; RFC 4918, section 9.8.5"),
        before: None,
        matches: |seen| {
            let is_odd = |value: &str| {
                let rest = value
                    .strip_prefix("http://")
                    .or(value.strip_prefix("https://"));
                let host = rest.and_then(|rest| rest.split(['/', ':']).next());
                host.is_some_and(|host| {
                    host != "localhost" && host.to_ascii_lowercase().starts_with("localhost")
                })
            };
            seen.has("dav_methods")
                && of_exchange(seen, |request| {
                    let mut fields = request.fields.iter();
                    fields.any(|(name, value)| name == "Destination" && is_odd(value))
                })
                && (is_of_traffic(seen) || seen.is("files"))
        },
    },
    Rule {
        name: "files-without-content",
        text: "A PUT without content makes an empty file; nginx says 500.",
        reason: Reason::Rfc("RFC 9110, section 9.3.4: it replaces the state by what it encloses"),
        before: None,
        matches: |seen| {
            let is_one = |request: &Request| request.method == "PUT" && request.body == Body::None;
            let is_made = any_pair(seen, |a, b| a.status == 500 && b.status != 500);
            let is_stored = seen.is("files") || seen.is("file ");
            seen.has("dav_methods")
                && of_exchange(seen, is_one)
                && (is_stored || (is_of_traffic(seen) && is_made))
        },
    },
    Rule {
        name: "etags-of-recoded-text",
        text: "Text that `source_charset` and `charset` recode has a weak `ETag`; nginx leaves it strong.",
        reason: Reason::Rfc("RFC 9110, section 8.8.1: other bytes have another strong validator"),
        before: None,
        matches: |seen| {
            (seen.is("field ETag") || seen.is("log: $sent_http_etag"))
                && seen.has("source_charset")
                && seen.difference.weir == format!("W/{}", seen.difference.oracle)
        },
    },
    Rule {
        name: "characters-of-recoded-text",
        text: "A byte that is not in a `charset_map` becomes `?`, and a character behind an incomplete sequence stays; nginx leaves such bytes \
               where no other one needs several, drops the character, or never ends the response.",
        reason: Reason::Safety(
            "text in another charset than it says, or that lacks a quote, is read as something else (Unicode Technical Report 36, section 3)",
        ),
        before: None,
        matches: |seen| {
            let plain = |response: &Response| {
                let bytes = response.body.iter();
                bytes
                    .copied()
                    .filter(u8::is_ascii_alphanumeric)
                    .collect::<Vec<_>>()
            };
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Response(a), Event::Response(b)) => {
                    let mut rest = plain(b).into_iter();
                    let is_part = plain(a).iter().all(|byte| rest.any(|other| other == *byte));
                    a.status == b.status && a.body != b.body && is_part
                }
                // It may send more than there is.
                (Event::Bytes(_), Event::Kept) => true,
                (Event::Silent(_), Event::Response(b)) => {
                    b.status == 200 && b.field("Content-Type").is_some()
                }
                _ => false,
            };
            seen.has("source_charset") && is_of_traffic(seen) && any_events(seen, is_one)
        },
    },
    Rule {
        name: "files-of-responses-to-head",
        text: "A response to HEAD is not stored by `proxy_store`; nginx stores a file without content, which it serves to GET from then on.",
        reason: Reason::Safety("the content is lost for as long as the file is there"),
        before: None,
        matches: |seen| {
            (seen.is("files") || seen.is("file "))
                && seen.has_ending("_store")
                && requests(seen).any(|request| request.method == "HEAD")
        },
    },
    Rule {
        name: "statuses-of-applications",
        text: "The status of an application (FastCGI, uwsgi, SCGI) has three digits, the first of which is not 1, and a space before its \
               reason; another number is a 502. nginx sends it as it is.",
        reason: Reason::Rfc("RFC 9112, section 4; RFC 9110, sections 15 and 15.2"),
        before: None,
        matches: |seen| {
            let is_odd = |text: &str| {
                let lines = text.split(['\r', '\n']);
                let mut values = lines.filter_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("status").then(|| value.trim())
                });
                values.any(|value| {
                    let digits = value.bytes().take_while(u8::is_ascii_digit).count();
                    let is_bad = digits != 3 || value.starts_with(['0', '1']);
                    is_bad || !matches!(value.as_bytes().get(3), None | Some(b' '))
                })
            };
            let protocols = ["fastcgi_pass", "uwsgi_pass", "scgi_pass"];
            let is_status = seen.is("event ") || seen.is("status line") || is_of_traffic(seen);
            // In records of FastCGI the field may be in several parts.
            let is_told = || {
                logged(seen, |name, value| {
                    let status = value.parse::<u16>();
                    name == "upstream_status" && status.is_ok_and(|status| status < 200)
                })
            };
            let is_raw =
                |a: &Event, b: &Event| matches!((a, b), (Event::Broken(..), Event::Response(_)));
            protocols.iter().any(|name| seen.has(name))
                && is_status
                && (said(seen, is_odd) || is_told() || any_events(seen, is_raw))
        },
    },
    Rule {
        name: "tabs-around-values",
        text: "A tab before or behind the value of a field of a server behind is no part of it; nginx keeps it.",
        reason: Reason::Rfc("RFC 9110, section 5.5: white space around a value is excluded"),
        before: None,
        matches: |seen| {
            let without = |text: &str| text.replace("\\x09", "").replace(['\t', ' '], "");
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let class = ["log: $upstream_http_", "log: $sent_http_", "field "];
            class.iter().any(|class| seen.is(class))
                && (oracle.contains("\\x09") || oracle.contains('\t'))
                && without(oracle) == without(weir)
        },
    },
    Rule {
        name: "case-of-resolved-names",
        text: "`$proxy_host` has the name as the request has it; nginx's resolver changes it to lower case after the request is made.",
        reason: Reason::Rfc("RFC 9110, section 4.2.3: the host is case-insensitive"),
        before: None,
        matches: |seen| {
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            (seen.is("log: $proxy_host") || seen.is("field "))
                && seen.has("resolver")
                && oracle != weir
                && oracle.eq_ignore_ascii_case(weir)
        },
    },
    Rule {
        name: "trailers-known-early",
        text: "`$upstream_trailer_…` in a field of the response has a value if the trailer has come by then.",
        reason: Reason::Chance("it depends on what one read brings"),
        before: None,
        matches: |seen| {
            let name = seen
                .difference
                .class
                .strip_prefix("field ")
                .unwrap_or_default();
            let name = name.trim_end_matches(" added");
            let mut lines = seen.facts.text().lines();
            !name.is_empty()
                && seen.difference.weir.len() > seen.difference.oracle.len()
                && lines.any(|line| line.contains(name) && line.contains("upstream_trailer_"))
        },
    },
    Rule {
        name: "several-ranges-of-flv",
        text: "Several ranges of what `flv` sends from a place on are sent; nginx closes the connection.",
        reason: Reason::Safety("a client should not lose its response without an explanation"),
        before: None,
        matches: |seen| {
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Closed, Event::Response(b)) => b.status == 206,
                _ => false,
            };
            let asks = |request: &Request| {
                let mut fields = request.fields.iter();
                request.target.contains("start=")
                    && fields.any(|(name, value)| name == "Range" && value.contains(','))
            };
            seen.has("flv")
                && of_exchange(seen, asks)
                && is_of_traffic(seen)
                && any_events(seen, is_one)
        },
    },
    Rule {
        name: "completion-of-nothing-compressed",
        text: "A response of no content that says that it is compressed is complete; `gunzip` of nginx, which waits for a first byte, logs it as \
               incomplete.",
        reason: Reason::Rfc("RFC 9112, section 8: it has all that its length tells"),
        before: None,
        matches: |seen| {
            seen.is("log: $request_completion")
                && seen.has("gunzip")
                && seen.difference.oracle.is_empty()
                && said(seen, |text| {
                    text.contains("Content-Encoding: gzip\r\n")
                        && text.contains("Content-Length: 0\r\n")
                })
                && any_pair(seen, |a, b| {
                    a.status == b.status && a.body == b.body && b.body.is_empty()
                })
        },
    },
    Rule {
        name: "captures-of-maps",
        text: "A value with `$1` and with a `map` whose expression has captures is the text that they make; nginx measures it with other \
               captures than it writes, and closes the connection.",
        reason: Reason::Safety("a client should not lose its response without an explanation"),
        before: None,
        matches: |seen| {
            let is_one =
                |a: &Event, b: &Event| matches!((a, b), (Event::Closed, Event::Response(_)));
            let text = seen.facts.text();
            let follows = ["event closed ", "log: "];
            let is_closed = follows.iter().any(|class| seen.is(class)) && any_events(seen, is_one);
            seen.has("map") && text.contains("\"$1 ") && (is_closed || seen.is("field "))
        },
    },
    Rule {
        name: "hellos-that-never-end",
        text: "A ClientHello that is invalid and whose end does not come ends the session when nothing comes any more; nginx goes on \
               without a name at the first byte that is wrong.",
        reason: Reason::Chance("what is invalid and incomplete is no ClientHello in any case"),
        before: None,
        matches: |seen| {
            let never_ends = seen.case.talk.iter().any(|step| match step {
                Step::Send { bytes, .. } => hellos::is_incomplete(&bytes.bytes()),
                _ => false,
            });
            let is_silent = seen.is("bytes") && seen.difference.weir.is_empty();
            seen.has("ssl_preread") && never_ends && (is_silent || seen.is("behind"))
        },
    },
    Rule {
        name: "slice-ranges-in-logs",
        text: "`$slice_range` in the log is the first slice that was asked for; with nginx the one behind the last, which nothing has asked \
               for, or none.",
        reason: Reason::Safety("a log that names what was not asked for misleads"),
        before: None,
        matches: |seen| seen.is("log: $slice_range") && seen.has("slice"),
    },
    Rule {
        name: "slices-of-another-place",
        text: "A slice that is not the one that was asked for, or of another version, ends the response; whether its head has been sent \
               by then, and whether the slice has been stored, differs.",
        reason: Reason::Chance("an aborted response may end anywhere"),
        before: None,
        matches: |seen| {
            // An end that no client takes for a complete response.
            let is_end = |event: &Event| match event {
                Event::Closed | Event::Silent(_) => true,
                Event::Response(response) => response.cut || response.status >= 500,
                _ => false,
            };
            // A slice more or less that was asked for changes what the server behind answers from then on.
            let is_given_up = |exchange: &Exchange<'_>| {
                let is_replaced = ["412", "416"].contains(&exchange.logged("status"));
                !exchange.logged("upstream_status").is_empty()
                    && (is_replaced || exchange.logged("request_completion").is_empty())
            };
            let is_followed = || counts_differ(seen) && is_behind(seen, is_given_up);
            // The header of a response to HEAD is complete, whatever becomes of the slices that nobody gets.
            let is_head = || {
                let classes = [
                    "event closed kept",
                    "log: $request_completion",
                    "log: $sent_http_connection",
                ];
                classes.iter().any(|class| seen.is(class))
                    && of_exchange(seen, |request| request.method == "HEAD")
            };
            seen.has("slice")
                && is_of_traffic(seen)
                && (given(seen, |status, _| status != 200)
                    && any_events(seen, |a, b| is_end(a) && is_end(b))
                    || is_followed()
                    || is_head())
        },
    },
    Rule {
        name: "length-of-content-that-is-not-sent",
        text: "What `auth_request` asks a server behind has no content, and no `Content-Length`; nginx sends the length of the content that \
               it does not send.",
        reason: Reason::Safety(
            "an upstream server waits for the body, or takes the next request for it (RFC 9112, section 6.3)",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "behind: field Content-Length missing",
                "behind: framing length none",
                "behind: cut true false",
            ];
            // The server behind waits for it, and nginx for its answer.
            let is_cut = seen.sides.is_some_and(|[oracle, _]| {
                let mut received = oracle.received.iter().flatten();
                received.any(|one| one.cut)
            });
            let is_waiting =
                |a: &Event, b: &Event| matches!((a, b), (Event::Silent(_), Event::Response(_)));
            let is_followed = is_cut && is_of_traffic(seen) && any_events(seen, is_waiting);
            seen.has("auth_request")
                && of_exchange(seen, |request| request.body != Body::None)
                && (is_followed || classes.iter().any(|class| seen.is(class)))
        },
    },
];

/// True when the request that the difference belongs to is so; of any, where it belongs to the case.
fn of_exchange(seen: &Seen<'_>, is_so: impl Fn(&Request) -> bool) -> bool {
    match asked_at(seen) {
        Some(at) => requests(seen).nth(at).is_some_and(is_so),
        None => requests(seen).any(is_so),
    }
}

/// True when the configuration uses a variable.
fn uses(seen: &Seen<'_>, name: &str) -> bool {
    let text = seen.facts.text();
    text.contains(&format!("${name}")) || text.contains(&format!("${{{name}}}"))
}
