//! Differences that are known: each by a rule, with a reason that holds without us.
//!
//! [`choices`] are what Weir does otherwise than every nginx; `docs/compat.md` lists them from here. [`CHANGES`] are what nginx
//! itself has changed since an older oracle; Weir does as the newest one.

mod caching;
mod case_facts;
mod changes;
mod evidence;
mod exchange;
mod following;
mod frames;
mod grpc;
mod heads;
mod hellos;
mod http2;
mod leftovers;
mod lua;
mod page;
mod passing;
mod rules;
mod seldom;
mod sent_behind;
mod sent_pages;
mod tls;

pub use case_facts::CaseFacts;
pub use changes::CHANGES;
pub use page::{page, write_page};

use caching::CACHING;
use frames::FRAMES;
use grpc::GRPC;
use heads::HEADS;
use http2::HTTP2;
use leftovers::LEFTOVERS;
use lua::{LUA, LUA_CHANGES};
use passing::PASSING;
use rules::RULES;
use seldom::SELDOM;
use sent_behind::SENT_BEHIND;
use sent_pages::SENT_PAGES;
use tls::TLS;

use crate::case::Case;
use crate::compare::Difference;
use crate::observe::Observation;
use crate::version::Version;

/// A known difference.
#[derive(Debug)]
pub struct Rule {
    /// A short name, for reports.
    pub name: &'static str,
    /// What differs, for `docs/compat.md`: Markdown, what Weir does and what nginx does.
    pub text: &'static str,
    /// Why.
    pub reason: Reason,
    /// The rule holds for oracles before this version only.
    pub before: Option<Version>,
    /// Whether a difference is this one.
    pub matches: fn(&Seen<'_>) -> bool,
}

/// Why a difference stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A standard says so.
    Rfc(&'static str),
    /// The other behaviour harms who runs the server, or its clients.
    Safety(&'static str),
    /// nginx changed it itself.
    Changed(&'static str),
    /// No promise of either: an order, a moment.
    Chance(&'static str),
    /// None yet: it counts as open.
    Open(&'static str),
}

/// A difference with all that a rule may look at.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The case.
    pub case: &'a Case,
    /// What is known of it.
    pub facts: &'a CaseFacts<'a>,
    /// The difference.
    pub difference: &'a Difference,
    /// What both showed; nothing where a configuration was refused.
    pub sides: Option<&'a [Observation; 2]>,
    /// The oracle's version.
    pub oracle: Version,
}

impl Seen<'_> {
    /// True when the class begins with this.
    pub fn is(&self, class: &str) -> bool {
        self.difference.class.starts_with(class)
    }

    /// True when the case has this directive.
    pub fn has(&self, directive: &str) -> bool {
        self.facts.directives().iter().any(|name| name == directive)
    }

    /// True when a directive of the case has a name that ends so: `_cache`.
    pub fn has_ending(&self, end: &str) -> bool {
        self.facts
            .directives()
            .iter()
            .any(|name| name.ends_with(end))
    }
}

/// Where Weir differs from every nginx, in the order of `docs/compat.md`.
pub fn choices() -> impl Iterator<Item = &'static Rule> {
    RULES
        .iter()
        .chain(HEADS)
        .chain(HTTP2)
        .chain(FRAMES)
        .chain(TLS)
        .chain(PASSING)
        .chain(SENT_BEHIND)
        .chain(SENT_PAGES)
        .chain(CACHING)
        .chain(GRPC)
        .chain(LEFTOVERS)
        .chain(LUA)
        .chain(SELDOM)
}

/// The rule that knows a difference.
pub fn find(seen: &Seen<'_>) -> Option<&'static Rule> {
    let holds = |rule: &&Rule| {
        rule.before.is_none_or(|before| seen.oracle < before) && (rule.matches)(seen)
    };
    choices().chain(CHANGES).chain(LUA_CHANGES).find(holds)
}
