//! `lua_shared_dict`: a dictionary that all loops share and that outlives a reload.
//!
//! It is bounded by its size in bytes. When it is full, entries make room in the order in which they were used last.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::Lru;

/// A dictionary.
pub(crate) struct Dictionary {
    pub(crate) name: String,
    pub(crate) size: u64,
    entries: Mutex<Entries>,
}

/// What an entry is counted with beside its key and value, in bytes: its places in the map and in the list.
const OVERHEAD: u64 = 160;

/// What an item of a list is counted with beside its value, in bytes.
const LIST_PLACE: u64 = 32;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Back,
}

pub(crate) struct Entries {
    by_key: Lru<Box<[u8]>, Entry>,
    used: u64,
    size: u64,
}

/// What stands under a key.
pub(crate) struct Entry {
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
    List(VecDeque<Item>),
}

impl Item {
    fn weight(&self) -> u64 {
        match self {
            Item::Boolean(_) | Item::Number(_) => 8,
            Item::Bytes(bytes) => bytes.len() as u64,
            Item::List(items) => items.iter().map(|item| LIST_PLACE + item.weight()).sum(),
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
pub(crate) enum Put {
    Done {
        /// Entries that were still good had to make room.
        forced: bool,
    },
    NoMemory,
}

impl Dictionary {
    pub(crate) fn new(name: &str, size: u64) -> Dictionary {
        let most = usize::try_from(size / OVERHEAD)
            .unwrap_or(usize::MAX)
            .max(1);
        Dictionary {
            name: name.to_owned(),
            size,
            entries: Mutex::new(Entries {
                by_key: Lru::new(most),
                used: 0,
                size,
            }),
        }
    }

    /// The entries. The lock is held for one operation, never over anything that can wait.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(key: &[u8], value: &Item) -> u64 {
    OVERHEAD + key.len() as u64 + value.weight()
}

impl Entries {
    /// The entry under a key, good or stale.
    pub(crate) fn get(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.by_key.get(key)
    }

    /// Puts an entry. `may_force` says whether good entries may make room.
    pub(crate) fn put(&mut self, key: &[u8], entry: Entry, now: u64, may_force: bool) -> Put {
        let wanted = weight(key, &entry.value);
        if wanted > self.size {
            return Put::NoMemory;
        }
        self.remove(key);
        let mut forced = false;
        while self.used + wanted > self.size || self.by_key.len() == self.by_key.capacity() {
            let Some((_, oldest)) = self.by_key.oldest() else {
                break;
            };
            if !oldest.is_stale(now) {
                if !may_force {
                    return Put::NoMemory;
                }
                forced = true;
            }
            if let Some((key, old)) = self.by_key.pop_oldest() {
                self.used -= weight(&key, &old.value);
            }
        }
        self.used += wanted;
        self.by_key.insert(key.into(), entry);
        Put::Done { forced }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let entry = self.by_key.remove(key)?;
        self.used -= weight(key, &entry.value);
        Some(entry)
    }

    /// Adds an item to the list under a key, made when there is none; the list's length then. Only stale entries make room:
    /// a list that is full is left as it is. Errors are in nginx's words.
    pub(crate) fn push(
        &mut self,
        key: &[u8],
        item: Item,
        end: End,
        now: u64,
    ) -> Result<usize, &'static str> {
        if self.list(key, now)?.is_none() {
            let entry = Entry {
                value: Item::List(VecDeque::from([item])),
                flags: 0,
                expires: 0,
            };
            return match self.put(key, entry, now, false) {
                Put::Done { .. } => Ok(1),
                Put::NoMemory => Err("no memory"),
            };
        }
        let more = LIST_PLACE + item.weight();
        while self.used + more > self.size {
            let oldest = self.by_key.oldest();
            if !oldest.is_some_and(|(_, entry)| entry.is_stale(now)) {
                return Err("no memory");
            }
            if let Some((key, old)) = self.by_key.pop_oldest() {
                self.used -= weight(&key, &old.value);
            }
        }
        let Some(items) = self.list(key, now)? else {
            return Err("no memory");
        };
        match end {
            End::Front => items.push_front(item),
            End::Back => items.push_back(item),
        }
        let length = items.len();
        self.used += more;
        Ok(length)
    }

    /// Takes an item off the list under a key. A list without items is gone.
    pub(crate) fn pop(
        &mut self,
        key: &[u8],
        end: End,
        now: u64,
    ) -> Result<Option<Item>, &'static str> {
        let Some(items) = self.list(key, now)? else {
            return Ok(None);
        };
        let item = match end {
            End::Front => items.pop_front(),
            End::Back => items.pop_back(),
        };
        let empty = items.is_empty();
        if let Some(item) = &item {
            self.used -= LIST_PLACE + item.weight();
        }
        if empty {
            self.remove(key);
        }
        Ok(item)
    }

    /// The good list under a key.
    pub(crate) fn list(
        &mut self,
        key: &[u8],
        now: u64,
    ) -> Result<Option<&mut VecDeque<Item>>, &'static str> {
        match self.by_key.get(key).filter(|entry| !entry.is_stale(now)) {
            None => Ok(None),
            Some(Entry {
                value: Item::List(items),
                ..
            }) => Ok(Some(items)),
            Some(_) => Err("value not a list"),
        }
    }

