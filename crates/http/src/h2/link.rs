//! What the streams of a connection share, with each other and with the task that reads and writes it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use proto::h2::frame;
use proto::h2::hpack::Encoder;
use proto::h2::{ErrorCode, Settings, Window};

use super::stream::Stream;
use crate::byte_stream::ByteStream;
use crate::client::Client;
use crate::http_loop::HttpLoop;
use crate::request::Request;
use crate::virtual_server::LastVirtualServer;

/// No stream appends content while so much waits to be sent, in bytes. Together with the largest piece that one stream
/// may append at a time it bounds the output.
pub(super) const OUTPUT_FULL: usize = 64 * 1024;

/// A piece of content smaller than this is sent only if it is the last one, or after some time: a window that opens byte by
/// byte would make a frame, and a read of a file, of each. In bytes.
const LITTLE: u32 = 64;

/// The same for a client whose account has been drawn upon, as one that opens windows by so little draws upon it.
const LITTLE_FOR_COSTLY: u32 = 256;

/// Streams that ended lately and whose frames are told from those of streams that never were.
const CLOSED_KEPT: usize = 128;

/// Requests that are kept to become others, while the connection is busy and for a second after that. An idle one keeps
/// one.
const SPARES_KEPT: usize = 32;

/// See the module's description.
pub(super) struct Link {
    pub(super) http: Rc<HttpLoop>,
    pub(super) client: Rc<Client>,
    pub(super) bytes: Rc<ByteStream>,
    pub(super) output: RefCell<Output>,
    /// The open streams, by identifier. Their number is bounded by `http2_max_concurrent_streams`.
    pub(super) streams: RefCell<Vec<Rc<Stream>>>,
    /// Those that have content to send and may not yet.
    pub(super) waiting: RefCell<Vec<Rc<Stream>>>,
    /// The tasks of the streams.
    pub(super) tasks: RefCell<Vec<rt::JoinHandle<()>>>,
    /// Streams that ended lately, the last one first.
    closed: RefCell<VecDeque<Closed>>,
    /// Whom to wake when there is something to send, or a stream has ended.
    waker: RefCell<Option<Waker>>,
    /// Nothing is sent any more.
    pub(super) over: Cell<bool>,
    /// Numbers the turns of streams that share the connection.
    turns: Cell<u64>,
    /// Tasks of streams have ended since the connection's task looked.
    pub(super) ended: Cell<bool>,
    /// Requests that came to their end since then, those left out that were reset.
    pub(super) served: Cell<u32>,
    /// How many requests came to their end on the connection, those left out that were reset.
    pub(super) completed: Cell<u32>,
    /// The rank of the connection's tasks.
    pub(super) rank: Cell<rt::Rank>,
    /// The client's account has been drawn upon.
    pub(super) costly: Cell<bool>,
    /// Little pieces are sent too: whoever waits has waited for long enough.
    pub(super) takes_little: Cell<bool>,
    /// Requests that have ended, to become others.
    #[allow(
        clippy::vec_box,
        reason = "they come and go as boxes, because a request is large"
    )]
    pub(super) spares: RefCell<Vec<Box<Request>>>,
    /// The server that the client asked for last.
    pub(super) last_server: RefCell<LastVirtualServer>,
}

/// What is to be sent, and what bounds it.
pub(super) struct Output {
    /// Whole frames.
    pub(super) bytes: Vec<u8>,
    /// How much of them is sent.
    pub(super) sent: usize,
    pub(super) encoder: Encoder,
    /// What the client has said about itself.
    pub(super) peer: Settings,
    /// What the client takes on the connection as a whole.
    pub(super) window: Window,
}

/// A stream that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed {
    pub(super) stream: u32,
    pub(super) how: How,
    /// How much content the client had announced and not yet sent.
    pub(super) content_left: Option<u64>,
}

/// How a stream has ended, on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The client ended it: nothing may follow.
    Ended,
    /// The client reset it: nothing may follow.
    Reset,
    /// We did: frames may be on their way.
    Ours,
}

