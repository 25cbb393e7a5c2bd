//! A fill: one body on its way into the cache, and everybody who follows it.
//!
//! ```text
//! waiting ── head ──▶ storing ── finish ──▶ ended, committed
//!    │                  │  └── disk fails ──▶ passing
//!    │                  └───── fail ────────▶ failed: everybody is told why
//!    └─── pass ──▶ passing: joiners released, the first follower goes on alone
//! ```
//!
//! Nobody leads: the [`Writer`] belongs to whoever fetches, each [`Follower`] has a cursor of its own, on any loop.
//! The body stands in memory until it is in the store, then (above `fill_memory`) only there, and slow followers read
//! it from the disk. When it is not stored, the writer waits for the slowest follower instead. Wake-ups are
//! wakers called in the order in which their followers began to wait.

mod follower;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use crate::fills::Place;
use crate::format::{Description, EXTENT_MAX, EXTENTS_MAX, Extent, INLINE_MAX};
use crate::log::Log;
use crate::object::Stored;
use crate::reclaim::{Commit, append_run, commit};
use crate::segment::Segment;
use crate::store::Core;
use crate::{Head, Key, Mode};

pub use follower::{Follower, Part};

/// Why a fill ended before its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The writer was dropped without a word.
    ProducerGone,
    /// What the producer said.
    Producer(Arc<str>),
    /// The body is not as long as its head said.
    Length,
    /// It broke off, and what the producer got when it asked again was something else. Nothing of it is kept.
    Changed,
    /// The part that this follower needs next could not be read back from the store.
    Storage(Arc<str>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ProducerGone => f.write_str("the fill was given up"),
            Self::Producer(why) => f.write_str(why),
            Self::Length => f.write_str("the body does not have the announced length"),
            Self::Changed => f.write_str("the response has changed at the origin"),
            Self::Storage(why) => write!(
                f,
                "reading back a response that is being stored failed: {why}"
            ),
        }
    }
}

/// What a follower gets instead of a head or of more body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The answer is not to be shared: fetch for yourself.
    Released,
    /// It ended early. Who has received nothing may start anew.
    Failed(Failure),
    /// There is no body to follow; what to do instead, its producer says.
    Instead(Instead),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("the response must not be shared"),
            Self::Failed(why) => why.fmt(f),
            Self::Instead(_) => f.write_str("the origin sent a different response"),
        }
    }
}

/// What a producer tells its followers in place of a body. The cache does not look into it.
#[derive(Clone)]
pub struct Instead(Arc<dyn Any + Send + Sync>);

impl Instead {
    /// Wraps what the followers shall get.
    pub fn new(message: impl Any + Send + Sync) -> Self {
        Self(Arc::new(message))
    }

    /// The message, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for Instead {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Instead {}

impl fmt::Debug for Instead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instead")
    }
}

/// Nobody follows any more and nothing is stored: fetching on is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

/// A fill. Shared by its writer, its followers, the table of fills and jobs of the store's writer.
pub(crate) struct Fill {
    core: Arc<Core>,
    /// The key that was looked up, under which others join.
    key: Key,
    pub(crate) hash: u64,
    /// The key under which it is stored, and its hash, where that is another one: the head named a variant.
    stored_as: OnceLock<(Key, u64)>,
    /// What it brings of the body.
    pub(crate) place: Place,
    /// The first byte of that.
    base: u64,
    /// The sequence when it began: a later purge hits it.
    born: u64,
    began_ms: u64,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Storing,
    /// Not to be stored: private, or the disk failed.
    Passing,
}

struct State {
    phase: Phase,
    /// The answer is for the first follower only.
    private: bool,
    head: Option<Arc<Head>>,
    instead: Option<Instead>,
    /// Consecutive pieces, each with its place in the body.
    chunks: VecDeque<(u64, Bytes)>,
    chunk_bytes: usize,
    /// The end of what has been received.
    received: u64,
    /// It was purged softly when it was whole and not committed yet.
    softened: bool,
    /// Where the body, or the part that is fetched, ends, if that is known.
    ends_at: Option<u64>,
    /// The end of what was handed to the store's writer.
    submitted: u64,
    written: Vec<(Extent, Arc<Segment>)>,
    end: Option<Result<(), Failure>>,
    /// The cursors of the followers, by their number; the first is 0.
    cursors: BTreeMap<u64, u64>,
    next_follower: u64,
    /// Who waits, in order of arrival.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
    producer: Option<Waker>,
}

