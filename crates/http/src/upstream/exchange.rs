//! One exchange: from the choice of a peer to the head of a response, over as many tries as it takes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use net::upstream::{Connection, Group, Lease, NoChoice, NoPeer, Outcome, Selection, Times};

use super::client_watch::{ClientLeft, while_client_stays};
use super::connect::Connector;
use super::log;
use super::no_response::{NoResponse, RetryReasons};
use super::protocol::Protocol;
use super::record::PeerName;
use super::request_content::{self, RequestContent};
use super::response_head::InterimCount;
use super::retry::{FailedTry, RetryDecision, RetryRules, TryFailure, decide};
use super::settings::{Settings, SettingsRef, Store};
use super::sticky::{Moment, Stickiness};
use super::transmit::Transmit;
use crate::buffers;
use crate::module::internal_status;
use crate::request::{Request, RequestPurpose};

/// Room for the head of a usual request, in bytes.
const FIRST_CAPACITY: usize = 1024;

/// Up to this much content is copied out of the buffer it came in, in bytes.
const COPIED: usize = 4096;

/// What a handler asks for.
pub struct Plan {
    /// What directives say.
    pub settings: SettingsRef,
    /// Where it goes.
    pub target: Target,
    /// The codec.
    pub protocol: Box<dyn Protocol>,
    /// What becomes of the request's content.
    pub content: RequestContent,
    /// Whether the exchange ends when the client leaves before the response.
    pub watch_client: bool,
    /// Which exchanges may use the same idle connections, where they are not for all.
    pub tag: u64,
}

/// Where an exchange goes.
pub enum Target {
    /// A group.
    Group(Arc<Group>),
    /// A host that a URL with variables named.
    Host {
        /// The name or address.
        host: bstr::BString,
        /// The port, also where the URL did not name it; a unix socket has none.
        port: Option<u16>,
        /// The URL named the port.
        explicit_port: bool,
    },
}

/// An exchange.
pub struct Exchange {
    pub(super) settings: SettingsRef,
    pub(super) protocol: Box<dyn Protocol>,
    pub(super) transmit: Transmit,
    /// What is waited for: that the peer takes something, or sends something.
    pub(super) timer: rt::Timer,
    /// The present try.
    pub(super) attempt: Attempt,
    /// What follows the head and was received with it.
    pub(super) rest: Bytes,
    /// Whether the response is read ahead of the client.
    pub(super) buffering: bool,
    content: RequestContent,
    pub(super) watch_client: bool,
    connector: Connector,
    /// The peers, and the tries that are left.
    selection: Selection,
    sticky: Stickiness,
    /// When the first try began, for `next_upstream_timeout`.
    started: Instant,
}

/// One try: what begins anew with each.
pub(super) struct Attempt {
    pub(super) began: Instant,
    /// The peer, from when there is a connection to it until the exchange is over.
    pub(super) link: Option<PeerLink>,
    /// How long it took so far.
    times: Times,
    pub(super) head_arrived: Option<Instant>,
    pub(super) interim: InterimCount,
}

/// A peer in use, and the connection to it.
pub(super) struct PeerLink {
    pub(super) lease: Lease,
    pub(super) connection: Connection,
}

impl Attempt {
    fn begin() -> Attempt {
        Attempt {
            began: rt::now(),
            link: None,
            times: Times::default(),
            head_arrived: None,
            interim: InterimCount::default(),
        }
    }

    /// Its times, if it is over now.
    fn times_at_end(&self) -> Times {
        Times {
            response: Some(rt::now().saturating_duration_since(self.began)),
            ..self.times
        }
    }
}

