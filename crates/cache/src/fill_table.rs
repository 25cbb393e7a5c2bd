//! The table of fills: those under way, one for each key and coverage; those that have ended and are not committed yet;
//! and the keys that are remembered as hit-for-miss.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::CacheKey;
use crate::fill::{Fill, FillCoverage, FillPhase};
use crate::index::RecordLocation;
use crate::object::CachedObject;
use base::sync::{Mutex, MutexGuard};

/// The most keys that are remembered as hit-for-miss.
const LEARNED_MAX: usize = 65_536;

#[derive(Default)]
pub(crate) struct FillTable {
    tables: Mutex<FillMaps>,
    /// The number of objects that are renewed and not yet written, so that a lookup takes no lock while there is none.
    renewed: AtomicUsize,
    /// The number of keys with a fill that has ended and is not committed yet; for the same reason.
    arrived: AtomicUsize,
}

#[derive(Default)]
pub(crate) struct FillMaps {
    /// By hash and coverage.
    pub(crate) running: HashMap<(u64, FillCoverage), Arc<Fill>>,
    /// Fills that have lost such a place to a newer one. They go on for their followers and are stored at their end, so that
    /// a purge must reach them, and their bytes in segments are needed.
    overtaken: Vec<Arc<Fill>>,
    /// Hash, and until when it is remembered, in milliseconds.
    hit_for_miss: HashMap<u64, u64>,
    /// Objects with a new head that is not written yet, by hash. At most one for each job that waits.
    renewed: HashMap<u64, RenewedObject>,
    /// Fills that have ended and are not committed yet, by the hashes of their keys. At most one for each job that
    /// waits.
    pub(crate) arrived: HashMap<u64, Arc<Fill>>,
}

/// An object with a new head that is not written yet.
struct RenewedObject {
    object: CachedObject,
    /// A soft purge of its key has come since. The mark in the index is for the old head, and goes with it.
    softened: bool,
}

impl FillTable {
    /// Bytes that fills under way will still write.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let tables = self.lock();
        // A fill may be in several tables, and that of a variant under two keys.
        let mut seen = HashSet::new();
        tables
            .all()
            .filter(|fill| seen.insert(Arc::as_ptr(fill)))
            .map(|fill| fill.pending_bytes())
            .sum()
    }

    /// The end of the last byte in a segment that a fill under way needs.
    pub(crate) fn last_byte_in(&self, segment: u32) -> u64 {
        let tables = self.lock();
        let fills = tables.all();
        fills
            .map(|fill| fill.last_byte_in(segment))
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, FillMaps> {
        self.tables.lock()
    }

    /// From now on, until [`FillTable::remove_refreshed`], a lookup that finds the object at this place returns it with
    /// its new head.
    pub(crate) fn add_refreshed(&self, hash: u64, object: CachedObject) {
        let renewed = RenewedObject {
            object,
            softened: false,
        };
        if self.lock().renewed.insert(hash, renewed).is_none() {
            self.renewed.fetch_add(1, Relaxed);
        }
    }

    /// The object of this hash and place with its new head, if there is one; and whether a soft purge has come since an
    /// object of this hash was renewed. The latter holds at any place: the record with the new head is in the index a
    /// moment before its mark.
    pub(crate) fn refreshed_object(
        &self,
        hash: u64,
        location: RecordLocation,
    ) -> (Option<CachedObject>, bool) {
        if self.renewed.load(Relaxed) == 0 {
            return (None, false);
        }
        let tables = self.lock();
        let Some(found) = tables.renewed.get(&hash) else {
            return (None, false);
        };
        let is_there = found.object.location() == location;
        (is_there.then(|| found.object.clone()), found.softened)
    }

    /// A soft purge of its key hits an object whose new head is not written yet.
    pub(crate) fn soften_refreshed(&self, hash: u64) {
        if let Some(found) = self.lock().renewed.get_mut(&hash) {
            found.softened = true;
        }
    }

    /// Whether a soft purge has come since an object of this hash was renewed.
    pub(crate) fn is_softened(&self, hash: u64) -> bool {
        let tables = self.lock();
        tables
            .renewed
            .get(&hash)
            .is_some_and(|found| found.softened)
    }

    /// The new head was written, or never will be.
    pub(crate) fn remove_refreshed(&self, hash: u64, object: &CachedObject) {
        let mut tables = self.lock();
        // Validated again meanwhile: that head is still to be written, and must go on being found.
        let same = tables
            .renewed
            .get(&hash)
            .is_some_and(|found| found.object.is_same(object));
        if same {
            tables.renewed.remove(&hash);
            self.renewed.fetch_sub(1, Relaxed);
        }
    }

    /// To be called before the end of a fill can be seen. From then on, until it is taken out, the fill is what is
    /// found under its keys, before whatever the index has or was begun since. If it brought a part, requests wait for
    /// its commit. Its head came at `validated_ms`.
    pub(crate) fn add_completed(&self, fill: &Arc<Fill>, validated_ms: u64) {
        let recency = (validated_ms, fill.born);
        let mut tables = self.lock();
        for hash in fill.hashes() {
            // One that was overtaken and ends later brings the older response.
            let known = tables.arrived.get(&hash);
            if known.is_none_or(|known| known.recency() <= recency) {
                tables.arrived.insert(hash, Arc::clone(fill));
            }
        }
        self.arrived.store(tables.arrived.len(), Release);
    }

    /// The fill of this hash whose body is whole, or about to be.
    pub(crate) fn completed_fill(&self, hash: u64) -> Option<Arc<Fill>> {
        self.lock().arrived.get(&hash).cloned()
    }

    pub(crate) fn has_completed_any(&self) -> bool {
        self.arrived.load(Acquire) != 0
    }

    /// The disk has failed, or a purge has hit it: followers go on from memory, new requests begin another fill.
    pub(crate) fn stop_storing(&self, fill: &Fill) {
        // In this order: what puts it into the table looks at its phase first, under the table's lock.
        fill.update_and_wake(|state| state.phase = FillPhase::Passing);
        self.remove(fill);
    }

    /// Takes a fill out. An entry that a newer fill has taken stays.
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
        if fill.is_overtaken.load(Relaxed) {
            tables
                .overtaken
                .retain(|other| !std::ptr::eq(Arc::as_ptr(other), fill));
        }
        self.arrived.store(tables.arrived.len(), Release);
    }
}