    /// Keys of good entries, the most recently used first, at most `max`.
    pub(crate) fn keys(&self, max: usize, now: u64) -> Vec<Box<[u8]>> {
        self.by_key
            .iter()
            .filter(|(_, entry)| !entry.is_stale(now))
            .take(max)
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Removes stale entries, at most `max`; how many those were.
    pub(crate) fn remove_stale(&mut self, max: usize, now: u64) -> usize {
        let stale: Vec<Box<[u8]>> = self
            .by_key
            .iter()
            .filter(|(_, entry)| entry.is_stale(now))
            .take(max)
            .map(|(key, _)| key.clone())
            .collect();
        for key in &stale {
            self.remove(key);
        }
        stale.len()
    }

    /// Makes every entry stale.
    pub(crate) fn expire_all(&mut self, now: u64) {
        let keys = self.keys(usize::MAX, now);
        for key in keys {
            if let Some(entry) = self.by_key.get(&*key) {
                entry.expires = now.max(1);
            }
        }
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        self.size.saturating_sub(self.used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Entry {
        Entry {
            value: Item::Bytes(text.as_bytes().into()),
            flags: 0,
            expires: 0,
        }
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() {
        let dictionary = Dictionary::new("d", 3 * (OVERHEAD + 2));
        let mut entries = dictionary.lock();
        for key in ["a", "b", "c"] {
            let put = entries.put(key.as_bytes(), text("1"), 0, true);
            assert_eq!(put, Put::Done { forced: false });
        }
        assert!(entries.get(b"a").is_some());
        assert_eq!(
            entries.put(b"d", text("1"), 0, true),
            Put::Done { forced: true }
        );
        assert!(entries.get(b"b").is_none());
        assert!(entries.get(b"a").is_some());
        assert_eq!(entries.put(b"e", text("1"), 0, false), Put::NoMemory);
    }

    #[test]
    fn an_entry_larger_than_all_is_refused() {
        let dictionary = Dictionary::new("d", 1000);
        let large = "x".repeat(1000);
        assert_eq!(
            dictionary.lock().put(b"k", text(&large), 0, true),
            Put::NoMemory
        );
        assert_eq!(dictionary.lock().free(), 1000);
    }

    #[test]
    fn a_list_that_is_empty_is_gone() {
        let dictionary = Dictionary::new("d", 10_000);
        let mut entries = dictionary.lock();
        let one = Item::Number(1.0);
        assert_eq!(entries.push(b"l", one.clone(), End::Back, 0), Ok(1));
        assert_eq!(entries.push(b"l", one.clone(), End::Front, 0), Ok(2));
        assert_eq!(entries.pop(b"l", End::Front, 0), Ok(Some(one.clone())));
        assert_eq!(entries.pop(b"l", End::Back, 0), Ok(Some(one)));
        assert!(entries.get(b"l").is_none());
        assert_eq!(entries.free(), 10_000);
    }

    #[test]
    fn a_list_that_is_full_stays() {
        let dictionary = Dictionary::new("d", 1000);
        let mut entries = dictionary.lock();
        let mut pushed = 0;
        let item = || Item::Bytes(b"12345678".as_slice().into());
        while entries.push(b"l", item(), End::Back, 0).is_ok() {
            pushed += 1;
        }
        assert!(pushed > 10, "{pushed}");
        assert_eq!(
            entries
                .list(b"l", 0)
                .map(|list| list.map(|list| list.len())),
            Ok(Some(pushed))
        );
        assert_eq!(
            entries.push(b"other", item(), End::Back, 0),
            Err("no memory")
        );
    }
}
