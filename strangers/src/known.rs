//! Differences that are meant to be, each with its place in docs/compat.md. What is not here is a fault.

use crate::compare::Observation;

/// A rule: its name, where it is told, and whether it explains a difference in a configuration with these directives.
struct Rule {
    name: &'static str,
    explains: fn(&Seen<'_>) -> bool,
}

struct Seen<'s> {
    found: &'s [String],
    theirs: &'s Observation,
    ours: &'s Observation,
    directives: &'s [String],
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

    fn is_only(&self, text: &str) -> bool {
        self.found.len() == 1 && self.found[0] == text
    }
}

const RULES: &[Rule] = &[
    Rule {
        name: "Found by comparison: ranges-of-what-is-stored",
        explains: |seen| seen.has_cache() && seen.statuses() == (200, 206),
    },
    Rule {
        name: "Responses and logs: what has all come has a length, and so it has ranges",
        explains: |seen| {
            let is_added = seen.is_only("field accept-ranges is there as well: \"bytes\"");
            seen.has_cache() && is_added && seen.theirs.answer.is_chunked
        },
    },
    Rule {
        name: "Modules: sub_filter takes Accept-Ranges away",
        explains: |seen| seen.has("sub_filter") && seen.is_only("field accept-ranges is missing"),
    },
];

/// The rule that explains a difference.
pub(crate) fn rule(
    found: &[String],
    theirs: &Observation,
    ours: &Observation,
    directives: &[String],
) -> Option<&'static str> {
    let seen = Seen {
        found,
        theirs,
        ours,
        directives,
    };
    RULES
        .iter()
        .find(|rule| (rule.explains)(&seen))
        .map(|rule| rule.name)
}
