//! Passes bytes between two connections, in both directions.
//!
//! Each direction starts with a buffer, which is filled from one side and written to the other.
//! After [`SPLICE_AFTER`] bytes, and without a rate limit, a kernel pipe replaces the buffer
//! (`splice(2)`), so that the bytes no longer pass through this process. Most sessions are short
//! and do without the pipe and its two descriptors.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::stream::StreamSession;
use ::stream::module::status;
use base::ErrnoText;
use host::error_log::LogLevel;
use net::Transport;
use net::upstream::UpstreamTimes;
use rt::net::SplicePipe;

use super::rate::RateLimiter;
use super::{Conf, SessionEnd, current_try, elapsed, proxy_header, traffic};

/// The number of bytes after which a direction continues through a pipe.
const SPLICE_AFTER: u64 = 256 * 1024;

/// How many bytes are spliced into a pipe at once: its default capacity.
const SPLICE_SIZE: usize = 64 * 1024;

/// One direction of a session.
struct RelayDirection {
    from: Rc<Transport>,
    to: Rc<Transport>,
    /// Empty whenever there is nothing to send, also after the switch to a pipe.
    buffer: Vec<u8>,
    /// The length of the part of the buffer that has been sent.
    at: usize,
    /// The maximum length of a read: `proxy_buffer_size`.
    size: usize,
    /// Set when the direction is spliced.
    pipe: Option<SplicePipe>,
    pace: RateLimiter,
    received: u64,
    sent: u64,
    /// Whether `from` has ended or failed.
    source_ended: bool,
    /// Whether the end was passed on to `to`.
    sink_is_shut: bool,
    /// The error of `from`, if it failed.
    read_error: Option<io::Error>,
}

/// The result of polling a direction.
enum MoveResult {
    /// Nothing moved.
    Nothing,
    /// Bytes moved, or the end was seen.
    Bytes,
    /// The other side accepts no more bytes.
    Broken,
}

impl RelayDirection {
    /// A direction that has moved nothing yet. Its buffer is allocated with the first read.
    fn new(
        from: &Rc<Transport>,
        to: &Rc<Transport>,
        size: u64,
        pace: RateLimiter,
    ) -> RelayDirection {
        RelayDirection {
            from: Rc::clone(from),
            to: Rc::clone(to),
            buffer: Vec::new(),
            at: 0,
            size: usize::try_from(size).unwrap_or(usize::MAX).max(1),
            pipe: None,
            pace,
            received: 0,
            sent: 0,
            source_ended: false,
            sink_is_shut: false,
            read_error: None,
        }
    }

    /// The number of bytes that were read and not yet sent.
    fn held(&self) -> usize {
        self.buffer.len() - self.at + self.pipe.as_ref().map_or(0, SplicePipe::held)
    }

