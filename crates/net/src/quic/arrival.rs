//! A new client: its ClientHello is read, its settings are chosen by it, and then its handshake begins.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use quinn_proto::{ConnectionError, Incoming};
use rt::net::SocketAddress;

use super::connection::{QuicClosed, QuicConnection};
use super::endpoint::QuicEndpoint;
use super::handshake_crypto::HandshakeCrypto;
use super::initial_hello::{HelloCollector, HelloProgress};
use super::link::ConnectionLink;
use super::settings::QuicTransport;
use crate::tls::{HandshakeError, QuicHandshake, ReceivedHello, alert_of};

/// A client whose handshake has not begun. If this is dropped, it gets no answer.
pub struct QuicArrival {
    endpoint: Rc<QuicEndpoint>,
    state: Rc<ArrivalState>,
    peer: SocketAddress,
    local: SocketAddress,
}

/// What has arrived of it.
pub(super) struct ArrivalState {
    id: Vec<u8>,
    incoming: RefCell<Option<Incoming>>,
    collector: RefCell<HelloCollector>,
    hello: RefCell<HelloProgress>,
    waker: Cell<Option<Waker>>,
}

impl ArrivalState {
    pub(super) fn new(
        id: Vec<u8>,
        incoming: Incoming,
        collector: HelloCollector,
        hello: HelloProgress,
    ) -> ArrivalState {
        ArrivalState {
            id,
            incoming: RefCell::new(Some(incoming)),
            collector: RefCell::new(collector),
            hello: RefCell::new(hello),
            waker: Cell::default(),
        }
    }

    pub(super) fn id(&self) -> &[u8] {
        &self.id
    }

    pub(super) fn take_incoming(&self) -> Option<Incoming> {
        self.incoming.borrow_mut().take()
    }

    pub(super) fn take_datagram(&self, datagram: &[u8]) {
        if *self.hello.borrow() != HelloProgress::Partial {
            return;
        }
        let progress = self.collector.borrow_mut().take_datagram(datagram);
        self.note_progress(progress);
    }

    /// Waits no longer for a hello that is not complete.
    pub(super) fn give_up(&self) {
        if *self.hello.borrow() == HelloProgress::Partial {
            self.note_progress(HelloProgress::Broken);
        }
    }

    fn note_progress(&self, progress: HelloProgress) {
        if progress == HelloProgress::Partial {
            return;
        }
        *self.hello.borrow_mut() = progress;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll_hello(
        &self,
        context: &Context<'_>,
    ) -> Poll<Result<Box<ReceivedHello>, HandshakeError>> {
        match &*self.hello.borrow() {
            HelloProgress::Complete(message) => Poll::Ready(ReceivedHello::of_message(message)),
            HelloProgress::Broken => Poll::Ready(Err(HandshakeError::NotTls)),
            HelloProgress::Partial => {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl QuicArrival {
    pub(super) fn new(endpoint: Rc<QuicEndpoint>, state: Rc<ArrivalState>) -> QuicArrival {
        let bound = endpoint.local_address();
        let incoming = state.incoming.borrow();
        let peer = incoming.as_ref().map(Incoming::remote_address);
        let ip = incoming.as_ref().and_then(Incoming::local_ip);
        let local = match (ip, &bound) {
            (Some(ip), SocketAddress::Inet(bound)) => {
                SocketAddress::Inet((ip.to_canonical(), bound.port()).into())
            }
            _ => bound.clone(),
        };
        drop(incoming);
        QuicArrival {
            peer: peer.map_or(bound, SocketAddress::Inet),
            local,
            endpoint,
            state,
        }
    }

    /// The client's address, which it may or may not have proved.
    pub fn peer(&self) -> &SocketAddress {
        &self.peer
    }

    /// Our address, which it has sent to.
    pub fn local(&self) -> &SocketAddress {
        &self.local
    }

    /// Waits for its ClientHello.
    pub async fn read_hello(&self) -> Result<Box<ReceivedHello>, HandshakeError> {
        std::future::poll_fn(|context| self.state.poll_hello(context)).await
    }

    /// Refuses it with the alert for this reason.
    pub fn refuse(self, why: &HandshakeError) {
        if let Some(incoming) = self.state.take_incoming() {
            let crypto = HandshakeCrypto::Refuse(alert_of(why));
            let transport = quinn_proto::TransportConfig::default;
            // It always fails: that is how the alert is sent.
            if let Ok(link) = self.endpoint.begin(incoming, crypto, &transport) {
                link.close(0_u32.into(), b"");
            }
        }
    }

    /// Runs its handshake until it is complete, or its early data is accepted.
    pub async fn accept(
        self,
        handshake: QuicHandshake,
        transport: &QuicTransport,
    ) -> Result<Rc<QuicConnection>, QuicClosed> {
        let Some(incoming) = self.state.take_incoming() else {
            return Err(QuicClosed::Here);
        };
        let crypto = HandshakeCrypto::Accept {
            config: Arc::clone(&handshake.config),
            proof: Arc::default(),
        };
        let begun = self
            .endpoint
            .begin(incoming, crypto, &|| transport.config());
        let link = begun.map_err(|error: ConnectionError| QuicClosed::of(&error))?;
        // Its datagrams are the connection's from now on.
        drop(self);
        let unfinished = UnfinishedHandshake(Cell::new(Some(Rc::clone(&link))));
        let agreed = std::future::poll_fn(|context| link.poll_agreed(context)).await?;
        unfinished.0.take();
        let session = handshake.into_session(agreed);
        session.set_early(!link.is_connected());
        Ok(QuicConnection::new(link, session))
    }
}

impl Drop for QuicArrival {
    fn drop(&mut self) {
        self.endpoint.forget_arrival(&self.state);
    }
}

/// A connection that ends if nobody waits for its handshake any more.
struct UnfinishedHandshake(Cell<Option<Rc<ConnectionLink>>>);

impl Drop for UnfinishedHandshake {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.close(0_u32.into(), b"");
        }
    }
}
