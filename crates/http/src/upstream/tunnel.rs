//! After 101, or CONNECT: bytes in both directions, until both have ended (RFC 9110, sections
//! 7.8 and 9.3.6).
//!
//! What the peer sends is the body of the response, so that it passes the client's connection like any content. What the
//! client sends is carried whenever that body is asked for more, or the client's connection is waited for. One side may
//! end and still receive: its end is passed on.

use std::io;
use std::task::{Context, Poll};

use base::Errno;
use bytes::Bytes;
use host::error_log::Level;

use super::exchange::Exchange;

use crate::body::{BodyError, Chunk, Source};
use crate::request::Request;

/// How much is read at a time, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// Carries bytes between a client and a peer.
pub(super) struct Tunnel {
    exchange: Box<Exchange>,
    from_client: Vec<u8>,
    carried: usize,
    client_ended: bool,
    peer: Peer,
    /// Runs while the peer takes nothing of what there is for it.
    send_timer: rt::Timer,
    peer_is_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Open,
    /// It ended; what it sent has still to reach the client.
    Ending,
    /// It ended, and the client knows.
    Ended,
    /// It broke.
    Broken,
}

impl Tunnel {
    /// A tunnel over the connection of an exchange, whose response was a 101 or needs none.
    pub(super) fn new(exchange: Box<Exchange>) -> Tunnel {
        exchange.timer.set(exchange.settings.read_timeout);
        Tunnel {
            exchange,
            from_client: Vec::new(),
            carried: 0,
            client_ended: false,
            peer: Peer::Open,
            send_timer: rt::Timer::new(),
            peer_is_full: false,
        }
    }

    /// Carries what the client has sent. `Err` when the peer's connection broke.
    fn poll_client(&mut self, request: &mut Request, context: &mut Context<'_>) -> io::Result<()> {
        let Some(link) = &self.exchange.attempt.link else {
            return Ok(());
        };
        let stream = &link.connection.stream;
        loop {
            while self.carried < self.from_client.len() {
                match stream.poll_write(context, &self.from_client[self.carried..]) {
                    Poll::Pending => {
                        if !std::mem::replace(&mut self.peer_is_full, true) {
                            self.send_timer.set(self.exchange.settings.send_timeout);
                        }
                        return Ok(());
                    }
                    Poll::Ready(result) => {
                        let n = result?;
                        self.peer_is_full = false;
                        self.carried += n;
                        request.upstream.get_or_make().current().bytes_sent += n as u64;
                        self.exchange.timer.set(self.exchange.settings.read_timeout);
                    }
                }
            }
            if self.client_ended {
                return Ok(());
            }
            self.from_client.clear();
            self.carried = 0;
            match request
                .stream
                .poll_take(&mut self.from_client, READ_SIZE, context)
            {
                Poll::Pending => return Ok(()),
                Poll::Ready(true) => {}
                Poll::Ready(false) => {
                    self.client_ended = true;
                    // The peer may be gone already, and then it needs no end.
                    let _gone = stream.shutdown_write();
                }
            }
        }
    }

    fn poll_peer(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Chunk>> {
        if !self.exchange.rest.is_empty() {
            return Poll::Ready(Some(Chunk::Bytes(std::mem::take(&mut self.exchange.rest))));
        }
        let Some(link) = &self.exchange.attempt.link else {
            return Poll::Ready(None);
        };
        let mut data = Vec::new();
        match link
            .connection
            .stream
            .poll_read_into(context, &mut data, READ_SIZE)
        {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(0)) => {
                self.peer = Peer::Ending;
                Poll::Ready(Some(Chunk::Flush))
            }
            Poll::Ready(Ok(n)) => {
                self.exchange.timer.set(self.exchange.settings.read_timeout);
                let current = request.upstream.get_or_make().current();
                current.bytes_received += n as u64;
                current.response_length += n as u64;
                Poll::Ready(Some(Chunk::Bytes(if n * 2 < data.capacity() {
                    Bytes::copy_from_slice(&data)
                } else {
                    data.into()
                })))
            }
            Poll::Ready(Err(error)) => {
                request.log(
                    Level::Info,
                    format_args!(
                        "{} while proxying upgraded connection",
                        net::ReadFailed(&error)
                    ),
                );
                self.peer = Peer::Broken;
                Poll::Ready(None)
            }
        }
    }

    fn finish(&mut self, request: &mut Request) -> Poll<Option<Result<Chunk, BodyError>>> {
        self.exchange.finish(request, false);
        Poll::Ready(None)
    }
}

impl Source for Tunnel {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Chunk, BodyError>>> {
        loop {
            if let Err(error) = self.poll_client(request, context) {
                request.log(
                    Level::Info,
                    format_args!(
                        "send() failed{} while proxying upgraded connection",
                        Errno(&error)
                    ),
                );
                self.client_ended = true;
                self.from_client.clear();
                self.carried = 0;
            }
            match self.peer {
                Peer::Open => {}
                Peer::Ending => {
                    // Everything before this was flushed: the client learns of the end.
                    self.peer = Peer::Ended;
                    request.stream.end();
                }
                Peer::Ended if self.client_ended => return self.finish(request),
                Peer::Ended => {}
                Peer::Broken if request.stream.can_be_reset() => {
                    // A stream can say that it was no good end.
                    self.exchange.finish(request, false);
                    return Poll::Ready(Some(Err(BodyError::Producer)));
                }
                Peer::Broken => return self.finish(request),
            }
            if self.peer == Peer::Open {
                match self.poll_peer(request, context) {
                    Poll::Ready(Some(chunk)) => return Poll::Ready(Some(Ok(chunk))),
                    Poll::Ready(None) => continue,
                    Poll::Pending => {}
                }
            } else if self.client_ended {
                continue;
            }
            let peer_stuck = self.peer_is_full && self.send_timer.poll_expired(context).is_ready();
            if peer_stuck || self.exchange.timer.poll_expired(context).is_ready() {
                request.error(format_args!("upstream timed out (110: Connection timed out) while proxying upgraded connection"));
                return self.finish(request);
            }
            return Poll::Pending;
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        // An error shows when the body is asked the next time.
        let _later = self.poll_client(request, context);
    }
}
