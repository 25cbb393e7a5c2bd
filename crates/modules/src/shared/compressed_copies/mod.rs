//! Compressed once: what `gzip`, `brotli` and `zstd` made of a file or of a stored response, kept in memory.
//!
//! ```text
//! compression      a response is to be compressed: is there a copy, or one being made?
//!   copy_source    what the response is a copy of, and how it is read again
//!   copy_fill      a copy that is being made; clients follow it, the first one too
//!   copy_making    makes it: a small one at once, a larger one by a pool
//!   stored_copy    copies beside the objects of a cache, on disk
//! ```
//!
//! A copy belongs to one version of its source: a file that is replaced or written gets another [`CopyKey`], and what was
//! made of the former version is never asked for again. Content that any filter has changed has no identity
//! ([`http::content_identity`]), so that a key needs to name no filters.
//!
//! All loops share one table. Everything that it holds counts against `compressed_copies_memory`: copies, those that have
//! left the table and are still being sent to slow clients, and the room of those that are being made. When it is used
//! up, a response is compressed for its client alone, as it would be without all this.

mod copy_fill;
mod copy_making;
mod copy_source;
mod stored_copy;

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use base::sync::Mutex;
use bytes::Bytes;
use cache::s3_fifo::S3Fifo;
use host::engine::ZoneRegistry;
use http::content_identity::FileIdentity;

pub(crate) use copy_fill::{CopyFill, FollowedCopy};
pub(crate) use copy_making::{SharedCopy, find_copy};

/// `compressed_copies` and `compressed_copies_upgrade` of a location.
#[derive(Clone, Default)]
pub(crate) struct CopiesConf {
    pub(crate) on: bool,
    pub(crate) upgrade: Option<CopyUpgrade>,
}

/// When and how well a copy in use is compressed again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyUpgrade {
    /// After this many uses.
    pub(crate) hits: u32,
    /// The levels for [`UPGRADE_CODINGS`].
    pub(crate) levels: [i64; 3],
}

/// The codings in the order of [`CopyUpgrade::levels`].
pub(crate) const UPGRADE_CODINGS: [&str; 3] = ["gzip", "br", "zstd"];

/// `compressed_copies_memory`, and the copies of the process once the configuration is in use.
#[derive(Clone, Default)]
pub(crate) struct CopiesMemory {
    pub(crate) limit: u64,
    copies: Arc<OnceLock<Arc<CompressedCopies>>>,
}

impl CopiesMemory {
    /// Finds the copies that an earlier configuration left, or begins with none. Another limit begins with none as well.
    pub(crate) fn commit(&self, zones: &ZoneRegistry) {
        if self.limit == 0 {
            return;
        }
        let known = zones.get::<CompressedCopies>(ZONE);
        let copies = known
            .filter(|copies| copies.limit == self.limit)
            .unwrap_or_else(|| Arc::new(CompressedCopies::new(self.limit)));
        zones.replace(ZONE, Arc::clone(&copies));
        // The configuration is committed to once.
        let _first = self.copies.set(copies);
    }

    /// The copies; `None` without memory for them, or while a configuration is only tested.
    pub(crate) fn copies(&self) -> Option<&Arc<CompressedCopies>> {
        self.copies.get()
    }
}

const ZONE: &str = "compressed copies";

/// A content larger than this part of the memory is not kept: one copy must not displace all others.
const LARGEST_PART: u64 = 4;

/// How many copies may be made at a time. Each has an encoder, of a quarter of a megabyte and more.
const MOST_FILLS: usize = 64;

/// What a copy takes besides its bytes: its struct, its places in a map and a queue.
const OVERHEAD: usize = 512;

/// What a copy is found by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CopyKey {
    pub(crate) content: ContentVersion,
    pub(crate) coding: &'static [u8],
    pub(crate) level: i64,
    /// `brotli_window` and whatever else changes what a coding makes.
    pub(crate) variant: u32,
}

/// A version of a content. Two versions of one file are as different as two files: nothing is ever updated here, what is no
/// longer asked for leaves by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ContentVersion {
    File(FileIdentity),
    /// [`cache::CacheStore::identity`].
    Object([u64; 3]),
}

/// A complete copy.
pub(crate) struct CompressedCopy {
    pub(crate) bytes: Bytes,
    /// The length of the content that it was made of.
    pub(crate) original: u64,
    uses: AtomicU32,
    /// It was compressed at the level of `compressed_copies_upgrade`, or cannot become smaller.
    is_best: AtomicBool,
    /// What the upgrade has saved, in bytes a use.
    saves: u64,
    /// It is in the store of its object, or on its way there.
    is_stored: AtomicBool,
}

/// Bytes that count against the limit for as long as this exists.
struct HeldBytes {
    total: Arc<AtomicU64>,
    bytes: u64,
}

