//! One exchange with an upstream: from the choice of a server to the head of its response, over as many tries as
//! needed.
//!
//! ```text
//! request written ─▶ try: choose ─ connect ─ send, read the head ─┬─ accepted ─▶ the exchange, for the body
//!                     ▲                                           │
//!                     └──────── another try ◀── failure, judged ◀─┴─ status of `…_next_upstream`
//!                                                  └─▶ no response: a status for the client
//! ```
//!
//! A server is leased from its group when it is chosen. The lease goes back with what the try says about the server, or
//! is dropped if it says nothing: the balancer counts connections and failures by it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::upstream::{
    NoChoice, NoPeer, PeerConnection, PeerLease, PeerOutcome, PeerSelection, PeerTraffic,
    UpstreamGroup, UpstreamTimes,
};

use super::client_watch::{ClientLeft, while_client_stays};
use super::connect::PeerConnector;
use super::exchange_log;
use super::no_response::{NoResponse, RetryReasons};
use super::protocol::UpstreamProtocol;
use super::request_content::{self, RequestContent};
use super::response_head::InterimCount;
use super::retry::{FailedTry, RetryDecision, RetryRules, TryFailure, decide_retry};
use super::sticky::{LearnMoment, StickyState};
use super::transmit::RequestTransmit;
use super::upstream_record::PeerName;
use super::upstream_settings::{SettingsRef, UpstreamSettings, UpstreamStore};
use crate::buffers;
use crate::ledger::{ConnectionUse, EndedBy, LedgerPhase};
use crate::module::internal_status;
use crate::request::{Request, RequestPurpose};

/// The initial capacity for a request head, in bytes: enough for a usual one without growing.
const FIRST_CAPACITY: usize = 1024;

/// Up to this many bytes of body that arrived with the head are copied, so that the buffer can be reused.
const COPIED: usize = 4096;

/// What a handler wants to be done.
pub struct ExchangePlan {
    /// The directives of the location.
    pub settings: SettingsRef,
    /// The destination.
    pub target: ExchangeTarget,
    /// The codec of the upstream protocol.
    pub protocol: Box<dyn UpstreamProtocol>,
    /// What is done with the request's body.
    pub content: RequestContent,
    /// Whether the exchange ends if the client disconnects before the response.
    pub watch_client: bool,
    /// Idle connections are shared only between exchanges with the same tag.
    pub tag: u64,
}

/// The destination of an exchange.
pub enum ExchangeTarget {
    /// A group.
    Group(Arc<UpstreamGroup>),
    /// A host from a URL with variables, which is known only per request.
    Host {
        /// The name or address.
        host: bstr::BString,
        /// The port, or the scheme's default if the URL names none; a unix socket has none.
        port: Option<u16>,
        /// The URL names the port. As in nginx, it then does not mean an `upstream` block.
        explicit_port: bool,
    },
}

/// An exchange in progress.
pub struct Exchange {
    pub(super) settings: SettingsRef,
    pub(super) protocol: Box<dyn UpstreamProtocol>,
    pub(super) transmit: RequestTransmit,
    /// The timer for whatever is being waited for: that the server accepts bytes, or that it sends some.
    pub(super) timer: rt::Timer,
    /// `…_send_timeout` and `…_read_timeout` of the settings, which take a search at each access.
    pub(super) timeouts: ExchangeTimeouts,
    /// The current try.
    pub(super) current: CurrentTry,
    /// Bytes that were received together with the head and follow it.
    pub(super) rest: Bytes,
    /// Whether the response is read ahead of the client (`…_buffering`).
    pub(super) buffering: bool,
    content: RequestContent,
    pub(super) watch_client: bool,
    connector: PeerConnector,
    /// The servers that are left, and the number of tries.
    selection: PeerSelection,
    sticky: StickyState,
    /// The start of the first try, for `…_next_upstream_timeout`.
    started: Instant,
}

/// How long a server may accept nothing, and send nothing.
#[derive(Clone, Copy)]
pub(super) struct ExchangeTimeouts {
    pub(super) send: Duration,
    pub(super) read: Duration,
}

