//! The interface of a store: fills, purges, upkeep and its end; lookups are in `lookup`. Any thread may call. What
//! waits for the disk runs as a job on the device's pool, so that a loop never blocks here; opening a store is the
//! exception.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rt::sync::remote_oneshot;

use crate::checksum::xxh64;
use crate::fill::{FeedMark, Fill, FillCoverage, FillFeed};
use crate::fill_follower::FillFollower;
use crate::fill_table::FillMaps;
use crate::fill_writer::FillWriter;
use crate::format::{ObjectRecord, RecordKind};
use crate::object::{CachedObject, SeenLocation};
use crate::options::{StoreLimits, StoreOpenError, StoreOptions};
use crate::purge::{self, PurgeScope};
use crate::reclaim::{ObjectCommit, append_tombstone, commit_object, new_record};
use crate::store_core::StoreCore;
use crate::store_log::StoreLog;
use crate::upkeep;
use crate::{CacheKey, ObjectHead, ObjectMeta, PurgeMode, PurgeRequest};

/// How [`CacheStore::join_or_start_fill`] answers a miss.
pub enum FillStart {
    /// No fill was under way. The caller fetches and writes into the first; the client that asked reads from the
    /// second.
    Started(FillWriter, FillFollower),
    /// Another fetch brings the same: follow it.
    Joined(FillFollower),
    /// No fill: responses under this key are known to be for one client each, so each client fetches for itself.
    HitForMiss {
        /// When that is forgotten, in milliseconds since the epoch.
        until_ms: u64,
    },
    /// No fill: the index has changed since the lookup, so that the object may be there by now. Look again.
    Changed,
}

/// What a request that joins or starts a fill wants.
pub struct WantedFill<'a> {
    /// Under which key.
    pub key: &'a CacheKey,
    /// How much of the body.
    pub coverage: FillCoverage,
    /// What the lookup of the caller found.
    pub seen: SeenLocation,
    /// The feed of a fill that is started.
    pub feed: FillFeed,
    /// The birth of a fill that is not joined ([`FillFollower::born`]): what it brings may not answer this request any more. A
    /// fill that is started takes its place.
    pub instead_of: Option<u64>,
}

/// What is known of the fills of a key.
#[derive(Default)]
pub struct FillState {
    /// Responses under the key are known to be for one client each.
    pub is_hit_for_miss: bool,
    /// The fill of the whole body: under way, or ended and not yet committed.
    pub running: Option<FillFollower>,
}

/// The state of a store at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Objects in the index.
    pub objects: usize,
    /// Bytes of segments.
    pub size: u64,
    /// Number of segments.
    pub segments: usize,
    /// Bytes of the index in memory.
    pub index_memory: usize,
    /// Bytes in the memory tier.
    pub memory: usize,
    /// Lookups answered from the memory tier.
    pub memory_hits: u64,
    /// Objects stored since the start.
    pub stored: u64,
    /// Bytes written since the start.
    pub written: u64,
    /// Objects evicted for want of space since the start.
    pub evicted: u64,
    /// Segments reclaimed since the start.
    pub reclaimed: u64,
    /// Fills under way.
    pub fills: usize,
    /// Files that other users could open at the start, and whose permissions were corrected.
    pub mended: usize,
}

/// A store. Clones share it.
#[derive(Clone)]
pub struct CacheStore(pub(crate) Arc<StoreCore>);

impl CacheStore {
    /// Opens a store, and makes it if it is not there. **Blocks**: for start-up, or on a pool's thread.
    pub fn open(options: StoreOptions, now_ms: u64) -> Result<Self, StoreOpenError> {
        let loaded = crate::open_store::load_store(&options, now_ms)?;
        Ok(Self(Arc::new(StoreCore::new(options, loaded))))
    }

    /// The coverage that a `Range` field asks for. It is hashed, because which part of the body it means is known only
    /// from the head of the response.
    pub fn asked_in(&self, words: &[u8]) -> FillCoverage {
        FillCoverage::Asked(xxh64(words, self.0.seed))
    }

    /// Joins the fill that is under way for this coverage of the key, or starts one. Both happen under one lock, so
    /// that of all clients that miss at the same moment exactly one fetches. `seen` is what the lookup of the caller
    /// found.
    pub fn join_or_start_fill(
        &self,
        key: &CacheKey,
        coverage: FillCoverage,
        seen: SeenLocation,
        now_ms: u64,
    ) -> FillStart {
        let wanted = WantedFill {
            key,
            coverage,
            seen,
            feed: FillFeed::Origin,
            instead_of: None,
        };
        self.join_or_start(wanted, now_ms)
    }

