//! A client connection of which nothing has been served: accepted by this loop, passed on by `stream`, or moved here.
//!
//! [`crate::connection_start`] finds out what it speaks.

use std::io;
use std::rc::Rc;
use std::time::Instant;

use host::listen::ListenAddress;
use net::Transport;
use rt::net::SocketAddress;

use crate::client::{ConnectionControl, next_connection};
use crate::http_loop::HttpLoop;

/// How much is read of a connection as soon as it is accepted, in bytes.
const FIRST_READ_SIZE: usize = 16 * 1024;

/// A connection that a loop has accepted or received, and what is needed to serve it.
pub(crate) struct AcceptedConnection {
    /// The socket, with or without TLS.
    pub transport: Transport,
    /// The listening socket that accepted it.
    pub socket: ListenAddress,
    /// The address of the `stream` server that passed it on, if one did (`pass`).
    pub passed_at: Option<Box<SocketAddress>>,
    /// What had been read of it before it was passed on.
    pub input: Vec<u8>,
    /// How the loop reaches it between requests.
    pub control: Rc<ConnectionControl>,
    /// Its number, as `$connection` and the error log show it.
    pub number: u64,
    /// When it was accepted.
    pub accepted: Instant,
}

impl AcceptedConnection {
    /// A connection of which nothing has been read.
    pub(crate) fn new(
        transport: Transport,
        socket: ListenAddress,
        passed_at: Option<Box<SocketAddress>>,
    ) -> Box<AcceptedConnection> {
        Box::new(AcceptedConnection {
            transport,
            socket,
            passed_at,
            input: Vec::new(),
            control: Rc::default(),
            number: next_connection(),
            accepted: rt::now(),
        })
    }

    /// Whether nothing of it can be read at once. Where the loop has learned that first bytes come along with new
    /// connections they are read here, into its input.
    pub(crate) fn is_silent(&mut self, http: &HttpLoop) -> bool {
        if !self.input.is_empty() || self.transport.is_tls() {
            return false;
        }
        if !self.transport.socket().is_first_read_worth_it() {
            return true;
        }
        let mut scratch = http.scratch.borrow_mut();
        scratch.clear();
        let read = self.transport.try_read_into(&mut scratch, FIRST_READ_SIZE);
        self.input.extend_from_slice(&scratch);
        // An end or an error is met again by the protocol, which logs it.
        matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}
