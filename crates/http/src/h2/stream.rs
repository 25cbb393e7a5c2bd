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
//! Beside that a stream may be given up at any time ([`GivenUp`]), by RST_STREAM of either side or with its connection: what
//! the client has sent before that stays what it is. Once our side has ended a client has nothing more to say that
//! matters: it is told so by RST_STREAM with NO_ERROR (RFC 9113, section 8.1).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proto::fields::Fields;
use proto::h2::frame::{self, HeadersFrame};
use proto::h2::hpack::Secrecy;
use proto::h2::{ErrorCode, Priority, Window};

use super::link::{Closed, How, Link, OUTPUT_FULL, register};
use crate::byte_stream::ByteStream;
use crate::client_stream::ClientStream;

/// The most that a stream may append at a time, in bytes.
const PORTION: u32 = 64 * 1024;

/// The window of a stream whose content is being read, in bytes: what may be on its way.
const READ_WINDOW: u32 = 256 * 1024;

/// The stream, or its connection, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left;

/// Which sides have sent their end (RFC 9113, section 5.1). See the module's description.
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
    /// The client sent RST_STREAM, whatever happened before: it may send nothing more.
    ByClient,
    /// We did.
    ByUs,
    /// The connection is over.
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

/// See the module's description.
pub(super) struct Stream {
    pub(super) id: u32,
    pub(super) link: Rc<Link>,
    /// What the client takes of this stream's content.
    pub(super) send_window: Cell<Window>,
    /// How much content is at hand to be sent, in bytes.
    pub(super) wanted: Cell<u32>,
    /// What the client may still send.
    pub(super) receive_window: Cell<u32>,
    /// Content that has come and was not asked for yet.
    pub(super) input: RefCell<Vec<u8>>,
    /// How much content there was so far.
    received: Cell<u64>,
    /// How much the client has announced.
    announced: Cell<Option<u64>>,
    /// Fields that followed the content.
    pub(super) trailers: RefCell<Fields>,
    state: Cell<StreamState>,
    given_up: Cell<Option<GivenUp>>,
    /// The content is being read: the window is as large as it gets.
    is_read: Cell<bool>,
    pub(super) priority: Cell<Option<Priority>>,
    turn: Cell<u64>,
    reader: RefCell<Option<Waker>>,
    sender: RefCell<Option<Waker>>,
    watcher: RefCell<Option<Waker>>,
}

impl Stream {
    /// A stream that the client has begun. `window` is what the client may send before it is asked.
    pub(super) fn new(id: u32, link: &Rc<Link>, window: u32, input_ended: bool) -> Stream {
        let size = link.output.borrow().peer.initial_window_size;
        Stream {
            id,
            link: Rc::clone(link),
            send_window: Cell::new(Window::new(size)),
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

    /// Content has come. `counted` is what it took of the windows.
    pub(super) fn receive(&self, bytes: &[u8], counted: u32, ends: bool) -> Result<(), ErrorCode> {
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
            // Padding is gone as soon as it is here.
            self.open_window();
        }
        wake(&self.reader);
        Ok(())
    }

    /// The client has ended its side.
    pub(super) fn end_input(&self) {
        self.state.set(self.state.get().after_end_of_client());
        wake(&self.reader);
    }

    /// Whether the client has ended its side.
    pub(super) fn has_all_input(&self) -> bool {
        self.state.get().client_has_ended()
    }

    /// The client has reset the stream.
    pub(super) fn take_reset(&self) {
        self.given_up.set(Some(GivenUp::ByClient));
        self.leave();
    }

    /// Whether the client has reset the stream.
    pub(super) fn was_reset(&self) -> bool {
        self.given_up.get() == Some(GivenUp::ByClient)
    }

    /// The client, or its connection, is gone.
    pub(super) fn leave(&self) {
        let given_up = self.given_up.get();
        self.given_up
            .set(given_up.or(Some(GivenUp::WithConnection)));
        wake(&self.reader);
        wake(&self.sender);
        wake(&self.watcher);
    }

    /// Whether the client is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.given_up.get().is_some() || self.link.over.get()
    }

    /// The length of the content as the client announced it.
    pub(super) fn announce(&self, length: u64) {
        self.announced.set(Some(length));
    }

    /// What is wrong about the amount of content, if anything.
    pub(super) fn length_fault(&self) -> Option<String> {
        let (announced, received) = (self.announced.get()?, self.received.get());
        if received > announced {
            return Some("client intended to send body data larger than declared".to_owned());
        }
        (self.has_all_input() && received < announced).then(|| {
            format!(
                "client prematurely closed stream: only {received} out of {announced} bytes of request body received"
            )
        })
    }

