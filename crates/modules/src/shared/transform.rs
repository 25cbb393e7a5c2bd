//! A body that transforms another body as it is pulled, a step at a time: what `gunzip`,
//! `sub_filter` and `charset` share.
//!
//! It passes output on when there is enough for a write, never gathers a whole response, and never
//! holds the loop for long. A [`BodyTransform`] only says what a piece of content turns into.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};

use crate::shared::content::{ContentPiece, ContentReader};

/// How much content is transformed between two checks of the clock, in bytes.
const STEP_SIZE: usize = 16 * 1024;

/// How much output is worth a write, in bytes.
const WRITE_SIZE: usize = 32 * 1024;

/// How long a turn of the loop may last before the transformation yields to other tasks.
const MAX_TURN: Duration = Duration::from_millis(3);

/// What content is turned into.
pub(crate) trait BodyTransform: 'static {
    /// Consumes from the front of `input`, which is not empty, and appends the result. It may leave
    /// a rest for the next call, before which `out` is emptied.
    fn push(
        &mut self,
        request: &mut Request,
        input: &mut Bytes,
        out: &mut Vec<u8>,
    ) -> Result<(), BodyError>;

    /// The content has ended. Appends what has been held back.
    fn end(&mut self, request: &mut Request, out: &mut Vec<u8>) -> Result<(), BodyError>;
}

/// A body that is transformed as it is pulled.
pub(crate) struct TransformedBody<T> {
    content: ContentReader,
    transform: T,
    /// Content not yet taken into a step.
    input: Bytes,
    /// The rest of the current step.
    step: Bytes,
    out: Vec<u8>,
    /// What follows once `out` has been passed on.
    after_output: Option<AfterOutput>,
    turn: LoopTurn,
}

/// What ends or interrupts the output.
enum AfterOutput {
    Flush,
    Error(BodyError),
    End,
}

impl<T: BodyTransform> TransformedBody<T> {
    /// Wraps `body`.
    pub(crate) fn body(body: ResponseBody, transform: T) -> ResponseBody {
        ResponseBody::stream(TransformedBody {
            content: ContentReader::new(body),
            transform,
            input: Bytes::new(),
            step: Bytes::new(),
            out: Vec::new(),
            after_output: None,
            turn: LoopTurn::default(),
        })
    }

    /// Pulls content until there is a step to make or something to follow the output. `Pending`:
    /// the content is not there yet.
    fn poll_step(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<()> {
        if self.input.is_empty() {
            match self.content.poll_next(request, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(ContentPiece::Bytes(bytes)))) => self.input = bytes,
                Poll::Ready(Some(Ok(ContentPiece::Flush))) => {
                    self.after_output = Some(AfterOutput::Flush)
                }
                Poll::Ready(Some(Err(error))) => {
                    self.after_output = Some(AfterOutput::Error(error))
                }
                Poll::Ready(None) => {
                    // The end can still produce output, which goes out before the end does.
                    self.after_output = Some(match self.transform.end(request, &mut self.out) {
                        Ok(()) => AfterOutput::End,
                        Err(error) => AfterOutput::Error(error),
                    });
                }
            }
        }
        self.step = self.input.split_to(self.input.len().min(STEP_SIZE));
        Poll::Ready(())
    }

    /// The output so far as a chunk; `None` if there is none.
    fn take_output(&mut self) -> Option<Result<BodyChunk, BodyError>> {
        (!self.out.is_empty()).then(|| Ok(BodyChunk::Bytes(std::mem::take(&mut self.out).into())))
    }
}

impl<T: BodyTransform> BodySource for TransformedBody<T> {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        loop {
            if self.out.len() >= WRITE_SIZE || self.after_output.is_some() {
                if let Some(chunk) = self.take_output() {
                    return Poll::Ready(Some(chunk));
                }
                match self.after_output.take() {
                    None => {}
                    Some(AfterOutput::Flush) => return Poll::Ready(Some(Ok(BodyChunk::Flush))),
                    Some(AfterOutput::Error(error)) => return Poll::Ready(Some(Err(error))),
                    Some(AfterOutput::End) => return Poll::Ready(None),
                }
            }
            if !self.step.is_empty() {
                if self.turn.is_over() {
                    poll_yield(context);
                    return Poll::Pending;
                }
                if let Err(error) = self.transform.push(request, &mut self.step, &mut self.out) {
                    self.after_output = Some(AfterOutput::Error(error));
                }
                continue;
            }
            if self.poll_step(request, context).is_pending() {
                // Output that is ready does not wait for content that is not.
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

/// The turn of the loop in which the last step ran, identified by the time it began.
#[derive(Default)]
pub(crate) struct LoopTurn(Option<Instant>);

impl LoopTurn {
    /// Whether to yield before the next step. Each turn gets at least one step, however late the
    /// loop is, so that a busy loop slows the body down but never stops it.
    pub(crate) fn is_over(&mut self) -> bool {
        // `rt::now` is the time at which the turn began, read once per turn.
        let turn = rt::now();
        let began_before = self.0.replace(turn) == Some(turn);
        began_before && rt::clock::read_clock().saturating_duration_since(turn) > MAX_TURN
    }
}

/// Arranges for this task to run again in the next turn.
pub(crate) fn poll_yield(context: &mut Context<'_>) {
    // One poll of a yield schedules the wake-up; the future is not needed after that.
    let _ = pin!(rt::yield_now()).poll(context);
}
