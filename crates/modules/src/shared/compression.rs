//! Content that is compressed while it is sent: what `gzip`, `brotli` and `zstd` have in common.
//!
//! [`Compressed`] pulls content, has an [`Encoder`] compress a step of it, and hands on what has come out when that is
//! worth a write. Compressing is the most expensive thing that a loop does by itself, so it looks at the clock
//! ([`Turn`]); an encoder whose steps take longer than a turn may last works on the thread pool instead.

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::body::{Body, BodyError, Chunk, Source};
use http::response::Response;
use http::{Request, Verdict};

use proto::Known;

use crate::shared::content::{Content, Piece};
use crate::shared::gzip_accept;
use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{Turn, poll_yield};

/// Content that is compressed in one step, in bytes; at gzip's level 9 that takes about 2 ms.
const STEP: usize = 16 * 1024;

/// Compressed content that is worth a write, in bytes.
const ENOUGH: usize = 16 * 1024;

/// A compressor of one response.
pub(crate) trait Encoder: Send + 'static {
    /// Compresses `input`, or as much of it as comes out into the spare room of `out`, and tells how much that was.
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize>;

    /// Brings out all that was pushed. `false`: there is more; call again after `out` got more room.
    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool>;

    /// Ends the compressed form. `false`: there is more; call again after `out` got more room.
    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool>;

    /// Whether a step may take longer than a turn of the loop should: it is then made on the thread pool.
    fn is_slow(&self) -> bool;
}

/// What a module compresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Responses of these types.
    pub(crate) types: MediaTypes,
    /// Responses that are at least so long, in bytes, if their length is known.
    pub(crate) min_length: u64,
}

/// Has the response compressed into `coding`, if it is to be and the client takes it.
pub(crate) fn apply<E: Encoder>(
    request: &mut Request,
    coding: &[u8],
    choice: &Choice,
    encoder: impl FnOnce(Option<u64>) -> io::Result<E>,
) -> Verdict {
    let out = &request.out;
    let length = out.length();
    if !matches!(out.status, 200 | 403 | 404)
        || out.transforms.keep_encoding
        || out
            .fields
            .get_known(Known::ContentEncoding)
            .is_some_and(|coding| !coding.is_empty())
        || is_too_short(out, choice.min_length)
        || !choice.types.has(&out.content_type)
    {
        return Verdict::Pass;
    }
    gzip_accept::varies(request);
    if !gzip_accept::accepts_coding(request, coding) {
        return Verdict::Pass;
    }
    let encoder = match encoder(length) {
        Ok(encoder) => encoder,
        Err(error) => {
            // As it is, it is still right.
            let coding = bstr::BStr::new(coding);
            request.error(format_args!("no encoder for \"{coding}\": {error}"));
            return Verdict::Pass;
        }
    };
    let out = &mut request.out;
    out.fields.remove_known(Known::ContentEncoding);
    out.fields.push_known(Known::ContentEncoding, coding);
    let body = std::mem::take(&mut out.body);
    out.content_changes();
    out.body = Compressed::body(body, length, encoder);
    Verdict::Pass
}

/// Whether the response is shorter than is worth it. One without an announced length counts as long, as in nginx, however
/// much of it is here already.
fn is_too_short(out: &Response, min_length: u64) -> bool {
    let length = out.length().filter(|_| !out.transforms.unannounced_length);
    length.is_some_and(|length| length < min_length)
}

/// How much came in and went out of an encoder, as a state of the request.
pub(crate) struct Amounts<E> {
    before: u64,
    after: u64,
    encoder: PhantomData<E>,
}

/// How many times shorter the content became, to two places: `$gzip_ratio` and its like.
pub(crate) fn ratio<E: Encoder>(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(&mut Amounts { before, after, .. }) = request.state::<Amounts<E>>() else {
        return false;
    };
    if after == 0 {
        return false;
    }
    // In hundredths, rounded: 1.234 is shown as 1.23, 1.239 as 1.24.
    let hundredths = (before.saturating_mul(1000) / after).saturating_add(5) / 10;
    base::text::write_number(hundredths / 100, out);
    out.push(b'.');
    base::text::write_padded(hundredths % 100, 2, out);
    true
}

