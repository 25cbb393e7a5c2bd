//! Reads the heads of requests from a client connection.
//!
//! A head that comes whole, as nearly all do, is parsed where the loop has read it: it never stands in a buffer of the
//! connection, and no timer is set for its sake.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};

use host::error_log::Level;
use proto::h1::{Limits, Parser, Status};
use proto::message::{InvalidHeaders, Reject, Underscores};

use super::connection::Connection;
use crate::client::ConnectionOrder;
use crate::request::Request;
use crate::site::{ServerId, Site};
use net::counters::Stage;

/// How much is read at once when the head's buffers are small, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// An idle connection keeps no more input memory than this, in bytes.
const IDLE_INPUT: usize = 4 * 1024;

/// The state of reading a head.
#[derive(Default)]
pub(super) struct Reading {
    parser: Parser,
    limits: Limits,
    /// The generation of the configuration that has these limits, for the default server of the address.
    limits_of: Option<u64>,
    timer: rt::Timer,
    progress: Progress,
    /// It is the first of its connection.
    first: bool,
    /// It was there before the response to the one before it was sent.
    pipelined: bool,
}

/// How much of a head there is.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Progress {
    /// Nothing.
    #[default]
    Awaited,
    /// Some bytes came.
    Begun,
    /// What came did not end it: its time is counted.
    Partial,
}

/// How reading a head ended when it did not bring one.
pub(super) enum NoHead {
    /// The client is gone, or its time between requests is over: nothing to say.
    Quiet,
    /// The time for the head is over: 408.
    TimedOut,
    /// The head is bad.
    Rejected(Reject),
    /// None has begun, and the connection goes to another loop or process.
    Leaving,
}

impl Reading {
    /// Whether the client sent the request without waiting for the response to the one before it.
    pub(super) fn is_pipelined(&self) -> bool {
        self.pipelined
    }

    /// Whether the connection is between two requests, where it may end without a word.
    fn is_idle(&self) -> bool {
        self.progress == Progress::Awaited && !self.first
    }
}

