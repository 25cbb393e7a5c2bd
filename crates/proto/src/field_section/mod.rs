//! What HTTP/2 and HTTP/3 have in common: the head of a message is a section of fields (RFC 9110, section 6.3), which a
//! compression that belongs to the connection writes as a block.
//!
//! HPACK ([`h2::hpack`](crate::h2::hpack)) and QPACK ([`qpack`](crate::qpack)) read blocks into [`DecodedField`]s, and
//! share integers, the memory of their dynamic tables and the Huffman code. [`request`] makes a request's head of a
//! section, [`rules`] says what a section may contain, [`priority`] what a client asks of a response. Nothing here
//! knows frames or streams.

pub(crate) mod dynamic_table;
pub(crate) mod integer;
pub mod priority;
pub mod request;
pub mod rules;

pub use priority::ResponsePriority;
pub use request::{MalformedRequest, RequestLimits, RequestReader};

use crate::huffman;
use crate::known_fields::KnownField;

/// What the RFCs add to the size of an entry or a field (RFC 7541, sections 4.1 and 6.5.2; RFC 9204, section 3.2.1).
pub const ENTRY_OVERHEAD: usize = 32;

/// A field of a section.
#[derive(Clone, Copy, Debug)]
pub struct DecodedField<'a> {
    /// The name as sent. The receiver has to check that it is a valid field name.
    pub name: &'a [u8],
    /// The value as sent.
    pub value: &'a [u8],
    /// The known name, if it is one: tables have it without another lookup.
    pub known: KnownField,
    /// It must never be indexed, not even by the next hop (RFC 7541, section 7.1.3).
    pub never_indexed: bool,
}

/// The limits of a section.
#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    /// The bytes of names and values, plus 32 per field: `SETTINGS_MAX_HEADER_LIST_SIZE` and
    /// `SETTINGS_MAX_FIELD_SECTION_SIZE`.
    pub max_size: usize,
    /// The number of fields.
    pub max_fields: usize,
}

/// The result of decoding a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodedList {
    /// The section's size as [`ListLimits::max_size`] counts it.
    pub size: usize,
    /// The number of fields.
    pub fields: usize,
    /// The section exceeded its limits, and the fields from there on were not passed on.
    pub too_large: bool,
}

impl DecodedList {
    /// Counts a field. `true` if it is within the limits.
    #[inline]
    pub(crate) fn count(&mut self, field: &DecodedField<'_>, limits: &ListLimits) -> bool {
        self.size += field.name.len() + field.value.len() + ENTRY_OVERHEAD;
        self.fields += 1;
        self.too_large |= self.size > limits.max_size || self.fields > limits.max_fields;
        !self.too_large
    }
}

/// Whether the compression of a value may reveal it (RFC 7541, section 7.1; RFC 9204, section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldSecrecy {
    /// The field may be indexed.
    Open,
    /// The field is sent as a literal each time.
    Private,
    /// The field is a never-indexed literal, for every hop.
    Secret,
}

/// Appends a string whose length has a prefix of `prefix` bits, Huffman-coded if that is shorter. `pattern` has the
/// bits above the one that tells so.
pub(crate) fn write_text(text: &[u8], pattern: u8, prefix: u32, out: &mut Vec<u8>) {
    let coded = huffman::encoded_length(text);
    if coded < text.len() {
        integer::write(coded, pattern | 1 << prefix, prefix, out);
        huffman::encode(text, out);
    } else {
        integer::write(text.len(), pattern, prefix, out);
        out.extend_from_slice(text);
    }
}

/// A fast hash, for the search in an encoder's table. A collision costs only a comparison: the texts decide.
pub(crate) fn hash_text(seed: u32, text: &[u8]) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut state = u64::from(seed) ^ (text.len() as u64) << 32;
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        state = (state.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(K);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    state = (state.rotate_left(5) ^ u64::from_le_bytes(last)).wrapping_mul(K);
    (state >> 32) as u32
}