impl Output {
    /// Bytes that wait to be sent.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }
}

impl Link {
    pub(super) fn new(http: &Rc<HttpLoop>, client: &Rc<Client>, bytes: &Rc<ByteStream>) -> Link {
        Link {
            http: Rc::clone(http),
            client: Rc::clone(client),
            bytes: Rc::clone(bytes),
            output: RefCell::new(Output {
                bytes: Vec::new(),
                sent: 0,
                encoder: Encoder::default(),
                peer: Settings::default(),
                window: Window::new(Window::DEFAULT),
            }),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            tasks: RefCell::default(),
            closed: RefCell::default(),
            waker: RefCell::default(),
            over: Cell::new(false),
            turns: Cell::new(0),
            ended: Cell::new(false),
            served: Cell::new(0),
            completed: Cell::new(0),
            rank: Cell::default(),
            costly: Cell::new(false),
            takes_little: Cell::new(false),
            spares: RefCell::default(),
            last_server: RefCell::default(),
        }
    }

    /// The connection's task is what `context` wakes.
    pub(super) fn register(&self, context: &Context<'_>) {
        register(&self.waker, context);
    }

    /// Has the connection's task look.
    pub(super) fn wake(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Appends frames. Gives what `write` gives, and how many bytes it appended.
    pub(super) fn write<T>(&self, write: impl FnOnce(&mut Output) -> T) -> (T, usize) {
        let mut output = self.output.borrow_mut();
        let before = output.bytes.len();
        let value = write(&mut output);
        let appended = output.bytes.len() - before;
        drop(output);
        if appended > 0 {
            self.wake();
        }
        (value, appended)
    }

    /// Resets a stream. Whoever serves it is not told.
    pub(super) fn write_reset(&self, stream: u32, code: ErrorCode) {
        if !self.over.get() {
            self.write(|output| frame::write_reset(stream, code, &mut output.bytes));
        }
    }

    /// The open stream with this identifier.
    pub(super) fn stream(&self, id: u32) -> Option<Rc<Stream>> {
        let streams = self.streams.borrow();
        let index = streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(Rc::clone(&streams[index]))
    }

    /// A stream has ended.
    pub(super) fn forget(&self, stream: &Stream, closed: Closed) {
        let mut streams = self.streams.borrow_mut();
        if let Ok(index) = streams.binary_search_by_key(&stream.id, |known| known.id) {
            streams.remove(index);
        }
        drop(streams);
        self.note_closed(closed);
        self.leave_queue(stream);
        self.wake_next();
        self.wake();
    }

    /// Remembers a stream that has ended, or was never begun.
    pub(super) fn note_closed(&self, closed: Closed) {
        let mut list = self.closed.borrow_mut();
        list.truncate(CLOSED_KEPT - 1);
        list.push_front(closed);
    }

    /// What is known of a stream that has ended.
    pub(super) fn closed(&self, id: u32) -> Option<Closed> {
        let closed = self.closed.borrow();
        closed.iter().find(|closed| closed.stream == id).copied()
    }

    /// The client has reset a stream that has ended.
    pub(super) fn reset_closed(&self, id: u32) {
        let mut list = self.closed.borrow_mut();
        if let Some(closed) = list.iter_mut().find(|closed| closed.stream == id) {
            closed.how = How::Reset;
        }
    }

    /// Counts content that came for a stream which has ended. `false`: it is more, or less, than was announced.
    pub(super) fn count_late_content(&self, id: u32, bytes: u64, ends: bool) -> bool {
        let mut list = self.closed.borrow_mut();
        let closed = list.iter_mut().find(|closed| closed.stream == id);
        let Some(left) = closed.and_then(|closed| closed.content_left.as_mut()) else {
            return true;
        };
        match left.checked_sub(bytes) {
            Some(rest) => {
                *left = rest;
                rest == 0 || !ends
            }
            None => false,
        }
    }

    /// The stream does not wait for room any more.
    pub(super) fn leave_queue(&self, stream: &Stream) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(index) = waiting.iter().position(|known| known.id == stream.id) {
            waiting.swap_remove(index);
        }
    }

