//! One HTTP/1 connection: how a request is taken from it, and whether it persists after the response (RFC 9112, section
//! 9).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bstr::BStr;
use host::error_log::LogLevel;
use net::counters::{ConnectionStage, CountedConnection};
use proto::KnownField;
use proto::message::{MessageVersion, RejectKind, RejectedHead, RequestFraming, ResponseFraming};

use super::body::Http1BodyInput;
use super::discard;
use super::head;
use super::head_reading::{HeadReading, NoHead};
use super::recycled::{RecycledSlots, RequestSlot};
use super::sender::Http1Sender;
use crate::body_reader::RequestBody;
use crate::byte_stream::ByteStream;
use crate::client::{ConnectionOrder, HttpClient};
use crate::core::LingeringClose;
use crate::core::LocationConf;
use crate::http_loop::HttpLoop;
use crate::ledger::{EndedBy, LedgerPhase};
use crate::lifecycle::{self, RequestCarrier, RequestRefusal};
use crate::log_phase;
use crate::request::Request;
use crate::response_body::ResponseBody;
use crate::response_send::ResponseSendError;
use crate::virtual_server::LastVirtualServer;

/// A request that was read by a loop as late as this has waited for it.
const LATE_READ: Duration = Duration::from_millis(2);

/// One HTTP/1 connection, from its first request to its last.
pub(super) struct Http1Connection<'a> {
    pub(super) http: &'a HttpLoop,
    pub(super) client: &'a Rc<HttpClient>,
    pub(super) bytes: &'a Rc<ByteStream>,
    pub(super) reading: HeadReading,
    /// Counts the connection as reading, writing or waiting, for `stub_status`.
    pub(super) counted: CountedConnection,
    sender: Http1Sender,
    /// The struct of the last request, which the next one reuses; `None` while a request is being served, and before
    /// the first.
    request: Option<Box<RequestSlot>>,
    last_server: LastVirtualServer,
    /// How the content of the current request is framed, and whether its client waits for `100 Continue`.
    content: (RequestFraming, bool),
    /// Whether lingering after the response can help the client. It cannot if what the client speaks is not HTTP.
    may_linger: bool,
    recycled: &'a RecycledSlots,
}

impl Drop for Http1Connection<'_> {
    fn drop(&mut self) {
        // A task that is dropped in the middle of a request has no slot here: then nothing of it is reused.
        if let Some(mut slot) = self.request.take() {
            slot.last_server = std::mem::take(&mut self.last_server);
            self.recycled.recycle(slot);
        }
    }
}

/// What happens to the connection after a request.
pub(super) enum ConnectionFate {
    /// It waits for the next request.
    Request,
    /// It waits for the next request without a task that could serve it.
    Wait,
    /// It is closed after the response.
    Close,
    /// It closes once the client has had time to read the response (`lingering_close`), with these settings.
    Linger(Arc<LocationConf>),
    /// It is closed with a TCP reset (`reset_timedout_connection`).
    Reset,
    /// It moves to another loop or process.
    Transfer,
}

