//! What the parts of a store share: index, segments, tables of fills and purges, counters, the queue of the writer.
//! Lookups, fills, eviction and upkeep are built on it and are not known here, so that the files of the crate do not
//! import each other in a circle. The public interface is `store`.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rt::pool::DeviceNumber;

use base::sync::{Mutex, MutexGuard, RwLock};

use crate::checksum::xxh64;
use crate::disk_space::DiskSpace;
use crate::fill::Fill;
use crate::fill_table::FillTable;
use crate::index::{RecordLocation, StoreIndex};
use crate::memory::MemoryTier;
use crate::note_file::{NoteFile, StoreNote};
use crate::note_format::NotePair;
use crate::object::ObjectHome;
use crate::options::{StoreLimits, StoreOptions};
use crate::purge::{PurgeListener, PurgeTable};
use crate::segment::Segment;
use crate::store_log::{self, StoreLog, WriterJob};
use crate::{CacheKey, PurgeMode};

/// An open store.
pub(crate) struct StoreCore {
    /// As given when the store was opened. Its bounds may have changed since: those in force are in `limits`.
    pub(crate) options: Arc<StoreOptions>,
    pub(crate) limits: Mutex<StoreLimits>,
    /// Drawn when the store was made. Hashes of keys depend on it, so that a client cannot choose keys that collide.
    pub(crate) seed: u64,
    /// The disk of the directory: its jobs wait for other jobs of the same disk only.
    pub(crate) device: DeviceNumber,
    /// The file `store`. Its lock keeps other processes out for as long as it is open.
    pub(crate) lock: File,
    pub(crate) mended: usize,
    pub(crate) index: StoreIndex,
    pub(crate) memory: MemoryTier,
    purges: Mutex<PurgeTable>,
    /// What was born until then is not found: see `store_note`. 0: nothing is hidden.
    pub(crate) hidden: AtomicU64,
    pub(crate) note: Mutex<StoreNote>,
    pub(crate) note_file: Mutex<NoteFile>,
    /// Tells other processes of purges, if there are any.
    pub(crate) purge_listener: OnceLock<PurgeListener>,
    pub(crate) fills: FillTable,
    /// All segments by number, those that are being written included. One that is removed here is found no more;
    /// objects that are being read keep it open.
    pub(crate) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// The next number for a record, a purge or a fill. All three share one order, so that whether an object is older
    /// than a purge is a comparison of two numbers.
    sequence: AtomicU64,
    queue: Mutex<WriterQueue>,
    pub(crate) log: Mutex<StoreLog>,
    pub(crate) last_error: Mutex<Option<String>>,
    pub(crate) disk_space: DiskSpace,
    /// The path leads to another directory than the one that was opened, or to none.
    pub(crate) vanished: AtomicBool,
    pub(crate) upkeep: Mutex<UpkeepProgress>,
    pub(crate) written: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) reclaimed: AtomicU64,
    pub(crate) memory_hits: AtomicU64,
}

/// Where the next round of upkeep goes on.
#[derive(Default)]
pub(crate) struct UpkeepProgress {
    pub(crate) next_shard: usize,
    pub(crate) checkpoint_ms: u64,
    /// The counter of stored objects at the last checkpoint: if it has not moved, no new one is needed.
    pub(crate) stored: u64,
    /// The number of the next sample.
    pub(crate) sample: u64,
}

/// Work that waits for the writer.
#[derive(Default)]
pub(crate) struct WriterQueue {
    pub(crate) jobs: Vec<WriterJob>,
    /// A pool thread runs jobs, or will. Cleared under the lock and only when no job is left, so that no job stays
    /// without a thread.
    pub(crate) running: bool,
}

/// What `open_store.rs` found on the disk.
pub(crate) struct LoadedStore {
    pub(crate) seed: u64,
    pub(crate) lock: File,
    pub(crate) device: u64,
    pub(crate) index: StoreIndex,
    pub(crate) purges: PurgeTable,
    pub(crate) note: NotePair,
    pub(crate) segments: BTreeMap<u32, Arc<Segment>>,
    pub(crate) next_segment: u32,
    pub(crate) sequence: u64,
    /// Files that other users could open, and whose permissions were corrected.
    pub(crate) mended: usize,
}

