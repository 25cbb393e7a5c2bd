//! The header fields of one message, in order, in one allocation.
//!
//! Request headers, response headers and trailers all use it. Names and values are in one arena, so
//! a message costs two vectors, and [`Fields::clear`] keeps both: a connection that is kept alive
//! allocates for its largest message and then no more. Names keep their original spelling.
//!
//! Names and values are not validated here but by the parsers and writers of [`h1`](crate::h1).

use crate::known_fields::KnownField;

/// An ordered list of header fields.
#[derive(Clone, Default)]
pub struct Fields {
    /// Names, values and, after parsing, the rest of the header; `entries` has the offsets.
    arena: Vec<u8>,
    entries: Vec<FieldEntry>,
    /// A bit for each known name that was ever added. A clear bit means that the field is absent,
    /// which answers most lookups of optional fields; a set bit may be stale after a removal.
    present: u128,
    /// The number of removed entries.
    dead: u32,
}

#[derive(Clone, Copy)]
struct FieldEntry {
    name: ArenaSpan,
    value: ArenaSpan,
    known: KnownField,
    dead: bool,
}

/// A part of an arena. Offsets have 32 bits: no header may be larger, see [`Fields::MAX_BYTES`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct ArenaSpan {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl ArenaSpan {
    /// The caller must have checked that the offsets are below [`Fields::MAX_BYTES`].
    pub(crate) fn new(start: usize, end: usize) -> ArenaSpan {
        debug_assert!(start <= end && end <= Fields::MAX_BYTES);
        ArenaSpan {
            start: start as u32,
            end: end as u32,
        }
    }

    /// The bytes of the span; empty if `bytes` ends before: a header that is still being parsed has
    /// spans but no text, and a lookup must not panic.
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// From the beginning of this span to the end of a later one.
    pub(crate) fn until(self, later: ArenaSpan) -> ArenaSpan {
        ArenaSpan {
            start: self.start,
            end: later.end,
        }
    }
}

impl Fields {
    /// The maximum size of the arena. A field that would exceed it is dropped: such a message could
    /// not have passed any configured limit, and a wrong offset would be worse than a lost field.
    pub const MAX_BYTES: usize = u32::MAX as usize;

    /// Without fields; allocates nothing.
    pub const fn new() -> Fields {
        Fields {
            arena: Vec::new(),
            entries: Vec::new(),
            present: 0,
            dead: 0,
        }
    }