impl ExchangeTimeouts {
    fn of(settings: &UpstreamSettings) -> ExchangeTimeouts {
        ExchangeTimeouts {
            send: settings.send_timeout,
            read: settings.read_timeout,
        }
    }
}

/// The state of one try, which begins anew with each.
pub(super) struct CurrentTry {
    pub(super) began: Instant,
    /// The server, from the moment when there is a connection to it until the exchange is over.
    pub(super) link: Option<PeerLink>,
    /// The times that have been measured so far.
    times: UpstreamTimes,
    pub(super) head_arrived: Option<Instant>,
    pub(super) interim: InterimCount,
}

/// A server in use, and the connection to it.
pub(super) struct PeerLink {
    pub(super) lease: PeerLease,
    pub(super) connection: Box<PeerConnection>,
}

impl CurrentTry {
    fn begin() -> CurrentTry {
        CurrentTry {
            began: rt::now(),
            link: None,
            times: UpstreamTimes::default(),
            head_arrived: None,
            interim: InterimCount::default(),
        }
    }

    /// How long it has taken so far.
    fn age(&self) -> Duration {
        rt::now().saturating_duration_since(self.began)
    }

    /// The times of a try that has taken this long and is over.
    fn times_at_end(&self, took: Duration) -> UpstreamTimes {
        UpstreamTimes {
            response: Some(took),
            ..self.times
        }
    }
}

impl Exchange {
    /// Runs until the head of a response has arrived, which is then in `request.upstream`.
    pub async fn run_exchange(
        request: &mut Request,
        plan: ExchangePlan,
    ) -> Result<Box<Exchange>, NoResponse> {
        // Rarely needed futures are boxed. Otherwise their space would be part of this future, and be copied with every
        // request.
        if !request.body.is_complete() {
            Box::pin(Exchange::read_content(request, plan.content)).await?;
        }
        Exchange::run_with_content(request, plan).await
    }

    /// Reads the request's body before an exchange, unless it is to be sent while it is being read.
    pub(super) async fn read_content(
        request: &mut Request,
        content: RequestContent,
    ) -> Result<(), NoResponse> {
        // Before anything can fail: the error log names the upstream even if the body is refused.
        request.upstream.forget_target();
        let read = request_content::read_request_content(request, content).await;
        if read.is_err() {
            // It has come as far as to this exchange (`$proxy_host`). A slow upload has no record before its exchange.
            request.upstream.get_or_make();
        }
        read
    }

    /// [`Exchange::run_exchange`] once the body has been read.
    pub(super) async fn run_with_content(
        request: &mut Request,
        plan: ExchangePlan,
    ) -> Result<Box<Exchange>, NoResponse> {
        // Before anything can fail, too.
        request.upstream.get_or_make().target.clear();
        let mut exchange = match plan.target {
            ExchangeTarget::Group(_) => Exchange::begin(request, plan)?,
            ExchangeTarget::Host { .. } => {
                Box::pin(Exchange::find_and_begin(request, plan)).await?
            }
        };
        let scheme = exchange.protocol.scheme();
        // This loop ends. A failure that says something about a server uses up one of the tries that are left, unless an
        // idle connection was the cause, and that is used up. All other failures stop (`decide_retry`).
        loop {
            let record = request.upstream.get_or_make();
            record.begin_try();
            record.scheme = scheme;
            let former = request.ledger.enter(LedgerPhase::Queue);
            let outcome = exchange.make_try(request).await;
            // The phase in which the try ended is known from here on only by what is noted of it.
            if let Err(failure) = &outcome {
                request.ledger.end_by(failure.ended_by());
            } else {
                request.ledger.forget_end();
            }
            request.ledger.enter(former);
            match outcome {
                Ok(()) => return Ok(exchange),
                Err(failure) => exchange.retry_or_stop(request, failure)?,
            }
        }
    }

    /// Begins an exchange with a group. Not part of the future that makes the tries: that would keep a place for
    /// everything that is only moved into the exchange.
    fn begin(request: &mut Request, mut plan: ExchangePlan) -> Result<Box<Exchange>, NoResponse> {
        let transmit = plan.write_request(request)?;
        plan.into_exchange(request, transmit)
    }

