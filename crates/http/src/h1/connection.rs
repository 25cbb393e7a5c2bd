//! One HTTP/1 connection: how a request is taken from it, and what becomes of it after the response.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::BStr;
use host::error_log::Level;
use net::counters::{Stage, Staged};
use proto::Known;
use proto::message::{Method, Reject, RejectKind, RequestFraming, ResponseFraming, Version};

use super::body::Input;
use super::head;
use super::lingering;
use super::reading::{NoHead, Reading};
use super::recycled::{RecycledSlots, RequestSlot};
use super::sender::Sender;
use crate::body::Body;
use crate::body_reader::RequestBody;
use crate::byte_stream::ByteStream;
use crate::client::{Client, ConnectionOrder};
use crate::core::Lingering;
use crate::core::LocationConf;
use crate::http_loop::HttpLoop;
use crate::lifecycle::{self, Refusal, RequestCarrier};
use crate::log_phase;
use crate::request::{Request, RequestBuffers};
use crate::sending::SendError;
use crate::virtual_server::LastVirtualServer;

/// See the module's description.
pub(super) struct Connection<'a> {
    pub(super) http: &'a HttpLoop,
    pub(super) client: &'a Rc<Client>,
    pub(super) bytes: &'a Rc<ByteStream>,
    pub(super) reading: Reading,
    /// Where the connection is counted.
    pub(super) staged: Staged,
    sender: Sender,
    /// The last request, to become the next one; `None` while there is a present one, and before the first.
    request: Option<Box<RequestSlot>>,
    last_server: LastVirtualServer,
    /// How the content of the present request is framed, and whether its client waits for `100 Continue`.
    content: (RequestFraming, bool),
    /// Whether reading on after the response may be of use: not if the client sent what is no HTTP.
    may_linger: bool,
    recycled: &'a RecycledSlots,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        // A request that was cut short takes everything with it.
        if let Some(mut slot) = self.request.take() {
            slot.last_server = std::mem::take(&mut self.last_server);
            self.recycled.give(slot);
        }
    }
}

