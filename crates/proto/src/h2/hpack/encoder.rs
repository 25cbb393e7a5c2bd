//! Writes header blocks (RFC 7541 section 6).
//!
//! What is sent for the second time enters the table, so that a value that is different in every
//! message never pushes out those that are not.

use super::static_table;
use super::table::{Name, Table};
use super::{ENTRY_OVERHEAD, TABLE_SIZE_DEFAULT, integer};
use crate::huffman;
use crate::known::Known;

/// Whether others may find out about a value by how it is compressed (section 7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Secrecy {
    /// It may enter the table.
    Open,
    /// It is written out each time.
    Private,
    /// It is written out each time, and marked for others to do the same.
    Secret,
}

/// Compresses the header blocks of one connection, in order.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// What we want the table to be at most.
    wanted: usize,
    /// The smallest and the last size since the last block, when the peer must be told.
    resized: Option<(usize, usize)>,
    /// Hashes of fields that were written out lately.
    seen: [u32; SEEN],
    /// A name in lower case.
    name: Vec<u8>,
}

/// Slots for fields that were written out lately; a power of two.
const SEEN: usize = 64;

/// How many entries are looked at: as many as a table of the default size can have.
const LOOKED_AT: usize = TABLE_SIZE_DEFAULT / ENTRY_OVERHEAD;

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder::new(TABLE_SIZE_DEFAULT)
    }
}

impl Encoder {
    /// `table_size` is what we want the table to be at most; the peer's settings may make it
    /// smaller. Until they come it is [`TABLE_SIZE_DEFAULT`] at most.
    pub fn new(table_size: usize) -> Encoder {
        let wanted = table_size.min(TABLE_SIZE_DEFAULT);
        Encoder {
            table: Table::new(wanted),
            wanted,
            resized: (wanted != TABLE_SIZE_DEFAULT).then_some((wanted, wanted)),
            seen: [0; SEEN],
            name: Vec::new(),
        }
    }

    /// The peer's `SETTINGS_HEADER_TABLE_SIZE`.
    pub fn set_peer_limit(&mut self, size: u32) {
        let size = (size as usize).min(self.wanted);
        if size == self.table.max() {
            return;
        }
        self.table.set_max(size);
        let smallest = self
            .resized
            .map_or(size, |(smallest, _)| smallest.min(size));
        self.resized = Some((smallest, size));
    }

    /// Begins a block: call it before the block's first field.
    #[inline]
    pub fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.resized.take() {
            if smallest < last {
                integer::write(smallest, 0x20, 5, out);
            }
            integer::write(last, 0x20, 5, out);
        }
    }

    /// Appends `:status`.
    pub fn status(&mut self, status: u16, out: &mut Vec<u8>) {
        let index = match status {
            200 => 8,
            204 => 9,
            206 => 10,
            304 => 11,
            400 => 12,
            404 => 13,
            500 => 14,
            _ => {
                let status = status.clamp(100, 999);
                let digits = [status / 100, status / 10 % 10, status % 10];
                // Literal without indexing, name 8, three bytes.
                out.extend_from_slice(&[0x08, 3]);
                out.extend(digits.map(|digit| b'0' + digit as u8));
                return;
            }
        };
        out.push(0x80 | index);
    }

    /// Appends a pseudo-header field; its value does not enter the table unless it is the scheme or
    /// the authority, which are the same from request to request.
    pub fn pseudo(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let (exact, name_index) = static_table::pseudo(name, value);
        if exact != 0 {
            integer::write(exact, 0x80, 7, out);
            return;
        }
        if name == b":authority" || name == b":scheme" {
            self.name.clear();
            self.name.extend_from_slice(name);
            return self.open(Known::Other, name_index, true, value, out);
        }
        integer::write(name_index, 0, 4, out);
        if name_index == 0 {
            write_text(name, out);
        }
        write_text(value, out);
    }

    /// Appends a field. `name` may have any case.
    pub fn field(
        &mut self,
        known: Known,
        name: &[u8],
        value: &[u8],
        secrecy: Secrecy,
        out: &mut Vec<u8>,
    ) {
        let name_index = static_table::index_of(known);
        self.name.clear();
        if secrecy != Secrecy::Open {
            let pattern = if secrecy == Secrecy::Secret { 0x10 } else { 0 };
            integer::write(name_index, pattern, 4, out);
            if name_index == 0 {
                self.name.extend(name.iter().map(u8::to_ascii_lowercase));
                write_text(&self.name, out);
            }
            return write_text(value, out);
        }
        if name_index == 0 {
            self.name.extend(name.iter().map(u8::to_ascii_lowercase));
        }
        self.open(known, name_index, is_steady(known), value, out);
    }

    /// A field that may enter the table. Without a static index its name is in `self.name`.
    fn open(
        &mut self,
        known: Known,
        name_index: usize,
        steady: bool,
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        let name_hash = match name_index {
            0 => hash(0, &self.name),
            index => index as u32,
        };
        let field_hash = hash(name_hash, value);
        let mut name_index = name_index;
        for (i, entry) in self.table.entries().take(LOOKED_AT).enumerate() {
            if entry.hashes == (name_hash, field_hash)
                && self.table.value(entry) == value
                && (name_index != 0 || self.table.name(entry) == self.name)
            {
                integer::write(i + 62, 0x80, 7, out);
                return;
            }
        }
        let mut entry_of_name = None;
        if name_index == 0 {
            entry_of_name = self
                .table
                .entries()
                .take(LOOKED_AT)
                .position(|e| e.hashes.0 == name_hash && self.table.name(e) == self.name);
            name_index = entry_of_name.map_or(0, |i| i + 62);
        }
        // An entry for a large value would take the room of many others.
        let fits = value.len() + ENTRY_OVERHEAD <= self.table.max() / 4;
        let inserts = fits && (steady || self.was_seen(field_hash));
        let (pattern, prefix) = if inserts { (0x40, 6) } else { (0, 4) };
        integer::write(name_index, pattern, prefix, out);
        if name_index == 0 {
            write_text(&self.name, out);
        }
        write_text(value, out);
        if inserts {
            let name = match entry_of_name {
                Some(i) => Name::Entry(i),
                None if name_index != 0 => Name::Text(static_table::ENTRIES[name_index - 1].0),
                None => Name::Text(&self.name),
            };
            self.table
                .insert(known, name, value, (name_hash, field_hash));
        }
    }

    /// Whether the field with this hash was written out lately; from now on it was.
    fn was_seen(&mut self, hash: u32) -> bool {
        let slot = &mut self.seen[hash as usize % SEEN];
        std::mem::replace(slot, hash) == hash
    }
}

