//! A connection, as an engine has it.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn_proto::{ConnectionError, Dir, StreamId};
use rt::net::SocketAddress;

use super::link::{ConnectionLink, WaitingFor};
use super::stream::{QuicReceiveStream, QuicSendStream, code_of};
use crate::tls::TlsSession;

/// A QUIC connection. Its tasks share it; it is closed with code 0 when the last of them drops it without having closed it.
pub struct QuicConnection {
    link: Rc<ConnectionLink>,
    tls: TlsSession,
    protocol: Vec<u8>,
    drop_code: Cell<u64>,
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicClosed {
    /// This side has closed it.
    Here,
    /// The peer has closed it, with a code of the application.
    ByApplication(u64),
    /// The peer has closed it, or broken the protocol: a code of RFC 9000, section 20.1, and words for the log.
    ByTransport(u64, String),
    /// Nothing was heard of the peer for too long.
    TimedOut,
    /// The peer has lost the connection (a stateless reset).
    Reset,
}

impl fmt::Display for QuicClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuicClosed::Here => f.write_str("quic connection closed"),
            QuicClosed::ByApplication(code) => {
                write!(f, "client closed the quic connection with code {code:#x}")
            }
            QuicClosed::ByTransport(code, words) => {
                write!(f, "quic connection failed with code {code:#x}: {words}")
            }
            QuicClosed::TimedOut => f.write_str("quic connection timed out"),
            QuicClosed::Reset => f.write_str("client has lost the quic connection"),
        }
    }
}

impl QuicClosed {
    pub(super) fn of(error: &ConnectionError) -> QuicClosed {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                QuicClosed::ByApplication(close.error_code.into_inner())
            }
            // What a peer sends must not put control characters into a log.
            ConnectionError::ConnectionClosed(close) => {
                let words = format!("closed by the client: {}", close.reason.escape_ascii());
                QuicClosed::ByTransport(close.error_code.into(), words)
            }
            ConnectionError::TransportError(error) => {
                QuicClosed::ByTransport(error.code.into(), error.reason.clone())
            }
            ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
                QuicClosed::ByTransport(0, error.to_string())
            }
            ConnectionError::TimedOut => QuicClosed::TimedOut,
            ConnectionError::Reset => QuicClosed::Reset,
            ConnectionError::LocallyClosed => QuicClosed::Here,
        }
    }
}

impl QuicConnection {
    pub(super) fn new(link: Rc<ConnectionLink>, tls: TlsSession) -> Rc<QuicConnection> {
        Rc::new(QuicConnection {
            link,
            protocol: tls.alpn().unwrap_or_default(),
            tls,
            drop_code: Cell::new(0),
        })
    }

    pub(super) fn link(&self) -> &Rc<ConnectionLink> {
        &self.link
    }

    pub(super) fn drop_code(&self) -> u64 {
        self.drop_code.get()
    }

    /// Takes the next bidirectional stream that the peer has opened.
    pub fn poll_accept_bidirectional(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(QuicSendStream, QuicReceiveStream), QuicClosed>> {
        let id = std::task::ready!(self.poll_accept(Dir::Bi, context))?;
        Poll::Ready(Ok((
            QuicSendStream::new(self, id),
            QuicReceiveStream::new(self, id),
        )))
    }

    /// Takes the next unidirectional stream that the peer has opened.
    pub fn poll_accept_unidirectional(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<QuicReceiveStream, QuicClosed>> {
        let id = std::task::ready!(self.poll_accept(Dir::Uni, context))?;
        Poll::Ready(Ok(QuicReceiveStream::new(self, id)))
    }

    fn poll_accept(
        &self,
        dir: Dir,
        context: &mut Context<'_>,
    ) -> Poll<Result<StreamId, QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        let accepted = self.link.core.borrow_mut().streams().accept(dir);
        if let Some(id) = accepted {
            return Poll::Ready(Ok(id));
        }
        self.link.wait_for(WaitingFor::Accept(dir), context);
        Poll::Pending
    }

    /// Opens a unidirectional stream, once the peer allows one more.
    pub fn poll_open_unidirectional(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<QuicSendStream, QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        let opened = self.link.core.borrow_mut().streams().open(Dir::Uni);
        if let Some(id) = opened {
            return Poll::Ready(Ok(QuicSendStream::new(self, id)));
        }
        self.link.wait_for(WaitingFor::Open, context);
        Poll::Pending
    }

    /// Closes the connection at once, with a code of the application: its streams are abandoned. Later calls change nothing.
    pub fn close(&self, code: u64, reason: &[u8]) {
        self.link.close(code_of(code), reason);
    }

    /// Why it is over; `None` while it is not.
    pub fn closed(&self) -> Option<QuicClosed> {
        self.link.closed()
    }

    /// Ready once it is over.
    pub fn poll_closed(&self, context: &mut Context<'_>) -> Poll<QuicClosed> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(closed);
        }
        self.link.wait_for(WaitingFor::End, context);
        Poll::Pending
    }

    /// Whether the handshake is complete: until then what the peer sends is early data, which can be a replay.
    pub fn is_handshake_complete(&self) -> bool {
        self.link.is_connected()
    }

    /// Ready once the handshake is complete.
    pub fn poll_handshake_complete(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        if self.link.is_connected() {
            self.tls.set_early(false);
            return Poll::Ready(Ok(()));
        }
        self.link.wait_for(WaitingFor::Handshake, context);
        Poll::Pending
    }

    /// The ALPN protocol: `h3`, or `hq-interop`.
    pub fn protocol(&self) -> &[u8] {
        &self.protocol
    }

    /// What TLS has agreed on, for variables, logs and the verification of clients' certificates. The server name is
    /// `TlsSession::server_name`.
    pub fn tls(&self) -> &TlsSession {
        self.tls.set_early(!self.link.is_connected());
        &self.tls
    }

    /// The peer's address, on the path that was validated last (RFC 9000, section 8.2).
    pub fn peer_address(&self) -> SocketAddress {
        SocketAddress::Inet(self.link.peer_address())
    }

    /// Our address on that path, as far as the system tells it; else that of the listening socket.
    pub fn local_address(&self) -> SocketAddress {
        self.link.local_address()
    }

    /// The smoothed round-trip time.
    pub fn round_trip_time(&self) -> Duration {
        self.link.core.borrow().rtt()
    }

    /// The bytes received in datagrams of this connection, and sent in them.
    pub fn traffic(&self) -> (u64, u64) {
        let stats = self.link.core.borrow().stats();
        (stats.udp_rx.bytes, stats.udp_tx.bytes)
    }

    /// How many streams have something that the peer has not acknowledged, or have not ended on this side.
    pub fn open_send_streams(&self) -> usize {
        self.link.core.borrow_mut().streams().send_streams()
    }

    /// How many bidirectional streams the peer may have open at a time, from now on.
    pub fn set_max_bidirectional(&self, count: u64) {
        self.link
            .core
            .borrow_mut()
            .set_max_concurrent_streams(Dir::Bi, code_of(count));
        self.link.mark_dirty();
    }

    /// The application's code for streams that are dropped before their end: H3_REQUEST_CANCELLED, say. 0 at first.
    pub fn set_drop_code(&self, code: u64) {
        self.drop_code.set(code);
    }
}

impl Drop for QuicConnection {
    fn drop(&mut self) {
        self.link.close(code_of(0), b"");
    }
}
