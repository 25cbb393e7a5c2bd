//! State that the requests of a connection share with each other and with the task of the connection.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use host::error_log::LogLevel;
use net::client::RemoteClient;
use net::quic::QuicConnection;
use proto::field_section::{RequestReader, ResponsePriority};
use proto::h3::{H3Error, H3ErrorCode};
use proto::message::MessageVersion;
use proto::qpack::{QpackDecoder, QpackEncoder, QpackError};

use super::limits::{BLOCKED_BYTES, Http3Limits, TABLE_CAPACITY};
use super::stream::Http3Stream;
use crate::client::HttpClient;
use crate::client_budget::{BudgetSpent, ClientBudget};
use crate::http_loop::HttpLoop;
use crate::request::Request;
use crate::stream_tasks::StreamTasks;
use crate::virtual_server::LastVirtualServer;

/// How many priorities are kept for streams that have not begun.
const EARLY_PRIORITIES: usize = 16;

/// How many ended requests are kept for reuse while the connection is busy, and for a second after that.
const SPARES_KEPT: usize = 32;

/// How much a client may send that is neither header blocks nor content, in bytes, before the proportion counts.
const FREE_BYTES: u64 = 1 << 20;

rt::local! {
    /// Encodes the blocks of all connections of this loop.
    static ENCODER: Rc<RefCell<QpackEncoder>> = Rc::default();
}

/// What the tasks of one connection share. They run on one loop, so cells are enough; no borrow is held across a wait.
pub(super) struct Http3Link {
    pub(super) http: Rc<HttpLoop>,
    pub(super) client: Rc<HttpClient>,
    pub(super) quic: Rc<QuicConnection>,
    pub(super) decoder: RefCell<QpackDecoder>,
    /// The loop's.
    pub(super) encoder: Rc<RefCell<QpackEncoder>>,
    /// Makes requests of sections, one at a time and never across a wait.
    pub(super) requests: RefCell<RequestReader>,
    pub(super) budget: RefCell<ClientBudget>,
    /// The limits of the address, from the configuration that was current at the last request.
    pub(super) limits: RefCell<Http3Limits>,
    /// The open streams. `http3_max_concurrent_streams` bounds their number.
    pub(super) streams: RefCell<Vec<Rc<Http3Stream>>>,
    /// Their tasks, to be dropped with the connection and to share its rank.
    pub(super) tasks: StreamTasks<Rc<Http3Stream>>,
    /// How much the header blocks that wait for the table occupy, in bytes.
    blocked_bytes: Cell<usize>,
    /// Wakes the tasks that wait for the end of the handshake, one each.
    pub(super) handshake_waiters: RefCell<Vec<Waker>>,
    /// PRIORITY_UPDATE frames may precede their stream (RFC 9218, section 7.2): priorities of streams that have not begun.
    early_priorities: RefCell<Vec<(u64, ResponsePriority)>>,
    /// The connection's task, to be woken when a stream has ended or there is something to say.
    waker: RefCell<Option<Waker>>,
    /// What ends the connection, found by the task of a stream.
    failure: Cell<Option<H3Error>>,
    /// The connection is over.
    pub(super) is_over: Cell<bool>,
    /// A stream's task has ended since the connection's task looked.
    pub(super) has_ended_tasks: Cell<bool>,
    /// How many requests have completed since then, without those that were cancelled.
    pub(super) served: Cell<u32>,
    /// How many requests have completed on the connection, without those that were cancelled.
    pub(super) completed: Cell<u32>,
    /// The rank of the connection's task and those of its streams.
    pub(super) rank: Cell<rt::TaskRank>,
    /// Bytes that streams have brought, how many of them were header blocks and content, and bytes of responses: nginx's
    /// measure of a flood.
    taken: Cell<u64>,
    pub(super) of_use: Cell<u64>,
    pub(super) sent: Cell<u64>,
    /// Ended requests, kept for reuse.
    #[allow(
        clippy::vec_box,
        reason = "they come and go as boxes, because a request is large"
    )]
    pub(super) spares: RefCell<Vec<Box<Request>>>,
    /// The virtual server that the client asked for last.
    pub(super) last_server: RefCell<LastVirtualServer>,
    /// The client at the address of the path that was validated last, once that is not the first one any more.
    moved: RefCell<Option<Rc<RemoteClient>>>,
}

