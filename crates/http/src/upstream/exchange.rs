//! One exchange: from the choice of a peer to the head of a response, over as many tries as it takes.

use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bstr::{BStr, ByteSlice};
use bytes::Bytes;
use net::upstream::{
    Asked, Connection, Group, Lease, NoPeer, NotSecure, Outcome as PeerOutcome, Reuse, Selection,
    Times,
};
use net::{ConnectOptions, Transport};
use proto::h1::Method;
use proto::h1::response::ResponseHead;
use rt::error_log::{Errno, Level};
use rt::net::Address;

use super::choosing::Choosing;
use super::interim;
use super::protocol::{Content, HeadProgress, Protocol};
use super::record::{PeerName, Record};
use super::settings::{NextUpstream, Settings, SettingsRef, Store};
use super::sticky::{Moment, Stickiness};
use super::transmit::{ContentSource, Progress, SendFailure, Transmit};
use crate::body_reader;
use crate::buffers;
use crate::lane::Presence;
use crate::module::internal_status;
use crate::request::Request;

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
    /// Who may use the same idle connections, where they are not for all.
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

/// What becomes of a request's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestContent {
    /// It is read first, and sent then.
    Buffered,
    /// It is sent while it is read.
    Streamed,
    /// It is read, but not sent.
    Dropped,
}

/// An exchange.
pub struct Exchange {
    pub(super) settings: SettingsRef,
    pub(super) protocol: Box<dyn Protocol>,
    pub(super) link: Option<Link>,
    pub(super) transmit: Transmit,
    /// What follows the head and was received with it.
    pub(super) rest: Bytes,
    pub(super) timer: rt::Timer,
    pub(super) began: Instant,
    /// How long the present try took so far.
    took: Times,
    pub(super) head_arrived: Option<Instant>,
    /// Whether the response is read ahead of the client.
    pub(super) buffering: bool,
    /// Interim responses of this try, and their bytes.
    interim: (u32, u64),
    /// Who chooses the server of each try, where it is not the group.
    choosing: Option<Choosing>,
    content: RequestContent,
    selection: Selection,
    first_began: Instant,
    watch_client: bool,
    tag: u64,
    group: Arc<Group>,
    /// What TLS to the peers needs; `None`: it is not spoken.
    asked: Option<Asked>,
    /// The address to connect from.
    local: Option<Address>,
    sticky: Stickiness,
}

/// A peer in use, and the connection to it.
pub(super) struct Link {
    pub(super) lease: Lease,
    pub(super) connection: Connection,
}

/// Why there is no response.
pub enum Stop {
    /// Answer with this status.
    Status(u16),
    /// The last peer failed, or there was none: answer with this status. The reasons are bits of [`NextUpstream`].
    Failed(u16, u32),
}

impl Stop {
    /// The status to answer with.
    pub fn status(&self) -> u16 {
        match self {
            Stop::Status(status) | Stop::Failed(status, _) => *status,
        }
    }
}