    /// Appends content to `out`; `Ok(true)` at its end.
    pub(super) fn poll_read(
        &self,
        out: &mut Vec<u8>,
        max: usize,
        context: &Context<'_>,
    ) -> Poll<Result<bool, Left>> {
        if !self.is_read.replace(true) {
            self.open_window();
        }
        let mut input = self.input.borrow_mut();
        let n = input.len().min(max);
        if n == input.len() && out.is_empty() && input.capacity() <= max {
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
        if self.has_all_input() && is_empty {
            return Poll::Ready(Ok(true));
        }
        if n > 0 {
            return Poll::Ready(Ok(false));
        }
        if self.is_gone() {
            return Poll::Ready(Err(Left));
        }
        register(&self.reader, context);
        Poll::Pending
    }

    /// Lets the client send more, when it may send much less than it could: not a little whenever a little was read,
    /// which would have its frames and reads become as small.
    fn open_window(&self) {
        if self.has_all_input() || self.is_gone() || !self.is_read.get() {
            return;
        }
        let kept = self.input.borrow().len() as u32;
        let window = self.receive_window.get();
        let missing = READ_WINDOW.saturating_sub(window.saturating_add(kept));
        if missing >= READ_WINDOW / 2 {
            self.receive_window.set(window + missing);
            self.link
                .write(|output| frame::write_window_update(self.id, missing, &mut output.bytes));
        }
    }

    // -- our side --

    /// How much content may be appended now, at most `want` bytes; 0 when this stream has to wait.
    pub(super) fn room(&self, want: u32) -> u32 {
        self.wanted.set(want);
        let window = self.link.usable(self);
        if self.is_gone() || window == 0 || !self.link.has_room() || !self.is_first() {
            return 0;
        }
        want.min(window).min(PORTION)
    }

    /// How much content may be appended now, at most `want` bytes. Ready once it is one byte at least; whoever gets it
    /// appends it before anything else happens.
    pub(super) fn poll_room(&self, want: u32, context: &Context<'_>) -> Poll<Result<u32, Left>> {
        if self.is_gone() {
            return Poll::Ready(Err(Left));
        }
        let room = self.room(want);
        if room == 0 {
            self.wait_for_room(context);
            return Poll::Pending;
        }
        self.link.leave_queue(self);
        Poll::Ready(Ok(room))
    }

    /// Whether no other stream that could send is to do so first.
    fn is_first(&self) -> bool {
        let waiting = self.link.waiting.borrow();
        if waiting.is_empty() {
            return true;
        }
        let rank = self.rank();
        !waiting
            .iter()
            .any(|other| other.id != self.id && self.link.usable(other) > 0 && other.rank() < rank)
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
        self.link.wake_next();
        // The connection looks after those that wait for a larger window.
        if self.link.has_little(self) {
            self.link.wake();
        }
    }

    /// Who goes first: by urgency; then those whose parts are of no use, one after the other; then all others in turn.
    /// A client that says nothing of priorities wants them all.
    pub(super) fn rank(&self) -> (u8, bool, u64) {
        match self.priority.get() {
            Some(priority) if !priority.incremental => (priority.urgency, false, self.id.into()),
            Some(priority) => (priority.urgency, true, self.turn.get()),
            None => (Priority::default().urgency, true, self.turn.get()),
        }
    }

    /// Wakes whoever waits for room.
    pub(super) fn wake_sender(&self) {
        wake(&self.sender);
    }

    /// Counts content against the windows.
    pub(super) fn sent(&self, bytes: u32) {
        let mut window = self.send_window.get();
        let mut output = self.link.output.borrow_mut();
        let enough = window.take(bytes) && output.window.take(bytes);
        debug_assert!(enough, "room was asked for before");
        drop(output);
        self.send_window.set(window);
        self.turn.set(self.link.next_turn());
    }

    /// Appends a header block: the response's head, an interim one, or the fields that end it. Gives its size.
    pub(super) fn write_headers(
        &self,
        ends: bool,
        write: impl FnOnce(&mut proto::h2::hpack::Encoder, &mut Vec<u8>),
    ) -> usize {
        if ends {
            self.has_sent_end();
        }
        let ((), appended) = self.link.write(|output| {
            let begun = HeadersFrame::begin(self.id, ends, &mut output.bytes);
            output.encoder.begin(&mut output.bytes);
            write(&mut output.encoder, &mut output.bytes);
            begun.finish(output.peer.max_frame_size, &mut output.bytes);
        });
        appended
    }

    /// Our side ends with what was appended last.
    pub(super) fn has_sent_end(&self) {
        self.state.set(self.state.get().after_our_end());
    }

    /// Whether our side has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.state.get().we_have_ended()
    }

    /// Resets the stream from our side.
    pub(super) fn reset(&self, code: ErrorCode) {
        if self.given_up.get().is_none() {
            self.has_sent_end();
            self.given_up.set(Some(GivenUp::ByUs));
            self.link.write_reset(self.id, code);
        }
    }

    /// The request is over: the stream is closed, in the way that its state demands.
    pub(super) fn close(&self) {
        let how = match (self.was_reset(), self.has_all_input()) {
            (true, _) => How::Reset,
            (_, true) => How::Ended,
            _ => How::Ours,
        };
        if !self.is_ended() {
            self.reset(ErrorCode::INTERNAL_ERROR);
        } else if !self.has_all_input() {
            self.reset(ErrorCode::NO_ERROR);
        }
        let received = self.received.get();
        let content_left = self.announced.get().map(|all| all.saturating_sub(received));
        self.link.forget(
            self,
            Closed {
                stream: self.id,
                how,
                content_left,
            },
        );
    }
}

impl ClientStream for Stream {
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
            Poll::Ready(Err(Left)) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    fn end(&self) {
        if !self.is_gone() && !self.is_ended() {
            self.has_sent_end();
            self.link
                .write(|output| frame::write_data_head(self.id, 0, true, &mut output.bytes));
        }
    }

    fn can_be_reset(&self) -> bool {
        true
    }

    fn exclusive(&self) -> Option<&ByteStream> {
        None
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        if self.is_gone() || self.is_ended() || self.link.output.borrow().pending() > OUTPUT_FULL {
            return;
        }
        self.write_headers(false, |encoder, out| {
            encoder.status(status, out);
            for (known, name, value) in fields.iter_known() {
                if super::head::may_be_sent(known, name) {
                    encoder.field(known, name, value, Secrecy::Open, out);
                }
            }
        });
    }
}

fn wake(place: &RefCell<Option<Waker>>) {
    if let Some(waker) = &*place.borrow() {
        waker.wake_by_ref();
    }
}
