//! `Fields`: the header fields of one message, in order, in one piece of memory.
//!
//! Request heads, response heads and trailers all use it. Names and values lie in one arena, so a
//! message costs two vectors, and [`Fields::clear`] keeps both: a keep-alive connection allocates
//! for its largest message and then no more. Names keep the spelling they came with.
//!
//! It does not judge names or values; the parsers and writers in [`h1`](crate::h1) do.

use crate::known::Known;

/// An ordered list of header fields.
#[derive(Clone, Default)]
pub struct Fields {
    /// Names, values and, after parsing, everything else of the head, addressed by `entries`.
    arena: Vec<u8>,
    entries: Vec<Entry>,
    /// A bit for each known name that was ever pushed. A clear bit means "certainly absent",
    /// which answers most questions about optional fields; a set bit may be stale after a removal.
    present: u128,
    /// How many entries are dead.
    dead: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    name: Span,
    value: Span,
    known: Known,
    dead: bool,
}

/// A part of an arena. Offsets are 32 bits: no head may be larger, see [`Fields::MAX_BYTES`].
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    /// The caller has checked that the offsets are below [`Fields::MAX_BYTES`].
    pub(crate) fn new(start: usize, end: usize) -> Span {
        debug_assert!(start <= end && end <= Fields::MAX_BYTES);
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    /// Empty where `bytes` ends before the span: a head that is still being parsed has spans but
    /// no text, and asking it must not be a panic.
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes
            .get(self.start as usize..self.end as usize)
            .unwrap_or_default()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// From the beginning of this one to the end of a later one.
    pub(crate) fn until(self, later: Span) -> Span {
        Span {
            start: self.start,
            end: later.end,
        }
    }
}

impl Fields {
    /// The arena's bound. A push that would exceed it is dropped: such a message could not have
    /// passed any configured header limit, and a wrong offset would be worse than a lost field.
    pub const MAX_BYTES: usize = u32::MAX as usize;

    /// No fields, no memory.
    pub const fn new() -> Fields {
        Fields {
            arena: Vec::new(),
            entries: Vec::new(),
            present: 0,
            dead: 0,
        }
    }

    /// How much memory it holds, filled or not, in bytes.
    pub fn memory(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// The value of the first field called `name`, in any case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.position(name).map(|i| self.value_at(i))
    }

    /// The value of the first field with this known name.
    #[inline]
    pub fn get_known(&self, known: Known) -> Option<&[u8]> {
        if self.present & known.bit() == 0 {
            return None;
        }
        self.entries
            .iter()
            .find(|e| e.known == known && !e.dead)
            .map(|e| e.value.of(&self.arena))
    }

    /// Whether a field with this known name is there.
    #[inline]
    pub fn has(&self, known: Known) -> bool {
        self.get_known(known).is_some()
    }