impl Http3Link {
    pub(super) fn new(
        http: &Rc<HttpLoop>,
        client: &Rc<HttpClient>,
        quic: &Rc<QuicConnection>,
    ) -> Http3Link {
        let limits = Http3Limits::of(&http.site(), client);
        let mut decoder = QpackDecoder::new(TABLE_CAPACITY, limits.max_streams);
        // What no request may have needs no entry.
        decoder.set_max_text(limits.max_text);
        Http3Link {
            http: Rc::clone(http),
            client: Rc::clone(client),
            quic: Rc::clone(quic),
            decoder: RefCell::new(decoder),
            encoder: ENCODER.with(Rc::clone),
            requests: RefCell::new(RequestReader::new(MessageVersion::HTTP_3)),
            budget: RefCell::new(ClientBudget::new(rt::now())),
            limits: RefCell::new(limits),
            streams: RefCell::default(),
            tasks: StreamTasks::default(),
            blocked_bytes: Cell::new(0),
            handshake_waiters: RefCell::default(),
            early_priorities: RefCell::default(),
            waker: RefCell::default(),
            failure: Cell::new(None),
            is_over: Cell::new(false),
            has_ended_tasks: Cell::new(false),
            served: Cell::new(0),
            completed: Cell::new(0),
            rank: Cell::default(),
            taken: Cell::new(0),
            of_use: Cell::new(0),
            sent: Cell::new(0),
            spares: RefCell::default(),
            last_server: RefCell::default(),
            moved: RefCell::default(),
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

    // -- faults --

    /// Ends the connection, because of what a stream has brought.
    pub(super) fn fail(&self, error: H3Error) {
        if self.failure.get().is_none() {
            self.failure.set(Some(error));
            self.wake_connection();
        }
    }

    pub(super) fn take_failure(&self) -> Option<H3Error> {
        self.failure.take()
    }

    /// Charges the client.
    pub(super) fn spend(&self, price: u32) -> Result<(), H3Error> {
        let spent = self.budget.borrow_mut().spend(price, rt::now());
        spent.map_err(|BudgetSpent| flood())
    }

    /// Counts what a stream has brought. nginx's measure: an eighth of what goes over the connection must be header blocks,
    /// content or responses. The first megabyte is exempt.
    pub(super) fn count_taken(&self, bytes: usize) -> Result<(), H3Error> {
        let taken = self.taken.get() + bytes as u64;
        self.taken.set(taken);
        let sent = self.sent.get();
        match (taken + sent) / 8 > self.of_use.get() + sent + FREE_BYTES {
            true => Err(flood()),
            false => Ok(()),
        }
    }

    // -- the compression table --

    /// Reserves memory for a header block that has to wait for the table.
    pub(super) fn reserve_blocked(&self, bytes: usize) -> Result<(), H3Error> {
        let all = self.blocked_bytes.get() + bytes;
        if all > BLOCKED_BYTES {
            let what = "too much in blocked streams";
            return Err(H3Error::connection(H3ErrorCode::EXCESSIVE_LOAD, what));
        }
        self.blocked_bytes.set(all);
        Ok(())
    }

    /// Gives the memory back.
    pub(super) fn release_blocked(&self, bytes: usize) {
        self.blocked_bytes.set(self.blocked_bytes.get() - bytes);
    }

    /// Wakes the streams whose blocks have what they waited for.
    pub(super) fn wake_unblocked(&self) {
        let decoder = self.decoder.borrow();
        if decoder.blocked_streams() == 0 {
            return;
        }
        let streams = self.streams.borrow();
        for stream in streams
            .iter()
            .filter(|stream| !decoder.is_blocked(stream.id))
        {
            stream.wake_blocked();
        }
    }

    /// The connection's task has something to say to the client's encoder.
    pub(super) fn send_acknowledgements(&self) {
        if self.decoder.borrow().has_output() {
            self.wake_connection();
        }
    }

    // -- streams --

    /// The open stream with this number.
    pub(super) fn stream(&self, id: u64) -> Option<Rc<Http3Stream>> {
        let streams = self.streams.borrow();
        streams.iter().find(|stream| stream.id == id).cloned()
    }

    /// Removes a stream that has ended. The connection's task looks at once when it was the last one; what it counts of others
    /// has time until the next stream.
    pub(super) fn remove_stream(&self, id: u64) {
        let mut streams = self.streams.borrow_mut();
        if let Some(index) = streams.iter().position(|stream| stream.id == id) {
            streams.swap_remove(index);
        }
        let was_last = streams.is_empty();
        drop(streams);
        if was_last {
            self.wake_connection();
        }
    }

    /// Notes the priority of a stream that has not begun. Beyond the bound it is ignored: a priority is only a hint.
    pub(super) fn keep_priority(&self, id: u64, priority: ResponsePriority) {
        let mut early = self.early_priorities.borrow_mut();
        early.retain(|early| early.0 != id);
        if early.len() < EARLY_PRIORITIES {
            early.push((id, priority));
        }
    }

    /// The priority of a stream that begins.
    pub(super) fn take_priority(&self, id: u64) -> Option<ResponsePriority> {
        let mut early = self.early_priorities.borrow_mut();
        let index = early.iter().position(|early| early.0 == id)?;
        Some(early.swap_remove(index).1)
    }

    /// Waits until what the client says cannot be a replay any more.
    pub(super) async fn wait_for_handshake(&self) {
        std::future::poll_fn(|context| {
            if self.quic.is_handshake_complete() || self.is_over.get() {
                return std::task::Poll::Ready(());
            }
            let mut waiters = self.handshake_waiters.borrow_mut();
            if !waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                waiters.push(context.waker().clone());
                // Its task asks the transport.
                self.wake_connection();
            }
            std::task::Poll::Pending
        })
        .await;
    }

    // -- requests --

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
        if spares.len() < SPARES_KEPT && !self.is_over.get() {
            spares.push(request);
        }
    }

