//! The index: where the record of each object stands. 24 bytes an entry, in tables that are at least 68 % full.
//!
//! A general map would take 52 bytes an object at a million (it doubles, and keeps control bytes). Here growth is by a
//! quarter and in one of 256 shards at a time, so that no lookup waits for more than a few thousand moves. The order of
//! eviction needs no links in memory: it is the order on the disk.

use base::sync::{Mutex, MutexGuard};

/// Chosen by the upper byte of the hash. A small shard is locked for a short time even while it grows.
const SHARDS: usize = 256;
/// The slots that a shard begins with.
const FIRST: usize = 8;

/// The most that the access counter of an entry reaches.
pub(crate) const FREQUENCY_MAX: u8 = 3;
/// The lower byte of the last number of a location: two bits that count accesses, and two flags. The size of the record
/// is above it.
const FREQUENCY: u32 = 0b11;
const SUPERSEDES: u32 = 0b100;
const STALE: u32 = 0b1000;
const UNITS_SHIFT: u32 = 8;

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    /// The segment's number, never 0.
    pub(crate) segment: u32,
    /// In units of 64 bytes.
    pub(crate) at: u32,
    /// Its size in units of 64 bytes, below 2^24.
    pub(crate) units: u32,
}

/// An object, as the index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) hash: u64,
    /// 0: the slot is empty. Numbers of segments begin at 1.
    segment: u32,
    at: u32,
    /// The size in the upper 24 bits, access count and flags below: one number, so that an entry has 24 bytes.
    packed: u32,
    /// Seconds since the epoch.
    pub(crate) accessed: u32,
}

impl IndexEntry {
    const EMPTY: Self = Self {
        hash: 0,
        segment: 0,
        at: 0,
        packed: 0,
        accessed: 0,
    };

    pub(crate) fn new(hash: u64, location: RecordLocation, accessed: u32) -> Self {
        Self {
            hash,
            segment: location.segment,
            at: location.at,
            packed: location.units << UNITS_SHIFT,
            accessed,
        }
    }

    pub(crate) fn location(&self) -> RecordLocation {
        RecordLocation {
            segment: self.segment,
            at: self.at,
            units: self.packed >> UNITS_SHIFT,
        }
    }

    pub(crate) fn frequency(&self) -> u8 {
        (self.packed & FREQUENCY) as u8
    }

    pub(crate) fn with_frequency(mut self, frequency: u8) -> Self {
        self.packed = self.packed & !FREQUENCY | u32::from(frequency.min(FREQUENCY_MAX));
        self
    }

    /// Whether an older object of the key may still be in the log. When this one goes, a tombstone must be written, or
    /// the older one would be back at the next start.
    pub(crate) fn supersedes(&self) -> bool {
        self.packed & SUPERSEDES != 0
    }

    pub(crate) fn with_supersedes(mut self, yes: bool) -> Self {
        self.packed = if yes {
            self.packed | SUPERSEDES
        } else {
            self.packed & !SUPERSEDES
        };
        self
    }

    /// Whether a soft purge of its key has hit it. Purges by prefix, by tag and of all are not marked here: a lookup
    /// asks their table.
    pub(crate) fn is_stale(&self) -> bool {
        self.packed & STALE != 0
    }

    pub(crate) fn with_stale(mut self, yes: bool) -> Self {
        self.packed = if yes {
            self.packed | STALE
        } else {
            self.packed & !STALE
        };
        self
    }

    /// As four numbers, for the checkpoint.
    pub(crate) fn to_words(self) -> (u64, [u32; 4]) {
        (
            self.hash,
            [self.segment, self.at, self.packed, self.accessed],
        )
    }

    /// From the numbers of a checkpoint, whose checksum was verified.
    pub(crate) fn from_words(hash: u64, [segment, at, packed, accessed]: [u32; 4]) -> Self {
        Self {
            hash,
            segment,
            at,
            packed,
            accessed,
        }
    }
}

/// A table with linear probing. Removal closes the gap instead of leaving a mark, so that probes do not become longer
/// with the age of the process.
#[derive(Default)]
struct Shard {
    slots: Vec<IndexEntry>,
    used: usize,
}