impl<'a> Http1Connection<'a> {
    pub(super) fn new(
        http: &'a HttpLoop,
        client: &'a Rc<HttpClient>,
        bytes: &'a Rc<ByteStream>,
        recycled: &'a RecycledSlots,
    ) -> Http1Connection<'a> {
        Http1Connection {
            sender: Http1Sender::new(Rc::clone(bytes)),
            reading: HeadReading::default(),
            request: None,
            last_server: LastVirtualServer::default(),
            counted: CountedConnection::new(&http.counters),
            content: (RequestFraming::None, false),
            may_linger: true,
            http,
            client,
            bytes,
            recycled,
        }
    }

    /// Whether the last request was pipelined: sent before the response to the previous one.
    pub(super) fn is_pipelined(&self) -> bool {
        self.reading.is_pipelined()
    }

    /// Waits for a request, serves it, and returns what happens to the connection then.
    pub(super) async fn one_request(&mut self) -> ConnectionFate {
        // Before waiting as well as after: a reload may have removed the address while the previous request was served,
        // and a client must not wait on a connection that no server answers.
        if !self.http.refresh_endpoint(self.client) {
            return ConnectionFate::Close;
        }
        let mut slot = self.request.take().unwrap_or_else(|| self.take_slot());
        let request = slot.request_or_else(|| self.first_request());
        let next = self.serve_request(request).await;
        request.end();
        self.request = Some(slot);
        next
    }

    fn first_request(&self) -> Request {
        let server = self.client.first_server();
        let client = Rc::clone(self.client);
        let site = self.http.site();
        self.recycled
            .first_request(|buffers| Request::from_buffers(buffers, site, client, server))
    }

    /// Takes over the slot of a connection that has ended.
    fn take_slot(&mut self) -> Box<RequestSlot> {
        let mut slot = self.recycled.take_recycled();
        self.last_server = std::mem::take(&mut slot.last_server);
        slot
    }

    async fn serve_request(&mut self, request: &mut Request) -> ConnectionFate {
        let outcome = self.read_head(request).await;
        // There may have been a reload while the connection was idle: the request belongs to the new configuration.
        let is_listened_on = self.http.refresh_endpoint(self.client);
        match outcome {
            // The client may repeat a request on a connection that was closed without a response (RFC 9112, section
            // 9.3.1); a server that is not meant for this address must not answer it.
            Ok(()) if !is_listened_on => ConnectionFate::Close,
            Ok(()) => {
                self.begin(request);
                lifecycle::run_lifecycle(self, request, Ok(())).await
            }
            Err(NoHead::Quiet) => ConnectionFate::Close,
            // Rare futures are boxed: their space would be part of every connection's.
            Err(NoHead::Cut) => Box::pin(self.log_cut_head(request)).await,
            Err(NoHead::Leaving) => ConnectionFate::Transfer,
            Err(NoHead::Silent) => ConnectionFate::Wait,
            Err(NoHead::TimedOut) => Box::pin(self.time_out(request)).await,
            Err(NoHead::Rejected(reject)) => Box::pin(self.refuse(request, reject)).await,
        }
    }

    /// Turns a complete head into a request to the default server of its address.
    fn begin(&mut self, request: &mut Request) {
        // Rejected requests count, too: `keepalive_requests` and `$connection_requests` are nginx's.
        let number = self.client.requests.get() + 1;
        self.client.requests.set(number);
        Rc::get_mut(&mut request.head)
            .expect("a request that has not begun is not shared")
            .number = number;
        self.counted.enter_stage(ConnectionStage::Writing);
        lifecycle::start_request(self.http, request, self.client.first_server());
        if let Some(since) = self.reading.begun_at() {
            request.begin_earlier(since);
        }
        if rt::turn_lag() >= LATE_READ {
            self.note_lag(request);
        }
        if host::error_log::debug_is_on() {
            debug_head(request);
        }
        request.delivery.pipelined = self.reading.is_pipelined();
    }

    /// Notes how long the request lay in the socket while others held the loop. The kernel knows when it came; where it
    /// does not tell, the whole turn counts.
    #[cold]
    fn note_lag(&self, request: &mut Request) {
        let info = self.bytes.transport.socket().tcp_info();
        let lag = rt::turn_lag();
        let lag = info.map_or(lag, |info| {
            lag.min(Duration::from_millis(info.since_data_ms.into()))
        });
        request.ledger.began_earlier(LedgerPhase::Loop, lag);
    }

    /// The client did not send its head within `client_header_timeout`.
    async fn time_out(&mut self, request: &mut Request) -> ConnectionFate {
        self.begin_incomplete(request);
        request.log(
            LogLevel::Info,
            format_args!("client timed out (110: Connection timed out) while waiting for request"),
        );
        let core = request.core();
        if core.reset_timedout_connection {
            return ConnectionFate::Reset;
        }
        // As in nginx no response is sent, though RFC 9110 has 408 for it; the status is for the access log.
        request
            .ledger
            .end_in(EndedBy::ClientTimeout, LedgerPhase::Head);
        request.ledger.finish();
        request.out.status = 408;
        log_phase::observe_request(request);
        log_phase::run_log_phase(request).await;
        ConnectionFate::Close
    }

    /// The client left in the middle of a head. No response is sent; the log has nginx's status for it.
    async fn log_cut_head(&mut self, request: &mut Request) -> ConnectionFate {
        self.begin_incomplete(request);
        request.ledger.end_in(EndedBy::Client, LedgerPhase::Head);
        request.ledger.finish();
        request.out.status = 400;
        log_phase::observe_request(request);
        log_phase::run_log_phase(request).await;
        ConnectionFate::Close
    }

    /// Answers a head that could not be parsed.
    async fn refuse(&mut self, request: &mut Request, reject: RejectedHead) -> ConnectionFate {
        // A request line without a version gets a response without a head (HTTP/0.9), even if its method is wrong.
        let is_simple = reject.kind == RejectKind::InvalidHttp09Method;
        self.begin_rejected(request, !is_simple);
        self.may_linger = reject.lingers();
        let reject = match reject.follows_target() {
            true => lifecycle::place_refused(self, request, reject),
            false => reject,
        };
        RequestRefusal::Head(reject).log(request, Self::HAS_REQUEST_LINE);
        lifecycle::answer_refused(self, request, reject.status()).await
    }

    /// Begins a request of whose head the rest does not come, with what there is of it.
    fn begin_incomplete(&mut self, request: &mut Request) {
        self.abandon_head(request);
        self.begin_rejected(request, true);
        if self.reading.has_request_line() && lifecycle::set_uri(request).is_ok() {
            // A malformed host names no server, and no response is left to be made of that.
            let _ = self.choose_server(request);
        }
    }

    fn begin_rejected(&mut self, request: &mut Request, rejected: bool) {
        if let Some(head) = Rc::get_mut(&mut request.head) {
            head.rejected = rejected;
        }
        self.begin(request);
        // Where the next request would begin is unknown (RFC 9112, section 9.3).
        request.delivery.close();
    }

    /// `tcp_nodelay`, where it makes a difference. The first response of a connection, if one write carries it, cannot
    /// be delayed by Nagle's algorithm, because nothing is waiting for an acknowledgement: this saves a system call for
    /// each client that makes one request.
    fn avoid_delays(&self, request: &Request) {
        let small_writes = self.client.requests.get() > 1
            || self.bytes.transport.is_tls()
            || matches!(request.out.body, ResponseBody::Stream(_));
        if small_writes && request.core().delivery.tcp_nodelay {
            self.bytes.send_without_delay();
        }
    }

    fn may_keep_alive(&self, request: &Request) -> bool {
        // All conditions are nginx's, those of a stopping server included: with `keepalive_min_timeout` it still keeps
        // connections for a moment. The time is the loop's own clock, so that the age of the connection costs no system
        // call.
        let core = &request.site.location(request.location).core;
        !request.delivery.must_close()
            && request.head.wire.wants_keep_alive()
            && !core.keepalive_timeout.is_zero()
            && self.client.requests.get() < core.keepalive_requests as u64
            && self.client.is_younger_than(core.keepalive_time)
            && (!self.is_ending() || !core.keepalive_min_timeout.is_zero())
            && !request.is_disabled_for_browser(core.keepalive_disable)
    }

    /// Whether the connection has to end because the server stops. One that is to move elsewhere does not end.
    fn is_ending(&self) -> bool {
        match self.client.control.pending_order() {
            ConnectionOrder::Close => true,
            ConnectionOrder::Transfer => false,
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

impl RequestCarrier for Http1Connection<'_> {
    type End = ConnectionFate;

    const HAS_REQUEST_LINE: bool = true;

    fn choose_server(&mut self, request: &mut Request) -> Result<(), RejectedHead> {
        self.last_server.choose_server(request)
    }

    fn check_head(&mut self, request: &mut Request) -> Result<(), RequestRefusal> {
        let takes_connect = request.site.server(request.server).takes_connect;
        // After the server is chosen, as in nginx: whether CONNECT is allowed, and which page answers, depends on the
        // server.
        let framing = request.head.wire.check(takes_connect)?;
        for line in request.head.wire.ignored() {
            request.log(
                LogLevel::Info,
                format_args!("client sent invalid header line: \"{}\"", BStr::new(line)),
            );
        }
        let wire = &request.head.wire;
        // An HTTP/1.0 client's expectation is ignored: it would take the interim response for the final one (RFC 9110,
        // section 10.1.1).
        let expects = framing != RequestFraming::None
            && wire.version >= MessageVersion::HTTP_11
            && wire
                .fields
                .get_known(KnownField::Expect)
                .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        self.content = (framing, expects);
        Ok(())
    }

    fn attach_content(&mut self, request: &mut Request) {
        let (framing, expects_continue) = self.content;
        if framing == RequestFraming::None {
            return;
        }
        if let Some(input) = Http1BodyInput::new(Rc::clone(self.bytes), framing, expects_continue) {
            request.body = RequestBody::from_input(Box::new(input));
        }
    }

    /// Not known here: sending the response to a client that left fails, and that is soon enough.
    fn is_given_up(&self) -> bool {
        false
    }

    async fn settle_content(&mut self, request: &mut Request) -> Result<(), u16> {
        // Content that was refused (413) is not looked at: its framing cannot change the response any more, and the
        // connection closes or lingers.
        let was_refused = request.body.restore_content();
        let is_over = was_refused || request.delivery.is_silent();
        if is_over || discard::discard_what_came(request).await.is_ok() {
            return Ok(());
        }
        request.error(format_args!("client sent invalid chunked body"));
        // The next request cannot be found. A refusal or a redirect stays what it is, as in nginx.
        request.delivery.close();
        match request.out.status < 300 {
            true => Err(400),
            false => Ok(()),
        }
    }

    fn end_silently(&mut self, request: &mut Request) -> ConnectionFate {
        match request.core().reset_timedout_connection {
            true => ConnectionFate::Reset,
            false => ConnectionFate::Close,
        }
    }

    async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        // Decided before the head is written, which announces it. Framing may still force the connection to close.
        let keepalive = self.may_keep_alive(request);
        self.avoid_delays(request);
        request.times.responded = Some(rt::now());
        let out = self.sender.begin_head();
        let framing = head::write_head(request, keepalive, out);
        if host::error_log::debug_is_on() {
            debug_response(request, out);
        }
        // The asynchronous path only if the synchronous one cannot finish: most responses need no future.
        match self.sender.send_at_once(request, framing) {
            Some(()) => Ok(()),
            None => self.sender.send(request, framing).await,
        }
    }

    async fn after_response(&mut self, request: &mut Request) -> ConnectionFate {
        let core = &request.site.location(request.location).core;
        // The tunnel has ended, and with it the only use of the connection.
        if request.delivery.is_upgraded() {
            return ConnectionFate::Close;
        }
        if request.delivery.must_close() {
            // Closing a socket with unread input sends a reset, which may destroy the response before the client has
            // read it (RFC 9112, section 9.6). Without unread input `lingering_close on` has nothing to wait for.
            let pending = !request.body.is_complete() || !self.bytes.input.borrow().is_empty();
            return match core.lingering_close {
                LingeringClose::Always => ConnectionFate::Linger(Arc::clone(core)),
                LingeringClose::On if pending && self.may_linger => {
                    ConnectionFate::Linger(Arc::clone(core))
                }
                LingeringClose::On | LingeringClose::Off => ConnectionFate::Close,
            };
        }
        // Noted on the client, because the location that chose them is left before the connection waits, and because
        // they go with a connection that moves.
        let keepalive_timeout = &self.client.keepalive_timeout;
        keepalive_timeout.set(self.idle_timeout(core));
        let keepalive_min_timeout = &self.client.keepalive_min_timeout;
        keepalive_min_timeout.set(core.keepalive_min_timeout);
        // The next request begins where the content of this one ends, so all of it has to be read first. A client that
        // does not finish in time is not served any further.
        match request.body.is_complete() || discard::discard_content(request).await {
            true => ConnectionFate::Request,
            false => ConnectionFate::Linger(request.core()),
        }
    }

    fn after_failure(&mut self, request: &mut Request, error: ResponseSendError) -> ConnectionFate {
        match error {
            ResponseSendError::TimedOut if request.core().reset_timedout_connection => {
                ConnectionFate::Reset
            }
            // A length or a missing last chunk shows the client that the response is incomplete (RFC 9112, section 8).
            // Where the connection's end is the end of the content, only a reset can show it.
            ResponseSendError::Body(_)
                if request.delivery.framing == Some(ResponseFraming::UntilClose) =>
            {
                ConnectionFate::Reset
            }
            _ => ConnectionFate::Close,
        }
    }

    fn closing_words(end: &ConnectionFate) -> &'static str {
        match end {
            ConnectionFate::Request => "set http keepalive handler",
            ConnectionFate::Linger(_) => "http lingering close",
            ConnectionFate::Wait
            | ConnectionFate::Close
            | ConnectionFate::Reset
            | ConnectionFate::Transfer => "http close request",
        }
    }
}

/// Writes the head of a request to the debug log, in nginx's format.
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

/// Writes the head of the response, which is at the end of `out`, to the debug log.
fn debug_response(request: &Request, out: &[u8]) {
    use bstr::ByteSlice;
    for line in out.lines().filter(|line| !line.is_empty()) {
        request.debug(format_args!("http response header: \"{}\"", line.as_bstr()));
    }
}
