//! The body of a response on its way from the upstream to the client.
//!
//! What has been received is in a queue that the client is served from. With buffering, the queue is filled even while
//! the client is slow: first in memory, then in a temporary file that the thread pool writes. Without buffering, the
//! upstream is read only when the client can take more, and each piece is sent at once.
//!
//! ```text
//! upstream ─ decode ─┬─ memory (`…_buffers`) ───────────────────┬─▶ queue ─▶ client
//!                    └─ file, while that is full (spool) ─ pool ┘
//! ```
//!
//! While both are full, the upstream is not read, and TCP flow control makes it wait.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use host::tight_memory::is_tight;

use super::detached_reader::DetachedReader;
use super::exchange::Exchange;
use super::exchange_log::{self, ExchangeStage};
use super::protocol::{ChunkPiece, ContentLength};

use super::respond::is_event_stream;
use super::spool::ResponseSpool;
use super::store_response::ResponseSaving;
use super::transmit::{SendFailure, TransmitProgress};
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, BodySource, ResponseBody};

/// The minimum and the maximum size of one read, in bytes. In between, `…_buffers` decides.
const READ_SIZE: (usize, usize) = (4 * 1024, 64 * 1024);

/// The maximum while memory is tight.
const READ_SIZE_IF_TIGHT: usize = 8 * 1024;

/// The interval at which reading is resumed when `…_limit_rate` permits no more at the moment.
const RATE_TICK: Duration = Duration::from_millis(20);

/// Reads the body of a response.
pub(super) struct ResponseReader {
    exchange: Box<Exchange>,
    queue: VecDeque<BodyChunk>,
    /// The bytes of `queue` that are in memory.
    queued: u64,
    spool: ResponseSpool,
    /// A slow client has given back what leads the queue: it goes to the file before the client gets anything else.
    parks: bool,
    saving: Option<ResponseSaving>,
    state: ReaderState,
    buffering: bool,
    /// What has been produced so far is to be sent to the client.
    flush_due: bool,
    /// The number of bytes still to come, if known.
    left: Option<u64>,
    read_size: usize,
    memory: u64,
    scratch: Vec<u8>,
    /// `…_limit_rate` in bytes per second; 0: no limit.
    rate: u64,
    received: u64,
    pause: rt::Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReaderState {
    /// More is to be received.
    Reading,
    /// Everything has been received.
    Ended,
    /// It broke off. That has been logged.
    Cut,
}

impl ResponseReader {
    /// A reader for the body of a response whose head has been read.
    pub(super) fn new(exchange: Box<Exchange>, request: &mut Request) -> ResponseReader {
        let settings = &exchange.settings;
        let buffers = u64::from(settings.buffers.count) * settings.buffers.size;
        let buffering = exchange.buffering;
        let memory = buffers.max(settings.buffer_size);
        let read_size = usize::try_from(memory)
            .unwrap_or(READ_SIZE.1)
            .clamp(READ_SIZE.0, READ_SIZE.1);
        let left = match exchange.protocol.content_length() {
            ContentLength::None => Some(0),
            ContentLength::Known(length) => Some(length),
            ContentLength::Unknown => None,
        };
        // nginx applies `…_limit_rate` only to buffered responses.
        let rate = match (&settings.limit_rate, buffering) {
            (Some(rate), true) => {
                base::units::parse_size(&request.value(&rate.clone())).unwrap_or(0)
            }
            _ => 0,
        };
        if !buffering {
            // As in nginx, `limit_rate` does not apply to an unbuffered response either.
            request.delivery.limit_rate = Some(0);
        }
        request.delivery.head_waits = buffering && !is_event_stream(request);
        request.upstream.get_or_make().current_try().is_in_progress = true;
        let spool = ResponseSpool::new(settings, buffering);
        let saving = ResponseSaving::begin(request, settings);
        let mut reader = ResponseReader {
            exchange,
            queue: VecDeque::new(),
            queued: 0,
            spool,
            parks: false,
            saving,
            state: ReaderState::Reading,
            buffering,
            flush_due: false,
            left,
            read_size,
            memory,
            scratch: Vec::new(),
            rate,
            received: 0,
            pause: rt::Timer::new(),
        };
        reader
            .exchange
            .timer
            .set(reader.exchange.settings.read_timeout);
        // The bytes that came with the head are counted and decoded like those that are read later.
        let rest = std::mem::take(&mut reader.exchange.rest);
        reader.received = rest.len() as u64;
        request.upstream.get_or_make().current_try().response_length += rest.len() as u64;
        reader.decode(request, rest);
        reader
    }