impl State {
    /// The end of what can be read back from the store.
    fn on_disk(&self, base: u64) -> u64 {
        self.written.last().map_or(base, |(extent, _)| extent.end())
    }

    /// Lets go of what is in the store, or of what everybody has had.
    fn trim(&mut self, base: u64, limit: usize) {
        let on_disk = self.on_disk(base);
        let slowest = match self.phase {
            Phase::Passing => self.cursors.values().min().copied().unwrap_or(u64::MAX),
            Phase::Waiting | Phase::Storing => 0,
        };
        while let Some((offset, chunk)) = self.chunks.front() {
            let end = offset + chunk.len() as u64;
            let stored = end <= on_disk && self.chunk_bytes > limit;
            if !stored && end > slowest {
                break;
            }
            self.chunk_bytes -= chunk.len();
            self.chunks.pop_front();
        }
    }

    fn is_abandoned(&self) -> bool {
        self.phase == Phase::Passing && self.cursors.is_empty()
    }

    fn wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiting)
            .into_values()
            .chain(self.producer.take())
    }
}

impl Fill {
    pub(crate) fn start(
        core: &Arc<Core>,
        key: &Key,
        hash: u64,
        place: Place,
        now_ms: u64,
    ) -> (Arc<Self>, Writer) {
        Self::start_as_of(core, key, hash, place, (core.next_sequence(), now_ms))
    }

    /// The same with the birth and the beginning of another.
    fn start_as_of(
        core: &Arc<Core>,
        key: &Key,
        hash: u64,
        place: Place,
        (born, began_ms): (u64, u64),
    ) -> (Arc<Self>, Writer) {
        let base = place.begin();
        let state = State {
            phase: Phase::Waiting,
            private: false,
            head: None,
            instead: None,
            chunks: VecDeque::new(),
            chunk_bytes: 0,
            received: base,
            softened: false,
            ends_at: None,
            submitted: base,
            written: Vec::new(),
            end: None,
            cursors: BTreeMap::new(),
            next_follower: 0,
            waiting: BTreeMap::new(),
            next_ticket: 0,
            producer: None,
        };
        let fill = Arc::new(Self {
            core: Arc::clone(core),
            key: key.clone(),
            hash,
            stored_as: OnceLock::new(),
            place,
            base,
            born,
            began_ms,
            state: Mutex::new(state),
        });
        (Arc::clone(&fill), Writer(fill))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key under which it is stored, and its hash.
    fn target(&self) -> (&Key, u64) {
        let other = self.stored_as.get().map(|(key, hash)| (key, *hash));
        other.unwrap_or((&self.key, self.hash))
    }

    /// The hashes of the keys under which it may stand in the table.
    pub(crate) fn hashes(&self) -> [u64; 2] {
        [self.hash, self.target().1]
    }

    /// Whether the body came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.state().end == Some(Ok(()))
    }

    /// Bytes that it is yet to write, as far as its length is known.
    pub(crate) fn pending(&self) -> u64 {
        let state = self.state();
        let end = state.ends_at.unwrap_or(0).max(state.received);
        match state.phase {
            Phase::Storing => end.saturating_sub(state.on_disk(self.base)),
            Phase::Waiting | Phase::Passing => 0,
        }
    }

    /// Where in a segment the last byte stands of what it has stored there.
    pub(crate) fn needs(&self, segment: u32) -> u64 {
        let state = self.state();
        let of_it = state
            .written
            .iter()
            .filter(|(extent, _)| extent.segment == segment && state.phase == Phase::Storing);
        of_it
            .map(|(extent, _)| extent.position + u64::from(extent.len))
            .max()
            .unwrap_or(0)
    }

    /// Whether it brings all of the body.
    pub(crate) fn is_whole(&self) -> bool {
        self.place == Place::Whole
    }

    /// Whether it has ended and will be something else than fresh and whole when it is committed.
    pub(crate) fn is_settling(&self) -> bool {
        let end = self.state().end.clone();
        end.is_some_and(|end| end.is_err() || !self.is_whole() || self.purged() == Some(Mode::Soft))
    }

    /// Whether what came of it is kept though it is not all.
    fn is_worth_keeping(&self) -> bool {
        let state = self.state();
        let told_apart = |head: &Arc<Head>| head.meta.version != 0 && head.length.is_some();
        state.received > self.base && state.head.as_ref().is_some_and(told_apart)
    }

