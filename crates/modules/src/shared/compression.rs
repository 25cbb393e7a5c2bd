//! Responses compressed as they are sent: what `gzip`, `brotli` and `zstd` share.
//!
//! [`CompressedBody`] pulls content, has a [`ContentEncoder`] compress one step of it, and passes the output
//! on once there is enough for a write. Compression is the most expensive thing an event loop does
//! itself, so the body checks the clock between steps ([`LoopTurn`]) and gives way to other tasks. An
//! encoder whose single step would outlast a turn runs on the thread pool instead.
//!
//! A response that is a copy of a file or of a stored object is compressed once for all clients:
//! [`crate::shared::compressed_copies`].

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::response::Response;
use http::response_body::{BodyChunk, BodyError, BodySource, EndWork, ResponseBody};
use http::{FilterVerdict, Request};

use proto::KnownField;

use crate::shared::compressed_copies::{self, CompressedCopy, FollowedCopy, SharedCopy};
use crate::shared::compression_rows::{CompressionConf, ResponseCoding};
use crate::shared::content::{ContentPiece, ContentReader};
use crate::shared::gzip_accept;
use crate::shared::media_types::MediaTypes;
use crate::shared::transform::{LoopTurn, poll_yield};

/// How much content one step compresses, in bytes. At gzip's level 9 that takes about 2 ms.
const STEP_SIZE: usize = 16 * 1024;

/// How much output is worth a write, in bytes.
const WRITE_SIZE: usize = 16 * 1024;

/// The compressor of one response. It moves to a pool thread and back, hence `Send`.
pub(crate) trait ContentEncoder: Send + 'static {
    /// Compresses `input`, or as much of it as fits into the spare capacity of `out`, and returns
    /// how much of the input it consumed.
    fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> io::Result<usize>;

    /// Emits everything pushed so far, so that the client can decode it. `false`: the output is
    /// full; call again once `out` has room.
    fn flush(&mut self, out: &mut Vec<u8>) -> io::Result<bool>;

    /// Writes the trailer of the format. `false`: the output is full; call again once `out` has
    /// room.
    fn finish(&mut self, out: &mut Vec<u8>) -> io::Result<bool>;

    /// Whether one step can outlast a turn of the loop, so that it must run on the thread pool.
    fn is_slow(&self) -> bool;
}

/// Which responses a module compresses; each of the three modules has its own copy, set by its own
/// directives.
#[derive(Clone, Debug, Default)]
pub(crate) struct CompressionCriteria {
    /// `gzip_types` and its like.
    pub(crate) types: MediaTypes,
    /// `gzip_min_length` and its like, in bytes. Responses of unknown length are compressed
    /// regardless.
    pub(crate) min_length: u64,
}

/// Replaces the body by one compressed with the coding, if the response qualifies and the client accepts the coding.
pub(crate) fn compress_response<C: ResponseCoding>(
    request: &mut Request,
    conf: &CompressionConf<C::Own>,
) -> FilterVerdict {
    let (out, choice) = (&request.out, &conf.criteria);
    // The statuses are nginx's. A 206 of an upstream must stay as it is in any case: its range
    // counts bytes of the uncompressed content. What has a content coding already is left alone;
    // compressing twice gains nothing.
    if !matches!(out.status, 200 | 403 | 404)
        || out.transforms.keep_encoding
        || out
            .fields
            .get_known(KnownField::ContentEncoding)
            .is_some_and(|coding| !coding.is_empty())
        || is_too_short(out, choice.min_length)
        || !choice.types.has(&out.content_type)
    {
        return FilterVerdict::Pass;
    }
    // From here on the choice depends on the client alone, so `Vary` is right whichever way it
    // goes. Before this point every client gets the same response.
    gzip_accept::mark_varying(request);
    if !gzip_accept::accepts_coding(request, C::NAME) {
        return FilterVerdict::Pass;
    }
    let body = match compressed_copies::find_copy::<C>(request, conf) {
        Some(SharedCopy::Whole(copy)) => {
            if let Some(end_work) = give_up_body(request) {
                end_work(request);
            }
            request.set_state(CompressedSizes::<C>::of_copy(&copy));
            ResponseBody::bytes(copy.bytes.clone())
        }
        Some(SharedCopy::Following(fill)) => {
            let end_work = give_up_body(request);
            ResponseBody::stream(FollowedCopy::<C>::new(fill, end_work))
        }
        None => match compressed_alone::<C>(request, conf) {
            Some(body) => body,
            // The response is still correct without compression.
            None => return FilterVerdict::Pass,
        },
    };
    let out = &mut request.out;
    // The field may be present with an empty value, which means no coding.
    out.fields.remove_known(KnownField::ContentEncoding);
    out.fields.push_known(KnownField::ContentEncoding, C::NAME);
    // The length becomes that of the new body: unknown, unless all of it is at hand.
    out.content_changes();
    out.body = body;
    FilterVerdict::Pass
}

