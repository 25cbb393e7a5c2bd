//! Decodes header blocks (RFC 7541, section 6).

use super::static_table;
use super::{DecodedField, DecodedList, ListLimits, TABLE_SIZE_DEFAULT};
use crate::field_section::dynamic_table::{DynamicTable, EntryName};
use crate::field_section::integer;
use crate::huffman;
use crate::known_fields::KnownField;

/// How to treat a list that exceeds its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OverLimit {
    /// Continue: the table must be right for the next block.
    KeepTable,
    /// Stop: there will be no next block.
    Stop,
}

/// A block that cannot be decompressed: COMPRESSION_ERROR, and the end of the connection, since
/// both tables differ from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HpackError {
    /// The block ends within a field, or a number is too long.
    Truncated,
    /// An index without an entry.
    InvalidIndex,
    /// A string is not valid Huffman code.
    InvalidHuffman,
    /// A table size above the agreed one, or in the middle of a block.
    InvalidTableSize,
}

/// Decodes the header blocks of one connection, in order.
#[derive(Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// The maximum table size by our settings.
    allowed: usize,
    /// Scratch memory for a name and a value.
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Default for HpackDecoder {
    fn default() -> HpackDecoder {
        HpackDecoder::new(TABLE_SIZE_DEFAULT)
    }
}

/// How much scratch memory is kept between blocks, in bytes.
const KEEP: usize = 4096;

/// Where a name or a value is.
enum NameSource {
    Static(usize),
    Dynamic(usize),
    /// In the scratch memory.
    Scratch,
}

impl HpackDecoder {
    /// A decoder with the `SETTINGS_HEADER_TABLE_SIZE` that the peer was told.
    pub fn new(table_size: usize) -> HpackDecoder {
        HpackDecoder {
            table: DynamicTable::new(table_size),
            allowed: table_size,
            name: Vec::new(),
            value: Vec::new(),
        }
    }