impl HeldBytes {
    /// Counts as much of it as it has turned out to need. The new amount is added before the old one is taken away: for a
    /// moment too much is counted, and never too little.
    fn resize(&mut self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
        self.total.fetch_sub(self.bytes, Relaxed);
        self.bytes = bytes;
    }
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// The memory of a copy. Every slice of it, in however slow a response, keeps it counted.
struct CountedBytes {
    bytes: Vec<u8>,
    _held: HeldBytes,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl CompressedCopy {
    fn new(bytes: Vec<u8>, original: u64, held: HeldBytes) -> CompressedCopy {
        let mut held = held;
        held.resize(bytes.len() as u64);
        let counted = CountedBytes { bytes, _held: held };
        CompressedCopy {
            bytes: Bytes::from_owner(counted),
            original,
            uses: AtomicU32::new(0),
            is_best: AtomicBool::new(false),
            saves: 0,
            is_stored: AtomicBool::new(false),
        }
    }
}

/// What has happened to copies since the server began.
#[derive(Default)]
pub(crate) struct CopyCounters {
    /// Responses that were copies.
    pub(crate) hits: AtomicU64,
    /// Responses that followed a copy which was being made.
    pub(crate) followed: AtomicU64,
    /// Copies made: one compression each.
    pub(crate) made: AtomicU64,
    /// Copies that were read from a cache's store.
    pub(crate) loaded: AtomicU64,
    /// Copies that were written to a cache's store.
    pub(crate) stored: AtomicU64,
    /// Copies that were not finished: the source changed or could not be read.
    pub(crate) failed: AtomicU64,
    /// Copies that left for want of memory.
    pub(crate) evicted: AtomicU64,
    /// Responses that were compressed for one client, because there was no memory.
    pub(crate) refused: AtomicU64,
    /// Copies that were made again at a better level.
    pub(crate) upgraded: AtomicU64,
    /// Bytes that were not sent because of that.
    pub(crate) saved: AtomicU64,
}

impl CopyCounters {
    /// All of them, by the names that pages give them.
    pub(crate) fn all(&self) -> [(&'static str, u64); 10] {
        [
            ("hits", &self.hits),
            ("followed", &self.followed),
            ("made", &self.made),
            ("loaded", &self.loaded),
            ("stored", &self.stored),
            ("failed", &self.failed),
            ("evicted", &self.evicted),
            ("refused", &self.refused),
            ("upgraded", &self.upgraded),
            ("saved_bytes", &self.saved),
        ]
        .map(|(name, counter)| (name, counter.load(Relaxed)))
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// The copies of the process.
pub(crate) struct CompressedCopies {
    limit: u64,
    held: Arc<AtomicU64>,
    table: Mutex<CopyTable>,
    /// One upgrade at a time: it is done for later, and must not delay what is needed now.
    is_upgrading: AtomicBool,
    pub(crate) counters: CopyCounters,
}

/// Both maps are behind one lock, because a key moves from one to the other and must never be in neither.
struct CopyTable {
    kept: S3Fifo<CopyKey, Arc<CompressedCopy>>,
    fills: HashMap<CopyKey, Arc<CopyFill>>,
}

/// What there is for a key.
pub(crate) enum FoundCopy {
    /// A complete copy.
    Kept(Arc<CompressedCopy>),
    /// One that is being made.
    Filling(Arc<CopyFill>),
    /// None: the caller makes it.
    Started(StartedFill),
    /// None, and no memory to make one.
    Refused,
}

/// A state for a status page.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CopyTotals {
    pub(crate) copies: usize,
    pub(crate) fills: usize,
    pub(crate) held: u64,
    pub(crate) limit: u64,
}

impl CompressedCopies {
    fn new(limit: u64) -> CompressedCopies {
        CompressedCopies {
            limit,
            held: Arc::default(),
            table: Mutex::new(CopyTable {
                kept: S3Fifo::new(usize::try_from(limit).unwrap_or(usize::MAX)),
                fills: HashMap::new(),
            }),
            is_upgrading: AtomicBool::new(false),
            counters: CopyCounters::default(),
        }
    }

    /// The copies of the process, for a page that belongs to no configuration.
    pub(crate) fn of(zones: &ZoneRegistry) -> Option<Arc<CompressedCopies>> {
        zones.get::<CompressedCopies>(ZONE)
    }

    /// The state now.
    pub(crate) fn totals(&self) -> CopyTotals {
        let table = self.table.lock();
        CopyTotals {
            copies: table.kept.len(),
            fills: table.fills.len(),
            held: self.held.load(Relaxed),
            limit: self.limit,
        }
    }

    /// The complete copy, if there is one.
    pub(crate) fn kept(&self, key: &CopyKey) -> Option<Arc<CompressedCopy>> {
        self.table.lock().kept.get(key).cloned()
    }

    /// The copy, complete or being made, or the right to make one of a content of this length. One lock, so that of all
    /// clients that ask at the same moment exactly one makes it.
    pub(crate) fn find_or_start(self: &Arc<Self>, key: &CopyKey, length: u64) -> FoundCopy {
        let mut table = self.table.lock();
        if let Some(copy) = table.kept.get(key) {
            return FoundCopy::Kept(Arc::clone(copy));
        }
        if let Some(fill) = table.fills.get(key) {
            return FoundCopy::Filling(Arc::clone(fill));
        }
        let held = match table.fills.len() < MOST_FILLS {
            true => self.reserve(&mut table, length),
            false => None,
        };
        let Some(held) = held else {
            return FoundCopy::Refused;
        };
        let fill = Arc::new(CopyFill::default());
        table.fills.insert(key.clone(), Arc::clone(&fill));
        FoundCopy::Started(StartedFill {
            copies: Arc::clone(self),
            key: key.clone(),
            fill,
            held: Some(held),
        })
    }

    /// Room for what is made of a content of this length, which is hardly ever longer. Copies have to leave for it, but no
    /// more than help: those that are being sent to slow clients stay in memory.
    fn reserve(&self, table: &mut CopyTable, length: u64) -> Option<HeldBytes> {
        let bytes = length + OVERHEAD as u64;
        if bytes > self.limit / LARGEST_PART {
            return None;
        }
        let (kept_before, enough) = (table.kept.used() as u64, bytes.saturating_mul(2));
        while self.held.load(Relaxed) + bytes > self.limit {
            let left = kept_before - table.kept.used() as u64;
            if left > enough || !table.kept.evict() {
                return None;
            }
            count(&self.counters.evicted);
        }
        self.held.fetch_add(bytes, Relaxed);
        Some(HeldBytes {
            total: Arc::clone(&self.held),
            bytes,
        })
    }

    /// Room for making a copy that is there already a second time.
    fn reserve_again(&self, length: u64) -> Option<HeldBytes> {
        self.reserve(&mut self.table.lock(), length)
    }

    /// Puts an upgraded copy in the place of the one that it was made from, unless that has left.
    fn replace(&self, key: &CopyKey, former: &Arc<CompressedCopy>, copy: CompressedCopy) {
        let mut table = self.table.lock();
        let is_there = table
            .kept
            .get(key)
            .is_some_and(|kept| Arc::ptr_eq(kept, former));
        if is_there {
            self.insert(&mut table, key.clone(), Arc::new(copy));
        }
    }

    fn insert(&self, table: &mut CopyTable, key: CopyKey, copy: Arc<CompressedCopy>) {
        let weight = copy.bytes.len() + OVERHEAD;
        let before = table.kept.len();
        table.kept.insert(key, copy, weight);
        let evicted = (before + 1).saturating_sub(table.kept.len());
        self.counters.evicted.fetch_add(evicted as u64, Relaxed);
    }
}

/// The right and the duty to make a copy. Dropped without an end, it has failed.
pub(crate) struct StartedFill {
    copies: Arc<CompressedCopies>,
    key: CopyKey,
    fill: Arc<CopyFill>,
    held: Option<HeldBytes>,
}

/// Whether a copy outlives the responses that follow it. Those that do follow it get it in either case: their heads have
/// left, and what they get is what they would have got without copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyFate {
    /// It is what any later client gets.
    Kept,
    /// The source changed while it was read: what was made of it may be a mixture.
    Dropped,
}

impl StartedFill {
    /// The fill, for the client that asked first.
    pub(crate) fn fill(&self) -> &Arc<CopyFill> {
        &self.fill
    }