impl Drop for StoreCore {
    fn drop(&mut self) {
        // The last reference may be dropped on a loop. To free the index of a million objects takes time, and closing
        // the segments of a directory that was removed frees their blocks on the disk: the pool does both.
        let index = std::mem::replace(&mut self.index, StoreIndex::new());
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
    pub(crate) fn new(options: StoreOptions, loaded: LoadedStore) -> Self {
        Self {
            memory: MemoryTier::new(options.memory),
            limits: Mutex::new(StoreLimits::of(&options)),
            options: Arc::new(options),
            seed: loaded.seed,
            device: DeviceNumber(loaded.device),
            mended: loaded.mended,
            lock: loaded.lock,
            index: loaded.index,
            purges: Mutex::new(loaded.purges),
            hidden: AtomicU64::new(0),
            note: Mutex::new(StoreNote::found(&loaded.note)),
            note_file: Mutex::new(NoteFile::found(loaded.note)),
            purge_listener: OnceLock::new(),
            fills: FillTable::default(),
            segments: RwLock::new(loaded.segments),
            sequence: AtomicU64::new(loaded.sequence),
            queue: Mutex::default(),
            log: Mutex::new(StoreLog::new(loaded.next_segment)),
            last_error: Mutex::default(),
            disk_space: DiskSpace::default(),
            vanished: AtomicBool::new(false),
            upkeep: Mutex::default(),
            written: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
            memory_hits: AtomicU64::new(0),
        }
    }

    pub(crate) fn limits(&self) -> StoreLimits {
        *self.limits.lock()
    }

    pub(crate) fn hash(&self, key: &CacheKey) -> u64 {
        xxh64(key.text(), self.seed)
    }

    /// Whether something that was born then is hidden.
    #[inline]
    pub(crate) fn is_hidden(&self, born: u64) -> bool {
        born <= self.hidden.load(Relaxed)
    }

    pub(crate) fn next_sequence(&self) -> u64 {
        // Relaxed: only the numbers matter, and one counter always has one order.
        self.sequence.fetch_add(1, Relaxed)
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence.load(Relaxed)
    }

    pub(crate) fn queue(&self) -> MutexGuard<'_, WriterQueue> {
        self.queue.lock()
    }

    pub(crate) fn purges(&self) -> MutexGuard<'_, PurgeTable> {
        self.purges.lock()
    }

    pub(crate) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments.read().get(&number).cloned()
    }

    /// Bytes of the segments that can be found. A removed one counts no more, though readers may keep it open.
    pub(crate) fn size(&self) -> u64 {
        let segments = self.segments.read();
        segments
            .values()
            .map(|segment| segment.len.load(Relaxed))
            .sum()
    }

    /// Queues a job for the writer, and gives the writer a thread of the pool if it has none.
    pub(crate) fn enqueue(self: &Arc<Self>, job: WriterJob) {
        let mut queue = self.queue();
        queue.jobs.push(job);
        // A writer at work takes the job with its next batch: there is never more than one.
        if std::mem::replace(&mut queue.running, true) {
            return;
        }
        drop(queue);
        let core = Arc::clone(self);
        self.options.pool.submit(
            self.device,
            Box::new(move || store_log::run_writer_jobs(&core)),
        );
    }

    pub(crate) fn report_error(&self, error: &str) {
        *self.last_error.lock() = Some(error.to_owned());
    }

    pub(crate) fn clear_error(&self) {
        *self.last_error.lock() = None;
    }

    /// Reports that another process has written to a segment.
    pub(crate) fn report_foreign_change(&self, segment: &Segment) {
        self.report_error(&format!(
            "\"{}\" was modified by another process: its contents are verified before use, and damaged objects are fetched again",
            segment.path.display()
        ));
    }

    /// Whether and how a purge has hit a fill since it began. If so, requests that come now must not get what it
    /// brings; those that follow it asked before the purge.
    pub(crate) fn purge_of(&self, fill: &Fill) -> Option<PurgeMode> {
        // Copied, so that the lock of the fill is not held while that of the purges is taken.
        let (head, softened) = {
            let state = fill.state();
            (state.head.clone(), state.softened)
        };
        // Before the head its tags are unknown, and only the key can be judged. This is asked again at the commit.
        let tags = head.as_ref().map_or(&[][..], |head| &head.tags);
        let key = fill.storage_key().0;
        let verdict = self.purges().purge_mode(fill.born, key.text(), tags);
        verdict.or(softened.then_some(PurgeMode::Soft))
    }

    /// Whether a fill has ended, and its commit will be something else than a fresh object with its whole body.
    pub(crate) fn is_committing(&self, fill: &Fill) -> bool {
        let end = fill.state().end.clone();
        end.is_some_and(|end| {
            end.is_err() || !fill.is_whole() || self.purge_of(fill) == Some(PurgeMode::Soft)
        })
    }
}

impl ObjectHome for StoreCore {
    /// Removes an object whose body is not what was written.
    fn remove_damaged(&self, hash: u64, location: RecordLocation, segment: &Segment) {
        self.report_error(&format!(
            "an object in \"{}\" refers to damaged data",
            segment.path.display()
        ));
        // By its place: an object that has replaced it meanwhile is not the damaged one.
        self.index.remove_at(hash, location);
    }
}
