//! The bytes on disk. All numbers are little-endian; every structure begins at a multiple of 64 bytes.
//!
//! A store is a directory:
//!
//! ```text
//! store               64 bytes; locked by the process that has the store open
//! checkpoint          the index as it was at some moment (open_store.rs); may be missing or torn
//! 00000001.segment …  segments, numbered upwards; a number is never used twice
//! ```
//!
//! A segment is a header, records, and, once it is full, a table of its records and a trailer:
//!
//! ```text
//!  0 u64 magic "WeirSeg1"   8 u64 store's seed   16 u32 number   20 u8 side (0 small, 1 main)
//! 24 zeros                 56 u64 checksum of bytes 0..56
//! ```
//!
//! A record:
//!
//! ```text
//!  0 u32 magic "WRec"   4 u8 kind   5 u8 flags   6 u16 zero
//!  8 u64 sequence       16 u64 hash of the key
//! 24 u32 meta length    28 u32 data length
//! 32 u64 born           40 u32 segment's number   44 u32 zero
//! 48 u64 checksum of the data
//! 56 u64 checksum of bytes 0..56 and of the meta
//! 64 meta, data, zeros up to the next multiple of 64
//! ```
//!
//! Why in this order: lengths stand before what they measure, and are covered by a checksum that is verified before
//! data is touched; the segment's number is in the record, so that a block of another file that a crash put here is
//! not taken for ours. Meta and data have a checksum each, because a head is often read without its body.
//!
//! The records of one object are written **bodies first, object last**: the object record is the commit. What a
//! crash cuts off before it is bytes that nothing refers to. A small body is in the object record itself, so that
//! a hit is one read. The table and the trailer come after an `fdatasync` of the records: a valid trailer says that
//! the records are on the disk. A segment without one is read record by record, data included, up to the first
//! that is not whole; nothing behind that is used.

use bytes::Bytes;

use crate::checksum::xxh64;
use crate::key::{CacheKey, ObjectHead, ObjectKind, ObjectMeta};

/// Everything begins at a multiple of this; positions in the index are in this unit.
pub(crate) const UNIT: u64 = 64;
pub(crate) const HEADER: usize = 64;
/// The most bytes of meta in a record; checked before anything is allocated for it.
pub(crate) const META_MAX: usize = 4 * 1024 * 1024;
/// The most bytes of body with a checksum of their own: what is read to verify any byte of them.
pub(crate) const EXTENT_MAX: usize = 256 * 1024;
/// The most bytes of body in a record: several extents, one behind the other, so that they leave by one `sendfile`.
pub(crate) const RUN_MAX: usize = 1024 * 1024;
/// Bodies up to this stand in the object record.
pub(crate) const INLINE_MAX: usize = 64 * 1024;
/// The most extents that an object may have (25 GB of full ones); a larger object is not stored.
pub(crate) const EXTENTS_MAX: usize = (META_MAX - ObjectHead::MAX - 128) / EXTENT_BYTES;
/// A segment is full at this number of records, so that its table fits into a record's meta.
pub(crate) const TABLE_MAX: usize = META_MAX / TABLE_ENTRY - 2;

const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"WRec");
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"WeirSeg1");
const TRAILER_MAGIC: u64 = u64::from_le_bytes(*b"WeirEnd1");
const STORE_MAGIC: u64 = u64::from_le_bytes(*b"WeirSto1");
/// The last letter of the store's magic number. It is the version of everything in the directory: a change that this code
/// could not read has another one, and then it leaves the directory alone.
pub(crate) const STORE_FORMAT: char = '1';
const EXTENT_BYTES: usize = 40;
const TABLE_ENTRY: usize = 32;
const UNKNOWN_LENGTH: u64 = u64::MAX;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// A piece of a body.
    Body = 1,
    /// An object's metadata and, if small, its body: the commit.
    Object = 2,
    /// The key is gone: older objects of it do not come back when the index is rebuilt.
    Tombstone = 3,
    /// The key's object is stale.
    Soften = 4,
    /// A purge by prefix or tag.
    Purge = 5,
    /// The table of a full segment.
    Table = 6,
}

