//! The client's side of a session: a TCP connection, or the datagrams of one address.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::Instant;

use host::listen::ListenAddress;
use net::client::Remote;
use rt::net::Address;

use crate::datagrams::Flow;

/// One client.
pub struct Client {
    /// The number of the connection, as `$connection` and the error log show it. Unique among stream's.
    pub number: u64,
    /// How bytes come and go.
    pub transport: Transport,
    /// Who is at the other end. `realip` may replace it in the session, never here.
    pub remote: Remote,
    /// `debug_connection` names this client: everything about it is logged.
    pub debug: bool,
    /// What a PROXY protocol header said of the client.
    pub proxy: Option<Box<proto::proxy_protocol::Header>>,
    /// When it was accepted.
    pub accepted: Instant,
    /// Bytes written to the client since the session began.
    pub sent: Cell<u64>,
    /// Bytes that were read and are the content handler's to use: what came behind a PROXY protocol header.
    pub input: RefCell<Vec<u8>>,
    /// The server name that it asked for by TLS, once its hello was read.
    pub asked_name: RefCell<Option<Box<str>>>,
    /// The listening socket that it came by.
    pub socket: ListenAddress,
    /// The address that it counts as accepted at, where another one of the server's passed it on.
    pub passed_at: Option<Address>,
    /// How often it was passed on.
    pub passes: u8,
}

/// What a session runs on.
pub enum Transport {
    /// A connection, TCP or unix.
    Stream(Rc<net::Transport>),
    /// Datagrams.
    Datagrams(Rc<Flow>),
}

impl Client {
    /// The address that the client connected to.
    pub fn local(&self) -> Address {
        if let Some(address) = &self.passed_at {
            return address.clone();
        }
        match &self.transport {
            Transport::Stream(stream) => stream
                .socket()
                .local_addr()
                .cloned()
                .unwrap_or_else(|_| Address::Unix(rt::net::UnixPath::default())),
            Transport::Datagrams(flow) => flow.local(),
        }
    }

    /// The connection, unless it is datagrams.
    pub fn stream(&self) -> Option<&Rc<net::Transport>> {
        match &self.transport {
            Transport::Stream(stream) => Some(stream),
            Transport::Datagrams(_) => None,
        }
    }

    /// Whether it speaks UDP.
    pub fn is_udp(&self) -> bool {
        self.stream().is_none()
    }

    /// Sends all of these bytes; as one datagram if it is datagrams.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.transport {
            Transport::Stream(stream) => stream.write_all(bytes).await?,
            Transport::Datagrams(flow) => flow.send(bytes).await?,
        }
        self.sent.set(self.sent.get() + bytes.len() as u64);
        Ok(())
    }
}