/// What becomes of the connection.
pub(super) enum Next {
    /// It serves another request.
    Request,
    /// It closes.
    Close,
    /// It closes after the client had time to read the response.
    Linger(Arc<LocationConf>),
    /// It is reset.
    Reset,
    /// It goes to another loop or process.
    Leave,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        http: &'a HttpLoop,
        client: &'a Rc<Client>,
        bytes: &'a Rc<ByteStream>,
        recycled: &'a RecycledSlots,
    ) -> Connection<'a> {
        Connection {
            sender: Sender::new(Rc::clone(bytes)),
            reading: Reading::default(),
            request: None,
            last_server: LastVirtualServer::default(),
            staged: Staged::new(&http.counters),
            content: (RequestFraming::None, false),
            may_linger: true,
            http,
            client,
            bytes,
            recycled,
        }
    }

    /// Whether the last request was sent before the response to the one before it.
    pub(super) fn is_pipelined(&self) -> bool {
        self.reading.is_pipelined()
    }

    /// Waits for a request and serves it.
    pub(super) async fn one_request(&mut self) -> Next {
        if !self.http.refresh_endpoint(self.client) {
            return Next::Close;
        }
        let mut slot = self.request.take().unwrap_or_else(|| self.take_slot());
        let RequestSlot {
            request, buffers, ..
        } = &mut *slot;
        let request = request.get_or_insert_with(|| self.first_request(buffers));
        let next = self.serve_request(request).await;
        request.end();
        self.request = Some(slot);
        next
    }

    fn first_request(&self, buffers: &mut RequestBuffers) -> Request {
        let server = self.client.first_server();
        let client = Rc::clone(self.client);
        Request::recycling(buffers, self.http.site(), client, server)
    }

    /// Begins with what another connection has left.
    fn take_slot(&mut self) -> Box<RequestSlot> {
        let mut slot = self.recycled.take();
        self.last_server = std::mem::take(&mut slot.last_server);
        slot
    }

    async fn serve_request(&mut self, request: &mut Request) -> Next {
        let outcome = self.read_head(request).await;
        // A reload may have come while the connection was idle: the request belongs to the new configuration.
        let is_listened_on = self.http.refresh_endpoint(self.client);
        match outcome {
            Ok(()) if !is_listened_on => Next::Close,
            Ok(()) => {
                self.begin(request);
                lifecycle::serve(self, request, Ok(())).await
            }
            Err(NoHead::Quiet) => Next::Close,
            Err(NoHead::Leaving) => Next::Leave,
            Err(NoHead::TimedOut) => self.time_out(request).await,
            Err(NoHead::Rejected(reject)) => self.refuse(request, reject).await,
        }
    }

    /// Makes a complete head a request to the default server of its address.
    fn begin(&mut self, request: &mut Request) {
        self.client.requests.set(self.client.requests.get() + 1);
        self.staged.enter(Stage::Writing);
        lifecycle::begin(self.http, request, self.client.first_server());
        if host::error_log::debug_is_on() {
            debug_head(request);
        }
        request.delivery.pipelined = self.reading.is_pipelined();
    }

    /// The client did not send its head in time.
    async fn time_out(&mut self, request: &mut Request) -> Next {
        self.begin_rejected(request, true);
        request.log(
            Level::Info,
            format_args!("client timed out (110: Connection timed out) while waiting for request"),
        );
        let core = request.core();
        if core.reset_timedout_connection {
            return Next::Reset;
        }
        // nginx closes without a word: a client that says nothing gets nothing, and a log line tells of it.
        request.out.status = 408;
        log_phase::end(request).await;
        Next::Close
    }

    /// Answers a head that did not become a request.
    async fn refuse(&mut self, request: &mut Request, reject: Reject) -> Next {
        // A request line without a version gets a response without a head, a bad one too.
        let is_simple = reject.kind == RejectKind::InvalidHttp09Method;
        self.begin_rejected(request, !is_simple);
        Refusal::Head(reject).log(request, Self::HAS_REQUEST_LINE);
        self.may_linger = reject.lingers();
        if reject.follows_target() {
            // The path is there for an error page, if it is one.
            let _ = lifecycle::set_uri(request);
        }
        lifecycle::refuse(self, request, reject.status()).await
    }

    fn begin_rejected(&mut self, request: &mut Request, rejected: bool) {
        if let Some(head) = Rc::get_mut(&mut request.head) {
            head.rejected = rejected;
        }
        self.begin(request);
        request.delivery.close();
    }

    /// `tcp_nodelay`, where it makes a difference: a connection's first response that is written in one go does not need
    /// the system call.
    fn avoid_delays(&self, request: &Request) {
        let small_writes = self.client.requests.get() > 1
            || self.bytes.transport.is_tls()
            || matches!(request.out.body, Body::Stream(_));
        if small_writes && request.core().delivery.tcp_nodelay {
            self.bytes.send_without_delay();
        }
    }

    fn may_keep_alive(&self, request: &Request) -> bool {
        let core = &request.site.location(request.location).core;
        !request.delivery.must_close()
            && request.head.wire.wants_keep_alive()
            && !core.keepalive_timeout.is_zero()
            && self.client.requests.get() < core.keepalive_requests as u64
            && rt::now().duration_since(self.client.accepted) <= core.keepalive_time
            && (!self.is_ending() || !core.keepalive_min_timeout.is_zero())
            && !disabled_for_browser(request, core.keepalive_disable)
    }

    /// Whether the connection ends with the server: it is not among those that go elsewhere.
    fn is_ending(&self) -> bool {
        match self.client.control.order() {
            ConnectionOrder::Close => true,
            ConnectionOrder::Leave => false,
            ConnectionOrder::None => self.http.is_stopping(),
        }
    }

    fn idle_timeout(&self, core: &crate::core::LocationConf) -> Duration {
        if self.is_ending() {
            core.keepalive_min_timeout
        } else {
            core.keepalive_timeout
        }
    }
}