impl RecordKind {
    fn of(number: u8) -> Option<Self> {
        [
            Self::Body,
            Self::Object,
            Self::Tombstone,
            Self::Soften,
            Self::Purge,
            Self::Table,
        ]
        .into_iter()
        .find(|&kind| kind as u8 == number)
    }
}

/// Set in an object record that took the place of an older one of its key: when it goes, a tombstone must stay.
pub(crate) const SUPERSEDES: u8 = 1;
/// Set in an object record of what a soft purge had hit when the record was written. The purge's own record is older, and would
/// not hit this one when the index is rebuilt.
pub(crate) const STALE: u8 = 2;

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskRecord {
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
    /// Its place in the one order of records, purges and beginnings of fills. The index is rebuilt by it.
    pub(crate) sequence: u64,
    /// Of the key; 0 where a record has none.
    pub(crate) hash: u64,
    pub(crate) meta_len: u32,
    pub(crate) data_len: u32,
    /// For an object: the sequence at which its fill began. Purges with a higher one hit it.
    pub(crate) born: u64,
    pub(crate) segment: u32,
    /// Of the data alone, so that a head can be verified without its body.
    pub(crate) data_sum: u64,
}

impl DiskRecord {
    /// Bytes on disk, padding included.
    pub(crate) fn size(&self) -> u64 {
        padded(HEADER as u64 + u64::from(self.meta_len) + u64::from(self.data_len))
    }

    /// Appends the whole record to `out`; lengths and checksum are set here.
    pub(crate) fn write(mut self, meta: &[u8], data: &[u8], out: &mut Vec<u8>) {
        self.meta_len = meta.len() as u32;
        self.data_len = data.len() as u32;
        self.data_sum = xxh64(data, 0);
        let begin = out.len();
        out.extend_from_slice(&RECORD_MAGIC.to_le_bytes());
        out.extend_from_slice(&[self.kind as u8, self.flags, 0, 0]);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&self.meta_len.to_le_bytes());
        out.extend_from_slice(&self.data_len.to_le_bytes());
        out.extend_from_slice(&self.born.to_le_bytes());
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.data_sum.to_le_bytes());
        // One checksum over header and meta: the meta is never used without the lengths that say where it ends.
        let sum = xxh64(meta, xxh64(&out[begin..], 0));
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(meta);
        out.extend_from_slice(data);
        let end = begin as u64 + padded((out.len() - begin) as u64);
        // Padded, so that the next record begins at a place that the index can name.
        out.resize(end as usize, 0);
    }

    /// Reads the header at the start of `bytes`. `None`: no record is here. The checksum is not verified yet, the
    /// lengths are within their bounds.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEADER || u32_at(bytes, 0) != RECORD_MAGIC {
            return None;
        }
        let record = Self {
            kind: RecordKind::of(bytes[4])?,
            flags: bytes[5],
            sequence: u64_at(bytes, 8),
            hash: u64_at(bytes, 16),
            meta_len: u32_at(bytes, 24),
            data_len: u32_at(bytes, 28),
            born: u64_at(bytes, 32),
            segment: u32_at(bytes, 40),
            data_sum: u64_at(bytes, 48),
        };
        // The checksum cannot be verified before the meta is read, and a damaged length must not allocate gigabytes for
        // that.
        let fits = record.meta_len as usize <= META_MAX && record.data_len as usize <= RUN_MAX;
        fits.then_some(record)
    }

    /// The meta, after header and meta were verified together; `bytes` must hold both.
    pub(crate) fn meta<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let meta = bytes.get(HEADER..HEADER + self.meta_len as usize)?;
        let sum = xxh64(meta, xxh64(&bytes[..56], 0));
        (sum == u64_at(bytes, 56)).then_some(meta)
    }

    /// Where the data stands in the record, without looking at it.
    pub(crate) fn data_range(&self) -> std::ops::Range<usize> {
        let begin = HEADER + self.meta_len as usize;
        begin..begin + self.data_len as usize
    }

    /// The data, verified.
    pub(crate) fn data<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let data = bytes.get(self.data_range())?;
        (xxh64(data, 0) == self.data_sum).then_some(data)
    }
}

