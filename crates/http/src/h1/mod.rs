//! An HTTP/1 client connection: requests in, responses out, one after the other (RFC 9112).
//!
//! One task serves a connection from its first byte to its last. It reads a head, hands the request to the engine,
//! sends what comes of it and begins again. Requests that a client sends ahead wait in the input until their turn.

pub mod body;
pub mod head;
pub(crate) mod host;
pub(crate) mod lingering;
mod reading;
pub mod sender;
pub(crate) mod spare;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proto::Known;
use proto::h1::{Framing, Method, Reject, RejectKind};
use rt::error_log::{Errno, Level};

use crate::body::{Body, BodyError};
use crate::client::{Asked, Client};
use crate::engine::HttpLoop;
use crate::listen::Endpoint;
use crate::request::{Memory, Request};
use crate::site::{ServerId, Site};
use crate::{log_phase, serve};
use host::LastHost;
use net::counters::{Stage, Staged};
use reading::{NoHead, Reading};
use sender::{SendError, Sender};
use spare::Room;

/// After so many requests that were sent ahead, others have their turn.
const PIPELINED_IN_A_ROW: u32 = 16;

/// Serves a connection until it ends.
pub async fn serve_connection(engine: Rc<HttpLoop>, client: Rc<Client>) {
    let mut connection = Connection::new(engine, client);
    let mut in_a_row = 0;
    loop {
        match connection.one_request().await {
            Next::Request if connection.reading.is_pipelined() => {
                in_a_row += 1;
                if in_a_row % PIPELINED_IN_A_ROW == 0 {
                    rt::yield_now().await;
                }
            }
            Next::Request => {}
            Next::Close => {
                let (engine, client) = (&connection.engine, &connection.client);
                client.stream.say_goodbye();
                return engine.debug_client(client, format_args!("close http connection"));
            }
            Next::Linger(core) => {
                return lingering::close(&connection.client, &core, u64::MAX).await;
            }
            Next::Leave => {
                let engine = Rc::clone(&connection.engine);
                let client = Rc::clone(&connection.client);
                // `must_stay` and `send_away` need the only reference to the client.
                drop(connection);
                if engine.must_stay(&client) {
                    client.idle.stay();
                    connection = Connection::new(engine, client);
                    continue;
                }
                return engine.send_away(client);
            }
            Next::Reset => {
                // The descriptor goes with the client; how it goes is decided here.
                let _ = connection.client.stream.socket().set_reset_on_close();
                return;
            }
        }
    }
}

struct Connection {
    engine: Rc<HttpLoop>,
    client: Rc<Client>,
    sender: Sender,
    reading: Reading,
    /// The last request, to become the next one; `None` while there is a present one, and before the first.
    request: Option<Box<Room>>,
    last_host: LastHost,
    /// Where the connection is counted.
    staged: Staged,
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A request that was cut short takes everything with it.
        if let Some(mut room) = self.request.take() {
            room.last_host = std::mem::take(&mut self.last_host);
            self.engine.spares.give(room);
        }
    }
}

/// What becomes of the connection.
enum Next {
    /// It serves another request.
    Request,
    /// It closes.
    Close,
    /// It closes after the client had time to read the response.
    Linger(Arc<crate::core::LocationConf>),
    /// It is reset.
    Reset,
    /// It goes to another loop or process.
    Leave,
}

impl Connection {
    fn new(engine: Rc<HttpLoop>, client: Rc<Client>) -> Connection {
        Connection {
            sender: Sender::new(Rc::clone(&client)),
            reading: Reading::default(),
            request: None,
            last_host: LastHost::default(),
            staged: Staged::new(&engine.counters),
            engine,
            client,
        }
    }

    async fn one_request(&mut self) -> Next {
        if !self.refresh_endpoint() {
            return Next::Close;
        }
        let mut room = self.request.take().unwrap_or_else(|| self.take_spare());
        let Room {
            request, memory, ..
        } = &mut *room;
        let request = request.get_or_insert_with(|| self.first_request(memory));
        let next = self.serve_request(request).await;
        request.end();
        self.request = Some(room);
        next
    }

    fn first_request(&self, memory: &mut Memory) -> Request {
        let server = self.client.first_server();
        let client = Rc::clone(&self.client);
        Request::in_memory(memory, self.engine.site(), client, server)
    }

    /// Begins with what another connection has left.
    fn take_spare(&mut self) -> Box<Room> {
        let mut room = self.engine.spares.take();
        self.last_host = std::mem::take(&mut room.last_host);
        room
    }