/// A body that compresses another one.
struct Compressed<E> {
    content: Content,
    worker: Worker<E>,
    /// Content that has still to be compressed.
    input: Bytes,
    output: Vec<u8>,
    state: State,
    turn: Turn,
    before: u64,
    after: u64,
}

/// Where the encoder is.
enum Worker<E> {
    Here(E),
    /// It works on a thread of the pool.
    Away(Pin<Box<dyn Future<Output = Step<E>>>>),
    /// It was lost with a step that failed.
    Gone,
}

/// What came of a step.
struct Step<E> {
    encoder: E,
    output: Vec<u8>,
    /// How much of the input was used, and whether all was done that was asked for.
    result: io::Result<(usize, bool)>,
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

impl<E: Encoder> Compressed<E> {
    /// A body that compresses `body`, of which the length may be known.
    fn body(body: Body, length: Option<u64>, encoder: E) -> Body {
        // Short content is read as a whole and compressed in one step: its output is not longer than this either.
        let room = length
            .and_then(|length| usize::try_from(length).ok())
            .map_or(ENOUGH, |length| length.min(ENOUGH));
        Body::stream(Compressed {
            content: Content::new(body),
            worker: Worker::Here(encoder),
            input: Bytes::new(),
            output: Vec::with_capacity(room.max(128)),
            state: State::Open,
            turn: Turn::default(),
            before: 0,
            after: 0,
        })
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

    /// Compresses one step, here or on the pool.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        let step = match std::mem::replace(&mut self.worker, Worker::Gone) {
            Worker::Here(encoder) => {
                let input = self.input.slice(..self.input.len().min(STEP));
                let output = std::mem::take(&mut self.output);
                let state = self.state;
                if encoder.is_slow() {
                    let pool = rt::pool::default_pool();
                    self.worker = Worker::Away(Box::pin(async move {
                        pool.run(move || perform(encoder, state, &input, output))
                            .await
                    }));
                    return self.poll_step(context);
                }
                perform(encoder, state, &input, output)
            }
            Worker::Away(mut work) => match work.as_mut().poll(context) {
                Poll::Ready(step) => step,
                Poll::Pending => {
                    self.worker = Worker::Away(work);
                    return Poll::Pending;
                }
            },
            Worker::Gone => return Poll::Ready(Err(BodyError::Producer)),
        };
        Poll::Ready(self.take_in(step))
    }

    fn take_in(&mut self, step: Step<E>) -> Result<(), BodyError> {
        let (used, done) = step.result.map_err(|_| BodyError::Producer)?;
        self.input.advance(used.min(self.input.len()));
        self.before += used as u64;
        self.output = step.output;
        self.worker = Worker::Here(step.encoder);
        match self.state {
            State::Flushing if done => self.state = State::Flushed,
            State::Ending if done => self.state = State::Ended,
            _ => {}
        }
        Ok(())
    }

    fn take_output(&mut self) -> Chunk {
        self.after += self.output.len() as u64;
        Chunk::Bytes(std::mem::take(&mut self.output).into())
    }
}

/// One step, on whatever thread.
fn perform<E: Encoder>(mut encoder: E, state: State, input: &[u8], mut output: Vec<u8>) -> Step<E> {
    // Room enough that a step of incompressible content comes out in one go.
    output.reserve(input.len() + STEP / 8);
    let result = match state {
        State::Open => encoder.push(input, &mut output).map(|used| (used, true)),
        State::Flushing => encoder.flush(&mut output).map(|done| (0, done)),
        State::Ending => encoder.finish(&mut output).map(|done| (0, done)),
        State::Flushed | State::Ended => Ok((0, true)),
    };
    Step {
        encoder,
        output,
        result,
    }
}

impl<E: Encoder> Source for Compressed<E> {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            if matches!(self.state, State::Flushed | State::Ended) && !self.output.is_empty() {
                return Poll::Ready(Some(Ok(self.take_output())));
            }
            match self.state {
                State::Ended => {
                    request.set_state(Amounts::<E> {
                        before: self.before,
                        after: self.after,
                        encoder: PhantomData,
                    });
                    return Poll::Ready(None);
                }
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
            let step = match ready!(self.fill(request, context)) {
                Ok(()) => ready!(self.poll_step(context)),
                Err(error) => Err(error),
            };
            if let Err(error) = step {
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
