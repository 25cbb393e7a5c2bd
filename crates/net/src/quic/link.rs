//! A connection in the middle: the library's state machine, its timer, and who waits for what.

use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use base::NumberMap;
use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionEvent, ConnectionHandle, Dir, Event, StreamEvent, StreamId, Transmit,
    VarInt,
};
use rt::net::SocketAddress;

use super::closed::QuicClosed;
use super::endpoint::{QuicEndpoint, SendOutcome};
use super::path_proof::PathProof;
use super::patient::DatagramBacklog;
use super::settings::SEND_WINDOW;
use crate::tls::AgreedParameters;

/// How many sends one connection makes in a turn of the loop before others have theirs.
const MOST_SENDS: usize = 16;

/// How many datagrams one send has at most: as many of 1,452 bytes as the system takes at once. How many leave in a burst is
/// decided by pacing, not here.
const MOST_SEGMENTS: usize = 44;

/// How much of what was written waits for its acknowledgement or to be sent, in congestion windows: one is on the way, and
/// behind a packet that was lost twice three more may have arrived.
const BUFFERED_WINDOWS: u64 = 4;

/// The least of that, in bytes: two pieces of a file, and two more while they leave.
const BUFFERED_LEAST: u64 = 256 * 1024;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitingFor {
    Handshake,
    Accept(Dir),
    Open(Dir),
    Read(StreamId),
    Write(StreamId),
    Stop(StreamId),
    End,
}

impl WaitingFor {
    /// A number for it. Not SipHash, which the standard maps use: each request asks ten times. A client cannot choose
    /// the numbers freely, because streams are opened in order and their number at a time is limited.
    fn key(self) -> u64 {
        let of_stream = |id: StreamId, which: u64| VarInt::from(id).into_inner() << 3 | which;
        match self {
            WaitingFor::Handshake => 0,
            WaitingFor::Accept(Dir::Bi) => 1 << 3,
            WaitingFor::Accept(Dir::Uni) => 2 << 3,
            WaitingFor::Open(Dir::Uni) => 3 << 3,
            WaitingFor::End => 4 << 3,
            WaitingFor::Open(Dir::Bi) => 5 << 3,
            WaitingFor::Read(id) => of_stream(id, 1),
            WaitingFor::Write(id) => of_stream(id, 2),
            WaitingFor::Stop(id) => of_stream(id, 3),
        }
    }
}

/// A connection and what runs it.
pub(super) struct ConnectionLink {
    pub(super) endpoint: Rc<QuicEndpoint>,
    handle: ConnectionHandle,
    pub(super) core: RefCell<Connection>,
    /// Who waits: the task that asked last.
    waiting: RefCell<NumberMap<Waker>>,
    closed: RefCell<Option<QuicClosed>>,
    is_connected: Cell<bool>,
    /// It stands in the endpoint's list.
    pub(super) is_dirty: Cell<bool>,
    /// What the socket had no room for.
    unsent: RefCell<Option<(Transmit, Vec<u8>)>>,
    timer: rt::Timer,
    timer_task: OnceCell<rt::AbortHandle>,
    /// The address that packets go to, whether it was validated or not.
    present: Cell<SocketAddr>,
    /// The address that was validated last.
    validated: Cell<SocketAddr>,
    proof: Arc<PathProof>,
    /// How long its datagrams may wait for others'.
    rank: Cell<rt::TaskRank>,
    pub(super) backlog: DatagramBacklog,
}

impl ConnectionLink {
    pub(super) fn new(
        endpoint: &Rc<QuicEndpoint>,
        handle: ConnectionHandle,
        core: Connection,
        proof: Arc<PathProof>,
    ) -> Rc<ConnectionLink> {
        let peer = core.remote_address();
        let link = Rc::new(ConnectionLink {
            endpoint: Rc::clone(endpoint),
            handle,
            core: RefCell::new(core),
            waiting: RefCell::default(),
            closed: RefCell::default(),
            is_connected: Cell::new(false),
            is_dirty: Cell::new(false),
            unsent: RefCell::default(),
            timer: rt::Timer::new(),
            timer_task: OnceCell::new(),
            present: Cell::new(peer),
            validated: Cell::new(peer),
            proof,
            rank: Cell::default(),
            backlog: DatagramBacklog::default(),
        });
        let timed = Rc::downgrade(&link);
        let task = rt::spawn_abortable("quic timer", async move {
            // The link ends this task before it ends itself.
            while let Some(link) = timed.upgrade() {
                link.timer.expired().await;
                link.timer.clear();
                link.core.borrow_mut().handle_timeout(rt::now());
                link.take_events();
                link.mark_dirty();
            }
        });
        // It is new, so the cell is empty.
        let _ = link.timer_task.set(task);
        link
    }

    // -- what the engine asks --

