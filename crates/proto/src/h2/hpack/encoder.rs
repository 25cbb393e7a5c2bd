//! Writes header blocks (RFC 7541 section 6).
//!
//! A field enters the table when it is sent for the second time, so that values which differ in
//! every message never evict those that recur.

use super::static_table;
use super::{ENTRY_OVERHEAD, FieldSecrecy, TABLE_SIZE_DEFAULT};
use crate::field_section::dynamic_table::{DynamicTable, EntryName};
use crate::field_section::{hash_text, integer, write_text};
use crate::known_fields::KnownField;

/// Encodes the header blocks of one connection, in order.
#[derive(Debug)]
pub struct HpackEncoder {
    table: DynamicTable,
    /// The maximum table size that we want.
    wanted: usize,
    /// The smallest and the last table size since the last block, if the peer must be told (section
    /// 4.2).
    resized: Option<(usize, usize)>,
    /// Hashes of fields that were recently sent as literals.
    seen: [u32; SEEN],
    /// Scratch memory for a name in lower case.
    name: Vec<u8>,
}

/// The number of slots for those hashes; a power of two.
const SEEN: usize = 64;

/// The number of entries that are searched: as many as a table of the default size can hold.
const LOOKED_AT: usize = TABLE_SIZE_DEFAULT / ENTRY_OVERHEAD;

impl Default for HpackEncoder {
    fn default() -> HpackEncoder {
        HpackEncoder::new(TABLE_SIZE_DEFAULT)
    }
}

impl HpackEncoder {
    /// An encoder that wants a table of `table_size` at most. The peer's settings may reduce it;
    /// until they arrive it is [`TABLE_SIZE_DEFAULT`] at most.
    pub fn new(table_size: usize) -> HpackEncoder {
        let wanted = table_size.min(TABLE_SIZE_DEFAULT);
        HpackEncoder {
            table: DynamicTable::new(wanted),
            wanted,
            resized: (wanted != TABLE_SIZE_DEFAULT).then_some((wanted, wanted)),
            seen: [0; SEEN],
            name: Vec::new(),
        }
    }

    /// Applies the peer's `SETTINGS_HEADER_TABLE_SIZE`.
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

    /// Begins a block; must be called before its first field. Changes of the table's size are
    /// announced here.
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
                // A literal without indexing: name 8, three bytes.
                out.extend_from_slice(&[0x08, 3]);
                out.extend(digits.map(|digit| b'0' + digit as u8));
                return;
            }
        };
        out.push(0x80 | index);
    }

    /// Appends a pseudo-header field. Only the scheme and the authority are indexed: they are the
    /// same in each request, while methods are in the static table and paths mostly differ.
    pub fn pseudo(&mut self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        let (exact, name_index) = static_table::pseudo(name, value);
        if exact != 0 {
            integer::write(exact, 0x80, 7, out);
            return;
        }
        if name == b":authority" || name == b":scheme" {
            self.name.clear();
            self.name.extend_from_slice(name);
            return self.indexable(KnownField::Other, name_index, true, value, out);
        }
        integer::write(name_index, 0, 4, out);
        if name_index == 0 {
            write_text(name, 0, 7, out);
        }
        write_text(value, 0, 7, out);
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
        let name_index = static_table::index_of(known);
        self.name.clear();
        if secrecy != FieldSecrecy::Open {
            let pattern = if secrecy == FieldSecrecy::Secret {
                0x10
            } else {
                0
            };
            integer::write(name_index, pattern, 4, out);
            if name_index == 0 {
                self.name.extend(name.iter().map(u8::to_ascii_lowercase));
                write_text(&self.name, 0, 7, out);
            }
            return write_text(value, 0, 7, out);
        }
        if name_index == 0 {
            self.name.extend(name.iter().map(u8::to_ascii_lowercase));
        }
        self.indexable(known, name_index, is_steady(known), value, out);
    }

    /// Appends a field that may be indexed. If its name has no static index it is in `self.name`.
    fn indexable(
        &mut self,
        known: KnownField,
        name_index: usize,
        steady: bool,
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        let name_hash = match name_index {
            0 => hash_text(0, &self.name),
            index => index as u32,
        };
        let field_hash = hash_text(name_hash, value);
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
        // An entry with a large value would evict many others.
        let fits = value.len() + ENTRY_OVERHEAD <= self.table.max() / 4;
        let inserts = fits && (steady || self.was_seen(field_hash));
        let (pattern, prefix) = if inserts { (0x40, 6) } else { (0, 4) };
        integer::write(name_index, pattern, prefix, out);
        if name_index == 0 {
            write_text(&self.name, 0, 7, out);
        }
        write_text(value, 0, 7, out);
        if inserts {
            let name = match entry_of_name {
                Some(i) => EntryName::Entry(i),
                None if name_index != 0 => EntryName::Text(static_table::ENTRIES[name_index - 1].0),
                None => EntryName::Text(&self.name),
            };
            self.table
                .insert(known, name, value, (name_hash, field_hash));
        }
    }

    /// Whether a field with this hash was recently sent as a literal; notes that it is now.
    fn was_seen(&mut self, hash: u32) -> bool {
        let slot = &mut self.seen[hash as usize % SEEN];
        std::mem::replace(slot, hash) == hash
    }
}