/// How a try failed.
enum Failure {
    /// No peer can be used.
    NoPeer(NoPeer),
    /// The connection could not be made or broke. It has been logged.
    Broken,
    /// The peer says that it did nothing with the request, whose method does not matter then. It has been logged.
    Unseen,
    /// The time is over; while doing what.
    TimedOut(&'static str),
    /// The head makes no sense. It has been logged.
    InvalidHeader,
    /// The response has a status that lets another peer be tried.
    Status(u16),
    /// Something that no other peer can change. It has been logged.
    Final(u16),
}

/// The number that stands for the system's `ETIMEDOUT` in logs.
const TIMED_OUT: &str = "(110: Connection timed out)";

impl Exchange {
    /// Runs until the head of a response is there, which then is in `request.upstream`.
    pub async fn run(request: &mut Request, plan: Plan) -> Result<Box<Exchange>, Stop> {
        let Plan {
            settings,
            target,
            mut protocol,
            content,
            watch_client,
            tag,
        } = plan;
        // Also a request whose content is refused was on its way here.
        request.upstream.get_or_make().target.clear();
        // What most requests do not need are futures of their own: their room would be copied with each request.
        if !request.body.is_complete() {
            Box::pin(read_content(request, content)).await?;
        }
        let (announced, source) = describe_content(request, content);
        let mut first = buffers::take();
        first.reserve(FIRST_CAPACITY);
        protocol
            .write_head(request, announced, &mut first)
            .map_err(Stop::Status)?;
        let record = request.upstream.get_or_make();
        record.begin();
        let scheme = protocol.scheme();
        // Each look through the reference finds the settings anew.
        let said: &Settings = &settings;
        let watch_client = watch_client
            && !said.ignore_client_abort
            && matches!(said.store, Store::Off)
            && !request.flow.background
            && !request.flow.post_action;
        let client = request.presence();
        let group = match target {
            Target::Group(group) => group,
            host => Box::pin(find_group(request, host, &client, watch_client)).await?,
        };
        let (mut selection, looked_up) = super::target::select(request, &group);
        let limit = u32::try_from(said.next_upstream_tries).unwrap_or(0);
        if limit > 0 {
            selection.limit_tries(limit);
        }
        let choosing = Choosing::of(&group, &selection, limit);
        let buffering = said.buffering;
        let host = protocol.secure_host().map(BStr::to_owned);
        let asked = host.map(|host| {
            let dialect = protocol.dialect();
            said.secure.asked(request, host.as_bstr(), dialect)
        });
        let local = local_address(request, said);
        let transmit = Transmit::new(first, source, request, &mut *protocol);
        let mut exchange = Box::new(Exchange {
            settings,
            protocol,
            link: None,
            transmit,
            rest: Bytes::new(),
            timer: rt::Timer::new(),
            began: rt::now(),
            took: Times::default(),
            head_arrived: None,
            buffering,
            interim: (0, 0),
            selection,
            first_began: rt::now(),
            watch_client,
            tag,
            group,
            asked,
            local,
            sticky: Stickiness::new(looked_up),
            choosing,
            content,
        });
        loop {
            let record = record_of(request);
            record.begin_try();
            record.scheme = scheme;
            match exchange.attempt(request).await {
                Ok(()) => return Ok(exchange),
                Err(failure) => exchange.next(request, failure)?,
            }
        }
    }

    /// One try.
    async fn attempt(&mut self, request: &mut Request) -> Result<(), Failure> {
        self.began = rt::now();
        self.took = Times::default();
        self.head_arrived = None;
        self.interim = (0, 0);
        if self.choosing.is_some() {
            self.choose(request)?;
        }
        let client = request.presence();
        let watch = self.watch_client;
        let lease = while_client_stays(&client, watch, self.selection.acquire())
            .await
            .map_err(|ClientLeft| client_left(request))?
            .map_err(|why| no_peer(request, &self.group, why))?;
        record_of(request).current().peer = Some(PeerName::Peer(Arc::clone(lease.peer())));
        self.sticky.picked(request, &self.group, &lease);
        let connection = while_client_stays(&client, watch, self.connect(request, &lease))
            .await
            .map_err(|ClientLeft| client_left(request));
        let mut connection = match connection.and_then(|result| result) {
            Ok(connection) => connection,
            Err(failure) => {
                self.release(request, lease, judge(&failure));
                return Err(failure);
            }
        };
        let took = match rt::now() {
            // A connection that was idle: the usual case.
            now if now == self.began => Duration::ZERO,
            now => now.saturating_duration_since(self.began),
        };
        self.took.connect = Some(took);
        record_of(request).current().connect_time = Some(took);
        self.transmit
            .begin(&mut *self.protocol, connection.carried.take());
        self.link = Some(Link { lease, connection });
        self.protocol.begin_response();
        self.timer.set(self.settings.send_timeout);
        let mut head = record_of(request).take_head();
        if self.protocol.is_tunnel() {
            head.status = 200;
            record_of(request).set_head(head);
            return self.accept_head(request);
        }
        let mut input = buffers::take();
        let result =
            std::future::poll_fn(|context| self.poll_head(request, &mut input, &mut head, context))
                .await;
        let record = record_of(request);
        record.set_head(head);
        let used = result?;
        self.rest = rest_of(input, used);
        self.accept_head(request)
    }