    /// As [`CacheStore::join_or_start_fill`], with all that a request may want.
    pub fn join_or_start(&self, wanted: WantedFill<'_>, now_ms: u64) -> FillStart {
        let WantedFill {
            key,
            coverage,
            seen,
            feed,
            instead_of,
        } = wanted;
        let core = &self.0;
        let hash = core.hash(key);
        let mut tables = core.fills.lock();
        // Asked first: a client that joined a private response would wait for its head only to be released.
        if let Some(until_ms) = tables.hit_for_miss_until(hash, now_ms) {
            return FillStart::HitForMiss { until_ms };
        }
        if let Some(follower) = self.running(&tables, key, hash, coverage)
            && instead_of != Some(follower.born())
        {
            return FillStart::Joined(follower);
        }
        // A fill leaves the table only after its object is in the index. If the index differs from what the lookup saw,
        // a fill has ended in between: the caller looks again, or it would fetch what is stored already.
        let present = core.index.get(hash, None).map(|entry| entry.location());
        if present.is_some() && present != seen.0 {
            return FillStart::Changed;
        }
        // Numbered before the fetch begins: a purge that comes later has a higher number, and hits what is fetched.
        let since = (core.next_sequence(), now_ms);
        let feed = FeedMark::new(feed);
        let writer = FillWriter::start(core, (key, hash), coverage, since, feed);
        // The first cursor is taken before others can find the fill: the first client is the one that keeps a response
        // that turns out to be private.
        let follower = FillFollower::for_first_client(writer.fill());
        tables.put_running(hash, writer.fill());
        FillStart::Started(writer, follower)
    }

    /// A cursor over the running fill of the key with this coverage. None if a purge has hit it since it began.
    fn running(
        &self,
        fills: &FillMaps,
        key: &CacheKey,
        hash: u64,
        coverage: FillCoverage,
    ) -> Option<FillFollower> {
        let fill = fills.running.get(&(hash, coverage))?;
        // The table goes by hashes, which two keys may share. Of a purged fill, only clients that asked before the
        // purge may have the rest.
        let is_it =
            fill.has_key(key) && !self.0.is_hidden(fill.born) && self.0.purge_of(fill).is_none();
        is_it.then(|| FillFollower::join_fill(fill))?
    }

    /// Changes `max_size`, `max_objects`, `min_free` and `inactive_ms` to those of `options`. If they have become
    /// smaller, the next upkeep evicts.
    pub fn set_limits(&self, options: &StoreOptions) {
        let mut limits = self.0.limits.lock();
        *limits = StoreLimits::of(options);
    }

    /// Starts a fill of the whole body, although an object is stored or a fill is under way. Later requests join this
    /// one.
    pub fn start_fill(&self, key: &CacheKey, now_ms: u64) -> (FillWriter, FillFollower) {
        self.start_fed(FillFeed::Origin, key, now_ms)
    }

    /// As [`CacheStore::start_fill`], with this feed.
    pub fn start_fed(
        &self,
        feed: FillFeed,
        key: &CacheKey,
        now_ms: u64,
    ) -> (FillWriter, FillFollower) {
        let core = &self.0;
        let hash = core.hash(key);
        let since = (core.next_sequence(), now_ms);
        let feed = FeedMark::new(feed);
        let writer = FillWriter::start(core, (key, hash), FillCoverage::Whole, since, feed);
        let follower = FillFollower::for_first_client(writer.fill());
        // A fill that is under way loses its entry to this one. It goes on for its followers, and at its end it leaves
        // this entry alone, because entries are compared before they are removed.
        core.fills.lock().put_running(hash, writer.fill());
        (writer, follower)
    }

    /// What is known of the fills of the key; starts none.
    pub fn fill_state(&self, key: &CacheKey, now_ms: u64) -> FillState {
        let hash = self.0.hash(key);
        let mut tables = self.0.fills.lock();
        FillState {
            is_hit_for_miss: tables.hit_for_miss_until(hash, now_ms).is_some(),
            running: self.running(&tables, key, hash, FillCoverage::Whole),
        }
    }

    /// The running fill of the key with this coverage.
    pub fn running_fill(&self, key: &CacheKey, coverage: FillCoverage) -> Option<FillFollower> {
        let hash = self.0.hash(key);
        self.running(&self.0.fills.lock(), key, hash, coverage)
    }