    async fn serve_request(&mut self, request: &mut Request) -> Next {
        let outcome = self.read_head(request).await;
        // A reload may have come while the connection was idle: the request belongs to the new configuration.
        let is_listened_on = self.refresh_endpoint();
        match outcome {
            Ok(()) if !is_listened_on => return Next::Close,
            Err(NoHead::Quiet) => return Next::Close,
            Err(NoHead::Leaving) => return Next::Leave,
            Err(other) => return self.refuse(request, other).await,
            Ok(()) => self.begin(request),
        }
        if let Err(reject) = self.check(request) {
            let status = reject.status();
            let line = reject.log_line(&request.head.wire);
            request.log(
                Level::Info,
                format_args!("{} while {}", bstr::BStr::new(&line), reject.action()),
            );
            request.flow.close = true;
            serve::refuse(request, status).await;
        } else {
            serve::serve(request).await;
            let was_refused = request.body.restore();
            if !was_refused && lingering::discard_what_came(request).await.is_err() {
                request.flow.close = true;
                serve::refuse(request, 400).await;
            }
        }
        self.respond(request).await
    }

    /// Points the client at its listening address in the present configuration, if it has one there.
    #[inline]
    fn refresh_endpoint(&self) -> bool {
        self.client.generation.get() == self.engine.generation()
            || refresh_endpoint(&self.client, &self.engine.site())
    }

    /// Makes a complete head a request to the default server of its address.
    fn begin(&mut self, request: &mut Request) {
        self.client.requests.set(self.client.requests.get() + 1);
        self.engine.counters.requests.add(1);
        self.staged.enter(Stage::Writing);
        let server = self.client.first_server();
        self.engine.with_site(|site| request.renew(site, server));
        request.method = request.head.wire.method;
        if rt::error_log::debug_is_on() {
            debug_head(request);
        }
        request.flow.header_only = request.method == Method::Head;
        request.flow.pipelined = self.reading.is_pipelined();
    }

    /// The checks that need the whole head, and what follows from it: server, path, content.
    fn check(&mut self, request: &mut Request) -> Result<(), Reject> {
        self.check_head(request)
            .map_err(|reject| judge_target_first(request, reject))
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), Reject> {
        // The path comes first: an error page of what is refused here may ask for it.
        let uri = set_uri(request);
        self.last_host.choose_server(request)?;
        let takes_connect = request.site.server(request.server).takes_connect;
        let framing = request.head.wire.check(takes_connect)?;
        for line in request.head.wire.ignored() {
            request.log(
                Level::Info,
                format_args!(
                    "client sent invalid header line: \"{}\"",
                    bstr::BStr::new(line)
                ),
            );
        }
        uri?;
        if framing == Framing::None {
            return Ok(());
        }
        let expectation = request.head.wire.fields.get_known(Known::Expect);
        let expects = request.head.wire.version >= proto::h1::Version::HTTP_11
            && expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        if let Some(input) = body::Input::new(Rc::clone(&self.client), framing, expects) {
            request.body = crate::body_reader::RequestBody::from_input(Box::new(input));
        }
        Ok(())
    }

    /// Sends the response and ends the request.
    async fn respond(&mut self, request: &mut Request) -> Next {
        let next = if request.flow.silent {
            silent_end(request)
        } else {
            let keepalive = self.may_keep_alive(request);
            self.avoid_delays(request);
            request.ledger.responded = Some(rt::now());
            let out = self.sender.begin();
            let framing = head::write(request, keepalive, out);
            if rt::error_log::debug_is_on() {
                debug_response(request, out);
            }
            let sent = match self.sender.send_at_once(request, framing) {
                Some(()) => Ok(()),
                None => self.sender.send(request, framing).await,
            };
            let next = match sent {
                Ok(()) => self.after_response(request),
                Err(error) => self.broken_response(request, framing, error),
            };
            // The next request begins where the content of this one ends.
            match next {
                Next::Request if !request.body.is_complete() => {
                    match lingering::discard(request).await {
                        true => Next::Request,
                        false => Next::Linger(request.core()),
                    }
                }
                next => next,
            }
        };
        if log_phase::is_wanted(request) {
            log_phase::end(request).await;
        }
        match &next {
            Next::Request => request.debug(format_args!("set http keepalive handler")),
            Next::Linger(_) => request.debug(format_args!("http lingering close")),
            Next::Close | Next::Reset | Next::Leave => {
                request.debug(format_args!("http close request"))
            }
        }
        // What modules hold for a request (a place among those of `limit_conn`) ends with it, not with the connection.
        request.variables.release_shared();
        if let Some(farewell) = request.flow.farewell.take() {
            farewell.await;
        }
        next
    }