    /// Ends it with the whole copy. In this order: the copy is in the table before the fill leaves it, both under one lock,
    /// so that no client finds neither and compresses once more; and followers are woken last, when whatever they ask for
    /// next is there.
    fn complete(mut self, bytes: Vec<u8>, original: u64, fate: CopyFate) -> Arc<CompressedCopy> {
        // `held` is there until this, which consumes the fill.
        let held = self.held.take().unwrap_or_else(|| HeldBytes {
            total: Arc::clone(&self.copies.held),
            bytes: 0,
        });
        let copy = Arc::new(CompressedCopy::new(bytes, original, held));
        {
            let mut table = self.copies.table.lock();
            table.fills.remove(&self.key);
            if fate == CopyFate::Kept {
                let key = self.key.clone();
                self.copies.insert(&mut table, key, Arc::clone(&copy));
            }
        }
        self.fill.end(Ok(Arc::clone(&copy)));
        copy
    }
}

impl Drop for StartedFill {
    /// A task that ended early (an error, a panic in the pool, the end of its loop) must leave nothing that others wait for.
    /// Those that follow are cut off, like the clients of a file that breaks off; the next request starts anew.
    fn drop(&mut self) {
        // Taken by `complete`.
        if self.held.take().is_some() {
            self.copies.table.lock().fills.remove(&self.key);
            count(&self.copies.counters.failed);
            self.fill.fail();
        }
    }
}
