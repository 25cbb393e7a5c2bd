//! The task of a connection: accepts streams, reads those that concern the connection, and decides when it is over.
//!
//! ```text
//!            stop                      a round trip later, or at a limit of keep-alive      the last stream is delivered
//!    open ─────────▶ going (GOAWAY, ─────────────────────────────────────▶ draining ───────────────────────▶ done
//!      │             nothing refused)                                      (GOAWAY, later streams refused)     ▲
//!      │ idle for too long, the client broke the protocol: CONNECTION_CLOSE                                     │
//!      └───────────────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use host::error_log::LogLevel;
use net::counters::{ConnectionStage, CountedConnection};
use net::quic::{QuicClosed, QuicConnection, QuicReceiveStream, QuicSendStream};
use proto::h3::{H3Error, H3ErrorCode};

use super::connection_link::Http3Link;
use super::limits::Http3Limits;
use super::our_streams::{LAST_REQUEST, OurStreams};
use super::stream::Http3Stream;
use super::stream_task::serve_streams;
use super::uni_streams::{ClientUniStreams, is_ordinary_end};
use crate::client::{ConnectionMobility, HttpClient};
use crate::client_budget::{KNOWN_AFTER, KNOWN_AFTER_BYTES, SERVED, price};
use crate::http_loop::{self, HttpLoop};

/// How many requests are begun in one iteration of the loop.
const BEGUN_AT_ONCE: usize = 32;

/// How long a connection is idle before it frees the request structs that it keeps for reuse.
const SPARES_WAIT: Duration = Duration::from_secs(1);

/// How long the requests that crossed our first GOAWAY are waited for, at least; else two round trips.
const CROSSING_LEAST: Duration = Duration::from_millis(25);

/// How often a connection that is over but for its last packets looks whether they have arrived.
const DELIVERY_LOOK: Duration = Duration::from_millis(20);

/// For how many round trips it looks at least: a client whose acknowledgements were lost is asked again after three of them,
/// then after twice as long (RFC 9002, section 6.2).
const DELIVERY_TRIPS: u32 = 16;

/// How far the end of the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Http3Phase {
    Open,
    /// A first GOAWAY says that the connection is going to end, and refuses nothing: requests may be under way.
    Going,
    /// The last GOAWAY: streams from this one on are refused.
    Draining(u64),
}

/// One HTTP/3 connection. Its task owns this; what its streams need of it is in the [`Http3Link`].
pub(super) struct Http3Connection {
    link: Rc<Http3Link>,
    ours: OurStreams,
    theirs: ClientUniStreams,
    phase: Http3Phase,
    /// The number of the stream after the last one that was begun.
    next: u64,
    /// Whether the idle timer is set.
    is_idle: bool,
    idle_timer: rt::Timer,
    /// The end of [`Http3Phase::Going`], and then the looks at what has been delivered.
    end_timer: rt::Timer,
    /// How much has come from the client, in bytes, and since when no more, while its last packets are waited for.
    heard: Option<(u64, Instant)>,
    spares_timer: rt::Timer,
    counted: CountedConnection,
}

impl Http3Connection {
    pub(super) fn new(
        http: &Rc<HttpLoop>,
        client: &Rc<HttpClient>,
        quic: &Rc<QuicConnection>,
    ) -> Http3Connection {
        // Keys, packet numbers and the compression table cannot be moved to another loop.
        client.control.set_mobility(ConnectionMobility::Nowhere);
        // A stream whose task is dropped, by a panic say, is abandoned with this code.
        quic.set_drop_code(H3ErrorCode::INTERNAL_ERROR.0);
        let link = Rc::new(Http3Link::new(http, client, quic));
        let connection = Http3Connection {
            ours: OurStreams::new(&link),
            theirs: ClientUniStreams::default(),
            phase: Http3Phase::Open,
            next: 0,
            is_idle: false,
            idle_timer: rt::Timer::new(),
            end_timer: rt::Timer::new(),
            heard: None,
            spares_timer: rt::Timer::new(),
            counted: CountedConnection::new(&http.counters),
            link,
        };
        // Until the client has shown that it uses what it asks for: see [`crate::client_budget`].
        connection.set_rank(rt::TaskRank::Patient);
        connection
    }

