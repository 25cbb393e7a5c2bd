//! `lua_shared_dict`: a dictionary that all loops share and that outlives a reload.
//!
//! It is bounded by its size in bytes, which are counted as in nginx ([`crate::slab`]). When it is full, entries make room in
//! the order in which they were used last.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::slab::{Block, Slab};

/// A dictionary.
pub(crate) struct Dictionary {
    pub(crate) name: String,
    pub(crate) size: u64,
    entries: Mutex<Entries>,
}

/// What an entry takes beside its key and value, in bytes.
const ENTRY: u64 = 68;

/// What a list takes beside its key, before its first item.
const LIST: u64 = 16;

/// What an item of a list takes beside its value.
const ITEM: u64 = 21;

/// How many good entries make room for a new one at most.
const MOST_FORCED: u32 = 30;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

pub(crate) struct Entries {
    by_key: HashMap<Arc<[u8]>, Entry>,
    /// The keys in the order of their last use.
    by_use: BTreeMap<u64, Arc<[u8]>>,
    /// The number of the next use.
    uses: u64,
    slab: Slab,
}

/// What stands under a key.
pub(crate) struct Entry {
    pub(crate) value: Item,
    pub(crate) flags: u32,
    /// In milliseconds since 1970; 0 is never.
    pub(crate) expires: u64,
    block: Block,
    last_use: u64,
}

/// What is put under a key.
pub(crate) struct New {
    pub(crate) value: Item,
    pub(crate) flags: u32,
    /// In milliseconds since 1970; 0 is never.
    pub(crate) expires: u64,
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Item {
    Boolean(bool),
    Number(f64),
    Bytes(Box<[u8]>),
    List(VecDeque<(Item, Block)>),
}

impl Item {
    /// What it takes, in bytes.
    fn weight(&self) -> u64 {
        match self {
            Item::Boolean(_) => 1,
            Item::Number(_) => 8,
            Item::Bytes(bytes) => bytes.len() as u64,
            Item::List(_) => LIST,
        }
    }
}

impl Entry {
    pub(crate) fn is_stale(&self, now: u64) -> bool {
        self.expires != 0 && self.expires <= now
    }
}

/// What putting an entry came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Put {
    /// There was room.
    pub(crate) done: bool,
    /// Entries that were still good had to make room.
    pub(crate) forced: bool,
}

/// Why an item was not added to a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// What stands under the key is no list.
    OtherKind,
    /// There is no room for one more item.
    Item,
    /// There is no room for the list.
    List,
}

impl Dictionary {
    pub(crate) fn new(name: &str, size: u64) -> Dictionary {
        // What nginx keeps there itself: the heads of its lists, and the name for its log.
        let own = [80, 28 + name.len() as u64];
        Dictionary {
            name: name.to_owned(),
            size,
            entries: Mutex::new(Entries {
                by_key: HashMap::new(),
                by_use: BTreeMap::new(),
                uses: 0,
                slab: Slab::new(size, &own),
            }),
        }
    }

    /// The entries. The lock is held for one operation, never over anything that can wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    /// The entry under a key, good or stale, without counting as a use.
    pub(crate) fn peek(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.by_key.get_mut(key)
    }

