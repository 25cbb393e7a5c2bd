//! What an HTTP/2 connection waits for, and what it does when that does not come: its client's next frame, room in the
//! socket, a larger window, the next request.
//!
//! Requests and responses have timers of their own, in the tasks of their streams.

use std::task::{Context, Poll};
use std::time::Duration;

use host::error_log::LogLevel;
use proto::h2::ErrorCode;

use super::connection::{ConnectionEnd, Http2Connection, Http2Phase};
use super::connection_link::{ClosedHttp2Stream, Http2StreamEnd};

/// How long a little piece of content waits for the client's window to become larger
/// ([`Http2Link::usable_window`](super::connection_link::Http2Link::usable_window)).
const LITTLE_WAIT: Duration = Duration::from_millis(50);

/// How long a connection is idle before it frees the request structs that it keeps for reuse.
const SPARES_WAIT: Duration = Duration::from_secs(1);

/// What the read timer is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadTimeout {
    /// Nothing: the open streams have timers of their own.
    Nothing,
    /// The rest of a frame, within `client_header_timeout`.
    Frame,
    /// A request.
    Request,
}

impl Http2Connection {
    /// After some time lets streams that wait for a larger window send the little that they may: a client with small
    /// windows is slow, not wrong.
    pub(super) fn poll_little(&mut self, context: &mut Context<'_>) {
        if self.link.waiting.borrow().is_empty() || !self.link.keeps_little() {
            return self.little_timer.clear();
        }
        if !self.little_timer.is_set() {
            self.little_timer.set(LITTLE_WAIT);
        }
        if self.little_timer.poll_expired(context).is_ready() {
            self.little_timer.clear();
            self.link.sends_small_chunks.set(true);
        }
    }

    /// Frees the memory kept for the next requests once the connection has been idle for a second. The timer is not
    /// restarted by each request, only set again when it fires.
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

    pub(super) fn poll_timers(&mut self, context: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let waits = self.what_is_waited_for();
        // A complete frame has ended the earlier wait, but its timer may still be set.
        if waits != self.waits || (waits == ReadTimeout::Nothing && self.read_timer.is_set()) {
            self.waits = waits;
            match waits {
                ReadTimeout::Nothing => self.read_timer.clear(),
                // Content of a request that is already over: it only has to be skipped, so it may take its time.
                ReadTimeout::Frame if self.reader.is_in_data() => {
                    let core = &self.limits.core;
                    self.read_timer
                        .set(core.keepalive_timeout.max(self.limits.header_timeout));
                }
                ReadTimeout::Frame => self.read_timer.set(self.limits.header_timeout),
                ReadTimeout::Request if self.last == 0 => {
                    self.read_timer.set(self.limits.header_timeout);
                }
                ReadTimeout::Request => self.read_timer.set(self.limits.core.keepalive_timeout),
            }
        }
        if self.write_timer.is_set() && self.write_timer.poll_expired(context).is_ready() {
            self.debug(format_args!("http2 write event timed out"));
            if self.limits.core.reset_timedout_connection {
                // The descriptor is closed with the client; this only makes its close a reset. If it fails the close is
                // an ordinary one.
                let _ = self.link.bytes.transport.socket().set_reset_on_close();
            }
            return Poll::Ready(ConnectionEnd::Gone);
        }
        if self.read_timer.is_set() && self.read_timer.poll_expired(context).is_ready() {
            self.read_timer.clear();
            // An idle connection ends politely: NO_ERROR tells the client that its next request may go to a new
            // connection.
            if self.waits == ReadTimeout::Request && self.last > 0 {
                self.finish(ErrorCode::NO_ERROR);
            } else if self.gives_up_headers() {
                let core = &self.limits.core;
                self.read_timer
                    .set(core.keepalive_timeout.max(self.limits.header_timeout));
            } else {
                self.log(
                    LogLevel::Info,
                    format_args!(
                        "client timed out (110: Connection timed out) while processing HTTP/2 connection"
                    ),
                );
                self.finish(ErrorCode::PROTOCOL_ERROR);
            }
            // Again, so that the GOAWAY leaves now. It ends: the timer has been cleared or the phase has changed.
            return self.poll(context);
        }
        Poll::Pending
    }

    /// If a head did not arrive completely in time, its stream is reset and the connection continues, so that its other
    /// streams do not suffer. This happens once only: until the rest of that head has arrived nothing else can.
    fn gives_up_headers(&mut self) -> bool {
        let incomplete = self
            .reader
            .incomplete_headers(&self.link.bytes.input.borrow());
        let Some(id) = incomplete.filter(|id| *id > self.last) else {
            return false;
        };
        self.log(
            LogLevel::Info,
            format_args!(
                "client timed out (110: Connection timed out) while reading client request headers"
            ),
        );
        self.last = id;
        self.link.write_reset(id, ErrorCode::PROTOCOL_ERROR);
        self.link.note_closed(ClosedHttp2Stream {
            stream: id,
            how: Http2StreamEnd::ResetByServer,
            content_left: None,
        });
        true
    }

    /// What the read timer has to wait for.
    fn what_is_waited_for(&self) -> ReadTimeout {
        let is_idle = self.link.streams.borrow().is_empty();
        let has_part = self.preface > 0
            || !self.reader.is_between_frames()
            || !self.link.bytes.input.borrow().is_empty();
        match (self.phase, has_part) {
            (Http2Phase::Closing, _) => ReadTimeout::Nothing,
            // The request that reads this content has a timer for it (`client_body_timeout`).
            (_, true) if !is_idle && self.reader.is_in_data() => ReadTimeout::Nothing,
            (_, true) if self.preface == 0 => ReadTimeout::Frame,
            _ if is_idle => ReadTimeout::Request,
            _ => ReadTimeout::Nothing,
        }
    }
}
