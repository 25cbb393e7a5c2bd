//! The rules, a file for each subject. A new one is a row of its file's list.

use super::{CheckRule, RuleDanger, RuleHit};

mod access;
mod cache;
mod files;
mod headers;
mod origins;
mod servers;
mod urls;

/// Every rule.
pub(super) fn all() -> impl Iterator<Item = &'static CheckRule> {
    [
        access::RULES,
        files::RULES,
        urls::RULES,
        headers::RULES,
        origins::RULES,
        cache::RULES,
        servers::RULES,
    ]
    .into_iter()
    .flatten()
}