/// Drops the body, in the place of which a copy is sent, and with it its cursor over a fetch. Returns what its producer has
/// to do at the end all the same.
fn give_up_body(request: &mut Request) -> Option<EndWork> {
    match std::mem::take(&mut request.out.body) {
        ResponseBody::Stream(source) => source.read_elsewhere(),
        _ => None,
    }
}

/// The body compressed for this client alone, as it is sent; `None` if there is no encoder.
fn compressed_alone<C: ResponseCoding>(
    request: &mut Request,
    conf: &CompressionConf<C::Own>,
) -> Option<ResponseBody> {
    let length = request.out.length();
    match C::start(conf, length) {
        Ok(encoder) => {
            let body = std::mem::take(&mut request.out.body);
            Some(CompressedBody::body(body, length, encoder))
        }
        Err(error) => {
            let coding = bstr::BStr::new(C::NAME);
            request.error(format_args!("no encoder for \"{coding}\": {error}"));
            None
        }
    }
}

/// Whether the response is below the minimum length. As in nginx, a response that did not announce
/// its length counts as long, even if all of it happens to be in memory.
fn is_too_short(out: &Response, min_length: u64) -> bool {
    let length = out.length().filter(|_| !out.transforms.unannounced_length);
    length.is_some_and(|length| length < min_length)
}

/// Bytes into and out of the encoder, kept with the request for the access log. The type parameter
/// keeps the totals of different codings apart, since state is looked up by type.
pub(crate) struct CompressedSizes<E> {
    /// Bytes of content before compression.
    original: u64,
    /// Bytes after compression.
    compressed: u64,
    encoder: PhantomData<E>,
}

impl<E> CompressedSizes<E> {
    /// Those of a response that is a copy.
    pub(crate) fn of_copy(copy: &CompressedCopy) -> CompressedSizes<E> {
        CompressedSizes {
            original: copy.original,
            compressed: copy.bytes.len() as u64,
            encoder: PhantomData,
        }
    }
}

