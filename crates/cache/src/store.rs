//! The store: lookups, fills, purges, upkeep. Any thread may call; what waits for the disk is on the device's pool.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use rt::pool::Device;
use rt::sync::remote_oneshot;

use crate::checksum::xxh64;
use crate::fill::{Fill, Follower, Writer};
use crate::fills::{Fills, Place};
use crate::format::{Description, RecordKind, UNIT};
use crate::index::{Entry, Index, Location};
use crate::log::{self, Job, Log};
use crate::memory::MemoryTier;
use crate::object::{Object, Shared, Stored};
use crate::options::{Limits, OpenError, Options};
use crate::purge::{self, Purges, Scope};
use crate::reclaim::{Commit, bury, commit, new_record};
use crate::room::Room;
use crate::segment::Segment;
use crate::upkeep::{self, Upkeep};
use crate::{Head, Key, Meta, Mode, Purge};

/// What a lookup found.
#[derive(Debug)]
pub enum Lookup {
    /// A fresh object (perhaps a partial one: see [`Object::hole`]).
    Hit(Object),
    /// One that must be validated, or may be served if the caller's rules allow.
    Stale(Object, Why),
    /// Nothing to serve.
    Miss(Miss, Seen),
}

impl Lookup {
    /// What the index said, for [`Store::fill`].
    pub fn seen(&self) -> Seen {
        match self {
            Self::Hit(object) | Self::Stale(object, _) => Seen(Some(object.location())),
            Self::Miss(_, seen) => *seen,
        }
    }
}

/// What the index said at a lookup. A fill that finds something else there sends the caller back to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(pub(crate) Option<Location>);

impl Seen {
    /// Nobody looked, or nothing was there.
    pub const NOTHING: Self = Self(None);
}

/// Why an object is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its time is over.
    Expired,
    /// It was purged softly.
    Purged,
}

/// Why a lookup found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// It is not there.
    Absent,
    /// It is there and was purged.
    Purged,
    /// It is known not to be storable until then.
    Uncacheable {
        /// Milliseconds since the epoch.
        until_ms: u64,
    },
    /// What the disk gave was not what was written; it is removed.
    Damaged,
    /// The disk gave nothing.
    Unreadable,
}

