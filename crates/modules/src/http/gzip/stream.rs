//! Content that is compressed while it is sent.
//!
//! It pulls content, compresses a step of it, and hands on what has come out when that is worth a write. Compressing
//! is the most expensive thing that a loop does by itself, so it looks at the clock: when the present turn of the loop
//! has lasted for [`TURN`], the others have theirs first.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use flate2::{Compress, FlushCompress, Status};
use http::Request;
use http::body::{Body, BodyError, Chunk, FileRange, Source};

use super::Amounts;

/// Content that is compressed in one step, in bytes; at level 9 that takes about 2 ms.
const STEP: usize = 16 * 1024;

/// Compressed content that is worth a write, in bytes.
const ENOUGH: usize = 16 * 1024;

/// How long a turn of the loop may have lasted before compressing makes room for others.
const TURN: Duration = Duration::from_millis(3);

/// A body that compresses another one.
pub(super) struct Compressed {
    body: Body,
    /// There until the end.
    encoder: Option<Compress>,
    level: u32,
    /// Content that has still to be compressed.
    input: Bytes,
    /// A file range that has still to be read.
    file: Option<FileRange>,
    reading: Option<Reading>,
    output: Vec<u8>,
    state: State,
    /// The turn of the loop in which the last step was made, by the time when it began.
    turn: Option<Instant>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

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
            body,
            encoder: Some(encoders::take(level)),
            level,
            input: Bytes::new(),
            file: None,
            reading: None,
            output: Vec::with_capacity(room.max(128)),
            state: State::Open,
            turn: None,
        }
    }

    /// Sees to it that there is input, or that the state says why there is none.
    fn fill(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while self.state == State::Open && self.input.is_empty() {
            if self.reading.is_some() || self.file.is_some() {
                ready!(self.read(request, context))?;
                continue;
            }
            match ready!(self.body.poll_next(request, context)).transpose()? {
                None => self.state = State::Ending,
                Some(Chunk::Flush) => self.state = State::Flushing,
                Some(Chunk::Bytes(bytes)) => self.input = bytes,
                Some(Chunk::File(range)) => self.file = Some(range),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the next step of a file: at once if it is in memory, else on a pool.
    fn read(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        let failed = |error: io::Error| BodyError::File(base::text::errno_text(&error));
        let data = match (&mut self.reading, &self.file) {
            (Some(reading), _) => {
                let data = ready!(reading.as_mut().poll(context));
                self.reading = None;
                data.map_err(failed)?
            }
            (None, Some(range)) => {
                let want = usize::try_from(range.length).unwrap_or(STEP).min(STEP);
                let mut data = Vec::new();
                match range.file.try_read_into(&mut data, want, range.offset) {
                    Ok(_) => data,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.reading = Some(read_waiting(request, range.clone(), want));
                        return self.read(request, context);
                    }
                    Err(error) => return Poll::Ready(Err(failed(error))),
                }
            }
            (None, None) => return Poll::Ready(Ok(())),
        };
        if data.is_empty() {
            return Poll::Ready(Err(BodyError::FileTruncated));
        }
        if let Some(mut range) = self.file.take() {
            let read = data.len() as u64;
            range.offset += read;
            range.length = range.length.saturating_sub(read);
            self.file = Some(range).filter(|range| range.length > 0);
        }
        self.input = data.into();
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

    /// Whether others should have their turn before the next step. Each turn has one step at least, however late the
    /// loop is.
    fn turn_is_over(&mut self) -> bool {
        let turn = rt::now();
        let began_before = self.turn.replace(turn) == Some(turn);
        began_before && Instant::now().saturating_duration_since(turn) > TURN
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

fn read_waiting(request: &mut Request, range: FileRange, want: usize) -> Reading {
    let site = std::rc::Rc::clone(&request.site);
    let pool = http::files::pool(request, &site.location(request.location).core.delivery.aio);
    Box::pin(async move {
        range
            .file
            .read_at(Vec::new(), range.offset, want, &pool)
            .await
    })
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
            if self.turn_is_over() {
                // A yield that is polled once has this task woken in the next turn.
                let _ = pin!(rt::yield_now()).poll(context);
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
        self.body.poll_ahead(request, context);
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
