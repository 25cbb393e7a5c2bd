//! One stream: what has come of its request's content, and whether its response may be sent.
//!
//! ```text
//!            HEADERS           END_STREAM (client)
//!    idle ───────────▶ Open ─────────────────────────▶ HalfClosedRemote
//!                       │                                    │
//!                       │ END_STREAM (ours)                  │ END_STREAM (ours)
//!                       ▼                                    ▼
//!                HalfClosedLocal ───────────────────────▶ Closed
//!                              END_STREAM (client)
//! ```
//!
//! Independently of that a stream may be given up at any time ([`GivenUp`]), by RST_STREAM of either side or with its
//! connection; what had been received before stays readable. Once our response is complete, the rest of the client's
//! content is not needed: RST_STREAM with NO_ERROR tells it to stop (RFC 9113, section 8.1).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proto::fields::Fields;
use proto::h2::frame::{self, HeadersFrame};
use proto::h2::{ErrorCode, FlowControlWindow, ResponsePriority};

use super::connection_link::{ClosedHttp2Stream, Http2Link, Http2StreamEnd, OUTPUT_FULL, register};
use crate::byte_stream::ByteStream;
use crate::client_stream::ClientStream;
use crate::stream_request::length_fault;

/// How much a stream may append at a time, in bytes: together with the bound on the output it bounds the memory of the
/// connection, and it is the grain in which streams take turns.
const PORTION: u32 = 64 * 1024;

/// The receive window of a stream whose content is being read, in bytes: as much may be under way.
const READ_WINDOW: u32 = 256 * 1024;

/// The stream, or its connection, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Http2StreamOver;

/// Which sides have sent END_STREAM (RFC 9113, section 5.1). See the picture above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamState {
    /// Neither.
    Open,
    /// The client.
    HalfClosedRemote,
    /// We.
    HalfClosedLocal,
    /// Both.
    Closed,
}

/// Why a stream is over before both sides have sent their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    /// The client sent RST_STREAM. This replaces every other reason, since the client must send nothing more.
    ByClient,
    /// We sent RST_STREAM.
    ByUs,
    /// The connection ended.
    WithConnection,
}

impl StreamState {
    fn client_has_ended(self) -> bool {
        matches!(self, StreamState::HalfClosedRemote | StreamState::Closed)
    }

    fn we_have_ended(self) -> bool {
        matches!(self, StreamState::HalfClosedLocal | StreamState::Closed)
    }

    fn after_end_of_client(self) -> StreamState {
        match self {
            StreamState::Open | StreamState::HalfClosedRemote => StreamState::HalfClosedRemote,
            StreamState::HalfClosedLocal | StreamState::Closed => StreamState::Closed,
        }
    }

    fn after_our_end(self) -> StreamState {
        match self {
            StreamState::Open | StreamState::HalfClosedLocal => StreamState::HalfClosedLocal,
            StreamState::HalfClosedRemote | StreamState::Closed => StreamState::Closed,
        }
    }
}

/// One stream of a connection.
pub(super) struct Http2Stream {
    pub(super) id: u32,
    pub(super) link: Rc<Http2Link>,
    /// What is left of the client's window for this stream.
    pub(super) send_window: Cell<FlowControlWindow>,
    /// How much content the sender has at hand, in bytes, as it said last: a window below that is little, see
    /// [`Http2Link::usable_window`].
    pub(super) wanted: Cell<u32>,
    /// What is left of our window for this stream.
    pub(super) receive_window: Cell<u32>,
    /// Content that has arrived and has not been read. The receive window bounds it.
    pub(super) input: RefCell<Vec<u8>>,
    /// How much content has arrived so far.
    received: Cell<u64>,
    /// `Content-Length`, if the client sent it.
    announced: Cell<Option<u64>>,
    /// The trailers.
    pub(super) trailers: RefCell<Fields>,
    state: Cell<StreamState>,
    given_up: Cell<Option<GivenUp>>,
    /// A handler has begun to read the content: from then on the window is kept at its full size.
    is_read: Cell<bool>,
    pub(super) priority: Cell<Option<ResponsePriority>>,
    turn: Cell<u64>,
    reader: RefCell<Option<Waker>>,
    sender: RefCell<Option<Waker>>,
    watcher: RefCell<Option<Waker>>,
}

