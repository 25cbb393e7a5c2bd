//! An object that was found in the store: its head, and its body read on demand.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use rt::file::{File, ReadCheck};
use rt::pool::{DeviceNumber, PoolHandle};

use crate::checksum::xxh64;
use crate::format::{DiskRecord, Extent, ObjectRecord, RecordKind, UNIT, run_end};
use crate::index::RecordLocation;
use crate::segment::Segment;
use crate::{CacheKey, ObjectHead};

/// An object. Clones share it. It stays readable although it is purged, replaced or evicted meanwhile, because it keeps
/// the files of its segments open.
#[derive(Clone)]
pub struct CachedObject(Arc<ObjectData>);

pub(crate) struct ObjectData {
    pub(crate) key: CacheKey,
    pub(crate) head: ObjectHead,
    pub(crate) born: u64,
    pub(crate) location: RecordLocation,
    /// Ascending, without overlap; with the body of the object's own record.
    pub(crate) extents: Vec<Extent>,
    pub(crate) body: Option<Bytes>,
    /// Every segment that the extents name, kept open.
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) pool: PoolHandle,
    /// The store that is told of damage, and the hash of the object there. Weak: an object in a slow response must not
    /// keep a store open.
    pub(crate) home: (Weak<dyn ObjectHome>, u64),
    /// What the caller decoded from the head.
    pub(crate) attached: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// What an object reports damage to: the store in which it was found.
pub(crate) trait ObjectHome: Send + Sync {
    /// Removes an object whose body is not what was written.
    fn remove_damaged(&self, hash: u64, location: RecordLocation, segment: &Segment);
}

/// What the index said at a lookup. If it says something else when a fill is to start, the caller has to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenLocation(pub(crate) Option<RecordLocation>);

impl SeenLocation {
    /// Nothing was there, or it was not looked up.
    pub const NOTHING: Self = Self(None);
}

/// Why a part of a body could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// The object has a hole there.
    Hole,
    /// What the disk gave is not what was written.
    Damaged,
    /// The read failed.
    Io(io::Error),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hole => f.write_str("this part of the object is not in the cache"),
            Self::Damaged => f.write_str("the cached object is damaged"),
            Self::Io(error) => write!(f, "reading from the cache failed: {error}"),
        }
    }
}

impl std::error::Error for ReadError {}

/// A part of a body as it stands in a file, for `sendfile`.
#[derive(Clone)]
pub struct SegmentRange {
    /// The segment's file.
    pub file: File,
    /// Where the part begins in it.
    pub offset: u64,
    /// Its length.
    pub len: u64,
}

impl CachedObject {
    pub(crate) fn new(shared: ObjectData) -> Self {
        Self(Arc::new(shared))
    }

    /// The key under which it was found.
    pub fn key(&self) -> &CacheKey {
        &self.0.key
    }

    /// Its metadata, the caller's head, its tags, its length.
    pub fn head(&self) -> &ObjectHead {
        &self.0.head
    }

    /// What the caller decodes from the head, once for as long as the object is in memory. Only one type can be
    /// attached; for another the result is made anew each time.
    pub fn attached<T: Any + Send + Sync>(&self, make: impl Fn(&ObjectHead) -> T) -> Arc<T> {
        let known = self.0.attached.get_or_init(|| Arc::new(make(&self.0.head)));
        let known = Arc::clone(known).downcast();
        known.unwrap_or_else(|_| Arc::new(make(&self.0.head)))
    }

    /// The sequence number at which its fill began; [`CacheKey::variant_of`] takes that of a marker.
    pub fn born(&self) -> u64 {
        self.0.born
    }

    /// What the index said when it was found, for [`crate::CacheStore::join_or_start_fill`].
    pub fn seen_location(&self) -> SeenLocation {
        SeenLocation(Some(self.0.location))
    }

    pub(crate) fn is_same(&self, other: &CachedObject) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The same object with another head.
    pub(crate) fn with_head(&self, head: ObjectHead, born: u64) -> CachedObject {
        let shared = &self.0;
        CachedObject::new(ObjectData {
            key: shared.key.clone(),
            head,
            born,
            location: shared.location,
            extents: shared.extents.clone(),
            body: shared.body.clone(),
            segments: shared.segments.clone(),
            pool: shared.pool.clone(),
            home: shared.home.clone(),
            // Empty: what is attached was decoded from the former head.
            attached: OnceLock::new(),
        })
    }

    pub(crate) fn location(&self) -> RecordLocation {
        self.0.location
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.0.extents
    }

