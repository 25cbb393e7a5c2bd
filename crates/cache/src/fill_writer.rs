//! The end of a fill that belongs to the fetch.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::fill::{Abandoned, Coverage, Failure, Fill, Instead, Phase};
use crate::follower::Follower;
use crate::format::EXTENT_MAX;
use crate::store_core::StoreCore;
use crate::{Head, Key};

/// The end of a fill that the producer holds. Dropped without [`Writer::finish`], the fill has failed.
pub struct Writer {
    core: Arc<StoreCore>,
    fill: Arc<Fill>,
}

impl Writer {
    /// Starts a fill. `since` is its birth, and when it began.
    pub(crate) fn start(
        core: &Arc<StoreCore>,
        (key, hash): (&Key, u64),
        coverage: Coverage,
        since: (u64, u64),
    ) -> Writer {
        Writer {
            core: Arc::clone(core),
            fill: Fill::new(&core.options, (key, hash), coverage, since),
        }
    }

    /// The fill that it writes.
    pub(crate) fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// The answer may be stored and shared.
    pub fn head(&mut self, head: Head) {
        let fits = head.size() + self.fill.key.text().len() <= Head::MAX;
        let fits = fits
            && head
                .tags
                .iter()
                .all(|tag| tag.len() <= usize::from(u16::MAX));
        if !fits {
            self.core.fills.remove(&self.fill);
        }
        // A client that is told that there is no body has the whole answer, and what it asks next must find it.
        let whole = fits && self.fill.is_whole() && head.length == Some(0);
        if whole {
            self.core.fills.arrive(&self.fill);
        }
        self.fill.change(|state| {
            state.phase = if fits { Phase::Storing } else { Phase::Passing };
            if self.fill.is_whole() {
                state.ends_at = head.length;
            }
            state.head = Some(Arc::new(head));
            state.end = whole.then_some(Ok(()));
        });
        if whole {
            self.fill.commit_soon(&self.core, true);
        }
    }

    /// The same, stored under another key: that of a variant, which this head was found to be. Those who look for it
    /// join as well as those who look for the key that the fill began with; who must not have it can tell by the head.
    pub fn head_as(&mut self, key: Key, head: Head) {
        let hash = self.core.hash(&key);
        if key != self.fill.key && self.fill.stored_as.set((key, hash)).is_ok() {
            let mut tables = self.core.fills.lock();
            tables
                .running
                .insert((hash, self.fill.coverage), Arc::clone(&self.fill));
        }
        self.head(head);
    }

    /// There is no body to follow. All that wait are told `instead`, and none can join from now on.
    pub fn instead(self, instead: Instead) {
        self.core.fills.remove(&self.fill);
        self.fill.change(|state| {
            state.phase = Phase::Passing;
            state.instead = Some(instead);
            state.end = Some(Err(Failure::ProducerGone));
        });
    }

    /// Goes on as the fetch of all of the body of `key`, or of the part that begins at `part`: what is written there is as
    /// old as this fill. The other half is a follower of it, to be cloned for each. `None`: what this fill fetched was purged.
    pub fn turn_into(&self, key: &Key, part: Option<u64>) -> Option<(Writer, Follower)> {
        let (core, fill) = (&self.core, &self.fill);
        if core.purge_of(fill).is_some() || fill.state().phase == Phase::Passing {
            return None;
        }
        let hash = core.hash(key);
        let coverage = part.map_or(Coverage::Whole, Coverage::Part);
        let since = (fill.born, fill.began_ms);
        let writer = Writer::start(core, (key, hash), coverage, since);
        let other = Arc::clone(writer.fill());
        let follower = Follower::first(&other);
        core.fills.lock().running.insert((hash, coverage), other);
        Some((writer, follower))
    }

    /// Whether the first follower is still there.
    pub fn first_stays(&self) -> bool {
        self.fill.state().cursors.contains_key(&0)
    }

