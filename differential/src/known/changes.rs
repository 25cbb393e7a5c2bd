//! What nginx has changed since older oracles. Weir does as the newest; these rules hold for the older ones only, so that
//! the comparison runs with the nginx of a distribution.

use super::{Reason, Rule};
use crate::version::Version;

/// The version that Weir follows.
const NEWEST: Version = Version(1, 31, 0);

/// In the order of the versions.
pub const CHANGES: &[Rule] = &[
    Rule {
        name: "ranges-of-gzip-static",
        text: "Files of `gzip_static` are sent in parts.",
        reason: Reason::Changed("not there before"),
        before: Some(NEWEST),
        matches: |seen| {
            let classes = [
                "field Accept-Ranges added",
                "status 200 206",
                "status 200 416",
            ];
            seen.has("gzip_static") && classes.iter().any(|class| seen.is(class))
        },
    },
    Rule {
        name: "connection-to-servers-behind",
        text: "Requests to servers behind have no `Connection: close` (and are HTTP/1.1, which the machine sets for both).",
        reason: Reason::Changed("the default was 1.0, without kept connections"),
        before: Some(NEWEST),
        matches: |seen| {
            seen.is("behind: field Connection missing") && seen.difference.oracle == "close"
        },
    },
    Rule {
        name: "newer-words",
        text: "Directives, parameters and variables that came after the oracle.",
        reason: Reason::Changed("not there before"),
        before: Some(NEWEST),
        matches: |seen| {
            let news = [
                "unknown directive",
                "invalid parameter",
                "invalid value",
                "unknown \"",
            ];
            news.iter()
                .any(|word| seen.is(&format!("refused by nginx alone: {word}")))
        },
    },
];