    /// The fill of the key whose body is whole but not committed yet. It counts before whatever the index has.
    ///
    /// To be asked **before** a lookup: the other way round, a commit between the two questions would hide the object
    /// from both.
    pub fn completed_fill(&self, key: &CacheKey) -> Option<FillFollower> {
        let core = &self.0;
        let fills = &core.fills;
        // Asked before every lookup, and hardly ever is a commit pending: an atomic load saves it the lock.
        if !fills.has_completed_any() {
            return None;
        }
        let fill = fills.completed_fill(core.hash(key))?;
        let is_it = fill.has_key(key)
            && fill.is_whole()
            && fill.is_complete()
            && !core.is_hidden(fill.born)
            && core.purge_of(&fill).is_none();
        is_it.then(|| FillFollower::join_fill(&fill))?
    }

    /// Whether a fill of the key has ended, is not committed yet, and cannot be served before it is: it broke off,
    /// brought a part, or was purged softly. [`CacheStore::wait_for_commit`] waits for the commit.
    pub fn is_committing(&self, key: &CacheKey) -> bool {
        let fills = &self.0.fills;
        let settling = |fill: Arc<Fill>| fill.has_key(key) && self.0.is_committing(&fill);
        fills.has_completed_any() && fills.completed_fill(self.0.hash(key)).is_some_and(settling)
    }

    /// Waits until nothing that is pending under the key is left to be committed.
    pub async fn wait_for_commit(&self, key: &CacheKey) {
        // The end of a fill can be seen before its commit is queued, so that one flush may come too early: repeat.
        loop {
            self.flush().await;
            if !self.is_committing(key) {
                return;
            }
        }
    }

    /// Stores a marker ([`crate::ObjectKind::Variants`]) and returns its birth. The birth is known before the marker is
    /// written, so that the fetch goes on under the key of its variant ([`CacheKey::variant_of`]) without waiting for
    /// the disk.
    pub fn put_marker(&self, key: &CacheKey, head: ObjectHead, now_ms: u64) -> u64 {
        let hash = self.0.hash(key);
        let born = self.0.next_sequence();
        let key = key.clone();
        self.0.enqueue(Box::new(move |core, log| {
            let entry = ObjectCommit {
                hash,
                born,
                description: ObjectRecord {
                    key,
                    head,
                    extents: Vec::new(),
                },
                inline: bytes::Bytes::new(),
                accessed: (now_ms / 1000) as u32,
                main: false,
                frequency: 0,
                is_stale: false,
                replaces: None,
            };
            // A failure has been reported. Without their marker the variants are not found, and are fetched again.
            let _ = commit_object(core, log, entry, |_, _| ());
        }));
        born
    }

    /// Gives a stored body new metadata and, if given, a new head, after the origin has validated it. `born` is the
    /// birth of the fill that validated ([`FillWriter::born`]).
    pub fn refresh(
        &self,
        object: &CachedObject,
        meta: ObjectMeta,
        head: Option<bytes::Bytes>,
        born: u64,
    ) {
        let mut new_head = object.head().clone();
        new_head.meta = meta;
        new_head.opaque = head.unwrap_or(new_head.opaque);
        let hash = self.0.hash(object.key());
        // The object is as new as its validation: it is the answer to a soft purge from before, and one since then must
        // hit it.
        let object = object.with_head(new_head, born.max(object.born()));
        // Lookups return the new head from here on; the record is written when the writer comes to it.
        self.0.fills.add_refreshed(hash, object.clone());
        let job = move |core: &Arc<StoreCore>, log: &mut StoreLog| {
            // Flushed first: a commit that is pending may replace the object, and this job must not put the older one
            // back.
            let flushed = log.flush(core);
            let current = core.index.get(hash, None);
            let same = current.is_some_and(|entry| entry.location() == object.location());
            // Replaced, purged or evicted meanwhile: to write the old body again would bring it back.
            if !same || flushed.is_err() {
                return core.fills.remove_refreshed(hash, &object);
            }
            let new_head = object.head().clone();
            // A body in the object record moves with the record. One in records of its own stays where it is, and is
            // only referred to.
            let small = object
                .body_in_memory()
                .filter(|_| object.extents().len() == 1)
                .cloned();
            let entry = ObjectCommit {
                hash,
                born: object.born(),
                description: ObjectRecord {
                    key: object.key().clone(),
                    head: new_head,
                    extents: if small.is_some() {
                        Vec::new()
                    } else {
                        object.extents().to_vec()
                    },
                },
                inline: small.unwrap_or_default(),
                accessed: (meta.validated_ms / 1000) as u32,
                main: false,
                frequency: current.map_or(0, |entry| entry.frequency()),
                is_stale: false,
                replaces: Some(object.location()),
            };
            let done = object.clone();
            let committed = move |core: &StoreCore, _| {
                // Before the object leaves the table: in between a lookup would find no mark.
                if core.fills.is_softened(hash) {
                    mark_stale(core, hash);
                }
                core.fills.remove_refreshed(hash, &done);
            };
            // A failure has been reported. The old metadata stays: the object is validated once more when it is asked
            // for.
            if commit_object(core, log, entry, committed).is_err() {
                core.fills.remove_refreshed(hash, &object);
            }
        };
        self.0.enqueue(Box::new(job));
    }

