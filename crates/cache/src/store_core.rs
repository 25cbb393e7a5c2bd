//! The core of a store: its index, segments, tables, counters and the queue of its writer. All that works on a store
//! stands above it; the store's interface is `store`.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use rt::pool::Device;

use base::sync::{Mutex, MutexGuard, RwLock};

use crate::checksum::xxh64;
use crate::fill::Fill;
use crate::fill_table::FillTable;
use crate::index::{Index, Location};
use crate::log::{self, Job, Log};
use crate::memory::MemoryTier;
use crate::object::ObjectHome;
use crate::options::{Limits, Options};
use crate::purge::Purges;
use crate::room::Room;
use crate::segment::Segment;
use crate::{Key, Mode};

/// What all parts of a store share. It knows no lookup, no fill's content, no policy: those stand above it.
pub(crate) struct StoreCore {
    /// As it was opened; the bounds that count are in `limits`.
    pub(crate) options: Arc<Options>,
    pub(crate) limits: Mutex<Limits>,
    pub(crate) seed: u64,
    pub(crate) device: Device,
    /// Locked for this process while it is open.
    pub(crate) lock: File,
    pub(crate) mended: usize,
    pub(crate) index: Index,
    pub(crate) memory: MemoryTier,
    purges: Mutex<Purges>,
    pub(crate) fills: FillTable,
    pub(crate) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// The next number for a record, a purge or a fill: one order for all three.
    sequence: AtomicU64,
    queue: Mutex<Queue>,
    pub(crate) log: Mutex<Log>,
    pub(crate) trouble: Mutex<Option<String>>,
    pub(crate) room: Room,
    /// The directory is not the one that was opened any more.
    pub(crate) vanished: AtomicBool,
    pub(crate) upkeep: Mutex<UpkeepProgress>,
    pub(crate) written: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) reclaimed: AtomicU64,
    pub(crate) memory_hits: AtomicU64,
}

/// Where upkeep is.
#[derive(Default)]
pub(crate) struct UpkeepProgress {
    pub(crate) next_shard: usize,
    pub(crate) checkpoint_ms: u64,
    /// How much was stored at the last checkpoint.
    pub(crate) stored: u64,
    /// The number of the next sample.
    pub(crate) sample: u64,
}

/// What the writer has to do.
#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) jobs: Vec<Job>,
    pub(crate) running: bool,
}

/// What `load.rs` found on the disk.
pub(crate) struct Loaded {
    pub(crate) seed: u64,
    pub(crate) lock: File,
    pub(crate) device: u64,
    pub(crate) index: Index,
    pub(crate) purges: Purges,
    pub(crate) segments: BTreeMap<u32, Arc<Segment>>,
    pub(crate) next_segment: u32,
    pub(crate) sequence: u64,
    /// Files that were open to others, and are not now.
    pub(crate) mended: usize,
}

impl Drop for StoreCore {
    fn drop(&mut self) {
        // It may end on a loop, and its directory may have been removed: then each close frees the blocks of a file.
        let index = std::mem::replace(&mut self.index, Index::new());
        let memory = std::mem::replace(&mut self.memory, MemoryTier::new(0));
        let segments = self.segments.get_mut();
        let segments = std::mem::take(segments);
        let pool = self.options.pool.clone();
        let end = move || {
            for segment in segments.values() {
                segment.file.close_on(&pool);
            }
            drop((index, memory, segments));
        };
        self.options.pool.submit(self.device, Box::new(end));
    }
}

impl StoreCore {
    pub(crate) fn new(options: Options, loaded: Loaded) -> Self {
        Self {
            memory: MemoryTier::new(options.memory),
            limits: Mutex::new(Limits::of(&options)),
            options: Arc::new(options),
            seed: loaded.seed,
            device: Device(loaded.device),
            mended: loaded.mended,
            lock: loaded.lock,
            index: loaded.index,
            purges: Mutex::new(loaded.purges),
            fills: FillTable::default(),
            segments: RwLock::new(loaded.segments),
            sequence: AtomicU64::new(loaded.sequence),
            queue: Mutex::default(),
            log: Mutex::new(Log::new(loaded.next_segment)),
            trouble: Mutex::default(),
            room: Room::default(),
            vanished: AtomicBool::new(false),
            upkeep: Mutex::default(),
            written: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
            memory_hits: AtomicU64::new(0),
        }
    }

    pub(crate) fn limits(&self) -> Limits {
        *self.limits.lock()
    }

    pub(crate) fn hash(&self, key: &Key) -> u64 {
        xxh64(key.text(), self.seed)
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Relaxed)
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Relaxed)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    pub(crate) fn purges(&self) -> MutexGuard<'_, Purges> {
        self.purges.lock()
    }

    pub(crate) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().get(&number).cloned()
    }

    pub(crate) fn size(&self) -> u64 {
        let segments = self.segments.read();
        segments
            .values()
            .map(|segment| segment.len.load(Relaxed))
            .sum()
    }

    /// Hands the writer a job, and a pool thread to the writer if it has none.
    pub(crate) fn enqueue(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue();
        queue.jobs.push(job);
        if std::mem::replace(&mut queue.running, true) {
            return;
        }
        drop(queue);
        let core = Arc::clone(self);
        self.options
            .pool
            .submit(self.device, Box::new(move || log::drain(&core)));
    }

    pub(crate) fn report(&self, trouble: &str) {
        *self.trouble.lock() = Some(trouble.to_owned());
    }

    pub(crate) fn clear_trouble(&self) {
        *self.trouble.lock() = None;
    }

    /// Reports that another process has written to a segment.
    pub(crate) fn suspect(&self, segment: &Segment) {
        self.report(&format!(
            "\"{}\" was modified by another process: its contents are verified before use, and damaged objects are fetched again",
            segment.path.display()
        ));
    }

    /// How what a fill brings was purged since it began: requests that come now must not get it.
    pub(crate) fn purge_of(&self, fill: &Fill) -> Option<Mode> {
        let (head, softened) = {
            let state = fill.state();
            (state.head.clone(), state.softened)
        };
        let tags = head.as_ref().map_or(&[][..], |head| &head.tags);
        let key = fill.target().0;
        let verdict = self.purges().verdict(fill.born, key.text(), tags);
        verdict.or(softened.then_some(Mode::Soft))
    }

    /// Whether a fill has ended and will be something else than fresh and whole when it is committed.
    pub(crate) fn is_settling(&self, fill: &Fill) -> bool {
        let end = fill.state().end.clone();
        end.is_some_and(|end| {
            end.is_err() || !fill.is_whole() || self.purge_of(fill) == Some(Mode::Soft)
        })
    }
}

impl ObjectHome for StoreCore {
    /// Lets an object go whose body is not what was written.
    fn lose(&self, hash: u64, location: Location, segment: &Segment) {
        self.report(&format!(
            "an object in \"{}\" refers to damaged data",
            segment.path.display()
        ));
        self.index.remove_at(hash, location);
    }
}