    /// Lets the balancer that the group names (such as Lua) choose the server of this attempt.
    fn choose(&mut self, request: &mut Request) -> Result<(), Failure> {
        let Some(choosing) = &mut self.choosing else {
            return Ok(());
        };
        // The last try of the record is the one that begins now.
        let tries = &record_of(request).tries;
        let status = tries.iter().rev().nth(1).map_or(0, |failed| failed.status);
        let choice = choosing
            .choose(request, status, &mut self.group, &mut self.selection)
            .map_err(Failure::Final)?;
        self.settings.wait(&choice.timeouts);
        self.local = choice.from.or(self.local.take());
        if choice.plain {
            self.asked = None;
        }
        if choice.anew {
            let (announced, source) = describe_content(request, self.content);
            let mut first = buffers::take();
            self.protocol
                .write_head(request, announced, &mut first)
                .map_err(Failure::Final)?;
            self.transmit = Transmit::new(first, source, request, &mut *self.protocol);
        }
        Ok(())
    }

    async fn connect(&self, request: &Request, lease: &Lease) -> Result<Connection, Failure> {
        let reuse = Reuse {
            tag: self.tag,
            dialect: self.protocol.dialect(),
            secure: self.asked.as_ref().map_or(0, Asked::key),
        };
        if !self.protocol.is_tunnel()
            && let Some(connection) = lease.reuse(reuse).await
        {
            return Ok(connection);
        }
        Box::pin(self.open(request, lease, reuse)).await
    }

    /// Makes a new connection.
    async fn open(
        &self,
        request: &Request,
        lease: &Lease,
        reuse: Reuse,
    ) -> Result<Connection, Failure> {
        let settings = &*self.settings;
        let mut options = ConnectOptions {
            timeout: settings.connect_timeout,
            keepalive: settings.socket_keepalive,
            receive_buffer: usize::try_from(settings.socket_rcvbuf).unwrap_or(usize::MAX),
            send_buffer: usize::try_from(settings.socket_sndbuf).unwrap_or(usize::MAX),
            ..ConnectOptions::default()
        };
        options.from = self.local.clone();
        options.transparent = settings.bind.as_ref().is_some_and(|bind| bind.transparent);
        match net::connect(lease.address(), &options).await {
            Ok(stream) => {
                let mut transport = Transport::plain(stream);
                if let Some(asked) = &self.asked {
                    self.make_secure(request, &mut transport, asked).await?;
                }
                Ok(Connection::new(transport, reuse))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                Err(Failure::TimedOut("connecting to upstream"))
            }
            Err(error) => {
                log_connect_error(request, lease.address(), &error);
                Err(Failure::Broken)
            }
        }
    }

    /// Speaks TLS on a new connection.
    async fn make_secure(
        &self,
        request: &Request,
        transport: &mut Transport,
        asked: &Asked,
    ) -> Result<(), Failure> {
        let (secure, patience) = (&self.settings.secure, self.settings.connect_timeout);
        match secure.handshake(transport, asked, patience).await {
            Ok(()) => Ok(()),
            Err(NotSecure::TimedOut) => Err(Failure::TimedOut("SSL handshaking to upstream")),
            Err(NotSecure::Peer(line)) => {
                request.error(format_args!("{line} while SSL handshaking to upstream"));
                Err(Failure::Broken)
            }
            Err(NotSecure::Ours(line)) => {
                request.error(format_args!("{line} while SSL handshaking to upstream"));
                Err(Failure::Final(500))
            }
        }
    }

    /// Sends, and reads until the head is complete. Gives how many bytes of the input belonged to it.
    fn poll_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
        context: &mut Context<'_>,
    ) -> Poll<Result<usize, Failure>> {
        if self.watch_client && request.poll_client_left(context).is_ready() {
            return Poll::Ready(Err(client_left(request)));
        }
        loop {
            if self.transmit.has_work(&*self.protocol)
                && let Err(failure) = self.poll_send(request, context)
            {
                return Poll::Ready(Err(failure));
            }
            match self.poll_receive(request, input, context) {
                Poll::Pending => break,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Ready(Ok(())) => {}
            }
            match self.read_head(request, input, head) {
                Ok(None) => {}
                Ok(Some(used)) => return Poll::Ready(Ok(used)),
                Err(failure) => return Poll::Ready(Err(failure)),
            }
        }
        if self.timer.poll_expired(context).is_ready() {
            let doing = match self.transmit.is_done() {
                true => "reading response header from upstream",
                false => "sending request to upstream",
            };
            return Poll::Ready(Err(Failure::TimedOut(doing)));
        }
        Poll::Pending
    }

