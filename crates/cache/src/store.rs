//! The store: lookups, fills, purges, upkeep. Any thread may call; what waits for the disk is on the device's pool.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rt::sync::remote_oneshot;

use crate::checksum::xxh64;
use crate::fill::{Coverage, Fill};
use crate::fill_table::FillMaps;
use crate::fill_writer::Writer;
use crate::follower::Follower;
use crate::format::{Description, RecordKind};
use crate::log::Log;
use crate::object::{Object, Seen};
use crate::options::{Limits, OpenError, Options};
use crate::purge::{self, Scope};
use crate::reclaim::{Commit, bury, commit, new_record};
use crate::store_core::StoreCore;
use crate::upkeep;
use crate::{Head, Key, Meta, Mode, Purge};

/// What [`Store::join_or_start_fill`] came to.
pub enum FillStart {
    /// A new fill: what is fetched is written into the first, and the client that began it reads from the second.
    Started(Writer, Follower),
    /// A fill that was under way.
    Joined(Follower),
    /// None: it is remembered that the responses under this key are for one client each.
    HitForMiss {
        /// How long that is remembered, in milliseconds since the epoch.
        until_ms: u64,
    },
    /// None: the index changed since the lookup.
    Changed,
}

/// What [`Store::fill_state`] found.
#[derive(Default)]
pub struct FillState {
    /// It is remembered that the responses under the key are for one client each.
    pub is_hit_for_miss: bool,
    /// The fill of the whole that is under way, or has come to its end a moment ago.
    pub running: Option<Follower>,
}

/// The state of a store at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
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
    /// Files that were open to others at the start, and are not now.
    pub mended: usize,
}

/// A store. Clones share it.
#[derive(Clone)]
pub struct Store(pub(crate) Arc<StoreCore>);

impl Store {
    /// Opens a store, and makes it if it is not there. **Blocks**: for start-up, or on a pool's thread.
    pub fn open(options: Options, now_ms: u64) -> Result<Self, OpenError> {
        let loaded = crate::load::load(&options, now_ms)?;
        Ok(Self(Arc::new(StoreCore::new(options, loaded))))
    }

    /// What a client asks for with these words, whose answer is not there yet.
    pub fn asked_in(&self, words: &[u8]) -> Coverage {
        Coverage::Asked(xxh64(words, self.0.seed))
    }

    /// Joins the fill under way that brings this of the key, or starts one: which of the two is decided under one lock, so
    /// that of all who miss at the same moment one fetches. `seen` is what the lookup said.
    pub fn join_or_start_fill(
        &self,
        key: &Key,
        coverage: Coverage,
        seen: Seen,
        now_ms: u64,
    ) -> FillStart {
        let core = &self.0;
        let hash = core.hash(key);
        let mut tables = core.fills.lock();
        if let Some(until_ms) = tables.learned(hash, now_ms) {
            return FillStart::HitForMiss { until_ms };
        }
        if let Some(follower) = self.running(&tables, key, hash, coverage) {
            return FillStart::Joined(follower);
        }
        // A fill leaves the table after its object is in the index: a request that looked before that looks again.
        let present = core.index.get(hash, None).map(|entry| entry.location());
        if present.is_some() && present != seen.0 {
            return FillStart::Changed;
        }
        let since = (core.next_sequence(), now_ms);
        let writer = Writer::start(core, (key, hash), coverage, since);
        let follower = Follower::first(writer.fill());
        let fill = Arc::clone(writer.fill());
        tables.running.insert((hash, coverage), fill);
        FillStart::Started(writer, follower)
    }

    /// A cursor over the fill of a key that runs and brings this, unless what it brings was purged meanwhile.
    fn running(
        &self,
        fills: &FillMaps,
        key: &Key,
        hash: u64,
        coverage: Coverage,
    ) -> Option<Follower> {
        let fill = fills.running.get(&(hash, coverage))?;
        let is_it = fill.answers_to(key) && self.0.purge_of(fill).is_none();
        is_it.then(|| Follower::of(fill))?
    }