    /// The number of the next turn.
    pub(super) fn next_turn(&self) -> u64 {
        let turn = self.turns.get();
        self.turns.set(turn + 1);
        turn
    }

    /// Whether streams may append content.
    pub(super) fn has_room(&self) -> bool {
        let output = self.output.borrow();
        output.pending() < OUTPUT_FULL && output.window.available() > 0
    }

    /// What the client takes of a stream now, in bytes: 0 when that is so little that more is waited for.
    pub(super) fn usable(&self, stream: &Stream) -> u32 {
        let window = self.window(stream);
        let little = match self.costly.get() {
            true => LITTLE_FOR_COSTLY,
            false => LITTLE,
        };
        match window < little.min(stream.wanted.get()) && !self.takes_little.get() {
            true => 0,
            false => window,
        }
    }

    fn window(&self, stream: &Stream) -> u32 {
        let all = self.output.borrow().window.available();
        stream.send_window.get().available().min(all)
    }

    /// Whether a stream could send a little, and is not to.
    pub(super) fn has_little(&self, stream: &Stream) -> bool {
        self.window(stream) > 0 && self.usable(stream) == 0
    }

    /// Whether such a stream waits.
    pub(super) fn keeps_little(&self) -> bool {
        let waiting = self.waiting.borrow();
        waiting.iter().any(|stream| self.has_little(stream))
    }

    /// Wakes the stream that is to send next, if one may.
    pub(super) fn wake_next(&self) {
        if self.waiting.borrow().is_empty() || !self.has_room() {
            return;
        }
        let waiting = self.waiting.borrow();
        let next = waiting
            .iter()
            .filter(|stream| self.usable(stream) > 0)
            .min_by_key(|stream| stream.rank());
        if let Some(stream) = next {
            stream.wake_sender();
        }
    }

    /// Wakes as many streams as there is room for, so that one call sends what all of them append.
    pub(super) fn wake_fitting(&self) {
        if self.waiting.borrow().is_empty() || !self.has_room() {
            return;
        }
        let waiting = self.waiting.borrow();
        let able = waiting.iter().filter(|stream| self.usable(stream) > 0);
        let mut able: Vec<_> = able.collect();
        able.sort_unstable_by_key(|stream| stream.rank());
        let mut room = OUTPUT_FULL - self.output.borrow().pending();
        for stream in able {
            stream.wake_sender();
            let takes = self.usable(stream).min(stream.wanted.get());
            match room.checked_sub(takes as usize) {
                Some(rest) => room = rest,
                None => return,
            }
        }
    }

    /// A request without content, to be filled.
    pub(super) fn spare(&self) -> Box<Request> {
        let known = self.spares.borrow_mut().pop();
        known.unwrap_or_else(|| {
            let server = self.client.endpoint.borrow().default_server;
            let client = Rc::clone(&self.client);
            let site = self.http.site();
            Box::new(Request::new(site, client, Rc::default(), server))
        })
    }

    /// Keeps a request that has ended.
    pub(super) fn keep(&self, request: Box<Request>) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < SPARES_KEPT {
            spares.push(request);
        }
    }

    /// Whether more requests are kept than an idle connection needs.
    pub(super) fn has_spares(&self) -> bool {
        self.spares.borrow().len() > 1
    }

    /// Gives them back.
    pub(super) fn give_spares(&self) {
        let mut spares = self.spares.borrow_mut();
        spares.truncate(1);
        spares.shrink_to_fit();
    }
}

/// Notes whom to wake.
pub(super) fn register(place: &RefCell<Option<Waker>>, context: &Context<'_>) {
    let mut place = place.borrow_mut();
    if !place
        .as_ref()
        .is_some_and(|known| known.will_wake(context.waker()))
    {
        *place = Some(context.waker().clone());
    }
}
