//! Bytes between two connections, both ways.
//!
//! A direction begins with a buffer: it is filled from one side and emptied into the other. When it has carried
//! [`SPLICE_AFTER`] bytes and has no rate limit, a pipe of the kernel takes the buffer's place, and the bytes are not
//! seen here any more. Short sessions, which are most, do without the pipe and its two descriptors.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use ::stream::Session;
use ::stream::module::status;
use net::Transport;
use net::upstream::Times;
use rt::error_log::{Errno, Level};
use rt::net::Pipe;

use super::rate::Pace;
use super::{Conf, Ended, last, proxy_header, traffic};

/// Bytes after which a direction goes on through a pipe.
const SPLICE_AFTER: u64 = 256 * 1024;

/// How much a pipe is filled with at once, in bytes: what it holds.
const SPLICE_SIZE: usize = 64 * 1024;

/// One direction.
struct Direction {
    from: Rc<Transport>,
    to: Rc<Transport>,
    buffer: Vec<u8>,
    /// How much of the buffer is sent.
    at: usize,
    /// How much is read at once.
    size: usize,
    pipe: Option<Pipe>,
    pace: Pace,
    received: u64,
    sent: u64,
    /// `from` has finished, or broke.
    ended: bool,
    /// `to` was told so.
    finished: bool,
    /// How `from` broke.
    broke: Option<io::Error>,
}

/// What polling a direction came to.
enum Moved {
    /// Nothing moved.
    Nothing,
    /// Something did.
    Bytes,
    /// The other side takes no more.
    Broken,
}

impl Direction {
    fn new(from: &Rc<Transport>, to: &Rc<Transport>, size: u64, pace: Pace) -> Direction {
        Direction {
            from: Rc::clone(from),
            to: Rc::clone(to),
            buffer: Vec::new(),
            at: 0,
            size: usize::try_from(size).unwrap_or(usize::MAX).max(1),
            pipe: None,
            pace,
            received: 0,
            sent: 0,
            ended: false,
            finished: false,
            broke: None,
        }
    }

    /// Bytes that were read and not yet sent.
    fn held(&self) -> usize {
        self.buffer.len() - self.at + self.pipe.as_ref().map_or(0, Pipe::held)
    }

    /// Moves what can be moved.
    fn poll(&mut self, context: &mut Context<'_>) -> Moved {
        let mut moved = Moved::Nothing;
        loop {
            match self.poll_send(context) {
                Poll::Ready(Ok(0)) => {}
                Poll::Ready(Ok(_)) => moved = Moved::Bytes,
                Poll::Ready(Err(_)) => return Moved::Broken,
                Poll::Pending => return moved,
            }
            if self.ended || self.pace.waits(context) {
                return moved;
            }
            match self.poll_receive(context) {
                Poll::Ready(Ok(0)) => self.ended = true,
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => {
                    self.ended = true;
                    self.broke = Some(error);
                }
                Poll::Pending => return moved,
            }
            moved = Moved::Bytes;
        }
    }

