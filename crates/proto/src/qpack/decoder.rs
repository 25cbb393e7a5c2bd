//! Decodes header blocks and the instructions on which they build (RFC 9204, sections 3 and 4).

use super::static_table;
use crate::field_section::dynamic_table::{DynamicTable, EntryName};
use crate::field_section::integer::{self, IntegerFault};
use crate::field_section::{DecodedField, DecodedList, ENTRY_OVERHEAD, ListLimits};
use crate::huffman;
use crate::known_fields::KnownField;

/// How much longer a text may be in Huffman code than in clear: the longest code has 30 bits.
const HUFFMAN_WORST: usize = 4;

/// How much memory is kept between blocks and instructions, in bytes.
const KEEP: usize = 4096;

/// Why a block or an instruction cannot be decoded: both ends' tables differ, and the connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpackError {
    /// It ends within a field, or a number is too long.
    Truncated,
    /// An index without an entry, or beyond what the block says that it needs.
    InvalidIndex,
    /// A string is not valid Huffman code.
    InvalidHuffman,
    /// The number of insertions that a block needs, or its base, is not possible.
    InvalidPrefix,
    /// A capacity above the agreed one, or an entry above the capacity.
    InvalidCapacity,
    /// More streams are blocked than were agreed.
    TooManyBlocked,
}

impl QpackError {
    /// What the client sent, for the log.
    pub fn what(self) -> &'static str {
        match self {
            QpackError::Truncated => "header block that ends inside a field",
            QpackError::InvalidIndex => "invalid qpack table index",
            QpackError::InvalidHuffman => "invalid encoded header field",
            QpackError::InvalidPrefix => "invalid prefix of a header block",
            QpackError::InvalidCapacity => "invalid qpack table capacity",
            QpackError::TooManyBlocked => "too many blocked streams",
        }
    }
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionOutcome {
    /// It was decoded.
    Decoded(DecodedList),
    /// It needs insertions that have not come: nothing was decoded. It is to be given again once
    /// [`QpackDecoder::is_blocked`] is false for its stream.
    Blocked,
}

/// Decodes the header blocks of one connection.
#[derive(Debug)]
pub struct QpackDecoder {
    table: DynamicTable,
    /// How many entries have been inserted so far. The newest one has the absolute index below.
    inserted: u64,
    /// How many of them the peer knows to have arrived (section 2.1.4).
    known_received: u64,
    /// The maximum capacity by our settings.
    allowed: usize,
    /// The longest name or value of an entry that is taken (section 7.4), in bytes.
    max_text: usize,
    /// The streams whose blocks wait, and how many insertions each needs. [`QpackDecoder::max_blocked`] bounds it.
    blocked: Vec<(u64, u64)>,
    max_blocked: usize,
    /// The beginning of an instruction. A text cannot be longer than the table, so this has a bound.
    pending: Vec<u8>,
    /// Instructions for the peer's encoder that have not been taken yet.
    output: Vec<u8>,
    /// Scratch memory for a name and a value.
    name: Vec<u8>,
    value: Vec<u8>,
}

/// The prefix of a block (section 4.5.1).
#[derive(Clone, Copy)]
struct SectionPrefix {
    /// How many insertions it needs.
    required: u64,
    /// What its indexes are relative to.
    base: u64,
}

/// Where a name is.
enum QpackNameSource {
    Static(usize),
    /// The index in our table, 0 the newest.
    Dynamic(usize),
    /// In the scratch memory.
    Scratch,
}

