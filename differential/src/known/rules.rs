//! The choices: where Weir differs from every nginx.

use super::evidence::{any_events, any_pair, has_field, stores};
use super::{Reason, Rule};
use crate::side::client::Event;
use crate::side::reply::Response;

/// In the order of `docs/compat.md`.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "client-port",
        text: "The client's port in a PROXY protocol header, and whether the header arrives alone or together with what \
               follows it.",
        reason: Reason::Chance("the kernel chooses the port and splits the bytes"),
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
        name: "invalid-base32",
        text: "`set_decode_base32` of what is not base32 is empty; the third-party module takes other characters for the first of the \
               alphabet.",
        reason: Reason::Safety(
            "the documentation of the module says so, and a script that checks for it relies on it",
        ),
        before: None,
        matches: |seen| {
            let classes = [
                "body",
                "field Content-Length",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
            ];
            let (oracle, weir) = (&seen.difference.oracle, &seen.difference.weir);
            let is_value = ["field ", "behind: field ", "log: $"]
                .iter()
                .any(|class| seen.is(class))
                && oracle.len() > weir.len()
                && oracle.starts_with(weir.as_str());
            if seen.has("set_decode_base32") && is_value {
                return true;
            }
            seen.has("set_decode_base32")
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    let length = |response: &Response| {
                        let field = response.field("Content-Length").unwrap_or_default();
                        field.parse().unwrap_or(response.body.len())
                    };
                    a.status == b.status && length(a) > length(b)
                })
        },
    },
    Rule {
        name: "content-type-of-304",
        text: "A 304 has no `Content-Type`, even if `more_set_headers` sets one.",
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
        text: "A response that passes through `body_filter_by_lua` has no `Content-Length` and no `Accept-Ranges`, and its \
               strong `ETag` becomes weak; with nginx the header stays unchanged, and a body that the script made longer \
               runs into the next response.",
        reason: Reason::Safety(
            "one response hidden in another (RFC 9112, section 11.1; RFC 9110, section 8.8.1)",
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
            let is_longer = seen.is("log: $body_bytes_sent")
                && any_pair(seen, |a, b| a.body != b.body && b.body.starts_with(&a.body));
            (is_longer || classes.iter().any(|class| seen.is(class)))
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
        text: "A response that is complete before its header is sent has a `Content-Length`, even if its origin sent chunks \
               or closed the connection; nginx sends chunks.",
        reason: Reason::Rfc("RFC 9110, section 8.6: a length should be sent if it is known"),
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
            // Of a response that the client did not read to its end, or that has no head, only the log tells.
            let is_unread = seen.is("log: $sent_http_content_length")
                && seen.difference.oracle.is_empty()
                && any_events(seen, |a, b| {
                    let is_none = |event: &Event| match event {
                        Event::Response(response) => response.status == 9,
                        Event::Silent(_) | Event::Bytes(_) => true,
                        Event::Reset(_) | Event::GoAway(..) => true,
                        _ => false,
                    };
                    is_none(a) && is_none(b)
                });
            // With trailers it has chunks all the same.
            let is_offered = seen.is("field Accept-Ranges added")
                && seen.has("add_trailer")
                && any_pair(seen, |a, b| {
                    a.status == 200 && b.status == 200 && a.body == b.body
                });
            framing
                || is_unread
                || is_offered
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
        text: "A 412 or 416 that replaces a response is complete and leaves the connection open, as its header says; nginx \
               says `keep-alive`, closes the connection, and logs the response as incomplete and without an upstream. \
               On HTTP/2 it sends the response's body after the error page.",
        reason: Reason::Rfc("RFC 9112, section 9.6: a server that closes says so"),
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
        name: "interrupted-fastcgi-responses",
        text: "A FastCGI response that is interrupted is aborted, so that it cannot be mistaken for a complete one; nginx \
               ends it properly. One that is shorter than its length is logged as incomplete.",
        reason: Reason::Rfc("RFC 9112, section 8: an incomplete message must be recognisable"),
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
            let is_short = |response: &Response| {
                let length = response
                    .field("Content-Length")
                    .and_then(|text| text.parse().ok());
                response.cut || length.is_some_and(|length: usize| length > response.body.len())
            };
            let logged = seen.has("fastcgi_pass")
                && seen.is("log: $request_completion")
                && seen.difference.oracle == "OK"
                && any_pair(seen, |_, b| is_short(b));
            let told = seen.has("fastcgi_pass")
                && seen.is("error log: added [error] upstream prematurely closed connection");
            // It is not stored either.
            let is_cut = |_: &Event, b: &Event| matches!(b, Event::Response(b) if b.cut);
            let stored = seen.has("fastcgi_store")
                && (seen.is("files") || seen.is("file "))
                && any_events(seen, is_cut);
            both || fastcgi || logged || told || stored
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
        name: "ranges-of-stored-responses",
        text: "Ranges are served from every stored 200 without `Accept-Ranges: none`; nginx requires `Accept-Ranges`.",
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
                "log: $sent_http_transfer_encoding",
                "log: $sent_http_content_length",
                "log: $sent_http_content_type",
                // A part has a length, which an old client's connection can be kept for.
                "log: $sent_http_connection",
                "event closed kept",
            ];
            let is_added = seen.is("field Accept-Ranges added")
                && seen.difference.weir == "bytes"
                && any_pair(seen, |a, b| a.status == 200 && b.status == 200);
            let is_other = statuses.iter().chain(&follows).any(|class| seen.is(class))
                && has_field(seen, &["Range"])
                && any_pair(seen, is_part);
            // What is told of the whole is not told of an error page.
            let has_gone = ["log: $sent_http_etag", "log: $sent_http_last_modified"]
                .iter()
                .any(|class| seen.is(class))
                && seen.difference.weir.is_empty()
                && any_pair(seen, |a, b| (a.status, b.status) == (200, 416));
            stores(seen) && (is_added || is_other || has_gone)
        },
    },
    Rule {
        name: "userid-cookies",
        text: "The cookie of `userid` contains the server's address and the time.",
        reason: Reason::Chance("it distinguishes users and has no other meaning"),
        before: None,
        matches: |seen| {
            let name = |text: &str| text.split_once('=').map(|(name, _)| name.to_owned());
            seen.has("userid")
                && seen.is("field Set-Cookie")
                && seen.difference.oracle.len() == seen.difference.weir.len()
                && name(&seen.difference.oracle) == name(&seen.difference.weir)
        },
    },
    Rule {
        name: "compressed-length",
        text: "The compressed length of a body.",
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
            // Not a length of something else.
            let number = |text: &str| text.parse::<f64>().ok();
            let some = if seen.is("log: $gzip_ratio") {
                0.0
            } else {
                32.0
            };
            let is_near = match (
                number(&seen.difference.oracle),
                number(&seen.difference.weir),
            ) {
                // What compresses well has a length of little but tables.
                (Some(a), Some(b)) => (a - b).abs() <= some + a.max(b) / 2.0,
                _ => false,
            };
            is_near
                && classes.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| {
                    is_packed(a) && is_packed(b) && a.body != b.body
                })
        },
    },
    Rule {
        name: "add-header-once",
        text: "A 416 or 412 has the headers of `add_header` once. nginx adds those with `always` to the response that it \
               would have sent, and again to the error page.",
        reason: Reason::Rfc("RFC 9110, section 5.3: a header that is not a list appears once"),
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
            "a client that leaves out an argument should not lose its response without an explanation",
        ),
        before: None,
        matches: |seen| {
            let classes = ["event closed ", "log: "];
            classes.iter().any(|class| seen.is(class))
                && seen.has("charset")
                && seen.facts.text().contains("charset $")
                && any_events(seen, |a, b| {
                    matches!((a, b), (Event::Closed, Event::Response(_)))
                })
        },
    },
    Rule {
        name: "sessions-of-named-servers",
        text: "`ssl_session_tickets` and `ssl_session_cache` count in the server that the client's name chooses; nginx takes those of the \
               port's default server.",
        reason: Reason::Safety("a server that forbids sessions has none"),
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
        text: "`try_files … =200` and other codes that are not errors send a response without a body; nginx never responds.",
        reason: Reason::Safety("a client that waits for nothing holds a connection"),
        before: None,
        matches: |seen| {
            let follows = ["log: $status", "log: $sent_http_"];
            seen.has("try_files")
                && (seen.is("event silent 2")
                    || (follows.iter().any(|class| seen.is(class))
                        && any_events(seen, |a, b| match (a, b) {
                            (Event::Silent(_), Event::Response(b)) => {
                                (200..300).contains(&b.status)
                            }
                            _ => false,
                        })))
        },
    },
    Rule {
        name: "announced-closes",
        text: "A response of a server block, or of an `internal` location that refuses, says `Connection: close` where `keepalive_timeout 0` or \
               `keepalive_requests` closes the connection; nginx says `keep-alive`, and closes it or overlooks the limit.",
        reason: Reason::Rfc("RFC 9112, section 9.6: a server that closes says so"),
        before: None,
        matches: |seen| {
            let is_said = (seen.is("field Connection") || seen.is("log: $sent_http_connection"))
                && (seen.difference.oracle == "keep-alive" && seen.difference.weir == "close");
            // What was asked behind it is not answered there.
            let is_closed = seen.is("event ") && seen.difference.class.ends_with(" closed");
            let is_followed = (is_closed || seen.is("log: lines "))
                && any_pair(seen, |a, b| {
                    let said = |one: &Response| one.field("Connection").unwrap_or("").to_owned();
                    a.status == b.status && said(a) == "keep-alive" && said(b) == "close"
                });
            (seen.has("keepalive_timeout") || seen.has("keepalive_requests"))
                && (is_said || is_followed)
        },
    },
    Rule {
        name: "put-without-a-parent",
        text: "A `PUT` to a path whose parent is missing is 409; nginx says 500.",
        reason: Reason::Rfc("RFC 4918, section 9.7.1"),
        before: None,
        matches: |seen| {
            let follows = ["status 500 ", "event closed kept", "log: $"];
            let is_error = seen.is("error log: ")
                && (seen.difference.oracle.contains("rename() ")
                    || seen.difference.weir.contains("rename() "));
            seen.has("dav_methods")
                && (is_error
                    || (follows.iter().any(|class| seen.is(class))
                        && any_pair(seen, |a, b| {
                            a.status == 500
                                && (b.status == 409 || seen.has("error_page") && b.status != 500)
                        })))
        },
    },
    Rule {
        name: "variables-of-changed-fields",
        text: "Variables of a field (`$sent_http_link`, `$cookie_…`) show what headers-more has set, and nothing of what it has cleared; \
               nginx's show what was there before.",
        reason: Reason::Safety("a log, or a decision, by what was not sent misleads"),
        before: None,
        matches: |seen| {
            let sent = seen.is("log: $sent_http_link") || seen.is("log: $sent_http_last_modified");
            let was_set = seen.has("more_set_headers") || seen.has("more_clear_headers");
            let of_request = [
                "log: $cookie_",
                "log: $content_type",
                "log: $content_length",
            ];
            let came = of_request.iter().any(|class| seen.is(class))
                && ["", "0"].contains(&seen.difference.weir.as_str());
            let is_address = seen.is("log: $proxy_add_x_forwarded_for")
                && seen
                    .difference
                    .oracle
                    .ends_with(&format!(", {}", seen.difference.weir));
            (sent && was_set) || ((came || is_address) && seen.has("more_clear_input_headers"))
        },
    },
    Rule {
        name: "preconditions",
        text: "`If-None-Match` and `If-Match` take precedence over dates, and a response without a validator satisfies no \
               condition; nginx requires all of them to hold.",
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
        text: "The page for a 412 or 416 set by `error_page` has its own headers; nginx keeps those of the response that it \
               replaces, so there are two `ETag` headers.",
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
        name: "first-of-several-errors",
        text: "Which of several configuration errors is named first.",
        reason: Reason::Chance("all are errors, and Weir reports all of them"),
        before: None,
        matches: |seen| seen.is("refused for another line"),
    },
];