    /// Moves as much as possible.
    fn poll(&mut self, context: &mut Context<'_>) -> MoveResult {
        let mut moved = MoveResult::Nothing;
        loop {
            // Writing comes first: the buffer must be empty before the next read, which bounds the
            // memory of a session.
            match self.poll_send(context) {
                Poll::Ready(Ok(0)) => {}
                Poll::Ready(Ok(_)) => moved = MoveResult::Bytes,
                Poll::Ready(Err(_)) => return MoveResult::Broken,
                Poll::Pending => return moved,
            }
            if self.source_ended || self.pace.is_waiting(context) {
                return moved;
            }
            match self.poll_receive(context) {
                Poll::Ready(Ok(0)) => self.source_ended = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.source_ended = true;
                    self.read_error = Some(error);
                }
                Poll::Pending => return moved,
            }
            moved = MoveResult::Bytes;
        }
    }

    /// Sends all that was read, and returns its length.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut total = 0;
        while self.held() > 0 {
            let sent = match &self.pipe {
                // At most one of the two holds bytes: the pipe is filled only when the buffer is empty.
                Some(pipe) if pipe.held() > 0 => pipe.poll_empty(context, self.to.socket()),
                _ => self.to.poll_write(context, &self.buffer[self.at..]),
            };
            match sent {
                Poll::Ready(Ok(n)) => {
                    total += n;
                    self.sent += n as u64;
                    if self.at < self.buffer.len() {
                        self.at += n;
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        // The capacity is kept for the next read.
        self.buffer.clear();
        self.at = 0;
        // With TLS, bytes that were written may still wait here, encrypted. Without this, the last ones of a
        // session could stay unsent.
        match self.to.poll_flush(context) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| total)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Reads; all that was read before has been sent.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.pipe.is_none()
            && self.received >= SPLICE_AFTER
            && self.pace.is_unlimited()
            // TLS is encrypted in this process, so the bytes have to pass through it.
            && !self.from.is_tls()
            && !self.to.is_tls()
        {
            // If there are no descriptors left, the session continues with the buffer.
            self.pipe = SplicePipe::new().ok();
            self.buffer = Vec::new();
        }
        let received = match &self.pipe {
            Some(pipe) => pipe.poll_fill(context, self.from.socket(), SPLICE_SIZE),
            None => {
                let most = self.size.min(self.pace.allowance(self.received));
                if most == 0 {
                    // Registers this task with the timer that was just set.
                    let waits = self.pace.is_waiting(context);
                    debug_assert!(waits, "a pace that allows nothing waits");
                    return Poll::Pending;
                }
                self.from.poll_read_into(context, &mut self.buffer, most)
            }
        };
        if let Poll::Ready(Ok(n)) = received {
            self.received += n as u64;
            self.pace.spend(n);
        }
        received
    }

    /// Passes the end on to the other side, once.
    fn shut_sink(&mut self, context: &mut Context<'_>) {
        if self.source_ended
            && self.held() == 0
            && !self.sink_is_shut
            // Fails if the other side is gone, which polling that side will show.
            && let Poll::Ready(_gone) = self.to.poll_shutdown_write(context)
        {
            self.sink_is_shut = true;
        }
    }
}

/// A session: both directions.
struct SessionRelay {
    up: RelayDirection,
    down: RelayDirection,
    half_close: bool,
    timer: rt::Timer,
    timeout: Duration,
    /// The start of the try, for times in the log.
    since: Instant,
    /// The time to the server's first byte.
    first_byte: Option<Duration>,
}

/// How a session ended.
enum RelayEnd {
    /// Orderly, by the side with this name.
    Disconnected { by: &'static str },
    /// A side accepts no more bytes.
    Broken,
    /// No bytes moved for too long.
    TimedOut,
}

impl SessionRelay {
    /// A session on an established connection.
    fn new(
        session: &mut StreamSession,
        conf: &Conf,
        client: Rc<Transport>,
        upstream: Transport,
        since: Instant,
    ) -> SessionRelay {
        let upstream = Rc::new(upstream);
        let upload = RateLimiter::new(session, &conf.upload_rate);
        let download = RateLimiter::new(session, &conf.download_rate);
        SessionRelay {
            up: RelayDirection::new(&client, &upstream, conf.buffer_size, upload),
            down: RelayDirection::new(&upstream, &client, conf.buffer_size, download),
            half_close: conf.half_close,
            timer: rt::Timer::new(),
            timeout: conf.timeout,
            since,
            first_byte: None,
        }
    }

    /// Runs the session to its end.
    async fn run(mut self, session: &mut StreamSession, conf: &Conf) -> SessionEnd {
        // With TLS it was sent before the handshake.
        let header = match self.down.from.is_tls() {
            true => Vec::new(),
            false => proxy_header(session, conf.proxy_protocol),
        };
        // What was read ahead of the proxy, for example by `ssl_preread`, goes to the server first.
        let input = std::mem::take(&mut *session.client.input.borrow_mut());
        let before = input.len() as u64;
        // One buffer, so that the header and the first bytes leave in one segment.
        self.up.buffer = [header, input].concat();
        session.action = "proxying connection";
        let end = poll_fn(|context| self.poll(context)).await;
        // Before anything is logged: the lines contain the counts.
        self.store(session, before);
        self.log_broken(session);
        self.end(session, end);
        let times = UpstreamTimes {
            connect: None,
            header: self.first_byte,
            response: Some(elapsed(self.since)),
        };
        SessionEnd {
            status: status::OK,
            times,
            failed: false,
        }
    }

    /// Moves bytes in both directions until the session ends.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<RelayEnd> {
        let mut moves = false;
        for direction in [&mut self.up, &mut self.down] {
            // Both directions are polled every time: only then is this task registered with both sockets.
            match direction.poll(context) {
                MoveResult::Nothing => {}
                MoveResult::Bytes => moves = true,
                MoveResult::Broken => return Poll::Ready(RelayEnd::Broken),
            }
            if self.half_close {
                direction.shut_sink(context);
            }
        }
        if self.first_byte.is_none() && self.down.received > 0 {
            self.first_byte = Some(elapsed(self.since));
        }
        // Before the timer: a session that has just ended must not time out.
        if let Some(by) = self.is_over() {
            return Poll::Ready(RelayEnd::Disconnected { by });
        }
        // The silence is of our own making, so it must not end the session.
        if self.up.pace.is_delayed() || self.down.pace.is_delayed() {
            self.timer.clear();
        // As in nginx, a transfer in either direction counts as activity of the session.
        } else if moves || !self.timer.is_set() {
            self.timer.set(self.timeout);
        }
        if !self.timer.is_set() {
            return Poll::Pending;
        }
        self.timer
            .poll_expired(context)
            .map(|()| RelayEnd::TimedOut)
    }

    /// Whether the session is over, and which side ended it.
    fn is_over(&self) -> Option<&'static str> {
        let (client, upstream) = (self.up.source_ended, self.down.source_ended);
        // Without `proxy_half_close`, the end of one side ends the session as soon as its last
        // bytes are delivered.
        let over = match (client, upstream) {
            (false, false) => false,
            _ if self.half_close => {
                client && upstream && self.up.held() == 0 && self.down.held() == 0
            }
            (true, true) => true,
            (true, false) => self.up.held() == 0,
            (false, true) => self.down.held() == 0,
        };
        over.then_some(if upstream { "upstream" } else { "client" })
    }

    /// Copies the counts to the session, for variables and the log.
    fn store(&self, session: &mut StreamSession, before: u64) {
        session.received = before + self.up.received;
        session.client.sent.set(self.down.sent);
        let last = current_try(session);
        last.first_byte = self.first_byte;
        last.received = self.down.received;
        last.sent = self.up.sent;
    }

    /// Logs how a side failed. At level `info`, as in nginx: the peers are to blame.
    fn log_broken(&self, session: &mut StreamSession) {
        for (direction, peer) in [(&self.up, "client"), (&self.down, "upstream")] {
            if let Some(error) = &direction.read_error {
                session.log(
                    LogLevel::Info,
                    format_args!(
                        "recv() failed{} while proxying and reading from {peer}",
                        ErrnoText(error)
                    ),
                );
            }
        }
    }

    /// Ends both connections in good order, if that is how the session ended, and logs it.
    fn end(&self, session: &mut StreamSession, end: RelayEnd) {
        match end {
            RelayEnd::Disconnected { by } => {
                for direction in [&self.up, &self.down] {
                    // TLS's closing alert says that the content is complete, so it is left out if
                    // the other side broke off.
                    if direction.read_error.is_none() && direction.held() == 0 {
                        direction.to.say_goodbye();
                    }
                }
                let traffic = traffic(session);
                session.log_plainly(LogLevel::Info, format_args!("{by} disconnected, {traffic}"));
            }
            RelayEnd::TimedOut => session.log(
                LogLevel::Info,
                format_args!("connection timed out (110: Connection timed out)"),
            ),
            RelayEnd::Broken => {}
        }
    }
}

/// Runs a TCP session on an established upstream connection.
pub(super) async fn run(
    session: &mut StreamSession,
    conf: &Conf,
    upstream: Transport,
    since: Instant,
) -> SessionEnd {
    let Some(client) = session.client.stream().cloned() else {
        return SessionEnd {
            status: status::INTERNAL_SERVER_ERROR,
            times: UpstreamTimes::default(),
            failed: false,
        };
    };
    let relay = SessionRelay::new(session, conf, client, upstream, since);
    relay.run(session, conf).await
}