impl QpackDecoder {
    /// A decoder with the settings that the peer was told: the largest table, and how many streams may be blocked.
    pub fn new(max_capacity: usize, max_blocked: usize) -> QpackDecoder {
        QpackDecoder {
            // The encoder sets the capacity first; until then the table takes nothing (section 3.2.3).
            table: DynamicTable::new(0),
            inserted: 0,
            known_received: 0,
            allowed: max_capacity,
            max_text: usize::MAX / HUFFMAN_WORST,
            blocked: Vec::new(),
            max_blocked,
            pending: Vec::new(),
            output: Vec::new(),
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Sets the longest name or value of an entry.
    pub fn set_max_text(&mut self, bytes: usize) {
        self.max_text = bytes;
    }

    // -- the encoder stream --

    /// Takes instructions of the peer's encoder (section 4.3), in pieces of any size. Returns how many were complete: each
    /// may cost a copy of an entry, whatever its own length.
    pub fn handle_instructions(&mut self, input: &[u8]) -> Result<u32, QpackError> {
        let mut joined = std::mem::take(&mut self.pending);
        // Mostly no part of an instruction is left over, and nothing is copied.
        let input = match joined.is_empty() {
            true => input,
            false => {
                joined.extend_from_slice(input);
                &joined
            }
        };
        let (mut rest, mut count) = (input, 0u32);
        while let Some((&first, after)) = rest.split_first() {
            let mut attempt = after;
            match self.instruction(first, &mut attempt)? {
                Some(()) => {
                    rest = attempt;
                    count = count.saturating_add(1);
                }
                None => break,
            }
        }
        let left = rest.len();
        if joined.is_empty() {
            self.pending.extend_from_slice(rest);
        } else {
            joined.drain(..joined.len() - left);
            self.pending = joined;
        }
        self.name.shrink_to(KEEP);
        self.value.shrink_to(KEEP);
        let news = self.inserted - self.known_received;
        if news > 0 {
            // Insert Count Increment (section 4.4.3).
            integer::write(news as usize, 0, 6, &mut self.output);
            self.known_received = self.inserted;
        }
        Ok(count)
    }

    /// Executes one instruction. `None`: its end has not come.
    fn instruction(&mut self, first: u8, rest: &mut &[u8]) -> Result<Option<()>, QpackError> {
        if first & 0x80 != 0 {
            return self.insert_named(first, rest);
        }
        if first & 0x40 != 0 {
            let most = self.longest();
            if !read_text_some(first, 5, rest, most, &mut self.name)? {
                return Ok(None);
            }
            return self.insert_value(QpackNameSource::Scratch, rest);
        }
        let Some(number) = some(integer::read_some(first, 5, rest))? else {
            return Ok(None);
        };
        if first & 0x20 != 0 {
            if number > self.allowed {
                return Err(QpackError::InvalidCapacity);
            }
            self.table.set_max(number);
            return Ok(Some(()));
        }
        // Duplicate (section 4.3.4).
        let entry = *self.table.get(number).ok_or(QpackError::InvalidIndex)?;
        self.value.clear();
        self.value.extend_from_slice(self.table.value(&entry));
        self.insert(entry.known, &QpackNameSource::Dynamic(number))?;
        Ok(Some(()))
    }

    /// The longest text of an entry that could be inserted.
    fn longest(&self) -> usize {
        self.table.max().min(self.max_text)
    }

    /// Insert with a name reference (section 4.3.2).
    fn insert_named(&mut self, first: u8, rest: &mut &[u8]) -> Result<Option<()>, QpackError> {
        let Some(index) = some(integer::read_some(first, 6, rest))? else {
            return Ok(None);
        };
        let is_static = first & 0x40 != 0;
        let name = match is_static {
            true if index < static_table::ENTRIES.len() => QpackNameSource::Static(index),
            false if self.table.get(index).is_some() => QpackNameSource::Dynamic(index),
            _ => return Err(QpackError::InvalidIndex),
        };
        self.insert_value(name, rest)
    }

    /// Reads the value of an insertion, and inserts it.
    fn insert_value(
        &mut self,
        name: QpackNameSource,
        rest: &mut &[u8],
    ) -> Result<Option<()>, QpackError> {
        let Some((&first, after)) = rest.split_first() else {
            return Ok(None);
        };
        *rest = after;
        let most = self.longest();
        if !read_text_some(first, 7, rest, most, &mut self.value)? {
            return Ok(None);
        }
        let known = match name {
            QpackNameSource::Static(index) => static_table::KNOWN[index],
            QpackNameSource::Dynamic(index) => {
                self.table.get(index).map_or(KnownField::Other, |e| e.known)
            }
            QpackNameSource::Scratch => KnownField::from_name(&self.name),
        };
        self.insert(known, &name)?;
        Ok(Some(()))
    }

    /// Inserts an entry with the value in the scratch memory.
    fn insert(&mut self, known: KnownField, name: &QpackNameSource) -> Result<(), QpackError> {
        let (name, length) = match name {
            QpackNameSource::Static(index) => {
                let text = static_table::ENTRIES[*index].0;
                (EntryName::Text(text), text.len())
            }
            QpackNameSource::Dynamic(index) => {
                let entry = self.table.get(*index).ok_or(QpackError::InvalidIndex)?;
                (EntryName::Entry(*index), self.table.name(entry).len())
            }
            QpackNameSource::Scratch => (EntryName::Text(&self.name), self.name.len()),
        };
        // Unlike in HPACK, it must fit (section 3.2.2).
        if length + self.value.len() + ENTRY_OVERHEAD > self.table.max() {
            return Err(QpackError::InvalidCapacity);
        }
        self.table.insert(known, name, &self.value, (0, 0));
        self.inserted += 1;
        Ok(())
    }

    // -- blocked streams --

    /// Whether the stream's block still waits for insertions.
    pub fn is_blocked(&self, stream: u64) -> bool {
        let of_stream = |blocked: &&(u64, u64)| blocked.0 == stream;
        self.blocked
            .iter()
            .find(of_stream)
            .is_some_and(|(_, required)| *required > self.inserted)
    }

    /// How many streams wait.
    pub fn blocked_streams(&self) -> usize {
        self.blocked.len()
    }

    /// The stream was abandoned before its block was decoded: the peer may forget what the block referred to (section 2.2.2.2).
    pub fn cancel_stream(&mut self, stream: u64) {
        self.blocked.retain(|blocked| blocked.0 != stream);
        // A peer that may have no table cannot have references.
        if self.allowed > 0 {
            write_stream_id(stream, 0x40, 6, &mut self.output);
        }
    }

    /// The instructions for the peer's encoder, to be sent on the decoder stream.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Whether there are any.
    pub fn has_output(&self) -> bool {
        !self.output.is_empty()
    }

    // -- blocks --

    /// Decodes a complete block and passes each field to `take`. A list that exceeds `limits` is not decoded to its end,
    /// which the table does not need.
    pub fn decode(
        &mut self,
        stream: u64,
        block: &[u8],
        limits: ListLimits,
        mut take: impl FnMut(DecodedField<'_>),
    ) -> Result<SectionOutcome, QpackError> {
        let mut rest = block;
        let prefix = self.prefix(&mut rest)?;
        if prefix.required > self.inserted {
            return self.block_stream(stream, prefix.required);
        }
        if !self.blocked.is_empty() {
            self.blocked.retain(|blocked| blocked.0 != stream);
        }
        let mut decoded = DecodedList::default();
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            let field = self.field(first, &mut rest, prefix)?;
            if decoded.count(&field, &limits) {
                take(field);
            } else {
                break;
            }
        }
        self.name.shrink_to(KEEP);
        self.value.shrink_to(KEEP);
        if prefix.required > 0 {
            // Section Acknowledgment (section 4.4.1): it includes all insertions that the block needed.
            write_stream_id(stream, 0x80, 7, &mut self.output);
            self.known_received = self.known_received.max(prefix.required);
        }
        Ok(SectionOutcome::Decoded(decoded))
    }

    fn block_stream(&mut self, stream: u64, required: u64) -> Result<SectionOutcome, QpackError> {
        if !self.blocked.iter().any(|blocked| blocked.0 == stream) {
            if self.blocked.len() >= self.max_blocked {
                return Err(QpackError::TooManyBlocked);
            }
            self.blocked.push((stream, required));
        }
        Ok(SectionOutcome::Blocked)
    }

    fn prefix(&self, rest: &mut &[u8]) -> Result<SectionPrefix, QpackError> {
        let required = self.required_insertions(read_number(8, rest)?.1 as u64)?;
        let (first, delta) = read_number(7, rest)?;
        let delta = delta as u64;
        let base = match first & 0x80 == 0 {
            true => required + delta,
            false => required
                .checked_sub(delta + 1)
                .ok_or(QpackError::InvalidPrefix)?,
        };
        Ok(SectionPrefix { required, base })
    }

    /// The number of insertions that a block needs, which is sent modulo twice the number of entries that the table can have
    /// (section 4.5.1.1).
    fn required_insertions(&self, encoded: u64) -> Result<u64, QpackError> {
        if encoded == 0 {
            return Ok(0);
        }
        let max_entries = (self.allowed / ENTRY_OVERHEAD) as u64;
        let range = 2 * max_entries;
        if encoded > range {
            return Err(QpackError::InvalidPrefix);
        }
        let max_value = self.inserted + max_entries;
        let wrapped = max_value / range * range;
        let mut required = wrapped + encoded - 1;
        if required > max_value {
            required = required
                .checked_sub(range)
                .ok_or(QpackError::InvalidPrefix)?;
        }
        match required {
            0 => Err(QpackError::InvalidPrefix),
            _ => Ok(required),
        }
    }

    /// Our table's index of the entry with this absolute index.
    fn table_index(&self, absolute: u64, prefix: SectionPrefix) -> Result<usize, QpackError> {
        // A block must not refer to more than it said that it needs (section 2.2.3).
        if absolute >= prefix.required {
            return Err(QpackError::InvalidIndex);
        }
        // What has been evicted is beyond the end of the table, which `get` reports.
        usize::try_from(self.inserted - 1 - absolute).map_err(|_| QpackError::InvalidIndex)
    }

    /// Our table's index of an index relative to the base, which counts backwards from it.
    fn before_base(&self, index: usize, prefix: SectionPrefix) -> Result<usize, QpackError> {
        let absolute = prefix
            .base
            .checked_sub(index as u64 + 1)
            .ok_or(QpackError::InvalidIndex)?;
        self.table_index(absolute, prefix)
    }

    /// Decodes the field that begins with `first` (sections 4.5.2 to 4.5.6).
    #[inline]
    fn field(
        &mut self,
        first: u8,
        rest: &mut &[u8],
        prefix: SectionPrefix,
    ) -> Result<DecodedField<'_>, QpackError> {
        let number =
            |bits, rest: &mut &[u8]| integer::read(first, bits, rest).ok_or(QpackError::Truncated);
        let after_base = |index: usize| prefix.base.saturating_add(index as u64);
        // Fields that are in a table as a whole.
        if first & 0xc0 == 0xc0 {
            let index = number(6, rest)?;
            let entry = static_table::ENTRIES.get(index);
            let (name, value) = *entry.ok_or(QpackError::InvalidIndex)?;
            let known = static_table::KNOWN[index];
            return Ok(whole(name, value, known));
        }
        if first & 0x80 != 0 || first & 0xf0 == 0x10 {
            let index = match first & 0x80 != 0 {
                true => self.before_base(number(6, rest)?, prefix)?,
                false => self.table_index(after_base(number(4, rest)?), prefix)?,
            };
            let entry = self.table.get(index).ok_or(QpackError::InvalidIndex)?;
            return Ok(whole(
                self.table.name(entry),
                self.table.value(entry),
                entry.known,
            ));
        }
        // Fields with a value of their own.
        let (name, never_indexed) = match first {
            _ if first & 0xf0 == 0x50 || first & 0xf0 == 0x70 => {
                let index = number(4, rest)?;
                if index >= static_table::ENTRIES.len() {
                    return Err(QpackError::InvalidIndex);
                }
                (QpackNameSource::Static(index), first & 0x20 != 0)
            }
            _ if first & 0x40 != 0 => {
                let index = self.before_base(number(4, rest)?, prefix)?;
                (QpackNameSource::Dynamic(index), first & 0x20 != 0)
            }
            _ if first & 0x20 != 0 => {
                read_text(first, 3, rest, &mut self.name)?;
                (QpackNameSource::Scratch, first & 0x10 != 0)
            }
            _ => {
                let index = self.table_index(after_base(number(3, rest)?), prefix)?;
                (QpackNameSource::Dynamic(index), first & 0x08 != 0)
            }
        };
        let (&value, after) = rest.split_first().ok_or(QpackError::Truncated)?;
        *rest = after;
        read_text(value, 7, rest, &mut self.value)?;
        let (name, known) = match name {
            QpackNameSource::Static(i) => (static_table::ENTRIES[i].0, static_table::KNOWN[i]),
            QpackNameSource::Dynamic(i) => {
                let entry = self.table.get(i).ok_or(QpackError::InvalidIndex)?;
                (self.table.name(entry), entry.known)
            }
            QpackNameSource::Scratch => (&self.name[..], KnownField::from_name(&self.name)),
        };
        Ok(DecodedField {
            name,
            value: &self.value,
            known,
            never_indexed,
        })
    }
}

fn whole<'a>(name: &'a [u8], value: &'a [u8], known: KnownField) -> DecodedField<'a> {
    DecodedField {
        name,
        value,
        known,
        never_indexed: false,
    }
}

/// A number that may still be under way.
fn some(number: Result<usize, IntegerFault>) -> Result<Option<usize>, QpackError> {
    match number {
        Ok(number) => Ok(Some(number)),
        Err(IntegerFault::Incomplete) => Ok(None),
        Err(IntegerFault::TooLarge) => Err(QpackError::Truncated),
    }
}

/// Reads a byte, and the number that begins in its low bits.
fn read_number(prefix: u32, rest: &mut &[u8]) -> Result<(u8, usize), QpackError> {
    let (&first, after) = rest.split_first().ok_or(QpackError::Truncated)?;
    *rest = after;
    let number = integer::read(first, prefix, rest).ok_or(QpackError::Truncated)?;
    Ok((first, number))
}

/// Decodes a string of a block, whose length begins in the low `prefix` bits of `first`; the bit above them says whether it
/// is in Huffman code. Replaces the content of `out`.
#[inline]
fn read_text(
    first: u8,
    prefix: u32,
    rest: &mut &[u8],
    out: &mut Vec<u8>,
) -> Result<(), QpackError> {
    match read_text_some(first, prefix, rest, usize::MAX / HUFFMAN_WORST, out)? {
        true => Ok(()),
        false => Err(QpackError::Truncated),
    }
}

/// The same for a string that may still be under way: `false`. It must not be longer than `most` bytes.
#[inline]
fn read_text_some(
    first: u8,
    prefix: u32,
    rest: &mut &[u8],
    most: usize,
    out: &mut Vec<u8>,
) -> Result<bool, QpackError> {
    let Some(length) = some(integer::read_some(first, prefix, rest))? else {
        return Ok(false);
    };
    let is_huffman = first & 1 << prefix != 0;
    let longest = if is_huffman {
        most * HUFFMAN_WORST
    } else {
        most
    };
    // Before it is waited for: it could never become an entry.
    if length > longest {
        return Err(QpackError::InvalidCapacity);
    }
    let Some((text, after)) = rest.split_at_checked(length) else {
        return Ok(false);
    };
    *rest = after;
    out.clear();
    if !is_huffman {
        out.extend_from_slice(text);
        return Ok(true);
    }
    huffman::decode(text, out).map_err(|_| QpackError::InvalidHuffman)?;
    match out.len() > most {
        true => Err(QpackError::InvalidCapacity),
        false => Ok(true),
    }
}

/// Writes the identifier of a stream behind a pattern.
fn write_stream_id(stream: u64, pattern: u8, prefix: u32, out: &mut Vec<u8>) {
    // Identifiers have 62 bits, and an `usize` 64 where this runs.
    integer::write(stream as usize, pattern, prefix, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ListLimits = ListLimits {
        max_size: usize::MAX,
        max_fields: usize::MAX,
    };

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
        digits
            .chunks(2)
            .map(|pair| (pair[0] * 16 + pair[1]) as u8)
            .collect()
    }

    /// The fields of a block; `None` if its stream is blocked.
    fn decode(
        decoder: &mut QpackDecoder,
        stream: u64,
        block: &[u8],
    ) -> Result<Option<Vec<String>>, QpackError> {
        let mut fields = Vec::new();
        let outcome = decoder.decode(stream, block, ALL, |field| {
            assert_eq!(
                field.known,
                match field.name.first() {
                    Some(b':') => KnownField::Other,
                    _ => KnownField::from_name(field.name),
                }
            );
            fields.push(format!(
                "{}: {}",
                String::from_utf8_lossy(field.name),
                String::from_utf8_lossy(field.value)
            ));
        })?;
        Ok((outcome != SectionOutcome::Blocked).then_some(fields))
    }

    fn list(decoder: &QpackDecoder) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder
            .table
            .entries()
            .map(|e| {
                format!(
                    "{}: {}",
                    text(decoder.table.name(e)),
                    text(decoder.table.value(e))
                )
            })
            .collect()
    }