    /// Verifies the extents of the body that were not verified since the start, on the pool. After that they may be
    /// sent without being read first. Only the first [`PROVEN_AT_ONCE`] bytes are waited for; the rest is verified
    /// while the object is in use already, and `damaged` is called if it is not as it was written.
    pub(crate) async fn verify_unproven(
        &self,
        device: DeviceNumber,
        damaged: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let mut open = self.unproven();
        if open.is_empty() {
            return Ok(());
        }
        let mut bytes = 0;
        let at_once = open.iter().take_while(|(_, extent)| {
            bytes += u64::from(extent.len);
            bytes <= PROVEN_AT_ONCE
        });
        let later = open.split_off(at_once.count());
        let pool = &self.0.pool;
        pool.run_on(device, move || prove_all(&open)).await?;
        // Not waited for. If it is damaged the object is removed, so that the next request fetches it.
        if !later.is_empty() {
            let prove = move || {
                if prove_all(&later).is_err() {
                    damaged();
                }
            };
            pool.submit(device, Box::new(prove));
        }
        Ok(())
    }

    /// The segments from which parts of the body are sent; none if the body is in memory.
    pub(crate) fn sent_segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        let in_memory = self.0.body.is_some();
        self.0.segments.iter().filter(move |_| !in_memory)
    }

    /// The extents of the body that were not verified since the start.
    fn unproven(&self) -> Vec<(Arc<Segment>, Extent)> {
        // A body in memory was verified together with its record.
        if self.0.body.is_some() {
            return Vec::new();
        }
        let found = self.0.extents.iter().filter_map(|extent| {
            let segment = self.segment(extent.segment)?;
            (!segment.is_proven(extent)).then(|| (Arc::clone(segment), *extent))
        });
        found.collect()
    }

    /// The length of the whole body: what the head said, else what is held.
    pub fn length(&self) -> u64 {
        let held = self.0.extents.last().map_or(0, Extent::end);
        self.0.head.length.unwrap_or(held)
    }

    /// The parts of the body that are in the store, ascending, joined where they touch.
    pub fn stored_ranges(&self) -> Vec<Range<u64>> {
        let mut held: Vec<Range<u64>> = Vec::new();
        for extent in &self.0.extents {
            match held.last_mut() {
                Some(last) if last.end == extent.offset => last.end = extent.end(),
                _ => held.push(extent.offset..extent.end()),
            }
        }
        held
    }

    /// Whether nothing of the body is missing.
    pub fn is_complete(&self) -> bool {
        self.first_hole(0).is_none()
    }

    /// The first part that is missing at or after `offset`.
    pub fn first_hole(&self, offset: u64) -> Option<Range<u64>> {
        let mut begin = offset;
        // Not of `stored_ranges`, which allocates: every hit asks.
        for extent in &self.0.extents {
            if extent.offset > begin {
                return Some(begin..extent.offset);
            }
            begin = begin.max(extent.end());
        }
        let length = self.length();
        (begin < length).then_some(begin..length)
    }

    /// The whole body, when it is in memory (small objects are).
    pub fn body_in_memory(&self) -> Option<&Bytes> {
        self.0.body.as_ref()
    }

    fn extent_at(&self, offset: u64) -> Option<&Extent> {
        // Extents ascend without overlap: the first one that ends behind the offset is the only candidate.
        let after = self
            .0
            .extents
            .partition_point(|extent| extent.end() <= offset);
        self.0
            .extents
            .get(after)
            .filter(|extent| extent.offset <= offset)
    }

    fn segment(&self, number: u32) -> Option<&Arc<Segment>> {
        self.0
            .segments
            .iter()
            .find(|segment| segment.number == number)
    }

    /// Reads from `offset` on, at most `max` bytes, at most to the end of an extent (256 KB); empty at the end of the
    /// body. What it gives is verified. From the page cache at once, else on the pool.
    pub async fn read(&self, offset: u64, max: usize) -> Result<Bytes, ReadError> {
        if offset >= self.length() {
            return Ok(Bytes::new());
        }
        if let Some(body) = &self.0.body {
            let begin = (offset as usize).min(body.len());
            return Ok(body.slice(begin..body.len().min(begin + max)));
        }
        let extent = *self.extent_at(offset).ok_or(ReadError::Hole)?;
        let segment = self.segment(extent.segment).ok_or(ReadError::Damaged)?;
        // The whole extent even for one byte of it, because that is what the checksum covers.
        let whole = read_extent(segment, &extent, &self.0.pool).await?;
        let begin = (offset - extent.offset) as usize;
        Ok(whole.slice(begin..whole.len().min(begin + max)))
    }

    /// Where the body from `offset` on stands in a file, as far as it is in one piece. `None`: a hole, or the end.
    pub fn file_range(&self, offset: u64) -> Option<SegmentRange> {
        let extent = self.extent_at(offset)?;
        let segment = self.segment(extent.segment)?;
        let skip = offset - extent.offset;
        let after = self
            .0
            .extents
            .partition_point(|other| other.offset < extent.offset);
        let end = run_end(self.0.extents[after..].iter());
        Some(SegmentRange {
            // What `sendfile` finds in memory has been verified. What has to come from the device once more is verified
            // again by the pool thread that reads it.
            file: segment.file.checked_by(self.0.clone()),
            offset: extent.position + skip,
            len: end - offset,
        })
    }
}

