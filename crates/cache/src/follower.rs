//! A cursor over a fill: what comes, from memory or from where the store has put it.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;

use crate::fill::{Ended, Failure, Fill, Phase, State, gather};
use crate::format::{Extent, run_end};
use crate::object::{FileRange, ReadError, read_extent};
use crate::segment::Segment;
use crate::{Head, Key};

/// A cursor over a fill. Follows on any thread; a clone is another cursor at the same place.
pub struct Follower {
    fill: Arc<Fill>,
    number: u64,
    position: u64,
    ticket: Option<u64>,
    /// An extent that is being read back, and where it begins.
    reading: Option<(u64, Reading)>,
}

type Reading = Pin<Box<dyn Future<Output = Result<Bytes, ReadError>> + Send>>;

/// A part of a body that is being fetched.
#[derive(Clone)]
pub enum Part {
    /// From memory.
    Bytes(Bytes),
    /// As it stands in the store: for `sendfile`.
    File(FileRange),
}

/// What a follower finds at its place.
enum Next {
    Memory(Bytes),
    /// The extent, its segment, and where in the body it ends together with what stands right behind it in the file.
    Disk(Extent, Arc<Segment>, u64),
    End,
}

impl Follower {
    fn new(fill: &Arc<Fill>, state: &mut State, position: u64) -> Self {
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

    /// A cursor at the beginning. `None`: it is not to be shared any more.
    pub(crate) fn of(fill: &Arc<Fill>) -> Option<Follower> {
        let mut state = fill.state();
        let begun = state
            .chunks
            .front()
            .map_or(state.on_disk(fill.base), |(offset, _)| *offset);
        let readable = begun <= fill.base || state.on_disk(fill.base) >= begun;
        let joinable =
            state.phase != Phase::Passing && readable && !matches!(state.end, Some(Err(_)));
        let joinable = joinable && state.instead.is_none();
        if !joinable {
            return None;
        }
        Some(Follower::new(fill, &mut state, fill.base))
    }

    /// The cursor of the client that began it.
    pub(crate) fn first(fill: &Arc<Fill>) -> Follower {
        Follower::new(fill, &mut fill.state(), fill.base)
    }

    /// Waits for the head.
    pub async fn head(&mut self) -> Result<Arc<Head>, Ended> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    /// [`Follower::head`] as a poll.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Arc<Head>, Ended>> {
        let fill = Arc::clone(&self.fill);
        let mut state = fill.state();
        if let Err(released) = self.check(&state) {
            return Poll::Ready(Err(released));
        }
        if let Some(instead) = &state.instead {
            return Poll::Ready(Err(Ended::Instead(instead.clone())));
        }
        if let Some(head) = &state.head {
            return Poll::Ready(Ok(Arc::clone(head)));
        }
        if let Some(Err(why)) = &state.end {
            return Poll::Ready(Err(Ended::Failed(why.clone())));
        }
        self.wait(&mut state, cx);
        Poll::Pending
    }

    /// Waits for more of the body, at most `max` bytes; `None` at its end.
    pub async fn next(&mut self, max: usize) -> Result<Option<Bytes>, Ended> {
        poll_fn(|cx| self.poll_next(cx, max)).await
    }

