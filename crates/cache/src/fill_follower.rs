//! A cursor over a fill. It reads from memory, or from where the store has put the body.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use crate::fill::{Fill, FillFailure, FillFeed, FillPhase, FillProgress, FollowError, copy_range};
use crate::format::{Extent, run_end};
use crate::object::{ReadError, SegmentRange, read_extent};
use crate::segment::Segment;
use crate::{CacheKey, ObjectHead};

/// A cursor over a fill, on any thread. A clone is another cursor at the same place.
pub struct FillFollower {
    fill: Arc<Fill>,
    /// 0 is the client that began the fill: a private response is for it.
    number: u64,
    position: u64,
    /// Its place in the order of those that wait.
    ticket: Option<u64>,
    /// An extent that is being read back, and where it begins.
    reading: Option<(u64, ExtentRead)>,
}

type ExtentRead = Pin<Box<dyn Future<Output = Result<Bytes, ReadError>> + Send>>;

/// A piece of a body that is being fetched.
#[derive(Clone)]
pub enum FillChunk {
    /// From memory.
    Bytes(Bytes),
    /// A place in a file of the store, for `sendfile`.
    File(SegmentRange),
}

/// What comes next for a follower.
enum NextContent {
    Memory(Bytes),
    /// The extent, its segment, and where in the body everything ends that follows it without a gap in the file.
    Disk(Extent, Arc<Segment>, u64),
    End,
}

impl FillFollower {
    fn new(fill: &Arc<Fill>, state: &mut FillProgress, position: u64) -> Self {
        let number = state.next_follower;
        state.next_follower += 1;
        state.cursors.insert(number, position);
        Self {
            fill: Arc::clone(fill),
            number,
            position,
            ticket: None,
            reading: None,
        }
    }

    /// A cursor at the beginning. `None`: the fill must not be shared, has failed, or has let go of its beginning.
    pub(crate) fn join_fill(fill: &Arc<Fill>) -> Option<FillFollower> {
        let mut state = fill.state();
        // The beginning is in memory, or all that is missing there can be read back.
        let begun = state
            .chunks
            .front()
            .map_or(state.stored_end(fill.base), |(offset, _)| *offset);
        let readable = begun <= fill.base || state.stored_end(fill.base) >= begun;
        let joinable =
            state.phase != FillPhase::Passing && readable && !matches!(state.end, Some(Err(_)));
        let joinable = joinable && state.message.is_none();
        if !joinable {
            return None;
        }
        Some(FillFollower::new(fill, &mut state, fill.base))
    }

    /// The cursor of the client for which the fill began.
    pub(crate) fn for_first_client(fill: &Arc<Fill>) -> FillFollower {
        FillFollower::new(fill, &mut fill.state(), fill.base)
    }

    /// Waits for the head.
    pub async fn wait_for_head(&mut self) -> Result<Arc<ObjectHead>, FollowError> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    /// [`FillFollower::wait_for_head`] as a poll.
    pub fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Arc<ObjectHead>, FollowError>> {
        let fill = Arc::clone(&self.fill);
        let mut state = fill.state();
        if let Err(released) = self.check(&state) {
            return Poll::Ready(Err(released));
        }
        if let Some(instead) = &state.message {
            return Poll::Ready(Err(FollowError::Message(instead.clone())));
        }
        // The head before the end: a fill that broke off after its head still has bytes to give.
        if let Some(head) = &state.head {
            return Poll::Ready(Ok(Arc::clone(head)));
        }
        if let Some(Err(why)) = &state.end {
            return Poll::Ready(Err(FollowError::Failed(why.clone())));
        }
        self.wait(&mut state, cx);
        Poll::Pending
    }

    /// Waits for more of the body, at most `max` bytes; `None` at its end.
    pub async fn next_bytes(&mut self, max: usize) -> Result<Option<Bytes>, FollowError> {
        poll_fn(|cx| self.poll_next(cx, max)).await
    }