    /// The body of the response: plain bytes if it has been received completely.
    pub(super) fn into_body(mut self, request: &mut Request) -> ResponseBody {
        // Most small responses end here. One chunk is sent together with the head, without a stream's bookkeeping.
        if self.state == ReaderState::Ended && self.queue.len() <= 1 && self.saving.is_none() {
            self.copy_trailers(request);
            return match self.queue.pop_front() {
                Some(BodyChunk::Bytes(bytes)) => ResponseBody::Bytes(bytes),
                _ => ResponseBody::Empty,
            };
        }
        if self.is_saving() {
            return ResponseBody::stream(DetachedReader::new(self, request));
        }
        ResponseBody::stream(self)
    }

    /// Whether the response is being stored, and can be without the client. A request body that still comes from the
    /// client cannot.
    pub(super) fn is_saving(&self) -> bool {
        self.saving.is_some() && self.state != ReaderState::Cut && self.exchange.transmit.is_over()
    }

    /// Decodes what has been received.
    fn decode(&mut self, request: &mut Request, mut input: Bytes) {
        let before = self.queue.len();
        while self.state == ReaderState::Reading {
            match self.exchange.protocol.read_content(request, &input) {
                Ok(ChunkPiece::Data(range)) => {
                    let rest = input.slice(range.end..);
                    self.push(input.slice(range));
                    input = rest;
                }
                Ok(ChunkPiece::More) => return,
                Ok(ChunkPiece::End(used)) => {
                    self.state = ReaderState::Ended;
                    // As nginx does, the rest is dropped with a warning. It is not the beginning of another response,
                    // so the connection is not kept.
                    if used < input.len() {
                        exchange_log::more_data_than_announced(request);
                    }
                    self.end(request, used == input.len());
                }
                Err(fault) => {
                    exchange_log::invalid_response(
                        request,
                        &fault.message,
                        ExchangeStage::ReadingBody,
                    );
                    // Bytes that arrived with an invalid frame may be invalid as well. If the body merely ended too
                    // early, they are right.
                    if !fault.is_short {
                        for chunk in self.queue.drain(before..) {
                            self.queued = self.queued.saturating_sub(chunk.len());
                        }
                    }
                    self.cut(request);
                }
            }
        }
    }

