//! State that the streams of a connection share with each other and with the task that reads and writes the connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Waker};

use proto::h2::frame;
use proto::h2::hpack::HpackEncoder;
use proto::h2::{ErrorCode, FlowControlWindow, H2Settings};

use super::stream::Http2Stream;
use crate::byte_stream::ByteStream;
use crate::client::HttpClient;
use crate::http_loop::HttpLoop;
use crate::request::Request;
use crate::stream_request::StreamStart;
use crate::stream_tasks::StreamTasks;
use crate::virtual_server::LastVirtualServer;

/// No stream appends content while this much waits to be sent, in bytes. Together with the most that one stream may
/// append at a time it bounds the output.
pub(super) const OUTPUT_FULL: usize = 64 * 1024;

/// The same while memory is tight.
const OUTPUT_FULL_IF_TIGHT: usize = 16 * 1024;

/// A piece of content below this size is sent only if it is the last one, or after some time, in bytes. Otherwise a
/// client that opens its window byte by byte would cost a frame, and a read of a file, for each.
const LITTLE: u32 = 64;

/// The same for a client whose budget is low, as one that opens small windows soon has.
const LITTLE_FOR_COSTLY: u32 = 256;

/// How many small window updates may be free at a time.
const SMALL_UPDATES: u32 = 4000;

/// How many closed streams are remembered, to tell late frames from frames for streams that never existed.
const CLOSED_KEPT: usize = 128;

/// How many ended requests are kept for reuse while the connection is busy, and for a second after that. An idle
/// connection keeps one.
const SPARES_KEPT: usize = 32;

/// What the tasks of one connection share. They run on one loop, so cells are enough; no borrow is held across a wait.
pub(super) struct Http2Link {
    pub(super) http: Rc<HttpLoop>,
    pub(super) client: Rc<HttpClient>,
    pub(super) bytes: Rc<ByteStream>,
    pub(super) output: RefCell<ConnectionOutput>,
    /// The open streams, sorted by identifier; new ones are always larger. `http2_max_concurrent_streams` bounds their
    /// number.
    pub(super) streams: RefCell<Vec<Rc<Http2Stream>>>,
    /// The streams that have content to send and may not yet.
    pub(super) waiting: RefCell<Vec<Rc<Http2Stream>>>,
    /// The tasks of the streams, to be dropped with the connection and to share its rank.
    pub(super) tasks: StreamTasks<(Rc<Http2Stream>, StreamStart)>,
    /// Recently closed streams, the latest first.
    closed: RefCell<VecDeque<ClosedHttp2Stream>>,
    /// The connection's task, to be woken when there is something to send or a stream has ended.
    waker: RefCell<Option<Waker>>,
    /// The connection is over: nothing is sent any more.
    pub(super) is_output_closed: Cell<bool>,
    /// The number of the next turn: streams take turns in this order.
    turns: Cell<u64>,
    /// A stream's task has ended since the connection's task looked.
    pub(super) has_ended_tasks: Cell<bool>,
    /// How many requests have completed since then, without those that were reset.
    pub(super) served: Cell<u32>,
    /// How many requests have completed on the connection, without those that were reset.
    pub(super) completed: Cell<u32>,
    /// The rank of the connection's task and those of its streams.
    pub(super) rank: Cell<rt::TaskRank>,
    /// The client's budget is low.
    pub(super) is_costly: Cell<bool>,
    /// Small pieces may be sent now: the streams have waited long enough for a larger window.
    pub(super) sends_small_chunks: Cell<bool>,
    /// How many small window updates are free: those that return what we sent in small frames by our own choice.
    small_updates: Cell<u32>,
    /// Ended requests, kept for reuse.
    #[allow(
        clippy::vec_box,
        reason = "they come and go as boxes, because a request is large"
    )]
    pub(super) spares: RefCell<Vec<Box<Request>>>,
    /// The virtual server that the client asked for last.
    pub(super) last_server: RefCell<LastVirtualServer>,
}

/// The frames that wait to be sent, and the connection-wide state that depends on their order: the compression table
/// and the window.
pub(super) struct ConnectionOutput {
    /// Whole frames only: whatever is appended may be sent at any time.
    pub(super) bytes: Vec<u8>,
    /// How many of these bytes have been sent.
    pub(super) sent: usize,
    pub(super) encoder: HpackEncoder,
    /// The client's SETTINGS.
    pub(super) peer: H2Settings,
    /// What is left of the client's window for the connection.
    pub(super) window: FlowControlWindow,
}

/// A recently closed stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedHttp2Stream {
    pub(super) stream: u32,
    pub(super) how: Http2StreamEnd,
    /// How much of the announced content has not arrived yet.
    pub(super) content_left: Option<u64>,
}

