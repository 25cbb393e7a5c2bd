//! No clock, no chance and no state of a thread above `rt` that does not come from `rt`.
//!
//! Whatever simulates time and chance has to replace a few functions there, and nothing elsewhere:
//! docs/design/2026-11-23-time-and-chance.md. Tests may read the machine's clock.

use super::Finding;
use super::source::{Source, without_comment};

/// What is taken from the air, and where it is to be taken from.
const AMBIENT: &[(&str, &str)] = &[
    (
        "thread_local!",
        "declare the state of a loop with rt::local!, or let what needs it be given it",
    ),
    ("Instant::now", CLOCK),
    ("SystemTime::now", CLOCK),
    (".elapsed()", CLOCK),
    ("Timestamp::now", CLOCK),
    ("Zoned::now", CLOCK),
    ("getrandom", CHANCE),
    ("rand::fill", CHANCE),
    ("SystemRandom", CHANCE),
    ("RandomState", CHANCE),
];

/// Where the time comes from.
const CLOCK: &str = "take the time as an argument, from rt::now() or rt::wall() on a loop, or from rt::clock::read() where there is none or within a turn";
/// Where chance comes from.
const CHANCE: &str =
    "draw from rt::random, or from net::tls::fill_random what the cryptography uses";

/// See the module's page.
pub(super) fn time_and_chance_come_from_rt(source: &Source, findings: &mut Vec<Finding>) {
    let mut parts = source.path.split('/');
    let is_code = parts.next() == Some("crates")
        && parts.next().is_some_and(|name| name != "rt")
        && parts.next() == Some("src");
    if !is_code {
        return;
    }
    for (number, line) in source.code() {
        let line = without_comment(line).replace("rt::random::RandomState", "");
        let taken = AMBIENT.iter().find(|(what, _)| names(&line, what));
        if let Some((what, remedy)) = taken {
            let place = format!("{}:{number}", source.path);
            let what = what.trim_end_matches('!');
            findings.push(Finding::new(place, format!("{what} is ambient: {remedy}")));
        }
    }
}

/// Whether a line names this: not as a part of a longer word.
fn names(line: &str, what: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(what).any(|(at, _)| {
        !what.starts_with(is_word) || !line[..at].chars().next_back().is_some_and(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        time_and_chance_come_from_rt(&Source::new(path, text.to_owned()), &mut findings);
        findings.len()
    }

    #[test]
    fn what_is_taken_from_the_air_is_found() {
        for line in [
            "    let now = Instant::now();",
            "let now = std::time::SystemTime::now();",
            "thread_local! {",
            "if begun.elapsed() > LIMIT {",
            "getrandom::fill(&mut bytes)?;",
            "use std::hash::RandomState;",
            "use std::collections::hash_map::{Entry, RandomState};",
        ] {
            assert_eq!(findings("crates/http/src/x.rs", line), 1, "{line}");
            assert_eq!(findings("crates/rt/src/clock.rs", line), 0, "{line}");
            assert_eq!(findings("tests/server/x.rs", line), 0, "{line}");
        }
    }

    #[test]
    fn what_comes_from_rt_is_not() {
        let text = "rt::local! {\nlet now = rt::clock::read();\n// Instant::now would do\nrt::random::RandomState::new();\n";
        assert_eq!(findings("crates/http/src/x.rs", text), 0);
        let test = "#[cfg(test)]\nmod tests {\n    let now = Instant::now();\n}\n";
        assert_eq!(findings("crates/http/src/x.rs", test), 0);
    }
}
