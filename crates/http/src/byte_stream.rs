//! A client's byte stream over TCP or a UNIX domain socket, plain or in TLS: the transport of HTTP/1 and HTTP/2.
//!
//! How HTTP/1 serves requests on it is in `crate::h1`; HTTP/2 puts streams of its own on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use net::Transport;
use net::tls::TlsSession;
use rt::net::{SocketAddress, TcpInfo};

use crate::client_stream::{ClientConnection, ClientStream};

/// The byte stream of one connection, shared by its protocol and by a handler that takes it over (an upgrade).
pub struct ByteStream {
    /// The socket, with or without TLS on it.
    pub transport: Transport,
    /// Bytes that have been read and not yet consumed.
    pub input: RefCell<Vec<u8>>,
    /// Bytes written since the connection began.
    pub sent: Cell<u64>,
    /// What the socket did not accept of an HTTP/1 interim response. It leaves before the next response: otherwise the
    /// client would read that in the middle of a head.
    pub(crate) unsent_interim: RefCell<Vec<u8>>,
    /// `tcp_nodelay` has been switched on: once per connection is enough.
    without_delay: Cell<bool>,
}

impl ByteStream {
    /// The byte stream of a connection of which `input` has been read.
    pub(crate) fn new(transport: Transport, input: Vec<u8>) -> Rc<ByteStream> {
        Rc::new(ByteStream {
            transport,
            input: RefCell::new(input),
            sent: Cell::new(0),
            unsent_interim: RefCell::default(),
            without_delay: Cell::new(false),
        })
    }

    /// Counts bytes that were written.
    #[inline]
    pub fn count_sent(&self, bytes: usize) {
        self.sent.set(self.sent.get() + bytes as u64);
    }

    /// Switches `tcp_nodelay` on: a small packet does not wait for the acknowledgement of the previous one any more,
    /// which some clients delay by 40 ms.
    pub(crate) fn send_without_delay(&self) {
        if !self.without_delay.replace(true) {
            // A socket that refuses the option is slower, not wrong.
            let _ = self.transport.socket().set_nodelay(true);
        }
    }
}

impl ClientConnection for ByteStream {
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream> {
        self
    }

    fn tls(&self) -> Option<&TlsSession> {
        self.transport.tls()
    }

    fn local_address(&self) -> Option<SocketAddress> {
        self.transport.socket().local_addr().ok().cloned()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.transport.socket().tcp_info()
    }

    fn send_without_delay(&self) {
        ByteStream::send_without_delay(self);
    }

    fn force_close(&self) {
        // The error means that it is not connected any more, so it ends by itself.
        // Not a close: the task that serves the connection still owns the descriptor and must notice the end itself.
        let _ = self.transport.socket().shutdown();
    }

    fn bytes(&self) -> Option<&ByteStream> {
        Some(self)
    }
}