    /// Sends what can be sent, and sets the timer for what is waited for then.
    fn poll_send(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Result<(), Failure> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        match self.transmit.poll(
            request,
            &link.connection.stream,
            &mut *self.protocol,
            context,
        ) {
            Ok(Progress::Done) => self.timer.set(self.settings.read_timeout),
            Ok(Progress::PeerBusy { moved: true }) => self.timer.set(self.settings.send_timeout),
            Ok(Progress::PeerBusy { moved: false }) => {}
            // The peer is not to blame for the client's silence, which has a timer of its own.
            Ok(Progress::Waiting) => self.timer.set(self.settings.read_timeout),
            Err(SendFailure::Client(status)) => return Err(Failure::Final(status)),
            Err(SendFailure::Peer(error)) => {
                // It may have answered before it closed: what it said counts, and if it said nothing that is logged.
                request.log(
                    Level::Info,
                    format_args!(
                        "send() failed{} while sending request to upstream",
                        Errno(&error)
                    ),
                );
                self.transmit.abandon();
                self.timer.set(self.settings.read_timeout);
            }
        }
        record_of(request).current().bytes_sent = self.transmit.sent();
        Ok(())
    }

    /// Appends what the peer sent to `input`.
    fn poll_receive(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        let Some(link) = &self.link else {
            return Poll::Pending;
        };
        let room = self.head_room().saturating_sub(input.len());
        let result = match link
            .connection
            .stream
            .poll_read_into(context, input, room.max(1))
        {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(result) => result,
        };
        Poll::Ready(match result {
            Ok(0) => {
                request.error(format_args!(
                    "upstream prematurely closed connection while reading response header from upstream"
                ));
                Err(Failure::Broken)
            }
            Ok(n) => {
                record_of(request).current().bytes_received += n as u64;
                if self.transmit.is_done() {
                    self.timer.set(self.settings.read_timeout);
                }
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                request.error(format_args!(
                    "{} while reading response header from upstream",
                    net::ReadFailed(&error)
                ));
                Err(Failure::Broken)
            }
        })
    }

    /// How much input the head may take, in bytes.
    fn head_room(&self) -> usize {
        usize::try_from(self.settings.buffer_size)
            .unwrap_or(usize::MAX)
            .max(self.protocol.least_buffer())
    }

    fn read_head(
        &mut self,
        request: &mut Request,
        input: &mut Vec<u8>,
        head: &mut ResponseHead,
    ) -> Result<Option<usize>, Failure> {
        loop {
            match self.protocol.read_head(request, input, head) {
                Ok(HeadProgress::Complete(_))
                    if head.status == 101 && !self.may_switch(request) =>
                {
                    request.error(format_args!(
                        "upstream switched protocols without being asked while reading response header from upstream"
                    ));
                    return Err(Failure::InvalidHeader);
                }
                Ok(HeadProgress::Complete(used)) => return Ok(Some(used)),
                Ok(HeadProgress::Interim(used)) => {
                    if head.status != 0 {
                        self.count_interim(request, head, used)?;
                    }
                    head.clear();
                    input.drain(..used);
                }
                Ok(HeadProgress::Partial) if input.len() >= self.head_room() => {
                    request.error(format_args!(
                        "upstream sent too big header while reading response header from upstream"
                    ));
                    return Err(Failure::InvalidHeader);
                }
                Ok(HeadProgress::Partial) => return Ok(None),
                Err(fault) => {
                    let message = fault.message.as_bstr();
                    request.error(format_args!(
                        "{message} while reading response header from upstream"
                    ));
                    return Err(match fault.is_unseen {
                        true => Failure::Unseen,
                        false => Failure::InvalidHeader,
                    });
                }
            }
        }
    }