    /// `tcp_nodelay`, where it makes a difference: a connection's first response that is written in one go does not need
    /// the system call.
    fn avoid_delays(&self, request: &Request) {
        let small_writes = self.client.requests.get() > 1
            || self.client.stream.is_tls()
            || matches!(request.out.body, Body::Stream(_));
        if small_writes && request.core().delivery.tcp_nodelay {
            self.client.send_without_delay();
        }
    }

    fn may_keep_alive(&self, request: &Request) -> bool {
        let core = &request.site.location(request.location).core;
        !request.flow.close
            && request.head.wire.wants_keep_alive()
            && !core.keepalive_timeout.is_zero()
            && self.client.requests.get() < core.keepalive_requests as u64
            && rt::now().duration_since(self.client.accepted) <= core.keepalive_time
            && (!self.is_ending() || !core.keepalive_min_timeout.is_zero())
            && !disabled_for_browser(request, core.keepalive_disable)
    }

    /// Whether the connection ends with the server: it is not among those that go elsewhere.
    fn is_ending(&self) -> bool {
        match self.client.idle.asked() {
            Asked::Close => true,
            Asked::Leave => false,
            Asked::Nothing => self.engine.is_stopping(),
        }
    }

    /// What becomes of the connection when a response was sent to its end.
    fn after_response(&self, request: &Request) -> Next {
        let core = &request.site.location(request.location).core;
        if request.flow.upgraded {
            return Next::Close;
        }
        if !request.flow.close {
            self.client.keepalive_timeout.set(self.idle_timeout(core));
            self.client
                .keepalive_min_timeout
                .set(core.keepalive_min_timeout);
            return Next::Request;
        }
        use crate::core::location::Lingering;
        let pending = !request.body.is_complete() || !self.client.input.borrow().is_empty();
        match core.lingering_close {
            Lingering::Always => Next::Linger(Arc::clone(core)),
            Lingering::On if pending && !request.flow.no_lingering => {
                Next::Linger(Arc::clone(core))
            }
            Lingering::On | Lingering::Off => Next::Close,
        }
    }

    fn idle_timeout(&self, core: &crate::core::LocationConf) -> Duration {
        if self.is_ending() {
            core.keepalive_min_timeout
        } else {
            core.keepalive_timeout
        }
    }

    #[cold]
    fn broken_response(&self, request: &Request, framing: head::Framing, error: SendError) -> Next {
        match error {
            SendError::TimedOut => {
                request.log(
                    Level::Info,
                    format_args!("client timed out (110: Connection timed out) while sending response to client"),
                );
                if request
                    .site
                    .location(request.location)
                    .core
                    .reset_timedout_connection
                {
                    return Next::Reset;
                }
            }
            SendError::Client(error) => {
                request.log(
                    Level::Info,
                    format_args!(
                        "send() failed{} while sending response to client",
                        Errno(&error)
                    ),
                );
            }
            SendError::Body(error) => {
                // A producer that stops short has said why itself.
                if !matches!(error, BodyError::Producer | BodyError::Withdrawn) {
                    request.log(
                        Level::Alert,
                        format_args!("response was truncated: {error}"),
                    );
                }
                // The client must be able to tell: the framing is left incomplete, or, where the end of the connection
                // is the end of the content, the connection ends otherwise.
                if framing == head::Framing::UntilClose {
                    return Next::Reset;
                }
            }
        }
        Next::Close
    }

    /// Answers a head that did not become a request.
    async fn refuse(&mut self, request: &mut Request, why: NoHead) -> Next {
        // A request line without a version gets a response without a head, a bad one too.
        let simple = matches!(&why, NoHead::Rejected(reject) if reject.kind == RejectKind::InvalidHttp09Method);
        if let Some(head) = Rc::get_mut(&mut request.head) {
            head.rejected = !simple;
        }
        self.begin(request);
        request.flow.close = true;
        let status = match why {
            NoHead::Quiet | NoHead::Leaving => return Next::Close,
            NoHead::TimedOut => {
                request.log(
                    Level::Info,
                    format_args!(
                        "client timed out (110: Connection timed out) while waiting for request"
                    ),
                );
                if request
                    .site
                    .location(request.location)
                    .core
                    .reset_timedout_connection
                {
                    return Next::Reset;
                }
                408
            }
            NoHead::Rejected(reject) => {
                let line = reject.log_line(&request.head.wire);
                request.log(
                    Level::Info,
                    format_args!("{} while {}", bstr::BStr::new(&line), reject.action()),
                );
                request.flow.no_lingering = !reject.lingers();
                if reject.follows_target() {
                    // The path is there for an error page, if it is one.
                    let _ = set_uri(request);
                }
                reject.status()
            }
        };
        if status == 408 {
            // nginx closes without a word: a client that says nothing gets nothing, and a log line tells of it.
            request.out.status = 408;
            log_phase::end(request).await;
            return Next::Close;
        }
        serve::refuse(request, status).await;
        self.respond(request).await
    }
}