/// Fields with the same value in most messages of a connection: they are indexed at once.
fn is_steady(known: KnownField) -> bool {
    matches!(
        known,
        KnownField::Server
            | KnownField::ContentType
            | KnownField::AcceptRanges
            | KnownField::Vary
            | KnownField::CacheControl
            | KnownField::ContentEncoding
            | KnownField::StrictTransportSecurity
            | KnownField::UserAgent
            | KnownField::Accept
            | KnownField::AcceptEncoding
            | KnownField::AcceptLanguage
            | KnownField::Te
            | KnownField::Date
    )
}

#[cfg(test)]
mod tests {
    use super::super::{HpackDecoder, ListLimits};
    use super::*;

    const ALL: ListLimits = ListLimits {
        max_size: usize::MAX,
        max_fields: usize::MAX,
    };

    fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, bool)> {
        let mut list = Vec::new();
        decoder
            .decode(block, ALL, |f| {
                list.push((f.name.to_vec(), f.value.to_vec(), f.never_indexed));
            })
            .expect("our own blocks are valid");
        list
    }

    fn response(encoder: &mut HpackEncoder, n: u32) -> Vec<u8> {
        let mut out = Vec::new();
        encoder.begin(&mut out);
        encoder.status(200 + (n % 7) as u16, &mut out);
        let unique = format!("{n:032x}");
        for (name, value, secrecy) in [
            (&b"Server"[..], &b"weir"[..], FieldSecrecy::Open),
            (b"Content-Type", b"text/html", FieldSecrecy::Open),
            (b"X-Custom", b"the same", FieldSecrecy::Open),
            (b"X-Unique", unique.as_bytes(), FieldSecrecy::Open),
            (b"Set-Cookie", b"id=1", FieldSecrecy::Secret),
            (b"ETag", b"\"65f-1234\"", FieldSecrecy::Open),
        ] {
            encoder.field(KnownField::from_name(name), name, value, secrecy, &mut out);
        }
        out
    }

    #[test]
    fn blocks_come_back_and_repeated_fields_cost_a_byte() {
        let mut encoder = HpackEncoder::default();
        let mut decoder = HpackDecoder::default();
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
        let mut encoder = HpackEncoder::default();
        let mut decoder = HpackDecoder::default();
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
        let mut encoder = HpackEncoder::default();
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
        let mut encoder = HpackEncoder::default();
        let mut decoder = HpackDecoder::default();
        let long = vec![b'x'; 3000];
        for _ in 0..3 {
            let mut out = Vec::new();
            encoder.begin(&mut out);
            encoder.field(
                KnownField::Server,
                b"Server",
                &long,
                FieldSecrecy::Open,
                &mut out,
            );
            assert!(out.len() > 1000);
            assert_eq!(decode(&mut decoder, &out)[0].1, long);
        }
    }
}