impl Shard {
    fn home(&self, hash: u64) -> usize {
        // The upper byte chose the shard, so the lower half is spread over the slots. By multiplication: a table that
        // grows by a quarter has no power of two for a mask.
        ((u64::from(hash as u32) * self.slots.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() {
            0
        } else {
            at + 1
        }
    }

    /// The slot of `hash`, or the empty one where it would stand. There is always an empty one.
    fn find(&self, hash: u64) -> Option<(usize, bool)> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        // This ends, because a table is never more than 85 % full.
        loop {
            let entry = &self.slots[at];
            if entry.segment == 0 {
                return Some((at, false));
            }
            if entry.hash == hash {
                return Some((at, true));
            }
            at = self.next(at);
        }
    }

    fn get(&mut self, hash: u64) -> Option<&mut IndexEntry> {
        match self.find(hash)? {
            (at, true) => Some(&mut self.slots[at]),
            (_, false) => None,
        }
    }

    fn insert(&mut self, entry: IndexEntry) -> Option<IndexEntry> {
        if let Some(old) = self.get(entry.hash) {
            return Some(std::mem::replace(old, entry));
        }
        // At 85 % linear probes become long. Growth by a quarter then leaves 68 %.
        if (self.used + 1) * 20 > self.slots.len() * 17 {
            self.grow();
        }
        if let Some((at, false)) = self.find(entry.hash) {
            self.slots[at] = entry;
            self.used += 1;
        }
        None
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 5 / 4)
            .max(FIRST)
            .max(self.slots.len() + 2);
        let old = std::mem::replace(&mut self.slots, vec![IndexEntry::EMPTY; size]);
        // Every entry is placed again, because its home depends on the size of the table.
        for entry in old.into_iter().filter(|entry| entry.segment != 0) {
            if let Some((at, false)) = self.find(entry.hash) {
                self.slots[at] = entry;
            }
        }
    }

    fn remove(&mut self, hash: u64) -> Option<IndexEntry> {
        let (mut gap, true) = self.find(hash)? else {
            return None;
        };
        let removed = std::mem::replace(&mut self.slots[gap], IndexEntry::EMPTY);
        self.used -= 1;
        let mut at = self.next(gap);
        // The entries behind the gap, up to the next empty slot, move into it, unless that would put them before their
        // home, where no probe finds them. The second comparison is for a run that wraps around the end.
        while self.slots[at].segment != 0 {
            let home = self.home(self.slots[at].hash);
            let stays = if gap <= at {
                gap < home && home <= at
            } else {
                gap < home || home <= at
            };
            if !stays {
                self.slots[gap] = std::mem::replace(&mut self.slots[at], IndexEntry::EMPTY);
                gap = at;
            }
            at = self.next(at);
        }
        Some(removed)
    }
}

/// The index of a store. Any thread may use it; a lock is held for one operation on one shard.
pub(crate) struct StoreIndex(Box<[Mutex<Shard>]>);

impl StoreIndex {
    pub(crate) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    /// An index of these entries, with its tables at their final size. A checkpoint has its entries in the order of
    /// their slots; put one by one into tables that grow, they would all crowd at the front (1.5 s for a million, not
    /// 0.1 s).
    pub(crate) fn from_entries(entries: &[IndexEntry]) -> Self {
        let mut counts = [0usize; SHARDS];
        entries
            .iter()
            .for_each(|entry| counts[(entry.hash >> 56) as usize] += 1);
        let index = Self::new();
        for (shard, count) in counts
            .into_iter()
            .enumerate()
            .filter(|(_, count)| *count > 0)
        {
            index.lock(shard).slots = vec![IndexEntry::EMPTY; count * 5 / 4 + FIRST];
        }
        entries.iter().for_each(|entry| {
            index.insert(*entry);
        });
        index
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        self.lock((hash >> 56) as usize)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // No operation on a shard can panic half way.
        self.0[shard].lock()
    }

    /// The entry. With `now` (in seconds) this counts as an access; the writer and upkeep give none, because what they
    /// look at has not been used.
    pub(crate) fn get(&self, hash: u64, now: Option<u32>) -> Option<IndexEntry> {
        let mut shard = self.shard(hash);
        let entry = shard.get(hash)?;
        if let Some(now) = now {
            entry.accessed = now;
            *entry = entry.with_frequency(entry.frequency() + 1);
        }
        Some(*entry)
    }

