//! The producer's end of a fill: the fetch writes head and body into it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bytes::Bytes;

use crate::fill::{
    FeedMark, Fill, FillAbandoned, FillCoverage, FillFailure, FillMessage, FillPhase,
};
use crate::fill_follower::FillFollower;
use crate::format::EXTENT_MAX;
use crate::store_core::StoreCore;
use crate::{CacheKey, ObjectHead};

/// The end of a fill that the producer holds. Dropped without [`FillWriter::finish`], the fill has failed.
pub struct FillWriter {
    core: Arc<StoreCore>,
    fill: Arc<Fill>,
}

impl FillWriter {
    /// Starts a fill. `since` is its birth, and when it began.
    pub(crate) fn start(
        core: &Arc<StoreCore>,
        (key, hash): (&CacheKey, u64),
        coverage: FillCoverage,
        since: (u64, u64),
        feed: FeedMark,
    ) -> FillWriter {
        rt::probes::fill_start(hash);
        FillWriter {
            core: Arc::clone(core),
            fill: Fill::new(&core.options, (key, hash), coverage, since, feed),
        }
    }

    /// The fill that it writes.
    pub(crate) fn fill(&self) -> &Arc<Fill> {
        &self.fill
    }

    /// The answer may be stored and shared.
    pub fn start_storing(&mut self, head: ObjectHead) {
        // The object record must hold head, tags and key, with a tag's length in two bytes. What does not fit is passed
        // through.
        let fits = head.size() + self.fill.key.text().len() <= ObjectHead::MAX;
        let fits = fits
            && head
                .tags
                .iter()
                .all(|tag| tag.len() <= usize::from(u16::MAX));
        // A purge before the head has taken it out of the table, where the next one would look for it.
        let fits = fits && !self.was_stopped();
        // A request that came later would find the beginning gone from memory.
        if !fits {
            self.core.fills.remove(&self.fill);
        }
        // A head that announces no body is the whole response. The next request of a client that has it must find the
        // object, so the fill counts as complete before its head can be seen.
        let whole = fits && self.fill.is_whole() && head.length == Some(0);
        if whole && !self.fill.is_transient() {
            let fills = &self.core.fills;
            fills.add_completed(&self.fill, head.meta.validated_ms);
        }
        self.fill.update_and_wake(|state| {
            state.phase = if fits && state.phase != FillPhase::Passing {
                FillPhase::Storing
            } else {
                FillPhase::Passing
            };
            // The end of a part follows from its range and was set before: the length in a head is that of the whole
            // body.
            if self.fill.is_whole() {
                state.ends_at = head.length;
            }
            state.head = Some(Arc::new(head));
            state.end = whole.then_some(Ok(()));
        });
        if whole {
            self.commit();
        }
    }

    /// Commits a body that is whole, unless it is not to be kept.
    fn commit(&self) {
        match self.fill.is_transient() {
            true => self.core.fills.remove(&self.fill),
            false => self.fill.enqueue_commit(&self.core, true),
        }
    }

    /// Whether what it brings is stored, or only passed on to its followers. It can change until the last byte.
    pub fn keep(&mut self, keeps: bool) {
        self.fill.is_transient.store(!keeps, Relaxed);
    }

    /// Where its bytes come from.
    pub fn feed(&self) -> FeedMark {
        self.fill.feed.clone()
    }

    /// As [`FillWriter::start_storing`], but stored under the key of the variant that the head turned out to be.
    /// Requests join under either key. Those that came by the first key compare their own values with the head, and
    /// look again if theirs is another variant.
    pub fn head_as(&mut self, key: CacheKey, head: ObjectHead) {
        let hash = self.core.hash(&key);
        if key != self.fill.key && self.fill.stored_as.set((key, hash)).is_ok() {
            let mut tables = self.core.fills.lock();
            // One that was stopped has left the table, and nothing would take it out again before its end.
            if !self.was_stopped() {
                tables.put_running(hash, &self.fill);
            }
        }
        self.start_storing(head);
    }

    /// There is no body to follow. All that wait get `message`; from now on none can join.
    pub fn end_with_message(self, message: FillMessage) {
        self.core.fills.remove(&self.fill);
        self.fill.update_and_wake(|state| {
            state.phase = FillPhase::Passing;
            state.message = Some(message);
            state.end = Some(Err(FillFailure::ProducerGone));
        });
    }

    /// Starts the fill in which the fetch continues, of the whole body of `key` or of the part that begins at `part`. It is
    /// as old as this fill, so that a purge since then hits it too. This fill remains, to tell its followers. The new
    /// fill's follower is to be cloned for each of them. `None`: what this fill fetched was purged, or is not stored.
    pub fn start_successor(
        &self,
        key: &CacheKey,
        part: Option<u64>,
    ) -> Option<(FillWriter, FillFollower)> {
        let (core, fill) = (&self.core, &self.fill);
        if core.purge_of(fill).is_some() || fill.state().phase == FillPhase::Passing {
            return None;
        }
        let hash = core.hash(key);
        let coverage = part.map_or(FillCoverage::Whole, FillCoverage::Part);
        let since = (fill.born, fill.began_ms);
        let writer = FillWriter::start(core, (key, hash), coverage, since, fill.feed.clone());
        writer.fill.is_transient.store(fill.is_transient(), Relaxed);
        let other = Arc::clone(writer.fill());
        let follower = FillFollower::for_first_client(&other);
        core.fills.lock().put_running(hash, &other);
        Some((writer, follower))
    }

    /// Whether the first follower is still there.
    pub fn first_stays(&self) -> bool {
        self.fill.state().cursors.contains_key(&0)
    }

    /// The birth of the fill: purges from then on hit what it brings.
    pub fn born(&self) -> u64 {
        self.fill.born
    }