    /// The entry under a key, good or stale. A good one is the newest then.
    pub(crate) fn get(&mut self, key: &[u8], now: u64) -> Option<&mut Entry> {
        let entry = self.by_key.get_mut(key)?;
        if !entry.is_stale(now)
            && let Some(shared) = self.by_use.remove(&entry.last_use)
        {
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, shared);
            self.uses += 1;
        }
        Some(entry)
    }

    /// Removes one or two stale entries at the end of those that were used longest ago, as each operation does that writes.
    pub(crate) fn tidy(&mut self, now: u64) {
        for _ in 0..2 {
            if !self.remove_oldest(|entry| entry.is_stale(now)) {
                break;
            }
        }
    }

    fn remove_oldest(&mut self, may_go: impl Fn(&Entry) -> bool) -> bool {
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

    /// Puts an entry. `may_force` says whether good entries may make room.
    pub(crate) fn put(&mut self, key: &[u8], new: New, now: u64, may_force: bool) -> Put {
        let done = |forced| Put { done: true, forced };
        let weight = new.value.weight();
        if self.has_room(key, weight) {
            // A value of the same size takes the old one's place.
            if let Some(entry) = self.by_key.get_mut(key) {
                (entry.value, entry.flags, entry.expires) = (new.value, new.flags, new.expires);
            }
            self.touch(key);
            return done(false);
        }
        self.remove(key);
        let wanted = ENTRY + key.len() as u64 + weight;
        let mut block = self.slab.take(wanted);
        let mut forced = false;
        for _ in 0..MOST_FORCED {
            if block.is_some() || !may_force || !self.remove_oldest(|_| true) {
                break;
            }
            self.tidy(now);
            forced = true;
            block = self.slab.take(wanted);
        }
        let Some(block) = block else {
            return Put {
                done: false,
                forced,
            };
        };
        self.insert(key, new, block);
        done(forced)
    }

    /// Whether the value under a key takes this many bytes.
    fn has_room(&self, key: &[u8], weight: u64) -> bool {
        self.by_key.get(key).is_some_and(|entry| {
            !matches!(entry.value, Item::List(_)) && entry.value.weight() == weight
        })
    }

    fn insert(&mut self, key: &[u8], new: New, block: Block) {
        let key: Arc<[u8]> = key.into();
        let entry = Entry {
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

    /// Makes an entry the newest, good or stale.
    fn touch(&mut self, key: &[u8]) {
        if let Some(entry) = self.by_key.get_mut(key)
            && let Some(shared) = self.by_use.remove(&entry.last_use)
        {
            entry.last_use = self.uses;
            self.by_use.insert(self.uses, shared);
            self.uses += 1;
        }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &[u8]) {
        let Some(entry) = self.by_key.remove(key) else {
            return;
        };
        self.by_use.remove(&entry.last_use);
        if let Item::List(items) = &entry.value {
            items
                .iter()
                .for_each(|(_, block)| self.slab.give_back(*block));
        }
        self.slab.give_back(entry.block);
    }

    /// Adds an item to the list under a key, made when there is none; the list's length then. Nothing good makes room: a list
    /// that is full is left as it is.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        item: Item,
        end: End,
        now: u64,
    ) -> Result<usize, Refused> {
        self.tidy(now);
        if self
            .list(key, now)
            .map_err(|_| Refused::OtherKind)?
            .is_none()
        {
            self.remove(key);
            let wanted = (ENTRY + key.len() as u64 + LIST).next_multiple_of(8);
            let block = self.slab.take(wanted).ok_or(Refused::List)?;
            let list = New {
                value: Item::List(VecDeque::new()),
                flags: 0,
                expires: 0,
            };
            self.insert(key, list, block);
        }
        let block = self.slab.take(ITEM + item.weight());
        let Ok(Some(items)) = self.list(key, now) else {
            return Err(Refused::Item);
        };
        let Some(block) = block else {
            if items.is_empty() {
                self.remove(key);
            }
            return Err(Refused::Item);
        };
        match end {
            End::Front => items.push_front((item, block)),
            End::Back => items.push_back((item, block)),
        }
        Ok(items.len())
    }

    /// Takes an item off the list under a key. A list without items is gone.
    pub(crate) fn pop(
        &mut self,
        key: &[u8],
        end: End,
        now: u64,
    ) -> Result<Option<Item>, &'static str> {
        self.tidy(now);
        let Some(items) = self.list(key, now)? else {
            return Ok(None);
        };
        let item = match end {
            End::Front => items.pop_front(),
            End::Back => items.pop_back(),
        };
        let empty = items.is_empty();
        if let Some((_, block)) = &item {
            self.slab.give_back(*block);
        }
        if empty {
            self.remove(key);
        }
        Ok(item.map(|(item, _)| item))
    }

    /// The good list under a key.
    pub(crate) fn list(
        &mut self,
        key: &[u8],
        now: u64,
    ) -> Result<Option<&mut VecDeque<(Item, Block)>>, &'static str> {
        match self.get(key, now).filter(|entry| !entry.is_stale(now)) {
            None => Ok(None),
            Some(Entry {
                value: Item::List(items),
                ..
            }) => Ok(Some(items)),
            Some(_) => Err("value not a list"),
        }
    }

    /// Keys of entries that are good, or stale, those used longest ago first, at most `max`.
    fn chosen(&self, max: usize, now: u64, stale: bool) -> Vec<Arc<[u8]>> {
        self.by_use
            .values()
            .filter(|key| {
                let entry = self.by_key.get(*key);
                entry.is_some_and(|entry| entry.is_stale(now) == stale)
            })
            .take(max)
            .cloned()
            .collect()
    }

    /// Keys of good entries, those used longest ago first, at most `max`.
    pub(crate) fn keys(&self, max: usize, now: u64) -> Vec<Arc<[u8]>> {
        self.chosen(max, now, false)
    }

    /// Removes stale entries, at most `max`; how many those were.
    pub(crate) fn remove_stale(&mut self, max: usize, now: u64) -> usize {
        let stale = self.chosen(max, now, true);
        for key in &stale {
            self.remove(key);
        }
        stale.len()
    }

    /// Makes every entry stale. The first ones go at once.
    pub(crate) fn expire_all(&mut self, now: u64) {
        for entry in self.by_key.values_mut() {
            entry.expires = 1;
        }
        self.remove_oldest(|_| true);
        self.tidy(now);
    }

    /// Bytes of pages that are free.
    pub(crate) fn free(&self) -> u64 {
        self.slab.free()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> New {
        New {
            value: Item::Bytes(text.as_bytes().into()),
            flags: 0,
            expires: 0,
        }
    }

    /// Room for two pages.
    fn small() -> Dictionary {
        Dictionary::new("d", 20 << 10)
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let page = "x".repeat(3000);
        for key in ["a", "b"] {
            let put = entries.put(key.as_bytes(), text(&page), 0, true);
            assert!(put.done && !put.forced);
        }
        assert!(entries.get(b"a", 0).is_some());
        let put = entries.put(b"c", text(&page), 0, true);
        assert!(put.done && put.forced);
        assert!(entries.peek(b"b").is_none());
        assert!(entries.peek(b"a").is_some());
        let put = entries.put(b"d", text(&page), 0, false);
        assert!(!put.done && !put.forced);
    }

    #[test]
    fn an_entry_larger_than_all_is_refused_and_all_had_to_go() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let free = entries.free();
        entries.put(b"a", text("1"), 0, true);
        let put = entries.put(b"k", text(&"x".repeat(20_000)), 0, true);
        assert!(!put.done && put.forced);
        assert_eq!(entries.free(), free);
    }

    #[test]
    fn a_list_that_is_empty_is_gone() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let free = entries.free();
        let one = Item::Number(1.0);
        assert_eq!(entries.push(b"l", one.clone(), End::Back, 0), Ok(1));
        assert_eq!(entries.push(b"l", one.clone(), End::Front, 0), Ok(2));
        assert_eq!(entries.pop(b"l", End::Front, 0), Ok(Some(one.clone())));
        assert_eq!(entries.pop(b"l", End::Back, 0), Ok(Some(one)));
        assert!(entries.peek(b"l").is_none());
        assert_eq!(entries.free(), free);
    }

    #[test]
    fn a_list_that_is_full_stays() {
        let dictionary = small();
        let mut entries = dictionary.lock();
        let mut pushed = 0;
        let item = || Item::Bytes(b"12345678".as_slice().into());
        while entries.push(b"l", item(), End::Back, 0).is_ok() {
            pushed += 1;
        }
        assert_eq!(pushed, 126 + 2 * 127, "pieces of 32 bytes in three pages");
        assert_eq!(
            entries
                .list(b"l", 0)
                .map(|list| list.map(|list| list.len())),
            Ok(Some(pushed))
        );
        let long = Item::Bytes(vec![0; 3000].into());
        assert_eq!(entries.push(b"l", long, End::Back, 0), Err(Refused::Item));
    }
}