    #[test]
    fn the_conversation_of_the_rfc() {
        // RFC 9204, appendix B.
        let mut decoder = QpackDecoder::new(4096, 10);
        let fields = decode(&mut decoder, 0, &hex("0000510b2f696e6465782e68746d6c"));
        assert_eq!(fields, Ok(Some(vec![":path: /index.html".into()])));
        assert!(!decoder.has_output());

        // B.2: the block comes before what it needs.
        let block = hex("03811011");
        assert_eq!(decode(&mut decoder, 4, &block), Ok(None));
        assert!(decoder.is_blocked(4));
        let inserts = hex("3fbd01c00f7777772e6578616d706c652e636f6dc10c2f73616d706c652f70617468");
        assert_eq!(decoder.handle_instructions(&inserts), Ok(3));
        assert!(!decoder.is_blocked(4));
        let expected = [":authority: www.example.com", ":path: /sample/path"];
        let fields = decode(&mut decoder, 4, &block).map(Option::unwrap_or_default);
        assert_eq!(fields, Ok(expected.map(String::from).to_vec()));
        // Insert Count Increment, which the example leaves out, and Section Acknowledgment.
        assert_eq!(decoder.take_output(), hex("0284"));
        assert_eq!(decoder.blocked_streams(), 0);

        // B.3 and B.4: a literal insertion, a duplicate, and a reference to each.
        let inserts = hex("4a637573746f6d2d6b65790c637573746f6d2d76616c7565");
        assert_eq!(decoder.handle_instructions(&inserts), Ok(1));
        assert_eq!(decoder.take_output(), hex("01"));
        assert_eq!(decoder.handle_instructions(&hex("02")), Ok(1));
        let fields = decode(&mut decoder, 8, &hex("050080c181")).map(Option::unwrap_or_default);
        let expected = [
            ":authority: www.example.com",
            ":path: /",
            "custom-key: custom-value",
        ];
        assert_eq!(fields, Ok(expected.map(String::from).to_vec()));
        assert_eq!(decoder.take_output(), hex("0188"));
        decoder.cancel_stream(8);
        assert_eq!(decoder.take_output(), hex("48"));

        // B.5: the oldest entry makes way; the capacity of the example is 220.
        let inserts = hex("810d637573746f6d2d76616c756532");
        assert_eq!(decoder.handle_instructions(&inserts), Ok(1));
        let expected = [
            "custom-key: custom-value2",
            ":authority: www.example.com",
            "custom-key: custom-value",
            ":path: /sample/path",
        ];
        assert_eq!(list(&decoder), expected);
    }

