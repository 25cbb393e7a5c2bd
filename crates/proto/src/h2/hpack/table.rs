//! A dynamic table (RFC 7541 section 2.3.2): the fields of late, in one piece of memory.

use super::ENTRY_OVERHEAD;
use crate::known::Known;
use std::collections::VecDeque;
use std::ops::Range;

/// The table. Index 0 is the newest entry.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Names and values of the entries, oldest first, after a part that is no longer used.
    bytes: Vec<u8>,
    entries: VecDeque<Entry>,
    /// The entries' size as the RFC counts it.
    size: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Where the name begins in `bytes`; the value follows it.
    start: u32,
    name: u32,
    value: u32,
    pub(super) known: Known,
    /// For an encoder to find it again: of the name, and of name and value.
    pub(super) hashes: (u32, u32),
}

impl Entry {
    fn size(&self) -> usize {
        (self.name + self.value) as usize + ENTRY_OVERHEAD
    }
}

/// A name that is copied into the table.
pub(super) enum Name<'a> {
    Text(&'a [u8]),
    /// The name of this entry, which may be gone afterwards.
    Entry(usize),
}

impl Table {
    pub(super) fn new(max: usize) -> Table {
        Table {
            max,
            ..Table::default()
        }
    }

    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Makes the table larger, or smaller by forgetting its oldest entries.
    pub(super) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict();
        if self.entries.is_empty() {
            self.bytes = Vec::new();
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    pub(super) fn get(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    pub(super) fn name(&self, entry: &Entry) -> &[u8] {
        let start = entry.start as usize;
        &self.bytes[start..start + entry.name as usize]
    }

    pub(super) fn value(&self, entry: &Entry) -> &[u8] {
        let start = (entry.start + entry.name) as usize;
        &self.bytes[start..start + entry.value as usize]
    }

    /// Inserts an entry. One that is larger than the table empties it (section 4.4).
    pub(super) fn insert(
        &mut self,
        known: Known,
        name: Name<'_>,
        value: &[u8],
        hashes: (u32, u32),
    ) {
        let name_length = match name {
            Name::Text(text) => text.len(),
            Name::Entry(index) => self.entries.get(index).map_or(0, |e| e.name as usize),
        };
        if name_length + value.len() + ENTRY_OVERHEAD > self.max {
            self.entries.clear();
            self.bytes.clear();
            self.size = 0;
            return;
        }
        self.make_room();
        let start = self.bytes.len();
        match name {
            Name::Text(text) => self.bytes.extend_from_slice(text),
            Name::Entry(index) => {
                let range = self.name_range(index);
                self.bytes.extend_from_within(range);
            }
        }
        self.bytes.extend_from_slice(value);
        let entry = Entry {
            start: start as u32,
            name: name_length as u32,
            value: value.len() as u32,
            known,
            hashes,
        };
        self.size += entry.size();
        self.entries.push_front(entry);
        self.evict();
    }

    fn name_range(&self, index: usize) -> Range<usize> {
        self.entries.get(index).map_or(0..0, |entry| {
            let start = entry.start as usize;
            start..start + entry.name as usize
        })
    }

    fn evict(&mut self) {
        while self.size > self.max {
            let Some(oldest) = self.entries.pop_back() else {
                self.size = 0;
                return;
            };
            self.size -= oldest.size();
        }
    }

    /// Moves the entries to the front when what is unused has become as large as a table: each byte
    /// is moved once in its life, on average.
    fn make_room(&mut self) {
        let unused = match self.entries.back() {
            Some(oldest) => oldest.start as usize,
            None => self.bytes.len(),
        };
        if unused == 0 || unused < self.max {
            return;
        }
        self.bytes.drain(..unused);
        for entry in &mut self.entries {
            entry.start -= unused as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(table: &Table) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        table
            .entries()
            .map(|e| (text(table.name(e)), text(table.value(e))))
            .collect()
    }

    #[test]
    fn old_entries_make_way_and_memory_has_a_bound() {
        let mut table = Table::new(200);
        for n in 0..10_000 {
            let value = format!("{n:08}");
            table.insert(Known::Other, Name::Text(b"name"), value.as_bytes(), (0, 0));
            assert!(table.size <= 200 && table.bytes.len() <= 400);
        }
        let values: Vec<String> = list(&table).into_iter().map(|(_, v)| v).collect();
        assert_eq!(values, ["00009999", "00009998", "00009997", "00009996"]);
    }

    #[test]
    fn a_name_is_taken_from_an_entry_that_makes_way_for_it() {
        let mut table = Table::new(100);
        table.insert(Known::Other, Name::Text(b"first"), b"1", (0, 0));
        table.insert(Known::Other, Name::Text(b"second"), b"2", (0, 0));
        table.insert(Known::Other, Name::Entry(1), &[b'x'; 30], (0, 0));
        assert_eq!(list(&table), [("first".into(), "x".repeat(30))]);
    }

    #[test]
    fn what_is_too_large_empties_the_table() {
        let mut table = Table::new(64);
        table.insert(Known::Other, Name::Text(b"a"), &[b'x'; 31], (0, 0));
        assert_eq!(list(&table).len(), 1);
        table.insert(Known::Other, Name::Text(b"a"), &[b'x'; 32], (0, 0));
        assert!(list(&table).is_empty() && table.size == 0);
        table.set_max(0);
        table.insert(Known::Other, Name::Text(b""), b"", (0, 0));
        assert!(list(&table).is_empty());
    }
}