    /// Changes `max_size`, `max_objects`, `min_free` and `inactive_ms` to those of `options`. The upkeep makes room when
    /// there is less of it now.
    pub fn set_limits(&self, options: &Options) {
        let mut limits = self.0.limits.lock();
        *limits = Limits::of(options);
    }

    /// Starts a fill of the whole, whatever is stored or under way. Requests that come later join this one.
    pub fn start_fill(&self, key: &Key, now_ms: u64) -> (Writer, Follower) {
        let core = &self.0;
        let hash = core.hash(key);
        let since = (core.next_sequence(), now_ms);
        let writer = Writer::start(core, (key, hash), Coverage::Whole, since);
        let follower = Follower::first(writer.fill());
        let fill = Arc::clone(writer.fill());
        core.fills
            .lock()
            .running
            .insert((hash, Coverage::Whole), fill);
        (writer, follower)
    }

    /// What is known of fills of the key before one is joined or started.
    pub fn fill_state(&self, key: &Key, now_ms: u64) -> FillState {
        let hash = self.0.hash(key);
        let mut tables = self.0.fills.lock();
        FillState {
            is_hit_for_miss: tables.learned(hash, now_ms).is_some(),
            running: self.running(&tables, key, hash, Coverage::Whole),
        }
    }

    /// The fill of the key under way that brings this.
    pub fn running_fill(&self, key: &Key, coverage: Coverage) -> Option<Follower> {
        let hash = self.0.hash(key);
        self.running(&self.0.fills.lock(), key, hash, coverage)
    }

    /// The fill of the key that came to its end and is not committed yet: it is what is there, whatever a lookup finds.
    /// To be asked **before** a lookup, which finds it from its commit on.
    pub fn completed_fill(&self, key: &Key) -> Option<Follower> {
        let core = &self.0;
        let fills = &core.fills;
        if !fills.has_arrived_any() {
            return None;
        }
        let fill = fills.arrived(core.hash(key))?;
        let is_it = fill.answers_to(key)
            && fill.is_whole()
            && fill.is_complete()
            && core.purge_of(&fill).is_none();
        is_it.then(|| Follower::of(&fill))?
    }

    /// Whether something is about to be committed under the key that is not fresh and whole, because its fill broke off or
    /// brought a part, or it was purged softly: [`Store::settle`] waits for that.
    pub fn is_settling(&self, key: &Key) -> bool {
        let fills = &self.0.fills;
        let settling = |fill: Arc<Fill>| fill.answers_to(key) && self.0.is_settling(&fill);
        fills.has_arrived_any() && fills.arrived(self.0.hash(key)).is_some_and(settling)
    }

    /// Waits until what is about to be committed under the key is.
    pub async fn settle(&self, key: &Key) {
        // An end is seen before its commit is handed in.
        loop {
            self.flush().await;
            if !self.is_settling(key) {
                return;
            }
        }
    }

    /// Stores a marker ([`crate::Kind::Variants`]) and gives its birth, with which the keys of its variants are made at
    /// once ([`Key::variant_of`]).
    pub fn put_marker(&self, key: &Key, head: Head, now_ms: u64) -> u64 {
        let hash = self.0.hash(key);
        let born = self.0.next_sequence();
        let key = key.clone();
        self.0.enqueue(Box::new(move |core, log| {
            let entry = Commit {
                hash,
                born,
                description: Description {
                    key,
                    head,
                    extents: Vec::new(),
                },
                inline: bytes::Bytes::new(),
                accessed: (now_ms / 1000) as u32,
                main: false,
                frequency: 0,
            };
            // A failure has been reported; the variants are not found then.
            let _ = commit(core, log, entry, |_, _| ());
        }));
        born
    }