    pub(crate) fn answers_to(&self, key: &Key) -> bool {
        self.key == *key || self.target().0 == key
    }

    /// A cursor at the beginning. `None`: it is not to be shared any more.
    pub(crate) fn follow(self: &Arc<Self>) -> Option<Follower> {
        let mut state = self.state();
        let begun = state
            .chunks
            .front()
            .map_or(state.on_disk(self.base), |(offset, _)| *offset);
        let readable = begun <= self.base || state.on_disk(self.base) >= begun;
        let joinable =
            state.phase != Phase::Passing && readable && !matches!(state.end, Some(Err(_)));
        let joinable = joinable && state.instead.is_none();
        if !joinable {
            return None;
        }
        Some(Follower::new(self, &mut state, self.base))
    }

    /// The cursor of whoever began it.
    pub(crate) fn first(self: &Arc<Self>) -> Follower {
        Follower::new(self, &mut self.state(), self.base)
    }

    /// Changes the state, then wakes everybody, outside of the lock.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let wakers = {
            let mut state = self.state();
            change(&mut state);
            state.trim(self.base, self.core.options.fill_memory);
            state.wakers()
        };
        wakers.for_each(Waker::wake);
    }

    /// Takes the next piece for the store, if enough has come or all has.
    fn next_run(&self, state: &mut State, all: bool) -> Option<(u64, Bytes)> {
        let most = self.core.options.run_size();
        let ready = (state.received - state.submitted) as usize;
        let small = self.is_whole() && state.submitted == 0 && ready <= INLINE_MAX;
        if state.phase != Phase::Storing || ready == 0 || (ready < most && (!all || small)) {
            return None;
        }
        let begin = state.submitted;
        let data = gather(&state.chunks, begin, ready.min(most));
        state.submitted += data.len() as u64;
        Some((begin, data))
    }

    fn store_ready(self: &Arc<Self>, all: bool) {
        loop {
            let Some((offset, data)) = self.next_run(&mut self.state(), all) else {
                return;
            };
            let fill = Arc::clone(self);
            self.core.enqueue(Box::new(move |core, log| {
                fill.write_run(core, log, offset, &data)
            }));
        }
    }

    /// Hands the store's writer what is left, and the commit.
    fn commit_soon(self: &Arc<Self>, whole: bool) {
        if self.state().phase != Phase::Storing {
            self.core.fills.remove(self);
            return;
        }
        self.store_ready(true);
        let fill = Arc::clone(self);
        self.core
            .enqueue(Box::new(move |core, log| fill.commit(core, log, whole)));
    }

    fn write_run(self: Arc<Self>, core: &Arc<Core>, log: &mut Log, offset: u64, data: &Bytes) {
        if self.state().phase != Phase::Storing {
            return;
        }
        let written =
            append_run(core, log, false, self.target().1, offset, data).and_then(|extents| {
                log.flush(core)?;
                Ok(extents)
            });
        let found = written.ok().and_then(|extents| {
            let segment = core.segment(extents.first()?.segment)?;
            Some((extents, segment))
        });
        match found {
            Some((extents, segment))
                if self.state().written.len() + extents.len() <= EXTENTS_MAX =>
            {
                let extents = extents
                    .into_iter()
                    .map(|extent| (extent, Arc::clone(&segment)));
                self.change(|state| state.written.extend(extents));
            }
            _ => self.stop_storing(),
        }
    }

    /// The disk does not take it: those who follow go on from memory, new ones begin anew.
    pub(crate) fn stop_storing(&self) {
        self.core.fills.remove(self);
        self.change(|state| state.phase = Phase::Passing);
    }

    /// How what it fetches was purged since it began: who comes now must not get it.
    pub(crate) fn purged(&self) -> Option<Mode> {
        let (head, softened) = {
            let state = self.state();
            (state.head.clone(), state.softened)
        };
        let tags = head.as_ref().map_or(&[][..], |head| &head.tags);
        let key = self.target().0;
        let verdict = self.core.purges().verdict(self.born, key.text(), tags);
        verdict.or(softened.then_some(Mode::Soft))
    }

    /// A soft purge by its key. What is whole becomes stale with its commit; false: it is not whole.
    pub(crate) fn soften(&self) -> bool {
        let mut state = self.state();
        state.softened |= state.end == Some(Ok(()));
        state.softened
    }

    /// The commit, on the writer's thread, after all extents.
    fn commit(self: Arc<Self>, core: &Arc<Core>, log: &mut Log, whole: bool) {
        let Some(entry) = self.prepare(core, log, whole) else {
            self.core.fills.remove(&self);
            return;
        };
        let fill = Arc::clone(&self);
        // A failure runs the closure too, or the record was never taken: then the guard in it says so.
        let committed = move |core: &Core, _| {
            let hash = fill.target().1;
            if fill.state().softened
                && let Some(entry) = core.index.get(hash, None)
            {
                core.index
                    .update(hash, entry.location(), |entry| entry.stale(true));
            }
            core.fills.remove(&fill);
        };
        if commit(core, log, entry, committed).is_err() {
            self.core.fills.remove(&self);
        }
    }

    fn prepare(&self, core: &Arc<Core>, log: &mut Log, whole: bool) -> Option<Commit> {
        let (head, mut extents, inline) = {
            let state = self.state();
            let head = state
                .head
                .clone()
                .filter(|_| state.phase == Phase::Storing)?;
            let extents: Vec<Extent> = state.written.iter().map(|(extent, _)| *extent).collect();
            let rest = (state.received - state.on_disk(self.base)) as usize;
            (
                head,
                extents,
                gather(&state.chunks, state.on_disk(self.base), rest),
            )
        };
        if core
            .purges()
            .verdict(self.born, self.target().0.text(), &head.tags)
            == Some(Mode::Hard)
        {
            return None;
        }
        let mut head = Head::clone(&head);
        if whole && self.is_whole() && head.length.is_none() {
            head.length = Some(extents.last().map_or(0, Extent::end) + inline.len() as u64);
        }
        let mut inline = inline;
        if !self.covers_all(&head, whole) && !self.join(core, log, &head, &mut extents, &mut inline)
        {
            return None;
        }
        let (key, hash) = self.target();
        let main = log.ghosts.take(hash);
        Some(Commit {
            hash,
            born: self.born,
            description: Description {
                key: key.clone(),
                head,
                extents,
            },
            inline,
            accessed: (self.began_ms / 1000) as u32,
            main,
            frequency: 0,
        })
    }

    fn covers_all(&self, head: &Head, whole: bool) -> bool {
        whole && self.is_whole() && head.length == Some(self.state().received)
    }

    /// Joins a part with what the store has of the same version. False: it is not to be stored, because it would take
    /// the place of an object that is whole or cannot be told apart from another.
    fn join(
        &self,
        core: &Arc<Core>,
        log: &mut Log,
        head: &Head,
        extents: &mut Vec<Extent>,
        inline: &mut Bytes,
    ) -> bool {
        let Some(length) = head.length else {
            return false;
        };
        if !inline.is_empty() {
            let Ok(more) = append_run(core, log, false, self.target().1, self.base, inline) else {
                return false;
            };
            extents.extend(more);
            *inline = Bytes::new();
        }
        let (key, hash) = self.target();
        let Some(entry) = core.index.get(hash, None) else {
            return !extents.is_empty();
        };
        let location = entry.location();
        let present = core
            .segment(location.segment)
            .and_then(|segment| Stored::parse(segment.read_record(location).ok()?, location, hash));
        let Some(present) = present else { return true };
        let there = &present.description.head;
        let same = present.description.key == *key
            && head.meta.version != 0
            && there.meta.version == head.meta.version
            && there.length == head.length;
        if !same {
            // Something else is there. If it is whole: stale is better than a part.
            let held: u64 = present.extents.iter().map(|old| u64::from(old.len)).sum();
            let is_whole = there.length.is_none_or(|length| held >= length);
            return !is_whole && !extents.is_empty();
        }
        join_extents(extents, &present.extents);
        // What is there already may be there under a new head.
        extents.last().is_some_and(|last| last.end() <= length) && extents.len() <= EXTENTS_MAX
    }
}

