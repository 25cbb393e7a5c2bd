//! A connection, as an engine has it.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use quinn_proto::{Dir, StreamId};
use rt::net::SocketAddress;

use super::closed::QuicClosed;
use super::link::{ConnectionLink, WaitingFor};
use super::stream::{QuicReceiveStream, QuicSendStream, code_of};
use crate::tls::TlsSession;

/// A QUIC connection. Its tasks share it; it is closed with code 0 when the last of them drops it without having closed it.
pub struct QuicConnection {
    link: Rc<ConnectionLink>,
    tls: TlsSession,
    protocol: Vec<u8>,
    drop_code: Cell<u64>,
    is_retired: Cell<bool>,
}

impl QuicConnection {
    pub(super) fn new(link: Rc<ConnectionLink>, tls: TlsSession) -> Rc<QuicConnection> {
        Rc::new(QuicConnection {
            link,
            protocol: tls.alpn().unwrap_or_default(),
            tls,
            drop_code: Cell::new(0),
            is_retired: Cell::new(false),
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
        if self.link.still_waits(WaitingFor::Accept(dir), context) {
            return Poll::Pending;
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
        let id = std::task::ready!(self.poll_open(Dir::Uni, context))?;
        Poll::Ready(Ok(QuicSendStream::new(self, id)))
    }

    /// Opens a bidirectional stream, once the peer allows one more.
    pub fn poll_open_bidirectional(
        self: &Rc<Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(QuicSendStream, QuicReceiveStream), QuicClosed>> {
        let id = std::task::ready!(self.poll_open(Dir::Bi, context))?;
        Poll::Ready(Ok((
            QuicSendStream::new(self, id),
            QuicReceiveStream::new(self, id),
        )))
    }

    fn poll_open(&self, dir: Dir, context: &Context<'_>) -> Poll<Result<StreamId, QuicClosed>> {
        if let Some(closed) = self.closed() {
            return Poll::Ready(Err(closed));
        }
        let opened = self.link.core.borrow_mut().streams().open(dir);
        if let Some(id) = opened {
            return Poll::Ready(Ok(id));
        }
        self.link.wait_for(WaitingFor::Open(dir), context);
        Poll::Pending
    }

    /// No more streams are to be opened on it: the peer goes away.
    pub fn retire(&self) {
        self.is_retired.set(true);
    }

    /// Whether more streams may be opened.
    pub fn is_usable(&self) -> bool {
        !self.is_retired.get() && self.link.closed().is_none()
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

    /// The rank in which its datagrams are taken. A client's connection is patient at first, and others' datagrams go before
    /// its own: see `patient`.
    pub fn set_rank(&self, rank: rt::TaskRank) {
        self.link.set_rank(rank);
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
