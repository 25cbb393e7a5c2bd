//! A table of values under small integer keys that are reused.
//!
//! For things that have a handle: connections, timers, entries of another structure. A key says nothing
//! about which value it once meant; a caller that keeps keys longer than values must add a generation.

/// Values under keys `0, 1, 2, …`; the key of a removed value is used again first.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    entries: Vec<SlabEntry<T>>,
    /// Head of the chain of vacant entries.
    vacant: Option<usize>,
    len: usize,
}

#[derive(Clone, Debug)]
enum SlabEntry<T> {
    Occupied(T),
    /// The next vacant entry.
    Vacant(Option<usize>),
}

impl<T> Slab<T> {
    /// An empty table.
    pub const fn new() -> Slab<T> {
        Slab {
            entries: Vec::new(),
            vacant: None,
            len: 0,
        }
    }

    /// Puts a value in and returns its key.
    pub fn insert(&mut self, value: T) -> usize {
        self.len += 1;
        let Some(key) = self.vacant else {
            self.entries.push(SlabEntry::Occupied(value));
            return self.entries.len() - 1;
        };
        if let SlabEntry::Vacant(next) =
            std::mem::replace(&mut self.entries[key], SlabEntry::Occupied(value))
        {
            self.vacant = next;
        }
        key
    }

    /// Takes the value under `key` out.
    pub fn remove(&mut self, key: usize) -> Option<T> {
        let entry = self.entries.get_mut(key)?;
        if matches!(entry, SlabEntry::Vacant(_)) {
            return None;
        }
        let SlabEntry::Occupied(value) = std::mem::replace(entry, SlabEntry::Vacant(self.vacant))
        else {
            return None;
        };
        self.vacant = Some(key);
        self.len -= 1;
        Some(value)
    }

    /// The value under `key`.
    pub fn get(&self, key: usize) -> Option<&T> {
        match self.entries.get(key)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// The value under `key`, to change.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match self.entries.get_mut(key)? {
            SlabEntry::Occupied(value) => Some(value),
            SlabEntry::Vacant(_) => None,
        }
    }

    /// All values with their keys, in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(key, entry)| match entry {
                SlabEntry::Occupied(value) => Some((key, value)),
                SlabEntry::Vacant(_) => None,
            })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_removed_values_are_reused() {
        let mut slab = Slab::new();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        assert_eq!(slab.get(a), None);
        assert_eq!(slab.insert('c'), a);
        assert_eq!(slab.iter().collect::<Vec<_>>(), [(a, &'c'), (b, &'b')]);
        assert_eq!(slab.len(), 2);
        assert_eq!(slab.remove(7), None);
    }
}
