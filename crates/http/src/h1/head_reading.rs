//! Reads the heads of requests from a client connection.
//!
//! A head that arrives whole, as nearly all do, is parsed in the buffer into which the loop read it: it is never copied
//! to a buffer of the connection, and no timer is set for it.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use host::error_log::LogLevel;
use proto::h1::{HeadLimits, RequestParser, RequestProgress};
use proto::message::{InvalidHeaders, RejectedHead, UnderscorePolicy};

use super::connection::Http1Connection;
use crate::client::ConnectionOrder;
use crate::http_site::{HttpSite, ServerId};
use crate::request::Request;
use net::counters::ConnectionStage;

/// How much one read takes, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// An idle connection keeps no more input memory than this, in bytes.
const IDLE_INPUT: usize = 4 * 1024;

/// How long a connection waits for its next request in the task that served the last one. Then it gives back the memory
/// for a request ([`crate::waiting_connection`]). Clients that load a page send the next request within this time, and
/// one that is never idle for so long pays for it with one wake-up in such a time.
const IDLE_IN_TASK: Duration = Duration::from_secs(1);

/// The state of reading a head.
#[derive(Default)]
pub(super) struct HeadReading {
    parser: RequestParser,
    limits: HeadLimits,
    /// The configuration, by its generation, whose default server has these limits; `None` if they are another
    /// server's.
    limits_of: Option<u64>,
    timer: rt::Timer,
    /// The whole timeout: the timer is set to [`IDLE_IN_TASK`] at most, and then to the rest.
    timeout: Duration,
    progress: HeadReadStage,
    /// No request has been served on the connection yet.
    first: bool,
    /// When the head began, if it did not come whole.
    begun: Option<Instant>,
    /// The request had arrived before the response to the previous one was sent.
    pipelined: bool,
}

/// How much of a head has arrived.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum HeadReadStage {
    /// Nothing.
    #[default]
    Awaited,
    /// Some bytes have arrived.
    Begun,
    /// What has arrived is incomplete: `client_header_timeout` runs.
    Partial,
}

/// Why reading ended without a head.
pub(super) enum NoHead {
    /// The client left, or the keep-alive timeout expired: no answer is sent.
    Quiet,
    /// The client left in the middle of a head: no answer is sent, but the access log has the request.
    Cut,
    /// `client_header_timeout` expired in the middle of a head, or before the first one.
    TimedOut,
    /// The head is malformed or too large.
    Rejected(RejectedHead),
    /// No request has begun, and the connection moves to another loop or process.
    Leaving,
    /// No request has begun for a while.
    Silent,
}

impl HeadReading {
    /// Whether the client sent the request without waiting for the response to the one before it.
    pub(super) fn is_pipelined(&self) -> bool {
        self.pipelined
    }

    /// When the head began to arrive, if it came in parts.
    pub(super) fn begun_at(&self) -> Option<Instant> {
        self.begun
    }

    /// Whether the request line is complete.
    pub(super) fn has_request_line(&self) -> bool {
        self.parser.has_request_line()
    }

    /// Whether the connection is between two requests, where it may be closed without an answer (RFC 9112, section
    /// 9.5).
    fn is_idle(&self) -> bool {
        self.progress == HeadReadStage::Awaited && !self.first
    }

    /// Sets the timer to the first part of a timeout, or to all of it.
    fn begin_timeout(&mut self, timeout: Duration) {
        let is_long = timeout > IDLE_IN_TASK;
        self.timer.set(if is_long { IDLE_IN_TASK } else { timeout });
        self.timeout = timeout;
    }
}