impl Connection<'_> {
    /// Reads until the head of `request` is complete.
    pub(super) async fn read_head(&mut self, request: &mut Request) -> Result<(), NoHead> {
        self.await_head();
        if self.client.control.order() == ConnectionOrder::Leave {
            return Err(NoHead::Leaving);
        }
        if !self.bytes.input.borrow().is_empty()
            && let Some(end) = self.take_head(&[], request)
        {
            return end;
        }
        std::future::poll_fn(|context| self.poll_head(request, context)).await
    }

    fn await_head(&mut self) {
        let reading = &mut self.reading;
        reading.progress = Progress::Awaited;
        reading.first = self.client.requests.get() == 0;
        let generation = self.client.generation.get();
        if reading.first || reading.limits_of != Some(generation) {
            let endpoint = self.client.endpoint.borrow();
            let (server, site) = (self.client.first_server(), self.http.site());
            reading.limits = limits_of(&site, server, endpoint.chooses());
            reading.limits_of = Some(generation);
            let timeout = site.server(server).core.client_header_timeout;
            reading.timer.set(self.client.rest_of(timeout));
        }
        if !reading.first {
            reading.timer.set(self.client.keepalive_timeout.get());
        }
        let mut input = self.bytes.input.borrow_mut();
        reading.pipelined = !reading.first && !input.is_empty();
        if input.is_empty() && input.capacity() > IDLE_INPUT {
            *input = Vec::new();
        }
        self.client
            .control
            .begin_waiting(rt::now(), self.bytes.sent.get());
        self.staged.enter(Stage::Waiting);
    }

    fn poll_head(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NoHead>> {
        // Into the loop's own buffer: a connection keeps only as much memory as its requests need.
        let mut scratch = self.http.scratch.take();
        let result = loop {
            scratch.clear();
            let transport = &self.bytes.transport;
            match transport.poll_read_into(context, &mut scratch, READ_SIZE) {
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
                    break Poll::Ready(Err(NoHead::Quiet));
                }
                Poll::Ready(Ok(_)) => {
                    if let Some(end) = self.take_head(&scratch, request) {
                        break Poll::Ready(end);
                    }
                }
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => {
                    self.log_error(&error);
                    break Poll::Ready(Err(NoHead::Quiet));
                }
            }
        };
        self.http.scratch.replace(scratch);
        result
    }

    /// The connection is about to end for its silence. What its client has said since the loop last asked the system is
    /// read: it would be lost, and the client told so by a reset.
    fn has_spoken_after_all(&self, scratch: &mut Vec<u8>) -> bool {
        let transport = &self.bytes.transport;
        transport.socket().look_again();
        matches!(transport.try_read_into(scratch, READ_SIZE), Ok(1..))
    }

    /// Goes on with a head of which `came` is what came last; `None` when that did not end it.
    fn take_head(&mut self, came: &[u8], request: &mut Request) -> Option<Result<(), NoHead>> {
        if self.reading.progress == Progress::Awaited {
            self.reading.progress = Progress::Begun;
            self.client.control.begin_request();
        }
        // What came before: mostly nothing.
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
        } else if self.reading.progress == Progress::Partial {
            rt::set_rank(rt::Rank::Ordinary);
        }
        end.map(|end| end.map(drop))
    }

    /// Parses a head, `None` when it goes on. Otherwise it was so long.
    fn parse(&mut self, buffer: &[u8], request: &mut Request) -> Option<Result<usize, NoHead>> {
        let head =
            Rc::get_mut(&mut request.head).expect("a request that has not begun is not shared");
        let end = loop {
            let reading = &mut self.reading;
            match reading
                .parser
                .parse(buffer, &reading.limits, &mut head.wire)
            {
                Ok(Status::Complete(used)) => break Ok(used),
                Ok(Status::Partial) => return None,
                Ok(Status::Host(range)) => {
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

    /// The server whose limits count for the rest of a head with this host.
    fn server_of_host(&self, value: &[u8]) -> ServerId {
        let endpoint = self.client.endpoint.borrow();
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

    /// The first time that a head did not come whole: the client has `client_header_timeout` for the rest.
    fn await_rest(&mut self) {
        if self.reading.progress == Progress::Partial {
            return;
        }
        self.reading.progress = Progress::Partial;
        self.staged.enter(Stage::Reading);
        // A head in pieces may be a slow client's, or a flood's that never ends: whole requests go first.
        rt::set_rank(rt::Rank::Patient);
        if self.reading.first {
            // Its time has begun when the client came.
            return;
        }
        let server = self.client.first_server();
        let timeout = self.http.site().server(server).core.client_header_timeout;
        self.reading.timer.set(timeout);
    }

    /// Nothing came: whether that may go on.
    fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<NoHead> {
        let (client, reading) = (self.client, &self.reading);
        let asked = match reading.progress {
            Progress::Awaited => client.control.poll_order(context),
            Progress::Begun | Progress::Partial => Poll::Pending,
        };
        if asked == Poll::Ready(ConnectionOrder::Leave) {
            return Poll::Ready(NoHead::Leaving);
        }
        // A client that has just come and can not go elsewhere will get an answer.
        let is_spared = reading.first && client.control.is_leaving();
        if asked.is_ready() && !is_spared {
            let since = client.control.waiting_since();
            let end = since.map(|since| since + client.keepalive_min_timeout.get());
            match end.filter(|end| *end > rt::now()) {
                Some(end) => reading.timer.set_deadline(end),
                None => return Poll::Ready(NoHead::Quiet),
            }
        }
        reading
            .timer
            .poll_expired(context)
            .map(|()| match reading.is_idle() {
                true => NoHead::Quiet,
                false => NoHead::TimedOut,
            })
    }

    fn log_error(&self, error: &io::Error) {
        let what = match self.reading.is_idle() {
            true => "while keepalive",
            false => "while waiting for request",
        };
        self.http.log_client(
            Level::Info,
            self.client,
            format_args!("{} {what}", net::ReadFailed(error)),
        );
    }

    fn log_early_end(&self) {
        let what = match self.reading.progress {
            Progress::Awaited if !self.reading.first => return,
            Progress::Awaited => "client closed connection while waiting for request",
            Progress::Begun | Progress::Partial => {
                "client prematurely closed connection while reading client request line"
            }
        };
        self.http
            .log_client(Level::Info, self.client, format_args!("{what}"));
    }
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