impl Http2Stream {
    /// A stream that the client has begun. `window` is what the client may send before a handler reads.
    pub(super) fn new(
        id: u32,
        link: &Rc<Http2Link>,
        window: u32,
        input_ended: bool,
    ) -> Http2Stream {
        let size = link.output.borrow().peer.initial_window_size;
        Http2Stream {
            id,
            link: Rc::clone(link),
            send_window: Cell::new(FlowControlWindow::new(size)),
            wanted: Cell::new(0),
            receive_window: Cell::new(window),
            input: RefCell::default(),
            received: Cell::new(0),
            announced: Cell::new(None),
            trailers: RefCell::default(),
            state: Cell::new(match input_ended {
                true => StreamState::HalfClosedRemote,
                false => StreamState::Open,
            }),
            given_up: Cell::new(None),
            is_read: Cell::new(false),
            priority: Cell::new(None),
            turn: Cell::new(link.next_turn()),
            reader: RefCell::default(),
            sender: RefCell::default(),
            watcher: RefCell::default(),
        }
    }

    // -- the client's side --

    /// Receives content. `counted` is what it took of the windows, padding included.
    pub(super) fn receive_content(
        &self,
        bytes: &[u8],
        counted: u32,
        ends: bool,
    ) -> Result<(), ErrorCode> {
        if self.has_all_input() {
            return Err(ErrorCode::STREAM_CLOSED);
        }
        let Some(window) = self.receive_window.get().checked_sub(counted) else {
            return Err(ErrorCode::FLOW_CONTROL_ERROR);
        };
        self.receive_window.set(window);
        self.input.borrow_mut().extend_from_slice(bytes);
        self.received.set(self.received.get() + bytes.len() as u64);
        if ends {
            self.end_input();
        } else if counted as usize > bytes.len() {
            // Padding is not buffered, so its share of the window is free again at once.
            self.open_window();
        }
        wake(&self.reader);
        Ok(())
    }

    /// Receives the client's END_STREAM.
    pub(super) fn end_input(&self) {
        self.state.set(self.state.get().after_end_of_client());
        wake(&self.reader);
    }

    /// Whether the client has ended its side.
    pub(super) fn has_all_input(&self) -> bool {
        self.state.get().client_has_ended()
    }

    /// Receives the client's RST_STREAM.
    pub(super) fn take_reset(&self) {
        self.given_up.set(Some(GivenUp::ByClient));
        self.close_by_client();
    }

    /// Whether the client has reset the stream.
    pub(super) fn was_reset(&self) -> bool {
        self.given_up.get() == Some(GivenUp::ByClient)
    }

    /// The client, or its connection, is gone.
    pub(super) fn close_by_client(&self) {
        let given_up = self.given_up.get();
        self.given_up
            .set(given_up.or(Some(GivenUp::WithConnection)));
        wake(&self.reader);
        wake(&self.sender);
        wake(&self.watcher);
    }