    /// Whether a 101 makes sense: it was asked for by what was sent, and by a client who can have it. On a stream of HTTP/2
    /// there is nothing to switch from, unless the client asked for it in its own way.
    fn may_switch(&self, request: &Request) -> bool {
        self.protocol.asks().upgrade
            && request.head.wire.fields.has(proto::Known::Upgrade)
            && !request.is_subrequest()
    }

    /// Lets an interim response go on, unless there were too many.
    fn count_interim(
        &mut self,
        request: &mut Request,
        head: &ResponseHead,
        length: usize,
    ) -> Result<(), Failure> {
        let (count, total) = &mut self.interim;
        *count += 1;
        *total += length as u64;
        if *count > interim::MOST {
            request.error(format_args!(
                "upstream sent too many interim responses while reading response header from upstream"
            ));
            return Err(Failure::InvalidHeader);
        }
        interim::pass_on(request, &self.settings, head, *total);
        Ok(())
    }

    /// Notes that the head is there, and judges its status.
    fn accept_head(&mut self, request: &mut Request) -> Result<(), Failure> {
        let now = rt::now();
        self.head_arrived = Some(now);
        let took = now.saturating_duration_since(self.began);
        self.took.header = Some(took);
        if let Some(link) = &mut self.link {
            link.lease.head_arrived(took);
        }
        let method = request.method;
        let record = record_of(request);
        let status = record.head.status;
        let current = record.current();
        current.header_time = Some(took);
        current.status = status;
        let Some(bit) = NextUpstream::of_status(status) else {
            self.learn(request, Moment::Head);
            return Ok(());
        };
        let another = self.selection.tries() > 1
            && self.settings.next_upstream.has(self.reasons(bit, method))
            && !(self.transmit.has_begun() && self.transmit.is_streamed())
            && !self.is_out_of_time();
        if another {
            return Err(Failure::Status(status));
        }
        self.learn(request, Moment::Head);
        Ok(())
    }

    fn learn(&self, request: &mut Request, at: Moment) {
        if let Some(link) = &self.link {
            self.sticky.learn(
                request,
                &self.group,
                self.selection.state(),
                link.lease.peer(),
                at,
            );
        }
    }

    /// The reasons that `next_upstream` must have for another try.
    fn reasons(&self, bit: u32, method: Method) -> u32 {
        let once_only = matches!(method, Method::Post | Method::Lock | Method::Patch);
        if once_only && self.transmit.has_begun() {
            bit | NextUpstream::NON_IDEMPOTENT
        } else {
            bit
        }
    }

    fn is_out_of_time(&self) -> bool {
        let limit = self.settings.next_upstream_timeout;
        !limit.is_zero() && rt::now().saturating_duration_since(self.first_began) >= limit
    }

    /// Ends a try that failed. `Ok` when there is to be another.
    fn next(&mut self, request: &mut Request, failure: Failure) -> Result<(), Stop> {
        let mut reused = false;
        if let Some(Link { lease, connection }) = self.link.take() {
            reused = connection.is_reused();
            drop(connection);
            self.release(request, lease, judge(&failure));
        }
        if let Some(choosing) = &mut self.choosing {
            choosing.failed(&mut self.selection);
        }
        let (bit, status) = match failure {
            Failure::Final(status) => {
                let current = record_of(request).current();
                current.end(self.began);
                // That the client left says nothing of the server.
                if status != internal_status::CLIENT_CLOSED {
                    current.status = status;
                }
                return Err(Stop::Status(status));
            }
            Failure::TimedOut(doing) => {
                request.error(format_args!("upstream timed out {TIMED_OUT} while {doing}"));
                (NextUpstream::TIMEOUT, 504)
            }
            Failure::Broken | Failure::Unseen => (NextUpstream::ERROR, 502),
            Failure::InvalidHeader => (NextUpstream::INVALID_HEADER, 502),
            Failure::Status(status) => (
                NextUpstream::of_status(status).unwrap_or(NextUpstream::ERROR),
                status,
            ),
            Failure::NoPeer(why) => (
                NextUpstream::ERROR,
                if why == NoPeer::QueueFull { 503 } else { 502 },
            ),
        };
        if reused && matches!(failure, Failure::Broken | Failure::Unseen) {
            self.selection.grant_try();
        }
        let began = self.began;
        let current = record_of(request).current();
        current.status = status;
        current.end(began);
        let another = !matches!(failure, Failure::NoPeer(_))
            && self.selection.tries() > 0
            && self.settings.next_upstream.has(match failure {
                Failure::Unseen => bit,
                _ => self.reasons(bit, request.method),
            })
            && !(self.transmit.has_begun() && self.transmit.is_streamed())
            && !self.is_out_of_time();
        if !another {
            if status == 503 && matches!(failure, Failure::NoPeer(_)) {
                request.out.fields.set(b"Retry-After", b"1");
            }
            return Err(Stop::Failed(status, bit));
        }
        self.transmit.rewind();
        Ok(())
    }