    /// Begins an exchange with a host that has to be looked up.
    async fn find_and_begin(
        request: &mut Request,
        mut plan: ExchangePlan,
    ) -> Result<Box<Exchange>, NoResponse> {
        // It comes before the name lookup: a request that cannot be written needs no server.
        let transmit = plan.write_request(request)?;
        let watch = plan.watch_client && is_for_client_alone(request, &plan.settings);
        let group = find_group(request, plan.target, watch).await?;
        plan.target = ExchangeTarget::Group(group);
        plan.into_exchange(request, transmit)
    }

    /// Makes one try: choose a server, connect, send the request, read the head.
    async fn make_try(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        self.current = CurrentTry::begin();
        // Asked first, because it may replace the group's balancer for this try.
        self.ask_chooser(request)?;
        let client = Rc::clone(&request.stream);
        let watch = self.watch_client;
        let picked = match self.selection.try_pick() {
            // `queue` lets this wait for a free slot, and a client that disconnects must leave the queue.
            Err(NoPeer::Occupied) => {
                let mut queued = Box::pin(self.selection.wait_in_queue());
                while_client_stays(&client, watch, queued.as_mut())
                    .await
                    .map_err(|ClientLeft| client_left(request))?
            }
            picked => picked,
        };
        let lease = picked.map_err(|why| no_peer(request, self.selection.group(), why))?;
        request.upstream.get_or_make().current_try().peer =
            Some(PeerName::Peer(Arc::clone(lease.peer())));
        // The cookie belongs to the choice, whatever becomes of the connection. If this try fails, the next choice replaces
        // the cookie.
        self.sticky
            .note_peer(request, self.selection.group(), &lease);
        request.ledger.enter(LedgerPhase::Connect);
        let connection = {
            let connecting =
                self.connector
                    .connect(request, &self.settings, &*self.protocol, &lease);
            while_client_stays(&client, watch, std::pin::pin!(connecting)).await
        };
        let connection = connection.map_err(|ClientLeft| client_left(request));
        let connection = match connection.and_then(|result| result) {
            Ok(connection) => connection,
            Err(failure) => {
                // The lease must be returned here: without a link, nothing else knows of it.
                self.release(request, lease, &failure);
                return Err(failure);
            }
        };
        request.ledger.connection = Some(match connection.is_reused() {
            true => ConnectionUse::Reused,
            false => ConnectionUse::New,
        });
        request.ledger.enter(LedgerPhase::FirstByte);
        self.begin_on(request, PeerLink { lease, connection });
        let mut head = request.upstream.get_or_make().take_head();
        // CONNECT: the connection itself is the response (RFC 9110, section 9.3.6). The timer that was just set does not
        // run out: the tunnel sets it anew before it waits.
        if self.protocol.is_tunnel() {
            head.status = 200;
            request.upstream.get_or_make().set_head(head);
            return self.accept_head(request);
        }
        let mut input = Vec::new();
        // `poll_head` watches the client by itself: it wakes for other reasons as well.
        let result =
            std::future::poll_fn(|context| self.poll_head(request, &mut input, &mut head, context))
                .await;
        // The head goes back even if the try failed, and so does the buffer: the next try reuses their memory.
        request.upstream.get_or_make().set_head(head);
        match result {
            Ok(used) => self.rest = rest_of(input, used),
            Err(failure) => {
                buffers::give_buffer(input);
                return Err(failure);
            }
        }
        self.accept_head(request)
    }

    /// Lets a script choose the server of this try, if the group has one (`balancer_by_lua`).
    fn ask_chooser(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        // The last entry is the try that is starting, so the one before it is what failed.
        let tries = &request.upstream.get_or_make().tries;
        let status = tries.iter().rev().nth(1).map_or(0, |failed| failed.status);
        let choice = match self.selection.ask_chooser(request, status) {
            Ok(None) => return Ok(()),
            Ok(Some(choice)) => choice,
            Err(NoChoice { status }) => return Err(TryFailure::Final(NoResponse::new(status))),
        };
        // The script made no choice, and the group has nothing to fall back on.
        if choice.group.is_none() && self.selection.group().settings.servers.is_empty() {
            exchange_log::no_chosen_peer(request);
            return Err(TryFailure::Final(NoResponse::new(500)));
        }
        self.settings.override_timeouts(&choice.timeouts);
        self.timeouts = ExchangeTimeouts::of(&self.settings);
        // The script changed variables that the request was written from.
        if choice.rewrites_request {
            self.transmit = write_request(request, self.content, &mut *self.protocol)
                .map_err(TryFailure::Final)?;
        }
        self.connector.apply_choice(choice);
        Ok(())
    }

