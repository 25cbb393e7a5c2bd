//! What resolvers with a `status_zone` count: questions by kind, answers by what they were.
//!
//! They belong to the name of the zone, so that they outlive a reload, and several resolvers may share them. Lookups that
//! the cache answers ask no server and are not counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use base::sync::Mutex;

use super::error::ResolveError;

/// The kinds of questions, in the order of [`ResolverCounters::requests`].
pub const REQUEST_KINDS: [&str; 2] = ["name", "srv"];

/// The kinds of answers, in the order of [`ResolverCounters::responses`].
pub const RESPONSE_KINDS: [&str; 8] = [
    "noerror", "formerr", "servfail", "nxdomain", "notimp", "refused", "timedout", "unknown",
];

/// The counters of a zone.
#[derive(Debug, Default)]
pub struct ResolverCounters {
    /// By [`REQUEST_KINDS`].
    pub requests: [AtomicU64; REQUEST_KINDS.len()],
    /// By [`RESPONSE_KINDS`].
    pub responses: [AtomicU64; RESPONSE_KINDS.len()],
}

/// All zones that some configuration still uses.
static ZONES: Mutex<BTreeMap<String, Weak<ResolverCounters>>> = Mutex::new(BTreeMap::new());

impl ResolverCounters {
    /// The counters of a zone.
    pub(super) fn of_zone(name: &str) -> Arc<ResolverCounters> {
        let mut zones = ZONES.lock();
        if let Some(known) = zones.get(name).and_then(Weak::upgrade) {
            return known;
        }
        zones.retain(|_, counters| counters.strong_count() > 0);
        let new = Arc::default();
        zones.insert(name.to_owned(), Arc::downgrade(&new));
        new
    }

    /// Counts a question.
    pub(super) fn count_request(&self, kind: usize) {
        // Several loops may ask at the same time; a lookup costs far more than this.
        self.requests[kind].fetch_add(1, Relaxed);
    }

    /// Counts how a question ended.
    pub(super) fn count_response(&self, error: Option<ResolveError>) {
        let kind = match error {
            None => 0,
            Some(ResolveError::Code(code @ 1..=5)) => usize::from(code),
            Some(ResolveError::TimedOut) => 6,
            Some(ResolveError::Code(_) | ResolveError::NoResolver) => 7,
        };
        self.responses[kind].fetch_add(1, Relaxed);
    }
}

/// The zones and their counters.
pub fn resolver_zones() -> Vec<(String, Arc<ResolverCounters>)> {
    let zones = ZONES.lock();
    let known = zones
        .iter()
        .map(|(name, counters)| (name, counters.upgrade()));
    known
        .filter_map(|(name, counters)| Some((name.clone(), counters?)))
        .collect()
}
