//! A cosocket: its connection, what was read ahead of the script, and which operations are under way.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use net::tls::{ClientSessions, TlsIdentity};
use rt::net::SocketAddress;

use super::super::cosocket_transport::CosocketTransport;
use super::pools;
use crate::cosocket_settings::CosocketSettings;

/// A TCP cosocket.
pub(crate) struct TcpCosocket {
    /// `None` while it is not connected.
    pub(super) transport: RefCell<Option<CosocketTransport>>,
    /// Data that was received and not yet asked for.
    pub(super) input: RefCell<Vec<u8>>,
    /// After an error or the end of the data: no more reads.
    pub(super) read_closed: Cell<bool>,
    /// After an error: no more writes.
    pub(super) write_closed: Cell<bool>,
    pub(super) connect_timeout: Cell<Duration>,
    pub(super) send_timeout: Cell<Duration>,
    pub(super) read_timeout: Cell<Duration>,
    /// How often the connection was taken from a pool: `getreusedtimes`.
    pub(super) reused: Cell<u32>,
    /// The key of the pool that it will return to.
    pub(super) pool: RefCell<Option<Vec<u8>>>,
    /// It is counted in that pool.
    pub(super) slot: RefCell<Option<pools::PoolSlot>>,
    /// `connect` was called before. Until then some functions raise an error instead of returning
    /// one.
    pub(super) was_used: Cell<bool>,
    /// These three are set while a coroutine is in such an operation: another one gets "socket
    /// busy".
    pub(super) connecting: Cell<bool>,
    /// The name is being looked up: for lua-nginx-module such a socket is still a closed one.
    pub(super) resolving: Cell<bool>,
    pub(super) reading: Cell<bool>,
    pub(super) writing: Cell<bool>,
    /// The local address of `bind`.
    pub(super) local_address: RefCell<Option<SocketAddress>>,
    /// Bytes received.
    pub(super) received: Cell<u64>,
    /// The client certificate of `setclientcert`.
    pub(super) identity: RefCell<Option<Arc<TlsIdentity>>>,
    /// The TLS sessions with its server, for `sslhandshake` to resume.
    pub(super) sessions: RefCell<Option<ClientSessions>>,
    /// The configured timeouts, which `settimeout(0)` restores.
    pub(super) settings: CosocketSettings,
    /// The request that connected it.
    pub(super) owner: RefCell<Option<Weak<()>>>,
    /// It was closed because that request has ended.
    pub(super) closed_with_owner: Cell<bool>,
}

impl TcpCosocket {
    pub(super) fn new(settings: &CosocketSettings) -> TcpCosocket {
        TcpCosocket {
            transport: RefCell::default(),
            input: RefCell::default(),
            read_closed: Cell::new(false),
            write_closed: Cell::new(false),
            connect_timeout: Cell::new(settings.connect_timeout),
            send_timeout: Cell::new(settings.send_timeout),
            read_timeout: Cell::new(settings.read_timeout),
            reused: Cell::new(0),
            pool: RefCell::default(),
            slot: RefCell::default(),
            was_used: Cell::new(false),
            connecting: Cell::new(false),
            resolving: Cell::new(false),
            reading: Cell::new(false),
            writing: Cell::new(false),
            local_address: RefCell::default(),
            received: Cell::new(0),
            identity: RefCell::default(),
            sessions: RefCell::default(),
            settings: settings.clone(),
            owner: RefCell::default(),
            closed_with_owner: Cell::new(false),
        }
    }

    /// The client's side of the request or session, with what was already read of it.
    pub(in crate::api) fn of_client(
        settings: &CosocketSettings,
        wire: CosocketTransport,
        input: Vec<u8>,
    ) -> TcpCosocket {
        let socket = TcpCosocket::new(settings);
        socket.was_used.set(true);
        *socket.transport.borrow_mut() = Some(wire);
        *socket.input.borrow_mut() = input;
        socket
    }

    /// Detaches from the client's connection; returns it, unread data, and how much was received.
    pub(crate) fn detach(&self) -> (Option<CosocketTransport>, Vec<u8>, u64) {
        let wire = self.transport.take();
        (wire, self.input.take(), self.received.take())
    }