    /// Decodes a complete block and passes each field to `take`. A list that exceeds `limits` is
    /// decoded to its end nevertheless, because the next block builds on the table; each byte still
    /// costs no more than a lookup.
    pub fn decode(
        &mut self,
        block: &[u8],
        limits: ListLimits,
        take: impl FnMut(DecodedField<'_>),
    ) -> Result<DecodedList, HpackError> {
        self.run(block, limits, OverLimit::KeepTable, take)
    }

    /// Like [`HpackDecoder::decode`], for callers that end the connection when a list exceeds its
    /// limits: it stops there, and the decoder cannot be used again.
    pub fn decode_or_stop(
        &mut self,
        block: &[u8],
        limits: ListLimits,
        take: impl FnMut(DecodedField<'_>),
    ) -> Result<DecodedList, HpackError> {
        self.run(block, limits, OverLimit::Stop, take)
    }

    #[inline]
    fn run(
        &mut self,
        block: &[u8],
        limits: ListLimits,
        beyond: OverLimit,
        mut take: impl FnMut(DecodedField<'_>),
    ) -> Result<DecodedList, HpackError> {
        let mut decoded = DecodedList::default();
        let mut rest = block;
        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            if first & 0b1110_0000 == 0b0010_0000 {
                self.resize(first, decoded.fields, &mut rest)?;
                continue;
            }
            let field = self.field(first, &mut rest)?;
            if decoded.count(&field, &limits) {
                take(field);
            } else if beyond == OverLimit::Stop {
                break;
            }
        }
        self.name.shrink_to(KEEP);
        self.value.shrink_to(KEEP);
        Ok(decoded)
    }

    fn resize(&mut self, first: u8, fields: usize, rest: &mut &[u8]) -> Result<(), HpackError> {
        let size = integer::read(first, 5, rest).ok_or(HpackError::Truncated)?;
        if size > self.allowed || fields > 0 {
            return Err(HpackError::InvalidTableSize);
        }
        self.table.set_max(size);
        Ok(())
    }

    /// Decodes the field that begins with `first`.
    #[inline]
    fn field(&mut self, first: u8, rest: &mut &[u8]) -> Result<DecodedField<'_>, HpackError> {
        if first & 0x80 != 0 {
            let index = integer::read(first, 7, rest).ok_or(HpackError::Truncated)?;
            return self.indexed(index);
        }
        let inserts = first & 0x40 != 0;
        let prefix = if inserts { 6 } else { 4 };
        let index = integer::read(first, prefix, rest).ok_or(HpackError::Truncated)?;
        let name = match index {
            0 => {
                read_text(rest, &mut self.name)?;
                NameSource::Scratch
            }
            1..=61 => NameSource::Static(index - 1),
            _ if self.table.get(index - 62).is_none() => return Err(HpackError::InvalidIndex),
            _ => NameSource::Dynamic(index - 62),
        };
        read_text(rest, &mut self.value)?;
        let known = match name {
            NameSource::Scratch => KnownField::from_name(&self.name),
            NameSource::Static(i) => static_table::KNOWN[i],
            NameSource::Dynamic(i) => self.table.get(i).map_or(KnownField::Other, |e| e.known),
        };
        if let (NameSource::Dynamic(i), true) = (&name, inserts) {
            // The entry may be evicted by the new one, but its name is needed a moment longer.
            let entry = *self.table.get(*i).ok_or(HpackError::InvalidIndex)?;
            self.name.clear();
            self.name.extend_from_slice(self.table.name(&entry));
            self.table
                .insert(known, EntryName::Entry(*i), &self.value, (0, 0));
        } else if inserts {
            let text = match name {
                NameSource::Static(i) => static_table::ENTRIES[i].0,
                _ => &self.name,
            };
            self.table
                .insert(known, EntryName::Text(text), &self.value, (0, 0));
        }
        let name = match name {
            NameSource::Static(i) => static_table::ENTRIES[i].0,
            NameSource::Dynamic(i) if !inserts => match self.table.get(i) {
                Some(entry) => self.table.name(entry),
                None => return Err(HpackError::InvalidIndex),
            },
            NameSource::Dynamic(_) | NameSource::Scratch => &self.name,
        };
        Ok(DecodedField {
            name,
            value: &self.value,
            known,
            never_indexed: first & 0x50 == 0x10,
        })
    }

    #[inline]
    fn indexed(&self, index: usize) -> Result<DecodedField<'_>, HpackError> {
        let (name, value, known) = match index {
            0 => return Err(HpackError::InvalidIndex),
            1..=61 => {
                let (name, value) = static_table::ENTRIES[index - 1];
                (name, value, static_table::KNOWN[index - 1])
            }
            _ => {
                let entry = self.table.get(index - 62).ok_or(HpackError::InvalidIndex)?;
                (self.table.name(entry), self.table.value(entry), entry.known)
            }
        };
        Ok(DecodedField {
            name,
            value,
            known,
            never_indexed: false,
        })
    }
}