    fn release(&mut self, request: &Request, lease: Lease, verdict: Verdict) {
        let times = self.times();
        let outcome = match verdict {
            Verdict::Failed => PeerOutcome::Failed(times),
            Verdict::Next => PeerOutcome::Next(times),
            Verdict::Ok => PeerOutcome::Ok(times),
            Verdict::Unknown => return drop(lease),
        };
        if self.selection.release(lease, outcome).disabled {
            request.log(Level::Warn, format_args!("upstream server temporarily disabled while reading response header from upstream"));
        }
    }

    fn times(&self) -> Times {
        Times {
            response: Some(rt::now().saturating_duration_since(self.began)),
            ..self.took
        }
    }

    /// Sends acknowledgements that the peer waits for, if the socket takes them at once. Otherwise they are too late: the
    /// connection is not used again.
    fn send_control(&mut self) -> bool {
        let mut control = Vec::new();
        self.protocol.take_control(&mut control);
        let Some(link) = self.link.as_ref().filter(|_| !control.is_empty()) else {
            return control.is_empty();
        };
        matches!(link.connection.stream.try_write(&control), Ok(n) if n == control.len())
    }

    /// Ends the exchange when its response is over. `reusable` says that nothing more can come on the connection.
    pub(super) fn finish(&mut self, request: &mut Request, reusable: bool) {
        let began = self.began;
        let record = record_of(request);
        // A tunnel has counted more than the request.
        record.current().bytes_sent = record.current().bytes_sent.max(self.transmit.sent());
        record.current().end(began);
        self.learn(request, Moment::End);
        let reusable = reusable && self.transmit.is_done() && self.send_control();
        let Some(Link {
            lease,
            mut connection,
        }) = self.link.take()
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
        self.release(request, lease, Verdict::Ok);
    }
}

/// What a failed or finished try says of the peer.
enum Verdict {
    Ok,
    Failed,
    Next,
    /// Nothing: the client left.
    Unknown,
}

fn judge(failure: &Failure) -> Verdict {
    match failure {
        Failure::Status(403 | 404) => Verdict::Next,
        Failure::Final(_) | Failure::NoPeer(_) => Verdict::Unknown,
        Failure::Broken
        | Failure::Unseen
        | Failure::TimedOut(_)
        | Failure::InvalidHeader
        | Failure::Status(_) => Verdict::Failed,
    }
}

/// Reads the content of a request, unless it is to be sent while it is read.
async fn read_content(request: &mut Request, content: RequestContent) -> Result<(), Stop> {
    let read = if content != RequestContent::Streamed {
        body_reader::read(request).await
    } else if has_arrived(request) {
        body_reader::read_arrived(request).await
    } else {
        Ok(())
    };
    read.map_err(Stop::Status)
}

/// The group that a target made of variables means.
async fn find_group(
    request: &mut Request,
    target: Target,
    client: &Presence,
    watch: bool,
) -> Result<Arc<Group>, Stop> {
    match while_client_stays(client, watch, super::target::group(request, target)).await {
        Ok(group) => group.map_err(Stop::Status),
        Err(ClientLeft) => {
            request.log(
                Level::Info,
                format_args!("client prematurely closed connection while resolving upstream"),
            );
            Err(Stop::Status(internal_status::CLIENT_CLOSED))
        }
    }
}

/// The request's record. Every exchange makes sure that there is one before its first try.
pub(super) fn record_of(request: &mut Request) -> &mut Record {
    request.upstream.get_or_make()
}

