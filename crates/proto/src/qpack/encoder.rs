//! Writes header blocks (RFC 9204, section 4.5) with the static table alone.
//!
//! A dynamic table saves bytes, at the price of a search for each field and of blocks that wait for lost packets. The
//! bytes of a response's head are few beside those of its packets; what a table would save is to be measured before it is
//! written.

use super::static_table;
use crate::field_section::integer::{self, IntegerFault};
use crate::field_section::{FieldSecrecy, write_text};
use crate::known_fields::KnownField;

/// The patterns of fields (sections 4.5.2, 4.5.4 and 4.5.6), with the bits that say "static" and "never index".
mod pattern {
    pub(super) const INDEXED: u8 = 0xc0;
    pub(super) const NAMED: u8 = 0x50;
    pub(super) const NAMED_SECRET: u8 = 0x20;
    pub(super) const LITERAL: u8 = 0x20;
    pub(super) const LITERAL_SECRET: u8 = 0x10;
}

/// How many coded fields are kept: so that no two of those that most responses have take each other's place.
const KEPT_FIELDS: usize = 40;

/// Values of other lengths are not kept, in bytes: shorter ones are coded as fast, and longer ones seldom come again.
const KEPT_LENGTHS: std::ops::RangeInclusive<usize> = 4..=64;

/// Encodes header blocks. It has no state of a connection, so one is enough for all of a loop: most responses have the same
/// server, date and type as the one before, and to code a field costs ten times as much as to compare it with the last one.
#[derive(Debug)]
pub struct QpackEncoder {
    /// A name in lower case.
    name: Vec<u8>,
    /// Fields as they were written last.
    kept: [KeptField; KEPT_FIELDS],
}

/// A field, and the same as it is written.
#[derive(Debug)]
struct KeptField {
    known: KnownField,
    value: Vec<u8>,
    coded: Vec<u8>,
}

impl Default for QpackEncoder {
    fn default() -> QpackEncoder {
        QpackEncoder {
            name: Vec::new(),
            kept: std::array::from_fn(|_| KeptField {
                known: KnownField::Other,
                value: Vec::new(),
                coded: Vec::new(),
            }),
        }
    }
}

impl QpackEncoder {
    /// Begins a block: it needs no insertions (section 4.5.1).
    #[inline]
    pub fn begin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0, 0]);
    }

    /// Appends `:status`.
    pub fn status(&self, status: u16, out: &mut Vec<u8>) {
        match static_table::find_status(status) {
            Ok(index) => integer::write(index, pattern::INDEXED, 6, out),
            Err(name) => {
                let status = status.clamp(100, 999);
                let digits = [status / 100, status / 10 % 10, status % 10];
                integer::write(name, pattern::NAMED, 4, out);
                out.push(3);
                out.extend(digits.map(|digit| b'0' + digit as u8));
            }
        }
    }

    /// Appends a pseudo-header field.
    pub fn pseudo(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let found = static_table::find_pseudo(name, value);
        self.write(found, name, value, FieldSecrecy::Open, out);
    }

    /// Appends a field, whose name may have any case.
    pub fn field(
        &mut self,
        known: KnownField,
        name: &[u8],
        value: &[u8],
        secrecy: FieldSecrecy,
        out: &mut Vec<u8>,
    ) {
        let is_kept = secrecy == FieldSecrecy::Open
            && known != KnownField::Other
            && KEPT_LENGTHS.contains(&value.len());
        let place = known as usize % KEPT_FIELDS;
        let kept = &self.kept[place];
        if is_kept && kept.known == known && kept.value == value {
            return out.extend_from_slice(&kept.coded);
        }
        let begin = out.len();
        self.write(static_table::find(known, value), name, value, secrecy, out);
        if is_kept {
            let kept = &mut self.kept[place];
            kept.known = known;
            kept.value.clear();
            kept.value.extend_from_slice(value);
            kept.coded.clear();
            kept.coded.extend_from_slice(&out[begin..]);
        }
    }

    fn write(
        &mut self,
        found: (Option<usize>, Option<usize>),
        name: &[u8],
        value: &[u8],
        secrecy: FieldSecrecy,
        out: &mut Vec<u8>,
    ) {
        let is_secret = secrecy == FieldSecrecy::Secret;
        match found {
            // The static table reveals nothing: everybody has it.
            (Some(exact), _) => return integer::write(exact, pattern::INDEXED, 6, out),
            (None, Some(named)) => {
                let never = if is_secret { pattern::NAMED_SECRET } else { 0 };
                integer::write(named, pattern::NAMED | never, 4, out);
            }
            (None, None) => {
                let never = if is_secret {
                    pattern::LITERAL_SECRET
                } else {
                    0
                };
                self.name.clear();
                self.name.extend(name.iter().map(u8::to_ascii_lowercase));
                write_text(&self.name, pattern::LITERAL | never, 3, out);
            }
        }
        write_text(value, 0, 7, out);
    }
}

