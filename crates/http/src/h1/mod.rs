//! An HTTP/1 client connection: requests in, responses out, one after the other (RFC 9112).
//!
//! One task serves a connection from its first byte to its last. It reads a head, hands the request to the engine,
//! sends what comes of it and begins again. Requests that a client sends ahead wait in the input until their turn.

pub mod body;
pub mod head;
mod lingering;
pub mod sender;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use proto::Known;
use proto::fields::Fields;
use proto::h1::request::{InvalidHeaders, Underscores};
use proto::h1::{Framing, Limits, Method, Parser, Reject, RejectKind, Status};
use rt::error_log::{Errno, Level};

use crate::body::BodyError;
use crate::client::{Asked, Client};
use crate::counters::{Stage, Staged};
use crate::engine::HttpLoop;
use crate::request::{Request, RequestHead, Uri};
use crate::site::{ServerId, Site};
use crate::{listen, log_phase, serve};
use sender::{SendError, Sender};

/// How much is read at once when the head's buffers are small, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// An idle connection keeps no more input memory than this, in bytes.
const IDLE_INPUT: usize = 4 * 1024;

/// After so many requests that were sent ahead, others have their turn.
const PIPELINED_IN_A_ROW: u32 = 16;

/// Serves a connection until it ends.
pub async fn serve_connection(engine: Rc<HttpLoop>, client: Rc<Client>) {
    let mut connection = Connection {
        sender: Sender::new(Rc::clone(&client)),
        parser: Parser::new(),
        head: Rc::default(),
        variables: Rc::default(),
        timer: rt::Timer::new(),
        path: Vec::new(),
        fields: Fields::new(),
        pipelined: false,
        staged: Staged::new(&engine.counters),
        engine,
        client,
    };
    let mut in_a_row = 0;
    loop {
        match connection.one_request().await {
            Next::Request if connection.pipelined => {
                in_a_row += 1;
                if in_a_row % PIPELINED_IN_A_ROW == 0 {
                    rt::yield_now().await;
                }
            }
            Next::Request => {}
            Next::Close => {
                let (engine, client) = (&connection.engine, &connection.client);
                return engine.debug_client(client, format_args!("close http connection"));
            }
            Next::Linger(core) => return lingering::close(&connection.client, &core).await,
            Next::Leave => return connection.engine.send_away(&connection.client),
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
    parser: Parser,
    /// The head of the last request, to be filled again.
    head: Rc<RequestHead>,
    /// The last request's values of variables, likewise.
    variables: Rc<crate::request::Variables>,
    timer: rt::Timer,
    /// The memory of the last request's path.
    path: Vec<u8>,
    /// The memory of the last response's header fields.
    fields: Fields,
    /// The present request was there before the response to the one before it was sent.
    pipelined: bool,
    /// Where the connection is counted.
    staged: Staged,
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

/// How reading a head ended when it did not bring one.
enum NoHead {
    /// The client is gone, or its time between requests is over: nothing to say.
    Quiet,
    /// The time for the head is over: 408.
    TimedOut,
    /// The head is bad.
    Rejected(Reject),
    /// None has begun, and the connection goes to another loop or process.
    Leaving,
}

impl Connection {
    async fn one_request(&mut self) -> Next {
        let site = self.engine.site();
        self.refresh_endpoint(&site);
        let mut head = self.empty_head();
        let wire = Rc::get_mut(&mut head).expect("a head that was just made has one owner");
        let outcome = self.read_head(&site, wire).await;
        // A reload may have come while the connection was idle: the request belongs to the new configuration.
        let site = self.engine.site();
        let mut request = match outcome {
            Err(NoHead::Quiet) => return Next::Close,
            Err(NoHead::Leaving) => return Next::Leave,
            Err(other) => {
                // A request line without a version gets a response without a head, a bad one too.
                let simple = matches!(&other, NoHead::Rejected(reject) if reject.kind == RejectKind::InvalidHttp09Method);
                Rc::get_mut(&mut head)
                    .expect("nobody has seen this head yet")
                    .rejected = !simple;
                return self.refuse(site, head, other).await;
            }
            Ok(()) => self.begin(site, head),
        };
        if let Err(reject) = self.check(&mut request) {
            let status = reject.status();
            let line = reject.log_line(&request.head.wire);
            request.log(
                Level::Info,
                format_args!("{} while {}", bstr::BStr::new(&line), reject.action()),
            );
            request.flow.close = true;
            serve::refuse(&mut request, status).await;
        } else {
            serve::serve(&mut request).await;
            if lingering::discard_what_came(&mut request).await.is_err() {
                request.flow.close = true;
                serve::refuse(&mut request, 400).await;
            }
        }
        self.respond(&mut request).await
    }

    fn empty_head(&mut self) -> Rc<RequestHead> {
        let mut head = std::mem::take(&mut self.head);
        match Rc::get_mut(&mut head) {
            Some(known) => {
                known.clear();
                head
            }
            None => Rc::default(),
        }
    }

    /// Points the client at its listening address in the present configuration.
    fn refresh_endpoint(&self, site: &Site) {
        if self.client.generation.replace(site.generation) == site.generation {
            return;
        }
        let local = || {
            self.client
                .stream
                .socket()
                .local_addr()
                .ok()
                .and_then(|address| address.ip())
        };
        // When its address is no longer listened on, the connection ends as it began.
        if let Some(endpoint) = listen::endpoint_of(&site.endpoints, &self.client.socket, local) {
            *self.client.endpoint.borrow_mut() = Arc::clone(endpoint);
        }
    }

    /// Reads until a head is complete.
    async fn read_head(&mut self, site: &Rc<Site>, head: &mut RequestHead) -> Result<(), NoHead> {
        let endpoint = Arc::clone(&self.client.endpoint.borrow());
        let mut server = endpoint.default_server;
        let mut limits = limits_of(site, server, endpoint.chooses());
        let first = self.client.requests.get() == 0;
        self.timer.set(self.first_wait(site, server, first));
        let mut started = false;
        self.client.idle.begin(rt::now());
        self.staged.enter(Stage::Waiting);
        self.pipelined = !first && !self.client.input.borrow().is_empty();
        if self.client.idle.asked() == Asked::Leave {
            return Err(NoHead::Leaving);
        }
        loop {
            if !self.client.input.borrow().is_empty() {
                if !started {
                    started = true;
                    self.staged.enter(Stage::Reading);
                    self.client.idle.end();
                    self.timer
                        .set(site.server(server).core.client_header_timeout);
                }
                let input = self.client.input.borrow();
                match self.parser.parse(&input, &limits, &mut head.wire) {
                    Ok(Status::Complete(used)) => {
                        drop(input);
                        self.client.input.borrow_mut().drain(..used);
                        self.parser.reset();
                        return Ok(());
                    }
                    Ok(Status::Host(range)) => {
                        server = server_of_host(&endpoint, &input[range]);
                        limits = limits_of(site, server, false);
                        continue;
                    }
                    Ok(Status::Partial) => {}
                    Err(reject) => {
                        self.parser.reset();
                        return Err(NoHead::Rejected(reject));
                    }
                }
            }
            self.read_more(started, first).await?;
        }
    }

    /// How long the client may wait before it sends the first byte of a request.
    fn first_wait(&self, site: &Rc<Site>, server: ServerId, first: bool) -> Duration {
        let server = site.server(server);
        if first {
            server.core.client_header_timeout
        } else {
            self.client.keepalive_timeout.get()
        }
    }

    async fn read_more(&mut self, started: bool, first: bool) -> Result<(), NoHead> {
        let waiting = !started && !first;
        if waiting {
            let mut input = self.client.input.borrow_mut();
            if input.capacity() > IDLE_INPUT {
                *input = Vec::new();
            }
        }
        let client = &self.client;
        let timer = &self.timer;
        let scratch = &self.engine.scratch;
        let result = std::future::poll_fn(|context| {
            // Read into the loop's own buffer first: a connection keeps only as much memory as its requests need.
            let mut scratch = scratch.borrow_mut();
            scratch.clear();
            if let Poll::Ready(result) =
                client
                    .stream
                    .poll_read_into(context, &mut scratch, READ_SIZE)
            {
                client.input.borrow_mut().extend_from_slice(&scratch);
                return Poll::Ready(Ok(result));
            }
            let asked = match started {
                true => Poll::Pending,
                false => client.idle.poll_asked(context),
            };
            if asked == Poll::Ready(Asked::Leave) {
                return Poll::Ready(Err(NoHead::Leaving));
            }
            if asked.is_ready() {
                let end = client
                    .idle
                    .since()
                    .map(|since| since + client.keepalive_min_timeout.get());
                match end.filter(|end| *end > rt::now()) {
                    Some(end) => timer.set_deadline(end),
                    None => return Poll::Ready(Err(NoHead::Quiet)),
                }
            }
            timer.poll_expired(context).map(|()| {
                Err(if waiting {
                    NoHead::Quiet
                } else {
                    NoHead::TimedOut
                })
            })
        })
        .await?;
        match result {
            Ok(0) => {
                self.log_early_end(started, first);
                Err(NoHead::Quiet)
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => {
                let what = if waiting {
                    "while keepalive"
                } else {
                    "while waiting for request"
                };
                self.engine.log_client(
                    Level::Info,
                    &self.client,
                    format_args!("recv() failed{} {what}", Errno(&error)),
                );
                Err(NoHead::Quiet)
            }
        }
    }

    fn log_early_end(&self, started: bool, first: bool) {
        if started {
            self.engine.log_client(
                Level::Info,
                &self.client,
                format_args!(
                    "client prematurely closed connection while reading client request line"
                ),
            );
        } else if first {
            self.engine.log_client(
                Level::Info,
                &self.client,
                format_args!("client closed connection while waiting for request"),
            );
        }
    }

    /// A request of a complete head, at the server that its host names.
    fn begin(&mut self, site: Rc<Site>, head: Rc<RequestHead>) -> Request {
        self.client.requests.set(self.client.requests.get() + 1);
        self.engine.counters.requests.add(1);
        self.staged.enter(Stage::Writing);
        let server = self.client.endpoint.borrow().default_server;
        let mut request = Request::new(site, Rc::clone(&self.client), head, server);
        request.out.fields = std::mem::take(&mut self.fields);
        self.variables.clear();
        if Rc::strong_count(&self.variables) == 1 {
            request.variables = Rc::clone(&self.variables);
        }
        request.method = request.head.wire.method;
        if rt::error_log::debug_is_on() {
            debug_head(&request);
        }
        request.flow.header_only = request.method == Method::Head;
        request.flow.pipelined = self.pipelined;
        request
    }

    /// The checks that need the whole head, and what follows from it: server, path, content.
    fn check(&mut self, request: &mut Request) -> Result<(), Reject> {
        choose_server(request)?;
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
        set_uri(request, std::mem::take(&mut self.path))?;
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
            request.ledger.responded = Some(rt::now());
            let framing = head::write(request, keepalive, &mut self.sender.out);
            if rt::error_log::debug_is_on() {
                debug_response(request, &self.sender.out);
            }
            let sent = match self.sender.send_at_once(request, framing) {
                Some(()) => Ok(()),
                None => self.sender.send(request, framing).await,
            };
            self.after_response(request, framing, sent).await
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
        self.path = std::mem::take(&mut request.uri.path).into();
        self.fields = std::mem::take(&mut request.out.fields);
        self.fields.clear();
        self.head = Rc::clone(&request.head);
        next
    }

    fn may_keep_alive(&self, request: &Request) -> bool {
        let core = &request.site.location(request.location).core;
        !request.flow.close
            && request.head.wire.wants_keep_alive()
            && !core.keepalive_timeout.is_zero()
            && self.client.requests.get() < core.keepalive_requests as u64
            && rt::now().duration_since(self.client.accepted) <= core.keepalive_time
            && (!self.client.idle.is_closing() || !core.keepalive_min_timeout.is_zero())
            && !disabled_for_browser(request, core.keepalive_disable)
    }

    async fn after_response(
        &mut self,
        request: &mut Request,
        framing: head::Framing,
        sent: Result<(), SendError>,
    ) -> Next {
        let site = Rc::clone(&request.site);
        let core = &site.location(request.location).core;
        if let Err(error) = sent {
            return self.broken_response(request, framing, error);
        }
        if request.flow.upgraded {
            return Next::Close;
        }
        let unread = !request.body.is_complete();
        if !request.flow.close {
            if unread && !lingering::discard(request).await {
                return Next::Linger(Arc::clone(core));
            }
            self.client.keepalive_timeout.set(self.idle_timeout(core));
            self.client
                .keepalive_min_timeout
                .set(core.keepalive_min_timeout);
            return Next::Request;
        }
        use crate::core::location::Lingering;
        let pending = unread || !self.client.input.borrow().is_empty();
        match core.lingering_close {
            Lingering::Always => Next::Linger(Arc::clone(core)),
            Lingering::On if pending && !request.flow.no_lingering => {
                Next::Linger(Arc::clone(core))
            }
            Lingering::On | Lingering::Off => Next::Close,
        }
    }

    fn idle_timeout(&self, core: &crate::core::LocationConf) -> Duration {
        if self.client.idle.is_closing() {
            core.keepalive_min_timeout
        } else {
            core.keepalive_timeout
        }
    }

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
                    request.log(Level::Alert, format_args!("response was cut: {error}"));
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
    async fn refuse(&mut self, site: Rc<Site>, head: Rc<RequestHead>, why: NoHead) -> Next {
        let mut request = self.begin(site, head);
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
                reject.status()
            }
        };
        if status == 408 {
            // nginx closes without a word: a client that says nothing gets nothing, and a log line tells of it.
            request.out.status = 408;
            log_phase::end(&mut request).await;
            return Next::Close;
        }
        serve::refuse(&mut request, status).await;
        self.respond(&mut request).await
    }
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

fn limits_of(site: &Rc<Site>, server: ServerId, pause_at_host: bool) -> Limits {
    let core = &site.server(server).core;
    Limits {
        client_header_buffer_size: core.client_header_buffer_size as usize,
        large_client_header_buffers: core.large_buffers as usize,
        large_client_header_buffer_size: core.large_buffer_size as usize,
        max_headers: core.max_headers as usize,
        underscores_in_headers: if core.underscores_in_headers {
            Underscores::Allowed
        } else {
            Underscores::Invalid
        },
        invalid_headers: if core.ignore_invalid_headers {
            InvalidHeaders::Ignored
        } else {
            InvalidHeaders::Kept
        },
        pause_at_host,
    }
}

fn server_of_host(endpoint: &crate::listen::Endpoint, value: &[u8]) -> ServerId {
    let Ok(host) = proto::host::parse(value) else {
        return endpoint.default_server;
    };
    let mut name = Vec::with_capacity(host.name.len());
    host.write_lowercase(&mut name);
    endpoint
        .names
        .find(name.as_slice().into())
        .map_or(endpoint.default_server, |(server, _)| server)
}

/// Finds the host that the request names, and the server that answers to it.
fn choose_server(request: &mut Request) -> Result<(), Reject> {
    let invalid = || Reject::new(RejectKind::InvalidHost);
    let head = Rc::get_mut(&mut request.head)
        .expect("a request that is being read is alone with its head");
    let field = head.wire.fields.get_known(Known::Host);
    if let Some(value) = head.wire.authority().or(field) {
        let host = proto::host::parse(value).map_err(|_| invalid())?;
        host.write_lowercase(&mut head.host);
        head.port = host.port;
        if head.wire.authority().is_some()
            && field.is_some_and(|field| proto::host::parse(field).is_err())
        {
            return Err(invalid());
        }
    }
    find_server(request);
    Ok(())
}

/// Enters the server that answers to the request's host.
fn find_server(request: &mut Request) {
    let endpoint = Arc::clone(&request.client.endpoint.borrow());
    if endpoint.names.is_empty() {
        return;
    }
    let head = Rc::clone(&request.head);
    let host = head.host.as_slice();
    if let Some((server, pattern)) = endpoint.names.find(host.into()) {
        request.server = server;
        request.enter_server();
        if let Some(pattern) = pattern {
            request.matches(pattern, host);
        }
    }
}

fn set_uri(request: &mut Request, mut path: Vec<u8>) -> Result<(), Reject> {
    let site = Rc::clone(&request.site);
    let slashes = match site.server(request.server).core.merge_slashes {
        true => proto::uri::Slashes::Merge,
        false => proto::uri::Slashes::Keep,
    };
    let head = Rc::clone(&request.head);
    let target = head.wire.target();
    path.clear();
    let parsed = proto::uri::normalize(target, slashes, &mut path)
        .map_err(|_| Reject::new(RejectKind::InvalidUri))?;
    request.uri = Uri {
        path: path.into(),
        args: target[parsed.args.clone()].into(),
        original: parsed.valid_unparsed,
    };
    Ok(())
}
