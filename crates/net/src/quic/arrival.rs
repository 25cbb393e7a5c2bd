//! A new client: its ClientHello is read, its settings are chosen by it, and then its handshake begins.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use quinn_proto::ConnectionError;
use rt::net::SocketAddress;

use super::arrival_state::ArrivalState;
use super::closed::QuicClosed;
use super::connection::QuicConnection;
use super::endpoint::{QuicEndpoint, QuicEndpointSettings, QuicListener};
use super::handshake_crypto::HandshakeCrypto;
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

/// The function of an engine that takes a new client.
pub type ArrivalHandler = Rc<dyn Fn(QuicArrival)>;

/// Serves QUIC at a socket until the returned task is aborted. Connections continue then; new ones go elsewhere.
pub fn serve_listener(
    listener: QuicListener,
    settings: &QuicEndpointSettings,
    take: ArrivalHandler,
) -> io::Result<rt::JoinHandle<()>> {
    let take = move |endpoint, state| take(QuicArrival::new(endpoint, state));
    QuicEndpoint::open(listener, settings, Rc::new(take))
}

impl QuicArrival {
    pub(super) fn new(endpoint: Rc<QuicEndpoint>, state: Rc<ArrivalState>) -> QuicArrival {
        let bound = endpoint.local_address();
        let (peer, ip) = state.addresses();
        let local = match (ip, &bound) {
            (Some(ip), SocketAddress::Inet(bound)) => {
                SocketAddress::Inet((ip.to_canonical(), bound.port()).into())
            }
            _ => bound.clone(),
        };
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
pub(super) struct UnfinishedHandshake(pub(super) Cell<Option<Rc<ConnectionLink>>>);

impl Drop for UnfinishedHandshake {
    fn drop(&mut self) {
        if let Some(link) = self.0.take() {
            link.close(0_u32.into(), b"");
        }
    }
}