    #[test]
    fn instructions_in_pieces() {
        let input = hex(
            "3fbd01c00f7777772e6578616d706c652e636f6dc10c2f73616d706c652f70617468\
             4a637573746f6d2d6b65790c637573746f6d2d76616c75650281 0d637573746f6d2d76616c756532",
        );
        let mut whole = QpackDecoder::new(4096, 0);
        assert_eq!(whole.handle_instructions(&input), Ok(6));
        for step in 1..input.len() {
            let mut decoder = QpackDecoder::new(4096, 0);
            let counts = input
                .chunks(step)
                .map(|piece| decoder.handle_instructions(piece));
            assert_eq!(counts.sum::<Result<u32, QpackError>>(), Ok(6));
            assert_eq!(list(&decoder), list(&whole));
            assert!(decoder.pending.is_empty());
        }
    }

    #[test]
    fn texts_of_entries_have_a_bound() {
        let mut decoder = QpackDecoder::new(4096, 0);
        decoder.set_max_text(4);
        assert_eq!(
            decoder.handle_instructions(&hex("3fe11f 4461626364 0461626364")),
            Ok(2)
        );
        for wrong in ["456162636465 00", "4161 056162636465", "4161 8418c631ff"] {
            let mut decoder = QpackDecoder::new(4096, 0);
            decoder.set_max_text(4);
            let input = [hex("3fe11f"), hex(wrong)].concat();
            let result = decoder.handle_instructions(&input);
            assert_eq!(result, Err(QpackError::InvalidCapacity), "{wrong}");
        }
    }

