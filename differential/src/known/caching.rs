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
        text: "A POST, or another unsafe method, that succeeds takes what is stored for its target away; nginx goes on serving it.",
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
        text: "A 304 to a request without a condition goes to its client, and is not stored; nginx stores it and answers everybody \
               with it.",
        reason: Reason::Rfc("RFC 9110, section 15.4.5: a 304 is the answer to a condition"),
        before: None,
        matches: |seen| {
            follows(seen) && given(seen, |status, head| status == 304 && !is_conditional(head))
        },
    },
    Rule {
        name: "unasked-206-is-not-stored",
        text: "A 206 to a request without `Range` goes to its client, and is not stored; nginx stores it as the whole.",
        reason: Reason::Rfc("RFC 9111, section 3.3: an incomplete response is stored as such"),
        before: None,
        matches: |seen| {
            let has_range = |head: &str| head.to_ascii_lowercase().contains("range: ");
            follows(seen) && given(seen, |status, head| status == 206 && !has_range(head))
        },
    },
    Rule {
        name: "answers-to-users",
        text: "What a request with `Authorization` brought is stored only where it says `public`, `s-maxage` or `must-revalidate`, or \
               where the key has the user in it; nginx stores it for everybody.",
        reason: Reason::Rfc("RFC 9111, section 3.5"),
        before: None,
        matches: |seen| {
            let has_user = |head: &str| head.to_ascii_lowercase().contains("authorization: ");
            follows(seen) && asked(seen, |head| has_user(head))
        },
    },
    Rule {
        name: "stored-to-be-validated",
        text: "What says `no-cache` or `max-age=0` and has a lifetime or a validator is stored, and validated at each use; nginx does \
               not store it.",
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
        text: "What HEAD brought where it is asked as HEAD answers no GET; nginx answers GET with it.",
        reason: Reason::Rfc("RFC 9111, section 4: the stored response's method allows it"),
        before: None,
        matches: |seen| {
            let is_head =
                |head: &str| head.starts_with("HEAD ") || head.contains("REQUEST_METHOD: HEAD");
            follows(seen) && asked(seen, |head| is_head(head))
        },
    },
    Rule {
        name: "several-lifetimes",
        text: "Of several lifetimes of a response `s-maxage` counts, and of one kind the first; in nginx the last one does, and \
               `max-age=0` forbids.",
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
        text: "A request that comes after the response to HEAD, and before nginx has stored what it asked for by GET, asks again in \
               nginx; in Weir it follows the first one.",
        reason: Reason::Chance("who is first"),
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
        text: "A response that is not stored is sent as a whole where its origin was asked for the whole; nginx makes ranges of it if \
               it could have been stored.",
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