/// Where a piece of a body stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its place in the body.
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) segment: u32,
    /// The byte in the segment's file.
    pub(crate) position: u64,
    pub(crate) sum: u64,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }
}

/// Where in the body the first of these extents end that follow each other without a gap, in the body and in the file:
/// what one `sendfile` can send.
pub(crate) fn run_end<'a>(mut extents: impl Iterator<Item = &'a Extent>) -> u64 {
    let Some(mut last) = extents.next() else {
        return 0;
    };
    for next in extents {
        let follows = next.segment == last.segment
            && next.offset == last.end()
            && next.position == last.position + u64::from(last.len);
        if !follows {
            break;
        }
        last = next;
    }
    last.end()
}

/// What an object record says: the meta part, decoded.
///
/// ```text
///  0 u64 stored_ms   8 u64 validated_ms   16 u64 fresh_until_ms   24 u64 version
/// 32 u64 length (all ones: unknown)       40 u8 kind   41 zeros
/// 48 u32 extents    52 u32 tags           56 u32 key's length     60 u32 head's length
/// 64 extents, 40 bytes each: u64 offset, u32 len, u32 segment, u64 position, u64 checksum, u64 zero
///    tags: u16 length, bytes; key; head
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectRecord {
    pub(crate) key: CacheKey,
    pub(crate) head: ObjectHead,
    /// Ascending, without overlap. A body in the record itself is not among them.
    pub(crate) extents: Vec<Extent>,
}

impl ObjectRecord {
    pub(crate) fn write(&self) -> Vec<u8> {
        let meta = &self.head.meta;
        let mut out = Vec::with_capacity(
            128 + self.extents.len() * EXTENT_BYTES + self.head.size() + self.key.text().len(),
        );
        let length = self.head.length.unwrap_or(UNKNOWN_LENGTH);
        for number in [
            meta.stored_ms,
            meta.validated_ms,
            meta.fresh_until_ms,
            meta.version,
            length,
            match meta.kind {
                ObjectKind::Object => 0,
                ObjectKind::Variants => 1,
            },
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for count in [
            self.extents.len(),
            self.head.tags.len(),
            self.key.text().len(),
            self.head.opaque.len(),
        ] {
            out.extend_from_slice(&(count as u32).to_le_bytes());
        }
        for extent in &self.extents {
            out.extend_from_slice(&extent.offset.to_le_bytes());
            out.extend_from_slice(&extent.len.to_le_bytes());
            out.extend_from_slice(&extent.segment.to_le_bytes());
            out.extend_from_slice(&extent.position.to_le_bytes());
            out.extend_from_slice(&extent.sum.to_le_bytes());
            out.extend_from_slice(&[0; 8]);
        }
        for tag in &self.head.tags {
            out.extend_from_slice(&(tag.len() as u16).to_le_bytes());
            out.extend_from_slice(tag);
        }
        out.extend_from_slice(self.key.text());
        out.extend_from_slice(&self.head.opaque);
        out
    }

    /// Reads a verified meta part. `None`: the numbers contradict each other.
    pub(crate) fn read(meta: &[u8]) -> Option<Self> {
        if meta.len() < 64 {
            return None;
        }
        // The checksum has been verified, but a store may have been written by another version: counts that go beyond
        // the bytes end in `None`, not in a panic or a large allocation.
        let [extents, tags, key, head] = [48, 52, 56, 60].map(|at| u32_at(meta, at) as usize);
        let mut rest = &meta[64..];
        let table = rest.split_off(..extents.checked_mul(EXTENT_BYTES)?)?;
        let extents = table.chunks_exact(EXTENT_BYTES).map(|bytes| Extent {
            offset: u64_at(bytes, 0),
            len: u32_at(bytes, 8),
            segment: u32_at(bytes, 12),
            position: u64_at(bytes, 16),
            sum: u64_at(bytes, 24),
        });
        let extents: Vec<Extent> = extents.collect();
        let mut names = Vec::new();
        for _ in 0..tags {
            let len = rest.split_off(..2)?;
            let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
            names.push(Bytes::copy_from_slice(rest.split_off(..len)?));
        }
        let key = CacheKey::new(rest.split_off(..key)?);
        let opaque = Bytes::copy_from_slice(rest.split_off(..head)?);
        let length = u64_at(meta, 32);
        let meta = ObjectMeta {
            stored_ms: u64_at(meta, 0),
            validated_ms: u64_at(meta, 8),
            fresh_until_ms: u64_at(meta, 16),
            version: u64_at(meta, 24),
            kind: if u64_at(meta, 40) == 1 {
                ObjectKind::Variants
            } else {
                ObjectKind::Object
            },
        };
        let head = ObjectHead {
            meta,
            opaque,
            tags: names,
            length: (length != UNKNOWN_LENGTH).then_some(length),
        };
        // Extents are searched by halves and joined with others: both rely on their order. And each is read into memory
        // as a whole, hence the bound.
        let ordered = extents.windows(2).all(|pair| {
            pair[0]
                .offset
                .checked_add(u64::from(pair[0].len))
                .is_some_and(|end| end <= pair[1].offset)
        });
        let bounded = extents
            .iter()
            .all(|extent| extent.len as usize <= EXTENT_MAX);
        (ordered && bounded).then_some(Self { key, head, extents })
    }
}

/// One record in a segment's table: 32 bytes, in the order of the fields, zeros last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableEntry {
    pub(crate) sequence: u64,
    pub(crate) hash: u64,
    /// In units of 64 bytes.
    pub(crate) at: u32,
    pub(crate) units: u32,
    pub(crate) kind: RecordKind,
    pub(crate) flags: u8,
}

