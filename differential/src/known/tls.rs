//! Choices of TLS: which sessions are resumed, and what is told of them.

use super::evidence::{any_of_case, any_pair};
use super::{Reason, Rule, Seen};
use crate::case::tree::Node;

/// In the order of `docs/compat.md`.
pub(super) const TLS: &[Rule] = &[
    Rule {
        name: "curves-of-resumed-sessions",
        text: "In a resumed session of TLS 1.2 `$ssl_curve` is empty, and `$ssl_curves` has what this client named; nginx has the curve \
               of the session's first handshake, and no list.",
        reason: Reason::Rfc("RFC 5246, section 7.3: an abbreviated handshake exchanges no keys"),
        before: None,
        matches: |seen| {
            let classes = [
                "body",
                "field Content-Length",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
            ];
            let is_resumed = |text: &str| text.contains(" TLSv1.2 r ");
            classes.contains(&seen.difference.class.as_str())
                && (names(seen, "$ssl_curve"))
                // Of HEAD only the length is there to see.
                && any_pair(seen, |a, b| {
                    a.body.is_empty() && b.body.is_empty()
                        || is_resumed(&String::from_utf8_lossy(&a.body))
                            && is_resumed(&String::from_utf8_lossy(&b.body))
                })
        },
    },
    Rule {
        name: "sessions-of-equal-servers",
        text: "A session of one port is resumed at another one whose server has the same certificates, authorities and demands; nginx \
               has a key for each server, unless `ssl_session_ticket_key` or a shared cache joins them.",
        reason: Reason::Rfc(
            "RFC 8446, section 4.6.1: a ticket is for the servers that share its key",
        ),
        before: None,
        matches: |seen| {
            (seen.is("bytes") || seen.is("body"))
                && is_same_but_resumed(seen, |oracle, weir| !oracle && weir)
                && count(&seen.case.stream, "ssl_certificate")
                    + count(&seen.case.http, "ssl_certificate")
                    > 1
        },
    },
    Rule {
        name: "upstream-sessions-of-locations",
        text: "A TLS session with a server behind is resumed by the locations that have the same certificate, name, trust and versions \
               for it; nginx shares it among all locations that pass to that address, so that a request may be sent as another \
               client, or to a server that was not verified for it, or fail.",
        reason: Reason::Safety("a session stands for a certificate that was sent or verified"),
        before: None,
        matches: |seen| {
            let is_failed = seen.is("status 502 200") || seen.is("log: ");
            let passes = count(&seen.case.http, "proxy_pass") > 1;
            // A certificate that is bad is sent, and refused; by nginx's session without one, it is not.
            let is_refused = (seen.is("status 200 400") || seen.is("log: "))
                && seen.has("proxy_ssl_certificate")
                && any_pair(seen, |a, b| {
                    let text = String::from_utf8_lossy(&b.body).into_owned();
                    (a.status, b.status) == (200, 400) && text.contains("SSL certificate")
                });
            // The text of a server that shows the client's certificate is shorter without one.
            let lengths = [
                "body",
                "field Content-Length",
                "log: $body_bytes_sent",
                "log: $sent_http_content_length",
                "log: $upstream_response_length",
                "log: $upstream_bytes_received",
            ];
            let is_another = seen.has("proxy_ssl_certificate")
                && lengths.iter().any(|class| seen.is(class))
                && any_of_case(seen, |a, b| {
                    let [a, b] = [a, b].map(|one| String::from_utf8_lossy(&one.body).into_owned());
                    a.ends_with(" r") && !a.contains(" NONE ") && b.contains(" NONE ")
                });
            if passes && (is_refused || is_another) {
                return true;
            }
            passes
                && ((seen.is("body") && is_same_but_resumed(seen, |oracle, weir| oracle && !weir))
                    || (is_failed
                        && seen.has("proxy_ssl_verify")
                        && any_pair(seen, |a, b| (a.status, b.status) == (502, 200))))
        },
    },
];

/// True when two texts are the same but for whether a session was resumed, and that is so on both sides.
fn is_same_but_resumed(seen: &Seen<'_>, is_so: impl Fn(bool, bool) -> bool) -> bool {
    let parts = |text: &str| {
        let told = text
            .replace(" resumed true", " resumed r")
            .replace(" resumed false", " resumed .");
        let is_mark = |word: &&str| ["r", "."].contains(word);
        let words: Vec<String> = told
            .split(' ')
            .filter(|word| !is_mark(word))
            .map(str::to_owned)
            .collect();
        let is_resumed = told.split(' ').any(|word| word == "r");
        (words, is_resumed)
    };
    let (oracle, weir) = (parts(&seen.difference.oracle), parts(&seen.difference.weir));
    oracle.0 == weir.0 && is_so(oracle.1, weir.1)
}

/// True when a word of the case's configuration names a variable.
fn names(seen: &Seen<'_>, variable: &str) -> bool {
    fn any(nodes: &[Node], variable: &str) -> bool {
        let is_one = |node: &Node| node.words.iter().any(|word| word.contains(variable));
        nodes
            .iter()
            .any(|node| is_one(node) || any(node.children(), variable))
    }
    any(&seen.case.http, variable)
}

/// How often a directive stands in a tree.
fn count(nodes: &[Node], name: &str) -> usize {
    let own = nodes.iter().filter(|node| node.name() == name).count();
    let below = nodes.iter().map(|node| count(node.children(), name));
    own + below.sum::<usize>()
}