    /// Until `until_ms`, fills of the key are neither shared nor stored. Without this, the clients of an uncacheable
    /// key would form a queue, each waiting for a response that turns out to be for another.
    pub fn remember_hit_for_miss(&self, key: &CacheKey, until_ms: u64) {
        self.0
            .fills
            .lock()
            .remember_hit_for_miss(self.0.hash(key), until_ms);
    }

    /// Forgets what [`CacheStore::remember_hit_for_miss`] noted: a response of the key was stored.
    pub fn forget_hit_for_miss(&self, key: &CacheKey) {
        self.0.fills.lock().forget_hit_for_miss(self.0.hash(key));
    }

    /// Purges. When it returns, no lookup finds what was there before, and a fill that is under way is not stored. The
    /// purge survives a crash of the process once [`CacheStore::flush`] has returned.
    pub fn purge(&self, what: PurgeRequest<'_>, mode: PurgeMode) {
        let core = &self.0;
        let (scope, name) = match what {
            PurgeRequest::Key(key) => return self.purge_key(key, mode),
            PurgeRequest::Prefix(name) => (PurgeScope::Prefix, name),
            PurgeRequest::Tag(name) => (PurgeScope::Tag, name),
            PurgeRequest::All => (PurgeScope::All, &[][..]),
        };
        let mut purges = core.purges();
        let sequence = core.next_sequence();
        purges.record(scope, name, mode, sequence);
        drop(purges);
        // The table makes the purge hold in this process, the record after a restart. Both have the same number, so
        // that objects born since then outlive the purge in either case.
        let meta = purge::encode_purge(scope, mode, name);
        core.enqueue(Box::new(move |core, log| {
            let mut record = new_record(core, RecordKind::Purge, 0, 0);
            record.sequence = sequence;
            // A failure has been reported; the purge holds until the next start.
            let _ = log.append(core, true, record, (&meta, &[]), |_| None);
        }));
    }

    fn purge_key(&self, key: &CacheKey, mode: PurgeMode) {
        let core = &self.0;
        let hash = core.hash(key);
        // With those that have lost their place to a newer one, and those of variants: they are stored as well.
        let fills = core.fills.lock().of_key(key, hash);
        for fill in fills {
            // A whole body may still be stored after a soft purge: its commit marks it stale. One that is still coming
            // cannot be marked, so that it is not stored at all.
            if mode == PurgeMode::Hard || !fill.purge_softly() {
                core.fills.stop_storing(&fill);
            }
        }
        // Not in the job: what is validated from here on is newer than this purge.
        if mode == PurgeMode::Soft {
            core.fills.soften_refreshed(hash);
        }
        // Last: what is committed at this moment finds the marks above, or has its entry by now. The job below does it again,
        // for what is committed before it runs.
        self.purge_entry(hash, mode);
        let store = self.clone();
        core.enqueue(Box::new(move |core, log| {
            // After the flush the index has all that was committed before this job, so that the purge hits that too. A
            // failure has been reported.
            let _ = log.flush(core);
            store.purge_entry(hash, mode);
            // Written even if the index has no such object: inactive objects leave the index without a tombstone, and
            // the record of one would bring it back at the next start.
            let _ = match mode {
                PurgeMode::Hard => append_tombstone(core, log, hash),
                PurgeMode::Soft => {
                    let record = new_record(core, RecordKind::Soften, hash, 0);
                    log.append(core, true, record, (&[], &[]), |_| None)
                        .map(drop)
                }
            };
        }));
    }

    fn purge_entry(&self, hash: u64, mode: PurgeMode) {
        let index = &self.0.index;
        match (mode, index.get(hash, None)) {
            (PurgeMode::Hard, Some(_)) => {
                index.remove(hash);
            }
            (PurgeMode::Soft, Some(_)) => mark_stale(&self.0, hash),
            (PurgeMode::Hard | PurgeMode::Soft, None) => {}
        }
    }

    /// Upkeep, to be called every few seconds: removes inactive objects (a sixteenth of the index in a round), keeps
    /// `min_free`, notices that the directory has vanished, writes a checkpoint each minute if anything has changed.
    pub fn run_upkeep(&self, now_ms: u64) {
        self.0.enqueue(Box::new(move |core, log| {
            upkeep::run_upkeep_round(core, log, now_ms)
        }));
    }

