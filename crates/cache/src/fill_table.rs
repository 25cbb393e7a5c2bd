//! The table of fills: those under way, one per key and coverage, those that have come to their end and are not committed,
//! and the keys that are remembered as hit-for-miss.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::fill::{Coverage, Fill, Phase};
use crate::index::Location;
use crate::object::Object;
use base::sync::{Mutex, MutexGuard};

/// The most keys remembered as uncacheable.
const LEARNED_MAX: usize = 65_536;

#[derive(Default)]
pub(crate) struct FillTable {
    tables: Mutex<FillMaps>,
    /// How many objects are renewed and not yet written so.
    renewed: AtomicUsize,
    /// How many keys have an object that has arrived and is not committed yet.
    arrived: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct FillMaps {
    /// By hash, and by what they bring.
    pub(crate) running: HashMap<(u64, Coverage), Arc<Fill>>,
    /// Hash, and until when in milliseconds.
    learned: HashMap<u64, u64>,
    /// Objects with a new head that the store's writer has not written yet, by hash. It holds as many as jobs wait.
    renewed: HashMap<u64, Object>,
    /// Fills that have come to their end and that the store's writer has not committed yet, by the hashes of their keys.
    /// It holds as many as jobs wait.
    pub(crate) arrived: HashMap<u64, Arc<Fill>>,
}

impl FillTable {
    /// Bytes that fills under way are yet to write.
    pub(crate) fn pending(&self) -> u64 {
        let tables = self.lock();
        let fills = tables.running.values().chain(tables.arrived.values());
        // One that has arrived stands in both, one of a variant under two keys.
        let mut seen = HashSet::new();
        fills
            .filter(|fill| seen.insert(Arc::as_ptr(fill)))
            .map(|fill| fill.pending())
            .sum()
    }

    /// Where in a segment the last byte stands that a fill under way needs.
    pub(crate) fn needs(&self, segment: u32) -> u64 {
        let tables = self.lock();
        let fills = tables.running.values().chain(tables.arrived.values());
        fills.map(|fill| fill.needs(segment)).max().unwrap_or(0)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FillMaps> {
        self.tables.lock()
    }

    /// From now on, and until [`FillTable::written`], a lookup that finds the object at this place gives it with its new head.
    pub(crate) fn renew(&self, hash: u64, object: Object) {
        if self.lock().renewed.insert(hash, object).is_none() {
            self.renewed.fetch_add(1, Relaxed);
        }
    }

    /// The object of this hash and place with its new head, if there is one.
    pub(crate) fn renewed(&self, hash: u64, location: Location) -> Option<Object> {
        if self.renewed.load(Relaxed) == 0 {
            return None;
        }
        let found = self.lock().renewed.get(&hash).cloned()?;
        (found.location() == location).then_some(found)
    }

    /// The new head was written, or never will be.
    pub(crate) fn written(&self, hash: u64, object: &Object) {
        let mut tables = self.lock();
        let same = tables
            .renewed
            .get(&hash)
            .is_some_and(|found| found.is_same(object));
        if same {
            tables.renewed.remove(&hash);
            self.renewed.fetch_sub(1, Relaxed);
        }
    }

    /// To be called before anybody can see that a fill has come to its end: from then on, and until it is taken out, it is
    /// what is found under its keys, whatever the index says and whatever began since. For a part one waits.
    pub(crate) fn arrive(&self, fill: &Arc<Fill>) {
        let mut tables = self.lock();
        for hash in fill.hashes() {
            tables.arrived.insert(hash, Arc::clone(fill));
        }
        self.arrived.store(tables.arrived.len(), Release);
    }

    /// The fill of this hash whose body is whole, or about to be.
    pub(crate) fn arrived(&self, hash: u64) -> Option<Arc<Fill>> {
        self.lock().arrived.get(&hash).cloned()
    }

    pub(crate) fn has_arrived_any(&self) -> bool {
        self.arrived.load(Acquire) != 0
    }

    /// The disk does not take it: those who follow go on from memory, new ones begin anew.
    pub(crate) fn stop_storing(&self, fill: &Fill) {
        self.remove(fill);
        fill.change(|state| state.phase = Phase::Passing);
    }

    /// Takes a fill out, if it is still the one under its key.
    pub(crate) fn remove(&self, fill: &Fill) {
        let is_it = |found: Option<&Arc<Fill>>| {
            found.is_some_and(|found| std::ptr::eq(Arc::as_ptr(found), fill))
        };
        let mut tables = self.lock();
        for hash in fill.hashes() {
            let place = (hash, fill.coverage);
            if is_it(tables.running.get(&place)) {
                tables.running.remove(&place);
            }
            if is_it(tables.arrived.get(&hash)) {
                tables.arrived.remove(&hash);
            }
        }
        self.arrived.store(tables.arrived.len(), Release);
    }
}

impl FillMaps {
    /// Until when a key is known to be uncacheable, if it is now.
    pub(crate) fn learned(&mut self, hash: u64, now_ms: u64) -> Option<u64> {
        let until = *self.learned.get(&hash)?;
        if until > now_ms {
            return Some(until);
        }
        self.learned.remove(&hash);
        None
    }

    pub(crate) fn learn(&mut self, hash: u64, until_ms: u64) {
        if self.learned.len() >= LEARNED_MAX && !self.learned.contains_key(&hash) {
            // Any half may go: what is forgotten is learned again by one fill.
            let mut keep = false;
            self.learned.retain(|_, _| {
                keep = !keep;
                keep
            });
        }
        self.learned.insert(hash, until_ms);
    }

    pub(crate) fn forget(&mut self, hash: u64) {
        self.learned.remove(&hash);
    }

    pub(crate) fn expire(&mut self, now_ms: u64) {
        self.learned.retain(|_, until| *until > now_ms);
    }
}