    pub(crate) fn insert(&self, entry: IndexEntry) -> Option<IndexEntry> {
        self.shard(entry.hash).insert(entry)
    }

    /// Changes the entry if it still stands at `location`: otherwise a newer object has replaced the one that the
    /// change is about.
    pub(crate) fn update(
        &self,
        hash: u64,
        location: RecordLocation,
        change: impl FnOnce(IndexEntry) -> IndexEntry,
    ) -> bool {
        let mut shard = self.shard(hash);
        match shard.get(hash) {
            Some(entry) if entry.location() == location => {
                *entry = change(*entry);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn remove(&self, hash: u64) -> Option<IndexEntry> {
        self.shard(hash).remove(hash)
    }

    /// Removes the entry if it still stands at `location`.
    pub(crate) fn remove_at(&self, hash: u64, location: RecordLocation) -> Option<IndexEntry> {
        let mut shard = self.shard(hash);
        let same = shard
            .get(hash)
            .is_some_and(|entry| entry.location() == location);
        if same { shard.remove(hash) } else { None }
    }

    /// Removes the entry if it is still what `copy` says: neither replaced nor used since the copy was made.
    pub(crate) fn remove_unchanged(&self, copy: &IndexEntry) -> Option<IndexEntry> {
        let mut shard = self.shard(copy.hash);
        let same = shard.get(copy.hash).is_some_and(|entry| entry == copy);
        if same { shard.remove(copy.hash) } else { None }
    }

    pub(crate) const fn shard_count() -> usize {
        SHARDS
    }

    /// A copy of the entries of one shard, so that lookups do not wait while the caller works on them.
    pub(crate) fn entries(&self, shard: usize) -> Vec<IndexEntry> {
        let shard = self.lock(shard);
        shard
            .slots
            .iter()
            .filter(|entry| entry.segment != 0)
            .copied()
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).used).sum()
    }

    /// Bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let slots: usize = (0..SHARDS)
            .map(|shard| self.lock(shard).slots.capacity())
            .sum();
        slots * size_of::<IndexEntry>() + SHARDS * size_of::<Mutex<Shard>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn place(segment: u32) -> RecordLocation {
        RecordLocation {
            segment,
            at: 1,
            units: 2,
        }
    }

    #[test]
    fn an_entry_that_was_used_or_replaced_is_not_the_one_that_was_copied() {
        let index = StoreIndex::new();
        index.insert(IndexEntry::new(7, place(1), 100));
        let copy = index.entries(0)[0];
        index.get(7, Some(200));
        assert_eq!(index.remove_unchanged(&copy), None, "it was used");
        let copy = index.entries(0)[0];
        index.insert(IndexEntry::new(7, place(2), 200));
        assert_eq!(index.remove_unchanged(&copy), None, "it was replaced");
        let copy = index.entries(0)[0];
        assert_eq!(index.remove_unchanged(&copy), Some(copy));
        assert_eq!(index.remove_unchanged(&copy), None, "it is gone");
    }

    #[test]
    fn an_entry_has_24_bytes() {
        assert_eq!(size_of::<IndexEntry>(), 24);
    }

    #[test]
    fn it_does_what_a_map_does() {
        let index = StoreIndex::new();
        let mut model = HashMap::new();
        let mut dice = 1u64;
        for step in 0..200_000u32 {
            dice = dice
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Few hashes in few shards, so that chains are long and wrap around.
            let hash = (dice >> 33) % 3000 * 0x0010_0000_0010_0001;
            if dice >> 62 == 0 {
                let gone = index.remove(hash).map(|entry| entry.location());
                assert_eq!(gone, model.remove(&hash).map(place));
            } else {
                index.insert(IndexEntry::new(hash, place(step + 1), 0));
                model.insert(hash, step + 1);
            }
        }
        assert_eq!(index.len(), model.len());
        for (hash, segment) in model {
            assert_eq!(index.get(hash, None).unwrap().location(), place(segment));
        }
    }
}