/// Points the client at its listening address in the present configuration. `false`: that does not listen there, so that
/// none of its servers may answer.
pub(crate) fn refresh_endpoint(client: &Client, site: &Site) -> bool {
    if client.generation.get() == site.generation {
        return true;
    }
    let Some(endpoint) = present_endpoint(client, site) else {
        return false;
    };
    client.generation.set(site.generation);
    *client.endpoint.borrow_mut() = Arc::clone(endpoint);
    crate::tls::refresh(client);
    true
}

/// The address that the client came to, if a configuration listens there.
pub(crate) fn present_endpoint<'a>(client: &Client, site: &'a Site) -> Option<&'a Arc<Endpoint>> {
    let local = || {
        let address = client.stream.socket().local_addr().ok();
        client.passed_at.as_ref().or(address)?.ip()
    };
    net::endpoint::endpoint_of(&site.endpoints, &client.socket, local)
}

/// The head of a request as the debug log has it.
fn debug_head(request: &Request) {
    let wire = &request.head.wire;
    request.debug(format_args!(
        "http request line: \"{}\"",
        bstr::BStr::new(wire.request_line())
    ));
    request.debug(format_args!(
        "http uri: \"{}\"",
        bstr::BStr::new(wire.target())
    ));
    for (name, value) in wire.fields.iter() {
        request.debug(format_args!(
            "http header: \"{}: {}\"",
            bstr::BStr::new(name),
            bstr::BStr::new(value)
        ));
    }
    request.debug(format_args!("http header done"));
}

/// The head of its response, which stands at the end of `out`.
fn debug_response(request: &Request, out: &[u8]) {
    use bstr::ByteSlice;
    for line in out.lines().filter(|line| !line.is_empty()) {
        request.debug(format_args!("http response header: \"{}\"", line.as_bstr()));
    }
}

fn silent_end(request: &Request) -> Next {
    if request
        .site
        .location(request.location)
        .core
        .reset_timedout_connection
    {
        Next::Reset
    } else {
        Next::Close
    }
}

/// Browsers whose connections nginx does not keep: old Internet Explorers after a POST, Safari.
fn disabled_for_browser(request: &Request, disabled: u32) -> bool {
    const MSIE6: u32 = 1 << 1;
    const SAFARI: u32 = 1 << 2;
    if disabled & (MSIE6 | SAFARI) == 0 {
        return false;
    }
    let Some(agent) = request.head.wire.fields.get_known(Known::UserAgent) else {
        return false;
    };
    let agent = bstr::BStr::new(agent);
    use bstr::ByteSlice;
    if disabled & MSIE6 != 0 && request.method == Method::Post && crate::text::is_msie6(agent) {
        return true;
    }
    disabled & SAFARI != 0
        && agent.contains_str("Safari/")
        && agent.contains_str("Mac OS X")
        && !agent.contains_str("Chrome/")
}

/// Why a request is refused, if its target is judged before anything else, as it came before anything else: one that
/// makes no sense is answered by the server that the connection belongs to, whatever host the fields name.
#[cold]
pub(crate) fn judge_target_first(request: &mut Request, reject: Reject) -> Reject {
    let first = request.client.first_server();
    let slashes = slashes_of(request, first);
    let target = request.head.wire.target();
    let is_bad = reject.kind == RejectKind::InvalidUri
        || proto::uri::normalize(target, slashes, &mut Vec::new()).is_err();
    if !is_bad {
        return reject;
    }
    request.server = first;
    request.enter_server();
    Reject::new(RejectKind::InvalidUri)
}

fn slashes_of(request: &Request, server: ServerId) -> proto::uri::Slashes {
    match request.site.server(server).core.merge_slashes {
        true => proto::uri::Slashes::Merge,
        false => proto::uri::Slashes::Keep,
    }
}

/// Makes the target the request's path and arguments.
pub(crate) fn set_uri(request: &mut Request) -> Result<(), Reject> {
    let slashes = slashes_of(request, request.server);
    let target = request.head.wire.target();
    let Ok(parsed) = proto::uri::normalize(target, slashes, &mut request.uri.path) else {
        request.uri.path.clear();
        request.uri.is_refused = true;
        return Err(Reject::new(RejectKind::InvalidUri));
    };
    request.uri.args.extend_from_slice(&target[parsed.args]);
    request.uri.original = parsed.valid_unparsed;
    Ok(())
}