/// How the client's side of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2StreamEnd {
    /// The client ended it: nothing may follow.
    EndedByClient,
    /// The client reset it: nothing may follow.
    ResetByClient,
    /// We ended it: frames of the client may still be under way.
    ResetByServer,
}

impl ConnectionOutput {
    /// Bytes that wait to be sent.
    pub(super) fn pending(&self) -> usize {
        self.bytes.len() - self.sent
    }
}

impl Http2Link {
    pub(super) fn new(
        http: &Rc<HttpLoop>,
        client: &Rc<HttpClient>,
        bytes: &Rc<ByteStream>,
    ) -> Http2Link {
        Http2Link {
            http: Rc::clone(http),
            client: Rc::clone(client),
            bytes: Rc::clone(bytes),
            output: RefCell::new(ConnectionOutput {
                bytes: Vec::new(),
                sent: 0,
                encoder: HpackEncoder::default(),
                peer: H2Settings::default(),
                window: FlowControlWindow::new(FlowControlWindow::DEFAULT),
            }),
            streams: RefCell::default(),
            waiting: RefCell::default(),
            tasks: StreamTasks::default(),
            closed: RefCell::default(),
            waker: RefCell::default(),
            is_output_closed: Cell::new(false),
            turns: Cell::new(0),
            has_ended_tasks: Cell::new(false),
            served: Cell::new(0),
            completed: Cell::new(0),
            rank: Cell::default(),
            is_costly: Cell::new(false),
            sends_small_chunks: Cell::new(false),
            small_updates: Cell::new(0),
            spares: RefCell::default(),
            last_server: RefCell::default(),
        }
    }

    /// Registers the connection's task as the one to wake.
    pub(super) fn register(&self, context: &Context<'_>) {
        register(&self.waker, context);
    }

    /// Wakes the connection's task.
    pub(super) fn wake_connection(&self) {
        if let Some(waker) = &*self.waker.borrow() {
            waker.wake_by_ref();
        }
    }

    /// Counts small DATA frames that no window made so small. A client that returns each of them does so on the stream and
    /// on the connection.
    pub(super) fn note_small_frames(&self, frames: u32) {
        let free = self
            .small_updates
            .get()
            .saturating_add(frames.saturating_mul(2));
        self.small_updates.set(free.min(SMALL_UPDATES));
    }

    /// Whether a small window update is one of those that are free.
    pub(super) fn take_small_update(&self) -> bool {
        let left = self.small_updates.get().checked_sub(1);
        self.small_updates.set(left.unwrap_or(0));
        left.is_some()
    }

    /// Appends frames and wakes the connection's task to send them. Returns what `write` returns, and how many bytes
    /// it appended.
    pub(super) fn append_frames<T>(
        &self,
        write: impl FnOnce(&mut ConnectionOutput) -> T,
    ) -> (T, usize) {
        let mut output = self.output.borrow_mut();
        let before = output.bytes.len();
        let value = write(&mut output);
        let appended = output.bytes.len() - before;
        drop(output);
        if appended > 0 {
            self.wake_connection();
        }
        (value, appended)
    }

    /// Sends RST_STREAM. The stream's task does not learn of it from here.
    pub(super) fn write_reset(&self, stream: u32, code: ErrorCode) {
        if !self.is_output_closed.get() {
            self.append_frames(|output| frame::write_reset(stream, code, &mut output.bytes));
        }
    }

    /// The open stream with this identifier.
    pub(super) fn stream(&self, id: u32) -> Option<Rc<Http2Stream>> {
        let streams = self.streams.borrow();
        let index = streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        Some(Rc::clone(&streams[index]))
    }

    /// Removes a stream that has ended. Its windows and its place in the order are free: others may go on.
    pub(super) fn remove_stream(&self, stream: &Http2Stream, closed: ClosedHttp2Stream) {
        let mut streams = self.streams.borrow_mut();
        if let Ok(index) = streams.binary_search_by_key(&stream.id, |known| known.id) {
            streams.remove(index);
        }
        drop(streams);
        self.note_closed(closed);
        self.leave_queue(stream);
        self.wake_next();
        self.wake_connection();
    }

    /// Remembers a stream that was closed or refused. The oldest entry is dropped; late frames for it are then ignored.
    pub(super) fn note_closed(&self, closed: ClosedHttp2Stream) {
        let mut list = self.closed.borrow_mut();
        list.truncate(CLOSED_KEPT - 1);
        list.push_front(closed);
    }

