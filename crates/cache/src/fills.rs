//! The fills under way, one per key and beginning, and the keys that turned out not to be worth one.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Object;
use crate::fill::Fill;
use crate::index::Location;

/// The most keys remembered as uncacheable.
const LEARNED_MAX: usize = 65_536;

/// What a fill brings of the object of its key: those who want the same join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// All of it.
    Whole,
    /// A part that begins at this byte.
    Part(u64),
    /// What somebody asked for with a range, by the hash of his words. The answer tells what part that is, and another
    /// fill brings it.
    Asked(u64),
}

impl Place {
    /// The first byte of the body that it brings.
    pub(crate) fn begin(self) -> u64 {
        match self {
            Place::Part(begin) => begin,
            Place::Whole | Place::Asked(_) => 0,
        }
    }
}

#[derive(Default)]
pub(crate) struct Fills {
    tables: Mutex<Tables>,
    /// How many objects are renewed and not yet written so.
    renewed: AtomicUsize,
    /// How many keys have an object that has arrived and is not committed yet.
    arrived: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct Tables {
    /// By hash, and by what they bring.
    pub(crate) running: HashMap<(u64, Place), Arc<Fill>>,
    /// Hash, and until when in milliseconds.
    learned: HashMap<u64, u64>,
    /// Objects with a new head that the store's writer has not written yet, by hash. It holds as many as jobs wait.
    renewed: HashMap<u64, Object>,
    /// Fills that have come to their end and that the store's writer has not committed yet, by the hashes of their keys.
    /// It holds as many as jobs wait.
    pub(crate) arrived: HashMap<u64, Arc<Fill>>,
}

impl Fills {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, and until [`Fills::written`], whoever finds the object at this place gets it with its new head.
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

    /// Takes a fill out, if it is still the one under its key.
    pub(crate) fn remove(&self, fill: &Fill) {
        let is_it = |found: Option<&Arc<Fill>>| {
            found.is_some_and(|found| std::ptr::eq(Arc::as_ptr(found), fill))
        };
        let mut tables = self.lock();
        for hash in fill.hashes() {
            let place = (hash, fill.place);
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

impl Tables {
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