    /// Appends a piece of the body to the queue, or to the file if the queue's memory is full.
    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(data.len() as u64);
        }
        if let Some(saving) = &mut self.saving {
            saving.add(&data);
        }
        // Once the file is in use, everything goes through it: the order of the pieces must not change.
        if self.spool.is_active() {
            self.spool.add(&data);
        } else {
            self.queued += data.len() as u64;
            self.queue.push_back(BodyChunk::Bytes(data));
        }
        self.flush_due = !self.buffering;
    }

    /// Ends the exchange. `clean`: nothing followed the body.
    fn end(&mut self, request: &mut Request, clean: bool) {
        if let Some(trailers) = self.exchange.protocol.trailers()
            && !trailers.is_empty()
        {
            request.upstream.get_or_make().trailers = trailers.clone();
        }
        // The client may take long for the rest.
        self.scratch = Vec::new();
        self.exchange.finish(request, clean);
    }

    /// Copies the trailers into the response, if the protocol passes them on.
    fn copy_trailers(&self, request: &mut Request) {
        if !self.exchange.protocol.passes_trailers() {
            return;
        }
        let Some(record) = request.upstream.get() else {
            return;
        };
        for (known, name, value) in record.trailers.iter_known() {
            if !self.exchange.settings.hide.contains(known, name) {
                request.out.trailers.push(name, value);
            }
        }
    }

    /// Gives up the response. The client's connection is closed as well, so that it can tell (RFC 9112, section 8).
    fn cut(&mut self, request: &mut Request) {
        self.state = ReaderState::Cut;
        self.exchange.finish(request, false);
    }

    /// Continues to send the request, whose body may still be on its way when the response begins.
    fn poll_send(&mut self, request: &mut Request, context: &mut Context<'_>) {
        let exchange = &mut self.exchange;
        let Some(link) = &exchange.current.link else {
            return;
        };
        if !exchange.transmit.has_work(&*exchange.protocol) {
            return;
        }
        match exchange.transmit.poll(
            request,
            &link.connection.stream,
            &mut *exchange.protocol,
            context,
        ) {
            Ok(TransmitProgress::Done) => exchange.timer.set(exchange.settings.read_timeout),
            Ok(TransmitProgress::PeerBusy { .. } | TransmitProgress::Waiting) => {}
            // The response is there already, so the failure to send the rest of the request does not matter.
            Err(SendFailure::Peer(_)) => exchange.transmit.stop_sending(),
            Err(SendFailure::Client(_)) => self.cut(request),
        }
    }

    /// Receives once. `Ready` if something has changed: bytes have arrived, or the response has ended or broken off.
    fn poll_receive(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<()> {
        let Some(link) = &self.exchange.current.link else {
            return Poll::Pending;
        };
        let mut most = match is_tight() {
            true => self.read_size.min(READ_SIZE_IF_TIGHT),
            false => self.read_size,
        };
        if self.rate > 0 {
            // With an allowance of 0 more was received than is permitted so far. After the pause the task is woken once more
            // instead of reading at once, and the poll then computes the allowance anew.
            match self.allowance() {
                0 => {
                    if !self.pause.is_set() {
                        self.pause.set(RATE_TICK);
                    }
                    return match self.pause.poll_expired(context) {
                        Poll::Ready(()) => {
                            self.pause.clear();
                            context.waker().wake_by_ref();
                            Poll::Pending
                        }
                        Poll::Pending => Poll::Pending,
                    };
                }
                bytes => most = most.min(usize::try_from(bytes).unwrap_or(most)),
            }
        }
        self.scratch.clear();
        match link
            .connection
            .stream
            .poll_read_into(context, &mut self.scratch, most)
        {
            Poll::Pending => {
                if self.exchange.timer.poll_expired(context).is_ready() {
                    exchange_log::timed_out(request, ExchangeStage::ReadingBody);
                    request.upstream.get_or_make().current_try().status = 504;
                    self.cut(request);
                    return Poll::Ready(());
                }
                return Poll::Pending;
            }
            Poll::Ready(Ok(0)) => self.end_of_input(request),
            Poll::Ready(Ok(n)) => {
                self.received += n as u64;
                let current = request.upstream.get_or_make().current_try();
                current.bytes_received += n as u64;
                current.response_length += n as u64;
                self.exchange.timer.set(self.exchange.settings.read_timeout);
                let input = self.take_scratch();
                self.decode(request, input);
                // It may have opened a flow-control window, or may demand an acknowledgement.
                self.poll_send(request, context);
            }
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Poll::Ready(Err(error)) => {
                exchange_log::read_failed(request, &error, ExchangeStage::ReadingBody);
                self.cut(request);
            }
        }
        Poll::Ready(())
    }

    /// The bytes that were just read. A small piece is copied, since otherwise it would keep a large buffer allocated.
    fn take_scratch(&mut self) -> Bytes {
        if self.scratch.len() * 2 < self.scratch.capacity() {
            return Bytes::copy_from_slice(&self.scratch);
        }
        Bytes::from(std::mem::take(&mut self.scratch))
    }

    /// The upstream closed the connection. Whether that is the end of the body is for the protocol to say: for an
    /// HTTP/1 response without a length it is (RFC 9112, section 6.3).
    fn end_of_input(&mut self, request: &mut Request) {
        match self.exchange.protocol.end_of_input() {
            Ok(()) => {
                self.state = ReaderState::Ended;
                // What has ended is the stream of one exchange, or the connection.
                let is_stream = self.exchange.protocol.uses_quic();
                self.end(request, is_stream);
            }
            Err(fault) => {
                exchange_log::invalid_response(request, &fault.message, ExchangeStage::ReadingBody);
                self.cut(request);
            }
        }
    }

    /// The number of bytes that `…_limit_rate` permits to receive at the moment.
    fn allowance(&self) -> u64 {
        let since = self
            .exchange
            .current
            .head_arrived
            .unwrap_or(self.exchange.current.began);
        let millis = rt::now().saturating_duration_since(since).as_millis() as u64;
        // The allowance of one second is granted in advance, so that small responses are not delayed.
        let allowed = u128::from(self.rate) * u128::from(millis.saturating_add(1000)) / 1000;
        let allowed = u64::try_from(allowed).unwrap_or(u64::MAX);
        allowed.saturating_sub(self.received)
    }

    /// Continues to store the response. `false` while the disk must catch up.
    fn poll_saving(&mut self, request: &mut Request, context: &mut Context<'_>) -> bool {
        let Some(saving) = &mut self.saving else {
            return true;
        };
        if self.state == ReaderState::Cut
            || saving
                .poll(request, self.state == ReaderState::Ended, context)
                .is_ready()
        {
            self.saving = None;
            return true;
        }
        self.state == ReaderState::Reading && !saving.is_full()
    }

    /// How much may be in memory for a client that does not take it: `…_buffers`, or one read while memory is tight.
    fn most_queued(&self) -> u64 {
        match is_tight() {
            true => self.memory.min(READ_SIZE_IF_TIGHT as u64),
            false => self.memory,
        }
    }

    /// Takes the next chunk for the client out of the queue.
    fn next_queued(&mut self) -> Option<BodyChunk> {
        let chunk = self.queue.pop_front()?;
        if let BodyChunk::Bytes(bytes) = &chunk {
            self.queued = self.queued.saturating_sub(bytes.len() as u64);
        }
        Some(chunk)
    }

    /// Whether what leads the queue is on its way to the file. Then there is nothing for the client.
    fn poll_parking(&mut self, request: &mut Request, context: &mut Context<'_>) -> bool {
        loop {
            if self.spool.is_active() {
                self.poll_spool(request, context);
            }
            if !self.parks || self.spool.is_writing() {
                return self.parks || self.spool.is_parking();
            }
            self.parks = false;
            self.park();
        }
    }

    /// Moves the bytes at the beginning of the queue to the file.
    fn park(&mut self) {
        let mut data = Vec::new();
        while matches!(self.queue.front(), Some(BodyChunk::Bytes(_)))
            && let Some(BodyChunk::Bytes(bytes)) = self.next_queued()
        {
            data.extend_from_slice(&bytes);
        }
        self.spool.park(data);
    }

    /// Takes over what has been written to the file.
    fn poll_spool(&mut self, request: &mut Request, context: &mut Context<'_>) {
        let was_parking = self.spool.is_parking();
        let ended = self.state != ReaderState::Reading;
        let written = self.spool.poll(request, &mut self.queue, ended, context);
        if written.is_err() {
            // What follows a part that is lost must not be sent in its place.
            if was_parking {
                self.queue.clear();
                self.queued = 0;
            }
            self.cut(request);
        }
        // The client has caught up with the file, so what is not written yet is served from memory.
        if self.queue.is_empty()
            && let Some(data) = self.spool.take_unwritten()
        {
            self.queued += data.len() as u64;
            self.queue.push_back(BodyChunk::Bytes(data));
        }
    }
}

