//! What nginx has changed since older oracles. Weir does as the newest; these rules hold for the older ones only, so that
//! the comparison runs with the nginx of a distribution.

use super::{Reason, Rule};
use crate::version::Version;

/// The version that Weir follows.
const NEWEST: Version = Version(1, 31, 0);

/// Since then fields of one name are lists.
const LISTS: Version = Version(1, 23, 0);

/// In the order of the versions.
pub const CHANGES: &[Rule] = &[
    Rule {
        name: "ranges-of-gzip-static",
        text: "Files of `gzip_static` are sent with ranges.",
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
        text: "Requests to upstream servers have no `Connection: close` (and use HTTP/1.1, which the machine sets for \
               both).",
        reason: Reason::Changed("the default was 1.0, without keep-alive connections"),
        before: Some(NEWEST),
        matches: |seen| {
            seen.is("behind: field Connection missing") && seen.difference.oracle == "close"
        },
    },
    Rule {
        name: "fields-of-one-name",
        text: "Request headers with the same name are one value in variables, separated by commas.",
        reason: Reason::Changed("the first one, or the last, was the value"),
        before: Some(LISTS),
        matches: |seen| {
            let values = seen.difference.weir.split(", ");
            let is_among = |value: &str| value == seen.difference.oracle;
            seen.is("log: $") && values.clone().count() > 1 && values.clone().any(is_among)
        },
    },
    Rule {
        name: "first-of-a-name",
        text: "Of several upstream headers that may appear only once (`Expires`, `Content-Type`), the first one counts.",
        reason: Reason::Changed("all were passed on, or the last one counted"),
        before: Some(LISTS),
        matches: |seen| {
            let classes = [
                ("field Expires", "Expires: "),
                ("log: $sent_http_expires", "Expires: "),
                ("field Content-Type", "Content-Type: "),
                ("log: $sent_http_content_type", "Content-Type: "),
            ];
            let text = crate::case::text::print(seen.case);
            classes.iter().any(|(class, name)| {
                let is_twice = |line: &str| {
                    line.starts_with("send ") && line.matches(&format!("\\n{name}")).count() > 1
                };
                seen.is(class) && text.lines().any(is_twice)
            })
        },
    },
    Rule {
        name: "newer-words",
        text: "Directives, parameters and variables that are newer than the oracle.",
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
