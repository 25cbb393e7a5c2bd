//! A dynamic table (RFC 7541, section 2.3.2; RFC 9204, section 3.2), in one piece of memory.

use super::ENTRY_OVERHEAD;
use crate::known_fields::KnownField;
use std::collections::VecDeque;
use std::ops::Range;

/// The table. Index 0 is the newest entry.
#[derive(Debug, Default)]
pub(crate) struct DynamicTable {
    /// Names and values of the entries, oldest first, after an unused part.
    bytes: Vec<u8>,
    entries: VecDeque<DynamicEntry>,
    /// The entries' size as the RFC counts it.
    size: usize,
    max: usize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DynamicEntry {
    /// The start of the name in `bytes`; the value follows it.
    start: u32,
    name: u32,
    value: u32,
    pub(crate) known: KnownField,
    /// For the encoder's search: the hashes of the name, and of name and value.
    pub(crate) hashes: (u32, u32),
}

impl DynamicEntry {
    fn size(&self) -> usize {
        (self.name + self.value) as usize + ENTRY_OVERHEAD
    }
}

/// The name of a new entry.
pub(crate) enum EntryName<'a> {
    Text(&'a [u8]),
    /// The name of an existing entry, which may be evicted by the new one.
    Entry(usize),
}

impl DynamicTable {
    pub(crate) fn new(max: usize) -> DynamicTable {
        DynamicTable {
            max,
            ..DynamicTable::default()
        }
    }

    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Changes the table's size, and evicts the oldest entries if necessary.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        self.evict();
        if self.entries.is_empty() {
            self.bytes = Vec::new();
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &DynamicEntry> {
        self.entries.iter()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&DynamicEntry> {
        self.entries.get(index)
    }

    pub(crate) fn name(&self, entry: &DynamicEntry) -> &[u8] {
        let start = entry.start as usize;
        &self.bytes[start..start + entry.name as usize]
    }

    pub(crate) fn value(&self, entry: &DynamicEntry) -> &[u8] {
        let start = (entry.start + entry.name) as usize;
        &self.bytes[start..start + entry.value as usize]
    }

    /// Inserts an entry. One that is larger than the table empties it (section 4.4).
    pub(crate) fn insert(
        &mut self,
        known: KnownField,
        name: EntryName<'_>,
        value: &[u8],
        hashes: (u32, u32),
    ) {
        let name_length = match name {
            EntryName::Text(text) => text.len(),
            EntryName::Entry(index) => self.entries.get(index).map_or(0, |e| e.name as usize),
        };
        if name_length + value.len() + ENTRY_OVERHEAD > self.max {
            self.entries.clear();
            self.bytes.clear();
            self.size = 0;
            return;
        }
        self.compact();
        let start = self.bytes.len();
        match name {
            EntryName::Text(text) => self.bytes.extend_from_slice(text),
            EntryName::Entry(index) => {
                let range = self.name_range(index);
                self.bytes.extend_from_within(range);
            }
        }
        self.bytes.extend_from_slice(value);
        let entry = DynamicEntry {
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

    /// Moves the entries to the front once the unused part is as large as a table: so on average
    /// each byte is moved once.
    fn compact(&mut self) {
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

    fn list(table: &DynamicTable) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        table
            .entries()
            .map(|e| (text(table.name(e)), text(table.value(e))))
            .collect()
    }

    #[test]
    fn old_entries_make_way_and_memory_has_a_bound() {
        let mut table = DynamicTable::new(200);
        for n in 0..10_000 {
            let value = format!("{n:08}");
            table.insert(
                KnownField::Other,
                EntryName::Text(b"name"),
                value.as_bytes(),
                (0, 0),
            );
            assert!(table.size <= 200 && table.bytes.len() <= 400);
        }
        let values: Vec<String> = list(&table).into_iter().map(|(_, v)| v).collect();
        assert_eq!(values, ["00009999", "00009998", "00009997", "00009996"]);
    }

    #[test]
    fn a_name_is_taken_from_an_entry_that_makes_way_for_it() {
        let mut table = DynamicTable::new(100);
        table.insert(KnownField::Other, EntryName::Text(b"first"), b"1", (0, 0));
        table.insert(KnownField::Other, EntryName::Text(b"second"), b"2", (0, 0));
        table.insert(KnownField::Other, EntryName::Entry(1), &[b'x'; 30], (0, 0));
        assert_eq!(list(&table), [("first".into(), "x".repeat(30))]);
    }

    #[test]
    fn what_is_too_large_empties_the_table() {
        let mut table = DynamicTable::new(64);
        table.insert(
            KnownField::Other,
            EntryName::Text(b"a"),
            &[b'x'; 31],
            (0, 0),
        );
        assert_eq!(list(&table).len(), 1);
        table.insert(
            KnownField::Other,
            EntryName::Text(b"a"),
            &[b'x'; 32],
            (0, 0),
        );
        assert!(list(&table).is_empty() && table.size == 0);
        table.set_max(0);
        table.insert(KnownField::Other, EntryName::Text(b""), b"", (0, 0));
        assert!(list(&table).is_empty());
    }
}