    #[test]
    fn instructions_that_are_wrong() {
        for (input, error) in [
            // A capacity above the agreed one; an insertion before any capacity; one above the capacity.
            ("3fe21f", QpackError::InvalidCapacity),
            ("c000", QpackError::InvalidCapacity),
            ("3f01c000c001", QpackError::InvalidCapacity),
            ("3f2f41614f", QpackError::InvalidCapacity),
            // Entries that do not exist.
            ("3f8100ff2400", QpackError::InvalidIndex),
            ("3f81008000", QpackError::InvalidIndex),
            ("3f810000", QpackError::InvalidIndex),
            ("3fffffffffff", QpackError::Truncated),
            // Texts that could never be inserted are not waited for.
            ("3f81005f8202", QpackError::InvalidCapacity),
            ("3f8100c07f8204", QpackError::InvalidCapacity),
            ("3f8101c0ff8502", QpackError::InvalidHuffman),
        ] {
            let mut decoder = QpackDecoder::new(4096, 0);
            let mut input = hex(input);
            if error == QpackError::InvalidHuffman {
                input.extend([0xff; 4096]);
            }
            assert_eq!(
                decoder.handle_instructions(&input),
                Err(error),
                "{input:x?}"
            );
        }
    }

    #[test]
    fn blocks_that_are_not() {
        for (block, error) in [
            ("", QpackError::Truncated),
            ("00", QpackError::Truncated),
            ("0000ff24", QpackError::InvalidIndex),
            ("000080", QpackError::InvalidIndex),
            ("000010", QpackError::InvalidIndex),
            ("00005f5400", QpackError::InvalidIndex),
            ("000050", QpackError::Truncated),
            ("00005003", QpackError::Truncated),
            ("00002161", QpackError::Truncated),
            ("000082ffffffff7f", QpackError::InvalidIndex),
            ("0000288100", QpackError::InvalidHuffman),
            ("00002901", QpackError::InvalidHuffman),
            // A base below zero; more insertions than there can be; none, in a form for some.
            ("0080", QpackError::InvalidPrefix),
            ("ff0300", QpackError::InvalidPrefix),
            ("0183", QpackError::InvalidPrefix),
            // What lies beyond the insertions that the block claims to need.
            ("02008080", QpackError::InvalidIndex),
            ("020010", QpackError::InvalidIndex),
        ] {
            let mut decoder = QpackDecoder::new(4096, 10);
            let inserts = hex("3fe11f4161016241610162");
            assert_eq!(decoder.handle_instructions(&inserts), Ok(3));
            let block = hex(block);
            if block == hex("02008080") {
                // The first reference is right, the second too: made wrong here.
                let wrong = hex("02018080");
                assert_eq!(decode(&mut decoder, 0, &wrong), Err(error));
                continue;
            }
            assert_eq!(decode(&mut decoder, 0, &block), Err(error), "{block:x?}");
        }
    }

