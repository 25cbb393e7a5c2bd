//! `lua_shared_dict`: a dictionary that all event loops share and that survives a reload.
//!
//! Its memory is bounded by the configured size, counted as nginx counts it ([`crate::slab`]). When
//! it is full, the least recently used entries are evicted. As in lua-nginx-module expired entries
//! are not searched for: each write removes up to two at the old end, so that the cost of an
//! operation does not depend on how many have expired.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::dict_changes::DictChanges;
use crate::slab::{SlabBlock, SlabPool};
use base::sync::{Mutex, MutexGuard};

/// A shared dictionary.
pub(crate) struct SharedDict {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// One lock for all entries, as nginx's dictionaries have one mutex. Operations are short, and
    /// none waits for anything while it holds the lock.
    entries: Mutex<DictEntries>,
    /// For timers that wait for them.
    pub(crate) changes: DictChanges,
}

/// What an entry takes besides its key and value, in bytes, as in lua-nginx-module.
const ENTRY_OVERHEAD: u64 = 68;

/// What a list takes besides its key while it is empty.
const LIST_OVERHEAD: u64 = 16;

/// What an item of a list takes besides its value.
const ITEM_OVERHEAD: u64 = 21;

/// How many valid entries are evicted at most to make room for one.
const MAX_EVICTIONS: u32 = 30;

/// An end of a list: `lpush` and `lpop` work at the front, `rpush` and `rpop` at the back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListEnd {
    Front,
    Back,
}

/// The entries of a dictionary, and the order in which they were used.
pub(crate) struct DictEntries {
    /// The entries. Keys are shared with `by_use`, so that each is stored once.
    by_key: HashMap<Arc<[u8]>, DictEntry>,
    /// The keys in the order of their last use, the least recent first.
    by_use: BTreeMap<u64, Arc<[u8]>>,
    /// The number of the next use. It only grows: an order without a clock.
    uses: u64,
    /// The accounts of the configured size.
    slab: SlabPool,
}

/// What is stored under a key.
pub(crate) struct DictEntry {
    pub(crate) value: DictValue,
    pub(crate) flags: u32,
    /// In milliseconds since 1970; 0: never.
    pub(crate) expires: u64,
    /// Its place in the accounts.
    block: SlabBlock,
    /// Its key in `by_use`.
    last_use: u64,
}

/// What is to be stored under a key.
pub(crate) struct NewEntry {
    pub(crate) value: DictValue,
    /// The user's own number, stored and returned with the value.
    pub(crate) flags: u32,
    /// When it expires, in milliseconds since 1970; 0: never.
    pub(crate) expires: u64,
}

/// A value, or a list of values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DictValue {
    Boolean(bool),
    Number(f64),
    Bytes(Box<[u8]>),
    /// A list, each value with its own place in the accounts, as in lua-nginx-module.
    List(VecDeque<(DictValue, SlabBlock)>),
}

impl DictValue {
    /// Its size as it is counted, in bytes.
    fn size(&self) -> u64 {
        match self {
            DictValue::Boolean(_) => 1,
            DictValue::Number(_) => 8,
            DictValue::Bytes(bytes) => bytes.len() as u64,
            DictValue::List(_) => LIST_OVERHEAD,
        }
    }
}

impl DictEntry {
    pub(crate) fn is_expired(&self, now: u64) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// The outcome of storing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PutOutcome {
    /// It was stored.
    pub(crate) stored: bool,
    /// Valid entries were evicted for it: the `forcible` result of the API. It may be set although
    /// the entry was not stored, when even that was not enough.
    pub(crate) forcible: bool,
}

/// Why an item was not added to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushError {
    /// The key holds something that is not a list.
    NotAList,
    /// There is no memory for the item.
    NoRoomForItem,
    /// There is no memory for a new list.
    NoRoomForList,
}

impl SharedDict {
    pub(crate) fn new(name: &str, size: u64) -> SharedDict {
        // What nginx itself allocates there: its queue heads, and the zone's name for its log.
        let own = [80, 28 + name.len() as u64];
        SharedDict {
            name: name.to_owned(),
            size,
            entries: Mutex::new(DictEntries {
                by_key: HashMap::new(),
                by_use: BTreeMap::new(),
                uses: 0,
                slab: SlabPool::new(size, &own),
            }),
            changes: DictChanges::default(),
        }
    }

    /// Locks the entries. The lock is held for one operation and never across anything that can
    /// wait. A panic while it was held leaves every entry readable, so poisoning is ignored.
    pub(crate) fn lock(&self) -> MutexGuard<'_, DictEntries> {
        self.entries.lock()
    }
}

impl DictEntries {
    /// The entry under a key, expired or not, without counting as a use.
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<&mut DictEntry> {
        self.by_key.get_mut(key)
    }