/// The table as it stands in the meta of its record.
pub(crate) fn write_table(entries: &[TableEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(entries.len() * TABLE_ENTRY);
    for entry in entries {
        out.extend_from_slice(&entry.sequence.to_le_bytes());
        out.extend_from_slice(&entry.hash.to_le_bytes());
        out.extend_from_slice(&entry.at.to_le_bytes());
        out.extend_from_slice(&entry.units.to_le_bytes());
        out.extend_from_slice(&[entry.kind as u8, entry.flags, 0, 0, 0, 0, 0, 0]);
    }
    out
}

/// Reads a verified table. `None`: it has a kind of record that this version does not know.
pub(crate) fn read_table(meta: &[u8]) -> Option<Vec<TableEntry>> {
    let entries = meta.chunks_exact(TABLE_ENTRY).map(|bytes| {
        Some(TableEntry {
            sequence: u64_at(bytes, 0),
            hash: u64_at(bytes, 8),
            at: u32_at(bytes, 16),
            units: u32_at(bytes, 20),
            kind: RecordKind::of(bytes[24])?,
            flags: bytes[25],
        })
    });
    entries.collect()
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) seed: u64,
    pub(crate) number: u32,
    pub(crate) main: bool,
}

impl SegmentHeader {
    pub(crate) fn write(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        out[8..16].copy_from_slice(&self.seed.to_le_bytes());
        out[16..20].copy_from_slice(&self.number.to_le_bytes());
        out[20] = u8::from(self.main);
        close(out)
    }

    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let whole = is_whole(bytes, SEGMENT_MAGIC);
        whole.then(|| Self {
            seed: u64_at(bytes, 8),
            number: u32_at(bytes, 16),
            main: bytes[20] == 1,
        })
    }
}

/// The last 64 bytes of a full segment: `u64 magic, u64 position of the table, u32 number, zeros, u64 checksum`.
pub(crate) fn write_trailer(table_at: u64, number: u32) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&TRAILER_MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&table_at.to_le_bytes());
    out[16..20].copy_from_slice(&number.to_le_bytes());
    close(out)
}

/// The position of the table, from a trailer of segment `number`.
pub(crate) fn read_trailer(bytes: &[u8], number: u32) -> Option<u64> {
    let whole = is_whole(bytes, TRAILER_MAGIC) && u32_at(bytes, 16) == number;
    whole.then(|| u64_at(bytes, 8))
}

