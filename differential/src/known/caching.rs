//! Choices of caches: what is stored, for whom, and for how long. Each request more or less changes all that follows, so that
//! a rule here knows the exchange with which it begins: see [`following`](super::following).

use super::evidence::{
    any_events, any_pair, given, has_field, is_conditional, is_of_traffic, logged, said, stores,
};
use super::exchange::requests;
use super::following::{Exchange, follows, is_own, tells_of_stored};
use super::{Reason, Rule};
use crate::case::Protocol;
use crate::side::client::Event;
use crate::side::reply::Response;

/// In the order of `docs/compat.md`.
pub(super) const CACHING: &[Rule] = &[
    Rule {
        name: "unsafe-methods-invalidate",
        text: "A successful POST or other unsafe request removes what is stored for its target; nginx continues to serve \
               it.",
        reason: Reason::Rfc("RFC 9111, section 4.4"),
        before: None,
        matches: |seen| {
            let safe = ["GET", "HEAD", "OPTIONS", "TRACE"];
            follows(seen, |exchange| {
                !safe.contains(&exchange.request.method.as_str())
                    && exchange.logged("upstream_status").starts_with(['2', '3'])
            })
        },
    },
    Rule {
        name: "unconditional-304-is-not-stored",
        text: "A 304 to an unconditional request is sent to its client and not stored; nginx stores it and sends it to \
               every client.",
        reason: Reason::Rfc("RFC 9110, section 15.4.5: a 304 responds to a conditional request"),
        before: None,
        matches: |seen| {
            let is_one = |exchange: &Exchange<'_>| exchange.logged("upstream_status") == "304";
            (follows(seen, is_one) || tells_of_stored(seen, is_one))
                && given(seen, |status, head| status == 304 && !is_conditional(head))
        },
    },
    Rule {
        name: "unrequested-206-is-not-stored",
        text: "A 206 to a request without `Range` is sent to its client and not stored; nginx stores it as the whole \
               response.",
        reason: Reason::Rfc(
            "RFC 9111, section 3.3: an incomplete response is stored as incomplete",
        ),
        before: None,
        matches: |seen| {
            let has_range = |head: &str| head.to_ascii_lowercase().contains("range: ");
            let is_one = |exchange: &Exchange<'_>| exchange.logged("upstream_status") == "206";
            (follows(seen, is_one) || tells_of_stored(seen, is_one))
                && given(seen, |status, head| status == 206 && !has_range(head))
        },
    },
    Rule {
        name: "responses-to-authorization",
        text: "The response to a request with `Authorization` is stored only if it has `public`, `s-maxage` or \
               `must-revalidate`, or if the key contains the user; nginx stores it for all users.",
        reason: Reason::Rfc("RFC 9111, section 3.5"),
        before: None,
        matches: |seen| {
            follows(seen, |exchange| {
                let mut fields = exchange.request.fields.iter();
                fields.any(|(name, _)| name == "Authorization")
            })
        },
    },
    Rule {
        name: "no-cache-is-stored",
        text: "A response with `no-cache` or `max-age=0` that has a lifetime or a validator is stored, and validated on \
               each use; nginx does not store it.",
        reason: Reason::Rfc("RFC 9111, section 5.2.2.4"),
        before: None,
        matches: |seen| {
            let difference = seen.difference;
            let words = (difference.oracle.as_str(), difference.weir.as_str());
            let is_word = seen.is("log: $upstream_cache_status") || seen.is("field X-Cache");
            let asks = [
                "behind: field If-Modified-Since added",
                "behind: field If-None-Match added",
                "behind: field HTTP_IF_MODIFIED_SINCE added",
                "behind: field HTTP_IF_NONE_MATCH added",
            ];
            let is_asked =
                seen.has_ending("_cache_revalidate") && asks.iter().any(|class| seen.is(class));
            let forbids = |text: &str| {
                let text = text.to_ascii_lowercase();
                text.contains("no-cache") || text.contains("max-age=0") || text.contains("maxage=0")
            };
            stores(seen)
                && said(seen, forbids)
                && (is_asked || is_word && matches!(words, ("MISS", "EXPIRED" | "REVALIDATED")))
        },
    },
    Rule {
        name: "responses-to-head",
        text: "The response to a HEAD that was forwarded as HEAD does not answer a GET; nginx answers GET with it.",
        reason: Reason::Rfc("RFC 9111, section 4: the method of the stored response must allow it"),
        before: None,
        matches: |seen| follows(seen, |exchange| exchange.request.method == "HEAD"),
    },
    Rule {
        name: "warnings-of-stored-responses",
        text: "What an upstream repeats of a header that may appear only once is in the error log when its response comes; nginx warns again \
               whenever it serves it from the cache.",
        reason: Reason::Safety(
            "a warning about a server that was not asked misleads the search for a fault",
        ),
        before: None,
        matches: |seen| {
            stores(seen)
                && seen.is("error log: missing [warn] upstream sent duplicate header line")
                && !seen
                    .difference
                    .oracle
                    .contains(" while reading response header from upstream")
        },
    },
    Rule {
        name: "fields-of-connections-that-are-stored",
        text: "`Upgrade` and `Trailer` of a response that is stored are those of the connection that brought it, and not of a response from \
               the cache; nginx passes them on.",
        reason: Reason::Rfc("RFC 9111, section 3.1; RFC 9110, sections 6.6.2 and 7.6.1"),
        before: None,
        matches: |seen| {
            let class = seen.difference.class.to_ascii_lowercase();
            let classes = ["field upgrade missing", "field trailer missing"];
            stores(seen) && classes.contains(&class.as_str())
        },
    },
    Rule {
        name: "errors-of-invalid-responses",
        text: "Whether the 502 for a response whose header is invalid is stored depends on `*_cache_valid`, and on whether this key is known not to \
               be stored; with nginx on what it has read of the header.",
        reason: Reason::Safety("what is rejected is not trusted"),
        before: None,
        matches: |seen| {
            seen.has_ending("_cache_valid")
                && follows(seen, |exchange| {
                    let statuses = ["200", "502"];
                    statuses.contains(&exchange.logged("upstream_status"))
                })
                && logged(seen, |name, value| {
                    name == "upstream_status" && value.contains("502")
                })
        },
    },
    Rule {
        name: "fetches-that-are-repeated",
        text: "A fetch for the cache that breaks off, or whose content is invalid, is repeated, so that the client gets a whole response; nginx \
               passes on what it has got.",
        reason: Reason::Rfc("RFC 9111, section 3.3: an incomplete response is completed"),
        before: None,
        matches: |seen| {
            let more = seen.sides.is_some_and(|[a, b]| {
                let mut pairs = a.received.iter().zip(&b.received);
                pairs.any(|(a, b)| a.len() < b.len())
            });
            let is_short =
                |name: &str, value: &str| name == "request_completion" && value.is_empty();
            let lacks = seen.sides.is_some_and(|[a, _]| {
                let mut lines = a.log.iter();
                lines.any(|line| line.iter().all(|(name, _)| name != "request_completion"))
            });
            let is_cut = |a: &Event, _: &Event| matches!(a, Event::Response(a) if a.cut);
            stores(seen)
                && is_of_traffic(seen)
                && more
                && (lacks || logged(seen, is_short))
                && any_events(seen, is_cut)
        },
    },
    Rule {
        name: "servers-of-stored-responses",
        text: "A stored response of an HTTP/2 server that did not name itself has no `Server` where `proxy_pass_header` passes it on; nginx names itself.",
        reason: Reason::Rfc("RFC 9110, section 10.2.4: it is the origin's to say"),
        before: None,
        matches: |seen| {
            let mut behind = seen.case.upstreams.iter();
            stores(seen)
                && seen.is("field Server missing")
                && seen.has("proxy_pass_header")
                && behind.any(|upstream| upstream.protocol == Protocol::Grpc)
        },
    },
    Rule {
        name: "refused-ranges",
        text: "`Accept-Ranges: none` of a stored response stays, and no range of it is served; nginx takes any value for `bytes`, and has none \
               with a status other than 200.",
        reason: Reason::Rfc("RFC 9110, section 14.3"),
        before: None,
        matches: |seen| {
            let is_none = |response: &Response| {
                let mut fields = response.fields.iter();
                fields.any(|(name, value)| {
                    name.eq_ignore_ascii_case("Accept-Ranges") && value.contains("none")
                })
            };
            let is_field = seen
                .difference
                .class
                .to_ascii_lowercase()
                .starts_with("field accept-ranges");
            stores(seen)
                && is_field
                && any_pair(seen, |a, b| {
                    a.status == b.status && (is_none(a) || is_none(b))
                })
        },
    },
    Rule {
        name: "several-lifetimes",
        text: "Of several freshness lifetimes, `s-maxage` wins, and of the same kind the first; in nginx the last one wins, \
               and `max-age=0` forbids storing.",
        reason: Reason::Rfc("RFC 9111, sections 4.2.1 and 5.2.2.10"),
        before: None,
        matches: |seen| {
            let has_two = |text: &str| {
                let text = text.to_ascii_lowercase();
                let count = |word: &str| text.matches(word).count();
                count("max-age=") + count("s-maxage=") > 1
                    || count("\nexpires: ") > 1
                    || count("\nx-accel-expires: ") > 1
            };
            said(seen, has_two)
                && follows(seen, |exchange| {
                    !exchange.logged("upstream_status").is_empty()
                })
        },
    },
    Rule {
        name: "age-of-origins",
        text: "The `Age` that an origin sends is a part of the response's lifetime that has passed; nginx counts from when it got it.",
        reason: Reason::Rfc("RFC 9111, section 4.2.3"),
        before: None,
        matches: |seen| {
            said(seen, |text| text.contains("\nAge: "))
                && follows(seen, |exchange| {
                    !exchange.logged("upstream_status").is_empty()
                })
        },
    },
    Rule {
        name: "stored-errors",
        text: "An error that an error page replaces is stored as any other response, not where `*_no_cache` forbids it; nginx remembers its \
               status, also where it is forbidden and for requests that `Vary` excludes, and not if the request bypassed the cache.",
        reason: Reason::Safety("what must not be stored is not"),
        before: None,
        matches: |seen| {
            seen.has_ending("_intercept_errors")
                && (seen.has_ending("_no_cache")
                    || seen.has_ending("_cache_bypass")
                    || said(seen, |text| text.to_ascii_lowercase().contains("\nvary: ")))
                && follows(seen, |exchange| {
                    exchange.logged("upstream_status").starts_with(['4', '5'])
                })
        },
    },
    Rule {
        name: "expired-on-arrival",
        text: "A response whose `X-Accel-Expires` is a time in the past is not stored; nginx stores it as expired. Of one that an error page \
               replaces it is the other way round.",
        reason: Reason::Rfc("RFC 9111, section 4.2.4: a stale response is not used"),
        before: None,
        matches: |seen| {
            let is_word = seen.is("log: $upstream_cache_status") || seen.is("field X-Cache");
            let words = (
                seen.difference.oracle.as_str(),
                seen.difference.weir.as_str(),
            );
            let is_replaced = seen.has_ending("_intercept_errors") && words == ("MISS", "EXPIRED");
            stores(seen)
                && is_word
                && (words == ("EXPIRED", "MISS") || is_replaced)
                && said(seen, |text| text.contains("X-Accel-Expires: @9"))
        },
    },
    Rule {
        name: "get-after-head",
        text: "A request that arrives after the response to a HEAD, but before nginx has stored the GET behind it, causes \
               another fetch in nginx; in Weir it follows the first fetch.",
        reason: Reason::Chance("it depends on which comes first"),
        before: None,
        matches: |seen| {
            let more = seen.sides.is_some_and(|[a, b]| {
                let mut pairs = a.received.iter().zip(&b.received);
                pairs.any(|(a, b)| a.len() > b.len())
            });
            more && follows(seen, |exchange| exchange.request.method == "HEAD")
        },
    },
    Rule {
        name: "fetches-behind-412-and-416",
        text: "What is fetched for a request that is answered by 412 or 416 is stored all the same; nginx gives it up.",
        reason: Reason::Rfc("RFC 9111, section 3: the response is complete and may be stored"),
        before: None,
        matches: |seen| {
            follows(seen, |exchange| {
                ["412", "416"].contains(&exchange.logged("status"))
                    && !exchange.logged("upstream_status").is_empty()
            })
        },
    },
    Rule {
        name: "slices-of-another-length",
        text: "A part whose length is not the one that its `Content-Range` tells, or that tells another length of the whole than the part before \
               it, is none, with `slice`: the response is aborted, or asked for anew; nginx sends what it got.",
        reason: Reason::Rfc("RFC 9110, section 14.4: an invalid Content-Range is not recombined"),
        before: None,
        matches: |seen| {
            let is_wrong = |text: &str| text.contains("Content-Range: bytes 0-9/30");
            let is_one =
                |exchange: &Exchange<'_>| exchange.logged("upstream_status").contains("206");
            let whole = |text: &str| {
                let (_, rest) = text.split_once("Content-Range: bytes ")?;
                let (_, length) = rest.lines().next()?.split_once('/')?;
                Some(length.to_owned())
            };
            let mut wholes: Vec<String> = Vec::new();
            for text in seen.facts.said().iter().filter_map(|texts| texts.first()) {
                wholes.extend(whole(text).filter(|length| !wholes.contains(length)));
            }
            seen.has("slice")
                && (said(seen, is_wrong) || wholes.len() > 1)
                && (follows(seen, is_one) || (is_of_traffic(seen) && is_own(seen, is_one)))
        },
    },
    Rule {
        name: "conditions-past-the-cache",
        text: "A request whose response is known not to be stored goes to its origin with the client's conditions, so that a 304 can \
               answer it; nginx leaves them out, as it does for a response that it stores.",
        reason: Reason::Rfc("RFC 9110, section 13.2.1: they are the origin's to judge"),
        before: None,
        matches: |seen| {
            let class = seen.difference.class.as_str();
            let name = class.strip_prefix("behind: field ").unwrap_or_default();
            let name = name.strip_suffix(" added").unwrap_or_default();
            let name = name.strip_prefix("HTTP_").unwrap_or(name).replace('_', "-");
            let is_condition = [
                "If-None-Match",
                "If-Modified-Since",
                "If-Match",
                "If-Unmodified-Since",
            ]
            .iter()
            .any(|known| known.eq_ignore_ascii_case(&name));
            let is_own = requests(seen).any(|request| {
                let mut fields = request.fields.iter();
                fields.any(|(known, value)| {
                    known.eq_ignore_ascii_case(&name)
                        && (*value == seen.difference.weir
                            || crate::case::content::shown(value.as_bytes())
                                == seen.difference.weir)
                })
            });
            stores(seen) && is_condition && is_own
        },
    },
    Rule {
        name: "ranges-of-uncached-responses",
        text: "A response that is not stored is sent whole if the whole was requested from its origin; nginx extracts the \
               range if the response could have been stored.",
        reason: Reason::Rfc("RFC 9110, section 14.2: a server may ignore Range"),
        before: None,
        matches: |seen| {
            let is_one = |a: u16, b: u16| [206, 416].contains(&a) && b == 200;
            let follows = ["status ", "log: $", "event closed kept"];
            stores(seen)
                && has_field(seen, &["Range"])
                && follows.iter().any(|class| seen.is(class))
                && any_pair(seen, |a, b| is_one(a.status, b.status))
        },
    },
];
