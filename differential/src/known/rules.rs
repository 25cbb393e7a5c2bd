//! The choices: where Weir differs from every nginx.

use super::evidence::{any_events, any_pair, has_field, logged, stores};
use super::{Reason, Rule};
use crate::side::client::Event;
use crate::side::reply::Response;

/// In the order of `docs/compat.md`.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "client-port",
        text: "The port of a client in a header of the PROXY protocol, and whether the header comes alone or with what follows it.",
        reason: Reason::Chance("the kernel chooses the port, and cuts the bytes"),
        before: None,
        matches: |seen| {
            let without = |text: &str| {
                let mut words: Vec<&str> = text.splitn(6, ' ').collect();
                (words.len() == 6 && words[0] == "PROXY").then(|| {
                    words.remove(4);
                    words.join(" ")
                })
            };
            let difference = seen.difference;
            let sides = (without(&difference.oracle), without(&difference.weir));
            let (Some(oracle), Some(weir)) = sides else {
                return false;
            };
            seen.is("behind: body") && (oracle.starts_with(&weir) || weir.starts_with(&oracle))
        },
    },
    Rule {
        name: "empty-cache-control",
        text: "`more_clear_headers Cache-Control` of a response that has none leaves none; nginx's module sends an empty one.",
        reason: Reason::Rfc("RFC 9110, section 5.6.1: no empty list elements"),
        before: None,
        matches: |seen| {
            let class =
                seen.is("field Cache-Control missing") || seen.is("log: $sent_http_cache_control");
            class
                && seen.difference.oracle.is_empty()
                && (seen.has("more_clear_headers") || seen.has("more_set_headers"))
        },
    },
    Rule {
        name: "type-of-304",
        text: "A 304 has no `Content-Type`, also where `more_set_headers` names one.",
        reason: Reason::Rfc("RFC 9110, section 15.4.5"),
        before: None,
        matches: |seen| {
            (seen.is("field Content-Type missing") || seen.is("log: $sent_http_content_type"))
                && seen.difference.weir.is_empty()
                && seen.has("more_set_headers")
        },
    },
    Rule {
        name: "lua-body-filter",
        text: "Content that `body_filter_by_lua` sees has no `Content-Length` and no `Accept-Ranges`, and a strong `ETag` becomes a weak \
               one; with nginx the head stays as it was, and what a script makes longer is taken for the next response.",
        reason: Reason::Safety(
            "a response that another one is hidden in (RFC 9112, section 11.1; RFC 9110, section 8.8.1)",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "field Content-Length missing",
                "field Accept-Ranges missing",
                "field ETag",
                "field Transfer-Encoding added",
                "framing Length Chunked",
                "event bytes kept",
                "log: $sent_http_content_length",
                "log: $sent_http_transfer_encoding",
                "log: $sent_http_etag",
            ];
            classes.iter().any(|class| seen.is(class))
                && [
                    "body_filter_by_lua_file",
                    "body_filter_by_lua_block",
                    "body_filter_by_lua",
                ]
                .iter()
                .any(|name| seen.has(name))
        },
    },
    Rule {
        name: "length-instead-of-chunks",
        text: "A response of which all has come before its head goes out has a `Content-Length`, also where its origin sent \
               chunks or closed the connection; nginx sends chunks.",
        reason: Reason::Rfc("RFC 9110, section 8.6: a length should be sent where it is known"),
        before: None,
        matches: |seen| {
            let framings = [
                "framing Chunked Length",
                "framing Close Length",
                // HTTP/2: content of which only its end told that there is none.
                "framing Stream Empty",
            ];
            let framing = framings.iter().any(|class| seen.is(class));
            let follows = [
                "field Content-Length added",
                "field Accept-Ranges added",
                "field Transfer-Encoding missing",
                "field Connection",
                "event closed kept",
                "log: $sent_http_content_length",
                "log: $sent_http_transfer_encoding",
                "log: $sent_http_connection",
                "log: $sent_http_keep_alive",
                "log: $body_bytes_sent",
                "log: $request_completion",
            ];
            framing
                || (follows.iter().any(|class| seen.is(class))
                    && any_pair(seen, |a, b| {
                        a.field("Content-Length").is_none()
                            && b.field("Content-Length").is_some()
                            && a.status == b.status
                            && a.body == b.body
                    }))
        },
    },
    Rule {
        name: "kept-after-412-and-416",
        text: "A 412 or 416 that takes the place of a response is complete, and leaves the connection open as its head says; nginx \
               says `keep-alive`, closes, and logs it as not completed and as from nowhere. In HTTP/2 it sends the content behind the page.",
        reason: Reason::Rfc("RFC 9112, section 9.6: who closes says so"),
        before: None,
        matches: |seen| {
            let classes = [
                "event closed kept",
                "log: $request_completion",
                "log: $sent_http_connection",
                "log: $sent_http_keep_alive",
                "log: $proxy_host",
                "log: $proxy_port",
            ];
            // In HTTP/2 the content follows the page.
            let page = ["body", "cut true false", "log: $body_bytes_sent"];
            let is_one = |a: &Response| [412, 416].contains(&a.status);
            let is_followed = page.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    is_one(a) && a.body.len() > b.body.len() && a.body.starts_with(&b.body)
                });
            is_followed
                || (classes.iter().any(|class| seen.is(class)) && any_pair(seen, |a, _| is_one(a)))
        },
    },
    Rule {
        name: "cut-is-cut",
        text: "A response of FastCGI that breaks off is cut, so that it cannot be taken for whole; nginx ends it properly. One that is \
               shorter than its length is no complete one in the log.",
        reason: Reason::Rfc("RFC 9112, section 8: an incomplete message must be seen as such"),
        before: None,
        matches: |seen| {
            let classes = [
                "cut false true",
                "event kept closed",
                "log: $request_completion",
                "log: $body_bytes_sent",
                "event silent ",
                "body",
            ];
            // What nginx leaves open at last is silence to the client.
            let is_one = |a: &Event, b: &Event| match (a, b) {
                (Event::Response(a), Event::Response(b)) => !a.cut && b.cut,
                (Event::Silent(_), Event::Response(b)) => b.cut,
                _ => false,
            };
            let both = seen.is("log: $request_completion") && any_pair(seen, |a, b| a.cut && b.cut);
            let fastcgi = seen.has("fastcgi_pass")
                && classes.iter().any(|class| seen.is(class))
                && any_events(seen, is_one);
            let logged = seen.has("fastcgi_pass")
                && seen.is("log: $request_completion")
                && seen.difference.oracle == "OK";
            both || fastcgi || logged
        },
    },
    Rule {
        name: "age",
        text: "Responses from a cache have `Age`, and the `Date` of the response.",
        reason: Reason::Rfc("RFC 9111, section 5.1"),
        before: None,
        matches: |seen| {
            // An `Age` of the origin that is missing here is no choice.
            stores(seen)
                && (seen.is("field Date")
                    || (seen.is("field Age") && !seen.difference.weir.is_empty()))
        },
    },
    Rule {
        name: "ranges-of-what-is-stored",
        text: "Ranges are made of every stored 200 that does not say `Accept-Ranges: none`; nginx wants `Accept-Ranges`.",
        reason: Reason::Rfc(
            "RFC 9110, section 14.2: any response whose content is known may be sent in part",
        ),
        before: None,
        matches: |seen| {
            // A part is there only where one was asked for, and in place of the whole.
            let is_part =
                |a: &Response, b: &Response| a.status == 200 && [206, 416].contains(&b.status);
            let statuses = ["status 200 206", "status 200 416"];
            let follows = [
                "log: $status",
                "log: $body_bytes_sent",
                "log: $request_completion",
                "log: $sent_http_content_range",
                "log: $sent_http_content_length",
                "log: $sent_http_content_type",
            ];
            let is_added = seen.is("field Accept-Ranges added")
                && seen.difference.weir == "bytes"
                && any_pair(seen, |a, b| a.status == 200 && b.status == 200);
            let is_other = statuses.iter().chain(&follows).any(|class| seen.is(class))
                && has_field(seen, &["Range"])
                && any_pair(seen, is_part);
            stores(seen) && (is_added || is_other)
        },
    },
    Rule {
        name: "marks-of-users",
        text: "The cookie of `userid` has the server's address and the time in it.",
        reason: Reason::Chance("it tells users apart, and has no other meaning"),
        before: None,
        matches: |seen| {
            let is_mark = |text: &str| text.starts_with("u=") || text.starts_with("uid=");
            seen.has("userid")
                && seen.is("field Set-Cookie")
                && is_mark(&seen.difference.oracle)
                && is_mark(&seen.difference.weir)
        },
    },
    Rule {
        name: "packed-length",
        text: "How well content is packed.",
        reason: Reason::Chance("compressors differ"),
        before: None,
        matches: |seen| {
            let is_packed = |response: &Response| response.body.starts_with(&[0x1f, 0x8b]);
            let classes = [
                "log: $body_bytes_sent",
                "log: $gzip_ratio",
                "field Content-Length",
                "log: $sent_http_content_length",
            ];
            classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    is_packed(a) && is_packed(b) && a.body != b.body
                })
        },
    },
    Rule {
        name: "fields-once",
        text: "A 416 or 412 has the fields of `add_header` once. nginx adds those that say `always` to the content that it would have \
               sent, and to the page again.",
        reason: Reason::Rfc("RFC 9110, section 5.3: a field that is no list stands once"),
        before: None,
        matches: |seen| {
            let twice = format!("{0} | {0}", seen.difference.weir);
            seen.is("field ")
                && seen.difference.oracle == twice
                && any_pair(seen, |a, _| [412, 416].contains(&a.status))
        },
    },
    Rule {
        name: "charsets-without-a-value",
        text: "`charset` with a variable that has no value names no charset; nginx closes the connection without a response.",
        reason: Reason::Safety(
            "a client that leaves out an argument takes the response from itself, and tells nobody why",
        ),
        before: None,
        matches: |seen| {
            let text = crate::case::text::print(seen.case);
            let classes = ["event closed ", "log: "];
            text.contains("charset $")
                && classes.iter().any(|class| seen.is(class))
                && any_events(seen, |a, b| {
                    matches!((a, b), (Event::Closed, Event::Response(_)))
                })
        },
    },
    Rule {
        name: "sessions-of-named-servers",
        text: "`ssl_session_tickets` and `ssl_session_cache` count in the server that the client's name chooses; nginx takes those of the \
               port's default server.",
        reason: Reason::Safety("where a server's lines forbid sessions it has none"),
        before: None,
        matches: |seen| {
            let without = |text: &str| {
                let text = text.replace(" resumed true", " resumed false");
                text.replace(" r ", " . ")
            };
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            (seen.is("bytes") || seen.is("body"))
                && oracle != weir
                && without(oracle) == without(weir)
                && (seen.has("ssl_session_tickets") || seen.has("ssl_session_cache"))
        },
    },
    Rule {
        name: "status-of-try-files",
        text: "`try_files … =200` and other codes that are no errors answer without content; nginx never answers.",
        reason: Reason::Safety("a client that waits for nothing holds a connection"),
        before: None,
        matches: |seen| {
            let follows = [
                "log: $status",
                "log: $sent_http_content_length",
                "log: $sent_http_connection",
            ];
            seen.has("try_files")
                && (seen.is("event silent 2")
                    || (follows.iter().any(|class| seen.is(class))
                        && seen.sides.is_some_and(|[a, _]| {
                            a.events
                                .iter()
                                .any(|(_, event)| matches!(event, Event::Silent(_)))
                        })))
        },
    },
    Rule {
        name: "keepalive-of-the-last-location",
        text: "`keepalive_timeout` and `keepalive_requests` count in the location that answers; in nginx in each that a request went through, but for \
               internal ones that refuse it.",
        reason: Reason::Open("nginx's rule is an effect of its order"),
        before: None,
        matches: |seen| {
            let classes = [
                "field Connection",
                "event closed kept",
                "event kept closed",
                "log: $sent_http_connection",
                "log: $sent_http_keep_alive",
            ];
            (seen.has("keepalive_timeout") || seen.has("keepalive_requests"))
                && classes.iter().any(|class| seen.is(class))
        },
    },
    Rule {
        name: "alias-after-a-cycle",
        text: "`$request_filename` in a location by expression with `alias`, after a request that failed.",
        reason: Reason::Open("nginx's is empty"),
        before: None,
        matches: |seen| {
            seen.has("alias")
                && seen.is("log: $request_filename")
                && seen.difference.oracle.is_empty()
        },
    },
    Rule {
        name: "preconditions",
        text: "`If-None-Match` and `If-Match` win over dates, and a response without a validator meets no condition; nginx wants all \
               of them to hold.",
        reason: Reason::Rfc("RFC 9110, section 13.2.2"),
        before: None,
        matches: |seen| {
            let is_one = |status: u16| [200, 204, 206, 304, 412, 416].contains(&status);
            let follows = ["status ", "event ", "log: $"];
            has_field(seen, &["If-None-Match", "If-Match", "If-Unmodified-Since"])
                && follows.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    a.status != b.status && is_one(a.status) && is_one(b.status)
                })
        },
    },
    Rule {
        name: "pages-of-conditions",
        text: "The page of a 412 or 416 that `error_page` names has its own fields; nginx keeps those of the response that it stands \
               for, so that there are two `ETag`.",
        reason: Reason::Rfc("RFC 9110, section 8.8.3: a response has one entity tag"),
        before: None,
        matches: |seen| {
            let tags = |response: &Response| {
                response
                    .fields
                    .iter()
                    .filter(|(name, _)| name == "ETag")
                    .count()
            };
            seen.has("error_page")
                && (seen.is("field ") || seen.is("log: $"))
                && any_pair(seen, |a, b| tags(a) > 1 && tags(b) < 2)
        },
    },
    Rule {
        name: "nothing-sent",
        text: "Variables of a response in the log of a 444 or 499.",
        reason: Reason::Chance("no response was sent"),
        before: None,
        matches: |seen| {
            let is_one = |value: &str| ["444", "499"].contains(&value);
            seen.is("log: $sent_http_")
                && logged(seen, |name, value| name == "status" && is_one(value))
        },
    },
    Rule {
        name: "first-of-several-errors",
        text: "Of several errors in a configuration another one is named first.",
        reason: Reason::Chance("all are errors, and Weir tells all"),
        before: None,
        matches: |seen| seen.is("refused for another line"),
    },
];