    /// Starts the exchange on an established connection.
    fn begin_on(&mut self, request: &mut Request, mut link: PeerLink) {
        let took = match rt::now() {
            // The loop's clock has not advanced: an idle connection was taken, which is the usual case.
            now if now == self.current.began => Duration::ZERO,
            now => now.saturating_duration_since(self.current.began),
        };
        self.current.times.connect = Some(took);
        request.upstream.get_or_make().current_try().connect_time = Some(took);
        // HTTP/2 keeps its state (HPACK table, stream numbers) with the connection, not with the exchange.
        self.transmit
            .begin(&mut *self.protocol, link.connection.carried.take());
        self.current.link = Some(link);
        self.protocol.begin_response();
        // From here on the server must accept bytes; `…_read_timeout` starts when the request has been sent.
        self.timer.set(self.timeouts.send);
    }

    /// Records the arrival of the head, and decides whether its status calls for another try.
    fn accept_head(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        let now = rt::now();
        let took = now.saturating_duration_since(self.current.began);
        self.current.head_arrived = Some(now);
        self.current.times.header = Some(took);
        if let Some(link) = &mut self.current.link {
            link.lease.head_arrived(took);
        }
        let record = request.upstream.get_or_make();
        let status = record.head.status;
        let current = record.current_try();
        current.header_time = Some(took);
        current.status = status;
        // If no try is left, the response goes to the client, whatever its status. The server has not been released yet,
        // which subtracts this try; `retry_or_stop` asks again with the number after that. The loop's clock stands still
        // in between, so both get the same answer.
        let failure = TryFailure::Status(status);
        let others = self.selection.tries_left().saturating_sub(1);
        if RetryReasons::of_status(status).is_some()
            && self.decide(request, failure, others) == RetryDecision::Retry
        {
            return Err(failure);
        }
        // Only a response that the client gets may create a session.
        self.learn(request, LearnMoment::Head);
        Ok(())
    }

    /// Asks the retry table.
    fn decide(&self, request: &Request, failure: TryFailure, tries_left: u32) -> RetryDecision {
        let rules = RetryRules {
            reasons: self.settings.next_upstream,
            timeout: self.settings.next_upstream_timeout,
        };
        let failed = FailedTry {
            failure,
            method: request.method,
            sent: self.transmit.request_sent(),
            tries_left,
            elapsed: rt::now().saturating_duration_since(self.started),
        };
        decide_retry(rules, &failed)
    }

    /// Ends a failed try. `Ok` if another one follows.
    fn retry_or_stop(
        &mut self,
        request: &mut Request,
        failure: TryFailure,
    ) -> Result<(), NoResponse> {
        if let Some(PeerLink { lease, connection }) = self.current.link.take() {
            let reused = connection.is_reused();
            // Closed first: releasing the server may let a waiting request connect, and `max_conns` counts both.
            drop(connection);
            if reused && failure.may_be_stale_connection() {
                // The server may have closed an idle connection at the same moment, which is neither a try nor a failure.
                // nginx counts a failure, and a group of which one server is left answers 502.
                drop(lease);
                self.selection.forget_try();
            } else {
                self.release(request, lease, &failure);
            }
        }
        // Other failures were logged where they happened; a status is no error.
        if let TryFailure::TimedOut(stage) = failure {
            exchange_log::timed_out(request, stage);
        }
        let status = failure.status();
        let current = request.upstream.get_or_make().current_try();
        current.set_response_time(self.current.age());
        // The client's disconnection is not the server's status.
        if status != internal_status::CLIENT_CLOSED {
            current.status = status;
        }
        match self.decide(request, failure, self.selection.tries_left()) {
            RetryDecision::Retry => {
                // Everything can be sent again: a body that was streamed and is gone stops the retries.
                self.transmit.rewind();
                Ok(())
            }
            RetryDecision::Stop(_) => {
                // The queue empties as requests finish, so the client may try again soon (RFC 9110, section 10.2.3).
                if failure == TryFailure::NoPeer(NoPeer::QueueFull) {
                    request.out.fields.set(b"Retry-After", b"1");
                }
                Err(NoResponse {
                    status,
                    reasons: failure.retry_reason(),
                })
            }
        }
    }