    /// The memory it occupies, used or not, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<FieldEntry>()
    }

    /// The value of the first field with this name, in any case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.position(name).map(|i| self.value_at(i))
    }

    /// The value of the first field with this known name.
    #[inline]
    pub fn get_known(&self, known: KnownField) -> Option<&[u8]> {
        if self.present & known.bit() == 0 {
            return None;
        }
        self.entries
            .iter()
            .find(|e| e.known == known && !e.dead)
            .map(|e| e.value.of(&self.arena))
    }

    /// Whether there is a field with this known name.
    #[inline]
    pub fn has(&self, known: KnownField) -> bool {
        self.get_known(known).is_some()
    }

    /// The values of all fields with this name, in any case, in order.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let known = KnownField::from_name(name);
        self.live()
            .filter(move |e| e.known == known && self.is_named(e, name))
            .map(|e| e.value.of(&self.arena))
    }

    /// The values of all fields with this known name, in order.
    pub fn all_known(&self, known: KnownField) -> impl Iterator<Item = &[u8]> + '_ {
        self.live()
            .filter(move |e| e.known == known)
            .map(|e| e.value.of(&self.arena))
    }

    /// Appends a field, even if there is one with this name.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_as(KnownField::from_name(name), name, |arena| {
            arena.extend_from_slice(value)
        });
    }

    /// Like [`Fields::push`], for a name that has been looked up already.
    pub fn push_spelled(&mut self, known: KnownField, name: &[u8], value: &[u8]) {
        debug_assert!(known == KnownField::from_name(name));
        self.push_as(known, name, |arena| arena.extend_from_slice(value));
    }

    /// Appends a field with the usual spelling of its name.
    pub fn push_known(&mut self, known: KnownField, value: &[u8]) {
        debug_assert!(known != KnownField::Other);
        self.push_as(known, known.name().as_bytes(), |arena| {
            arena.extend_from_slice(value)
        });
    }

    /// Appends a field whose value `write` appends to the vector it is given.
    /// `write` must only append: what is there before belongs to other fields.
    pub fn push_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.push_as(KnownField::from_name(name), name, write);
    }

    /// Like [`Fields::push_with`], for a known name.
    pub fn push_known_with(&mut self, known: KnownField, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(known != KnownField::Other);
        self.push_as(known, known.name().as_bytes(), write);
    }

    /// Makes `value` the only value of `name`. The field keeps the place and the spelling of the
    /// first one there was, or is appended.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.position(name) {
            Some(first) => self.replace(first, value),
            None => self.push(name, value),
        }
    }

    /// Like [`Fields::set`], for a known name.
    pub fn set_known(&mut self, known: KnownField, value: &[u8]) {
        match self.position_known(known) {
            Some(first) => self.replace(first, value),
            None => self.push_known(known, value),
        }
    }

    /// Removes all fields with this name, in any case. Returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let mut removed = false;
        while let Some(index) = self.position(name) {
            self.mark_dead(index);
            removed = true;
        }
        removed
    }

    /// Removes all fields with this known name. Returns whether there was one.
    pub fn remove_known(&mut self, known: KnownField) -> bool {
        let mut removed = false;
        while let Some(index) = self.position_known(known) {
            self.mark_dead(index);
            removed = true;
        }
        self.present &= !known.bit();
        removed
    }

    /// Keeps only the fields for which `keep(known, name, value)` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(KnownField, &[u8], &[u8]) -> bool) {
        for entry in self.entries.iter_mut().filter(|e| !e.dead) {
            if !keep(
                entry.known,
                entry.name.of(&self.arena),
                entry.value.of(&self.arena),
            ) {
                entry.dead = true;
                self.dead += 1;
            }
        }
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + '_ {
        self.live()
            .map(|e| (e.name.of(&self.arena), e.value.of(&self.arena)))
    }

    /// Known names, names and values in order.
    pub fn iter_known(&self) -> impl Iterator<Item = (KnownField, &[u8], &[u8])> + '_ {
        self.live()
            .map(|e| (e.known, e.name.of(&self.arena), e.value.of(&self.arena)))
    }

    /// Appends every field of `other`.
    pub fn extend_from(&mut self, other: &Fields) {
        for (known, name, value) in other.iter_known() {
            self.push_as(known, name, |arena| arena.extend_from_slice(value));
        }
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.entries.len() - self.dead as usize
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all fields and keeps the memory, up to a bound: after one huge header a connection
    /// must not keep that size for its whole life.
    pub fn clear(&mut self) {
        const KEEP_BYTES: usize = 16 * 1024;
        const KEEP_FIELDS: usize = 256;
        self.arena.clear();
        self.arena.shrink_to(KEEP_BYTES);
        self.entries.clear();
        self.entries.shrink_to(KEEP_FIELDS);
        self.present = 0;
        self.dead = 0;
    }

    /// The bytes in the arena, for accounting.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// For parsers: adds a field by its offsets into the header, of which the arena will become a
    /// copy. Nothing may be read before that.
    #[inline]
    pub(crate) fn push_spans(&mut self, known: KnownField, name: ArenaSpan, value: ArenaSpan) {
        self.present |= known.bit();
        self.entries.push(FieldEntry {
            name,
            value,
            known,
            dead: false,
        });
    }

    /// For parsers: known names and the offsets of values, before the arena has its text.
    pub(crate) fn iter_spans(&self) -> impl Iterator<Item = (KnownField, ArenaSpan)> + '_ {
        self.live().map(|e| (e.known, e.value))
    }

    /// For parsers: copies the text that the spans refer to.
    pub(crate) fn set_arena(&mut self, head: &[u8]) {
        self.arena.clear();
        self.arena.extend_from_slice(head);
    }

    /// For codecs that assemble a header from parts: stores a text that is not a field. One that
    /// would exceed [`Fields::MAX_BYTES`] is dropped.
    pub(crate) fn append_text(&mut self, text: &[u8]) -> ArenaSpan {
        let start = self.arena.len();
        if start + text.len() <= Self::MAX_BYTES {
            self.arena.extend_from_slice(text);
        }
        ArenaSpan::new(start, self.arena.len())
    }

    /// Like [`Fields::push`], for a name that has been looked up already; with [`KnownField::Other`] the
    /// name is kept as it is.
    pub fn push_numbered(&mut self, known: KnownField, name: &[u8], value: &[u8]) {
        self.push_as(known, name, |arena| arena.extend_from_slice(value));
    }

    /// For parsers: the bytes that spans of the same header refer to.
    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    fn push_as(&mut self, known: KnownField, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.arena.len();
        self.arena.extend_from_slice(name);
        let middle = self.arena.len();
        write(&mut self.arena);
        let end = self.arena.len();
        if end > Self::MAX_BYTES {
            self.arena.truncate(start);
            return;
        }
        self.push_spans(
            known,
            ArenaSpan::new(start, middle),
            ArenaSpan::new(middle, end),
        );
    }

    fn replace(&mut self, index: usize, value: &[u8]) {
        let entry = self.entries[index];
        for other in self.entries[index + 1..]
            .iter_mut()
            .filter(|e| !e.dead && e.known == entry.known)
        {
            let same = entry.known != KnownField::Other
                || other
                    .name
                    .of(&self.arena)
                    .eq_ignore_ascii_case(entry.name.of(&self.arena));
            if same {
                other.dead = true;
                self.dead += 1;
            }
        }
        let start = self.arena.len();
        if start + value.len() <= Self::MAX_BYTES {
            self.arena.extend_from_slice(value);
            self.entries[index].value = ArenaSpan::new(start, start + value.len());
        }
    }

    fn mark_dead(&mut self, index: usize) {
        self.entries[index].dead = true;
        self.dead += 1;
    }

    fn live(&self) -> impl Iterator<Item = &FieldEntry> + '_ {
        self.entries.iter().filter(|e| !e.dead)
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        let known = KnownField::from_name(name);
        if known != KnownField::Other {
            return self.position_known(known);
        }
        self.entries
            .iter()
            .position(|e| !e.dead && e.known == KnownField::Other && self.is_named(e, name))
    }

    fn position_known(&self, known: KnownField) -> Option<usize> {
        if self.present & known.bit() == 0 {
            return None;
        }
        self.entries
            .iter()
            .position(|e| e.known == known && !e.dead)
    }

    fn is_named(&self, entry: &FieldEntry, name: &[u8]) -> bool {
        entry.name.of(&self.arena).eq_ignore_ascii_case(name)
    }

    fn value_at(&self, index: usize) -> &[u8] {
        self.entries[index].value.of(&self.arena)
    }
}