    /// Frees what an idle connection does not need.
    pub(super) fn give_spares(&self) {
        self.spares.take();
        self.last_server.take();
        self.tasks.end_waiting();
    }

    /// The client where it is now: its address changes when it moves to another path (RFC 9000, section 9).
    pub(super) fn present_remote(&self) -> Option<Rc<RemoteClient>> {
        let address = self.quic.peer_address();
        if address == self.client.remote.address {
            return None;
        }
        let mut moved = self.moved.borrow_mut();
        if !moved.as_ref().is_some_and(|known| known.address == address) {
            *moved = Some(Rc::new(RemoteClient::from_address(address)));
        }
        moved.clone()
    }

    // -- the log --

    /// Writes a line about the connection.
    pub(super) fn log(&self, level: LogLevel, message: std::fmt::Arguments<'_>) {
        self.http.log_client(level, &self.client, message);
    }

    /// Writes what the client did wrong.
    pub(super) fn log_fault(&self, error: &H3Error, stream: Option<u64>) {
        let who = match error.what.starts_with("http3") {
            true => "",
            false => "client sent ",
        };
        let what = error.what;
        match stream {
            None => self.log(
                LogLevel::Info,
                format_args!("{who}{what} while processing HTTP/3 connection"),
            ),
            Some(id) => self.log(
                LogLevel::Info,
                format_args!("{who}{what} while processing HTTP/3 connection, stream {id}"),
            ),
        }
    }

    /// Writes a line at level `debug`.
    #[inline]
    pub(super) fn debug(&self, message: std::fmt::Arguments<'_>) {
        self.http.debug_client(&self.client, message);
    }
}

fn flood() -> H3Error {
    H3Error::connection(H3ErrorCode::EXCESSIVE_LOAD, "http3 flood detected")
}

/// The error of a header block that cannot be decompressed (RFC 9204, section 2.2).
pub(super) fn block_error(error: QpackError) -> H3Error {
    H3Error::connection(H3ErrorCode::QPACK_DECOMPRESSION_FAILED, error.what())
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