    /// Does what there is to do; ready once the connection is over.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.link.register(context);
        // The wait for streams ends with the connection, too.
        if let Some(closed) = self.link.quic.closed() {
            self.log_end(&closed);
            return Poll::Ready(());
        }
        self.count_ended();
        self.judge();
        if self.link.client.control.poll_order(context).is_ready() {
            self.start_going();
        }
        if let Err(error) = self.poll_streams(context) {
            return self.fail(error);
        }
        if let Some(error) = self.link.take_failure() {
            return self.fail(error);
        }
        self.poll_handshake(context);
        // Requests that crossed the first GOAWAY have come.
        if self.phase == Http3Phase::Going && self.end_timer.poll_expired(context).is_ready() {
            self.start_draining();
        }
        self.poll_spares(context);
        // Last: what the streams made us say.
        match self.ours.poll(&self.link, context) {
            Ok(()) => self.poll_idle(context),
            Err(error) => self.fail(error),
        }
    }

    /// Ready once all streams have ended.
    pub(super) fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.link.register(context);
        match self.link.streams.borrow().is_empty() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Ends all streams as if the client had left.
    pub(super) fn end_streams(&mut self) {
        self.link.is_over.set(true);
        self.wake_handshake_waiters();
        let streams = self.link.streams.borrow().clone();
        for stream in streams {
            stream.close_by_client();
        }
    }

    // -- streams --

    fn poll_streams(&mut self, context: &mut Context<'_>) -> Result<(), H3Error> {
        while let Poll::Ready(Ok(stream)) = self.link.quic.poll_accept_unidirectional(context) {
            self.theirs.add(stream);
        }
        self.theirs.poll(&self.link, context)?;
        for _ in 0..BEGUN_AT_ONCE {
            match self.link.quic.poll_accept_bidirectional(context) {
                Poll::Ready(Ok((send, receive))) => self.begin(send, receive)?,
                // The end is noticed at the next poll.
                Poll::Ready(Err(_)) | Poll::Pending => return Ok(()),
            }
        }
        // Other tasks get their turn. The poll of a yield only arranges that this task is polled again soon.
        let _ = std::pin::pin!(rt::yield_now()).poll(context);
        Ok(())
    }

    /// Begins a request: starts the task of its stream.
    fn begin(&mut self, send: QuicSendStream, receive: QuicReceiveStream) -> Result<(), H3Error> {
        let link = Rc::clone(&self.link);
        let id = send.id();
        if let Some(why) = self.why_refuse(id) {
            link.debug(format_args!("http3 stream {id} refused: {why}"));
            // Nothing was done for it: the client may repeat the request elsewhere (RFC 9114, section 4.1.1).
            let (mut send, mut receive) = (send, receive);
            send.reset(H3ErrorCode::REQUEST_REJECTED.0);
            receive.stop_sending(H3ErrorCode::REQUEST_REJECTED.0);
            // Not the price of a stream: requests that crossed a GOAWAY must not cost a client its other responses.
            return link.spend(price::FRAME);
        }
        self.next = self.next.max(id + 4);
        let stream = Rc::new(Http3Stream::new(&link, send, receive));
        if let Some(priority) = link.take_priority(id) {
            stream.set_priority(priority);
        }
        link.streams.borrow_mut().push(Rc::clone(&stream));
        link.client.control.begin_request();
        self.counted.enter_stage(ConnectionStage::Writing);
        self.is_idle = false;
        // The GOAWAY that this may send still includes the new stream.
        self.check_keepalive(id);
        // The task inherits the connection's rank: the requests of an unknown client wait behind those of known ones,
        // too.
        link.tasks
            .assign_stream("http3 stream", stream, link.rank.get(), serve_streams);
        Ok(())
    }

    /// Why a new stream has to be refused, if it has to.
    fn why_refuse(&mut self, id: u64) -> Option<&'static str> {
        if matches!(self.phase, Http3Phase::Draining(end) if id >= end) {
            return Some("the connection is ending");
        }
        let link = &self.link;
        let generation = link.limits.borrow().generation;
        if generation != link.http.generation() {
            let site = link.http.site();
            if !http_loop::refresh_endpoint(&link.client, &site) {
                return Some("no server listens on this address any more");
            }
            let max_streams = link.limits.borrow().max_streams;
            *link.limits.borrow_mut() = Http3Limits {
                // This one was announced, and the client acts on it.
                max_streams,
                ..Http3Limits::of(&site, &link.client)
            };
        }
        // QUIC counts the streams of a client. Tasks that outlive theirs (`proxy_ignore_client_abort`) are bounded here.
        let most = link.limits.borrow().max_streams.saturating_mul(2);
        (link.streams.borrow().len() >= most.max(1)).then_some("too many requests are under way")
    }

    /// Begins to drain after the last request that `keepalive_requests`, `keepalive_time` or `keepalive_timeout 0`
    /// allow.
    fn check_keepalive(&mut self, id: u64) {
        let link = &self.link;
        let is_last = {
            let core = &link.limits.borrow().core;
            core.keepalive_timeout.is_zero()
                || id / 4 + 1 >= core.keepalive_requests.max(0) as u64
                || !link.client.is_younger_than(core.keepalive_time)
        };
        if is_last && !matches!(self.phase, Http3Phase::Draining(_)) {
            self.start_draining();
        }
    }

    /// Accounts for streams that have ended since the last look.
    fn count_ended(&mut self) {
        let link = &self.link;
        let served = link.served.take();
        // Only requests that ran to their end: one that the client reset earns nothing.
        link.budget.borrow_mut().earn(served.saturating_mul(SERVED));
        if link.has_ended_tasks.take() {
            link.tasks.forget_ended(link.streams.borrow().len());
        }
        // From here on the loop may close the connection to make room, as it may an idle one of HTTP/1.
        let control = &link.client.control;
        if link.streams.borrow().is_empty() && control.waiting_since().is_none() {
            control.begin_waiting(rt::now(), link.sent.get());
            self.counted.enter_stage(ConnectionStage::Waiting);
        }
    }

    /// Chooses the rank in which the connection runs, by what is known of its client.
    fn judge(&mut self) {
        let link = &self.link;
        let is_known = link.completed.get() >= KNOWN_AFTER
            || link.of_use.get() > KNOWN_AFTER_BYTES
            || link.sent.get() > KNOWN_AFTER_BYTES;
        let is_costly = link.budget.borrow_mut().is_low(rt::now());
        let rank = match is_known && !is_costly {
            true => rt::TaskRank::Ordinary,
            false => rt::TaskRank::Patient,
        };
        if rank != link.rank.get() {
            self.set_rank(rank);
        }
    }

    fn set_rank(&self, rank: rt::TaskRank) {
        self.link.rank.set(rank);
        rt::set_rank(rank);
        self.link.quic.set_rank(rank);
        self.link.tasks.set_rank(rank);
    }

    fn poll_handshake(&self, context: &mut Context<'_>) {
        if !self.link.handshake_waiters.borrow().is_empty()
            && self.link.quic.poll_handshake_complete(context).is_ready()
        {
            self.wake_handshake_waiters();
        }
    }

    fn wake_handshake_waiters(&self) {
        for waker in self.link.handshake_waiters.take() {
            waker.wake();
        }
    }

    // -- the end --

    /// The loop has asked the connection to end once its streams have. An order to move counts as well, because an HTTP/3
    /// connection cannot.
    fn start_going(&mut self) {
        if self.phase == Http3Phase::Open {
            self.phase = Http3Phase::Going;
            self.write_goaway(LAST_REQUEST);
            let crossing = self.link.quic.round_trip_time() * 2;
            self.end_timer.set(crossing.max(CROSSING_LEAST));
        }
    }

    /// Announces that later streams are refused, and finishes those that exist.
    fn start_draining(&mut self) {
        self.phase = Http3Phase::Draining(self.next);
        self.write_goaway(self.next);
        self.end_timer.clear();
    }

    fn write_goaway(&mut self, id: u64) {
        self.link
            .debug(format_args!("http3 send GOAWAY frame: stream {id}"));
        self.ours.write_goaway(id);
    }

    /// Whether all has been said and has arrived.
    fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        if !matches!(self.phase, Http3Phase::Draining(_))
            || !self.link.streams.borrow().is_empty()
            || !self.ours.is_flushed()
        {
            return false;
        }
        // CONNECTION_CLOSE abandons what the client has not acknowledged.
        if self.link.quic.open_send_streams() <= self.ours.open() || self.is_silent() {
            return true;
        }
        if !self.end_timer.is_set() || self.end_timer.poll_expired(context).is_ready() {
            self.end_timer.set(DELIVERY_LOOK);
            // It has just been set, so that this only registers the task.
            let _ = self.end_timer.poll_expired(context);
        }
        false
    }

    /// Whether nothing has come from the client for `lingering_timeout`. One that left without a word acknowledges nothing, and
    /// would hold up the end of the process until QUIC gives it up, which is as late as `keepalive_timeout`.
    fn is_silent(&mut self) -> bool {
        let (now, (received, _)) = (rt::now(), self.link.quic.traffic());
        let (_, since) = match self.heard {
            Some(heard) if heard.0 == received => heard,
            _ => *self.heard.insert((received, now)),
        };
        let patience = self.link.limits.borrow().core.lingering_timeout;
        let trips = self.link.quic.round_trip_time() * DELIVERY_TRIPS;
        now.saturating_duration_since(since) >= patience.max(trips)
    }

    /// Ends the connection because the client broke the protocol (RFC 9114, section 8).
    fn fail(&mut self, error: H3Error) -> Poll<()> {
        self.link.log_fault(&error, None);
        // nginx's words; what it was is in our log.
        self.link.quic.close(error.code.0, b"stream error");
        Poll::Ready(())
    }

    fn log_end(&self, closed: &QuicClosed) {
        let is_busy = !self.link.streams.borrow().is_empty();
        if is_ordinary_end(closed) && !is_busy {
            return self.link.debug(format_args!("{closed}"));
        }
        self.link.log(
            LogLevel::Info,
            format_args!("{closed} while processing HTTP/3 connection"),
        );
    }

    // -- timers --

    /// Ends a connection that has been idle for too long, and one of which nothing is left.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_over(context) {
            self.link.quic.close(H3ErrorCode::NO_ERROR.0, b"");
            return Poll::Ready(());
        }
        if !self.link.streams.borrow().is_empty() {
            self.idle_timer.clear();
            self.is_idle = false;
            return Poll::Pending;
        }
        if !std::mem::replace(&mut self.is_idle, true) {
            let limits = self.link.limits.borrow();
            self.idle_timer.set(match self.next {
                0 => limits.header_timeout,
                _ => limits.core.keepalive_timeout,
            });
        }
        if self.idle_timer.poll_expired(context).is_pending() {
            return Poll::Pending;
        }
        if self.next == 0 {
            self.link.log(
                LogLevel::Info,
                format_args!(
                    "client timed out (110: Connection timed out) while processing HTTP/3 connection"
                ),
            );
        }
        self.link
            .quic
            .close(H3ErrorCode::NO_ERROR.0, b"keepalive timeout");
        Poll::Ready(())
    }

    /// Frees the memory kept for the next requests once the connection has been idle for a second. The timer is not
    /// restarted by each request, only set again when it fires.
    fn poll_spares(&mut self, context: &mut Context<'_>) {
        if !self.spares_timer.is_set() {
            if self.link.spares.borrow().is_empty() || !self.link.streams.borrow().is_empty() {
                return;
            }
            self.spares_timer.set(SPARES_WAIT);
        }
        if self.spares_timer.poll_expired(context).is_ready() {
            self.spares_timer.clear();
            if self.link.streams.borrow().is_empty() {
                self.link.give_spares();
            }
        }
    }
}

impl Drop for Http3Connection {
    fn drop(&mut self) {
        // The loop may drop a connection at any time; its streams end with it, since their tasks run on their own. A
        // connection that is over ignores the close.
        self.link.quic.close(H3ErrorCode::NO_ERROR.0, b"");
        self.end_streams();
        self.link.tasks.abort_all();
    }
}
