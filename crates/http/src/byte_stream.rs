//! A client's bytes over TCP or a unix socket, plain or in TLS: what HTTP/1 and HTTP/2 are spoken on.
//!
//! What HTTP/1 makes of it for a request is in [`crate::h1`]; HTTP/2 puts streams of its own on it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use net::Transport;
use net::tls::Session;
use rt::net::{Address, TcpInfo};

use crate::client_stream::{ClientConnection, ClientStream};

/// The bytes of one connection, shared by its protocol and whatever takes them over from that.
pub struct ByteStream {
    /// The socket, with or without TLS on it.
    pub transport: Transport,
    /// Bytes that were read and not yet consumed.
    pub input: RefCell<Vec<u8>>,
    /// Bytes written since the connection began.
    pub sent: Cell<u64>,
    /// What the socket did not take of an interim response of HTTP/1: it goes before the next response, or the client would
    /// read that in the middle of a head.
    pub(crate) unsent_interim: RefCell<Vec<u8>>,
    /// `tcp_nodelay` has been switched on.
    without_delay: Cell<bool>,
}

impl ByteStream {
    /// The bytes of a connection of which `input` was read.
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

    /// No small packet waits for the acknowledgement of the one before any more (`tcp_nodelay`), which some clients put off
    /// for 40 ms.
    pub(crate) fn send_without_delay(&self) {
        if !self.without_delay.replace(true) {
            // A socket that refuses is slower, not wrong.
            let _ = self.transport.socket().set_nodelay(true);
        }
    }
}

impl ClientConnection for ByteStream {
    fn stream(self: Rc<Self>) -> Rc<dyn ClientStream> {
        self
    }

    fn tls(&self) -> Option<&Session> {
        self.transport.tls()
    }

    fn local_address(&self) -> Option<Address> {
        self.transport.socket().local_addr().ok().cloned()
    }

    fn tcp_info(&self) -> Option<TcpInfo> {
        self.transport.socket().tcp_info()
    }

    fn send_without_delay(&self) {
        ByteStream::send_without_delay(self);
    }

    fn cut(&self) {
        // One that is not connected any more ends by itself.
        let _ = self.transport.socket().shutdown();
    }

    fn bytes(&self) -> Option<&ByteStream> {
        Some(self)
    }
}