    /// Waits until everything handed in before has been written to the files: it survives the process, not a loss of
    /// power.
    pub async fn flush(&self) {
        self.after(|core, log| {
            // A failure has been reported.
            let _ = log.flush(core);
        })
        .await;
    }

    /// Writes the index to the disk, so that the next start need not read tables.
    pub async fn checkpoint(&self) -> io::Result<()> {
        self.after(|core, log| {
            // Flushed first: a checkpoint may only name records that are in their files.
            log.flush(core)?;
            crate::open_store::write_checkpoint(core, log)
        })
        .await
    }

    /// Finishes the open segments and writes a checkpoint: the last thing before the end.
    pub async fn close(&self) -> io::Result<()> {
        self.after(|core, log| {
            log.finish(core)?;
            crate::open_store::write_checkpoint(core, log)
        })
        .await
    }

    /// Ends as [`CacheStore::close`] does, and then lets another process open the directory. What was found here can
    /// still be read; what is stored here from now on is lost. Does not wait.
    pub fn give_away(&self) {
        self.0.enqueue(Box::new(|core, log| {
            let ended = log
                .finish(core)
                .and_then(|()| crate::open_store::write_checkpoint(core, log));
            // Appends are refused before the lock goes: the next owner numbers its segments by what it finds, and two
            // writers would want the same file. This holds even if the end has failed, because another process waits
            // for the lock.
            log.give_away();
            if let Err(error) = ended.and_then(|()| core.lock.unlock()) {
                core.report_error(&format!("closing the store failed: {error}"));
                // If this fails as well, the lock goes when the descriptor is closed.
                let _ = core.lock.unlock();
            }
        }));
    }

    /// Calls `done`, on a thread of the pool, when everything handed in before has been done: for callers without a
    /// loop.
    pub fn after_pending_jobs(&self, done: impl FnOnce() + Send + 'static) {
        self.0.enqueue(Box::new(move |_, _| done()));
    }

    async fn after<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<StoreCore>, &mut StoreLog) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = remote_oneshot::channel();
        self.0.enqueue(Box::new(move |core, log| {
            // An error means that the caller has been dropped meanwhile and wants no answer.
            drop(sender.send(f(core, log)));
        }));
        match receiver.await {
            Ok(value) => value,
            Err(_) => unreachable!("queued jobs are run, and this one answers"),
        }
    }

    /// Whether upkeep found that the directory has been removed or replaced. What is stored from now on is lost with
    /// it: drop the store and open it again.
    pub fn has_vanished(&self) -> bool {
        self.0.vanished.load(Relaxed)
    }

    /// What tells the body of an object from all other bodies, of this and of other stores. A validation gives an object
    /// another birth, and so another identity.
    pub fn identity(&self, key: &CacheKey, born: u64) -> [u64; 3] {
        [self.0.seed, self.0.hash(key), born]
    }

    /// Whether a body of this length (`None`: unknown) would not be stored because the disk is full. This is an
    /// estimate from the last measurement, so that it can be asked at the head of each response.
    pub fn lacks_room(&self, length: Option<u64>) -> bool {
        crate::disk_space::is_lacking(&self.0, length.unwrap_or(0))
    }

    /// The most bytes that all segments may have. An object of half that size would evict all others, and then itself.
    pub fn max_size(&self) -> u64 {
        self.0.limits().max_size
    }

    /// The last failure, until something is written again: for the log and the status page.
    pub fn last_error(&self) -> Option<String> {
        self.0.last_error.lock().clone()
    }

    /// Counters, and what is there now: for the status page.
    pub fn stats(&self) -> StoreStats {
        let core = &self.0;
        StoreStats {
            objects: core.index.len(),
            size: core.size(),
            segments: core.segments.read().len(),
            index_memory: core.index.memory_bytes(),
            memory: core.memory.used(),
            memory_hits: core.memory_hits.load(Relaxed),
            stored: core.stored.load(Relaxed),
            written: core.written.load(Relaxed),
            evicted: core.evicted.load(Relaxed),
            reclaimed: core.reclaimed.load(Relaxed),
            fills: core.fills.lock().running_count(),
            mended: core.mended,
        }
    }
}

/// Marks the object of a key as hit by a soft purge.
pub(crate) fn mark_stale(core: &StoreCore, hash: u64) {
    if let Some(entry) = core.index.get(hash, None) {
        core.index
            .update(hash, entry.location(), |entry| entry.with_stale(true));
    }
}
