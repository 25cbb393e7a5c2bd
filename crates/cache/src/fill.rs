//! A fill: one body on its way into the cache, and the cursors of all that follow it.
//!
//! ```text
//! waiting ── head ──▶ storing ── finish ──▶ ended, committed
//!    │                  │  └── disk fails ──▶ passing
//!    │                  └───── fail ────────▶ failed: all followers are told why
//!    └─── pass ──▶ passing: joiners released, the first follower goes on alone
//! ```
//!
//! No follower leads: the writer belongs to the fetch, and each follower, that of the first client included, has a
//! cursor of its own, on any loop. So no client can slow down another, or end the fetch by leaving.
//!
//! The body is in memory until it is in the store, then (above `fill_memory`) only there, and slow followers read it
//! from the disk. If it is not stored, the writer waits for the slowest follower instead, because nothing else bounds
//! the memory. Followers are woken in the order in which they began to wait.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use bytes::{Bytes, BytesMut};

use base::sync::{Mutex, MutexGuard};

use crate::format::{Extent, INLINE_MAX};
use crate::options::StoreOptions;
use crate::segment::Segment;
use crate::{CacheKey, ObjectHead};

/// Why a fill ended before its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillFailure {
    /// The writer was dropped before the end of the body.
    ProducerGone,
    /// The reason that the producer gave.
    Producer(Arc<str>),
    /// The body is not as long as its head said.
    Length,
    /// The transfer broke off, and the next answer of the origin was another response. Nothing of it is kept.
    Changed,
    /// The part that this follower needs next could not be read back from the store.
    Storage(Arc<str>),
}

impl fmt::Display for FillFailure {
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
pub enum FollowError {
    /// The response must not be shared: each client fetches for itself.
    Released,
    /// The body ended early. A follower that has received nothing may start again.
    Failed(FillFailure),
    /// There is no body to follow. The producer says what to do instead.
    Message(FillMessage),
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("the response must not be shared"),
            Self::Failed(why) => why.fmt(f),
            Self::Message(_) => f.write_str("the origin sent a different response"),
        }
    }
}

/// What a producer tells its followers in place of a body. The cache does not look into it.
#[derive(Clone)]
pub struct FillMessage(Arc<dyn Any + Send + Sync>);

impl FillMessage {
    /// Wraps the message for the followers.
    pub fn new(message: impl Any + Send + Sync) -> Self {
        Self(Arc::new(message))
    }

    /// The message, if it is of this type.
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl PartialEq for FillMessage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for FillMessage {}

impl fmt::Debug for FillMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instead")
    }
}

/// What a fill brings of the object of its key: requests that want the same join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FillCoverage {
    /// All of it.
    Whole,
    /// A part that begins at this byte.
    Part(u64),
    /// What a `Range` field asks for, by its hash ([`crate::CacheStore::asked_in`]). Which part of the body that is can
    /// be told from the head of the response; another fill brings it.
    Asked(u64),
}

/// Where the bytes of a fill come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillFeed {
    /// The origin.
    #[default]
    Origin,
    /// Another cache that is asked for what it has stored, then the origin.
    StoredElsewhere,
    /// A fetch of another cache, which may itself be waiting for one.
    OtherCache,
}

/// The feed of a fill and of its successors, as it is at the moment: see [`FillFeed`]. It is asked before another cache is made to
/// wait for this fill, because caches that wait for each other wait for ever.
#[derive(Clone, Debug, Default)]
pub struct FeedMark(Arc<AtomicU8>);

impl FeedMark {
    pub(crate) fn new(feed: FillFeed) -> FeedMark {
        FeedMark(Arc::new(AtomicU8::new(feed as u8)))
    }

    /// From now on the bytes come from the origin. There is no way back.
    pub fn turn_to_origin(&self) {
        self.0.store(FillFeed::Origin as u8, Relaxed);
    }

    /// The feed at the moment.
    pub fn feed(&self) -> FillFeed {
        match self.0.load(Relaxed) {
            feed if feed == FillFeed::OtherCache as u8 => FillFeed::OtherCache,
            feed if feed == FillFeed::StoredElsewhere as u8 => FillFeed::StoredElsewhere,
            _ => FillFeed::Origin,
        }
    }
}

impl FillCoverage {
    /// The first byte of the body that it brings.
    pub(crate) fn first_byte(self) -> u64 {
        match self {
            FillCoverage::Part(begin) => begin,
            FillCoverage::Whole | FillCoverage::Asked(_) => 0,
        }
    }
}

/// No follower is left and nothing is stored: to fetch on would be of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillAbandoned;

