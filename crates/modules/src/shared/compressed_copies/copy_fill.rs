//! A copy that is being made, and the responses that follow it.
//!
//! It belongs to no client: each reads with a cursor of its own, so that one that is slow, or leaves, changes nothing for
//! the others. What has been made stays until the copy is complete; the memory for it was reserved beforehand.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use base::sync::Mutex;
use bytes::Bytes;
use http::Request;
use http::response_body::{BodyChunk, BodyError, BodySource, EndWork};

use super::CompressedCopy;
use crate::shared::compression::{CompressedSizes, ContentEncoder};

/// A copy that is being made.
#[derive(Default)]
pub(crate) struct CopyFill(Mutex<FillingCopy>);

#[derive(Default)]
struct FillingCopy {
    /// What has been made, in order; empty once the copy is complete.
    chunks: Vec<Bytes>,
    /// How it ended; `None` while it is being made.
    end: Option<Result<Arc<CompressedCopy>, BodyError>>,
    /// Those that wait, by the ticket that each follower has.
    waiting: BTreeMap<u64, Waker>,
    next_ticket: u64,
}

impl CopyFill {
    /// Adds what was made next.
    pub(super) fn publish(&self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.change(|state| state.chunks.push(bytes));
        }
    }

    /// All that was made so far. For the task that makes the copy: at its end there is nothing to come, so that these are
    /// the whole.
    pub(super) fn chunks(&self) -> Vec<Bytes> {
        self.0.lock().chunks.clone()
    }

    /// The copy is complete, or it never will be.
    pub(super) fn end(&self, end: Result<Arc<CompressedCopy>, BodyError>) {
        self.change(|state| {
            // Followers find the rest in the copy.
            state.chunks = Vec::new();
            state.end = Some(end);
        });
    }

    /// The copy cannot be made. Keeps a reason that was given before.
    pub(super) fn fail(&self) {
        self.change(|state| {
            state.end.get_or_insert(Err(BodyError::Producer));
        });
    }

    /// The reason why it cannot be made, for [`CopyFill::fail`].
    pub(super) fn fail_with(&self, error: BodyError) {
        self.change(|state| state.end = Some(Err(error)));
    }

    fn change(&self, change: impl FnOnce(&mut FillingCopy)) {
        let waiting = {
            let mut state = self.0.lock();
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        // Without the lock: a task may run at once.
        waiting.into_values().for_each(Waker::wake);
    }
}

/// The body of a response that follows a copy.
pub(crate) struct FollowedCopy<E> {
    fill: Arc<CopyFill>,
    /// How many chunks, and how many bytes, it has taken. Chunks while the copy is being made, because they are not copied
    /// for each follower; bytes afterwards, when the copy is one piece and the chunks are gone.
    chunk: usize,
    position: usize,
    /// Its place among those that wait.
    ticket: Option<u64>,
    /// What the producer of the content has to do at the end.
    end_work: Option<EndWork>,
    encoder: PhantomData<E>,
}

impl<E> FollowedCopy<E> {
    pub(crate) fn new(fill: Arc<CopyFill>, end_work: Option<EndWork>) -> FollowedCopy<E> {
        FollowedCopy {
            fill,
            chunk: 0,
            position: 0,
            ticket: None,
            end_work,
            encoder: PhantomData,
        }
    }

    /// What comes next; the copy itself at its end.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Result<Bytes, Arc<CompressedCopy>>, BodyError>> {
        let mut state = self.fill.0.lock();
        if let Some(bytes) = state.chunks.get(self.chunk) {
            return Poll::Ready(Ok(Ok(bytes.clone())));
        }
        match &state.end {
            Some(Ok(copy)) if self.position < copy.bytes.len() => {
                Poll::Ready(Ok(Ok(copy.bytes.slice(self.position..))))
            }
            Some(Ok(copy)) => Poll::Ready(Ok(Err(Arc::clone(copy)))),
            Some(Err(error)) => Poll::Ready(Err(error.clone())),
            None => {
                let ticket = *self.ticket.get_or_insert_with(|| {
                    state.next_ticket += 1;
                    state.next_ticket
                });
                // Under the lock under which nothing was found, so that no wake-up is lost in between.
                state.waiting.insert(ticket, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<E: ContentEncoder> BodySource for FollowedCopy<E> {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        let Poll::Ready(next) = self.poll_chunk(context) else {
            return Poll::Pending;
        };
        Poll::Ready(match next {
            Ok(Ok(bytes)) => {
                self.chunk += 1;
                self.position += bytes.len();
                Some(Ok(BodyChunk::Bytes(bytes)))
            }
            Ok(Err(copy)) => {
                if let Some(end_work) = self.end_work.take() {
                    end_work(request);
                }
                // The log phase runs after the body has ended, and reads these.
                request.set_state(CompressedSizes::<E>::of_copy(&copy));
                None
            }
            Err(error) => Some(Err(error)),
        })
    }
}

impl<E> Drop for FollowedCopy<E> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.fill.0.lock().waiting.remove(&ticket);
        }
    }
}