/// Adds to extents those of the same body that were stored before. Where they overlap the old ones stay, because they cannot
/// be cut, unless a new one has all that they have.
fn join_extents(extents: &mut Vec<Extent>, before: &[Extent]) {
    let overlaps = |old: &Extent, new: &Extent| old.offset < new.end() && new.offset < old.end();
    let covers = |new: &Extent, old: &Extent| new.offset <= old.offset && old.end() <= new.end();
    let mut joined = before.to_vec();
    for new in std::mem::take(extents) {
        let in_the_way = joined
            .iter()
            .any(|old| overlaps(old, &new) && !covers(&new, old));
        if !in_the_way {
            joined.retain(|old| !overlaps(old, &new));
            joined.push(new);
        }
    }
    joined.sort_by_key(|extent| extent.offset);
    *extents = joined;
}

/// Copies `len` bytes from `begin` on out of consecutive chunks; without a copy when one chunk has them.
fn gather(chunks: &VecDeque<(u64, Bytes)>, begin: u64, len: usize) -> Bytes {
    let end = begin + len as u64;
    let parts = chunks.iter().filter_map(|(offset, chunk)| {
        let from = begin.max(*offset);
        let to = end.min(offset + chunk.len() as u64);
        (from < to).then(|| chunk.slice((from - offset) as usize..(to - offset) as usize))
    });
    let mut parts: Vec<Bytes> = parts.collect();
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut out = BytesMut::with_capacity(len);
    parts.iter().for_each(|part| out.extend_from_slice(part));
    out.freeze()
}