    /// The fill's birth: purges from then on hit what comes of it.
    pub fn born(&self) -> u64 {
        self.fill.born
    }

    /// When the fill began: what a marker that was stored now would be born after.
    pub fn began_ms(&self) -> u64 {
        self.fill.began_ms
    }

    /// The answer is for one client only: followers that joined are released at once, the first one goes on. Until `until_ms` the key
    /// is known as uncacheable.
    pub fn pass(&mut self, head: Head, until_ms: u64) {
        self.core.fills.lock().learn(self.fill.hash, until_ms);
        self.core.fills.remove(&self.fill);
        self.fill.change(|state| {
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
                self.core.fills.arrive(&self.fill);
            }
            self.fill.change(|state| {
                let at = state.received;
                state.received += chunk.len() as u64;
                state.chunk_bytes += chunk.len();
                state.chunks.push_back((at, chunk));
                if whole {
                    state.end = Some(Ok(()));
                }
            });
            match whole {
                true => self.fill.commit_soon(&self.core, true),
                false => self.fill.store_ready(&self.core, false),
            }
        }
        Ok(())
    }

    /// Whether a body that is stored is whole with these bytes. One that is longer than it said is not.
    fn is_last(&self, len: usize) -> bool {
        let state = self.fill.state();
        let end = state.received + len as u64;
        state.phase == Phase::Storing && state.ends_at == Some(end)
    }

    /// Says where the part ends that this fill brings, if it is one: before its head, so that those who have that know.
    pub fn ends_at(&mut self, end: u64) {
        self.fill.state().ends_at = Some(end);
    }

    /// Whether the body came to its end.
    pub fn is_complete(&self) -> bool {
        self.fill.is_complete()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Abandoned>> {
        let mut state = self.fill.state();
        if state.is_abandoned() {
            return Poll::Ready(Err(Abandoned));
        }
        // What the store takes at a time must always fit, else it would never be handed to it.
        let options = &self.core.options;
        if state.chunk_bytes <= options.fill_memory.max(2 * options.run_size()) {
            return Poll::Ready(Ok(()));
        }
        state.producer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Resolves when no follower is left and nothing is stored.
    pub async fn abandoned(&self) {
        poll_fn(|cx| {
            let mut state = self.fill.state();
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
        let length = self.fill.state().head.as_ref().and_then(|head| head.length);
        let received = self.fill.state().received;
        let wrong = self.fill.is_whole() && length.is_some_and(|length| length != received);
        let wrong = wrong || length.is_some_and(|length| length < received);
        self.end(if wrong { Err(Failure::Length) } else { Ok(()) });
    }

    /// The body ends here for this reason. Followers are told; what came is kept as a part of the object if its head
    /// has a version and a length.
    pub fn fail(self, why: Failure) {
        self.end(Err(why));
    }

    fn end(&self, end: Result<(), Failure>) {
        if self.fill.state().end.is_some() {
            return;
        }
        let whole = end.is_ok();
        let useless = matches!(end, Err(Failure::Length | Failure::Changed));
        if useless || !whole && !self.fill.is_worth_keeping() {
            self.core.fills.remove(&self.fill);
            self.fill.change(|state| state.end = Some(end.clone()));
            return;
        }
        // Until it is committed, it is found, or those who look wait for the part.
        self.core.fills.arrive(&self.fill);
        self.fill.change(|state| state.end = Some(end.clone()));
        self.fill.commit_soon(&self.core, whole);
    }

    /// The end of what was brought: where a broken fetch resumes.
    pub fn position(&self) -> u64 {
        self.fill.state().received
    }

    /// A cursor over what was brought so far, from its beginning. `None`: it is not stored, so the beginning may be gone.
    pub fn follow_from_start(&self) -> Option<Follower> {
        Follower::of(&self.fill)
    }

    /// How many follow now.
    pub fn followers(&self) -> usize {
        self.fill.state().cursors.len()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.end(Err(Failure::ProducerGone));
    }
}
