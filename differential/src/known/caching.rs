//! Choices of caches: what is stored, for whom, and for how long. Each request more or less changes all that follows, so that
//! a rule here knows the first one by what the servers behind were asked and said, and then what differs after it.

use super::evidence::{
    any_pair, asked, counts_differ, given, has_field, is_conditional, is_of_traffic, logged, said,
    stores,
};
use super::{Reason, Rule, Seen};
use crate::case::Step;

/// In the order of `docs/compat.md`.
pub(super) const CACHING: &[Rule] = &[
    Rule {
        name: "unsafe-methods-invalidate",
        text: "A successful POST or other unsafe request removes what is stored for its target; nginx continues to serve \
               it.",
        reason: Reason::Rfc("RFC 9111, section 4.4"),
        before: None,
        matches: |seen| {
            let is_unsafe = |head: &str| {
                ["POST ", "PUT ", "DELETE ", "PATCH "]
                    .iter()
                    .any(|method| head.starts_with(method))
                    || head.contains("REQUEST_METHOD: POST")
            };
            follows(seen) && asked(seen, |head| is_unsafe(head))
        },
    },
    Rule {
        name: "unasked-304-is-not-stored",
        text: "A 304 to an unconditional request is sent to its client and not stored; nginx stores it and sends it to \
               every client.",
        reason: Reason::Rfc("RFC 9110, section 15.4.5: a 304 responds to a conditional request"),
        before: None,
        matches: |seen| {
            follows(seen) && given(seen, |status, head| status == 304 && !is_conditional(head))
        },
    },
    Rule {
        name: "unasked-206-is-not-stored",
        text: "A 206 to a request without `Range` is sent to its client and not stored; nginx stores it as the whole \
               response.",
        reason: Reason::Rfc(
            "RFC 9111, section 3.3: an incomplete response is stored as incomplete",
        ),
        before: None,
        matches: |seen| {
            let has_range = |head: &str| head.to_ascii_lowercase().contains("range: ");
            follows(seen) && given(seen, |status, head| status == 206 && !has_range(head))
        },
    },
    Rule {
        name: "answers-to-users",
        text: "The response to a request with `Authorization` is stored only if it has `public`, `s-maxage` or \
               `must-revalidate`, or if the key contains the user; nginx stores it for all users.",
        reason: Reason::Rfc("RFC 9111, section 3.5"),
        before: None,
        matches: |seen| {
            let has_user = |head: &str| head.to_ascii_lowercase().contains("authorization: ");
            follows(seen) && asked(seen, |head| has_user(head))
        },
    },
    Rule {
        name: "stored-to-be-validated",
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
            stores(seen)
                && (is_asked || is_word && matches!(words, ("MISS", "EXPIRED" | "REVALIDATED")))
        },
    },
    Rule {
        name: "answers-to-head",
        text: "The response to a HEAD that was forwarded as HEAD does not answer a GET; nginx answers GET with it.",
        reason: Reason::Rfc("RFC 9111, section 4: the method of the stored response must allow it"),
        before: None,
        matches: |seen| {
            let is_head =
                |head: &str| head.starts_with("HEAD ") || head.contains("REQUEST_METHOD: HEAD");
            follows(seen) && asked(seen, |head| is_head(head))
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
            follows(seen) && said(seen, has_two)
        },
    },
    Rule {
        name: "head-before-content",
        text: "A request that arrives after the response to a HEAD, but before nginx has stored the GET behind it, causes \
               another fetch in nginx; in Weir it follows the first fetch.",
        reason: Reason::Chance("it depends on which comes first"),
        before: None,
        matches: |seen| {
            let more = seen.sides.is_some_and(|[a, b]| {
                let mut pairs = a.received.iter().zip(&b.received);
                pairs.any(|(a, b)| a.len() > b.len())
            });
            let has_head = seen.case.talk.iter().any(
                |step| matches!(step, Step::Request { request, .. } if request.method == "HEAD"),
            );
            follows(seen) && more && has_head
        },
    },
    Rule {
        name: "ranges-of-what-passes",
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

/// Whether a difference can come of a request more or less.
fn follows(seen: &Seen<'_>) -> bool {
    let told = logged(seen, |name, value| {
        name == "upstream_cache_status" && !value.is_empty()
    });
    stores(seen)
        && told
        && is_of_traffic(seen)
        && (counts_differ(seen) || seen.is("log: $upstream_"))
}