/// The client is gone.
pub(crate) struct ClientLeft;

/// Waits for `future`, but not for longer than the client does.
pub(crate) async fn while_client_stays<T>(
    client: &Presence,
    watch: bool,
    future: impl Future<Output = T>,
) -> Result<T, ClientLeft> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        match watch && client.poll_left(context).is_ready() {
            true => Poll::Ready(Err(ClientLeft)),
            false => Poll::Pending,
        }
    })
    .await
}

fn client_left(request: &Request) -> Failure {
    request.log(
        Level::Info,
        format_args!("client prematurely closed connection, so upstream connection is closed too while sending request to upstream"),
    );
    Failure::Final(internal_status::CLIENT_CLOSED)
}

fn no_peer(request: &mut Request, group: &Group, why: NoPeer) -> Failure {
    record_of(request).current().peer = Some(PeerName::Group(group.name().to_owned()));
    let what = match why {
        NoPeer::NoneAlive | NoPeer::Busy => "no live upstreams",
        NoPeer::QueueFull => "upstream queue is full",
        NoPeer::QueueTimeout => "upstream queue timed out",
    };
    request.error(format_args!("{what} while connecting to upstream"));
    Failure::NoPeer(why)
}

fn log_connect_error(request: &Request, address: &Address, error: &io::Error) {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable};
    let usual = matches!(
        error.kind(),
        ConnectionRefused | ConnectionReset | HostUnreachable | NetworkUnreachable
    );
    let level = if usual { Level::Error } else { Level::Crit };
    let error = Errno(error);
    if address.is_unix() {
        request.log(
            level,
            format_args!("connect() to {address} failed{error} while connecting to upstream"),
        );
    } else {
        request.log(
            level,
            format_args!("connect() failed{error} while connecting to upstream"),
        );
    }
}

/// The address of `bind` for this request.
fn local_address(request: &mut Request, settings: &Settings) -> Option<Address> {
    let bind = settings.bind.as_ref()?;
    let text = request.value(&bind.address);
    if text.is_empty() {
        return None;
    }
    let address = super::parse_local_address(&text);
    if address.is_none() {
        request.error(format_args!("invalid local address \"{text}\""));
    }
    address
}

/// Whether all of a request's content is here already, and fits into its buffer: then nothing is gained by streaming it,
/// and it can be sent to another peer if the first one fails.
fn has_arrived(request: &Request) -> bool {
    if request.body.is_complete() {
        return true;
    }
    let core = &request.site.location(request.location).core;
    if let Some(lane) = &request.lane {
        return lane.has_all(core.client_body_buffer_size);
    }
    let input = request.client.input.borrow();
    match request.body.announced_length() {
        Some(length) => length <= core.client_body_buffer_size && length <= input.len() as u64,
        None => input.len() as u64 <= core.client_body_buffer_size && input.ends_with(b"0\r\n\r\n"),
    }
}

/// What the head shall announce, and where content comes from.
fn describe_content(request: &Request, content: RequestContent) -> (Content, ContentSource) {
    if content == RequestContent::Dropped {
        return (Content::None, ContentSource::None);
    }
    let body = &request.body;
    if !body.is_complete() {
        let announced = body
            .announced_length()
            .map_or(Content::Unknown, Content::Length);
        return (announced, ContentSource::Client);
    }
    if body.length() == 0 {
        // A client that says so sends no content: `Content-Length: 0`, or chunks or frames without any.
        let fields = &request.head.wire.fields;
        let says_so = body.has_come()
            || fields.has(proto::Known::ContentLength)
            || fields.has(proto::Known::TransferEncoding);
        let announced = if says_so && !request.is_subrequest() {
            Content::Length(0)
        } else {
            Content::None
        };
        return (announced, ContentSource::None);
    }
    let source = match body.file() {
        Some(file) => ContentSource::File(Rc::clone(file), body.length()),
        None => ContentSource::Memory,
    };
    (Content::Length(body.length()), source)
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

/// Up to this much content is copied out of the buffer it came in, in bytes.
const COPIED: usize = 4096;

/// Room for the head of a usual request, in bytes.
const FIRST_CAPACITY: usize = 1024;