/// A fill. Shared by its writer, its followers, the table of fills and jobs of the store's writer.
pub(crate) struct Fill {
    /// The options of the store. A fill knows no more of the store, so that the table of fills can be a part of it.
    pub(crate) options: Arc<StoreOptions>,
    /// The key that was looked up, under which others join.
    pub(crate) key: CacheKey,
    pub(crate) hash: u64,
    /// The key under which it is stored, and its hash, if the head named a variant.
    pub(crate) stored_as: OnceLock<(CacheKey, u64)>,
    /// What it brings of the body: requests for something else do not join.
    pub(crate) coverage: FillCoverage,
    /// The first byte of the body that it brings.
    pub(crate) base: u64,
    /// The sequence number when it began: a purge with a higher one hits what it brings.
    pub(crate) born: u64,
    pub(crate) began_ms: u64,
    /// Set before others can find the fill.
    pub(crate) feed: FeedMark,
    /// What it brings is for its followers only: nothing of it is committed.
    pub(crate) is_transient: AtomicBool,
    /// A newer fill has taken its place among those that requests join.
    pub(crate) is_overtaken: AtomicBool,
    pub(crate) state: Mutex<FillProgress>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FillPhase {
    /// No head yet: whether the response may be stored and shared is not known.
    Waiting,
    /// The body goes to the store.
    Storing,
    /// Not to be stored: private, or the disk failed.
    Passing,
}

pub(crate) struct FillProgress {
    pub(crate) phase: FillPhase,
    /// The response is for the first follower only.
    pub(crate) private: bool,
    pub(crate) head: Option<Arc<ObjectHead>>,
    pub(crate) message: Option<FillMessage>,
    /// Consecutive pieces, each with its place in the body.
    pub(crate) chunks: VecDeque<(u64, Bytes)>,
    pub(crate) chunk_bytes: usize,
    /// The end of what has been received.
    pub(crate) received: u64,
    /// It was purged softly when it was whole and not committed yet.
    pub(crate) softened: bool,
    /// Where the body, or the part that is fetched, ends, if that is known.
    pub(crate) ends_at: Option<u64>,
    /// The end of what was handed to the writer of the store.
    pub(crate) submitted: u64,
    pub(crate) written: Vec<(Extent, Arc<Segment>)>,
    /// How the body ended; `None` while more of it may come.
    pub(crate) end: Option<Result<(), FillFailure>>,
    /// The cursors of the followers, by their number; the first is 0.
    pub(crate) cursors: BTreeMap<u64, u64>,
    pub(crate) next_follower: u64,
    /// The wakers of the followers that wait, in order of arrival.
    pub(crate) waiting: BTreeMap<u64, Waker>,
    pub(crate) next_ticket: u64,
    /// The waker of the producer, which waits for room in memory, or for its last follower to leave.
    pub(crate) producer: Option<Waker>,
}

impl FillProgress {
    /// The end of what can be read back from the store.
    pub(crate) fn stored_end(&self, base: u64) -> u64 {
        self.written.last().map_or(base, |(extent, _)| extent.end())
    }

    /// Frees chunks that can be read back from the store, or that all followers have had.
    pub(crate) fn trim(&mut self, base: u64, limit: usize) {
        let on_disk = self.stored_end(base);
        // Without a store a chunk is kept for the slowest follower. With one, the followers do not matter.
        let slowest = match self.phase {
            FillPhase::Passing => self.cursors.values().min().copied().unwrap_or(u64::MAX),
            FillPhase::Waiting | FillPhase::Storing => 0,
        };
        while let Some((offset, chunk)) = self.chunks.front() {
            let end = offset + chunk.len() as u64;
            // What is on the disk stays in memory while there is room: followers that keep up need no reads.
            let stored = end <= on_disk && self.chunk_bytes > limit;
            if !stored && end > slowest {
                break;
            }
            self.chunk_bytes -= chunk.len();
            self.chunks.pop_front();
        }
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.phase == FillPhase::Passing && self.cursors.is_empty()
    }