impl Exchange {
    /// Runs until the head of a response is there, which then is in `request.upstream`.
    pub async fn run(request: &mut Request, plan: Plan) -> Result<Box<Exchange>, NoResponse> {
        let Plan {
            settings,
            target,
            mut protocol,
            content,
            watch_client,
            tag,
        } = plan;
        // Before anything can fail: also a request whose content is refused was on its way here, and the log says so.
        request.upstream.get_or_make().target.clear();
        // What most requests do not need are futures of their own: their room would be copied with each request.
        if !request.body.is_complete() {
            Box::pin(request_content::read(request, content)).await?;
        }
        // Once for all tries, so that variables have one value for all of them, and before a name is looked up: a request
        // that cannot be written needs no server.
        let transmit = write_request(request, content, &mut *protocol)?;
        request.upstream.get_or_make().begin();
        let scheme = protocol.scheme();
        // Each look through the reference finds the settings anew.
        let said: &Settings = &settings;
        let watch_client = watch_client && is_for_client_alone(request, said);
        let group = match target {
            Target::Group(group) => group,
            host => Box::pin(find_group(request, host, watch_client)).await?,
        };
        let (mut selection, looked_up) = super::target::select(request, group);
        selection.limit_tries(u32::try_from(said.next_upstream_tries).unwrap_or(0));
        let connector = Connector::new(request, said, &*protocol, tag);
        let buffering = said.buffering;
        let mut exchange = Box::new(Exchange {
            settings,
            protocol,
            transmit,
            timer: rt::Timer::new(),
            attempt: Attempt::begin(),
            rest: Bytes::new(),
            buffering,
            content,
            watch_client,
            connector,
            selection,
            sticky: Stickiness::new(looked_up),
            started: rt::now(),
        });
        loop {
            let record = request.upstream.get_or_make();
            record.begin_try();
            record.scheme = scheme;
            match exchange.attempt(request).await {
                Ok(()) => return Ok(exchange),
                Err(failure) => exchange.retry_or_stop(request, failure)?,
            }
        }
    }

    /// One try.
    async fn attempt(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        self.attempt = Attempt::begin();
        // Before the group's balancer, which it may replace for this try.
        self.ask_chooser(request)?;
        let client = Rc::clone(&request.stream);
        let watch = self.watch_client;
        let lease = while_client_stays(&client, watch, self.selection.acquire())
            .await
            .map_err(|ClientLeft| client_left(request))?
            .map_err(|why| no_peer(request, self.selection.group(), why))?;
        request.upstream.get_or_make().current().peer =
            Some(PeerName::Peer(Arc::clone(lease.peer())));
        self.sticky.picked(request, self.selection.group(), &lease);
        let connecting = self
            .connector
            .connect(request, &self.settings, &*self.protocol, &lease);
        let connection = while_client_stays(&client, watch, connecting)
            .await
            .map_err(|ClientLeft| client_left(request));
        let connection = match connection.and_then(|result| result) {
            Ok(connection) => connection,
            Err(failure) => {
                self.release(request, lease, &failure);
                return Err(failure);
            }
        };
        self.begin_on(request, PeerLink { lease, connection });
        let mut head = request.upstream.get_or_make().take_head();
        if self.protocol.is_tunnel() {
            head.status = 200;
            request.upstream.get_or_make().set_head(head);
            return self.accept_head(request);
        }
        let mut input = buffers::take();
        let result =
            std::future::poll_fn(|context| self.poll_head(request, &mut input, &mut head, context))
                .await;
        // Also when the try has failed: its memory serves the next one.
        request.upstream.get_or_make().set_head(head);
        self.rest = rest_of(input, result?);
        self.accept_head(request)
    }

    /// Lets the chooser that the group names (such as Lua) choose the server of this try.
    fn ask_chooser(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        // The last try of the record is the one that begins now.
        let tries = &request.upstream.get_or_make().tries;
        let status = tries.iter().rev().nth(1).map_or(0, |failed| failed.status);
        let choice = match self.selection.ask_chooser(request, status) {
            Ok(None) => return Ok(()),
            Ok(Some(choice)) => choice,
            Err(NoChoice { status }) => return Err(TryFailure::Final(NoResponse::new(status))),
        };
        if choice.group.is_none() && self.selection.group().settings.servers.is_empty() {
            log::no_chosen_peer(request);
            return Err(TryFailure::Final(NoResponse::new(500)));
        }
        self.settings.override_timeouts(&choice.timeouts);
        if choice.rewrites_request {
            self.transmit = write_request(request, self.content, &mut *self.protocol)
                .map_err(TryFailure::Final)?;
        }
        self.connector.follow(choice);
        Ok(())
    }

