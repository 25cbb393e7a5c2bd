//! The tunnel after 101 or CONNECT: bytes in both directions until both have ended (RFC 9110, sections 7.8 and 9.3.6).
//!
//! What the upstream sends is the body of the response, so that it takes the same path to the client as any body. What
//! the client sends is passed on whenever that body is polled, or while the client's connection is waited for. Either
//! side may stop sending and still receive (half-close): its end is passed on.

use std::io;
use std::task::{Context, Poll};

use base::ErrnoText;
use bytes::Bytes;
use host::error_log::LogLevel;

use super::exchange::Exchange;

use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, BodySource};

/// The maximum number of bytes in one read.
const READ_SIZE: usize = 16 * 1024;

/// Passes bytes between a client and an upstream.
pub(super) struct UpstreamTunnel {
    exchange: Box<Exchange>,
    from_client: Vec<u8>,
    /// The number of bytes of `from_client` that have been sent.
    carried: usize,
    client_ended: bool,
    /// The upstream has been told so.
    end_is_sent: bool,
    peer: TunnelPeer,
    /// Runs while the upstream accepts nothing of what is waiting for it.
    send_timer: rt::Timer,
    peer_is_full: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// The upstream's side of the tunnel.
enum TunnelPeer {
    Open,
    /// It has ended; what it sent before must still reach the client.
    Ending,
    /// It has ended, and the client has been told.
    Ended,
    /// Its connection broke.
    Broken,
}

impl UpstreamTunnel {
    /// A tunnel over the connection of an exchange whose response was a 101, or that needs none.
    pub(super) fn new(exchange: Box<Exchange>) -> UpstreamTunnel {
        exchange.timer.set(exchange.settings.read_timeout);
        UpstreamTunnel {
            exchange,
            from_client: Vec::new(),
            carried: 0,
            client_ended: false,
            end_is_sent: false,
            peer: TunnelPeer::Open,
            send_timer: rt::Timer::new(),
            peer_is_full: false,
        }
    }

    /// Passes on what the client has sent. `Err` if the connection to the upstream broke.
    fn poll_client(&mut self, request: &mut Request, context: &mut Context<'_>) -> io::Result<()> {
        let Some(link) = &self.exchange.current.link else {
            return Ok(());
        };
        // QUIC carries no tunnels: its protocol never asks for one.
        let Some(stream) = link.connection.stream.transport() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        loop {
            // What is waiting goes first. No more is taken from the client before that, so the buffer cannot grow.
            while self.carried < self.from_client.len() {
                match stream.poll_write(context, &self.from_client[self.carried..]) {
                    Poll::Pending => {
                        // Started once, not at every poll, so that the client's activity does not extend it.
                        if !std::mem::replace(&mut self.peer_is_full, true) {
                            self.send_timer.set(self.exchange.settings.send_timeout);
                        }
                        return Ok(());
                    }
                    Poll::Ready(result) => {
                        let n = result?;
                        self.peer_is_full = false;
                        self.carried += n;
                        request.upstream.get_or_make().current_try().bytes_sent += n as u64;
                        // Activity in either direction keeps the tunnel alive, as in nginx.
                        self.exchange.timer.set(self.exchange.settings.read_timeout);
                    }
                }
            }
            if self.client_ended {
                // If the upstream is gone already, it needs no end.
                if !self.end_is_sent && stream.poll_shutdown_write(context).is_ready() {
                    self.end_is_sent = true;
                }
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
                Poll::Ready(false) => self.client_ended = true,
            }
        }
    }

    /// Receives from the upstream.
    fn poll_peer(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<BodyChunk>> {
        // Bytes that arrived together with the 101 belong to the new protocol.
        if !self.exchange.rest.is_empty() {
            return Poll::Ready(Some(BodyChunk::Bytes(std::mem::take(
                &mut self.exchange.rest,
            ))));
        }
        let Some(link) = &self.exchange.current.link else {
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
                self.peer = TunnelPeer::Ending;
                // Flushed first, so that the end does not overtake the last bytes.
                Poll::Ready(Some(BodyChunk::Flush))
            }
            Poll::Ready(Ok(n)) => {
                self.exchange.timer.set(self.exchange.settings.read_timeout);
                let current = request.upstream.get_or_make().current_try();
                current.bytes_received += n as u64;
                current.response_length += n as u64;
                // A small piece is copied, since otherwise it would keep the whole buffer allocated.
                Poll::Ready(Some(BodyChunk::Bytes(if n * 2 < data.capacity() {
                    Bytes::copy_from_slice(&data)
                } else {
                    data.into()
                })))
            }
            Poll::Ready(Err(error)) => {
                request.log_while(
                    LogLevel::Info,
                    PROXYING,
                    format_args!("{}", net::ReadFailed(&error)),
                );
                self.peer = TunnelPeer::Broken;
                Poll::Ready(None)
            }
        }
    }

    /// Ends the exchange. The connection has changed its protocol, so it cannot be kept.
    fn finish(&mut self, request: &mut Request) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        self.exchange.finish(request, false);
        Poll::Ready(None)
    }
}

/// What a tunnel does, in the words of the error log.
const PROXYING: &str = "proxying upgraded connection";

impl BodySource for UpstreamTunnel {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        loop {
            if let Err(error) = self.poll_client(request, context) {
                request.log_while(
                    LogLevel::Info,
                    PROXYING,
                    format_args!("send() failed{}", ErrnoText(&error)),
                );
                // The upstream can no longer be written to, but it may have sent something before.
                self.client_ended = true;
                self.from_client.clear();
                self.carried = 0;
            }
            match self.peer {
                TunnelPeer::Open => {}
                TunnelPeer::Ending => {
                    // Everything before has been flushed. The client's connection is closed for writing.
                    self.peer = TunnelPeer::Ended;
                    request.stream.end_output();
                }
                TunnelPeer::Ended if self.client_ended => return self.finish(request),
                TunnelPeer::Ended => {}
                TunnelPeer::Broken if request.stream.can_be_reset() => {
                    // On an HTTP/2 stream, RST_STREAM tells the client that this is not a regular end.
                    self.exchange.finish(request, false);
                    return Poll::Ready(Some(Err(BodyError::Producer)));
                }
                TunnelPeer::Broken => return self.finish(request),
            }
            if self.peer == TunnelPeer::Open {
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
                request.log_while(
                    LogLevel::Error,
                    PROXYING,
                    format_args!("upstream timed out (110: Connection timed out)"),
                );
                return self.finish(request);
            }
            return Poll::Pending;
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        // The error occurs again when the body is polled.
        let _later = self.poll_client(request, context);
    }
}
