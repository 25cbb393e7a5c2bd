//! One request's stream: what has come of it, and whether anybody still wants the response.
//!
//! Both directions belong to the request's task. It reads when a handler asks for content, and, before that, as far as
//! [`PREREAD`](super::limits::PREREAD) lets it: only reading shows a reset, and the end of the content. A stream may be given
//! up at any time, by STOP_SENDING or RESET_STREAM of the client or with its connection; what had been received before stays
//! readable.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use net::quic::{QuicReceiveStream, QuicReceived, QuicSendStream, QuicStreamError};
use proto::field_section::ResponsePriority;
use proto::fields::Fields;
use proto::h3::{FaultScope, FramePlace, H3Error, H3ErrorCode, H3Event, H3FrameReader, frame};
use proto::qpack::SectionOutcome;

use super::connection_link::{Http3Link, block_error, register};
use super::limits::PREREAD;
use super::request_head::{Http3Start, decode_head};
use crate::byte_stream::ByteStream;
use crate::client_budget::price;
use crate::client_stream::ClientStream;
use crate::response_section::each_of;
use crate::stream_request::{TrailerReader, length_fault, list_limits};

/// How much is taken of a stream at a time, in bytes.
const READ_SIZE: usize = 64 * 1024;

/// How far two urgencies are apart among the priorities of QUIC streams.
const URGENCY_STEP: i32 = 1 << 27;

/// The stream, or its connection, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Http3StreamOver;

/// Why a stream is over before both sides have ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamAbandonment {
    /// The client does not want the response any more, or has abandoned the request.
    ByClient,
    /// We have.
    ByUs,
    /// The connection ended.
    WithConnection,
}

/// One stream of a connection, with a request on it.
pub(super) struct Http3Stream {
    pub(super) id: u64,
    pub(super) link: Rc<Http3Link>,
    pub(super) send: RefCell<QuicSendStream>,
    receive: RefCell<ReceiveSide>,
    /// What leaves before anything else: interim responses that the client's window did not let through.
    pub(super) unsent: RefCell<Bytes>,
    /// How much content has arrived so far.
    received: Cell<u64>,
    /// With which code we have given it up.
    reset_code: Cell<Option<H3ErrorCode>>,
    /// `Content-Length`, if the client sent it.
    announced: Cell<Option<u64>>,
    /// Our side has ended, by its end or by a reset.
    is_ended: Cell<bool>,
    given_up: Cell<Option<StreamAbandonment>>,
    has_priority: Cell<bool>,
    /// The task, while its header block waits for the table.
    blocked: RefCell<Option<Waker>>,
}

/// The client's direction.
struct ReceiveSide {
    stream: QuicReceiveStream,
    reader: H3FrameReader,
    /// What has been read of the stream and not been parsed.
    chunk: Bytes,
    /// A DATA frame has come.
    has_content: bool,
    /// Content that has arrived and that no handler has read.
    input: Vec<u8>,
    /// A header block that waits for the table.
    waiting: Option<Vec<u8>>,
    head: HeadProgress,
    trailers: Fields,
    end: InputEnd,
}

/// Whether the client's direction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputEnd {
    Open,
    /// The client has ended it, and nothing is left to parse.
    Complete,
    /// Either side has abandoned it.
    Abandoned,
}

/// What has become of the request's head.
enum HeadProgress {
    Expected,
    /// It has been decoded and not been taken.
    Decoded(Http3Start),
    Taken,
}

/// What one step of reading has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadStep {
    /// The head, content, trailers.
    Some,
    /// The end.
    End,
}

impl Http3Stream {
    /// A stream that the client has begun.
    pub(super) fn new(
        link: &Rc<Http3Link>,
        send: QuicSendStream,
        receive: QuicReceiveStream,
    ) -> Http3Stream {
        Http3Stream {
            id: send.id(),
            link: Rc::clone(link),
            send: RefCell::new(send),
            receive: RefCell::new(ReceiveSide {
                stream: receive,
                reader: H3FrameReader::new(FramePlace::Request, link.limits.borrow().max_block),
                chunk: Bytes::new(),
                has_content: false,
                input: Vec::new(),
                waiting: None,
                head: HeadProgress::Expected,
                trailers: Fields::new(),
                end: InputEnd::Open,
            }),
            unsent: RefCell::default(),
            received: Cell::new(0),
            reset_code: Cell::new(None),
            announced: Cell::new(None),
            is_ended: Cell::new(false),
            given_up: Cell::new(None),
            has_priority: Cell::new(false),
            blocked: RefCell::default(),
        }
    }

    // -- the client's side --