    /// Returns a server after a failed try, with what the failure says about it.
    fn release(&mut self, request: &mut Request, mut lease: PeerLease, failure: &TryFailure) {
        lease.note_traffic(self.traffic(request));
        let Some(outcome) = failure.peer_outcome(self.current.times_at_end(self.current.age()))
        else {
            // Dropping the lease counts neither a try nor a failure: the server is not to blame. Such a failure is never
            // retried, or the loop of tries would not end.
            return;
        };
        if self.selection.release_peer(lease, outcome).disabled {
            exchange_log::peer_disabled(request);
        }
    }

    /// What the present try has exchanged with its server.
    fn traffic(&self, request: &mut Request) -> PeerTraffic {
        let current = request.upstream.get_or_make().current_try();
        PeerTraffic {
            status: current.status,
            sent: current.bytes_sent.max(self.transmit.sent()),
            received: current.bytes_received,
        }
    }

    /// Learns a `sticky learn` session from the response.
    fn learn(&self, request: &mut Request, at: LearnMoment) {
        if let Some(link) = &self.current.link {
            let (group, state) = (self.selection.group(), self.selection.state());
            self.sticky
                .learn_session(request, group, state, link.lease.peer(), at);
        }
    }

    /// Sends pending acknowledgements if the socket accepts them at once. Otherwise the connection is not kept: the
    /// next request would have to wait for them.
    fn send_control(&mut self) -> bool {
        let mut control = Vec::new();
        self.protocol.take_control(&mut control);
        let link = self.current.link.as_ref();
        let Some(link) = link.filter(|_| !control.is_empty()) else {
            return control.is_empty();
        };
        matches!(link.connection.stream.try_write(&control), Ok(n) if n == control.len())
    }

    /// Ends the exchange after its response. `reusable`: no more bytes of this response can arrive on the connection.
    pub(super) fn finish(&mut self, request: &mut Request, reusable: bool) {
        let took = self.current.age();
        let current = request.upstream.get_or_make().current_try();
        // A tunnel has counted its own bytes in addition to the request's.
        current.bytes_sent = current.bytes_sent.max(self.transmit.sent());
        current.set_response_time(took);
        request.head.doing.set(exchange_log::SENDING);
        self.learn(request, LearnMoment::End);
        // An unsent rest of the request would be taken for the beginning of the next one.
        let reusable = reusable && self.transmit.is_complete() && self.send_control();
        let Some(PeerLink {
            mut lease,
            mut connection,
        }) = self.current.link.take()
        else {
            return;
        };
        lease.note_traffic(self.traffic(request));
        if !reusable || !self.protocol.keeps_alive() {
            // A TLS close_notify, so that the server can tell the end from a truncation (RFC 8446, section 6.1).
            connection.stream.say_goodbye();
        } else {
            connection.carried = self.protocol.take_carried_state();
            lease.keep_connection(connection);
        }
        self.transmit.release();
        let outcome = PeerOutcome::Ok(self.current.times_at_end(took));
        self.selection.release_peer(lease, outcome);
    }
}

impl ExchangePlan {
    /// Writes the request once for all tries, so that variables have the same value in each.
    fn write_request(&mut self, request: &mut Request) -> Result<RequestTransmit, NoResponse> {
        let transmit = write_request(request, self.content, &mut *self.protocol)?;
        request.upstream.get_or_make().begin_exchange();
        Ok(transmit)
    }