    /// [`FillFollower::next_bytes`] as a poll.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, FollowError>> {
        let mut bytes = loop {
            if let Some((begin, reading)) = &mut self.reading {
                let begin = *begin;
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                let whole = read.map_err(|error| {
                    FollowError::Failed(FillFailure::Storage(error.to_string().into()))
                })?;
                break whole.slice((self.position - begin) as usize..);
            }
            match ready!(self.poll_place(cx))? {
                NextContent::End => return Poll::Ready(Ok(None)),
                NextContent::Memory(bytes) => break bytes,
                NextContent::Disk(extent, segment, _) => {
                    let pool = self.fill.options.pool.clone();
                    // Kept over polls: the read goes on while the task sleeps, and is verified as a whole extent.
                    let read = async move { read_extent(&segment, &extent, &pool).await };
                    self.reading = Some((extent.offset, Box::pin(read)));
                }
            }
        };
        bytes.truncate(max);
        self.advance(bytes.len() as u64);
        Poll::Ready(Ok(Some(bytes)))
    }

    /// As [`FillFollower::poll_next`], but what is not in memory is not read: the result says where it is. It is not
    /// verified, because this process wrote it a moment ago. `max` is for pieces in memory; a piece in a file is as
    /// large as can be.
    pub fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<FillChunk>, FollowError>> {
        let (part, len) = match ready!(self.poll_place(cx))? {
            NextContent::End => return Poll::Ready(Ok(None)),
            NextContent::Memory(mut bytes) => {
                bytes.truncate(max);
                let len = bytes.len() as u64;
                (FillChunk::Bytes(bytes), len)
            }
            NextContent::Disk(extent, segment, end) => {
                let len = end - self.position;
                let range = SegmentRange {
                    file: segment.file.clone(),
                    offset: extent.position + (self.position - extent.offset),
                    len,
                };
                (FillChunk::File(range), len)
            }
        };
        self.advance(len);
        Poll::Ready(Ok(Some(part)))
    }

    /// The whole body, if it has ended and is still in memory.
    pub fn whole_body(&self) -> Option<Bytes> {
        let state = self.fill.state();
        let complete = state.end == Some(Ok(()))
            && self.fill.is_whole()
            && state.received == state.chunk_bytes as u64;
        complete.then(|| copy_range(&state.chunks, 0, state.chunk_bytes))
    }

    /// All that is left of the body, if it has ended, so that nothing of it has to be waited for.
    pub fn remaining_chunks(&mut self) -> Option<Vec<FillChunk>> {
        if !self.is_complete() {
            return None;
        }
        let mut parts = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(next)) = self.poll_part(&mut context, usize::MAX) {
            match next {
                Some(part) => parts.push(part),
                None => return Some(parts),
            }
        }
        None
    }

    /// Whether the body has ended. It is the new object then, even if it is not committed yet.
    pub fn is_complete(&self) -> bool {
        self.fill.is_complete()
    }

    /// Where the bytes come from at the moment.
    pub fn feed(&self) -> FillFeed {
        self.fill.feed.feed()
    }

    /// The head, if it is there.
    pub fn known_head(&self) -> Option<Arc<ObjectHead>> {
        self.fill.state().head.clone()
    }

    /// Whether it belongs to the client for which the fill began.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<Result<NextContent, FollowError>> {
        let fill = Arc::clone(&self.fill);
        let mut state = fill.state();
        if let Err(released) = self.check(&state) {
            return Poll::Ready(Err(released));
        }
        let at = self.position;
        let first = state.chunks.front().map_or(u64::MAX, |(offset, _)| *offset);
        // Memory first: what is on the disk may be in memory as well.
        if first <= at && at < state.received {
            let found = state
                .chunks
                .partition_point(|(offset, chunk)| offset + chunk.len() as u64 <= at);
            let (offset, chunk) = &state.chunks[found];
            return Poll::Ready(Ok(NextContent::Memory(
                chunk.slice((at - offset) as usize..),
            )));
        }
        if at < state.stored_end(fill.base) {
            let found = state
                .written
                .partition_point(|(extent, _)| extent.end() <= at);
            let (extent, segment) = &state.written[found];
            let end = run_end(state.written[found..].iter().map(|(extent, _)| extent));
            return Poll::Ready(Ok(NextContent::Disk(*extent, Arc::clone(segment), end)));
        }
        // The end last: a follower gets all bytes that came before a failure.
        match &state.end {
            Some(Ok(())) => Poll::Ready(Ok(NextContent::End)),
            Some(Err(why)) => Poll::Ready(Err(FollowError::Failed(why.clone()))),
            None => {
                self.wait(&mut state, cx);
                Poll::Pending
            }
        }
    }

    fn check(&self, state: &FillProgress) -> Result<(), FollowError> {
        if state.private && self.number != 0 {
            Err(FollowError::Released)
        } else {
            Ok(())
        }
    }

    /// Registers the waker, under the lock under which nothing was found: no wake-up can be lost in between. A follower
    /// that was not woken keeps its place in the order of arrival.
    fn wait(&mut self, state: &mut FillProgress, cx: &Context<'_>) {
        let known = self
            .ticket
            .filter(|ticket| state.waiting.contains_key(ticket));
        let ticket = known.unwrap_or_else(|| {
            state.next_ticket += 1;
            state.next_ticket
        });
        state.waiting.insert(ticket, cx.waker().clone());
        self.ticket = Some(ticket);
    }

    fn advance(&mut self, len: u64) {
        self.position += len;
        let mut state = self.fill.state();
        state.cursors.insert(self.number, self.position);
        // Only a fill that is not stored waits for its followers. The producer is woken without the lock, since its
        // task may run at once.
        if state.phase == FillPhase::Passing {
            state.trim(self.fill.base, self.fill.options.fill_memory);
            let producer = state.producer.take();
            drop(state);
            producer.into_iter().for_each(Waker::wake);
        }
    }

    /// The offset of the next byte that it gets.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The range of the body that the fill brings, if that is not all of it.
    pub fn partial_range(&self) -> Option<Range<u64>> {
        let end = self.fill.state().ends_at.unwrap_or(u64::MAX);
        (!self.fill.is_whole()).then_some(self.fill.base..end)
    }

    /// The key under which it is stored.
    pub fn key(&self) -> CacheKey {
        self.fill.storage_key().0.clone()
    }

    /// The birth of the object that the fill brings: [`CachedObject::born`](crate::CachedObject::born).
    pub fn born(&self) -> u64 {
        self.fill.born
    }

    /// When the fill began, in milliseconds as the caller gave them.
    pub fn began_ms(&self) -> u64 {
        self.fill.began_ms
    }
}

impl Clone for FillFollower {
    fn clone(&self) -> Self {
        Self::new(&self.fill, &mut self.fill.state(), self.position)
    }
}

impl Drop for FillFollower {
    fn drop(&mut self) {
        let producer = {
            let mut state = self.fill.state();
            state.cursors.remove(&self.number);
            if let Some(ticket) = self.ticket {
                state.waiting.remove(&ticket);
            }
            // This cursor may have been the slowest, and the producer may have waited for it, or for the last one to
            // leave.
            state.trim(self.fill.base, self.fill.options.fill_memory);
            state.producer.take()
        };
        producer.into_iter().for_each(Waker::wake);
    }
}