/// Fields that have the same value in most messages of a connection.
fn is_steady(known: Known) -> bool {
    matches!(
        known,
        Known::Server
            | Known::ContentType
            | Known::AcceptRanges
            | Known::Vary
            | Known::CacheControl
            | Known::ContentEncoding
            | Known::StrictTransportSecurity
            | Known::UserAgent
            | Known::Accept
            | Known::AcceptEncoding
            | Known::AcceptLanguage
            | Known::Te
            | Known::Date
    )
}

/// A fast hash of a text. It only saves comparisons: the texts decide.
fn hash(seed: u32, text: &[u8]) -> u32 {
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

/// Appends a text, in the Huffman code where that is shorter.
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    let coded = huffman::encoded_length(text);
    if coded < text.len() {
        integer::write(coded, 0x80, 7, out);
        huffman::encode(text, out);
    } else {
        integer::write(text.len(), 0, 7, out);
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, ListLimits};
    use super::*;

    const ALL: ListLimits = ListLimits {
        max_size: usize::MAX,
        max_fields: usize::MAX,
    };

    fn decode(decoder: &mut Decoder, block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, bool)> {
        let mut list = Vec::new();
        decoder
            .decode(block, ALL, |f| {
                list.push((f.name.to_vec(), f.value.to_vec(), f.never_indexed));
            })
            .expect("our own blocks are valid");
        list
    }

    fn response(encoder: &mut Encoder, n: u32) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.status(200 + (n % 7) as u16, &mut out);
        let unique = format!("{n:032x}");
        for (name, value, secrecy) in [
            (&b"Server"[..], &b"weir"[..], Secrecy::Open),
            (b"Content-Type", b"text/html", Secrecy::Open),
            (b"X-Custom", b"the same", Secrecy::Open),
            (b"X-Unique", unique.as_bytes(), Secrecy::Open),
            (b"Set-Cookie", b"id=1", Secrecy::Secret),
            (b"ETag", b"\"65f-1234\"", Secrecy::Open),
        ] {
            encoder.field(Known::from_name(name), name, value, secrecy, &mut out);
        }
        out
    }

    #[test]
    fn blocks_come_back_and_repeated_fields_cost_a_byte() {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        for n in 0..500 {
            if n % 50 == 49 {
                encoder.set_peer_limit(n * 10);
            }
            if n % 50 == 0 {
                encoder.set_peer_limit(0);
                encoder.set_peer_limit(4096);
            }
            let block = response(&mut encoder, n);
            let list = decode(&mut decoder, &block);
            assert_eq!(list.len(), 7);
            assert_eq!(list[0].0, b":status");
            assert_eq!(list[3], (b"x-custom".to_vec(), b"the same".to_vec(), false));
            assert_eq!(list[4].1, format!("{n:032x}").as_bytes());
            assert!(list[5].2 && !list[6].2);
            if n % 50 == 10 {
                assert!(block.len() < 50, "{}", block.len());
            }
        }
    }

    #[test]
    fn pseudo_header_fields() {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            let fields = [
                (&b":method"[..], &b"GET"[..]),
                (b":scheme", b"https"),
                (b":authority", b"example.com"),
                (b":path", b"/x"),
                (b":protocol", b"websocket"),
            ];
            for (name, value) in fields {
                encoder.pseudo(name, value, &mut out);
            }
            let list = decode(&mut decoder, &out);
            let seen: Vec<_> = list.iter().map(|(n, v, _)| (&n[..], &v[..])).collect();
            assert_eq!(seen, fields);
        }
    }

    #[test]
    fn a_smaller_table_is_announced_with_its_smallest_size() {
        let mut encoder = Encoder::default();
        encoder.set_peer_limit(100);
        encoder.set_peer_limit(1000);
        let mut out = Vec::new();
        encoder.begin(&mut out);
        assert_eq!(out, [0x3f, 100 - 31, 0x3f, 0xc9, 0x07]);
        out.clear();
        encoder.set_peer_limit(1 << 30);
        encoder.begin(&mut out);
        assert_eq!(out, [0x3f, 0xe1, 0x1f]);
    }

    #[test]
    fn long_values_are_written_out_each_time() {
        let mut encoder = Encoder::default();
        let mut decoder = Decoder::default();
        let long = vec![b'x'; 3000];
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.field(Known::Server, b"Server", &long, Secrecy::Open, &mut out);
            assert!(out.len() > 1000);
            assert_eq!(decode(&mut decoder, &out)[0].1, long);
        }
    }
}