/// How a fetch begins.
pub enum Start {
    /// Fetch: write into the first, serve your client from the second.
    First(Writer, Follower),
    /// Somebody fetches: follow.
    Join(Follower),
    /// Fetch for yourself: it is not shared.
    Uncacheable {
        /// Milliseconds since the epoch.
        until_ms: u64,
    },
    /// The store changed since the lookup: look again.
    Again,
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
pub struct Store(Arc<Core>);

pub(crate) struct Core {
    /// As it was opened; the bounds that count are in `limits`.
    pub(crate) options: Options,
    limits: Mutex<Limits>,
    pub(crate) seed: u64,
    device: Device,
    /// Locked for this process while it is open.
    pub(crate) lock: File,
    mended: usize,
    pub(crate) index: Index,
    pub(crate) memory: MemoryTier,
    purges: Mutex<Purges>,
    pub(crate) fills: Fills,
    pub(crate) segments: RwLock<BTreeMap<u32, Arc<Segment>>>,
    /// The next number for a record, a purge or a fill: one order for all three.
    sequence: AtomicU64,
    queue: Mutex<Queue>,
    pub(crate) log: Mutex<Log>,
    trouble: Mutex<Option<String>>,
    pub(crate) room: Room,
    /// The directory is not the one that was opened any more.
    pub(crate) vanished: AtomicBool,
    pub(crate) upkeep: Mutex<Upkeep>,
    pub(crate) written: AtomicU64,
    pub(crate) stored: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) reclaimed: AtomicU64,
    memory_hits: AtomicU64,
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

impl Drop for Core {
    fn drop(&mut self) {
        // It may end on a loop, and its directory may have been removed: then each close frees the blocks of a file.
        let index = std::mem::replace(&mut self.index, Index::new());
        let memory = std::mem::replace(&mut self.memory, MemoryTier::new(0));
        let segments = self.segments.get_mut();
        let segments = std::mem::take(segments.unwrap_or_else(PoisonError::into_inner));
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

impl Core {
    fn new(options: Options, loaded: Loaded) -> Self {
        Self {
            memory: MemoryTier::new(options.memory),
            limits: Mutex::new(Limits::of(&options)),
            options,
            seed: loaded.seed,
            device: Device(loaded.device),
            mended: loaded.mended,
            lock: loaded.lock,
            index: loaded.index,
            purges: Mutex::new(loaded.purges),
            fills: Fills::default(),
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
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn purges(&self) -> MutexGuard<'_, Purges> {
        self.purges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn segment(&self, number: u32) -> Option<Arc<Segment>> {
        self.segments
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&number)
            .cloned()
    }

    pub(crate) fn size(&self) -> u64 {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
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
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble.to_owned());
    }

    pub(crate) fn clear_trouble(&self) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The object of a record, once all that it names is there.
    fn object(self: &Arc<Self>, stored: Stored, location: Location, hash: u64) -> Option<Object> {
        let mut segments: Vec<Arc<Segment>> = Vec::new();
        for extent in &stored.extents {
            if segments.iter().any(|known| known.number == extent.segment) {
                continue;
            }
            segments.push(self.segment(extent.segment)?);
        }
        let whole = stored.extents.iter().all(|extent| {
            let segment = segments
                .iter()
                .find(|segment| segment.number == extent.segment);
            let end = extent.position.checked_add(u64::from(extent.len));
            segment.is_some_and(|segment| end.is_some_and(|end| end <= segment.len.load(Relaxed)))
        });
        whole.then(|| {
            Object::new(Shared {
                key: stored.description.key,
                head: stored.description.head,
                born: stored.record.born,
                location,
                extents: stored.extents,
                body: stored.body,
                segments,
                pool: self.options.pool.clone(),
                home: (Arc::downgrade(self), hash),
                attached: std::sync::OnceLock::new(),
            })
        })
    }

    /// Lets an object go whose body is not what was written.
    pub(crate) fn lose(&self, hash: u64, location: Location, segment: &Segment) {
        self.report(&format!(
            "an object in \"{}\" refers to damaged data",
            segment.path.display()
        ));
        self.index.remove_at(hash, location);
    }

    /// Says that somebody else has written to a segment.
    pub(crate) fn suspect(&self, segment: &Segment) {
        self.report(&format!(
            "\"{}\" was modified by another process: its contents are verified before use, and damaged objects are fetched again",
            segment.path.display()
        ));
    }

    /// What an object is now: purged, fresh, stale.
    fn judge(&self, object: Object, softened: bool, now_ms: u64) -> Lookup {
        let head = object.head();
        let verdict = self
            .purges()
            .verdict(object.born(), object.key().text(), &head.tags);
        if verdict == Some(Mode::Hard) {
            return Lookup::Miss(Miss::Purged, Seen(Some(object.location())));
        }
        if softened || verdict == Some(Mode::Soft) {
            return Lookup::Stale(object, Why::Purged);
        }
        if head.meta.fresh_until_ms <= now_ms {
            return Lookup::Stale(object, Why::Expired);
        }
        Lookup::Hit(object)
    }

    fn absent(&self, hash: u64, seen: Seen, now_ms: u64) -> Lookup {
        match self.fills.lock().learned(hash, now_ms) {
            Some(until_ms) => Lookup::Miss(Miss::Uncacheable { until_ms }, seen),
            None => Lookup::Miss(Miss::Absent, seen),
        }
    }
}

impl Store {
    /// Opens a store, and makes it if it is not there. **Blocks**: for start-up, or on a pool's thread.
    pub fn open(options: Options, now_ms: u64) -> Result<Self, OpenError> {
        let loaded = crate::load::load(&options, now_ms)?;
        Ok(Self(Arc::new(Core::new(options, loaded))))
    }

    /// A lookup that does not wait: `None` when the disk must be asked.
    pub fn peek(&self, key: &Key, now_ms: u64) -> Option<Lookup> {
        let core = &self.0;
        let hash = core.hash(key);
        let Some(entry) = core.index.get(hash, Some((now_ms / 1000) as u32)) else {
            return Some(core.absent(hash, Seen(None), now_ms));
        };
        let object = core.memory.get(hash, entry.location())?;
        if object.key() != key {
            return Some(core.absent(hash, Seen(Some(entry.location())), now_ms));
        }
        core.memory_hits.fetch_add(1, Relaxed);
        Some(match core.fills.renewed(hash, entry.location()) {
            Some(object) => core.judge(object, false, now_ms),
            None => core.judge(object, entry.is_stale(), now_ms),
        })
    }

    /// Looks a key up: one read at most, from the page cache at once, else on the pool.
    pub async fn lookup(&self, key: &Key, now_ms: u64) -> Lookup {
        if let Some(found) = self.peek(key, now_ms) {
            return found;
        }
        let hash = self.0.hash(key);
        loop {
            let entry = self.0.index.get(hash, None);
            let found = self.read(key, hash, entry, now_ms).await;
            let current = self.0.index.get(hash, None).map(|entry| entry.location());
            // A miss counts only if the object did not move while it was read. Moves are rare: this ends.
            let settled = current.is_none() || current == entry.map(|entry| entry.location());
            if settled || !matches!(found, Lookup::Miss(..)) {
                return found;
            }
        }
    }

    /// Reads what the index says about a key.
    async fn read(&self, key: &Key, hash: u64, entry: Option<Entry>, now_ms: u64) -> Lookup {
        let core = &self.0;
        let Some(entry) = entry else {
            return core.absent(hash, Seen(None), now_ms);
        };
        let location = entry.location();
        let lost = |miss| {
            core.index.remove_at(hash, location);
            Lookup::Miss(miss, Seen(None))
        };
        let Some(segment) = core.segment(location.segment) else {
            return lost(Miss::Absent);
        };
        let position = u64::from(location.at) * UNIT;
        let size = location.units as usize * UNIT as usize;
        let read = segment
            .file
            .read_at(Vec::new(), position, size, &core.options.pool);
        let bytes = match read.await {
            Ok(bytes) => bytes,
            Err(error) => {
                core.report(&format!(
                    "reading \"{}\" failed: {error}",
                    segment.path.display()
                ));
                return lost(Miss::Unreadable);
            }
        };
        let Some(stored) = Stored::parse(bytes, location, hash) else {
            core.report(&format!("\"{}\" is damaged", segment.path.display()));
            return lost(Miss::Damaged);
        };
        if stored.description.key != *key {
            return core.absent(hash, Seen(Some(location)), now_ms);
        }
        let Some(object) = core.object(stored, location, hash) else {
            return lost(Miss::Damaged);
        };
        for segment in object
            .sent_segments()
            .filter(|segment| segment.was_changed())
        {
            core.suspect(segment);
        }
        let damaged = {
            let (core, segment) = (Arc::clone(core), Arc::clone(&segment));
            move || core.lose(hash, location, &segment)
        };
        if object.prove(core.device, damaged).await.is_err() {
            core.lose(hash, location, &segment);
            return Lookup::Miss(Miss::Damaged, Seen(None));
        }
        core.memory.insert(hash, &object);
        match core.fills.renewed(hash, location) {
            Some(object) => core.judge(object, false, now_ms),
            None => core.judge(object, entry.is_stale(), now_ms),
        }
    }

    /// Begins a fetch of a whole object, or joins the one under way. `seen` is what the lookup said.
    pub fn fill(&self, key: &Key, seen: Seen, now_ms: u64) -> Start {
        self.begin(key, Place::Whole, seen, now_ms)
    }

    /// The same for the part of an object that begins at `offset`.
    pub fn fill_range(&self, key: &Key, offset: u64, seen: Seen, now_ms: u64) -> Start {
        self.begin(key, Place::Part(offset), seen, now_ms)
    }

    /// The same for a part of which only the words are known in which it is asked for. The answer tells which one it is:
    /// [`Writer::turn_into`].
    pub fn fill_asked(&self, key: &Key, words: &[u8], seen: Seen, now_ms: u64) -> Start {
        let words = xxh64(words, self.0.seed);
        self.begin(key, Place::Asked(words), seen, now_ms)
    }

    fn begin(&self, key: &Key, place: Place, seen: Seen, now_ms: u64) -> Start {
        let core = &self.0;
        let hash = core.hash(key);
        let mut tables = core.fills.lock();
        if let Some(until_ms) = tables.learned(hash, now_ms) {
            return Start::Uncacheable { until_ms };
        }
        let running = tables
            .running
            .get(&(hash, place))
            .filter(|fill| fill.answers_to(key) && fill.purged().is_none());
        if let Some(follower) = running.and_then(|fill| fill.follow()) {
            return Start::Join(follower);
        }
        // A fill leaves the table after its object is in the index: whoever looked before that looks again.
        let present = core.index.get(hash, None).map(|entry| entry.location());
        if present.is_some() && present != seen.0 {
            return Start::Again;
        }
        let (fill, writer) = Fill::start(core, key, hash, place, now_ms);
        let Some(follower) = fill.follow() else {
            return Start::Again;
        };
        tables.running.insert((hash, place), fill);
        Start::First(writer, follower)
    }

    /// Changes `max_size`, `max_objects`, `min_free` and `inactive_ms` to those of `options`. The upkeep makes room when
    /// there is less of it now.
    pub fn set_limits(&self, options: &Options) {
        let mut limits = self.0.limits.lock().unwrap_or_else(PoisonError::into_inner);
        *limits = Limits::of(options);
    }

    /// Begins a fetch of its own whatever is stored or under way. Who comes later joins this one.
    pub fn fill_anew(&self, key: &Key, now_ms: u64) -> (Writer, Follower) {
        let core = &self.0;
        let hash = core.hash(key);
        let (fill, writer) = Fill::start(core, key, hash, Place::Whole, now_ms);
        let follower = fill.first();
        core.fills.lock().running.insert((hash, Place::Whole), fill);
        (writer, follower)
    }

    /// The fetch of the key that is under way.
    pub fn filling(&self, key: &Key) -> Option<Follower> {
        self.running(key, Place::Whole)
    }

    /// The fetch of the part of the key's object that begins at `offset`, if it is under way.
    pub fn filling_part(&self, key: &Key, offset: u64) -> Option<Follower> {
        self.running(key, Place::Part(offset))
    }

    fn running(&self, key: &Key, place: Place) -> Option<Follower> {
        let hash = self.0.hash(key);
        let tables = self.0.fills.lock();
        let running = tables.running.get(&(hash, place));
        running
            .filter(|fill| fill.answers_to(key) && fill.purged().is_none())?
            .follow()
    }

    /// The object of the key that came to its end and is not committed yet: it is what is there, whatever a lookup finds.
    /// To be asked **before** a lookup, which finds it from its commit on.
    pub fn arrived(&self, key: &Key) -> Option<Follower> {
        let fills = &self.0.fills;
        if !fills.has_arrived_any() {
            return None;
        }
        let fill = fills.arrived(self.0.hash(key))?;
        let is_it = fill.answers_to(key)
            && fill.is_whole()
            && fill.is_complete()
            && fill.purged().is_none();
        is_it.then(|| fill.follow())?
    }

    /// Whether something is about to be committed under the key that is not fresh and whole, because its fill broke off or
    /// brought a part, or it was purged softly: [`Store::settle`] waits for that.
    pub fn is_settling(&self, key: &Key) -> bool {
        let fills = &self.0.fills;
        let settling = |fill: Arc<Fill>| fill.answers_to(key) && fill.is_settling();
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
        // Whoever looks from now on finds it so, though it is written later.
        self.0.fills.renew(hash, object.clone());
        let job = move |core: &Arc<Core>, log: &mut Log| {
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
            let committed = move |core: &Core, _| core.fills.written(hash, &done);
            // A failure has been reported; the old metadata stays.
            if commit(core, log, entry, committed).is_err() {
                core.fills.written(hash, &object);
            }
        };
        self.0.enqueue(Box::new(job));
    }

    /// Until then, fetches of the key are not shared and not stored.
    pub fn learn_uncacheable(&self, key: &Key, until_ms: u64) {
        self.0.fills.lock().learn(self.0.hash(key), until_ms);
    }

    /// Forgets that a key is uncacheable.
    pub fn forget_uncacheable(&self, key: &Key) {
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
                fill.stop_storing();
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

    /// Calls `done`, on a thread of the pool, when everything handed in before has been done: for who has no loop.
    pub fn then(&self, done: impl FnOnce() + Send + 'static) {
        self.0.enqueue(Box::new(move |_, _| done()));
    }

    async fn after<T: Send + 'static>(
        &self,
        f: impl FnOnce(&Arc<Core>, &mut Log) -> T + Send + 'static,
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

    /// The most bytes of segments.
    pub fn max_size(&self) -> u64 {
        self.0.limits().max_size
    }

    /// What went wrong last and has not gone well since: for the log and the status page.
    pub fn trouble(&self) -> Option<String> {
        self.0
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Figures.
    pub fn stats(&self) -> Stats {
        let core = &self.0;
        Stats {
            objects: core.index.len(),
            size: core.size(),
            segments: core
                .segments
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .len(),
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