impl ReadCheck for ObjectData {
    /// Verifies what was read from the device in order to be sent. Only a place is given, not the file: extents of
    /// other segments at the same place are verified needlessly, but an object has few segments.
    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        let end = offset.saturating_add(len);
        let touched = self.extents.iter().filter(|extent| {
            extent.position < end && offset < extent.position + u64::from(extent.len)
        });
        for extent in touched {
            let segment = self
                .segments
                .iter()
                .find(|segment| segment.number == extent.segment);
            let Some(segment) = segment else { continue };
            if let Err(error) = segment.verify(extent) {
                // What damaged one extent may have damaged others of the file. The object goes, and the response is
                // cut: its client must not take the damaged bytes for the rest of the body.
                segment.distrust();
                if let Some(home) = self.home.0.upgrade() {
                    home.remove_damaged(self.home.1, self.location, segment);
                }
                return Err(error);
            }
        }
        Ok(())
    }
}

/// The most bytes that are verified before a response begins: what a slow disk reads in half a second.
const PROVEN_AT_ONCE: u64 = 64 * 1024 * 1024;

fn prove_all(extents: &[(Arc<Segment>, Extent)]) -> io::Result<()> {
    extents
        .iter()
        .try_for_each(|(segment, extent)| segment.verify_and_trust(extent))
}

/// An object record, decoded and verified.
pub(crate) struct ParsedObject {
    pub(crate) record: DiskRecord,
    pub(crate) description: ObjectRecord,
    /// With the body of the record itself.
    pub(crate) extents: Vec<Extent>,
    /// The whole body, when it is in the record or there is none.
    pub(crate) body: Option<Bytes>,
}

impl ParsedObject {
    /// Reads the record that stands at `location`. `None`: it is damaged, or another one.
    pub(crate) fn parse(bytes: Vec<u8>, location: RecordLocation, hash: u64) -> Option<Self> {
        let record = DiskRecord::read(&bytes)?;
        // After damage anything may stand here: another record, or a block of another segment.
        let same = record.kind == RecordKind::Object
            && record.hash == hash
            && record.segment == location.segment;
        if !same {
            return None;
        }
        let description = ObjectRecord::read(record.meta(&bytes)?)?;
        // Verified even where only the head is needed: whatever this returns counts as undamaged.
        record.data(&bytes)?;
        let mut extents = description.extents.clone();
        let mut body = (extents.is_empty() && description.head.length.is_none_or(|len| len == 0))
            .then(Bytes::new);
        let range = record.data_range();
        if !range.is_empty() {
            // A body is in the object record or in records of its own, never in both.
            if !extents.is_empty() {
                return None;
            }
            extents.push(Extent {
                offset: 0,
                len: record.data_len,
                segment: record.segment,
                position: u64::from(location.at) * UNIT + range.start as u64,
                sum: record.data_sum,
            });
            let whole = description
                .head
                .length
                .is_none_or(|len| len == range.len() as u64);
            body = whole.then(|| Bytes::from(bytes).slice(range));
        }
        Some(Self {
            record,
            description,
            extents,
            body,
        })
    }
}

/// Reads one extent and verifies it.
pub(crate) async fn read_extent(
    segment: &Segment,
    extent: &Extent,
    pool: &PoolHandle,
) -> Result<Bytes, ReadError> {
    let len = extent.len as usize;
    let read = segment
        .file
        .read_at(Vec::new(), extent.position, len, pool)
        .await;
    let bytes = read.map_err(ReadError::Io)?;
    // A short read is damage as well: the file has been cut.
    if bytes.len() != len || xxh64(&bytes, 0) != extent.sum {
        return Err(ReadError::Damaged);
    }
    Ok(bytes.into())
}

impl fmt::Debug for CachedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedObject")
            .field("key", &self.0.key)
            .field("length", &self.length())
            .finish()
    }
}