/// The end of a fill that the producer holds. Dropped without [`Writer::finish`], the fill has failed.
pub struct Writer(Arc<Fill>);

impl Writer {
    /// The answer may be stored and shared.
    pub fn head(&mut self, head: Head) {
        let fits = head.size() + self.0.key.text().len() <= Head::MAX;
        let fits = fits
            && head
                .tags
                .iter()
                .all(|tag| tag.len() <= usize::from(u16::MAX));
        if !fits {
            self.0.core.fills.remove(&self.0);
        }
        // Whoever is told that there is no body has the whole answer, and may ask again.
        let whole = fits && self.0.is_whole() && head.length == Some(0);
        if whole {
            self.0.core.fills.arrive(&self.0);
        }
        self.0.change(|state| {
            state.phase = if fits { Phase::Storing } else { Phase::Passing };
            if self.0.is_whole() {
                state.ends_at = head.length;
            }
            state.head = Some(Arc::new(head));
            state.end = whole.then_some(Ok(()));
        });
        if whole {
            self.0.commit_soon(true);
        }
    }

    /// The same, stored under another key: that of a variant, which this head was found to be. Those who look for it
    /// join as well as those who look for the key that the fill began with; who must not have it can tell by the head.
    pub fn head_as(&mut self, key: Key, head: Head) {
        let hash = self.0.core.hash(&key);
        if key != self.0.key && self.0.stored_as.set((key, hash)).is_ok() {
            let mut tables = self.0.core.fills.lock();
            tables
                .running
                .insert((hash, self.0.place), Arc::clone(&self.0));
        }
        self.head(head);
    }

    /// There is no body to follow. Everybody who waits is told `instead`, and nobody joins any more.
    pub fn instead(self, instead: Instead) {
        self.0.core.fills.remove(&self.0);
        self.0.change(|state| {
            state.phase = Phase::Passing;
            state.instead = Some(instead);
            state.end = Some(Err(Failure::ProducerGone));
        });
    }

    /// Goes on as the fetch of all of the body of `key`, or of the part that begins at `part`: what is written there is as
    /// old as this fill. The other half is a follower of it, for everybody. `None`: what this fill fetched was purged.
    pub fn turn_into(&self, key: &Key, part: Option<u64>) -> Option<(Writer, Follower)> {
        let fill = &self.0;
        if fill.purged().is_some() || fill.state().phase == Phase::Passing {
            return None;
        }
        let core = &fill.core;
        let hash = core.hash(key);
        let place = part.map_or(Place::Whole, Place::Part);
        let since = (fill.born, fill.began_ms);
        let (other, writer) = Fill::start_as_of(core, key, hash, place, since);
        let follower = other.first();
        core.fills.lock().running.insert((hash, place), other);
        Some((writer, follower))
    }

    /// Whether the first follower is still there.
    pub fn first_stays(&self) -> bool {
        self.0.state().cursors.contains_key(&0)
    }

    /// The fill's birth: purges from then on hit what comes of it.
    pub fn born(&self) -> u64 {
        self.0.born
    }

    /// When the fill began: what a marker that was stored now would be born after.
    pub fn began_ms(&self) -> u64 {
        self.0.began_ms
    }

