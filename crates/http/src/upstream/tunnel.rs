//! After 101, or CONNECT: bytes in both directions, until both have ended (RFC 9110, sections
//! 7.8 and 9.3.6).
//!
//! What the peer sends is the body of the response, so that it passes the client's connection like any content. What the
//! client sends is carried whenever that body is asked for more, or the client's connection is waited for. One side may
//! end and still receive: its end is passed on.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use rt::error_log::{Errno, Level};

use super::exchange::{Exchange, record_of};
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
        let Some(link) = &self.exchange.link else {
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
                        record_of(request).current().bytes_sent += n as u64;
                        self.exchange.timer.set(self.exchange.settings.read_timeout);
                    }
                }
            }
            if self.client_ended {
                return Ok(());
            }
            self.from_client.clear();
            self.carried = 0;
            match poll_take(request, &mut self.from_client, context) {
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
        let Some(link) = &self.exchange.link else {
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
                let current = record_of(request).current();
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

/// Appends what the client has sent. `false` at its end.
fn poll_take(request: &Request, out: &mut Vec<u8>, context: &mut Context<'_>) -> Poll<bool> {
    if let Some(lane) = &request.lane {
        return lane.poll_take(out, READ_SIZE, context);
    }
    let client = &request.client;
    let mut early = client.input.borrow_mut();
    if !early.is_empty() {
        out.append(&mut early);
        return Poll::Ready(true);
    }
    match client.stream.poll_read_into(context, out, READ_SIZE) {
        Poll::Pending => Poll::Pending,
        Poll::Ready(Ok(n)) => Poll::Ready(n > 0),
        Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Poll::Ready(true),
        Poll::Ready(Err(_)) => Poll::Ready(false),
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
                    match &request.lane {
                        Some(lane) => lane.end(),
                        None => {
                            let _gone = request.client.stream.shutdown_write();
                        }
                    }
                }
                Peer::Ended if self.client_ended => return self.finish(request),
                Peer::Ended => {}
                Peer::Broken if request.lane.is_some() => {
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