    /// The exchange with the group that the target is by now.
    fn into_exchange(
        self,
        request: &mut Request,
        transmit: RequestTransmit,
    ) -> Result<Box<Exchange>, NoResponse> {
        let ExchangeTarget::Group(group) = self.target else {
            return Err(NoResponse::new(502));
        };
        // `SettingsRef` finds the settings again at each access, so one reference is kept for the lines below.
        let directives: &UpstreamSettings = &self.settings;
        let (mut selection, looked_up) = super::exchange_target::begin_selection(request, group);
        // The number of servers in the group is the limit, unless `…_next_upstream_tries` is lower.
        selection.limit_tries(u32::try_from(directives.next_upstream_tries).unwrap_or(0));
        let connector = PeerConnector::new(request, directives, &*self.protocol, self.tag);
        let buffering = directives.buffering;
        let timeouts = ExchangeTimeouts::of(directives);
        let watch_client = self.watch_client && is_for_client_alone(request, directives);
        Ok(Box::new(Exchange {
            settings: self.settings,
            protocol: self.protocol,
            transmit,
            timer: rt::Timer::new(),
            timeouts,
            current: CurrentTry::begin(),
            rest: Bytes::new(),
            buffering,
            content: self.content,
            watch_client,
            connector,
            selection,
            sticky: StickyState::new(looked_up),
            started: rt::now(),
        }))
    }
}

/// Writes the request's head, once for all tries.
fn write_request(
    request: &mut Request,
    content: RequestContent,
    protocol: &mut dyn UpstreamProtocol,
) -> Result<RequestTransmit, NoResponse> {
    let (announced, source) = request_content::describe_content(request, content);
    let mut first = buffers::take_buffer();
    first.reserve(FIRST_CAPACITY);
    protocol.write_head(request, announced, &mut first)?;
    Ok(RequestTransmit::new(first, source, request, protocol))
}

/// Whether the exchange serves nothing but the client's response. A response that is stored continues without its
/// client; background subrequests and `post_action` have none.
fn is_for_client_alone(request: &Request, settings: &UpstreamSettings) -> bool {
    !settings.ignore_client_abort
        && matches!(settings.store, UpstreamStore::Off)
        && request.flow.purpose == RequestPurpose::Response
}

/// The group for a destination with variables.
async fn find_group(
    request: &mut Request,
    target: ExchangeTarget,
    watch: bool,
) -> Result<Arc<UpstreamGroup>, NoResponse> {
    let client = Rc::clone(&request.stream);
    let former = request.ledger.enter(LedgerPhase::Resolve);
    let found = {
        let finding = std::pin::pin!(super::exchange_target::target_group(request, target));
        while_client_stays(&client, watch, finding).await
    };
    match &found {
        Ok(Ok(_)) => {}
        Ok(Err(_)) => request.ledger.end_by(EndedBy::Upstream),
        Err(ClientLeft) => request.ledger.end_by(EndedBy::Client),
    }
    request.ledger.enter(former);
    match found {
        Ok(group) => group,
        Err(ClientLeft) => {
            exchange_log::client_left_while_resolving(request);
            Err(NoResponse::new(internal_status::CLIENT_CLOSED))
        }
    }
}

/// The failure for a client that has disconnected.
pub(super) fn client_left(request: &Request) -> TryFailure {
    exchange_log::client_left(request);
    TryFailure::Final(NoResponse::new(internal_status::CLIENT_CLOSED))
}

/// The failure if the group has no server to offer.
fn no_peer(request: &mut Request, group: &UpstreamGroup, why: NoPeer) -> TryFailure {
    request.upstream.get_or_make().current_try().peer =
        Some(PeerName::Group(group.name().to_owned()));
    exchange_log::no_peer(request, why);
    TryFailure::NoPeer(why)
}

/// The input after its first `used` bytes. A small rest is copied, so that the large buffer can serve the next
/// exchange.
fn rest_of(input: Vec<u8>, used: usize) -> Bytes {
    let rest = &input[used..];
    if rest.len() > COPIED {
        return Bytes::from(input).slice(used..);
    }
    let rest = Bytes::copy_from_slice(rest);
    buffers::give_buffer(input);
    rest
}