    #[test]
    fn the_count_of_insertions_wraps() {
        let mut decoder = QpackDecoder::new(100, 1);
        assert_eq!(decoder.handle_instructions(&hex("3f45")), Ok(1));
        // Three entries fit, so counts are sent modulo 6.
        for n in 1..1000u64 {
            assert_eq!(decoder.handle_instructions(&hex("41610162")), Ok(1));
            let encoded = (n % 6 + 1) as u8;
            let fields = decode(&mut decoder, n, &[encoded, 0, 0x80]);
            assert_eq!(fields, Ok(Some(vec!["a: b".into()])), "{n}");
            // An evicted entry.
            if n > 3 {
                let gone = decode(&mut decoder, n, &[encoded, 0, 0x83]);
                assert_eq!(gone, Err(QpackError::InvalidIndex));
            }
            let output = decoder.take_output();
            assert!(output.starts_with(&[1]) && output.len() <= 4, "{output:x?}");
        }
    }

    #[test]
    fn blocked_streams_have_a_bound() {
        let mut decoder = QpackDecoder::new(4096, 3);
        for stream in [0, 4, 8] {
            assert_eq!(decode(&mut decoder, stream, &[2, 0, 0x80]), Ok(None));
            assert_eq!(decode(&mut decoder, stream, &[2, 0, 0x80]), Ok(None));
        }
        let more = decode(&mut decoder, 12, &[2, 0, 0x80]);
        assert_eq!(more, Err(QpackError::TooManyBlocked));
        decoder.cancel_stream(4);
        assert_eq!(decode(&mut decoder, 16, &[2, 0, 0x80]), Ok(None));
        assert!(!decoder.is_blocked(4) && decoder.is_blocked(16));
        assert_eq!(decoder.handle_instructions(&hex("3fe11f41610162")), Ok(2));
        for stream in [0, 8, 16] {
            assert!(!decoder.is_blocked(stream));
            let fields = decode(&mut decoder, stream, &[2, 0, 0x80]);
            assert_eq!(fields, Ok(Some(vec!["a: b".into()])));
        }
        assert_eq!(decoder.blocked_streams(), 0);
    }

    #[test]
    fn a_bomb_is_counted_and_not_kept() {
        let mut decoder = QpackDecoder::new(4096, 0);
        let mut inserts = hex("3fe11f4161");
        integer::write(4000, 0, 7, &mut inserts);
        inserts.extend([b'x'; 4000]);
        assert_eq!(decoder.handle_instructions(&inserts), Ok(2));
        let mut block = vec![2, 0];
        block.extend([0x80; 16_000]);
        let limits = ListLimits {
            max_size: 32 * 1024,
            max_fields: 100,
        };
        let mut given = 0;
        let outcome = decoder.decode(0, &block, limits, |f| given += f.value.len());
        let Ok(SectionOutcome::Decoded(decoded)) = outcome else {
            panic!("{outcome:?}");
        };
        assert!(decoded.too_large && decoded.fields < 100 && given <= 32 * 1024);
    }
}