    /// What is known of a closed stream.
    pub(super) fn closed_stream(&self, id: u32) -> Option<ClosedHttp2Stream> {
        let closed = self.closed.borrow();
        closed.iter().find(|closed| closed.stream == id).copied()
    }

    /// Notes that the client has reset a stream that had been closed.
    pub(super) fn reset_closed(&self, id: u32) {
        let mut list = self.closed.borrow_mut();
        if let Some(closed) = list.iter_mut().find(|closed| closed.stream == id) {
            closed.how = Http2StreamEnd::ResetByClient;
        }
    }

    /// Counts content for a closed stream. `false`: it is more or less than the client announced. Without
    /// `Content-Length` nothing was announced, and any amount will do.
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

    /// Removes the stream from those that wait for room.
    pub(super) fn leave_queue(&self, stream: &Http2Stream) {
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

    /// Whether there is room for content, in the output and in the connection's window.
    pub(super) fn has_room(&self) -> bool {
        let output = self.output.borrow();
        output.pending() < self.most_pending() && output.window.available() > 0
    }

    fn most_pending(&self) -> usize {
        match host::tight_memory::is_tight() {
            true => OUTPUT_FULL_IF_TIGHT,
            false => OUTPUT_FULL,
        }
    }

    /// How much the client accepts of a stream now, in bytes; 0 if that is so little that more is waited for.
    pub(super) fn usable_window(&self, stream: &Http2Stream) -> u32 {
        let window = self.window(stream);
        let little = match self.is_costly.get() {
            true => LITTLE_FOR_COSTLY,
            false => LITTLE,
        };
        match window < little.min(stream.wanted.get()) && !self.sends_small_chunks.get() {
            true => 0,
            false => window,
        }
    }

    fn window(&self, stream: &Http2Stream) -> u32 {
        let all = self.output.borrow().window.available();
        stream.send_window.get().available().min(all)
    }

    /// Whether a stream could send a small piece and is held back.
    pub(super) fn has_little(&self, stream: &Http2Stream) -> bool {
        self.window(stream) > 0 && self.usable_window(stream) == 0
    }

    /// Whether any waiting stream is held back so.
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
            .filter(|stream| self.usable_window(stream) > 0)
            .min_by_key(|stream| stream.send_order());
        if let Some(stream) = next {
            stream.wake_sender();
        }
    }

    /// Wakes as many streams as there is room for, in their order, so that one call sends what all of them append.
    pub(super) fn wake_fitting(&self) {
        if self.waiting.borrow().is_empty() || !self.has_room() {
            return;
        }
        let waiting = self.waiting.borrow();
        let able = waiting
            .iter()
            .filter(|stream| self.usable_window(stream) > 0);
        let mut able: Vec<_> = able.collect();
        able.sort_unstable_by_key(|stream| stream.send_order());
        let pending = self.output.borrow().pending();
        let mut room = self.most_pending().saturating_sub(pending);
        for stream in able {
            stream.wake_sender();
            let takes = self.usable_window(stream).min(stream.wanted.get());
            match room.checked_sub(takes as usize) {
                Some(rest) => room = rest,
                None => return,
            }
        }
    }

    /// A request to be filled: a kept one, or a new one.
    pub(super) fn take_spare_request(&self) -> Box<Request> {
        let known = self.spares.borrow_mut().pop();
        known.unwrap_or_else(|| {
            let server = self.client.first_server();
            let client = Rc::clone(&self.client);
            let site = self.http.site();
            Box::new(Request::new(site, client, Rc::default(), server))
        })
    }

    /// Keeps an ended request for reuse.
    pub(super) fn keep_spare_request(&self, request: Box<Request>) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < SPARES_KEPT {
            spares.push(request);
        }
    }

    /// Whether memory is kept that an idle connection does not need.
    pub(super) fn has_spares(&self) -> bool {
        !self.spares.borrow().is_empty()
    }

    /// Frees the kept requests and the buffers.
    pub(super) fn give_spares(&self) {
        self.spares.take();
        self.tasks.end_waiting();
        self.last_server.take();
        // Small ones, but of each idle connection.
        self.closed.borrow_mut().shrink_to_fit();
        self.streams.borrow_mut().shrink_to_fit();
        let mut output = self.output.borrow_mut();
        if output.pending() == 0 {
            output.bytes = Vec::new();
            output.sent = 0;
        }
    }
}

/// Registers the task of `context` as the one to wake.
pub(super) fn register(place: &RefCell<Option<Waker>>, context: &Context<'_>) {
    let mut place = place.borrow_mut();
    if !place
        .as_ref()
        .is_some_and(|known| known.will_wake(context.waker()))
    {
        *place = Some(context.waker().clone());
    }
}