    /// The values of all fields called `name`, in any case, in order.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        let known = Known::from_name(name);
        self.live()
            .filter(move |e| e.known == known && self.is_named(e, name))
            .map(|e| e.value.of(&self.arena))
    }

    /// The values of all fields with this known name, in order.
    pub fn all_known(&self, known: Known) -> impl Iterator<Item = &[u8]> + '_ {
        self.live()
            .filter(move |e| e.known == known)
            .map(|e| e.value.of(&self.arena))
    }

    /// Appends a field, whether or not one of that name exists.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.push_as(Known::from_name(name), name, |arena| {
            arena.extend_from_slice(value)
        });
    }

    /// As [`Fields::push`], for a name that has been looked up already.
    pub fn push_spelled(&mut self, known: Known, name: &[u8], value: &[u8]) {
        debug_assert!(known == Known::from_name(name));
        self.push_as(known, name, |arena| arena.extend_from_slice(value));
    }

    /// Appends a field under its usual spelling.
    pub fn push_known(&mut self, known: Known, value: &[u8]) {
        debug_assert!(known != Known::Other);
        self.push_as(known, known.name().as_bytes(), |arena| {
            arena.extend_from_slice(value)
        });
    }

    /// Appends a field whose value `write` appends to the vector it is given.
    /// `write` must only append: what is there before belongs to other fields.
    pub fn push_with(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.push_as(Known::from_name(name), name, write);
    }

    /// As [`Fields::push_with`], for a known name.
    pub fn push_known_with(&mut self, known: Known, write: impl FnOnce(&mut Vec<u8>)) {
        debug_assert!(known != Known::Other);
        self.push_as(known, known.name().as_bytes(), write);
    }

    /// Makes `value` the only value of `name`; the field keeps the place and the spelling of the
    /// first one that was there, or goes to the end.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.position(name) {
            Some(first) => self.replace(first, value),
            None => self.push(name, value),
        }
    }

    /// As [`Fields::set`], for a known name.
    pub fn set_known(&mut self, known: Known, value: &[u8]) {
        match self.position_known(known) {
            Some(first) => self.replace(first, value),
            None => self.push_known(known, value),
        }
    }

    /// Removes every field called `name`, in any case; tells whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let mut removed = false;
        while let Some(index) = self.position(name) {
            self.kill(index);
            removed = true;
        }
        removed
    }

    /// Removes every field with this known name; tells whether there was one.
    pub fn remove_known(&mut self, known: Known) -> bool {
        let mut removed = false;
        while let Some(index) = self.position_known(known) {
            self.kill(index);
            removed = true;
        }
        self.present &= !known.bit();
        removed
    }

    /// Keeps only the fields for which `keep(known, name, value)` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(Known, &[u8], &[u8]) -> bool) {
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

    /// Ids, names and values in order.
    pub fn iter_known(&self) -> impl Iterator<Item = (Known, &[u8], &[u8])> + '_ {
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

    /// Forgets all fields and keeps the memory, up to a bound: one giant head must not
    /// make a connection keep its size for life.
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

    /// Every byte that the fields occupy, for accounting.
    pub fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// For the parsers: the arena is about to become a copy of the head, and `name` and `value`
    /// are offsets into that. Nothing may be read before [`Fields::adopt`].
    #[inline]
    pub(crate) fn push_spans(&mut self, known: Known, name: Span, value: Span) {
        self.present |= known.bit();
        self.entries.push(Entry {
            name,
            value,
            known,
            dead: false,
        });
    }

    /// For the parsers: names and values as offsets, readable before [`Fields::adopt`].
    pub(crate) fn iter_spans(&self) -> impl Iterator<Item = (Known, Span)> + '_ {
        self.live().map(|e| (e.known, e.value))
    }

    /// For the parsers: gives the spans their text.
    pub(crate) fn adopt(&mut self, head: &[u8]) {
        self.arena.clear();
        self.arena.extend_from_slice(head);
    }

    /// For the codecs that assemble a head from parts: keeps a text that is no field. One that would exceed
    /// [`Fields::MAX_BYTES`] is left out.
    pub(crate) fn append_text(&mut self, text: &[u8]) -> Span {
        let start = self.arena.len();
        if start + text.len() <= Self::MAX_BYTES {
            self.arena.extend_from_slice(text);
        }
        Span::new(start, self.arena.len())
    }

    /// As [`Fields::push`], for a name whose number is known already; [`Known::Other`] keeps the name as it is.
    pub fn push_numbered(&mut self, known: Known, name: &[u8], value: &[u8]) {
        self.push_as(known, name, |arena| arena.extend_from_slice(value));
    }

    /// For the parsers: the bytes that spans of the same head refer to.
    pub(crate) fn arena(&self) -> &[u8] {
        &self.arena
    }

    fn push_as(&mut self, known: Known, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.arena.len();
        self.arena.extend_from_slice(name);
        let middle = self.arena.len();
        write(&mut self.arena);
        let end = self.arena.len();
        if end > Self::MAX_BYTES {
            self.arena.truncate(start);
            return;
        }
        self.push_spans(known, Span::new(start, middle), Span::new(middle, end));
    }

    fn replace(&mut self, index: usize, value: &[u8]) {
        let entry = self.entries[index];
        for other in self.entries[index + 1..]
            .iter_mut()
            .filter(|e| !e.dead && e.known == entry.known)
        {
            let same = entry.known != Known::Other
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
            self.entries[index].value = Span::new(start, start + value.len());
        }
    }

    fn kill(&mut self, index: usize) {
        self.entries[index].dead = true;
        self.dead += 1;
    }

    fn live(&self) -> impl Iterator<Item = &Entry> + '_ {
        self.entries.iter().filter(|e| !e.dead)
    }

    fn position(&self, name: &[u8]) -> Option<usize> {
        let known = Known::from_name(name);
        if known != Known::Other {
            return self.position_known(known);
        }
        self.entries
            .iter()
            .position(|e| !e.dead && e.known == Known::Other && self.is_named(e, name))
    }

    fn position_known(&self, known: Known) -> Option<usize> {
        if self.present & known.bit() == 0 {
            return None;
        }
        self.entries
            .iter()
            .position(|e| e.known == known && !e.dead)
    }

    fn is_named(&self, entry: &Entry, name: &[u8]) -> bool {
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
        assert_eq!(fields.get_known(Known::Host), Some(&b"example.com"[..]));
        assert_eq!(fields.get(b"X-a"), Some(&b"1"[..]));
        assert_eq!(fields.get(b"X-b"), None);
        assert_eq!(fields.get(b""), None);
        assert_eq!(fields.all(b"x-A").collect::<Vec<_>>(), [b"1", b"2"]);
        assert_eq!(
            fields.all_known(Known::Cookie).collect::<Vec<_>>(),
            [b"a=1", b"b=2"]
        );
        assert_eq!(fields.all(b"cookie").count(), 2);
        assert!(fields.has(Known::Cookie) && !fields.has(Known::Range));
    }

    #[test]
    fn set_replaces_the_first_in_place_and_drops_the_rest() {
        let mut fields = sample();
        fields.set(b"X-a", b"long new value");
        fields.set_known(Known::Cookie, b"c=3");
        fields.set(b"New", b"n");
        fields.set_known(Known::Range, b"bytes=0-");
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
        assert!(fields.remove_known(Known::Cookie));
        assert!(!fields.has(Known::Cookie));
        assert_eq!(fields.len(), 1);
        fields.push(b"Cookie", b"again");
        assert_eq!(fields.get(b"cookie"), Some(&b"again"[..]));
        fields.retain(|known, _, _| known != Known::Host);
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
        fields.push_known_with(Known::Etag, |out| out.extend_from_slice(b"\"x\""));
        let mut other = sample();
        other.extend_from(&fields);
        assert_eq!(other.get(b"length"), Some(&b"12"[..]));
        assert_eq!(other.get_known(Known::Etag), Some(&b"\"x\""[..]));
        assert_eq!(other.len(), 7);
    }
}