impl FillMaps {
    /// From now on requests for what this fill covers join it under this hash, and no longer the one that was there before.
    pub(crate) fn put_running(&mut self, hash: u64, fill: &Arc<Fill>) {
        let before = self
            .running
            .insert((hash, fill.coverage), Arc::clone(fill))
            .filter(|before| !Arc::ptr_eq(before, fill));
        // That of a variant has two places to lose.
        if let Some(before) = before
            && !before.is_overtaken.swap(true, Relaxed)
        {
            self.overtaken.push(before);
        }
    }

    /// All that are under way, or have ended and are not committed: some of them several times.
    fn all(&self) -> impl Iterator<Item = &Arc<Fill>> {
        let running = self.running.values().chain(&self.overtaken);
        running.chain(self.arrived.values())
    }

    /// All of them that bring something for a key with this hash, or a variant of it: what purges the key purges these. Some may
    /// be there several times.
    pub(crate) fn of_key(&self, key: &CacheKey, hash: u64) -> Vec<Arc<Fill>> {
        let brings = |fill: &&Arc<Fill>| {
            fill.hashes().contains(&hash) || fill.storage_key().0.is_variant_of(key)
        };
        self.all().filter(brings).cloned().collect()
    }

    /// The number of fills under way.
    pub(crate) fn running_count(&self) -> usize {
        self.running.len() + self.overtaken.len()
    }

    /// Until when a key is remembered as hit-for-miss, if it is at present.
    pub(crate) fn hit_for_miss_until(&mut self, hash: u64, now_ms: u64) -> Option<u64> {
        let until = *self.hit_for_miss.get(&hash)?;
        if until > now_ms {
            return Some(until);
        }
        self.hit_for_miss.remove(&hash);
        None
    }

    pub(crate) fn remember_hit_for_miss(&mut self, hash: u64, until_ms: u64) {
        if self.hit_for_miss.len() >= LEARNED_MAX && !self.hit_for_miss.contains_key(&hash) {
            // Any half may go: what is forgotten costs one shared fill, and is learned again.
            let mut keep = false;
            self.hit_for_miss.retain(|_, _| {
                keep = !keep;
                keep
            });
        }
        self.hit_for_miss.insert(hash, until_ms);
    }

    pub(crate) fn forget_hit_for_miss(&mut self, hash: u64) {
        self.hit_for_miss.remove(&hash);
    }

    pub(crate) fn expire_hit_for_miss(&mut self, now_ms: u64) {
        self.hit_for_miss.retain(|_, until| *until > now_ms);
    }
}