    /// The connection stands: both sides begin.
    fn begin_on(&mut self, request: &mut Request, mut link: PeerLink) {
        let took = match rt::now() {
            // A connection that was idle: the usual case.
            now if now == self.attempt.began => Duration::ZERO,
            now => now.saturating_duration_since(self.attempt.began),
        };
        self.attempt.times.connect = Some(took);
        request.upstream.get_or_make().current().connect_time = Some(took);
        self.transmit
            .begin(&mut *self.protocol, link.connection.carried.take());
        self.attempt.link = Some(link);
        self.protocol.begin_response();
        self.timer.set(self.settings.send_timeout);
    }

    /// Notes that the head is there, and judges its status.
    fn accept_head(&mut self, request: &mut Request) -> Result<(), TryFailure> {
        let now = rt::now();
        let took = now.saturating_duration_since(self.attempt.began);
        self.attempt.head_arrived = Some(now);
        self.attempt.times.header = Some(took);
        if let Some(link) = &mut self.attempt.link {
            link.lease.head_arrived(took);
        }
        let record = request.upstream.get_or_make();
        let status = record.head.status;
        let current = record.current();
        current.header_time = Some(took);
        current.status = status;
        // A response that no other try can replace is the client's, whatever its status: this try counts as one of those
        // that are left until it is over.
        let failure = TryFailure::Status(status);
        let others = self.selection.tries_left().saturating_sub(1);
        if RetryReasons::of_status(status).is_some()
            && self.decide(request, failure, others) == RetryDecision::Retry
        {
            return Err(failure);
        }
        self.learn(request, Moment::Head);
        Ok(())
    }

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
        decide(rules, &failed)
    }

    /// Ends a try that failed. `Ok` when there is to be another.
    fn retry_or_stop(
        &mut self,
        request: &mut Request,
        failure: TryFailure,
    ) -> Result<(), NoResponse> {
        if let Some(PeerLink { lease, connection }) = self.attempt.link.take() {
            let reused = connection.is_reused();
            drop(connection);
            self.release(request, lease, &failure);
            // It says little of a server that it closed a connection which had been idle, so this was none of its tries.
            if reused && failure.may_be_stale_connection() {
                self.selection.grant_try();
            }
        }
        if let TryFailure::TimedOut(doing) = failure {
            log::timed_out(request, doing);
        }
        let status = failure.status();
        let current = request.upstream.get_or_make().current();
        current.end(self.attempt.began);
        // That the client left says nothing of the server.
        if status != internal_status::CLIENT_CLOSED {
            current.status = status;
        }
        match self.decide(request, failure, self.selection.tries_left()) {
            RetryDecision::Retry => {
                self.transmit.rewind();
                Ok(())
            }
            RetryDecision::Stop(_) => {
                if failure == TryFailure::NoPeer(NoPeer::QueueFull) {
                    request.out.fields.set(b"Retry-After", b"1");
                }
                Err(NoResponse {
                    status,
                    reasons: failure.reason(),
                })
            }
        }
    }

    /// Gives a peer back after a try that failed on it.
    fn release(&mut self, request: &Request, lease: Lease, failure: &TryFailure) {
        let Some(outcome) = failure.outcome(self.attempt.times_at_end()) else {
            // Dropped, the lease counts no try and no failure: the peer is not to blame.
            return;
        };
        if self.selection.release(lease, outcome).disabled {
            log::peer_disabled(request);
        }
    }

    fn learn(&self, request: &mut Request, at: Moment) {
        if let Some(link) = &self.attempt.link {
            let (group, state) = (self.selection.group(), self.selection.state());
            self.sticky
                .learn(request, group, state, link.lease.peer(), at);
        }
    }

    /// Sends acknowledgements that the peer waits for, if the socket takes them at once. Otherwise they are too late: the
    /// connection is not used again.
    fn send_control(&mut self) -> bool {
        let mut control = Vec::new();
        self.protocol.take_control(&mut control);
        let link = self.attempt.link.as_ref();
        let Some(link) = link.filter(|_| !control.is_empty()) else {
            return control.is_empty();
        };
        matches!(link.connection.stream.try_write(&control), Ok(n) if n == control.len())
    }

    /// Ends the exchange when its response is over. `reusable` says that nothing more can come on the connection.
    pub(super) fn finish(&mut self, request: &mut Request, reusable: bool) {
        let began = self.attempt.began;
        let record = request.upstream.get_or_make();
        // A tunnel has counted more than the request.
        record.current().bytes_sent = record.current().bytes_sent.max(self.transmit.sent());
        record.current().end(began);
        self.learn(request, Moment::End);
        let reusable = reusable && self.transmit.is_done() && self.send_control();
        let Some(PeerLink {
            lease,
            mut connection,
        }) = self.attempt.link.take()
        else {
            return;
        };
        if !reusable || !self.protocol.keeps_alive() {
            connection.stream.say_goodbye();
        } else {
            connection.carried = self.protocol.carry();
            lease.keep(connection);
        }
        self.transmit.release();
        let outcome = Outcome::Ok(self.attempt.times_at_end());
        self.selection.release(lease, outcome);
    }
}