    /// After a validation: the same body under new metadata and, if given, a new head. `born` is the birth of the fill that
    /// validated ([`Writer::born`]).
    pub fn refresh(&self, object: &Object, meta: Meta, head: Option<bytes::Bytes>, born: u64) {
        let mut new_head = object.head().clone();
        new_head.meta = meta;
        new_head.head = head.unwrap_or(new_head.head);
        let hash = self.0.hash(object.key());
        // It is as new as its validation: a soft purge before that has had its effect, one since then must hit it.
        let object = object.with_head(new_head, born.max(object.born()));
        // A lookup finds it so from now on, though it is written later.
        self.0.fills.renew(hash, object.clone());
        let job = move |core: &Arc<StoreCore>, log: &mut Log| {
            // What is pending may be newer than the object.
            let flushed = log.flush(core);
            let current = core.index.get(hash, None);
            let same = current.is_some_and(|entry| entry.location() == object.location());
            if !same || flushed.is_err() {
                return core.fills.written(hash, &object);
            }
            let new_head = object.head().clone();
            let small = object
                .bytes()
                .filter(|_| object.extents().len() == 1)
                .cloned();
            let entry = Commit {
                hash,
                born: object.born(),
                description: Description {
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
            };
            let done = object.clone();
            let committed = move |core: &StoreCore, _| core.fills.written(hash, &done);
            // A failure has been reported; the old metadata stays.
            if commit(core, log, entry, committed).is_err() {
                core.fills.written(hash, &object);
            }
        };
        self.0.enqueue(Box::new(job));
    }

    /// Until then, fills of the key are neither shared nor stored. Without this, the clients of such a key would wait in a
    /// row, each for a fill that turns out to be for another.
    pub fn remember_hit_for_miss(&self, key: &Key, until_ms: u64) {
        self.0.fills.lock().learn(self.0.hash(key), until_ms);
    }

    /// Forgets what [`Store::remember_hit_for_miss`] noted: a response of the key was stored.
    pub fn forget_hit_for_miss(&self, key: &Key) {
        self.0.fills.lock().forget(self.0.hash(key));
    }

    /// Purges. When it returns no lookup finds what was there before; a running fill is not stored. In a crash the purge
    /// holds once [`Store::flush`] has returned.
    pub fn purge(&self, what: Purge<'_>, mode: Mode) {
        let core = &self.0;
        let (scope, name) = match what {
            Purge::Key(key) => return self.purge_key(key, mode),
            Purge::Prefix(name) => (Scope::Prefix, name),
            Purge::Tag(name) => (Scope::Tag, name),
            Purge::All => (Scope::All, &[][..]),
        };
        let mut purges = core.purges();
        let sequence = core.next_sequence();
        purges.record(scope, name, mode, sequence);
        drop(purges);
        let meta = purge::write(scope, mode, name);
        core.enqueue(Box::new(move |core, log| {
            let mut record = new_record(core, RecordKind::Purge, 0, 0);
            record.sequence = sequence;
            // A failure has been reported.
            let _ = log.append(core, true, record, (&meta, &[]), |_| None);
        }));
    }

    fn purge_key(&self, key: &Key, mode: Mode) {
        let core = &self.0;
        let hash = core.hash(key);
        self.purge_entry(hash, mode);
        let fills: Vec<Arc<Fill>> = {
            let tables = core.fills.lock();
            let of_key = tables.running.iter().filter(|((of, _), _)| *of == hash);
            let of_key = of_key.map(|(_, fill)| Arc::clone(fill));
            // Another fetch may have taken its place among those that run.
            of_key.chain(tables.arrived.get(&hash).cloned()).collect()
        };
        for fill in fills {
            if mode == Mode::Hard || !fill.soften() {
                core.fills.stop_storing(&fill);
            }
        }
        let store = self.clone();
        core.enqueue(Box::new(move |core, log| {
            // What was committed before this job is in the index after the flush. A failure has been reported.
            let _ = log.flush(core);
            store.purge_entry(hash, mode);
            // Said in the log even if the index has nothing: an inactive object may still be there to come back.
            let _ = match mode {
                Mode::Hard => bury(core, log, hash),
                Mode::Soft => {
                    let record = new_record(core, RecordKind::Soften, hash, 0);
                    log.append(core, true, record, (&[], &[]), |_| None)
                        .map(drop)
                }
            };
        }));
    }

    fn purge_entry(&self, hash: u64, mode: Mode) {
        let index = &self.0.index;
        match (mode, index.get(hash, None)) {
            (Mode::Hard, Some(_)) => {
                index.remove(hash);
            }
            (Mode::Soft, Some(entry)) => {
                index.update(hash, entry.location(), |entry| entry.stale(true));
            }
            (Mode::Hard | Mode::Soft, None) => {}
        }
    }

    /// Upkeep, to be called every few seconds: lets inactive objects go (a sixteenth of the index in a round), keeps
    /// `min_free`, notices a directory that has vanished, writes a checkpoint each minute if anything changed.
    pub fn maintain(&self, now_ms: u64) {
        self.0
            .enqueue(Box::new(move |core, log| upkeep::round(core, log, now_ms)));
    }

    /// Waits until everything handed in before is in the files (not: on the disk).
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
            log.flush(core)?;
            crate::load::write_checkpoint(core, log)
        })
        .await
    }

    /// Finishes the open segments and writes a checkpoint: the last thing before the end.
    pub async fn close(&self) -> io::Result<()> {
        self.after(|core, log| {
            log.finish(core)?;
            crate::load::write_checkpoint(core, log)
        })
        .await
    }

    /// Ends as [`Store::close`] does, and then lets another process open the directory. What was found here can still be
    /// read; what is stored here from now on is lost. Does not wait.
    pub fn give_away(&self) {
        self.0.enqueue(Box::new(|core, log| {
            let ended = log
                .finish(core)
                .and_then(|()| crate::load::write_checkpoint(core, log));
            log.give_away();
            if let Err(error) = ended.and_then(|()| core.lock.unlock()) {
                core.report(&format!("closing the store failed: {error}"));
                // It goes with the descriptor, at the latest.
                let _ = core.lock.unlock();
            }
        }));
    }

    /// Calls `done`, on a thread of the pool, when everything handed in before has been done: for callers without a loop.
    pub fn then(&self, done: impl FnOnce() + Send + 'static) {
        self.0.enqueue(Box::new(move |_, _| done()));
    }

    async fn after<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<StoreCore>, &mut Log) -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = remote_oneshot::channel();
        self.0.enqueue(Box::new(move |core, log| {
            // An Err is the caller gone meanwhile.
            drop(sender.send(f(core, log)));
        }));
        match receiver.await {
            Ok(value) => value,
            Err(_) => unreachable!("queued jobs are run, and this one answers"),
        }
    }

    /// Whether the upkeep found that the directory is gone, or another one: what is stored from now on is lost. To be
    /// dropped and opened again.
    pub fn has_vanished(&self) -> bool {
        self.0.vanished.load(Relaxed)
    }

    /// Whether a body of this length would not be stored, because the disk is full, as far as is known; `None`: of a
    /// length that is not known.
    pub fn lacks_room(&self, length: Option<u64>) -> bool {
        crate::room::is_lacking(&self.0, length.unwrap_or(0))
    }

    /// The most bytes of segments: an object of half that size would push out all others, and then itself.
    pub fn max_size(&self) -> u64 {
        self.0.limits().max_size
    }

    /// What went wrong last and has not gone well since: for the log and the status page.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().clone()
    }

    /// Counters, and what is there now: for the status page.
    pub fn stats(&self) -> Stats {
        let core = &self.0;
        Stats {
            objects: core.index.len(),
            size: core.size(),
            segments: core.segments.read().len(),
            index_memory: core.index.memory(),
            memory: core.memory.used(),
            memory_hits: core.memory_hits.load(Relaxed),
            stored: core.stored.load(Relaxed),
            written: core.written.load(Relaxed),
            evicted: core.evicted.load(Relaxed),
            reclaimed: core.reclaimed.load(Relaxed),
            fills: core.fills.lock().running.len(),
            mended: core.mended,
        }
    }
}