    /// Ready with the decoded head of the request.
    pub(super) fn poll_head(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Http3Start, Http3StreamOver>> {
        let mut side = self.receive.borrow_mut();
        loop {
            match std::mem::replace(&mut side.head, HeadProgress::Taken) {
                HeadProgress::Decoded(start) => return Poll::Ready(Ok(start)),
                other => side.head = other,
            }
            match ready!(self.poll_step(&mut side, context))? {
                ReadStep::Some => {}
                // `finish` has found that no request was there.
                ReadStep::End => return Poll::Ready(Err(Http3StreamOver)),
            }
        }
    }

    /// Whether content may follow the head. Its end mostly comes in the same packet.
    pub(super) fn may_have_content(&self) -> bool {
        self.read_ahead(&mut Context::from_waker(Waker::noop()));
        let side = self.receive.borrow();
        // A DATA frame is content, even if it is empty.
        side.has_content || side.end != InputEnd::Complete
    }

    /// Whether the request may be a replay (RFC 8470).
    pub(super) fn is_early(&self) -> bool {
        self.receive.borrow().stream.is_early() && !self.link.quic.is_handshake_complete()
    }

    /// Takes one step: parses what has been read, or reads more.
    fn poll_step(
        &self,
        side: &mut ReceiveSide,
        context: &mut Context<'_>,
    ) -> Poll<Result<ReadStep, Http3StreamOver>> {
        loop {
            if side.waiting.is_some() {
                register(&self.blocked, context);
                if self.link.decoder.borrow().is_blocked(self.id) {
                    // A reset ends the wait; there is nothing else to be read meanwhile.
                    return Poll::Pending;
                }
                let block = side.waiting.take().unwrap_or_default();
                self.link.release_blocked(block.len());
                let taken = self.take_block(&mut side.head, &mut side.trailers, &block);
                // It was waited for.
                side.waiting = taken.map_err(|error| self.refuse(&error))?;
                return Poll::Ready(Ok(ReadStep::Some));
            }
            match side.end {
                InputEnd::Open => {}
                InputEnd::Complete => return Poll::Ready(Ok(ReadStep::End)),
                InputEnd::Abandoned => return Poll::Ready(Err(Http3StreamOver)),
            }
            if !side.chunk.is_empty() {
                match self.parse(side) {
                    Ok(true) => return Poll::Ready(Ok(ReadStep::Some)),
                    Ok(false) => {}
                    Err(error) => return Poll::Ready(Err(self.refuse(&error))),
                }
                continue;
            }
            if self.given_up.get().is_some() {
                return Poll::Ready(Err(Http3StreamOver));
            }
            match ready!(side.stream.poll_read(context, READ_SIZE)) {
                Ok(QuicReceived::Data(bytes)) => {
                    side.chunk = bytes;
                    if let Err(error) = self.link.count_taken(side.chunk.len()) {
                        return Poll::Ready(Err(self.refuse(&error)));
                    }
                }
                Ok(QuicReceived::Finished) => {
                    if let Err(error) = side.reader.finish() {
                        return Poll::Ready(Err(self.refuse(&error)));
                    }
                    side.end = InputEnd::Complete;
                }
                Ok(QuicReceived::Reset(code)) => {
                    side.end = InputEnd::Abandoned;
                    self.note_left(code);
                    return Poll::Ready(Err(Http3StreamOver));
                }
                Err(_closed) => {
                    self.close_by_client();
                    return Poll::Ready(Err(Http3StreamOver));
                }
            }
        }
    }

    /// Parses what has been read, up to the first event that a task waits for: `true`.
    fn parse(&self, side: &mut ReceiveSide) -> Result<bool, H3Error> {
        let chunk = std::mem::take(&mut side.chunk);
        let mut used = 0;
        let is_something = loop {
            let (event, n) = side.reader.next_event(&chunk[used..])?;
            used += n;
            match event {
                H3Event::More => break false,
                H3Event::Data { bytes, begins } => {
                    side.has_content = true;
                    // A frame without content costs the client two bytes and moves nothing forward.
                    if bytes.is_empty() && begins {
                        self.link.spend(price::EMPTY)?;
                        continue;
                    }
                    side.input.extend_from_slice(bytes);
                    self.link
                        .of_use
                        .set(self.link.of_use.get() + bytes.len() as u64);
                    self.received.set(self.received.get() + bytes.len() as u64);
                    break true;
                }
                H3Event::Head(block) | H3Event::Trailers(block) => {
                    self.link
                        .of_use
                        .set(self.link.of_use.get() + block.len() as u64);
                    side.waiting = self.take_block(&mut side.head, &mut side.trailers, block)?;
                    side.reader.shrink();
                    break true;
                }
                H3Event::Unknown { kind, .. } => {
                    self.link
                        .debug(format_args!("http3 unknown frame type {kind:#x}"));
                    self.link.spend(price::FRAME)?;
                }
                // The reader does not let these pass on a request's stream.
                H3Event::Settings(_)
                | H3Event::GoAway(_)
                | H3Event::MaxPushId(_)
                | H3Event::CancelPush(_)
                | H3Event::PriorityUpdate { .. }
                | H3Event::PushPriorityUpdate { .. } => {}
            }
        };
        side.chunk = chunk;
        side.chunk.advance(used);
        Ok(is_something)
    }

    /// Decodes a header block: the head first, then the trailers. Returns one that is blocked, to be kept.
    fn take_block(
        &self,
        head: &mut HeadProgress,
        trailers: &mut Fields,
        block: &[u8],
    ) -> Result<Option<Vec<u8>>, H3Error> {
        let is_decoded = match head {
            HeadProgress::Expected => match decode_head(&self.link, self.id, block)? {
                Some(start) => {
                    // A PRIORITY_UPDATE frame overrides the request's own field (RFC 9218, section 7).
                    if let Some(priority) = start.priority.filter(|_| !self.has_priority.get()) {
                        self.set_priority(priority);
                    }
                    *head = HeadProgress::Decoded(start);
                    true
                }
                None => false,
            },
            HeadProgress::Decoded(_) | HeadProgress::Taken => {
                self.take_trailers(trailers, block)?
            }
        };
        self.link.send_acknowledgements();
        if is_decoded {
            return Ok(None);
        }
        self.link.spend(price::BLOCKED)?;
        self.link.reserve_blocked(block.len())?;
        Ok(Some(block.to_vec()))
    }

    /// Decodes the trailers. `false`: their block is blocked.
    fn take_trailers(&self, fields: &mut Fields, block: &[u8]) -> Result<bool, H3Error> {
        let site = self.link.http.site();
        let limits = list_limits(&site.server(self.link.client.first_server()).core);
        let mut trailers = TrailerReader::new();
        let mut decoder = self.link.decoder.borrow_mut();
        let outcome = decoder
            .decode(self.id, block, limits, |field| trailers.add_field(field))
            .map_err(block_error)?;
        match outcome {
            SectionOutcome::Blocked => return Ok(false),
            SectionOutcome::Decoded(decoded) if trailers.is_valid && !decoded.too_large => {
                *fields = trailers.fields;
            }
            SectionOutcome::Decoded(_) => {
                return Err(H3Error::stream(
                    H3ErrorCode::MESSAGE_ERROR,
                    "invalid trailers",
                ));
            }
        }
        Ok(true)
    }

    /// Reads as much as may be kept before a handler asks for it.
    fn read_ahead(&self, context: &mut Context<'_>) {
        let mut side = self.receive.borrow_mut();
        while side.input.len() < PREREAD {
            match self.poll_step(&mut side, context) {
                Poll::Ready(Ok(ReadStep::Some)) => {}
                Poll::Ready(Ok(ReadStep::End) | Err(Http3StreamOver)) | Poll::Pending => return,
            }
        }
    }

    /// Appends content to `out`; `Ok(true)` at its end.
    pub(super) fn poll_read(
        &self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, Http3StreamOver>> {
        let mut side = self.receive.borrow_mut();
        let before = out.len();
        loop {
            let room = max.saturating_sub(out.len() - before);
            let input = &mut side.input;
            let n = input.len().min(room);
            if n == input.len() && out.is_empty() {
                // Everything fits into an empty buffer: the two are exchanged instead of copied.
                std::mem::swap(out, input);
            } else {
                out.extend_from_slice(&input[..n]);
                input.drain(..n);
            }
            if out.len() - before >= max || !side.input.is_empty() {
                return Poll::Ready(Ok(false));
            }
            match self.poll_step(&mut side, context) {
                Poll::Ready(Ok(ReadStep::Some)) => {}
                Poll::Ready(Ok(ReadStep::End)) => return Poll::Ready(Ok(true)),
                // What arrived before a reset is delivered first.
                Poll::Ready(Err(Http3StreamOver)) if out.len() > before => {
                    return Poll::Ready(Ok(false));
                }
                Poll::Ready(Err(over)) => return Poll::Ready(Err(over)),
                Poll::Pending if out.len() > before => return Poll::Ready(Ok(false)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The trailers, once the content has ended.
    pub(super) fn take_trailer_fields(&self) -> Fields {
        std::mem::take(&mut self.receive.borrow_mut().trailers)
    }

    /// Whether the client has ended its side.
    pub(super) fn has_all_input(&self) -> bool {
        self.receive.borrow().end == InputEnd::Complete
    }

    /// Whether no content waits to be read, and none has ended.
    pub(super) fn is_silent(&self) -> bool {
        let side = self.receive.borrow();
        side.input.is_empty() && side.end == InputEnd::Open
    }

    /// How much content has arrived so far.
    pub(super) fn content_received(&self) -> u64 {
        self.received.get()
    }

    /// The length of the content as the client announced it.
    pub(super) fn announce_length(&self, length: u64) {
        self.announced.set(Some(length));
    }

    /// What is wrong about the amount of content, if anything.
    pub(super) fn length_fault(&self) -> Option<String> {
        length_fault(
            self.announced.get()?,
            self.received.get(),
            self.has_all_input(),
        )
    }

    // -- the end --

    /// What the client sent is wrong: ends the stream, or the connection.
    fn refuse(&self, error: &H3Error) -> Http3StreamOver {
        match error.scope {
            FaultScope::Connection => self.link.fail(*error),
            FaultScope::Stream => {
                self.link.log_fault(error, Some(self.id));
                if let Err(error) = self.link.spend(price::STREAM) {
                    self.link.fail(error);
                }
                self.reset_stream(error.code);
            }
        }
        let given_up = self.given_up.get();
        self.given_up
            .set(given_up.or(Some(StreamAbandonment::ByUs)));
        Http3StreamOver
    }

    /// The client does not want the response any more.
    fn note_left(&self, code: u64) {
        if self.given_up.get().is_some() {
            return;
        }
        self.given_up.set(Some(StreamAbandonment::ByClient));
        self.link.log(
            host::error_log::LogLevel::Info,
            format_args!(
                "client canceled stream {} with code {} while processing HTTP/3 connection",
                self.id,
                H3ErrorCode(code)
            ),
        );
        if let Err(error) = self.link.spend(price::STREAM) {
            self.link.fail(error);
        }
    }

    /// The client, or its connection, is gone.
    pub(super) fn close_by_client(&self) {
        let given_up = self.given_up.get();
        self.given_up
            .set(given_up.or(Some(StreamAbandonment::WithConnection)));
        self.wake_blocked();
    }

    /// Whether nobody wants the response any more.
    pub(super) fn is_gone(&self) -> bool {
        self.given_up.get().is_some() || self.link.is_over.get()
    }

    /// Wakes the task if its header block waits for the table.
    pub(super) fn wake_blocked(&self) {
        if let Some(waker) = self.blocked.take() {
            waker.wake();
        }
    }

    // -- our side --

    /// Sets the priority of the response (RFC 9218, section 10): by urgency; then responses whose parts are useless on their
    /// own, one after the other; then the incremental ones in turn. Without a priority a stream counts as incremental.
    pub(super) fn set_priority(&self, priority: ResponsePriority) {
        self.has_priority.set(true);
        let urgency = i32::from(ResponsePriority::default().urgency) - i32::from(priority.urgency);
        let place = match priority.incremental {
            true => 0,
            // Earlier streams go first. After this many requests on a connection they take turns.
            false => {
                let turn = i32::try_from(self.id / 4).unwrap_or(i32::MAX);
                URGENCY_STEP - 1 - turn.min(URGENCY_STEP - 2)
            }
        };
        self.send
            .borrow()
            .set_priority(urgency * URGENCY_STEP + place);
    }

    /// Hands bytes over as far as the client takes them; ready once nothing of `bytes` is left.
    pub(super) fn poll_write(
        &self,
        bytes: &mut Bytes,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Http3StreamOver>> {
        let mut unsent = self.unsent.borrow_mut();
        let mut send = self.send.borrow_mut();
        for part in [&mut *unsent, bytes] {
            while !part.is_empty() {
                match ready!(send.poll_write(context, part)) {
                    Ok(n) => self.link.sent.set(self.link.sent.get() + n as u64),
                    Err(error) => {
                        drop(send);
                        return Poll::Ready(Err(self.write_failed(&error)));
                    }
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    #[cold]
    fn write_failed(&self, error: &QuicStreamError) -> Http3StreamOver {
        match error {
            QuicStreamError::Stopped(code) => self.note_left(*code),
            QuicStreamError::Ended => {}
            QuicStreamError::Closed(_) => self.close_by_client(),
        }
        Http3StreamOver
    }

    /// Hands over the last bytes of the response and its end, if all of them are taken now. What is left in `parts` else goes the
    /// way of [`Http3Stream::poll_write`] and [`Http3Stream::end_response`].
    pub(super) fn try_finish(&self, parts: &mut [Bytes]) -> bool {
        // Interim responses come first.
        if self.is_ended.get() || !self.unsent.borrow().is_empty() {
            return false;
        }
        let length = |parts: &[Bytes]| parts.iter().map(Bytes::len).sum::<usize>();
        let before = length(parts);
        let is_all = self.send.borrow_mut().finish_with(parts) == Ok(true);
        self.is_ended.set(is_all);
        let sent = before - length(parts);
        self.link.sent.set(self.link.sent.get() + sent as u64);
        is_all
    }

    /// Ends our side. What was written is still delivered.
    pub(super) fn end_response(&self) {
        if !self.is_ended.replace(true) {
            // The error says that the client does not want it, or left: what was to be said is of no use.
            let _ = self.send.borrow_mut().finish();
        }
    }

    /// Resets the stream from our side, in both directions.
    pub(super) fn reset_stream(&self, code: H3ErrorCode) {
        if !self.is_ended.replace(true) {
            self.send.borrow_mut().reset(code.0);
        }
        let given_up = self.given_up.get();
        self.given_up
            .set(given_up.or(Some(StreamAbandonment::ByUs)));
        self.reset_code.set(self.reset_code.get().or(Some(code)));
        self.stop_content(code);
    }

    /// Tells the client to send no more.
    pub(super) fn stop_content(&self, code: H3ErrorCode) {
        // Only if it can be reached: the fault may have been found while reading, and `close_stream` does it then.
        if let Ok(mut side) = self.receive.try_borrow_mut()
            && side.end == InputEnd::Open
        {
            side.end = InputEnd::Abandoned;
            side.stream.stop_sending(code.0);
            self.link.decoder.borrow_mut().cancel_stream(self.id);
            self.link.send_acknowledgements();
        }
    }

    /// Closes the stream once its request is over, in the way that its state requires.
    pub(super) fn close_stream(&self) {
        let code = match self.given_up.get() {
            Some(StreamAbandonment::ByClient) => H3ErrorCode::REQUEST_CANCELLED,
            // The response is complete, the request's content is not: the client is told to stop sending (RFC 9114, section
            // 4.1).
            None if self.is_ended.get() => H3ErrorCode::NO_ERROR,
            // The task ended in the middle of the response (a panic, an abort): the client must not take it for complete.
            _ => H3ErrorCode::INTERNAL_ERROR,
        };
        let mut side = self.receive.borrow_mut();
        if let Some(block) = side.waiting.take() {
            self.link.release_blocked(block.len());
        }
        drop(side);
        self.reset_stream(self.reset_code.get().unwrap_or(code));
        self.link.remove_stream(self.id);
    }
}

impl ClientStream for Http3Stream {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        let stopped = self.send.borrow_mut().poll_stopped(context);
        match stopped {
            Poll::Ready(Ok(Some(code))) => self.note_left(code),
            Poll::Ready(Err(_closed)) => self.close_by_client(),
            Poll::Ready(Ok(None)) | Poll::Pending => self.read_ahead(context),
        }
        match self.is_gone() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    fn has_all(&self, _: Option<u64>, most: u64) -> bool {
        self.read_ahead(&mut Context::from_waker(Waker::noop()));
        let side = self.receive.borrow();
        side.end == InputEnd::Complete && side.input.len() as u64 <= most
    }

    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool> {
        match self.poll_read(out, max, context) {
            Poll::Ready(Ok(ended)) => Poll::Ready(!ended),
            Poll::Ready(Err(Http3StreamOver)) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    fn end_output(&self) {
        if !self.is_gone() {
            self.end_response();
        }
    }

    fn can_be_reset(&self) -> bool {
        true
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        None
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        // Interim responses are hints. A client that reads nothing must not make them pile up.
        if self.is_gone() || self.is_ended.get() || !self.unsent.borrow().is_empty() {
            return;
        }
        let mut out = Vec::new();
        let begun = frame::HeadersFrame::begin(&mut out);
        let mut encoder = self.link.encoder.borrow_mut();
        encoder.begin(&mut out);
        encoder.status(status, &mut out);
        each_of(fields, |known, name, value, secrecy| {
            encoder.field(known, name, value, secrecy, &mut out);
        });
        drop(encoder);
        begun.finish(&mut out);
        let mut out = Bytes::from(out);
        // The next one that waits for the stream asks with a waker of its own.
        let _ = self.poll_write(&mut out, &mut Context::from_waker(Waker::noop()));
        *self.unsent.borrow_mut() = out;
    }
}
