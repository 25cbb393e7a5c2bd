//! A QUIC connection as the engine knows clients' connections: it has no descriptor and no bytes of its own.

use std::cell::OnceCell;
use std::rc::Rc;
use std::task::{Context, Poll};

use net::quic::QuicConnection;
use net::tls::TlsSession;
use proto::fields::Fields;
use rt::net::{SocketAddress, TcpInfo};

use crate::byte_stream::ByteStream;
use crate::client_stream::{ClientConnection, ClientStream};

/// H3_INTERNAL_ERROR (RFC 9114, section 8.1).
const INTERNAL_ERROR: u64 = 0x102;

/// The connection of a client over QUIC, from its first datagram on.
pub(crate) struct QuicClientConnection {
    /// Set once its hello was answered.
    connection: OnceCell<Rc<QuicConnection>>,
    /// Where its first datagram was sent to.
    local: SocketAddress,
}

impl QuicClientConnection {
    pub(crate) fn new(local: SocketAddress) -> Rc<QuicClientConnection> {
        Rc::new(QuicClientConnection {
            connection: OnceCell::new(),
            local,
        })
    }

    pub(crate) fn set_connection(&self, connection: &Rc<QuicConnection>) {
        // There is one handshake, so the cell is empty.
        let _ = self.connection.set(Rc::clone(connection));
    }
}

impl ClientConnection for QuicClientConnection {
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream> {
        self
    }

    fn tls(&self) -> Option<&TlsSession> {
        self.connection.get().map(|connection| connection.tls())
    }

    fn local_address(&self) -> Option<SocketAddress> {
        Some(match self.connection.get() {
            Some(connection) => connection.local_address(),
            None => self.local.clone(),
        })
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        None
    }

    fn send_without_delay(&self) {}

    fn force_close(&self) {
        if let Some(connection) = self.connection.get() {
            connection.close(INTERNAL_ERROR, b"");
        }
    }

    fn bytes(&self) -> Option<&ByteStream> {
        None
    }
}

/// For requests that no stream carries: it can only tell whether the client left.
impl ClientStream for QuicClientConnection {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        match self.connection.get() {
            Some(connection) => connection.poll_closed(context).map(|_| ()),
            None => Poll::Pending,
        }
    }

    fn has_all(&self, _announced: Option<u64>, _most: u64) -> bool {
        true
    }

    fn send_interim(&self, _status: u16, _fields: &Fields) {}

    fn poll_take(&self, _out: &mut Vec<u8>, _max: usize, _context: &mut Context<'_>) -> Poll<bool> {
        Poll::Ready(false)
    }

    fn end_output(&self) {}

    fn can_be_reset(&self) -> bool {
        true
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        None
    }
}