    /// Whether a purge of its key has hit the fill, or the disk has failed: nothing of it is to be stored.
    pub fn was_stopped(&self) -> bool {
        self.fill.state().phase == FillPhase::Passing
    }

    /// When the fill began, in milliseconds as the caller gave them.
    pub fn began_ms(&self) -> u64 {
        self.fill.began_ms
    }

    /// The response is for one client only. Followers that joined are released at once; the first one keeps it. Until
    /// `until_ms` the key is remembered as hit-for-miss.
    pub fn start_passing(&mut self, head: ObjectHead, until_ms: u64) {
        // Remembered before the fill leaves the table: a request in between would start a fill that others join in
        // vain.
        self.core
            .fills
            .lock()
            .remember_hit_for_miss(self.fill.hash, until_ms);
        self.core.fills.remove(&self.fill);
        self.fill.update_and_wake(|state| {
            state.phase = FillPhase::Passing;
            state.private = true;
            state.head = Some(Arc::new(head));
            // Only the first client sets the pace from here on.
            state.cursors.retain(|&number, _| number == 0);
        });
    }

    /// Adds a piece of the body, and waits while too much of it is neither stored nor taken. Call
    /// [`FillWriter::start_storing`] or [`FillWriter::start_passing`] before.
    ///
    /// The last byte of a body of known length ends the fill: what is written after it is ignored, and how the producer
    /// ends no longer matters.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), FillAbandoned> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_complete() {
            poll_fn(|cx| self.poll_room(cx)).await?;
            // In pieces, so that the bound of memory holds whatever the producer hands over at once.
            let chunk = rest.split_to(rest.len().min(EXTENT_MAX));
            let whole = self.is_last(chunk.len());
            // With the last byte a client has the whole response, and its next request must find the object: the fill
            // counts as complete before that byte can be seen.
            if whole && !self.fill.is_transient() {
                self.add_completed();
            }
            self.fill.update_and_wake(|state| {
                let at = state.received;
                state.received += chunk.len() as u64;
                state.chunk_bytes += chunk.len();
                state.chunks.push_back((at, chunk));
                if whole {
                    state.end = Some(Ok(()));
                }
            });
            match whole {
                true => self.commit(),
                false => self.fill.store_ready(&self.core, false),
            }
        }
        Ok(())
    }

    fn add_completed(&self) {
        let (validated_ms, _) = self.fill.recency();
        self.core.fills.add_completed(&self.fill, validated_ms);
    }

    /// Whether a body that is stored is whole with these bytes. A body that goes beyond its announced length never is.
    fn is_last(&self, len: usize) -> bool {
        let state = self.fill.state();
        let end = state.received + len as u64;
        state.phase == FillPhase::Storing && state.ends_at == Some(end)
    }

    /// Sets where the part that this fill brings ends. To be called before its head is given, so that followers who
    /// have the head know the end.
    pub fn ends_at(&mut self, end: u64) {
        self.fill.state().ends_at = Some(end);
    }

    /// Whether the body came to its end.
    pub fn is_complete(&self) -> bool {
        self.fill.is_complete()
    }

    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), FillAbandoned>> {
        let mut state = self.fill.state();
        if state.is_abandoned() {
            return Poll::Ready(Err(FillAbandoned));
        }
        // A whole run must fit into memory. Otherwise none would ever be complete, nothing would be written, and this
        // would wait for ever.
        let options = &self.core.options;
        if state.chunk_bytes <= options.fill_memory.max(2 * options.run_size()) {
            return Poll::Ready(Ok(()));
        }
        state.producer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Resolves when no follower is left and nothing is stored.
    pub async fn wait_until_abandoned(&self) {
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
        // A whole body must have the announced length; a part ends earlier, but never later.
        let wrong = self.fill.is_whole() && length.is_some_and(|length| length != received);
        let wrong = wrong || length.is_some_and(|length| length < received);
        self.end(if wrong {
            Err(FillFailure::Length)
        } else {
            Ok(())
        });
    }

    /// The body ends here for this reason, and followers are told. What has come is kept as a part of the object if its
    /// head has a strong validator and a length.
    pub fn fail(self, why: FillFailure) {
        self.end(Err(why));
    }

    fn end(&self, end: Result<(), FillFailure>) {
        // The last byte of a known length has ended it: the producer has no say any more.
        if self.fill.state().end.is_some() {
            return;
        }
        let whole = end.is_ok();
        // A wrong length or another response: what has come cannot be trusted to be part of anything.
        let useless = matches!(end, Err(FillFailure::Length | FillFailure::Changed));
        if useless || self.fill.is_transient() || !whole && !self.fill.is_worth_keeping() {
            self.core.fills.remove(&self.fill);
            self.fill
                .update_and_wake(|state| state.end = Some(end.clone()));
            return;
        }
        // From here until the commit, requests find this fill, or wait for the part that it brought. Otherwise they
        // would fetch again what is about to be stored.
        self.add_completed();
        self.fill
            .update_and_wake(|state| state.end = Some(end.clone()));
        self.fill.enqueue_commit(&self.core, whole);
    }

    /// The end of what has come: where a broken fetch resumes.
    pub fn position(&self) -> u64 {
        self.fill.state().received
    }

    /// A cursor at the beginning. `None`: it is not stored, so that the beginning may be gone.
    pub fn follow_from_start(&self) -> Option<FillFollower> {
        FillFollower::join_fill(&self.fill)
    }

    /// The number of followers.
    pub fn follower_count(&self) -> usize {
        self.fill.state().cursors.len()
    }
}

impl Drop for FillWriter {
    fn drop(&mut self) {
        self.end(Err(FillFailure::ProducerGone));
        rt::probes::fill_end(self.fill.hash, self.fill.is_complete());
    }
}