/// The compression ratio to two decimals: `$gzip_ratio` and its like. There is none until the body
/// has been sent completely, which is why the variables are volatile.
pub(crate) fn write_ratio<E: ContentEncoder>(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(&mut CompressedSizes {
        original: before,
        compressed: after,
        ..
    }) = request.state::<CompressedSizes<E>>()
    else {
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

/// A body that compresses another body as it is pulled.
struct CompressedBody<E> {
    content: ContentReader,
    encoder: EncoderSlot<E>,
    /// Content not compressed yet.
    input: Bytes,
    output: Vec<u8>,
    state: CompressionState,
    turn: LoopTurn,
    original_bytes: u64,
    compressed_bytes: u64,
}

/// The encoder, which is away while the pool works on it.
enum EncoderSlot<E> {
    // Ready for the next step.
    Idle(E),
    /// A pool thread is running a step and will hand it back.
    OnPool(Pin<Box<dyn Future<Output = EncoderStep<E>>>>),
    /// Lost with a step that failed; the response cannot be continued.
    Lost,
}

/// What a step hands back, on whichever thread it ran.
struct EncoderStep<E> {
    encoder: E,
    output: Vec<u8>,
    /// How much of the input was consumed, and whether the operation is complete.
    result: io::Result<(usize, bool)>,
}

/// What the encoder is asked to do next. A flush passes through two states because the compressed
/// bytes must leave before the flush mark itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompressionState {
    /// Compressing content as it comes.
    Open,
    /// The producer asked for a flush, and the encoder still holds output.
    Flushing,
    /// The encoder is flushed; the flush mark follows the output.
    Flushed,
    /// The content has ended; the trailer is not complete yet.
    Ending,
    /// The trailer is in the output.
    Ended,
}

impl<E: ContentEncoder> CompressedBody<E> {
    /// Wraps `body`; `length` is its length if it is known.
    fn body(body: ResponseBody, length: Option<u64>, encoder: E) -> ResponseBody {
        // Most compressed responses are short. A short one is compressed in a single step and its
        // output is not longer than its content, so it needs no full-size buffer.
        let room = length
            .and_then(|length| usize::try_from(length).ok())
            .map_or(WRITE_SIZE, |length| length.min(WRITE_SIZE));
        ResponseBody::stream(CompressedBody {
            content: ContentReader::new(body),
            encoder: EncoderSlot::Idle(encoder),
            input: Bytes::new(),
            output: Vec::with_capacity(room.max(128)),
            state: CompressionState::Open,
            turn: LoopTurn::default(),
            original_bytes: 0,
            compressed_bytes: 0,
        })
    }

    /// Pulls content until there is input, or until the state says why there is none.
    fn poll_input(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BodyError>> {
        while self.state == CompressionState::Open && self.input.is_empty() {
            match ready!(self.content.poll_next(request, context)).transpose()? {
                None => self.state = CompressionState::Ending,
                Some(ContentPiece::Flush) => self.state = CompressionState::Flushing,
                Some(ContentPiece::Bytes(bytes)) => self.input = bytes,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Runs one step, here or on the pool.
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        // `Gone` stays behind while the encoder is out of the slot, so that after a failed step
        // there is none to use again: its state is unknown.
        let step = match std::mem::replace(&mut self.encoder, EncoderSlot::Lost) {
            EncoderSlot::Idle(encoder) => {
                let input = self.input.slice(..self.input.len().min(STEP_SIZE));
                let output = std::mem::take(&mut self.output);
                let state = self.state;
                if encoder.is_slow() {
                    let pool = rt::pool::default_pool();
                    self.encoder = EncoderSlot::OnPool(Box::pin(async move {
                        pool.run(move || run_encoder(encoder, state, &input, output))
                            .await
                    }));
                    // Poll the new future once, or nothing would wake this task.
                    return self.poll_step(context);
                }
                run_encoder(encoder, state, &input, output)
            }
            EncoderSlot::OnPool(mut work) => match work.as_mut().poll(context) {
                Poll::Ready(step) => step,
                Poll::Pending => {
                    self.encoder = EncoderSlot::OnPool(work);
                    return Poll::Pending;
                }
            },
            EncoderSlot::Lost => return Poll::Ready(Err(BodyError::Producer)),
        };
        Poll::Ready(self.finish_step(step))
    }

    /// Books the result of a step and moves on to the next state.
    fn finish_step(&mut self, step: EncoderStep<E>) -> Result<(), BodyError> {
        let (used, done) = step.result.map_err(|_| BodyError::Producer)?;
        self.input.advance(used.min(self.input.len()));
        self.original_bytes += used as u64;
        self.output = step.output;
        self.encoder = EncoderSlot::Idle(step.encoder);
        match self.state {
            CompressionState::Flushing if done => self.state = CompressionState::Flushed,
            CompressionState::Ending if done => self.state = CompressionState::Ended,
            _ => {}
        }
        Ok(())
    }

    /// Passes on what the encoder has produced, and counts it for the ratio.
    fn take_output(&mut self) -> BodyChunk {
        self.compressed_bytes += self.output.len() as u64;
        BodyChunk::Bytes(std::mem::take(&mut self.output).into())
    }
}

/// Runs one step; on a pool thread if the encoder is slow.
fn run_encoder<E: ContentEncoder>(
    mut encoder: E,
    state: CompressionState,
    input: &[u8],
    mut output: Vec<u8>,
) -> EncoderStep<E> {
    // Incompressible content grows slightly. This is room enough for one step of it.
    output.reserve(input.len() + STEP_SIZE / 8);
    let result = match state {
        CompressionState::Open => encoder.push(input, &mut output).map(|used| (used, true)),
        CompressionState::Flushing => encoder.flush(&mut output).map(|done| (0, done)),
        CompressionState::Ending => encoder.finish(&mut output).map(|done| (0, done)),
        CompressionState::Flushed | CompressionState::Ended => Ok((0, true)),
    };
    EncoderStep {
        encoder,
        output,
        result,
    }
}

impl<E: ContentEncoder> BodySource for CompressedBody<E> {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        loop {
            if matches!(
                self.state,
                CompressionState::Flushed | CompressionState::Ended
            ) && !self.output.is_empty()
            {
                return Poll::Ready(Some(Ok(self.take_output())));
            }
            match self.state {
                CompressionState::Ended => {
                    // The log phase runs after the body has ended, and reads these.
                    request.set_state(CompressedSizes::<E> {
                        original: self.original_bytes,
                        compressed: self.compressed_bytes,
                        encoder: PhantomData,
                    });
                    return Poll::Ready(None);
                }
                CompressionState::Flushed => {
                    self.state = CompressionState::Open;
                    return Poll::Ready(Some(Ok(BodyChunk::Flush)));
                }
                CompressionState::Open | CompressionState::Flushing | CompressionState::Ending => {}
            }
            if self.turn.is_over() {
                poll_yield(context);
                return Poll::Pending;
            }
            let step = match ready!(self.poll_input(request, context)) {
                Ok(()) => ready!(self.poll_step(context)),
                Err(error) => Err(error),
            };
            if let Err(error) = step {
                return Poll::Ready(Some(Err(error)));
            }
            if self.output.len() >= WRITE_SIZE {
                return Poll::Ready(Some(Ok(self.take_output())));
            }
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.content.poll_ahead(request, context);
    }
}
