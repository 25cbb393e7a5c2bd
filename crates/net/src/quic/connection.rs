//! A connection.

use std::fmt;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use rt::net::SocketAddress;

use super::stream::{QuicReceiveStream, QuicSendStream};
use crate::tls::TlsSession;

/// A QUIC connection. Its tasks share it; it is closed with code 0 when the last of them drops it without having closed it.
pub struct QuicConnection {}

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
    fn fmt(&self, _f: &mut fmt::Formatter<'_>) -> fmt::Result {
        todo!()
    }
}

impl QuicConnection {
    /// Takes the next bidirectional stream that the peer has opened.
    pub fn poll_accept_bidirectional(
        self: &Rc<Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(QuicSendStream, QuicReceiveStream), QuicClosed>> {
        todo!()
    }

    /// Takes the next unidirectional stream that the peer has opened.
    pub fn poll_accept_unidirectional(
        self: &Rc<Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Result<QuicReceiveStream, QuicClosed>> {
        todo!()
    }

    /// Opens a unidirectional stream, once the peer allows one more.
    pub fn poll_open_unidirectional(
        self: &Rc<Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Result<QuicSendStream, QuicClosed>> {
        todo!()
    }

    /// Closes the connection at once, with a code of the application: its streams are abandoned. Later calls change nothing.
    pub fn close(&self, _code: u64, _reason: &[u8]) {
        todo!()
    }

    /// Why it is over; `None` while it is not.
    pub fn closed(&self) -> Option<QuicClosed> {
        todo!()
    }

    /// Ready once it is over.
    pub fn poll_closed(&self, _context: &mut Context<'_>) -> Poll<QuicClosed> {
        todo!()
    }

    /// Whether the handshake is complete: until then what the peer sends is early data, which can be a replay.
    pub fn is_handshake_complete(&self) -> bool {
        todo!()
    }

    /// Ready once the handshake is complete.
    pub fn poll_handshake_complete(
        &self,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(), QuicClosed>> {
        todo!()
    }

    /// The ALPN protocol: `h3`, or `hq-interop`.
    pub fn protocol(&self) -> &[u8] {
        todo!()
    }

    /// What TLS has agreed on, for variables, logs and the verification of clients' certificates. The server name is
    /// `TlsSession::server_name`.
    pub fn tls(&self) -> &TlsSession {
        todo!()
    }

    /// The peer's address, on the path that was validated last (RFC 9000, section 8.2).
    pub fn peer_address(&self) -> SocketAddress {
        todo!()
    }

    /// Our address on that path, as far as the system tells it; else that of the listening socket.
    pub fn local_address(&self) -> SocketAddress {
        todo!()
    }

    /// The smoothed round-trip time.
    pub fn round_trip_time(&self) -> Duration {
        todo!()
    }

    /// The bytes received in datagrams of this connection, and sent in them.
    pub fn traffic(&self) -> (u64, u64) {
        todo!()
    }

    /// How many bidirectional streams the peer may have open at a time, from now on.
    pub fn set_max_bidirectional(&self, _count: u64) {
        todo!()
    }

    /// The application's code for streams that are dropped before their end: H3_REQUEST_CANCELLED, say. 0 at first.
    pub fn set_drop_code(&self, _code: u64) {
        todo!()
    }
}