    /// Whether the client is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.given_up.get().is_some() || self.link.is_output_closed.get()
    }

    /// The length of the content as the client announced it.
    pub(super) fn announce_length(&self, length: u64) {
        self.announced.set(Some(length));
    }

    /// What is wrong about the amount of content, if anything.
    pub(super) fn length_fault(&self) -> Option<String> {
        let (announced, received) = (self.announced.get()?, self.received.get());
        length_fault(announced, received, self.has_all_input())
    }

    /// Appends content to `out`; `Ok(true)` at its end.
    pub(super) fn poll_read(
        &self,
        out: &mut Vec<u8>,
        max: usize,
        context: &Context<'_>,
    ) -> Poll<Result<bool, Http2StreamOver>> {
        // The first read opens the window: a request that is refused never lets the client send more than it had.
        if !self.is_read.replace(true) {
            self.open_window();
        }
        let mut input = self.input.borrow_mut();
        let n = input.len().min(max);
        if n == input.len() && out.is_empty() && input.capacity() <= max {
            // Everything fits into an empty buffer: the two are exchanged instead of copied.
            std::mem::swap(out, &mut input);
        } else {
            out.extend_from_slice(&input[..n]);
            input.drain(..n);
        }
        let is_empty = input.is_empty();
        drop(input);
        if n > 0 {
            self.open_window();
        }
        // What arrived before a reset is delivered first; the loss of the client shows when there is nothing left to
        // read.
        if self.has_all_input() && is_empty {
            return Poll::Ready(Ok(true));
        }
        if n > 0 {
            return Poll::Ready(Ok(false));
        }
        if self.is_gone() {
            return Poll::Ready(Err(Http2StreamOver));
        }
        register(&self.reader, context);
        Poll::Pending
    }

    /// Opens the window again once much of it is used. Small updates for every small read would make the client's
    /// frames, and then our reads, as small.
    fn open_window(&self) {
        // Before a handler reads, the client may send only what `http2_body_preread_size` lets it.
        if self.has_all_input() || self.is_gone() || !self.is_read.get() {
            return;
        }
        let kept = self.input.borrow().len() as u32;
        let window = self.receive_window.get();
        let missing = READ_WINDOW.saturating_sub(window.saturating_add(kept));
        if missing >= READ_WINDOW / 2 {
            self.receive_window.set(window + missing);
            self.link.append_frames(|output| {
                frame::write_window_update(self.id, missing, &mut output.bytes)
            });
        }
    }

    // -- our side --

    /// How much content may be appended now, at most `want` bytes; 0 if the stream has to wait for a window, for room
    /// in the output or for a stream that goes first.
    pub(super) fn sendable_bytes(&self, want: u32) -> u32 {
        self.wanted.set(want);
        let window = self.link.usable_window(self);
        if self.is_gone() || window == 0 || !self.link.has_room() || !self.is_first() {
            return 0;
        }
        want.min(window).min(PORTION)
    }

    /// Waits for the same; ready with at least one byte. The caller must append it before anything else runs: the room
    /// is not reserved, other streams are told of the same bytes.
    pub(super) fn poll_room(
        &self,
        want: u32,
        context: &Context<'_>,
    ) -> Poll<Result<u32, Http2StreamOver>> {
        if self.is_gone() {
            return Poll::Ready(Err(Http2StreamOver));
        }
        let room = self.sendable_bytes(want);
        if room == 0 {
            self.wait_for_room(context);
            return Poll::Pending;
        }
        self.link.leave_queue(self);
        Poll::Ready(Ok(room))
    }

    /// Whether no other stream that could send goes first.
    fn is_first(&self) -> bool {
        let waiting = self.link.waiting.borrow();
        if waiting.is_empty() {
            return true;
        }
        let rank = self.send_order();
        !waiting.iter().any(|other| {
            other.id != self.id && self.link.usable_window(other) > 0 && other.send_order() < rank
        })
    }

    fn wait_for_room(&self, context: &Context<'_>) {
        register(&self.sender, context);
        let mut waiting = self.link.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.id == self.id)
            && let Some(me) = self.link.stream(self.id)
        {
            waiting.push(me);
        }
        drop(waiting);
        // This stream may have been woken for room that another one deserves.
        self.link.wake_next();
        // The connection's task has the timer for streams that wait for a larger window.
        if self.link.has_little(self) {
            self.link.wake_connection();
        }
    }

    /// The order in which streams send (RFC 9218, section 10): by urgency; then streams whose parts are useless on
    /// their own, one after the other; then the incremental ones in turn. Without a priority a stream counts as
    /// incremental, so that no response of such a client waits for another one to end.
    pub(super) fn send_order(&self) -> (u8, bool, u64) {
        match self.priority.get() {
            Some(priority) if !priority.incremental => (priority.urgency, false, self.id.into()),
            Some(priority) => (priority.urgency, true, self.turn.get()),
            None => (ResponsePriority::default().urgency, true, self.turn.get()),
        }
    }

    /// Wakes the task that waits for room.
    pub(super) fn wake_sender(&self) {
        wake(&self.sender);
    }

    /// Counts content against the windows of the stream and of the connection (RFC 9113, section 6.9.1). True when neither is
    /// used up.
    pub(super) fn consume_windows(&self, bytes: u32) -> bool {
        let mut window = self.send_window.get();
        let mut output = self.link.output.borrow_mut();
        let enough = window.consume(bytes) && output.window.consume(bytes);
        debug_assert!(enough, "room was asked for before");
        let left = window.available().min(output.window.available());
        drop(output);
        self.send_window.set(window);
        // Having sent, the stream moves behind the others of its urgency.
        self.turn.set(self.link.next_turn());
        left > 0
    }

    /// Appends a header block: the response's head, an interim one, or the trailers. Returns its size. Encoding and
    /// appending are one step, because the order of blocks on the wire has to be the order in which they changed the
    /// compression table.
    pub(super) fn write_headers(
        &self,
        ends: bool,
        write: impl FnOnce(&mut proto::h2::hpack::HpackEncoder, &mut Vec<u8>),
    ) -> usize {
        if ends {
            self.has_sent_end();
        }
        let ((), appended) = self.link.append_frames(|output| {
            let begun = HeadersFrame::begin(self.id, ends, &mut output.bytes);
            output.encoder.begin(&mut output.bytes);
            write(&mut output.encoder, &mut output.bytes);
            begun.finish(output.peer.max_frame_size, &mut output.bytes);
        });
        appended
    }

    /// Notes that what was appended last carries END_STREAM.
    pub(super) fn has_sent_end(&self) {
        self.state.set(self.state.get().after_our_end());
    }

    /// Whether our side has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.state.get().we_have_ended()
    }

    /// Resets the stream from our side.
    pub(super) fn reset_stream(&self, code: ErrorCode) {
        if self.given_up.get().is_none() {
            self.has_sent_end();
            self.given_up.set(Some(GivenUp::ByUs));
            self.link.write_reset(self.id, code);
        }
    }

    /// Closes the stream once its request is over, in the way that its state requires.
    pub(super) fn close_stream(&self) {
        let how = match (self.was_reset(), self.has_all_input()) {
            (true, _) => Http2StreamEnd::ResetByClient,
            (_, true) => Http2StreamEnd::EndedByClient,
            _ => Http2StreamEnd::ResetByServer,
        };
        if !self.is_ended() {
            // The task ended in the middle of the response (a panic, an abort): the client must not take it for
            // complete.
            self.reset_stream(ErrorCode::INTERNAL_ERROR);
        } else if !self.has_all_input() {
            // The response is complete, the request's content is not: the client is told to stop sending.
            self.reset_stream(ErrorCode::NO_ERROR);
        }
        let received = self.received.get();
        let content_left = self.announced.get().map(|all| all.saturating_sub(received));
        self.link.remove_stream(
            self,
            ClosedHttp2Stream {
                stream: self.id,
                how,
                content_left,
            },
        );
    }
}

impl ClientStream for Http2Stream {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        register(&self.watcher, context);
        Poll::Pending
    }

    fn has_all(&self, _: Option<u64>, most: u64) -> bool {
        self.has_all_input() && self.input.borrow().len() as u64 <= most
    }

    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool> {
        match self.poll_read(out, max, context) {
            Poll::Ready(Ok(ended)) => Poll::Ready(!ended),
            Poll::Ready(Err(Http2StreamOver)) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    fn end_output(&self) {
        if !self.is_gone() && !self.is_ended() {
            self.has_sent_end();
            self.link.append_frames(|output| {
                frame::write_data_head(self.id, 0, true, &mut output.bytes)
            });
        }
    }

    fn can_be_reset(&self) -> bool {
        true
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        None
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        // Interim responses are hints. A client that reads nothing must not make them pile up in the output.
        if self.is_gone() || self.is_ended() || self.link.output.borrow().pending() > OUTPUT_FULL {
            return;
        }
        self.write_headers(false, |encoder, out| {
            encoder.status(status, out);
            super::head::write_fields(fields, encoder, out);
        });
    }
}

fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = &*place.borrow() {
        waker.wake_by_ref();
    }
}