    /// The answer is for one only: who joined is released at once, the first follower goes on. Until `until_ms` the key
    /// is known as uncacheable.
    pub fn pass(&mut self, head: Head, until_ms: u64) {
        self.0.core.fills.lock().learn(self.0.hash, until_ms);
        self.0.core.fills.remove(&self.0);
        self.0.change(|state| {
            state.phase = Phase::Passing;
            state.private = true;
            state.head = Some(Arc::new(head));
            state.cursors.retain(|&number, _| number == 0);
        });
    }

    /// Brings a piece of the body; waits while too much of it is neither stored nor taken. Call [`Writer::head`] or
    /// [`Writer::pass`] before. With the last byte of a body of known length it has come to its end: what is written after
    /// that is not taken, and how the producer ends has no say any more.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), Abandoned> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_complete() {
            poll_fn(|cx| self.poll_room(cx)).await?;
            let chunk = rest.split_to(rest.len().min(EXTENT_MAX));
            let whole = self.is_last(chunk.len());
            // A client that has the last byte has the whole answer, and what it asks next must find it.
            if whole {
                self.0.core.fills.arrive(&self.0);
            }
            self.0.change(|state| {
                let at = state.received;
                state.received += chunk.len() as u64;
                state.chunk_bytes += chunk.len();
                state.chunks.push_back((at, chunk));
                if whole {
                    state.end = Some(Ok(()));
                }
            });
            match whole {
                true => self.0.commit_soon(true),
                false => self.0.store_ready(false),
            }
        }
        Ok(())
    }

    /// Whether a body that is stored is whole with these bytes. One that is longer than it said is not.
    fn is_last(&self, len: usize) -> bool {
        let state = self.0.state();
        let end = state.received + len as u64;
        state.phase == Phase::Storing && state.ends_at == Some(end)
    }

    /// Says where the part ends that this fill brings, if it is one: before its head, so that those who have that know.
    pub fn ends_at(&mut self, end: u64) {
        self.0.state().ends_at = Some(end);
    }

    /// Whether the body came to its end.
    pub fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Abandoned>> {
        let mut state = self.0.state();
        if state.is_abandoned() {
            return Poll::Ready(Err(Abandoned));
        }
        // What the store takes at a time must always fit, else it would never be handed to it.
        let options = &self.0.core.options;
        if state.chunk_bytes <= options.fill_memory.max(2 * options.run_size()) {
            return Poll::Ready(Ok(()));
        }
        state.producer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Resolves when nobody follows and nothing is stored.
    pub async fn abandoned(&self) {
        poll_fn(|cx| {
            let mut state = self.0.state();
            if state.is_abandoned() {
                return Poll::Ready(());
            }
            state.producer = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The body is whole. If its length is not what the head said, the fill has failed.
    pub fn finish(self) {
        let length = self.0.state().head.as_ref().and_then(|head| head.length);
        let received = self.0.state().received;
        let wrong = self.0.is_whole() && length.is_some_and(|length| length != received);
        let wrong = wrong || length.is_some_and(|length| length < received);
        self.end(if wrong { Err(Failure::Length) } else { Ok(()) });
    }

    /// The body ends here for this reason. Followers are told; what came is kept as a part of the object if its head
    /// has a version and a length.
    pub fn fail(self, why: Failure) {
        self.end(Err(why));
    }

    fn end(&self, end: Result<(), Failure>) {
        if self.0.state().end.is_some() {
            return;
        }
        let whole = end.is_ok();
        let useless = matches!(end, Err(Failure::Length | Failure::Changed));
        if useless || !whole && !self.0.is_worth_keeping() {
            self.0.core.fills.remove(&self.0);
            self.0.change(|state| state.end = Some(end.clone()));
            return;
        }
        // Until it is committed, it is found, or those who look wait for the part.
        self.0.core.fills.arrive(&self.0);
        self.0.change(|state| state.end = Some(end.clone()));
        self.0.commit_soon(whole);
    }

    /// The end of what was brought: where a broken fetch resumes.
    pub fn position(&self) -> u64 {
        self.0.state().received
    }

    /// A cursor over what was brought so far, from its beginning. `None`: it is not stored, so the beginning may be gone.
    pub fn follow_from_start(&self) -> Option<Follower> {
        self.0.follow()
    }

    /// How many follow now.
    pub fn followers(&self) -> usize {
        self.0.state().cursors.len()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(Err(Failure::ProducerGone));
    }
}