/// The file `store`: `u64 magic, u64 seed, zeros, u64 checksum`. The seed is drawn when the store is made. Hashes
/// depend on it, so that a client cannot compute keys that collide.
pub(crate) fn write_store(seed: u64) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[..8].copy_from_slice(&STORE_MAGIC.to_le_bytes());
    out[8..16].copy_from_slice(&seed.to_le_bytes());
    close(out)
}

pub(crate) fn read_store(bytes: &[u8]) -> Option<u64> {
    is_whole(bytes, STORE_MAGIC).then(|| u64_at(bytes, 8))
}

/// The format of a store that this version does not read: its number, if the bytes begin as all versions' do.
pub(crate) fn foreign_format(bytes: &[u8]) -> Option<char> {
    let name = STORE_MAGIC.to_le_bytes();
    let number = *bytes.strip_prefix(&name[..name.len() - 1])?.first()?;
    let number = char::from(number);
    (number.is_ascii_graphic() && number != STORE_FORMAT).then_some(number)
}

/// Puts the checksum of all before into the last eight bytes.
fn close(mut out: [u8; HEADER]) -> [u8; HEADER] {
    let sum = xxh64(&out[..56], 0);
    out[56..].copy_from_slice(&sum.to_le_bytes());
    out
}

fn is_whole(bytes: &[u8], magic: u64) -> bool {
    bytes.len() >= HEADER
        && u64_at(bytes, 0) == magic
        && u64_at(bytes, 56) == xxh64(&bytes[..56], 0)
}

pub(crate) const fn padded(len: u64) -> u64 {
    len.div_ceil(UNIT) * UNIT
}

/// The number at `at`; the caller has checked the length.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..]
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (ObjectRecord, Vec<u8>) {
        let description = ObjectRecord {
            key: CacheKey::new(b"key"),
            head: ObjectHead {
                meta: ObjectMeta {
                    stored_ms: 1,
                    validated_ms: 2,
                    fresh_until_ms: 3,
                    version: 4,
                    kind: ObjectKind::Variants,
                },
                opaque: Bytes::from_static(b"head"),
                tags: vec![Bytes::from_static(b"t1"), Bytes::new()],
                length: Some(9),
            },
            extents: vec![Extent {
                offset: 0,
                len: 9,
                segment: 1,
                position: 64,
                sum: 7,
            }],
        };
        let record = DiskRecord {
            kind: RecordKind::Object,
            flags: 0,
            sequence: 1,
            hash: 2,
            meta_len: 0,
            data_len: 0,
            born: 3,
            segment: 4,
            data_sum: 0,
        };
        let mut bytes = Vec::new();
        record.write(&description.write(), b"data", &mut bytes);
        (description, bytes)
    }

    fn parse(bytes: &[u8]) -> Option<(ObjectRecord, Vec<u8>)> {
        let record = DiskRecord::read(bytes)?;
        let description = ObjectRecord::read(record.meta(bytes)?)?;
        Some((description, record.data(bytes)?.to_vec()))
    }

    #[test]
    fn a_record_comes_back_and_no_flip_or_cut_does() {
        let (description, mut bytes) = sample();
        assert_eq!(parse(&bytes), Some((description.clone(), b"data".to_vec())));
        let used = DiskRecord::read(&bytes).unwrap().data_range().end;
        for at in 0..used {
            assert_eq!(parse(&bytes[..at]), None);
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert_eq!(parse(&bytes), None, "byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn no_meta_part_panics() {
        let (description, _) = sample();
        let meta = description.write();
        for at in 0..meta.len() {
            assert_eq!(ObjectRecord::read(&meta[..at]), None);
            for value in [0, 1, 0x7f, 0xff] {
                let mut meta = meta.clone();
                meta[at] = value;
                let _ = ObjectRecord::read(&meta);
            }
        }
    }

    #[test]
    fn small_structures_come_back() {
        let header = SegmentHeader {
            seed: 5,
            number: 6,
            main: true,
        };
        assert_eq!(SegmentHeader::read(&header.write()), Some(header));
        assert_eq!(read_trailer(&write_trailer(640, 3), 3), Some(640));
        assert_eq!(read_trailer(&write_trailer(640, 3), 4), None);
        assert_eq!(read_store(&write_store(11)), Some(11));
    }
}
