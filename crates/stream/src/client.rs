//! The client of a session: a TCP connection, or the datagrams of one address.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use host::listen::ListenAddress;
use net::client::RemoteClient;
use rt::net::SocketAddress;

use crate::datagrams::DatagramSession;

/// One client.
pub struct StreamClient {
    /// The number of the connection, as `$connection` and the error log show it. Unique among those of stream.
    pub number: u64,
    /// How bytes come and go.
    pub transport: SessionTransport,
    /// Who is at the other end. `realip` may replace it in the session, never here.
    pub remote: RemoteClient,
    /// `debug_connection` names this client: everything about it is logged.
    pub debug: bool,
    /// What a PROXY protocol header said of the client.
    pub proxy: Option<Box<proto::proxy_protocol::DecodedProxyHeader>>,
    /// When it was accepted.
    pub accepted: Instant,
    /// Bytes written to the client since the session began.
    pub sent: Cell<u64>,
    /// Bytes that were read and not used: what came behind a PROXY protocol header, or was preread. The content handler
    /// takes them before it reads.
    pub input: RefCell<Vec<u8>>,
    /// The server name that it asked for by TLS, once its ClientHello was read.
    pub asked_name: RefCell<Option<Box<str>>>,
    /// The listening socket that accepted it.
    pub socket: ListenAddress,
    /// The address at which it counts as accepted, if another address of the server has passed it on.
    pub passed_at: Option<SocketAddress>,
    /// How often it was passed on; bounded, so that two addresses cannot pass it to each other for ever.
    pub passes: u8,
}

/// What a session runs on.
pub enum SessionTransport {
    /// A connection, TCP or unix.
    Stream(Rc<net::Transport>),
    /// Datagrams.
    Datagrams(Rc<DatagramSession>),
}

impl StreamClient {
    /// The address that the client connected to.
    pub fn local(&self) -> SocketAddress {
        if let Some(address) = &self.passed_at {
            return address.clone();
        }
        match &self.transport {
            SessionTransport::Stream(stream) => stream
                .socket()
                .local_addr()
                .cloned()
                .unwrap_or_else(|_| SocketAddress::Unix(rt::net::UnixPath::default())),
            SessionTransport::Datagrams(flow) => flow.local(),
        }
    }

    /// The connection, unless it is datagrams.
    pub fn stream(&self) -> Option<&Rc<net::Transport>> {
        match &self.transport {
            SessionTransport::Stream(stream) => Some(stream),
            SessionTransport::Datagrams(_) => None,
        }
    }

    /// Whether it sends datagrams.
    pub fn is_udp(&self) -> bool {
        self.stream().is_none()
    }

    /// Sends all of these bytes, as one datagram if the client sends datagrams.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.transport {
            SessionTransport::Stream(stream) => stream.write_all(bytes).await?,
            SessionTransport::Datagrams(flow) => flow.send(bytes).await?,
        }
        // Counted when all was taken: a session that ends in between does not claim bytes that the client never got.
        self.sent.set(self.sent.get() + bytes.len() as u64);
        Ok(())
    }
}