/// Decodes a string (section 5.2) into `out`, replacing its content.
#[inline]
fn read_text(rest: &mut &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let (&first, after) = rest.split_first().ok_or(HpackError::Truncated)?;
    *rest = after;
    let length = integer::read(first, 7, rest).ok_or(HpackError::Truncated)?;
    let (text, after) = rest.split_at_checked(length).ok_or(HpackError::Truncated)?;
    *rest = after;
    out.clear();
    if first & 0x80 == 0 {
        out.extend_from_slice(text);
        return Ok(());
    }
    huffman::decode(text, out).map_err(|_| HpackError::InvalidHuffman)
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

    fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Result<Vec<String>, HpackError> {
        let mut fields = Vec::new();
        decoder.decode(block, ALL, |field| {
            assert_eq!(field.known, KnownField::from_name(field.name));
            fields.push(format!(
                "{}: {}",
                String::from_utf8_lossy(field.name),
                String::from_utf8_lossy(field.value)
            ));
        })?;
        Ok(fields)
    }

    #[test]
    fn requests_of_the_rfc() {
        // Appendix C.3 without and C.4 with the Huffman code.
        let blocks = [
            [
                "828684410f7777772e6578616d706c652e636f6d",
                "828684be58086e6f2d6361636865",
                "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            ],
            [
                "828684418cf1e3c2e5f23a6ba0ab90f4ff",
                "828684be5886a8eb10649cbf",
                "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            ],
        ];
        for set in blocks {
            let mut decoder = HpackDecoder::default();
            let mut lists = set.map(|block| decode(&mut decoder, &hex(block)).expect("valid"));
            assert_eq!(lists[0][3], ":authority: www.example.com");
            assert_eq!(lists[1].pop().as_deref(), Some("cache-control: no-cache"));
            assert_eq!(lists[1], lists[0]);
            assert_eq!(
                lists[2],
                [
                    ":method: GET",
                    ":scheme: https",
                    ":path: /index.html",
                    ":authority: www.example.com",
                    "custom-key: custom-value",
                ]
            );
            assert_eq!(decoder.table.entries().count(), 3);
        }
    }

    #[test]
    fn responses_of_the_rfc_with_a_small_table() {
        let mut decoder = HpackDecoder::new(256);
        let blocks = [
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad1718\
             63c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7\
             b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ];
        let lists = blocks.map(|block| decode(&mut decoder, &hex(block)).expect("valid"));
        assert_eq!(lists[0].len(), 4);
        assert_eq!(lists[1][0], ":status: 307");
        assert_eq!(lists[1][1..], lists[0][1..]);
        assert_eq!(
            lists[2][5],
            "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
        );
    }

    #[test]
    fn blocks_that_are_not() {
        for (block, error) in [
            ("80", HpackError::InvalidIndex),
            ("be", HpackError::InvalidIndex),
            ("ffffffffff7f", HpackError::Truncated),
            ("7f00", HpackError::InvalidIndex),
            ("4003", HpackError::Truncated),
            ("40036161", HpackError::Truncated),
            ("0082ffff00", HpackError::InvalidHuffman),
            ("8220", HpackError::InvalidTableSize),
            ("3fe21f", HpackError::InvalidTableSize),
        ] {
            let mut decoder = HpackDecoder::default();
            assert_eq!(decode(&mut decoder, &hex(block)), Err(error), "{block}");
        }
        let mut decoder = HpackDecoder::default();
        assert_eq!(
            decode(&mut decoder, &hex("3fe11f203fe11f82")).map(|l| l.len()),
            Ok(1)
        );
    }

    #[test]
    fn a_bomb_is_counted_and_not_kept() {
        let mut decoder = HpackDecoder::default();
        // One entry of about 4,000 bytes, then 16,000 references to it.
        let mut bomb = vec![0x40, 1, b'a'];
        integer::write(4000, 0, 7, &mut bomb);
        bomb.extend(std::iter::repeat_n(b'x', 4000));
        bomb.extend(std::iter::repeat_n(0xbe, 16_000));
        let limits = ListLimits {
            max_size: 32 * 1024,
            max_fields: 100,
        };
        let mut given = 0;
        let decoded = decoder
            .decode(&bomb, limits, |f| given += f.value.len())
            .expect("it is well formed");
        assert!(decoded.too_large && decoded.fields == 16_001);
        assert!(given <= 32 * 1024);
        assert_eq!(decode(&mut decoder, &[0xbe]).map(|l| l.len()), Ok(1));
        let stopped = decoder.decode_or_stop(&bomb, limits, |_| {});
        assert!(stopped.is_ok_and(|decoded| decoded.too_large && decoded.fields < 100));
    }

    #[test]
    fn the_number_of_fields_has_a_bound() {
        let mut decoder = HpackDecoder::default();
        let limits = ListLimits {
            max_size: usize::MAX,
            max_fields: 3,
        };
        let mut given = 0;
        let decoded = decoder
            .decode(&[0x82; 4], limits, |_| given += 1)
            .expect("it is well formed");
        assert!(decoded.too_large && given == 3);
    }
}
