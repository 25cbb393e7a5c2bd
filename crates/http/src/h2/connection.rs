//! The task of a connection: reads frames, writes what streams have appended, and decides when the connection is over.
//!
//! ```text
//!            stop, keepalive limits            the last stream ends
//!    open ───────────────────────▶ draining ───────────────────────▶ done
//!      │ idle for too long                                             ▲
//!      ├────────────────────────────▶ closing (GOAWAY is being sent) ──┤
//!      │ the client broke the protocol         ▲                       │
//!      └───────────────────────────────────────┘   the socket fails ───┘
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::ErrnoText;
use host::error_log::LogLevel;
use proto::h2::frame::{self, PREFACE};
use proto::h2::hpack::HpackDecoder;
use proto::h2::settings::id;
use proto::h2::{
    ConnectionError, ErrorCode, FlowControlWindow, FrameReader, RequestReader, ResponsePriority,
};

use proto::message::MessageVersion;

use super::connection_link::{Http2Link, OUTPUT_FULL};
use super::limits::{Http2Limits, reader_limits};
use super::timers::ReadTimeout;
use crate::byte_stream::ByteStream;
use crate::client::{ConnectionMobility, HttpClient};
use crate::client_budget::{ClientBudget, KNOWN_AFTER, KNOWN_AFTER_BYTES, SERVED};
use crate::core::LocationConf;
use crate::http_loop::HttpLoop;
use net::counters::{ConnectionStage, CountedConnection};

/// Above this much unsent output nothing is read, in bytes. What a client makes us answer (PING, SETTINGS, resets) is
/// thereby bounded by what it accepts.
const STOP_READING: usize = 4 * OUTPUT_FULL;

/// How much is read at once from a client that is not trusted ([`crate::client_budget`]), in bytes. Then others get their
/// turn.
const READ_FROM_STRANGERS: usize = 2 * 1024;

/// How much is read from a trusted client in one iteration of the loop, in bytes.
const SHARE: u64 = 512 * 1024;

/// An idle connection keeps no output buffer above this size, in bytes.
const IDLE_OUTPUT: usize = 2 * OUTPUT_FULL;

