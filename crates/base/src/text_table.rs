//! Distinct texts by number: what a `map` of a million rows is looked up in.
//!
//! A `HashMap` of strings takes a hundred bytes for a text of twenty: the string's own header, its allocation, the
//! slots that are empty. Here the texts are one after the other in one buffer, and a slot is a number.

use crate::hash::murmur2;

/// Distinct texts, numbered from 0 in the order of their arrival. Only configurations add to one, so its size is
/// limited by theirs, and so is the length of a search: the hash does not resist chosen texts.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    /// The texts without anything between them.
    bytes: Vec<u8>,
    /// Where each text ends.
    ends: Vec<u32>,
    /// By hash, then the next free one: the number of a text plus one, or 0. A power of two, of which at most three
    /// quarters are in use; empty before the first text.
    slots: Box<[u32]>,
}

/// Where a text is, or would be.
enum TextSlot {
    Found(u32),
    Free(usize),
}

impl TextTable {
    /// A table with room for this number of texts, whose bytes are not known yet.
    pub fn with_capacity(texts: usize) -> TextTable {
        TextTable {
            bytes: Vec::new(),
            ends: Vec::with_capacity(texts),
            slots: empty_slots(slots_for(texts)),
        }
    }

    /// The number of a text, and whether it is new. `None`: the texts have more than four gigabytes.
    pub fn insert(&mut self, text: &[u8]) -> Option<(u32, bool)> {
        if self.ends.len() >= self.slots.len() / 4 * 3 {
            self.grow();
        }
        let free = match self.find(text) {
            TextSlot::Found(number) => return Some((number, false)),
            TextSlot::Free(slot) => slot,
        };
        let end = u32::try_from(self.bytes.len() + text.len()).ok()?;
        let number = u32::try_from(self.ends.len()).ok()?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        self.slots[free] = number + 1;
        Some((number, true))
    }

    /// The number of a text.
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        if self.ends.is_empty() {
            return None;
        }
        match self.find(text) {
            TextSlot::Found(number) => Some(number),
            TextSlot::Free(_) => None,
        }
    }

    /// The text with a number.
    pub fn text(&self, number: u32) -> Option<&[u8]> {
        let number = number as usize;
        let end = *self.ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start as usize..end as usize)
    }

    /// All texts, by number.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len() as u32).filter_map(|number| self.text(number))
    }

    /// How many texts there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Gives back what was reserved for more.
    pub fn shrink_to_fit(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
        if slots_for(self.ends.len()) < self.slots.len() {
            self.rehash(slots_for(self.ends.len()));
        }
    }

    /// There must be a free slot.
    fn find(&self, text: &[u8]) -> TextSlot {
        let mask = self.slots.len() - 1;
        let mut slot = murmur2(text) as usize & mask;
        loop {
            let Some(number) = self.slots[slot].checked_sub(1) else {
                return TextSlot::Free(slot);
            };
            if self.text(number) == Some(text) {
                return TextSlot::Found(number);
            }
            slot = (slot + 1) & mask;
        }
    }

    fn grow(&mut self) {
        self.rehash((self.slots.len() * 2).max(slots_for(1)));
    }

    fn rehash(&mut self, slots: usize) {
        let mut slots = empty_slots(slots);
        let mask = slots.len().wrapping_sub(1);
        for (number, text) in self.texts().enumerate() {
            let mut slot = murmur2(text) as usize & mask;
            while slots[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            slots[slot] = number as u32 + 1;
        }
        self.slots = slots;
    }
}

/// How many slots this number of texts needs; none for no text.
fn slots_for(texts: usize) -> usize {
    match texts {
        0 => 0,
        texts => (texts / 3 * 4 + 4).next_power_of_two().max(8),
    }
}

fn empty_slots(count: usize) -> Box<[u32]> {
    vec![0; count].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_numbers_of_their_arrival() {
        let mut table = TextTable::default();
        assert_eq!(table.get(b"0"), None);
        for number in 0..5000_u32 {
            let text = number.to_string();
            assert_eq!(table.insert(text.as_bytes()), Some((number, true)));
            assert_eq!(table.insert(text.as_bytes()), Some((number, false)));
        }
        assert_eq!(table.insert(b""), Some((5000, true)));
        table.shrink_to_fit();
        for number in 0..5000_u32 {
            let text = number.to_string();
            assert_eq!(table.get(text.as_bytes()), Some(number));
            assert_eq!(table.text(number), Some(text.as_bytes()));
        }
        assert_eq!(
            (table.get(b""), table.get(b"5000"), table.text(5001)),
            (Some(5000), None, None)
        );
        assert_eq!(table.texts().count(), table.len());
    }

    #[test]
    fn every_capacity_has_a_free_slot() {
        for texts in 0..100 {
            let mut unused = TextTable::with_capacity(texts);
            unused.shrink_to_fit();
            assert_eq!(unused.get(b""), None);
            assert_eq!(unused.insert(b""), Some((0, true)));
            let mut table = TextTable::with_capacity(texts);
            for number in 0..texts {
                table.insert(&[number as u8]);
                assert_eq!(table.get(b"none"), None);
            }
            table.shrink_to_fit();
            assert_eq!(table.get(b"none"), None);
        }
    }
}
