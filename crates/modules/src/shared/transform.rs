//! A body that changes another one while it is sent, a step at a time.
//!
//! What `gunzip` and `sub_filter` have in common: they take content, hand on what came of it when that is worth a
//! write, and must neither gather a whole response nor hold the loop. A [`Transform`] only says what becomes of a
//! piece of content.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::body::{Body, BodyError, Chunk, Source};

use crate::shared::content::{Content, Piece};

/// Content that is worked on between two looks at the clock, in bytes.
const STEP: usize = 16 * 1024;

/// What has come out is handed on when it is this much, in bytes.
const ENOUGH: usize = 32 * 1024;

/// How long a turn of the loop may have lasted before others have theirs first.
const TURN: Duration = Duration::from_millis(3);

/// What becomes of content.
pub(crate) trait Transform: 'static {
    /// Takes what it can from the front of `input`, which is not empty, and appends what comes of it. It may leave
    /// some for the next call, for which `out` has been emptied.
    fn push(
        &mut self,
        request: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError>;

    /// The content has ended: appends what was held back.
    fn end(&mut self, request: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError>;
}

/// A body that is transformed while it is sent.
pub(crate) struct Transformed<T> {
    content: Content,
    transform: T,
    /// Content that waits for its step.
    input: Bytes,
    /// What is left of the present step.
    step: Bytes,
    out: Vec<u8>,
    /// What comes after `out`.
    next: Option<Next>,
    turn: Turn,
}

enum Next {
    Flush,
    Error(BodyError),
    End,
}

impl<T: Transform> Transformed<T> {
    /// A body that is `body`, transformed.
    pub(crate) fn body(body: Body, transform: T) -> Body {
        Body::stream(Transformed {
            content: Content::new(body),
            transform,
            input: Bytes::new(),
            step: Bytes::new(),
            out: Vec::new(),
            next: None,
            turn: Turn::default(),
        })
    }

    /// Sees to it that there is a step to make, or something that comes next. `Pending`: the content is not there yet.
    fn fill(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<()> {
        if self.input.is_empty() {
            match self.content.poll_next(request, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(Piece::Bytes(bytes)))) => self.input = bytes,
                Poll::Ready(Some(Ok(Piece::Flush))) => self.next = Some(Next::Flush),
                Poll::Ready(Some(Err(error))) => self.next = Some(Next::Error(error)),
                Poll::Ready(None) => {
                    self.next = Some(match self.transform.end(request, &mut self.out) {
                        Ok(()) => Next::End,
                        Err(error) => Next::Error(error),
                    });
                }
            }
        }
        self.step = self.input.split_to(self.input.len().min(STEP));
        Poll::Ready(())
    }

    fn take_output(&mut self) -> Option<Result<Chunk, BodyError>> {
        (!self.out.is_empty()).then(|| Ok(Chunk::Bytes(std::mem::take(&mut self.out).into())))
    }
}

impl<T: Transform> Source for Transformed<T> {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            if self.out.len() >= ENOUGH || self.next.is_some() {
                if let Some(chunk) = self.take_output() {
                    return Poll::Ready(Some(chunk));
                }
                match self.next.take() {
                    None => {}
                    Some(Next::Flush) => return Poll::Ready(Some(Ok(Chunk::Flush))),
                    Some(Next::Error(error)) => return Poll::Ready(Some(Err(error))),
                    Some(Next::End) => return Poll::Ready(None),
                }
            }
            if !self.step.is_empty() {
                if self.turn.is_over() {
                    poll_yield(context);
                    return Poll::Pending;
                }
                if let Err(error) = self.transform.push(request, &mut self.step, &mut self.out) {
                    self.next = Some(Next::Error(error));
                }
                continue;
            }
            if self.fill(request, context).is_pending() {
                // What is there need not wait for what is not.
                return match self.take_output() {
                    Some(chunk) => Poll::Ready(Some(chunk)),
                    None => Poll::Pending,
                };
            }
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.content.poll_ahead(request, context);
    }
}

/// The turn of the loop in which the last step was made, by the time when it began.
#[derive(Default)]
pub(crate) struct Turn(Option<Instant>);

impl Turn {
    /// Whether others should have their turn before the next step. Each turn has one step at least, however late the
    /// loop is.
    pub(crate) fn is_over(&mut self) -> bool {
        let turn = rt::now();
        let began_before = self.0.replace(turn) == Some(turn);
        began_before && Instant::now().saturating_duration_since(turn) > TURN
    }
}

/// Has this task woken in the next turn.
pub(crate) fn poll_yield(context: &mut Context<'_>) {
    // A yield that is polled once has the task woken in the next turn, and need not be kept.
    let _ = pin!(rt::yield_now()).poll(context);
}