/// One HTTP/2 connection. Its task owns this; what its streams need of it is in the [`Http2Link`].
pub(super) struct Http2Connection {
    pub(super) link: Rc<Http2Link>,
    pub(super) reader: FrameReader,
    pub(super) decoder: HpackDecoder,
    pub(super) requests: RequestReader,
    pub(super) budget: ClientBudget,
    /// The limits of the address, from the configuration that was current at the last request.
    pub(super) limits: Http2Limits,
    /// How much of the preface is still to come, in bytes.
    pub(super) preface: usize,
    /// The highest stream identifier that the client has used. Identifiers only grow (RFC 9113, section 5.1.1).
    pub(super) last: u32,
    /// The client has acknowledged our SETTINGS.
    pub(super) settings_acknowledged: bool,
    /// What is left of the connection's receive window.
    pub(super) receive_window: u32,
    /// Streams begun by the input of the current read.
    pub(super) begun: u32,
    /// Streams refused so far.
    pub(super) refused: u32,
    /// PRIORITY_UPDATE frames may precede their stream (RFC 9218, section 7.1): priorities of streams that have not
    /// begun.
    pub(super) early_priorities: Vec<(u32, ResponsePriority)>,
    /// Bytes that the client has sent, and how many of them were header blocks and content: nginx's measure of a flood.
    pub(super) taken: u64,
    pub(super) of_use: u64,
    /// Bytes of content that streams received.
    pub(super) content: u64,
    pub(super) phase: Http2Phase,
    pub(super) waits: ReadTimeout,
    pub(super) read_timer: rt::Timer,
    pub(super) write_timer: rt::Timer,
    pub(super) little_timer: rt::Timer,
    pub(super) spares_timer: rt::Timer,
    counted: CountedConnection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Http2Phase {
    Open,
    /// GOAWAY has been sent: no new streams; those that exist run to their end.
    Draining,
    /// GOAWAY is being sent, and nothing is read any more.
    Closing,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionEnd {
    /// The client may still be sending: its input is discarded for a while, so that no reset destroys our GOAWAY.
    Linger,
    /// The client left, or the socket failed.
    Gone,
}

impl Http2Connection {
    pub(super) fn new(
        http: &Rc<HttpLoop>,
        client: &Rc<HttpClient>,
        bytes: &Rc<ByteStream>,
    ) -> Http2Connection {
        // The HPACK tables of both sides and the open streams cannot be moved to another loop.
        client.control.set_mobility(ConnectionMobility::Nowhere);
        let site = http.site();
        let limits = Http2Limits::of(&site, client);
        let mut reader = FrameReader::default();
        reader.limits = reader_limits(&site, client);
        let mut connection = Http2Connection {
            link: Rc::new(Http2Link::new(http, client, bytes)),
            reader,
            decoder: HpackDecoder::default(),
            requests: RequestReader::new(MessageVersion::HTTP_2),
            budget: ClientBudget::new(rt::now()),
            preface: PREFACE.len(),
            last: 0,
            settings_acknowledged: false,
            receive_window: FlowControlWindow::MAX,
            begun: 0,
            refused: 0,
            early_priorities: Vec::new(),
            taken: 0,
            of_use: 0,
            content: 0,
            phase: Http2Phase::Open,
            waits: ReadTimeout::Nothing,
            read_timer: rt::Timer::new(),
            write_timer: rt::Timer::new(),
            little_timer: rt::Timer::new(),
            spares_timer: rt::Timer::new(),
            counted: CountedConnection::new(&http.counters),
            limits,
        };
        // Until the client has shown that it uses what it asks for: see [`crate::client_budget`].
        connection.set_rank(rt::TaskRank::Patient);
        connection.introduce();
        connection
    }

    /// Sends our SETTINGS, and opens the connection's window to its maximum, so that only the windows of the streams
    /// bound what the client sends.
    fn introduce(&mut self) {
        let limits = &self.limits;
        // Sent without waiting for the client, as RFC 9113, section 3.4, allows.
        let settings = [
            (id::MAX_CONCURRENT_STREAMS, limits.max_streams as u32),
            (id::INITIAL_WINDOW_SIZE, limits.preread),
            (id::MAX_FRAME_SIZE, self.reader.limits.max_frame_size),
            (id::ENABLE_CONNECT_PROTOCOL, 1),
            (id::NO_RFC7540_PRIORITIES, 1),
        ];
        let ((), _) = self.link.append_frames(|output| {
            frame::write_settings(&settings, &mut output.bytes);
            frame::write_window_update(
                0,
                FlowControlWindow::MAX - FlowControlWindow::DEFAULT,
                &mut output.bytes,
            );
        });
    }

    /// Reads and writes for as long as something can be read or written.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEnd> {
        self.link.register(context);
        self.link.sends_small_chunks.set(false);
        self.count_ended();
        self.judge();
        let is_to_end = self.is_to_end(context);
        if is_to_end {
            // Requests that have already arrived are served: the kernel is asked for them now. Whatever the client
            // sends later has a higher stream number than the GOAWAY names, so it may repeat that elsewhere (RFC 9113,
            // section 6.8).
            self.link.bytes.transport.socket().look_again();
        }
        let before = self.taken;
        loop {
            // Writing comes first: it makes room for the answers to what is read next.
            let is_sent = match self.poll_write(context) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return self.write_failed(&error),
                Poll::Pending => false,
            };
            // Only once everything has left, the GOAWAY included.
            if is_sent && self.is_over() {
                return Poll::Ready(ConnectionEnd::Linger);
            }
            if self.phase == Http2Phase::Closing
                || self.link.output.borrow().pending() >= STOP_READING
            {
                break;
            }
            if self.taken - before >= self.share() {
                // Other tasks get their turn. The poll of a yield only arranges that this task is polled again soon.
                let _ = std::pin::pin!(rt::yield_now()).poll(context);
                break;
            }
            match self.poll_read(context) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => return self.client_left(),
                Poll::Ready(Err(error)) => self.fail(error),
                // Around again: the GOAWAY has to leave, too.
                Poll::Pending if is_to_end && self.phase == Http2Phase::Open => {
                    self.start_draining()
                }
                Poll::Pending => break,
            }
        }
        self.poll_little(context);
        self.poll_spares(context);
        // At the end, when the windows of all frames that were read are known: the streams then append together, and
        // one call sends it all.
        self.link.wake_fitting();
        self.poll_timers(context)
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
        self.link.is_output_closed.set(true);
        let streams = self.link.streams.borrow().clone();
        for stream in streams {
            stream.close_by_client();
        }
    }

    /// The settings of the address's default server, which also govern the end of the connection.
    pub(super) fn core(&self) -> Arc<LocationConf> {
        Arc::clone(&self.limits.core)
    }

    /// How much is read in one iteration of the loop, in bytes.
    fn share(&self) -> u64 {
        match self.link.rank.get() {
            rt::TaskRank::Patient => READ_FROM_STRANGERS as u64,
            rt::TaskRank::Ordinary => SHARE,
        }
    }

    /// Chooses the rank in which the connection runs, by what is known of its client.
    fn judge(&mut self) {
        let link = &self.link;
        let is_known = link.completed.get() >= KNOWN_AFTER
            || self.content > KNOWN_AFTER_BYTES
            || link.bytes.sent.get() > KNOWN_AFTER_BYTES;
        let is_costly = self.budget.is_low(rt::now());
        // Streams need it, too: for such a client they hold back small pieces for longer.
        link.is_costly.set(is_costly);
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
        self.link.tasks.set_rank(rank);
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Http2Phase::Open => false,
            Http2Phase::Draining => self.link.streams.borrow().is_empty(),
            Http2Phase::Closing => true,
        }
    }

    /// Accounts for streams that have ended since the last look.
    fn count_ended(&mut self) {
        let served = self.link.served.take();
        // Only requests that ran to their end: one that the client reset earns nothing.
        self.budget.earn(served.saturating_mul(SERVED));
        if self.link.has_ended_tasks.take() {
            self.link
                .tasks
                .forget_ended(self.link.streams.borrow().len());
        }
        let client = &self.link.client;
        let idle = self.link.streams.borrow().is_empty();
        // From here on the loop may close the connection to make room, as it may an idle one of HTTP/1.
        if idle && client.control.waiting_since().is_none() {
            client
                .control
                .begin_waiting(rt::now(), self.link.bytes.sent.get());
            self.counted.enter_stage(ConnectionStage::Waiting);
        }
    }

    /// Notes that a stream has begun: the loop does not close the connection to make room any more.
    pub(super) fn is_busy(&mut self) {
        self.link.client.control.begin_request();
        self.counted.enter_stage(ConnectionStage::Writing);
    }

    // -- writing --

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let link = Rc::clone(&self.link);
        let stream = &link.bytes.transport;
        let mut output = link.output.borrow_mut();
        let mut wrote = false;
        let result = loop {
            if output.pending() == 0 {
                break stream.poll_flush(context);
            }
            match stream.poll_write(context, &output.bytes[output.sent..]) {
                Poll::Ready(Ok(n)) => {
                    wrote = true;
                    output.sent += n;
                    link.bytes.count_sent(n);
                }
                Poll::Ready(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => break Poll::Pending,
            }
        };
        // One large response must not leave its buffer with a connection that may be idle for minutes.
        if output.pending() == 0 {
            output.bytes.clear();
            output.sent = 0;
            if output.bytes.capacity() > IDLE_OUTPUT && link.streams.borrow().is_empty() {
                output.bytes = Vec::new();
            }
        // Moving the rest to the front costs as much as the rest is long: done only now and then, the cost stays in
        // proportion to the bytes sent.
        } else if output.sent >= OUTPUT_FULL {
            let sent = std::mem::take(&mut output.sent);
            output.bytes.drain(..sent);
        }
        drop(output);
        match &result {
            // `send_timeout` counts from the last progress, as in nginx.
            Poll::Pending if wrote || !self.write_timer.is_set() => {
                self.write_timer.set(self.limits.core.delivery.send_timeout);
            }
            Poll::Pending => {}
            Poll::Ready(_) => self.write_timer.clear(),
        }
        result
    }

    fn write_failed(&mut self, error: &std::io::Error) -> Poll<ConnectionEnd> {
        self.log(
            LogLevel::Info,
            format_args!(
                "send() failed{} while processing HTTP/2 connection",
                ErrnoText(error)
            ),
        );
        Poll::Ready(ConnectionEnd::Gone)
    }

    // -- reading --

    /// Reads once and handles what has arrived. `Ok(false)` at the end of the client's input.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, ConnectionError>> {
        let bytes = Rc::clone(&self.link.bytes);
        let http = Rc::clone(&self.link.http);
        // Into the loop's own buffer: between two reads a connection keeps at most the incomplete part of a frame.
        let mut scratch = std::mem::take(&mut *http.scratch.borrow_mut());
        scratch.clear();
        let mut input = bytes.input.borrow_mut();
        let n = if self.taken == 0 && !input.is_empty() {
            // What was read before the protocol was known, to be parsed without reading more.
            input.len()
        } else {
            let most = match self.link.rank.get() {
                rt::TaskRank::Patient => self.limits.read_size.min(READ_FROM_STRANGERS),
                rt::TaskRank::Ordinary => self.limits.read_size,
            };
            let read = bytes.transport.poll_read_into(context, &mut scratch, most);
            match read {
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => {
                    *http.scratch.borrow_mut() = scratch;
                    if error.kind() == std::io::ErrorKind::Interrupted {
                        return Poll::Ready(Ok(true));
                    }
                    drop(input);
                    self.log(LogLevel::Info, format_args!("{}", net::ReadFailed(&error)));
                    return Poll::Ready(Ok(false));
                }
                Poll::Pending => {
                    *http.scratch.borrow_mut() = scratch;
                    return Poll::Pending;
                }
            }
        };
        // The file was truncated after its length had been announced. There is nothing to fill the gap with.
        if n == 0 {
            *http.scratch.borrow_mut() = scratch;
            return Poll::Ready(Ok(false));
        }
        self.taken += n as u64;
        self.begun = 0;
        // Mostly no part of a frame is left over, and the bytes are parsed where they were read, without a copy.
        let result = if input.is_empty() {
            let result = self.take(&scratch);
            if let Ok(used) = result {
                input.extend_from_slice(&scratch[used..]);
            }
            result
        } else {
            input.extend_from_slice(&scratch);
            let result = self.take(&input);
            if let Ok(used) = result {
                input.drain(..used);
            }
            if input.is_empty() && input.capacity() > self.limits.read_size {
                *input = Vec::new();
            }
            result
        };
        drop(input);
        *http.scratch.borrow_mut() = scratch;
        result?;
        // Whatever arrives restarts the keep-alive timeout.
        if self.waits == ReadTimeout::Request {
            self.waits = ReadTimeout::Nothing;
        }
        Poll::Ready(self.check_flood().map(|()| true))
    }

    /// Processes what is complete in `bytes`, and returns how much that is.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, ConnectionError> {
        let mut used = 0;
        if self.preface > 0 {
            // The preface may arrive in pieces, too. It is compared as far as it goes: a client that speaks something
            // else is not waited for.
            let expected = &PREFACE[PREFACE.len() - self.preface..];
            let n = expected.len().min(bytes.len());
            if bytes[..n] != expected[..n] {
                return Err(ConnectionError::protocol("invalid connection preface"));
            }
            self.preface -= n;
            used = n;
        }
        while self.preface == 0 {
            let (event, n) = self.reader.next_event(&bytes[used..])?;
            used += n;
            if matches!(event, proto::h2::FrameEvent::More) {
                break;
            }
            // The next frame gets the full timeout.
            self.waits = ReadTimeout::Nothing;
            self.handle_event(event)?;
        }
        Ok(used)
    }

    /// nginx's measure: an eighth of what goes over the connection must be header blocks, content or responses. The
    /// first megabyte is exempt.
    fn check_flood(&self) -> Result<(), ConnectionError> {
        const FREE: u64 = 1 << 20;
        let taken = self.taken + self.link.bytes.sent.get();
        match taken / 8 > self.of_use + self.link.bytes.sent.get() + FREE {
            true => Err(ConnectionError::enhance_your_calm("http2 flood detected")),
            false => Ok(()),
        }
    }

    // -- the end --

    fn client_left(&mut self) -> Poll<ConnectionEnd> {
        // A client may close an idle connection at any time: nothing to log.
        let is_idle = self.link.streams.borrow().is_empty();
        if !is_idle || !self.link.bytes.input.borrow().is_empty() {
            self.log(
                LogLevel::Info,
                format_args!(
                    "client prematurely closed connection while processing HTTP/2 connection"
                ),
            );
        }
        Poll::Ready(ConnectionEnd::Gone)
    }

    /// Ends the connection because the client broke the protocol (RFC 9113, section 5.4.1).
    fn fail(&mut self, error: ConnectionError) {
        let who = match error.what.starts_with("http2") {
            true => "",
            false => "client sent ",
        };
        let what = error.what;
        self.log(
            LogLevel::Info,
            format_args!("{who}{what} while processing HTTP/2 connection"),
        );
        self.finish(error.code);
    }

    /// Sends GOAWAY; the connection ends once that has left.
    pub(super) fn finish(&mut self, code: ErrorCode) {
        self.phase = Http2Phase::Closing;
        self.write_goaway(code);
        // The clients of open streams learn from the GOAWAY that the connection is over; nothing of their responses
        // leaves any more.
        self.end_streams();
        self.write_timer.set(self.limits.core.delivery.send_timeout);
    }

    /// Begins to drain: announces that no new streams are served, and finishes those that exist.
    pub(super) fn start_draining(&mut self) {
        if self.phase == Http2Phase::Open {
            self.phase = Http2Phase::Draining;
            self.write_goaway(ErrorCode::NO_ERROR);
        }
    }

    /// Whether new streams are ignored.
    pub(super) fn is_draining(&self) -> bool {
        self.phase != Http2Phase::Open
    }

    fn write_goaway(&mut self, code: ErrorCode) {
        let last = self.last;
        self.debug(format_args!(
            "http2 send GOAWAY frame: last sid {last}, error {}",
            code.0
        ));
        let ((), _) = self
            .link
            .append_frames(|output| frame::write_goaway(last, code, &mut output.bytes));
    }

    /// Whether the loop has asked the connection to end once its streams have. An order to move counts as well, because
    /// an HTTP/2 connection cannot.
    fn is_to_end(&self, context: &mut Context<'_>) -> bool {
        self.phase == Http2Phase::Open && self.link.client.control.poll_order(context).is_ready()
    }

    /// The connection is dropped while it is open, by an abort of the loop: GOAWAY is sent if that needs no waiting.
    fn say_goodbye(&mut self) {
        let last = self.last;
        // A drop in the middle of a write, after a panic for instance, must not panic again.
        let Ok(mut output) = self.link.output.try_borrow_mut() else {
            return;
        };
        frame::write_goaway(last, ErrorCode::NO_ERROR, &mut output.bytes);
        let sent = output.sent;
        // Whatever does not leave now never will.
        let _ = self.link.bytes.transport.try_write(&output.bytes[sent..]);
    }

    /// Writes a line about the connection.
    pub(super) fn log(&self, level: LogLevel, message: std::fmt::Arguments<'_>) {
        let link = &self.link;
        link.http.log_client(level, &link.client, message);
    }

    /// Writes a line at level `debug`.
    #[inline]
    pub(super) fn debug(&self, message: std::fmt::Arguments<'_>) {
        self.link.http.debug_client(&self.link.client, message);
    }
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        if self.phase != Http2Phase::Closing && !self.link.is_output_closed.get() {
            self.say_goodbye();
        }
        // The loop may drop a connection at any time; its streams end with it, since their tasks run on their own.
        self.end_streams();
        self.link.tasks.abort_all();
    }
}
