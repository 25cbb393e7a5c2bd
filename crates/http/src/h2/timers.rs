//! What an HTTP/2 connection waits for, and what it does when that does not come: its client's next frame, room in the
//! socket, a larger window, the next request.
//!
//! Requests and responses have timers of their own, in the tasks of their streams.

use std::task::{Context, Poll};
use std::time::Duration;

use host::error_log::Level;
use proto::h2::ErrorCode;

use super::connection::{Connection, End, Phase};
use super::link::{Closed, How};

/// How long a little piece of content waits for the client's window to become larger ([`Link::usable`](super::link::Link::usable)).
const LITTLE_WAIT: Duration = Duration::from_millis(50);

/// How long a connection is idle before it gives the requests back that it keeps to become others.
const SPARES_WAIT: Duration = Duration::from_secs(1);

/// What the read timer runs for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: streams have timers of their own.
    Nothing,
    /// The rest of a frame.
    Frame,
    /// A request.
    Request,
}

impl Connection {
    /// Lets streams that wait for a larger window send what little they may, after some time.
    pub(super) fn poll_little(&mut self, context: &mut Context<'_>) {
        if self.link.waiting.borrow().is_empty() || !self.link.keeps_little() {
            return self.little_timer.clear();
        }
        if !self.little_timer.is_set() {
            self.little_timer.set(LITTLE_WAIT);
        }
        if self.little_timer.poll_expired(context).is_ready() {
            self.little_timer.clear();
            self.link.takes_little.set(true);
        }
    }

    /// Keeps memory for the next requests only for as long as they come. The timer goes on while they do: it is set once
    /// in a second, not for each of them.
    pub(super) fn poll_spares(&mut self, context: &mut Context<'_>) {
        if !self.spares_timer.is_set() {
            if self.link.has_spares() && self.link.streams.borrow().is_empty() {
                self.spares_timer.set(SPARES_WAIT);
            } else {
                return;
            }
        }
        if self.spares_timer.poll_expired(context).is_ready() {
            self.spares_timer.clear();
            if self.link.streams.borrow().is_empty() {
                self.link.give_spares();
            }
        }
    }

    pub(super) fn poll_timers(&mut self, context: &mut Context<'_>) -> Poll<End> {
        let waits = self.what_is_waited_for();
        // A frame that came has ended what was waited for before it, but not the timer of that.
        if waits != self.waits || (waits == Waits::Nothing && self.read_timer.is_set()) {
            self.waits = waits;
            match waits {
                Waits::Nothing => self.read_timer.clear(),
                // Content of a request that is over already holds nobody up.
                Waits::Frame if self.reader.is_in_data() => {
                    let core = &self.limits.core;
                    self.read_timer
                        .set(core.keepalive_timeout.max(self.limits.header_timeout));
                }
                Waits::Frame => self.read_timer.set(self.limits.header_timeout),
                Waits::Request if self.last == 0 => {
                    self.read_timer.set(self.limits.header_timeout);
                }
                Waits::Request => self.read_timer.set(self.limits.core.keepalive_timeout),
            }
        }
        if self.write_timer.is_set() && self.write_timer.poll_expired(context).is_ready() {
            self.debug(format_args!("http2 write event timed out"));
            if self.limits.core.reset_timedout_connection {
                // The descriptor goes with the client; how it goes is decided here.
                let _ = self.link.bytes.transport.socket().set_reset_on_close();
            }
            return Poll::Ready(End::Gone);
        }
        if self.read_timer.is_set() && self.read_timer.poll_expired(context).is_ready() {
            self.read_timer.clear();
            if self.waits == Waits::Request && self.last > 0 {
                self.finish(ErrorCode::NO_ERROR);
            } else if self.gives_up_headers() {
                let core = &self.limits.core;
                self.read_timer
                    .set(core.keepalive_timeout.max(self.limits.header_timeout));
            } else {
                self.log(
                    Level::Info,
                    format_args!(
                        "client timed out (110: Connection timed out) while processing HTTP/2 connection"
                    ),
                );
                self.finish(ErrorCode::PROTOCOL_ERROR);
            }
            return self.poll(context);
        }
        Poll::Pending
    }

    /// A request whose head did not come in time is reset, and the connection goes on: but once, because nothing else
    /// can come before the rest of that head.
    fn gives_up_headers(&mut self) -> bool {
        let incomplete = self
            .reader
            .incomplete_headers(&self.link.bytes.input.borrow());
        let Some(id) = incomplete.filter(|id| *id > self.last) else {
            return false;
        };
        self.log(
            Level::Info,
            format_args!(
                "client timed out (110: Connection timed out) while reading client request headers"
            ),
        );
        self.last = id;
        self.link.write_reset(id, ErrorCode::PROTOCOL_ERROR);
        self.link.note_closed(Closed {
            stream: id,
            how: How::Ours,
            content_left: None,
        });
        true
    }

    fn what_is_waited_for(&self) -> Waits {
        let is_idle = self.link.streams.borrow().is_empty();
        let has_part = self.preface > 0
            || !self.reader.is_between_frames()
            || !self.link.bytes.input.borrow().is_empty();
        match (self.phase, has_part) {
            (Phase::Closing, _) => Waits::Nothing,
            // Content has the timer of its request.
            (_, true) if !is_idle && self.reader.is_in_data() => Waits::Nothing,
            (_, true) if self.preface == 0 => Waits::Frame,
            _ if is_idle => Waits::Request,
            _ => Waits::Nothing,
        }
    }
}