    /// The entry under a key, expired or not. A valid one becomes the most recently used.
    pub(crate) fn get(&mut self, key: &[u8], now: u64) -> Option<&mut DictEntry> {
        let entry = self.by_key.get_mut(key)?;
        if !entry.is_expired(now)
            && let Some(shared) = self.by_use.remove(&entry.last_use)
        {
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, shared);
            self.uses += 1;
        }
        Some(entry)
    }

    /// Removes up to two expired entries at the old end. Called by each operation that writes, so
    /// that expired entries go without a sweep over all of them under the lock.
    pub(crate) fn expire_oldest(&mut self, now: u64) {
        for _ in 0..2 {
            if !self.remove_oldest_if(|entry| entry.is_expired(now)) {
                break;
            }
        }
    }

    /// Removes the least recently used entry if it `may_go`; whether one was removed.
    fn remove_oldest_if(&mut self, may_go: impl Fn(&DictEntry) -> bool) -> bool {
        let Some((_, key)) = self.by_use.first_key_value() else {
            return false;
        };
        let key = Arc::clone(key);
        match self.by_key.get(&key) {
            Some(entry) if !may_go(entry) => false,
            _ => {
                self.remove(&key);
                true
            }
        }
    }

    /// Stores an entry. `may_force`: valid entries may be evicted for it (`set`, not `safe_set`).
    pub(crate) fn put(
        &mut self,
        key: &[u8],
        new: NewEntry,
        now: u64,
        may_force: bool,
    ) -> PutOutcome {
        let done = |forced| PutOutcome {
            stored: true,
            forcible: forced,
        };
        let weight = new.value.size();
        if self.has_same_size(key, weight) {
            // lua-nginx-module overwrites a value of the same size in place, so that a counter
            // never fails for want of memory.
            if let Some(entry) = self.by_key.get_mut(key) {
                (entry.value, entry.flags, entry.expires) = (new.value, new.flags, new.expires);
            }
            self.mark_used(key);
            return done(false);
        }
        self.remove(key);
        // The old entry is gone even if the new one turns out not to fit.
        let wanted = ENTRY_OVERHEAD + key.len() as u64 + weight;
        let mut block = self.slab.alloc(wanted);
        let mut forced = false;
        for _ in 0..MAX_EVICTIONS {
            if block.is_some() || !may_force || !self.remove_oldest_if(|_| true) {
                break;
            }
            self.expire_oldest(now);
            forced = true;
            block = self.slab.alloc(wanted);
        }
        let Some(block) = block else {
            return PutOutcome {
                stored: false,
                forcible: forced,
            };
        };
        self.insert(key, new, block);
        done(forced)
    }

    /// Whether the value under a key has exactly this size.
    fn has_same_size(&self, key: &[u8], weight: u64) -> bool {
        self.by_key.get(key).is_some_and(|entry| {
            !matches!(entry.value, DictValue::List(_)) && entry.value.size() == weight
        })
    }

    /// Adds an entry as the most recently used.
    fn insert(&mut self, key: &[u8], new: NewEntry, block: SlabBlock) {
        let key: Arc<[u8]> = key.into();
        let entry = DictEntry {
            value: new.value,
            flags: new.flags,
            expires: new.expires,
            block,
            last_use: self.uses,
        };
        self.by_use.insert(self.uses, Arc::clone(&key));
        self.uses += 1;
        self.by_key.insert(key, entry);
    }

    /// Makes an entry the most recently used, expired or not.
    fn mark_used(&mut self, key: &[u8]) {
        if let Some(entry) = self.by_key.get_mut(key)
            && let Some(shared) = self.by_use.remove(&entry.last_use)
        {
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, shared);
            self.uses += 1;
        }
    }

    /// Removes an entry and frees its memory.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let Some(entry) = self.by_key.remove(key) else {
            return;
        };
        self.by_use.remove(&entry.last_use);
        if let DictValue::List(items) = &entry.value {
            items
                .iter()
                .for_each(|(_, block)| self.slab.release(*block));
        }
        self.slab.release(entry.block);
    }

    /// Adds an item to the list under a key, which is created if need be. Returns the list's
    /// length. Unlike `set` this evicts nothing: a producer that is faster than its consumer gets
    /// "no memory" and keeps its queue.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        item: DictValue,
        end: ListEnd,
        now: u64,
    ) -> Result<usize, PushError> {
        self.expire_oldest(now);
        if self
            .list(key, now)
            .map_err(|_| PushError::NotAList)?
            .is_none()
        {
            self.remove(key);
            let wanted = (ENTRY_OVERHEAD + key.len() as u64 + LIST_OVERHEAD).next_multiple_of(8);
            let block = self.slab.alloc(wanted).ok_or(PushError::NoRoomForList)?;
            let list = NewEntry {
                value: DictValue::List(VecDeque::new()),
                flags: 0,
                expires: 0,
            };
            self.insert(key, list, block);
        }
        let block = self.slab.alloc(ITEM_OVERHEAD + item.size());
        let Ok(Some(items)) = self.list(key, now) else {
            return Err(PushError::NoRoomForItem);
        };
        let Some(block) = block else {
            // The list was created for this item.
            if items.is_empty() {
                self.remove(key);
            }
            return Err(PushError::NoRoomForItem);
        };
        match end {
            ListEnd::Front => items.push_front((item, block)),
            ListEnd::Back => items.push_back((item, block)),
        }
        Ok(items.len())
    }

    /// Removes an item from the list under a key. A list that becomes empty is removed.
    pub(crate) fn pop(
        &mut self,
        key: &[u8],
        end: ListEnd,
        now: u64,
    ) -> Result<Option<DictValue>, &'static str> {
        self.expire_oldest(now);
        let Some(items) = self.list(key, now)? else {
            return Ok(None);
        };
        let item = match end {
            ListEnd::Front => items.pop_front(),
            ListEnd::Back => items.pop_back(),
        };
        let empty = items.is_empty();
        if let Some((_, block)) = &item {
            self.slab.release(*block);
        }
        if empty {
            self.remove(key);
        }
        Ok(item.map(|(item, _)| item))
    }

    /// The list under a key, unless it has expired.
    pub(crate) fn list(
        &mut self,
        key: &[u8],
        now: u64,
    ) -> Result<Option<&mut VecDeque<(DictValue, SlabBlock)>>, &'static str> {
        match self.get(key, now).filter(|entry| !entry.is_expired(now)) {
            None => Ok(None),
            Some(DictEntry {
                value: DictValue::List(items),
                ..
            }) => Ok(Some(items)),
            Some(_) => Err("value not a list"),
        }
    }

    /// Keys of valid or of expired entries, at most `max`, the least recently used first.
    fn keys_where(&self, max: usize, now: u64, stale: bool) -> Vec<Arc<[u8]>> {
        self.by_use
            .values()
            .filter(|key| {
                let entry = self.by_key.get(*key);
                entry.is_some_and(|entry| entry.is_expired(now) == stale)
            })
            .take(max)
            .cloned()
            .collect()
    }

    /// Keys of valid entries, at most `max`, the least recently used first.
    pub(crate) fn keys(&self, max: usize, now: u64) -> Vec<Arc<[u8]>> {
        self.keys_where(max, now, false)
    }

    /// Removes expired entries, at most `max`; how many there were.
    pub(crate) fn remove_expired(&mut self, max: usize, now: u64) -> usize {
        let stale = self.keys_where(max, now, true);
        for key in &stale {
            self.remove(key);
        }
        stale.len()
    }

    /// `flush_all`: expires every entry. As in lua-nginx-module memory is freed only as later
    /// writes remove them.
    pub(crate) fn expire_all(&mut self, now: u64) {
        for entry in self.by_key.values_mut() {
            entry.expires = 1;
        }
        self.remove_oldest_if(|_| true);
        self.expire_oldest(now);
    }

    /// Bytes in free pages.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.slab.free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> NewEntry {
        NewEntry {
            value: DictValue::Bytes(text.as_bytes().into()),
            flags: 0,
            expires: 0,
        }
    }

    /// Room for two pages.
    fn small() -> SharedDict {
        SharedDict::new("d", 20 << 10)
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let page = "x".repeat(3000);
        for key in ["a", "b"] {
            let put = entries.put(key.as_bytes(), text(&page), 0, true);
            assert!(put.stored && !put.forcible);
        }
        assert!(entries.get(b"a", 0).is_some());
        let put = entries.put(b"c", text(&page), 0, true);
        assert!(put.stored && put.forcible);
        assert!(entries.peek(b"b").is_none());
        assert!(entries.peek(b"a").is_some());
        let put = entries.put(b"d", text(&page), 0, false);
        assert!(!put.stored && !put.forcible);
    }

    #[test]
    fn an_entry_larger_than_all_is_refused_and_all_had_to_go() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let free = entries.free_bytes();
        entries.put(b"a", text("1"), 0, true);
        let put = entries.put(b"k", text(&"x".repeat(20_000)), 0, true);
        assert!(!put.stored && put.forcible);
        assert_eq!(entries.free_bytes(), free);
    }

    #[test]
    fn a_list_that_is_empty_is_gone() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let free = entries.free_bytes();
        let one = DictValue::Number(1.0);
        assert_eq!(entries.push(b"l", one.clone(), ListEnd::Back, 0), Ok(1));
        assert_eq!(entries.push(b"l", one.clone(), ListEnd::Front, 0), Ok(2));
        assert_eq!(entries.pop(b"l", ListEnd::Front, 0), Ok(Some(one.clone())));
        assert_eq!(entries.pop(b"l", ListEnd::Back, 0), Ok(Some(one)));
        assert!(entries.peek(b"l").is_none());
        assert_eq!(entries.free_bytes(), free);
    }

    #[test]
    fn a_list_that_is_full_stays() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let mut pushed = 0;
        let item = || DictValue::Bytes(b"12345678".as_slice().into());
        while entries.push(b"l", item(), ListEnd::Back, 0).is_ok() {
            pushed += 1;
        }
        assert_eq!(pushed, 126 + 2 * 127, "pieces of 32 bytes in three pages");
        assert_eq!(
            entries
                .list(b"l", 0)
                .map(|list| list.map(|list| list.len())),
            Ok(Some(pushed))
        );
        let long = DictValue::Bytes(vec![0; 3000].into());
        assert_eq!(
            entries.push(b"l", long, ListEnd::Back, 0),
            Err(PushError::NoRoomForItem)
        );
    }
}
