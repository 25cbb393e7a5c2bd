//! A map with a bound that forgets what was used longest ago.
//!
//! For small caches whose loss costs only time: opened files, resolved names, parsed patterns. The cache of
//! responses does not use it; that one must resist scans (`crates/cache`).

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// A map of at most `capacity` entries in order of use.
///
/// Entries live in one vector and are chained by index, newest first; the map finds the index of a key. A
/// look-up is one hash and four stores, and nothing is allocated after the map has filled up.
#[derive(Debug)]
pub struct Lru<K, V> {
    index: HashMap<K, usize>,
    entries: Vec<LruEntry<K, V>>,
    newest: usize,
    oldest: usize,
    capacity: usize,
}

#[derive(Debug)]
struct LruEntry<K, V> {
    key: K,
    value: V,
    newer: usize,
    older: usize,
}

/// The end of a chain.
const NONE: usize = usize::MAX;

impl<K: Eq + Hash + Clone, V> Lru<K, V> {
    /// An empty map for at most `capacity` entries. With capacity 0 it keeps nothing.
    pub fn new(capacity: usize) -> Lru<K, V> {
        Lru {
            index: HashMap::new(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
            capacity,
        }
    }

    /// The value of `key`, which becomes the newest.
    pub fn get<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = *self.index.get(key)?;
        self.unlink(at);
        self.link_newest(at);
        Some(&mut self.entries[at].value)
    }

    /// The value of `key` without counting as a use.
    pub fn peek<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.index.get(key).map(|&at| &self.entries[at].value)
    }

    /// The same, to change it.
    pub fn peek_mut<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = *self.index.get(key)?;
        Some(&mut self.entries[at].value)
    }

    /// Puts a value in as the newest. Returns what had to leave: the former value of the same key, or the
    /// oldest entry when the map was full.
    pub fn insert(&mut self, key: K, value: V) -> Option<(K, V)> {
        if self.capacity == 0 {
            return Some((key, value));
        }
        let evicted = match self.remove(&key) {
            Some(former) => Some((key.clone(), former)),
            None if self.entries.len() >= self.capacity => self.pop_oldest(),
            None => None,
        };
        let at = self.entries.len();
        self.entries.push(LruEntry {
            key: key.clone(),
            value,
            newer: NONE,
            older: NONE,
        });
        self.index.insert(key, at);
        self.link_newest(at);
        evicted
    }

    /// Takes the entry of `key` out.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.index.remove(key)?;
        Some(self.take(at).1)
    }

    /// Takes the entry out that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let at = self.oldest;
        let key = &self.entries.get(at)?.key;
        self.index.remove(key);
        Some(self.take(at))
    }

    /// The entry that was used longest ago, without counting as a use.
    pub fn oldest(&self) -> Option<(&K, &V)> {
        self.entries
            .get(self.oldest)
            .map(|entry| (&entry.key, &entry.value))
    }

    /// All entries in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.value))
    }

    /// The same, to change them. It does not count as a use.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let entries = self.entries.iter_mut();
        entries.map(|entry| (&entry.key, &mut entry.value))
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.index.clear();
        self.entries.clear();
        (self.newest, self.oldest) = (NONE, NONE);
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bound.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Removes the entry at `at`, whose key is no longer in the index. The last entry moves into its place,
    /// so that the vector has no holes; everything that pointed to the last one is told.
    fn take(&mut self, at: usize) -> (K, V) {
        self.unlink(at);
        let entry = self.entries.swap_remove(at);
        let moved_from = self.entries.len();
        if at != moved_from {
            let (newer, older) = (self.entries[at].newer, self.entries[at].older);
            *self.older_of(newer) = at;
            *self.newer_of(older) = at;
            if let Some(place) = self.index.get_mut(&self.entries[at].key) {
                *place = at;
            }
        }
        (entry.key, entry.value)
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.entries[at].newer, self.entries[at].older);
        *self.older_of(newer) = older;
        *self.newer_of(older) = newer;
    }

    fn link_newest(&mut self, at: usize) {
        let former = self.newest;
        self.entries[at].newer = NONE;
        self.entries[at].older = former;
        *self.newer_of(former) = at;
        self.newest = at;
    }

    /// Where the index of the entry older than `at` is kept. Before the newest entry that is the head.
    fn older_of(&mut self, at: usize) -> &mut usize {
        match at {
            NONE => &mut self.newest,
            at => &mut self.entries[at].older,
        }
    }

    /// Where the index of the entry newer than `at` is kept. After the oldest entry that is the tail.
    fn newer_of(&mut self, at: usize) -> &mut usize {
        match at {
            NONE => &mut self.oldest,
            at => &mut self.entries[at].newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_used_longest_ago_leaves() {
        let mut lru = Lru::new(2);
        assert_eq!(lru.insert("a", 1), None);
        assert_eq!(lru.insert("b", 2), None);
        assert_eq!(lru.get("a"), Some(&mut 1));
        assert_eq!(lru.insert("c", 3), Some(("b", 2)));
        assert_eq!(lru.peek("a"), Some(&1));
        assert_eq!(lru.oldest(), Some((&"a", &1)));
        assert_eq!(lru.insert("a", 4), Some(("a", 1)));
        assert_eq!(lru.pop_oldest(), Some(("c", 3)));
    }

    #[test]
    fn a_map_without_room_keeps_nothing() {
        let mut lru = Lru::new(0);
        assert_eq!(lru.insert(1, 2), Some((1, 2)));
        assert!(lru.is_empty());
        assert_eq!(lru.pop_oldest(), None);
    }

    /// Against the obvious implementation, over every sequence that a small generator gives.
    #[test]
    fn agrees_with_a_list_in_order_of_use() {
        let mut lru = Lru::new(4);
        let mut list: Vec<(u32, u32)> = Vec::new();
        let mut state = 1u32;
        for step in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (action, key) = (state >> 30, (state >> 20) % 7);
            let found = list.iter().position(|entry| entry.0 == key);
            match action {
                0 => assert_eq!(lru.remove(&key), found.map(|at| list.remove(at).1)),
                1 => {
                    let expected = found.map(|at| list.remove(at));
                    if let Some(entry) = expected {
                        list.push(entry);
                    }
                    assert_eq!(lru.get(&key).copied(), expected.map(|entry| entry.1));
                }
                _ => {
                    let full = list.len() == 4;
                    let gone = found.or(full.then_some(0)).map(|at| list.remove(at));
                    list.push((key, step));
                    assert_eq!(lru.insert(key, step), gone);
                }
            }
            assert_eq!(lru.len(), list.len());
            assert_eq!(lru.oldest(), list.first().map(|entry| (&entry.0, &entry.1)));
        }
    }
}
