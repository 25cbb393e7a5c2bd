//! Lookups: what the index, the memory tier, the disk, the purges and the fills together know of a key.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use crate::format::UNIT;
use crate::index::{IndexEntry, RecordLocation};
use crate::object::{CachedObject, ObjectData, ObjectHome, ParsedObject, SeenLocation};
use crate::segment::Segment;
use crate::store::CacheStore;
use crate::store_core::StoreCore;
use crate::{CacheKey, PurgeMode};

/// What a lookup found. Whether a stale object may be served all the same is for the caller's rules.
#[derive(Debug)]
pub enum LookupResult {
    /// A fresh object (perhaps a partial one: see [`CachedObject::first_hole`]).
    Hit(CachedObject),
    /// One that must be validated, or may be served if the caller's rules allow.
    Stale(CachedObject, StaleReason),
    /// Nothing to serve.
    Miss(MissReason, SeenLocation),
}

impl LookupResult {
    /// What the index said, for [`CacheStore::join_or_start_fill`].
    pub fn seen_location(&self) -> SeenLocation {
        match self {
            Self::Hit(object) | Self::Stale(object, _) => SeenLocation(Some(object.location())),
            Self::Miss(_, seen) => *seen,
        }
    }
}

/// Why an object is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StaleReason {
    /// Its time is over.
    Expired,
    /// It was purged softly.
    Purged,
}

/// Why a lookup found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// It is not there.
    Absent,
    /// It is there and was purged.
    Purged,
    /// It is there, and whether it was purged is not known yet: see [`CacheStore::hide_stored`].
    Hidden,
    /// It is remembered that responses under this key are for one client each (Varnish's hit-for-miss).
    HitForMiss {
        /// When that is forgotten, in milliseconds since the epoch.
        until_ms: u64,
    },
    /// What the disk gave was not what was written; it is removed.
    Damaged,
    /// The read failed; the object is removed, so that the next request does not wait for the same failure.
    Unreadable,
}

impl CacheStore {
    /// The object of a record, if everything that it refers to is there.
    fn object(
        &self,
        stored: ParsedObject,
        location: RecordLocation,
        hash: u64,
    ) -> Option<CachedObject> {
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for extent in &stored.extents {
            if segments.iter().any(|known| known.number == extent.segment) {
                continue;
            }
            // Its segment was reclaimed, or did not survive a crash.
            segments.push(self.0.segment(extent.segment)?);
        }
        // A crash or a full disk may have cut a segment before the end of an extent.
        let whole = stored.extents.iter().all(|extent| {
            let segment = segments
                .iter()
                .find(|segment| segment.number == extent.segment);
            let end = extent.position.checked_add(u64::from(extent.len));
            segment.is_some_and(|segment| end.is_some_and(|end| end <= segment.len.load(Relaxed)))
        });
        let home: Weak<StoreCore> = Arc::downgrade(&self.0);
        whole.then(|| {
            CachedObject::new(ObjectData {
                key: stored.description.key,
                head: stored.description.head,
                born: stored.record.born,
                location,
                extents: stored.extents,
                body: stored.body,
                segments,
                pool: self.0.options.pool.clone(),
                home: (home, hash),
                attached: std::sync::OnceLock::new(),
            })
        })
    }

    /// Judges the object that stands where the index says.
    fn judge_entry(
        &self,
        object: CachedObject,
        hash: u64,
        entry: IndexEntry,
        now_ms: u64,
    ) -> LookupResult {
        match self.0.fills.refreshed_object(hash, entry.location()) {
            // Validated, but not written yet: judged by its new head, without the mark that the index may have for the
            // old one.
            (Some(renewed), softened) => self.judge(renewed, softened, now_ms),
            (None, softened) => self.judge(object, softened || entry.is_stale(), now_ms),
        }
    }

    /// Decides between fresh, stale and gone.
    fn judge(&self, object: CachedObject, softened: bool, now_ms: u64) -> LookupResult {
        if self.0.is_hidden(object.born()) {
            return LookupResult::Miss(MissReason::Hidden, SeenLocation(Some(object.location())));
        }
        let head = object.head();
        let verdict = self
            .0
            .purges()
            .purge_mode(object.born(), object.key().text(), &head.tags);
        // Hard before soft, and soft before expired: an object that was purged hard must not even be validated.
        if verdict == Some(PurgeMode::Hard) {
            return LookupResult::Miss(MissReason::Purged, SeenLocation(Some(object.location())));
        }
        if softened || verdict == Some(PurgeMode::Soft) {
            return LookupResult::Stale(object, StaleReason::Purged);
        }
        // RFC 9111, section 4.2: fresh while the lifetime exceeds the age, so stale at the very moment.
        if head.meta.fresh_until_ms <= now_ms {
            return LookupResult::Stale(object, StaleReason::Expired);
        }
        LookupResult::Hit(object)
    }

