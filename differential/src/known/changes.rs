//! What nginx has changed since older oracles. Weir does as the newest; these rules hold for the older ones only, so that
//! the comparison runs with the nginx of a distribution.

use super::{Reason, Rule};
use crate::version::Version;

/// The version that Weir follows.
const NEWEST: Version = Version(1, 31, 0);

/// In the order of the versions.
pub const CHANGES: &[Rule] = &[Rule {
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
}];