    /// [`Follower::next`] as a poll.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Bytes>, Ended>> {
        let mut bytes = loop {
            if let Some((begin, reading)) = &mut self.reading {
                let begin = *begin;
                let read = ready!(reading.as_mut().poll(cx));
                self.reading = None;
                let whole = read
                    .map_err(|error| Ended::Failed(Failure::Storage(error.to_string().into())))?;
                break whole.slice((self.position - begin) as usize..);
            }
            match ready!(self.poll_place(cx))? {
                Next::End => return Poll::Ready(Ok(None)),
                Next::Memory(bytes) => break bytes,
                Next::Disk(extent, segment, _) => {
                    let pool = self.fill.options.pool.clone();
                    let read = async move { read_extent(&segment, &extent, &pool).await };
                    self.reading = Some((extent.offset, Box::pin(read)));
                }
            }
        };
        bytes.truncate(max);
        self.advance(bytes.len() as u64);
        Poll::Ready(Ok(Some(bytes)))
    }

    /// As [`Follower::poll_next`], but what is not in memory is not read: it is told where it stands. The store wrote it a
    /// moment ago, so it is not verified again. A part in a file is as large as it can be, `max` is for those in memory.
    pub fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<Result<Option<Part>, Ended>> {
        let (part, len) = match ready!(self.poll_place(cx))? {
            Next::End => return Poll::Ready(Ok(None)),
            Next::Memory(mut bytes) => {
                bytes.truncate(max);
                let len = bytes.len() as u64;
                (Part::Bytes(bytes), len)
            }
            Next::Disk(extent, segment, end) => {
                let len = end - self.position;
                let range = FileRange {
                    file: segment.file.clone(),
                    offset: extent.position + (self.position - extent.offset),
                    len,
                };
                (Part::File(range), len)
            }
        };
        self.advance(len);
        Poll::Ready(Ok(Some(part)))
    }

    /// The whole body, if it came to its end and is in memory still.
    pub fn whole(&self) -> Option<Bytes> {
        let state = self.fill.state();
        let complete = state.end == Some(Ok(()))
            && self.fill.is_whole()
            && state.received == state.chunk_bytes as u64;
        complete.then(|| gather(&state.chunks, 0, state.chunk_bytes))
    }

    /// All of the body that is left, if it came to its end: nothing of it has to be waited for.
    pub fn rest(&mut self) -> Option<Vec<Part>> {
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

    /// Whether the body came to its end: what is there is the new object, though it may not be committed yet.
    pub fn is_complete(&self) -> bool {
        self.fill.is_complete()
    }

    /// The head, if it is there.
    pub fn known_head(&self) -> Option<Arc<Head>> {
        self.fill.state().head.clone()
    }

    /// Whether it is the one that began with the fill.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    fn poll_place(&mut self, cx: &mut Context<'_>) -> Poll<Result<Next, Ended>> {
        let fill = Arc::clone(&self.fill);
        let mut state = fill.state();
        if let Err(released) = self.check(&state) {
            return Poll::Ready(Err(released));
        }
        let at = self.position;
        let first = state.chunks.front().map_or(u64::MAX, |(offset, _)| *offset);
        if first <= at && at < state.received {
            let found = state
                .chunks
                .partition_point(|(offset, chunk)| offset + chunk.len() as u64 <= at);
            let (offset, chunk) = &state.chunks[found];
            return Poll::Ready(Ok(Next::Memory(chunk.slice((at - offset) as usize..))));
        }
        if at < state.on_disk(fill.base) {
            let found = state
                .written
                .partition_point(|(extent, _)| extent.end() <= at);
            let (extent, segment) = &state.written[found];
            let end = run_end(state.written[found..].iter().map(|(extent, _)| extent));
            return Poll::Ready(Ok(Next::Disk(*extent, Arc::clone(segment), end)));
        }
        match &state.end {
            Some(Ok(())) => Poll::Ready(Ok(Next::End)),
            Some(Err(why)) => Poll::Ready(Err(Ended::Failed(why.clone()))),
            None => {
                self.wait(&mut state, cx);
                Poll::Pending
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), Ended> {
        if state.private && self.number != 0 {
            Err(Ended::Released)
        } else {
            Ok(())
        }
    }

    /// Keeps the place in the order of arrival while it waits for the same thing.
    fn wait(&mut self, state: &mut State, cx: &Context<'_>) {
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
        // Only a fill that is not stored waits for its followers.
        if state.phase == Phase::Passing {
            state.trim(self.fill.base, self.fill.options.fill_memory);
            let producer = state.producer.take();
            drop(state);
            producer.into_iter().for_each(Waker::wake);
        }
    }

    /// The next byte of the body that it will get.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The part of the body that comes, if it is not all of it.
    pub fn part(&self) -> Option<Range<u64>> {
        let end = self.fill.state().ends_at.unwrap_or(u64::MAX);
        (!self.fill.is_whole()).then_some(self.fill.base..end)
    }

    /// The key under which it is stored.
    pub fn key(&self) -> Key {
        self.fill.target().0.clone()
    }

    /// When the fill began, in the milliseconds that were given.
    pub fn began_ms(&self) -> u64 {
        self.fill.began_ms
    }
}

impl Clone for Follower {
    fn clone(&self) -> Self {
        Self::new(&self.fill, &mut self.fill.state(), self.position)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let producer = {
            let mut state = self.fill.state();
            state.cursors.remove(&self.number);
            if let Some(ticket) = self.ticket {
                state.waiting.remove(&ticket);
            }
            state.trim(self.fill.base, self.fill.options.fill_memory);
            state.producer.take()
        };
        producer.into_iter().for_each(Waker::wake);
    }
}