impl RequestCarrier for Connection<'_> {
    type End = Next;

    const HAS_REQUEST_LINE: bool = true;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), Reject> {
        self.last_server.choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), Refusal> {
        let takes_connect = request.site.server(request.server).takes_connect;
        let framing = request.head.wire.check(takes_connect)?;
        for line in request.head.wire.ignored() {
            request.log(
                Level::Info,
                format_args!("client sent invalid header line: \"{}\"", BStr::new(line)),
            );
        }
        let wire = &request.head.wire;
        let expects = framing != RequestFraming::None
            && wire.version >= Version::HTTP_11
            && wire
                .fields
                .get_known(Known::Expect)
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        self.content = (framing, expects);
        Ok(())
    }

    fn attach_content(&mut self, request: &mut Request) {
        let (framing, expects_continue) = self.content;
        if framing == RequestFraming::None {
            return;
        }
        if let Some(input) = Input::new(Rc::clone(self.bytes), framing, expects_continue) {
            request.body = RequestBody::from_input(Box::new(input));
        }
    }

    /// The socket tells that when the response is sent.
    fn is_given_up(&self) -> bool {
        false
    }

    async fn settle_content(&mut self, request: &mut Request) -> Result<(), u16> {
        let was_refused = request.body.restore();
        match !was_refused && lingering::discard_what_came(request).await.is_err() {
            true => Err(400),
            false => Ok(()),
        }
    }

    fn end_silently(&mut self, request: &mut Request) -> Next {
        match request.core().reset_timedout_connection {
            true => Next::Reset,
            false => Next::Close,
        }
    }

    async fn send(&mut self, request: &mut Request) -> Result<(), SendError> {
        let keepalive = self.may_keep_alive(request);
        self.avoid_delays(request);
        request.ledger.responded = Some(rt::now());
        let out = self.sender.begin();
        let framing = head::write(request, keepalive, out);
        if host::error_log::debug_is_on() {
            debug_response(request, out);
        }
        match self.sender.send_at_once(request, framing) {
            Some(()) => Ok(()),
            None => self.sender.send(request, framing).await,
        }
    }

    async fn after_response(&mut self, request: &mut Request) -> Next {
        let core = &request.site.location(request.location).core;
        if request.delivery.is_upgraded() {
            return Next::Close;
        }
        if request.delivery.must_close() {
            let pending = !request.body.is_complete() || !self.bytes.input.borrow().is_empty();
            return match core.lingering_close {
                Lingering::Always => Next::Linger(Arc::clone(core)),
                Lingering::On if pending && self.may_linger => Next::Linger(Arc::clone(core)),
                Lingering::On | Lingering::Off => Next::Close,
            };
        }
        let keepalive_timeout = &self.client.keepalive_timeout;
        keepalive_timeout.set(self.idle_timeout(core));
        let keepalive_min_timeout = &self.client.keepalive_min_timeout;
        keepalive_min_timeout.set(core.keepalive_min_timeout);
        // The next request begins where the content of this one ends.
        match request.body.is_complete() || lingering::discard(request).await {
            true => Next::Request,
            false => Next::Linger(request.core()),
        }
    }

    fn after_failure(&mut self, request: &mut Request, error: SendError) -> Next {
        match error {
            SendError::TimedOut if request.core().reset_timedout_connection => Next::Reset,
            // The framing is left incomplete; where the end of the connection is the end of the content, the connection
            // has to end otherwise.
            SendError::Body(_) if request.delivery.framing == Some(ResponseFraming::UntilClose) => {
                Next::Reset
            }
            _ => Next::Close,
        }
    }

    fn closing_words(end: &Next) -> &'static str {
        match end {
            Next::Request => "set http keepalive handler",
            Next::Linger(_) => "http lingering close",
            Next::Close | Next::Reset | Next::Leave => "http close request",
        }
    }
}

/// The head of a request as the debug log has it.
fn debug_head(request: &Request) {
    let wire = &request.head.wire;
    request.debug(format_args!(
        "http request line: \"{}\"",
        BStr::new(wire.request_line())
    ));
    request.debug(format_args!("http uri: \"{}\"", BStr::new(wire.target())));
    for (name, value) in wire.fields.iter() {
        request.debug(format_args!(
            "http header: \"{}: {}\"",
            BStr::new(name),
            BStr::new(value)
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
    let agent = BStr::new(agent);
    use bstr::ByteSlice;
    if disabled & MSIE6 != 0 && request.method == Method::Post && crate::text::is_msie6(agent) {
        return true;
    }
    disabled & SAFARI != 0
        && agent.contains_str("Safari/")
        && agent.contains_str("Mac OS X")
        && !agent.contains_str("Chrome/")
}
