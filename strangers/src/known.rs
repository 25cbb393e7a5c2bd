//! Differences that are meant to be, each with its place in docs/compat.md. What is not here is a fault.
//!
//! What nginx itself has changed since an older oracle is named by the differential machine's table of changes, which knows
//! the versions.

use weir_differential::known::CHANGES;
use weir_differential::version::Version;

use crate::compare::{Observation, settle};

/// A rule: its name, where it is told, and whether it explains a difference in a configuration with these directives.
struct Rule {
    name: &'static str,
    /// The entry of [`CHANGES`], for what only older oracles do.
    change: Option<&'static str>,
    explains: fn(&Seen<'_>) -> bool,
}

struct Seen<'s> {
    found: &'s [String],
    theirs: &'s Observation,
    ours: &'s Observation,
    directives: &'s [String],
    /// Whether the request names a host that can be one.
    is_host: bool,
}

impl Seen<'_> {
    fn has(&self, name: &str) -> bool {
        self.directives.iter().any(|directive| directive == name)
    }

    fn has_cache(&self) -> bool {
        ["proxy_cache", "fastcgi_cache", "uwsgi_cache"]
            .iter()
            .any(|name| self.has(name))
    }

    fn statuses(&self) -> (u16, u16) {
        (self.theirs.answer.status, self.ours.answer.status)
    }

    /// Whether all that differs follows from the request that the server behind got, whose answers repeat it.
    fn is_older_request(&self) -> bool {
        let is_framing = |text: &String| {
            [
                "body",
                "what the server behind saw",
                "field accept-ranges is there as well",
            ]
            .iter()
            .any(|known| text.starts_with(known))
                || text.starts_with("field content-range differs")
        };
        // HTTP/1.0 needs no host, and older versions add none to a request that names none.
        let is_without = |observation: &Observation| {
            let hosts = |text: &String| text.contains("\nHost: ");
            !observation.seen.is_empty() && !observation.seen.iter().any(hosts)
        };
        let without = is_without(self.theirs);
        let lines = |text: &str| {
            let mut lines = lines(text);
            lines.retain(|line| !(without && line.starts_with("Host: ")));
            lines
        };
        let seen = |observation: &Observation| -> Vec<_> {
            observation.seen.iter().map(|text| lines(text)).collect()
        };
        // A part of a body is a part of another one there, and one that is packed cannot be read here.
        let body = |observation: &Observation| {
            let answer = &observation.answer;
            let is_packed = answer
                .fields
                .iter()
                .any(|(name, _)| name == "content-encoding");
            match answer.status == 206 || is_packed {
                true => Vec::new(),
                false => lines(&String::from_utf8_lossy(&answer.body)),
            }
        };
        self.found.iter().all(is_framing)
            && seen(self.theirs) == seen(self.ours)
            && body(self.theirs) == body(self.ours)
    }

    fn is_only(&self, text: &str) -> bool {
        self.found.len() == 1 && self.found[0] == text
    }
}

/// The lines of a request in the same order, without what older versions say of the connection and its protocol.
fn lines(text: &str) -> Vec<String> {
    let text = settle(text).replace(" HTTP/1.0\n", " HTTP/1.1\n");
    let mut lines: Vec<_> = text
        .lines()
        .filter(|line| *line != "Connection: close")
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

const RULES: &[Rule] = &[
    Rule {
        name: "Found by comparison: ranges-of-what-is-stored",
        change: None,
        explains: |seen| seen.has_cache() && seen.statuses() == (200, 206),
    },
    Rule {
        name: "Responses and logs: what has all come has a length, and so it has ranges",
        change: None,
        explains: |seen| {
            let is_added = seen.is_only("field accept-ranges is there as well: \"bytes\"");
            seen.has_cache() && is_added && seen.theirs.answer.is_chunked
        },
    },
    Rule {
        name: "Responses and logs: line feeds in add_header",
        change: None,
        explains: |seen| {
            let is_value = |text: &String| {
                text.starts_with("field ") && text.contains("\\n\\t") || text.contains("\\n ")
            };
            seen.has("add_header") && seen.found.iter().all(is_value)
        },
    },
    Rule {
        name: "nginx's change: connection-to-upstreams",
        change: Some("connection-to-upstreams"),
        explains: |seen| seen.is_older_request(),
    },
    Rule {
        name: "nginx's change: characters-of-hosts",
        change: Some("characters-of-hosts"),
        explains: |seen| seen.statuses().1 == 400 && seen.statuses().0 != 400 && !seen.is_host,
    },
    Rule {
        name: "Modules: sub_filter takes Accept-Ranges away",
        change: None,
        explains: |seen| seen.has("sub_filter") && seen.is_only("field accept-ranges is missing"),
    },
];

/// A difference that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub(crate) rule: &'static str,
    /// nginx has changed it itself: the answer is equal to that of the nginx that Weir follows.
    pub(crate) is_change: bool,
}

/// Whether a rule holds for this oracle.
fn holds(rule: &Rule, oracle: Version) -> bool {
    rule.change.is_none_or(|name| {
        let change = CHANGES.iter().find(|change| change.name == name);
        change
            .and_then(|change| change.before)
            .is_some_and(|before| oracle < before)
    })
}

/// What explains a difference.
pub(crate) fn explanation(
    found: &[String],
    theirs: &Observation,
    ours: &Observation,
    (directives, host): (&[String], &str),
    oracle: Version,
) -> Option<Explanation> {
    let others = |byte: u8| !(byte.is_ascii_alphanumeric() || b"-._~%:[]".contains(&byte));
    let seen = Seen {
        found,
        theirs,
        ours,
        directives,
        is_host: !host.bytes().any(others),
    };
    RULES
        .iter()
        .find(|rule| holds(rule, oracle) && (rule.explains)(&seen))
        .map(|rule| Explanation {
            rule: rule.name,
            is_change: rule.change.is_some(),
        })
}

/// Whether nginx refuses this as well since a version after the oracle's.
pub(crate) fn is_changed_refusal(message: &str, oracle: Version) -> bool {
    const REMOVED: Rule = Rule {
        name: "nginx's change: removed-directives",
        change: Some("removed-directives"),
        explains: |_| true,
    };
    message.contains("unknown directive \"ssl\"") && holds(&REMOVED, oracle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_in_the_table() {
        for rule in RULES {
            let older = Version(1, 22, 1);
            assert!(holds(rule, older), "{}", rule.name);
            assert_eq!(
                holds(rule, Version(1, 31, 5)),
                rule.change.is_none(),
                "{}",
                rule.name
            );
        }
    }

    #[test]
    fn an_older_request_is_the_same_but_for_its_connection() {
        let older = "127.0.0.2\nGET / HTTP/1.0\nX-A: b\nHost: a\nConnection: close\n";
        let newer = "127.0.0.2\nGET / HTTP/1.1\nHost: a\nX-A: b\n";
        assert_eq!(lines(older), lines(newer));
        assert_ne!(
            lines(older),
            lines("127.0.0.2\nGET / HTTP/1.1\nHost: b\nX-A: b\n")
        );
    }
}