impl Http1Connection<'_> {
    /// Reads until the head of `request` is complete.
    pub(super) async fn read_head(&mut self, request: &mut Request) -> Result<(), NoHead> {
        // The order to move is looked at before buffered input: a pipelined request goes with the connection.
        self.await_head();
        if self.client.control.pending_order() == ConnectionOrder::Transfer {
            return Err(NoHead::Leaving);
        }
        // A pipelined request may be here completely; the socket would never become readable for it.
        if !self.bytes.input.borrow().is_empty()
            && let Some(end) = self.take_head(&[], request)
        {
            return end;
        }
        std::future::poll_fn(|context| self.poll_head(request, context)).await
    }

    fn await_head(&mut self) {
        let control = &self.client.control;
        let now = rt::now();
        let since = control.begin_waiting(now, self.bytes.sent.get());
        let reading = &mut self.reading;
        reading.progress = HeadReadStage::Awaited;
        reading.begun = None;
        reading.first = self.client.requests.get() == 0;
        let generation = self.client.generation.get();
        // Once per connection and reload: the limits depend on the server, not on the request.
        if reading.first || reading.limits_of != Some(generation) {
            let endpoint = self.client.endpoint.borrow();
            let (server, site) = (self.client.first_server(), self.http.site());
            // Where several servers share the address the parser stops at `Host`, because its server may have larger
            // buffers.
            reading.limits = limits_of(&site, server, endpoint.needs_name());
            reading.limits_of = Some(generation);
            let timeout = site.server(server).core.client_header_timeout;
            reading.begin_timeout(self.client.rest_of(timeout));
        }
        // The first request is still covered by the time that began with the connection.
        if !reading.first {
            let mut timeout = self.client.keepalive_timeout.get();
            // It waits already, and was woken for nothing.
            if since != now {
                timeout = timeout.saturating_sub(now.saturating_duration_since(since));
            }
            reading.begin_timeout(timeout);
        }
        let mut input = self.bytes.input.borrow_mut();
        reading.pipelined = !reading.first && !input.is_empty();
        // One large request must not leave its buffer with a connection that may be idle for minutes.
        if input.is_empty() && input.capacity() > IDLE_INPUT {
            *input = Vec::new();
        }
        self.counted.enter_stage(ConnectionStage::Waiting);
    }

    fn poll_head(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NoHead>> {
        // Into the loop's own buffer, so that an idle connection needs none. It is put back before this returns, since
        // other tasks run in between.
        let mut scratch = self.http.scratch.take();
        let result = loop {
            scratch.clear();
            let transport = &self.bytes.transport;
            match transport.poll_read_into(context, &mut scratch, READ_SIZE) {
                // The timers only when there is nothing to read: a request that arrived in time counts even if the loop
                // looks late.
                Poll::Pending => match self.poll_wait(context) {
                    Poll::Ready(NoHead::Quiet) if self.has_spoken_after_all(&mut scratch) => {
                        if let Some(end) = self.take_head(&scratch, request) {
                            break Poll::Ready(end);
                        }
                    }
                    waited => break waited.map(Err),
                },
                Poll::Ready(Ok(0)) => {
                    self.log_early_end();
                    break Poll::Ready(Err(self.ended()));
                }
                Poll::Ready(Ok(_)) => {
                    if let Some(end) = self.take_head(&scratch, request) {
                        break Poll::Ready(end);
                    }
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => {
                    self.log_error(&error);
                    break Poll::Ready(Err(self.ended()));
                }
            }
        };
        self.http.scratch.replace(scratch);
        result
    }

    /// What the end of the connection means for the head that is being read.
    fn ended(&self) -> NoHead {
        match self.reading.progress {
            HeadReadStage::Awaited => NoHead::Quiet,
            HeadReadStage::Begun | HeadReadStage::Partial => NoHead::Cut,
        }
    }

    /// Makes what came of an incomplete head readable for the log.
    pub(super) fn abandon_head(&mut self, request: &mut Request) {
        let head =
            Rc::get_mut(&mut request.head).expect("a request that has not begun is not shared");
        let input = self.bytes.input.borrow();
        self.reading.parser.abandon(&input, &mut head.wire);
    }

    /// Reads what the client has sent since the loop last asked the kernel, before the connection is closed for its
    /// silence: otherwise that request would be lost, and the client would get a reset for it.
    fn has_spoken_after_all(&self, scratch: &mut Vec<u8>) -> bool {
        let transport = &self.bytes.transport;
        transport.socket().look_again();
        matches!(transport.try_read_into(scratch, READ_SIZE), Ok(1..))
    }

    /// Continues parsing a head; `came` are the bytes that arrived last. `None` if they do not complete it.
    fn take_head(&mut self, came: &[u8], request: &mut Request) -> Option<Result<(), NoHead>> {
        if self.reading.progress == HeadReadStage::Awaited {
            self.reading.progress = HeadReadStage::Begun;
            self.client.control.begin_request();
        }
        // What arrived earlier: mostly nothing, and then the head is parsed where it was read. Only an incomplete one
        // is copied, and what follows a complete one.
        let mut input = self.bytes.input.take();
        let end = if input.is_empty() {
            let end = self.parse(came, request);
            let used = match end {
                Some(Ok(used)) => used,
                _ => 0,
            };
            input.extend_from_slice(&came[used..]);
            end
        } else {
            input.extend_from_slice(came);
            let end = self.parse(&input, request);
            if let Some(Ok(used)) = end {
                input.drain(..used);
            }
            end
        };
        self.bytes.input.replace(input);
        if end.is_none() {
            self.await_rest();
        // The request itself is served in ordinary rank, however slowly its head came.
        } else if self.reading.progress == HeadReadStage::Partial {
            rt::set_rank(rt::TaskRank::Ordinary);
        }
        end.map(|end| end.map(drop))
    }

    /// Parses a head: `None` if it is incomplete, otherwise its length.
    fn parse(&mut self, buffer: &[u8], request: &mut Request) -> Option<Result<usize, NoHead>> {
        let head =
            Rc::get_mut(&mut request.head).expect("a request that has not begun is not shared");
        let end = loop {
            let reading = &mut self.reading;
            match reading
                .parser
                .parse(buffer, &reading.limits, &mut head.wire)
            {
                Ok(RequestProgress::Complete(used)) => break Ok(used),
                Ok(RequestProgress::Partial) => return None,
                Ok(RequestProgress::Host(range)) => {
                    // nginx reads the rest of a head with the buffers of the server that `Host` names. The next request
                    // of the connection begins with the default server's again.
                    let server = self.server_of_host(&buffer[range]);
                    self.reading.limits = limits_of(&self.http.site(), server, false);
                    self.reading.limits_of = None;
                }
                Err(reject) => break Err(NoHead::Rejected(reject)),
            }
        };
        self.reading.parser.reset();
        Some(end)
    }

    /// The server whose limits apply to the rest of a head with this `Host`.
    fn server_of_host(&self, value: &[u8]) -> ServerId {
        let endpoint = self.client.endpoint.borrow();
        // A malformed host is rejected when the head is complete, not here.
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

    /// Called when a head is incomplete. The first time it gives the client `client_header_timeout` for the rest; later
    /// bytes do not extend that, or a client could send one byte at a time forever.
    fn await_rest(&mut self) {
        if self.reading.progress == HeadReadStage::Partial {
            return;
        }
        self.reading.progress = HeadReadStage::Partial;
        self.reading.begun = Some(rt::now());
        self.counted.enter_stage(ConnectionStage::Reading);
        // A head in pieces may come from a slow client, or from a flood that never completes one: complete requests go
        // first.
        rt::set_rank(rt::TaskRank::Patient);
        if self.reading.first {
            // Its time began when the connection was accepted.
            return;
        }
        let server = self.client.first_server();
        let timeout = self.http.site().server(server).core.client_header_timeout;
        self.reading.begin_timeout(timeout);
    }

    /// Called when nothing has arrived: whether the connection may go on waiting.
    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<NoHead> {
        let (client, reading) = (self.client, &mut self.reading);
        // In the middle of a head the connection neither closes nor moves: a request has begun.
        let asked = match reading.progress {
            HeadReadStage::Awaited => client.control.poll_order(context),
            HeadReadStage::Begun | HeadReadStage::Partial => Poll::Pending,
        };
        if asked == Poll::Ready(ConnectionOrder::Transfer) {
            return Poll::Ready(NoHead::Leaving);
        }
        // A new client whose connection cannot move still gets one answer, as from nginx when it stops.
        let is_spared = reading.first && client.control.is_leaving();
        if asked.is_ready() && !is_spared {
            // `keepalive_min_timeout`: a connection that has to close still waits for so long, because the client's
            // next request may be on its way and would get a reset.
            let since = client.control.waiting_since();
            let least = client.keepalive_min_timeout.get();
            let end = since.map(|since| self.http.end_of_wait(since, least));
            match end.filter(|end| *end > rt::now()) {
                Some(end) => {
                    reading.timer.set_deadline(end);
                    reading.timeout = Duration::ZERO;
                }
                None => return Poll::Ready(NoHead::Quiet),
            }
        }
        // Encrypted bytes that wait for room in the socket leave with the reads of this task.
        let may_leave =
            reading.progress == HeadReadStage::Awaited && !self.bytes.transport.has_pending();
        if may_leave && self.http.is_crowded() {
            return Poll::Ready(NoHead::Silent);
        }
        loop {
            if reading.timer.poll_expired(context).is_pending() {
                return Poll::Pending;
            }
            let rest = std::mem::take(&mut reading.timeout).saturating_sub(IDLE_IN_TASK);
            if rest.is_zero() {
                return Poll::Ready(match reading.is_idle() {
                    true => NoHead::Quiet,
                    false => NoHead::TimedOut,
                });
            }
            if may_leave {
                return Poll::Ready(NoHead::Silent);
            }
            reading.timer.set(rest);
        }
    }

    fn log_error(&self, error: &io::Error) {
        let what = match self.reading.is_idle() {
            true => "while keepalive",
            false => "while waiting for request",
        };
        self.http.log_client(
            LogLevel::Info,
            self.client,
            format_args!("{} {what}", net::ReadFailed(error)),
        );
    }

    fn log_early_end(&self) {
        let what = match self.reading.progress {
            HeadReadStage::Awaited if !self.reading.first => return,
            HeadReadStage::Awaited => "client closed connection while waiting for request",
            _ if self.reading.has_request_line() => {
                "client prematurely closed connection while reading client request headers"
            }
            HeadReadStage::Begun | HeadReadStage::Partial => {
                "client prematurely closed connection while reading client request line"
            }
        };
        self.http
            .log_client(LogLevel::Info, self.client, format_args!("{what}"));
    }
}

pub(crate) fn limits_of(site: &Rc<HttpSite>, server: ServerId, pause_at_host: bool) -> HeadLimits {
    let core = &site.server(server).core;
    HeadLimits {
        client_header_buffer_size: core.client_header_buffer_size as usize,
        large_client_header_buffers: core.large_buffers as usize,
        large_client_header_buffer_size: core.large_buffer_size as usize,
        max_headers: core.max_headers as usize,
        underscores_in_headers: if core.underscores_in_headers {
            UnderscorePolicy::Allowed
        } else {
            UnderscorePolicy::Invalid
        },
        invalid_headers: if core.ignore_invalid_headers {
            InvalidHeaders::Ignored
        } else {
            InvalidHeaders::Kept
        },
        pause_at_host,
    }
}