    /// The connection, if an operation on it makes sense.
    pub(super) fn open(&self) -> Result<CosocketTransport, &'static str> {
        if self.connecting.get() {
            return Err(self.connecting());
        }
        if self.read_closed.get() && self.write_closed.get() {
            return Err("closed");
        }
        self.transport.borrow().clone().ok_or("closed")
    }

    /// The connection, if it can be read.
    pub(super) fn readable(&self) -> Result<CosocketTransport, &'static str> {
        if self.connecting.get() {
            return Err(self.connecting());
        }
        if self.read_closed.get() {
            return Err("closed");
        }
        self.transport.borrow().clone().ok_or("closed")
    }

    /// The connection, if it can be written.
    pub(super) fn writable(&self) -> Result<CosocketTransport, &'static str> {
        if self.connecting.get() {
            return Err(self.connecting());
        }
        if self.write_closed.get() {
            return Err("closed");
        }
        self.transport.borrow().clone().ok_or("closed")
    }

    /// Why a socket that is being connected cannot be used.
    fn connecting(&self) -> &'static str {
        match self.resolving.get() {
            true => "closed",
            false => "socket busy connecting",
        }
    }

    /// Fails if another operation is under way in one of these directions.
    pub(super) fn check_not_busy(&self, read: bool, write: bool) -> Result<(), &'static str> {
        if self.connecting.get() {
            return Err("socket busy connecting");
        }
        if read && self.reading.get() {
            return Err("socket busy reading");
        }
        if write && self.writing.get() {
            return Err("socket busy writing");
        }
        Ok(())
    }

    /// Closes the connection and forgets its state.
    pub(super) fn drop_connection(&self) {
        let wire = self.transport.take();
        self.input.borrow_mut().clear();
        self.read_closed.set(false);
        self.write_closed.set(false);
        self.sessions.take();
        drop(wire);
        // After the connection is closed: only then may another take its place in the pool.
        drop(self.slot.take());
    }
}

/// Marks a socket as busy until an operation completes. If the operation is dropped instead,
/// because its light thread was killed, the connection is closed: it is not known how far the
/// operation came.
pub(super) struct SocketBusyGuard {
    socket: Rc<TcpCosocket>,
    mark: fn(&TcpCosocket) -> &Cell<bool>,
    over: bool,
}

impl SocketBusyGuard {
    pub(super) fn new(
        socket: &Rc<TcpCosocket>,
        mark: fn(&TcpCosocket) -> &Cell<bool>,
    ) -> SocketBusyGuard {
        mark(socket).set(true);
        SocketBusyGuard {
            socket: Rc::clone(socket),
            mark,
            over: false,
        }
    }

    /// The operation is complete.
    pub(super) fn over(mut self) {
        self.over = true;
    }
}

impl Drop for SocketBusyGuard {
    fn drop(&mut self) {
        (self.mark)(&self.socket).set(false);
        // The client's connection is not this object's to close.
        let is_client = |wire: &CosocketTransport| !wire.is_own();
        if !self.over
            && !self
                .socket
                .transport
                .borrow()
                .as_ref()
                .is_some_and(is_client)
        {
            self.socket.drop_connection();
        }
    }
}

/// The cosockets that a request, or a script without one, has opened. They are closed with it, even
/// if something still refers to them: Lua's collector runs when memory is short, not descriptors.
#[derive(Default)]
pub(crate) struct ConnectedSockets {
    sockets: Vec<Weak<TcpCosocket>>,
    /// Identifies the request by its address; there is nothing in it.
    pub(super) owner: Rc<()>,
}

impl ConnectedSockets {
    pub(super) fn add(&mut self, socket: &Rc<TcpCosocket>) {
        *socket.owner.borrow_mut() = Some(Rc::downgrade(&self.owner));
        socket.closed_with_owner.set(false);
        let sockets = &mut self.sockets;
        // Instead of growing: drop entries of sockets that were collected.
        if sockets.len() == sockets.capacity() {
            sockets.retain(|socket| socket.strong_count() > 0);
        }
        if !sockets
            .iter()
            .any(|known| known.as_ptr() == Rc::as_ptr(socket))
        {
            sockets.push(Rc::downgrade(socket));
        }
    }
}

impl Drop for ConnectedSockets {
    fn drop(&mut self) {
        for socket in self.sockets.iter().filter_map(Weak::upgrade) {
            if socket
                .transport
                .borrow()
                .as_ref()
                .is_some_and(CosocketTransport::is_own)
            {
                socket.closed_with_owner.set(true);
                socket.drop_connection();
            }
        }
    }
}