impl BodySource for ResponseReader {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        // First, because the upstream may wait for the rest of the request before it sends more.
        self.poll_send(request, context);
        loop {
            if self.poll_parking(request, context) {
                return Poll::Pending;
            }
            if let Some(chunk) = self.next_queued() {
                return Poll::Ready(Some(Ok(chunk)));
            }
            // After the queue is empty: a flush before its pieces would send nothing.
            if std::mem::take(&mut self.flush_due) {
                return Poll::Ready(Some(Ok(BodyChunk::Flush)));
            }
            // The end of the body is reported only when the stored file has its name: the next request may look for it.
            let saved = self.poll_saving(request, context);
            if !self.spool.is_busy() {
                match self.state {
                    ReaderState::Reading => {}
                    ReaderState::Ended if !saved => return Poll::Pending,
                    ReaderState::Ended => {
                        self.copy_trailers(request);
                        return Poll::Ready(None);
                    }
                    ReaderState::Cut => return Poll::Ready(Some(Err(BodyError::Producer))),
                }
            }
            // The file, the disk or the upstream has to catch up. Each of them wakes this task.
            if self.state != ReaderState::Reading
                || !saved
                || self.poll_receive(request, context).is_pending()
            {
                return Poll::Pending;
            }
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.poll_send(request, context);
        // Without buffering, reading depends on the client, which bounds the memory.
        if !self.buffering {
            return;
        }
        loop {
            if self.poll_parking(request, context) {
                return;
            }
            // When the buffers in memory are full, the file takes the rest. When that is full too, the upstream has to
            // wait.
            let full = self.queued >= self.most_queued();
            let saved = self.poll_saving(request, context);
            if self.state != ReaderState::Reading
                || full && !self.spool.begin(request)
                || self.spool.is_full()
                || !saved
            {
                return;
            }
            if self.poll_receive(request, context).is_pending() {
                return;
            }
        }
    }

    fn takes_back(&self, bytes: u64) -> bool {
        let held = self.queued + bytes;
        // A response that fits into its buffers has no file.
        self.buffering
            && (held > self.most_queued() || self.spool.is_active())
            && self.state != ReaderState::Cut
            && self.spool.may_park(held)
    }

    fn take_back(&mut self, chunk: BodyChunk) {
        if let BodyChunk::Bytes(bytes) = &chunk {
            self.queued += bytes.len() as u64;
            self.parks = true;
        }
        self.queue.push_front(chunk);
    }

    fn length(&self) -> Option<u64> {
        // In memory and in the file alike.
        let queued: u64 = self.queue.iter().map(BodyChunk::len).sum();
        self.left.map(|left| left + queued + self.spool.unwritten())
    }

    fn may_have_trailers(&self) -> bool {
        self.exchange.protocol.passes_trailers()
    }
}