    /// Sends all that is held: how much it was.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut total = 0;
        while self.held() > 0 {
            let sent = match &self.pipe {
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
        self.buffer.clear();
        self.at = 0;
        match self.to.poll_flush(context) {
            Poll::Ready(result) => Poll::Ready(result.map(|()| total)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Reads; everything that was read before is sent.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.pipe.is_none()
            && self.received >= SPLICE_AFTER
            && self.pace.is_unlimited()
            && !self.from.is_tls()
            && !self.to.is_tls()
        {
            // Without descriptors for it the buffer serves on.
            self.pipe = Pipe::new().ok();
            self.buffer = Vec::new();
        }
        let received = match &self.pipe {
            Some(pipe) => pipe.poll_fill(context, self.from.socket(), SPLICE_SIZE),
            None => {
                let most = self.size.min(self.pace.allows(self.received));
                if most == 0 {
                    // Arms the timer that the pace has set.
                    let waits = self.pace.waits(context);
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

    /// Tells the other side that no more comes, once.
    fn finish(&mut self) {
        if self.ended && self.held() == 0 && !std::mem::replace(&mut self.finished, true) {
            // It fails when the other side is gone, which is then seen from there.
            let _ = self.to.shutdown_write();
        }
    }
}

/// Both directions.
struct Relay {
    up: Direction,
    down: Direction,
    half_close: bool,
    timer: rt::Timer,
    timeout: Duration,
    since: Instant,
    first_byte: Option<Duration>,
}

/// Why a session ended.
enum End {
    /// Both sides are done with each other.
    Disconnected { by: &'static str },
    /// A side takes no more.
    Broken,
    /// Nothing moved for too long.
    TimedOut,
}

impl Relay {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let mut moves = false;
        for direction in [&mut self.up, &mut self.down] {
            match direction.poll(context) {
                Moved::Nothing => {}
                Moved::Bytes => moves = true,
                Moved::Broken => return Poll::Ready(End::Broken),
            }
            if self.half_close {
                direction.finish();
            }
        }
        if self.first_byte.is_none() && self.down.received > 0 {
            self.first_byte = Some(rt::now().saturating_duration_since(self.since));
        }
        if let Some(by) = self.is_over() {
            return Poll::Ready(End::Disconnected { by });
        }
        if self.up.pace.is_delayed() || self.down.pace.is_delayed() {
            self.timer.clear();
        } else if moves || !self.timer.is_set() {
            self.timer.set(self.timeout);
        }
        if !self.timer.is_set() {
            return Poll::Pending;
        }
        self.timer.poll_expired(context).map(|()| End::TimedOut)
    }

    /// Whether nothing more is to be moved, and who ended it.
    fn is_over(&self) -> Option<&'static str> {
        let (client, upstream) = (self.up.ended, self.down.ended);
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

    fn store(&self, session: &mut Session, before: u64) {
        session.received = before + self.up.received;
        session.client.sent.set(self.down.sent);
        let last = last(session);
        last.first_byte = self.first_byte;
        last.received = self.down.received;
        last.sent = self.up.sent;
    }
}

/// Runs a session on a connection that stands.
pub(super) async fn run(
    session: &mut Session,
    conf: &Conf,
    upstream: Transport,
    since: Instant,
) -> Ended {
    let Some(client) = session.client.stream().cloned() else {
        return Ended {
            status: status::INTERNAL_SERVER_ERROR,
            times: Times::default(),
            failed: false,
        };
    };
    let upstream = Rc::new(upstream);
    let paces = (
        Pace::new(session, &conf.upload_rate),
        Pace::new(session, &conf.download_rate),
    );
    let mut relay = Relay {
        up: Direction::new(&client, &upstream, conf.buffer_size, paces.0),
        down: Direction::new(&upstream, &client, conf.buffer_size, paces.1),
        half_close: conf.half_close,
        timer: rt::Timer::new(),
        timeout: conf.timeout,
        since,
        first_byte: None,
    };
    // With TLS it went before the handshake.
    let header = match upstream.is_tls() {
        true => Vec::new(),
        false => proxy_header(session, conf.proxy_protocol),
    };
    let input = std::mem::take(&mut *session.client.input.borrow_mut());
    let before = input.len() as u64;
    relay.up.buffer = [header, input].concat();
    session.action = "proxying connection";
    let end = poll_fn(|context| relay.poll(context)).await;
    relay.store(session, before);
    for (direction, peer) in [(&relay.up, "client"), (&relay.down, "upstream")] {
        if let Some(error) = &direction.broke {
            session.log(
                Level::Info,
                format_args!(
                    "recv() failed{} while proxying and reading from {peer}",
                    Errno(error)
                ),
            );
        }
    }
    match end {
        End::Disconnected { by } => {
            for direction in [&relay.up, &relay.down] {
                // What broke off must not look whole.
                if direction.broke.is_none() && direction.held() == 0 {
                    direction.to.say_goodbye();
                }
            }
            let traffic = traffic(session);
            session.log_plainly(Level::Info, format_args!("{by} disconnected, {traffic}"));
        }
        End::TimedOut => session.log(
            Level::Info,
            format_args!("connection timed out (110: Connection timed out)"),
        ),
        End::Broken => {}
    }
    let times = Times {
        connect: None,
        header: relay.first_byte,
        response: Some(rt::now().saturating_duration_since(since)),
    };
    Ended {
        status: status::OK,
        times,
        failed: false,
    }
}
