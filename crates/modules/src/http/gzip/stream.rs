//! Content that is compressed while it is sent.
//!
//! It pulls content, compresses a step of it, and hands on what has come out when that is worth a write. Compressing
//! is the most expensive thing that a loop does by itself, so it looks at the clock ([`Turn`]).

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use flate2::{Compress, FlushCompress, Status};
use http::Request;
use http::body::{Body, BodyError, Chunk, Source};

use super::Amounts;
use crate::shared::content::{Content, Piece};
use crate::shared::transform::{Turn, poll_yield};

/// Content that is compressed in one step, in bytes; at level 9 that takes about 2 ms.
const STEP: usize = 16 * 1024;

/// Compressed content that is worth a write, in bytes.
const ENOUGH: usize = 16 * 1024;

/// A body that compresses another one.
pub(super) struct Compressed {
    content: Content,
    /// There until the end.
    encoder: Option<Compress>,
    level: u32,
    /// Content that has still to be compressed.
    input: Bytes,
    output: Vec<u8>,
    state: State,
    turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is content, or may be.
    Open,
    /// What is compressed so far has to leave.
    Flushing,
    /// It is in the output; behind it the flush is handed on.
    Flushed,
    /// The content has ended, and what ends the compressed form is not written yet.
    Ending,
    /// All is written.
    Ended,
}

impl Compressed {
    /// Compresses `body`, of which the length may be known.
    pub(super) fn new(body: Body, length: Option<u64>, level: i64) -> Compressed {
        let level = u32::try_from(level).unwrap_or(1);
        // Short content is read as a whole and compressed in one step: its output is not longer than this either.
        let room = length
            .and_then(|length| usize::try_from(length).ok())
            .map_or(ENOUGH, |length| length.min(ENOUGH));
        Compressed {
            content: Content::new(body),
            encoder: Some(encoders::take(level)),
            level,
            input: Bytes::new(),
            output: Vec::with_capacity(room.max(128)),
            state: State::Open,
            turn: Turn::default(),
        }
    }

    /// Sees to it that there is input, or that the state says why there is none.
    fn fill(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while self.state == State::Open && self.input.is_empty() {
            match ready!(self.content.poll_next(request, context)).transpose()? {
                None => self.state = State::Ending,
                Some(Piece::Flush) => self.state = State::Flushing,
                Some(Piece::Bytes(bytes)) => self.input = bytes,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Compresses one step.
    fn step(&mut self) -> Result<(), BodyError> {
        let flush = match self.state {
            State::Open => FlushCompress::None,
            State::Flushing => FlushCompress::Sync,
            State::Ending => FlushCompress::Finish,
            State::Flushed | State::Ended => return Ok(()),
        };
        let step = &self.input[..self.input.len().min(STEP)];
        // Room enough that a step of incompressible content comes out in one go.
        self.output.reserve(step.len() + STEP / 8);
        let Some(encoder) = &mut self.encoder else {
            return Err(BodyError::Producer);
        };
        let before = encoder.total_in();
        let status = encoder
            .compress_vec(step, &mut self.output, flush)
            .map_err(|_| BodyError::Producer)?;
        let used = (encoder.total_in() - before) as usize;
        self.input.advance(used);
        // With room left in the output the encoder has given all that it was asked for.
        let is_through = self.output.len() < self.output.capacity();
        match (self.state, status) {
            (State::Flushing, _) if is_through => self.state = State::Flushed,
            (_, Status::StreamEnd) => self.state = State::Ended,
            _ => {}
        }
        Ok(())
    }

    fn take_output(&mut self) -> Chunk {
        Chunk::Bytes(std::mem::take(&mut self.output).into())
    }

    fn note_amounts(&self, request: &mut Request) {
        if let Some(encoder) = &self.encoder {
            request.set_state(Amounts {
                before: encoder.total_in(),
                after: encoder.total_out(),
            });
        }
    }
}

impl Source for Compressed {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            if matches!(self.state, State::Flushed | State::Ended) && !self.output.is_empty() {
                self.note_amounts(request);
                return Poll::Ready(Some(Ok(self.take_output())));
            }
            match self.state {
                State::Ended => return Poll::Ready(None),
                State::Flushed => {
                    self.state = State::Open;
                    return Poll::Ready(Some(Ok(Chunk::Flush)));
                }
                State::Open | State::Flushing | State::Ending => {}
            }
            if self.turn.is_over() {
                poll_yield(context);
                return Poll::Pending;
            }
            if let Err(error) = ready!(self.fill(request, context)).and_then(|()| self.step()) {
                return Poll::Ready(Some(Err(error)));
            }
            if self.output.len() >= ENOUGH {
                return Poll::Ready(Some(Ok(self.take_output())));
            }
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.content.poll_ahead(request, context);
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        if let Some(encoder) = self.encoder.take() {
            encoders::give_back(self.level, encoder);
        }
    }
}

/// Encoders between two responses: one takes a quarter of a megabyte, which is worth keeping.
mod encoders {
    use std::cell::RefCell;

    use flate2::{Compress, Compression};

    /// Encoders kept by each loop; with more responses at once the others are made anew.
    const KEPT: usize = 8;

    /// The largest window of the format, 2^15 bytes.
    const WINDOW_BITS: u8 = 15;

    thread_local! {
        static ENCODERS: RefCell<Vec<(u32, Compress)>> = const { RefCell::new(Vec::new()) };
    }

    pub(super) fn take(level: u32) -> Compress {
        let kept = ENCODERS.with_borrow_mut(|encoders| {
            let index = encoders.iter().position(|(of, _)| *of == level)?;
            Some(encoders.swap_remove(index).1)
        });
        kept.unwrap_or_else(|| Compress::new_gzip(Compression::new(level), WINDOW_BITS))
    }

    pub(super) fn give_back(level: u32, mut encoder: Compress) {
        encoder.reset();
        // At the end of a thread nothing is kept any more.
        let _ = ENCODERS.try_with(|encoders| {
            let mut encoders = encoders.borrow_mut();
            if encoders.len() < KEPT {
                encoders.push((level, encoder));
            }
        });
    }
}