    fn absent(&self, hash: u64, seen: SeenLocation, now_ms: u64) -> LookupResult {
        match self.0.fills.lock().hit_for_miss_until(hash, now_ms) {
            Some(until_ms) => LookupResult::Miss(MissReason::HitForMiss { until_ms }, seen),
            None => LookupResult::Miss(MissReason::Absent, seen),
        }
    }

    /// A lookup that does not wait: `None` when the disk must be asked.
    pub fn lookup_in_memory(&self, key: &CacheKey, now_ms: u64) -> Option<LookupResult> {
        let core = &self.0;
        let hash = core.hash(key);
        let Some(entry) = core.index.get(hash, Some((now_ms / 1000) as u32)) else {
            return Some(self.absent(hash, SeenLocation(None), now_ms));
        };
        // Only what the index still refers to: what was replaced may be in memory for a while.
        let object = core.memory.get(hash, entry.location())?;
        // Another key with the same hash. For this one there is nothing, and what is fetched takes the place.
        if object.key() != key {
            return Some(self.absent(hash, SeenLocation(Some(entry.location())), now_ms));
        }
        core.memory_hits.fetch_add(1, Relaxed);
        Some(self.judge_entry(object, hash, entry, now_ms))
    }

    /// Looks a key up: one read at most, from the page cache at once, else on the pool.
    pub async fn lookup(&self, key: &CacheKey, now_ms: u64) -> LookupResult {
        if let Some(found) = self.lookup_in_memory(key, now_ms) {
            return found;
        }
        let hash = self.0.hash(key);
        loop {
            let entry = self.0.index.get(hash, None);
            let found = self.read(key, hash, entry, now_ms).await;
            let current = self.0.index.get(hash, None).map(|entry| entry.location());
            // The object may have been moved by reclaiming between the index and the read. A miss counts only if the
            // index still says the same. Moves are rare: this ends.
            let settled = current.is_none() || current == entry.map(|entry| entry.location());
            if settled || !matches!(found, LookupResult::Miss(..)) {
                return found;
            }
        }
    }

    /// Reads what the index says about a key.
    async fn read(
        &self,
        key: &CacheKey,
        hash: u64,
        entry: Option<IndexEntry>,
        now_ms: u64,
    ) -> LookupResult {
        let core = &self.0;
        let Some(entry) = entry else {
            return self.absent(hash, SeenLocation(None), now_ms);
        };
        let location = entry.location();
        let lost = |miss| {
            core.index.remove_at(hash, location);
            LookupResult::Miss(miss, SeenLocation(None))
        };
        let Some(segment) = core.segment(location.segment) else {
            return lost(MissReason::Absent);
        };
        let position = u64::from(location.at) * UNIT;
        let size = location.units as usize * UNIT as usize;
        let read = segment
            .file
            .read_at(Vec::new(), position, size, &core.options.pool);
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(error) => {
                core.report_error(&format!(
                    "reading \"{}\" failed: {error}",
                    segment.path.display()
                ));
                return lost(MissReason::Unreadable);
            }
        };
        let Some(stored) = ParsedObject::parse(bytes, location, hash) else {
            core.report_error(&format!("\"{}\" is damaged", segment.path.display()));
            return lost(MissReason::Damaged);
        };
        if stored.description.key != *key {
            return self.absent(hash, SeenLocation(Some(location)), now_ms);
        }
        let Some(object) = self.object(stored, location, hash) else {
            return lost(MissReason::Damaged);
        };
        // Looked at before the extents are: of a file that was changed, none counts as verified.
        for segment in object
            .sent_segments()
            .filter(|segment| segment.was_changed())
        {
            core.report_foreign_change(segment);
        }
        let damaged = {
            let (core, segment) = (Arc::clone(core), Arc::clone(&segment));
            move || core.remove_damaged(hash, location, &segment)
        };
        // A hit promises a body that can be sent without being read. Afterwards it would be too late for a miss.
        if object.verify_unproven(core.device, damaged).await.is_err() {
            core.remove_damaged(hash, location, &segment);
            return LookupResult::Miss(MissReason::Damaged, SeenLocation(None));
        }
        core.memory.insert(hash, &object);
        self.judge_entry(object, hash, entry, now_ms)
    }
}