/// The request as it goes out, of which the head is written.
fn write_request(
    request: &mut Request,
    content: RequestContent,
    protocol: &mut dyn Protocol,
) -> Result<Transmit, NoResponse> {
    let (announced, source) = request_content::describe(request, content);
    let mut first = buffers::take();
    first.reserve(FIRST_CAPACITY);
    protocol.write_head(request, announced, &mut first)?;
    Ok(Transmit::new(first, source, request, protocol))
}

/// Whether the exchange is of no use to anything but the client's response. A response that is saved goes on without its
/// client, and what runs beside or after the client's response has none.
fn is_for_client_alone(request: &Request, settings: &Settings) -> bool {
    !settings.ignore_client_abort
        && matches!(settings.store, Store::Off)
        && request.flow.purpose == RequestPurpose::Response
}

/// The group that a target made of variables means.
async fn find_group(
    request: &mut Request,
    target: Target,
    watch: bool,
) -> Result<Arc<Group>, NoResponse> {
    let client = Rc::clone(&request.stream);
    match while_client_stays(&client, watch, super::target::group(request, target)).await {
        Ok(group) => group,
        Err(ClientLeft) => {
            log::client_left_while_resolving(request);
            Err(NoResponse::new(internal_status::CLIENT_CLOSED))
        }
    }
}

/// The client is gone: so is the reason for the exchange.
pub(super) fn client_left(request: &Request) -> TryFailure {
    log::client_left(request);
    TryFailure::Final(NoResponse::new(internal_status::CLIENT_CLOSED))
}

fn no_peer(request: &mut Request, group: &Group, why: NoPeer) -> TryFailure {
    request.upstream.get_or_make().current().peer = Some(PeerName::Group(group.name().to_owned()));
    log::no_peer(request, why);
    TryFailure::NoPeer(why)
}

/// What follows the first `used` bytes of the input. A little is copied, so that the buffer can serve the next exchange.
fn rest_of(input: Vec<u8>, used: usize) -> Bytes {
    let rest = &input[used..];
    if rest.len() > COPIED {
        return Bytes::from(input).slice(used..);
    }
    let rest = Bytes::copy_from_slice(rest);
    buffers::give(input);
    rest
}