    pub(super) fn wait_for(&self, what: WaitingFor, context: &Context<'_>) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.get_mut(&what.key()) {
            Some(waker) => waker.clone_from(context.waker()),
            None => drop(waiting.insert(what.key(), context.waker().clone())),
        }
    }

    /// Whether what was missing when a task last asked for it has not come since; then this task waits for it. Cheaper than to
    /// ask the library once more.
    pub(super) fn still_waits(&self, what: WaitingFor, context: &Context<'_>) -> bool {
        match self.waiting.borrow_mut().get_mut(&what.key()) {
            Some(waker) => {
                waker.clone_from(context.waker());
                true
            }
            None => false,
        }
    }

    pub(super) fn forget_waiting(&self, what: WaitingFor) {
        self.waiting.borrow_mut().remove(&what.key());
    }

    fn wake(&self, what: WaitingFor) {
        let waker = self.waiting.borrow_mut().remove(&what.key());
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.is_connected.get()
    }

    pub(super) fn closed(&self) -> Option<QuicClosed> {
        self.closed.borrow().clone()
    }

    pub(super) fn peer_address(&self) -> SocketAddr {
        self.validated.get()
    }

    pub(super) fn local_address(&self) -> SocketAddress {
        let bound = self.endpoint.local_address();
        match (self.core.borrow().local_ip(), &bound) {
            (Some(ip), SocketAddress::Inet(bound)) => {
                SocketAddress::Inet(SocketAddr::new(ip.to_canonical(), bound.port()))
            }
            _ => bound,
        }
    }

    /// What the handshake has agreed on, once it is complete or has accepted early data.
    pub(super) fn agreed(&self) -> Option<AgreedParameters> {
        let core = self.core.borrow();
        if !self.is_connected.get() && !core.has_0rtt() {
            return None;
        }
        let data = core.crypto_session().handshake_data()?;
        data.downcast().ok().map(|agreed| *agreed)
    }

    pub(super) fn poll_agreed(
        &self,
        context: &Context<'_>,
    ) -> Poll<Result<AgreedParameters, QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        if let Some(agreed) = self.agreed() {
            return Poll::Ready(Ok(agreed));
        }
        self.wait_for(WaitingFor::Handshake, context);
        Poll::Pending
    }

    /// Ready once the handshake is complete.
    pub(super) fn poll_connected(&self, context: &Context<'_>) -> Poll<Result<(), QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        if self.is_connected.get() {
            return Poll::Ready(Ok(()));
        }
        self.wait_for(WaitingFor::Handshake, context);
        Poll::Pending
    }

    /// Ends a handshake that cannot succeed.
    pub(super) fn give_up(self: &Rc<Self>, why: QuicClosed) {
        self.end(why);
        self.core
            .borrow_mut()
            .close(rt::now(), VarInt::from_u32(0), Bytes::new());
        self.mark_dirty();
    }

    pub(super) fn close(self: &Rc<Self>, code: VarInt, reason: &[u8]) {
        if self.closed.borrow().is_some() {
            return;
        }
        let reason = Bytes::copy_from_slice(reason);
        self.core.borrow_mut().close(rt::now(), code, reason);
        self.end(QuicClosed::Here);
        self.mark_dirty();
    }

    fn end(&self, why: QuicClosed) {
        if self.closed.borrow().is_some() {
            return;
        }
        *self.closed.borrow_mut() = Some(why);
        if !self.is_connected.get() {
            self.endpoint
                .half_open
                .set(self.endpoint.half_open.get() - 1);
        }
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    // -- what the network brings --

    /// The rank in which its datagrams are taken: ordinary ones where they are read.
    pub(super) fn set_rank(&self, rank: rt::TaskRank) {
        self.rank.set(rank);
    }

    /// Takes a datagram from this address, now or in its turn.
    pub(super) fn take_datagram(self: &Rc<Self>, event: ConnectionEvent, from: SocketAddr) {
        // None goes before one that waits.
        match self.rank.get() == rt::TaskRank::Patient || !self.backlog.is_empty() {
            true => self.endpoint.patient.add(self, event, from),
            false => self.take_now(event, from),
        }
    }

    /// Takes a datagram whose turn it is.
    pub(super) fn take_now(self: &Rc<Self>, event: ConnectionEvent, from: SocketAddr) {
        let present = {
            let mut core = self.core.borrow_mut();
            core.handle_event(event);
            core.remote_address()
        };
        self.note_path(present, from);
        self.take_events();
        self.mark_dirty();
    }

    /// Notes where the client is. Only a new address that is validated counts.
    fn note_path(&self, present: SocketAddr, from: SocketAddr) {
        if self.present.replace(present) != present {
            if present == self.validated.get() {
                self.proof.end();
            } else {
                self.proof.begin();
            }
        }
        if self.proof.is_watching() && self.proof.is_proved(from == present) {
            self.validated.set(present);
            self.proof.end();
        }
    }

    /// Wakes the tasks that wait for what has happened.
    pub(super) fn take_events(&self) {
        let mut writable = Vec::new();
        loop {
            // Its own statement: those who are woken may use the connection.
            let event = self.core.borrow_mut().poll();
            let Some(event) = event else { break };
            match event {
                Event::Connected => {
                    if !self.is_connected.replace(true) && self.closed.borrow().is_none() {
                        self.endpoint
                            .half_open
                            .set(self.endpoint.half_open.get() - 1);
                    }
                    self.wake(WaitingFor::Handshake);
                }
                Event::HandshakeDataReady => self.wake(WaitingFor::Handshake),
                Event::ConnectionLost { reason } => self.end(QuicClosed::of(&reason)),
                Event::Stream(StreamEvent::Writable { id }) => writable.push(id),
                Event::Stream(event) => self.take_stream_event(event),
                Event::DatagramReceived | Event::DatagramsUnblocked => {}
            }
        }
        self.wake_writers(writable);
    }

    /// Wakes the tasks that can write again. All streams share what may be buffered and what the peer takes: the first to be
    /// polled gets all of it, so that has to be the one with the highest priority.
    fn wake_writers(&self, mut streams: Vec<StreamId>) {
        if streams.len() > 1 {
            let mut core = self.core.borrow_mut();
            // One that has ended has no priority, and nobody waits for it.
            streams.sort_by_cached_key(|id| {
                let priority = core.send_stream(*id).priority();
                std::cmp::Reverse(priority.unwrap_or(i32::MIN))
            });
        }
        for id in streams {
            self.wake(WaitingFor::Write(id));
        }
    }

    fn take_stream_event(&self, event: StreamEvent) {
        match event {
            StreamEvent::Opened { dir } => self.wake(WaitingFor::Accept(dir)),
            StreamEvent::Readable { id } => self.wake(WaitingFor::Read(id)),
            // See `wake_writers`.
            StreamEvent::Writable { id } => self.wake(WaitingFor::Write(id)),
            StreamEvent::Finished { id } => self.wake(WaitingFor::Stop(id)),
            StreamEvent::Stopped { id, .. } => {
                self.wake(WaitingFor::Stop(id));
                self.wake(WaitingFor::Write(id));
            }
            StreamEvent::Available { dir } => self.wake(WaitingFor::Open(dir)),
        }
    }

    // -- what leaves --

    /// Has the endpoint send what there is to send, at the end of this turn.
    pub(super) fn mark_dirty(self: &Rc<Self>) {
        if !self.is_dirty.replace(true) {
            self.endpoint.note_dirty(Rc::clone(self));
        }
    }

    /// Sends what there is to send, as far as the socket takes it and others need not wait; with how many sends.
    pub(super) fn transmit(self: &Rc<Self>, now: Instant, buffer: &mut Vec<u8>) -> usize {
        self.serve_endpoint();
        if !self.send_unsent() {
            self.endpoint.note_blocked(Rc::clone(self));
            return 1;
        }
        let segments = self.endpoint.most_segments().min(MOST_SEGMENTS);
        for sends in 0..MOST_SENDS {
            buffer.clear();
            let sent = self.core.borrow_mut().poll_transmit(now, segments, buffer);
            let Some(transmit) = sent else {
                self.settle();
                return sends;
            };
            if self.proof.is_watching() {
                self.proof
                    .sent_to_new(transmit.destination == self.present.get());
            }
            if self.endpoint.send(&transmit, buffer) == SendOutcome::Full {
                *self.unsent.borrow_mut() = Some((transmit, buffer.clone()));
                self.endpoint.note_blocked(Rc::clone(self));
                return sends + 1;
            }
        }
        self.endpoint.resume_next_turn(Rc::clone(self));
        MOST_SENDS
    }

    fn send_unsent(&self) -> bool {
        let Some((transmit, content)) = self.unsent.borrow_mut().take() else {
            return true;
        };
        if self.endpoint.send(&transmit, &content) == SendOutcome::Full {
            *self.unsent.borrow_mut() = Some((transmit, content));
            return false;
        }
        true
    }

    /// Passes on what the library's connection has for its endpoint.
    fn serve_endpoint(&self) {
        loop {
            let event = self.core.borrow_mut().poll_endpoint_events();
            let Some(event) = event else { return };
            let answer = self.endpoint.handle_event(self.handle, event);
            if let Some(answer) = answer {
                self.core.borrow_mut().handle_event(answer);
            }
        }
    }

    /// Everything was sent: sets the timer, or ends.
    fn settle(self: &Rc<Self>) {
        self.serve_endpoint();
        let (next, is_drained) = {
            let mut core = self.core.borrow_mut();
            let window = core.congestion_state().window();
            core.set_send_window(send_window(window));
            (core.poll_timeout(), core.is_drained())
        };
        if is_drained {
            self.take_events();
            if let Some(task) = self.timer_task.get() {
                task.abort();
            }
            return self.endpoint.forget(self.handle);
        }
        match next {
            Some(at) => self.timer.set_deadline(at),
            None => self.timer.clear(),
        }
    }
}

/// How much may be buffered of a connection that has this congestion window. A slow client must not hold megabytes of a file
/// that is read when it is needed, and what was read just now is still in the processor's cache when it is encrypted.
fn send_window(congestion_window: u64) -> u64 {
    congestion_window
        .saturating_mul(BUFFERED_WINDOWS)
        .clamp(BUFFERED_LEAST, SEND_WINDOW)
}