/// Reads what the peer's decoder says (section 4.4). Our blocks have no references, so that nothing but the end of streams
/// can be meant.
#[derive(Debug, Default)]
pub struct DecoderStreamReader {
    /// The beginning of an instruction: a few bytes.
    pending: Vec<u8>,
}

/// What the peer's decoder must not have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidInstruction;

/// The longest instruction: identifiers of streams have 62 bits, but no connection comes to where they need more than this.
const LONGEST: usize = 6;

impl DecoderStreamReader {
    /// Takes a piece of the stream. Returns how many instructions were complete.
    pub fn handle_instructions(&mut self, input: &[u8]) -> Result<u32, InvalidInstruction> {
        let mut count = 0u32;
        for &byte in input {
            self.pending.push(byte);
            let [first, rest @ ..] = &self.pending[..] else {
                continue;
            };
            // Section Acknowledgment and Insert Count Increment need insertions, of which we make none.
            if first & 0xc0 != 0x40 || self.pending.len() > LONGEST {
                return Err(InvalidInstruction);
            }
            match integer::read_some(*first, 6, &mut &rest[..]) {
                Ok(_) => {
                    self.pending.clear();
                    count = count.saturating_add(1);
                }
                Err(IntegerFault::Incomplete) => {}
                Err(IntegerFault::TooLarge) => return Err(InvalidInstruction),
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{QpackDecoder, SectionOutcome};
    use super::*;
    use crate::field_section::ListLimits;

    fn decode(block: &[u8]) -> Vec<(String, String, bool)> {
        const ALL: ListLimits = ListLimits {
            max_size: usize::MAX,
            max_fields: usize::MAX,
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut list = Vec::new();
        let mut decoder = QpackDecoder::new(0, 0);
        let outcome = decoder.decode(0, block, ALL, |field| {
            list.push((text(field.name), text(field.value), field.never_indexed));
        });
        assert!(
            matches!(outcome, Ok(SectionOutcome::Decoded(_))),
            "{outcome:?}"
        );
        list
    }

    #[test]
    fn every_status_comes_back() {
        let encoder = QpackEncoder::default();
        for status in 100..1000 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.status(status, &mut out);
            let expected = (":status".to_owned(), status.to_string(), false);
            assert_eq!(decode(&out), [expected]);
        }
    }

    #[test]
    fn fields_come_back_in_lower_case() {
        let mut encoder = QpackEncoder::default();
        let fields = [
            ("Content-Type", "text/html", FieldSecrecy::Open),
            (
                "Content-Type",
                "text/html; charset=utf-8",
                FieldSecrecy::Open,
            ),
            ("Server", "weir", FieldSecrecy::Open),
            ("X-Custom", "UPPER lower", FieldSecrecy::Open),
            ("X-Token", "abc", FieldSecrecy::Secret),
            ("Set-Cookie", "id=1", FieldSecrecy::Private),
            ("Authorization", "Basic x", FieldSecrecy::Secret),
            ("X-Empty", "", FieldSecrecy::Open),
        ];
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.pseudo(b":method", b"GET", &mut out);
        encoder.pseudo(b":path", b"/x", &mut out);
        encoder.pseudo(b":protocol", b"websocket", &mut out);
        for (name, value, secrecy) in fields {
            let known = KnownField::from_name(name.as_bytes());
            encoder.field(known, name.as_bytes(), value.as_bytes(), secrecy, &mut out);
        }
        let list = decode(&out);
        assert_eq!(list[0], (":method".into(), "GET".into(), false));
        assert_eq!(list[2], (":protocol".into(), "websocket".into(), false));
        for ((name, value, secrecy), seen) in fields.into_iter().zip(&list[3..]) {
            let never = secrecy == FieldSecrecy::Secret;
            assert_eq!(seen, &(name.to_ascii_lowercase(), value.to_owned(), never));
        }
    }

    #[test]
    fn only_cancellations_are_expected_of_the_peer() {
        let mut reader = DecoderStreamReader::default();
        assert_eq!(reader.handle_instructions(&[0x44, 0x7f]), Ok(1));
        assert_eq!(reader.handle_instructions(&[0x80]), Ok(0));
        assert_eq!(reader.handle_instructions(&[0x01, 0x40]), Ok(2));
        for wrong in [&[0x84][..], &[0x01], &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80]] {
            let result = DecoderStreamReader::default().handle_instructions(wrong);
            assert_eq!(result, Err(InvalidInstruction));
        }
    }
}
