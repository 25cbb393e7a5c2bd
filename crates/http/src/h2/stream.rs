//! One stream: what has come of its request's content, and whether its response may be sent.
//!
//! ```text
//!            HEADERS                    END_STREAM (client)
//!    idle ───────────▶ open ─────────────────────────────────▶ half-closed (remote)
//!                       │ END_STREAM (ours), RST_STREAM               │ END_STREAM (ours),
//!                       ▼                                             ▼ RST_STREAM of either
//!                     closed ◀──────────────────────────────────── closed
//! ```
//!
//! Once our side has ended a client has nothing more to say that matters, so a stream of which we have sent the end is
//! closed whatever the client does; it is told so by RST_STREAM with NO_ERROR (RFC 9113, section 8.1).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use proto::fields::Fields;
use proto::h2::frame::{self, HeadersFrame};
use proto::h2::hpack::Secrecy;
use proto::h2::{ErrorCode, Priority, Window};

use super::link::{Closed, How, Link, OUTPUT_FULL, register};
use crate::lane::Lane;

/// The most that a stream may append at a time, in bytes.
const PORTION: u32 = 64 * 1024;

/// The window of a stream whose content is being read, in bytes: what may be on its way.
const READ_WINDOW: u32 = 256 * 1024;

/// The stream, or its connection, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left;

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
    /// The client has sent its end.
    pub(super) input_ended: Cell<bool>,
    /// Somebody reads the content: the window is as large as it gets.
    is_read: Cell<bool>,
    pub(super) priority: Cell<Option<Priority>>,
    turn: Cell<u64>,
    /// The client has reset it.
    pub(super) was_reset: Cell<bool>,
    /// The client has reset it, or the connection is over.
    gone: Cell<bool>,
    /// We have sent its end, or reset it.
    ended: Cell<bool>,
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
            input_ended: Cell::new(input_ended),
            is_read: Cell::new(false),
            priority: Cell::new(None),
            turn: Cell::new(link.next_turn()),
            was_reset: Cell::new(false),
            gone: Cell::new(false),
            ended: Cell::new(false),
            reader: RefCell::default(),
            sender: RefCell::default(),
            watcher: RefCell::default(),
        }
    }

    // -- the client's side --

    /// Content has come. `counted` is what it took of the windows.
    pub(super) fn receive(&self, bytes: &[u8], counted: u32, ends: bool) -> Result<(), ErrorCode> {
        if self.input_ended.get() {
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
        self.input_ended.set(true);
        wake(&self.reader);
    }

    /// The client, or its connection, is gone.
    pub(super) fn leave(&self) {
        self.gone.set(true);
        wake(&self.reader);
        wake(&self.sender);
        wake(&self.watcher);
    }

    /// Whether the client is gone.
    pub(super) fn is_gone(&self) -> bool {
        self.gone.get() || self.link.over.get()
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
        (self.input_ended.get() && received < announced).then(|| {
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
        if self.input_ended.get() && is_empty {
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
        if self.input_ended.get() || self.is_gone() || !self.is_read.get() {
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
            self.ended.set(true);
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
        self.ended.set(true);
    }

    /// Whether our side has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.get()
    }

    /// Resets the stream from our side.
    pub(super) fn reset(&self, code: ErrorCode) {
        if !self.gone.get() {
            self.ended.set(true);
            self.gone.set(true);
            self.link.write_reset(self.id, code);
        }
    }

    /// The request is over: the stream is closed, in the way that its state demands.
    pub(super) fn close(&self) {
        let how = match (self.was_reset.get(), self.input_ended.get()) {
            (true, _) => How::Reset,
            (_, true) => How::Ended,
            _ => How::Ours,
        };
        if !self.ended.get() {
            self.reset(ErrorCode::INTERNAL_ERROR);
        } else if !self.input_ended.get() {
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

impl Lane for Stream {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_gone() {
            return Poll::Ready(());
        }
        register(&self.watcher, context);
        Poll::Pending
    }

    fn has_all(&self, most: u64) -> bool {
        self.input_ended.get() && self.input.borrow().len() as u64 <= most
    }

    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool> {
        match self.poll_read(out, max, context) {
            Poll::Ready(Ok(ended)) => Poll::Ready(!ended),
            Poll::Ready(Err(Left)) => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    }

    fn end(&self) {
        if !self.is_gone() && !self.ended.replace(true) {
            self.link
                .write(|output| frame::write_data_head(self.id, 0, true, &mut output.bytes));
        }
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        if self.is_gone() || self.ended.get() || self.link.output.borrow().pending() > OUTPUT_FULL {
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