    fn wakers(&mut self) -> impl Iterator<Item = Waker> + use<> {
        std::mem::take(&mut self.waiting)
            .into_values()
            .chain(self.producer.take())
    }
}

impl Fill {
    /// A fill, born with this sequence number at this time.
    pub(crate) fn new(
        options: &Arc<StoreOptions>,
        (key, hash): (&CacheKey, u64),
        coverage: FillCoverage,
        (born, began_ms): (u64, u64),
        feed: FeedMark,
    ) -> Arc<Fill> {
        let base = coverage.first_byte();
        let state = FillProgress {
            phase: FillPhase::Waiting,
            private: false,
            head: None,
            message: None,
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
        Arc::new(Fill {
            options: Arc::clone(options),
            key: key.clone(),
            hash,
            stored_as: OnceLock::new(),
            coverage,
            base,
            born,
            began_ms,
            feed,
            is_transient: AtomicBool::new(false),
            is_overtaken: AtomicBool::new(false),
            state: Mutex::new(state),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, FillProgress> {
        self.state.lock()
    }

    /// The key under which it is stored, and its hash.
    pub(crate) fn storage_key(&self) -> (&CacheKey, u64) {
        let other = self.stored_as.get().map(|(key, hash)| (key, *hash));
        other.unwrap_or((&self.key, self.hash))
    }

    /// The hashes of the keys under which it may stand in the table.
    pub(crate) fn hashes(&self) -> [u64; 2] {
        [self.hash, self.storage_key().1]
    }

    /// Whether the body came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.state().end == Some(Ok(()))
    }

    /// Bytes that it will still write, if its length is known.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let state = self.state();
        let end = state.ends_at.unwrap_or(0).max(state.received);
        match state.phase {
            FillPhase::Storing => end.saturating_sub(state.stored_end(self.base)),
            FillPhase::Waiting | FillPhase::Passing => 0,
        }
    }

    /// The end of the last byte that it has stored in a segment.
    pub(crate) fn last_byte_in(&self, segment: u32) -> u64 {
        let state = self.state();
        let of_it = state
            .written
            .iter()
            .filter(|(extent, _)| extent.segment == segment && state.phase == FillPhase::Storing);
        of_it
            .map(|(extent, _)| extent.position + u64::from(extent.len))
            .max()
            .unwrap_or(0)
    }

    /// Whether nothing of it is committed.
    pub(crate) fn is_transient(&self) -> bool {
        self.is_transient.load(Relaxed)
    }

    /// How recent its response is, compared with others of its key: by when its head came, then by when the fill began.
    pub(crate) fn recency(&self) -> (u64, u64) {
        let head = self.state().head.clone();
        (head.map_or(0, |head| head.meta.validated_ms), self.born)
    }

    /// Whether it brings all of the body.
    pub(crate) fn is_whole(&self) -> bool {
        self.coverage == FillCoverage::Whole
    }

    /// Whether an incomplete body is kept. Without a strong validator and a length the rest can neither be asked for
    /// nor joined with it.
    pub(crate) fn is_worth_keeping(&self) -> bool {
        let state = self.state();
        let told_apart = |head: &Arc<ObjectHead>| head.meta.version != 0 && head.length.is_some();
        state.received > self.base && state.head.as_ref().is_some_and(told_apart)
    }

    pub(crate) fn has_key(&self, key: &CacheKey) -> bool {
        self.key == *key || self.storage_key().0 == key
    }

    /// Changes the state, then wakes all that wait. Outside the lock, because a waker may run its task at once, and
    /// that asks for the lock.
    pub(crate) fn update_and_wake(&self, change: impl FnOnce(&mut FillProgress)) {
        let wakers = {
            let mut state = self.state();
            change(&mut state);
            state.trim(self.base, self.options.fill_memory);
            state.wakers()
        };
        wakers.for_each(Waker::wake);
    }

    /// Takes the next run for the store, if a whole one is there or `all` that is left is wanted.
    pub(crate) fn next_run(&self, state: &mut FillProgress, all: bool) -> Option<(u64, Bytes)> {
        let most = self.options.run_size();
        let ready = (state.received - state.submitted) as usize;
        // A small body goes into the object record with the commit, and is not written as a run even at its end.
        let small = self.is_whole() && state.submitted == 0 && ready <= INLINE_MAX;
        // What is not kept goes to the disk only where it has no room in memory.
        if self.is_transient() && state.chunk_bytes <= self.options.fill_memory {
            return None;
        }
        if state.phase != FillPhase::Storing || ready == 0 || (ready < most && (!all || small)) {
            return None;
        }
        let begin = state.submitted;
        let data = copy_range(&state.chunks, begin, ready.min(most));
        // Under the same lock as the look: no byte is handed over twice.
        state.submitted += data.len() as u64;
        Some((begin, data))
    }

    /// A soft purge by its key. A whole body becomes stale with its commit. False: it is not whole.
    pub(crate) fn purge_softly(&self) -> bool {
        let mut state = self.state();
        state.softened |= state.end == Some(Ok(()));
        state.softened
    }
}

/// Copies `len` bytes from `begin` on out of consecutive chunks; without a copy when one chunk has them.
pub(crate) fn copy_range(chunks: &VecDeque<(u64, Bytes)>, begin: u64, len: usize) -> Bytes {
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