impl std::fmt::Debug for Fields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        f.debug_map()
            .entries(self.iter().map(|(name, value)| (text(name), text(value))))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Fields {
        let mut fields = Fields::new();
        fields.push(b"Host", b"example.com");
        fields.push(b"x-a", b"1");
        fields.push(b"Cookie", b"a=1");
        fields.push(b"X-A", b"2");
        fields.push(b"cookie", b"b=2");
        fields
    }

    fn list(fields: &Fields) -> Vec<(&[u8], &[u8])> {
        fields.iter().collect()
    }

    #[test]
    fn lookups_ignore_case_and_keep_order() {
        let fields = sample();
        assert_eq!(fields.get(b"HOST"), Some(&b"example.com"[..]));
        assert_eq!(
            fields.get_known(KnownField::Host),
            Some(&b"example.com"[..])
        );
        assert_eq!(fields.get(b"X-a"), Some(&b"1"[..]));
        assert_eq!(fields.get(b"X-b"), None);
        assert_eq!(fields.get(b""), None);
        assert_eq!(fields.all(b"x-A").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(
            fields.all_known(KnownField::Cookie).collect::<Vec<_>>(),
            [b"a=1", b"b=2"]
        );
        assert_eq!(fields.all(b"cookie").count(), 2);
        assert!(fields.has(KnownField::Cookie) && !fields.has(KnownField::Range));
    }

    #[test]
    fn set_replaces_the_first_in_place_and_drops_the_rest() {
        let mut fields = sample();
        fields.set(b"X-a", b"long new value");
        fields.set_known(KnownField::Cookie, b"c=3");
        fields.set(b"New", b"n");
        fields.set_known(KnownField::Range, b"bytes=0-");
        let expected: Vec<(&[u8], &[u8])> = vec![
            (b"Host", b"example.com"),
            (b"x-a", b"long new value"),
            (b"Cookie", b"c=3"),
            (b"New", b"n"),
            (b"Range", b"bytes=0-"),
        ];
        assert_eq!(list(&fields), expected);
        assert_eq!(fields.len(), 5);
    }

    #[test]
    fn remove_and_retain_hide_fields() {
        let mut fields = sample();
        assert!(fields.remove(b"x-a"));
        assert!(!fields.remove(b"x-a"));
        assert!(fields.remove_known(KnownField::Cookie));
        assert!(!fields.has(KnownField::Cookie));
        assert_eq!(fields.len(), 1);
        fields.push(b"Cookie", b"again");
        assert_eq!(fields.get(b"cookie"), Some(&b"again"[..]));
        fields.retain(|known, _, _| known != KnownField::Host);
        assert_eq!(list(&fields), [(&b"Cookie"[..], &b"again"[..])]);
    }

    #[test]
    fn clear_keeps_modest_memory_and_gives_back_the_rest() {
        let mut fields = sample();
        let capacity = fields.arena.capacity();
        fields.clear();
        assert!(fields.is_empty() && fields.get(b"host").is_none());
        assert_eq!(fields.arena.capacity(), capacity);
        fields.push(b"big", &vec![b'x'; 1 << 20]);
        fields.clear();
        assert!(fields.arena.capacity() < 1 << 19);
    }

    #[test]
    fn push_with_and_extend_copy_whole_fields() {
        let mut fields = Fields::new();
        fields.push_with(b"Length", |out| out.extend_from_slice(b"12"));
        fields.push_known_with(KnownField::Etag, |out| out.extend_from_slice(b"\"x\""));
        let mut other = sample();
        other.extend_from(&fields);
        assert_eq!(other.get(b"length"), Some(&b"12"[..]));
        assert_eq!(other.get_known(KnownField::Etag), Some(&b"\"x\""[..]));
        assert_eq!(other.len(), 7);
    }
}
