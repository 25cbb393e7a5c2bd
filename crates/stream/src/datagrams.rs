//! Sessions of datagrams: what one client address sends to a socket belongs together.
//!
//! A socket has one reader. It hands each datagram to the session of its sender, or begins one. Sessions answer through
//! the socket itself, so that the client sees the address that it asked.
//!
//! Without `reuseport` a socket is read by a single loop, which its number chooses. If several read it, the datagrams
//! of one client would come to different loops and make a session on each, as they do with several workers of nginx.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rt::net::{SocketAddress, UdpSocket};

/// Datagrams that may wait for a session. More are lost, as in a full socket buffer: a session that does not read must
/// not fill the memory.
const MAX_WAITING: usize = 256;

/// The largest datagram, in bytes: its length is a number of 16 bits.
pub const MAX_DATAGRAM: usize = 65_535;

/// A listening socket for datagrams, and its sessions.
pub struct DatagramSocket {
    socket: UdpSocket,
    sessions: RefCell<HashMap<SocketAddress, Rc<DatagramSession>>>,
    next: Cell<u64>,
    /// Datagrams that a session had received behind its first one and had not read when it ended: they begin the next
    /// one. Each session keeps its first, so that this comes to an end.
    returned: RefCell<VecDeque<(SocketAddress, Vec<u8>)>>,
    waker: RefCell<Option<Waker>>,
}

/// What the reader of a socket takes in: a datagram with its client.
enum ReceivedDatagram {
    /// One that came back from a session.
    Returned(SocketAddress, Vec<u8>),
    /// A new one, of this length, in the scratch buffer.
    New(SocketAddress, usize),
}

/// The datagrams of one session.
pub struct DatagramSession {
    datagrams: Rc<DatagramSocket>,
    /// Tells it from a later session of the same client.
    id: u64,
    client: SocketAddress,
    /// The datagram that began the session, until it is read. Read or not, it belongs to this session and begins no
    /// other: a session that ends without a look at it (`return`, `deny`) would follow itself for ever.
    opening: RefCell<Option<Vec<u8>>>,
    /// Datagrams that came behind it. At most [`MAX_WAITING`].
    waiting: RefCell<VecDeque<Vec<u8>>>,
    waker: RefCell<Option<Waker>>,
}

impl DatagramSocket {
    /// Sessions on a socket.
    pub fn new(socket: UdpSocket) -> Rc<DatagramSocket> {
        Rc::new(DatagramSocket {
            socket,
            sessions: RefCell::default(),
            next: Cell::new(0),
            returned: RefCell::default(),
            waker: RefCell::default(),
        })
    }

    /// Takes in datagrams until the next one that begins a session.
    ///
    /// Errors are the system's; those that only say that an earlier answer did not arrive are passed over.
    pub async fn accept_session(
        self: &Rc<Self>,
        scratch: &mut [u8],
    ) -> io::Result<Rc<DatagramSession>> {
        loop {
            let received = std::future::poll_fn(|context| self.poll_receive(context, scratch));
            let (client, datagram) = match received.await {
                Ok(ReceivedDatagram::Returned(client, datagram)) => (client, datagram),
                Ok(ReceivedDatagram::New(client, length)) => (client, scratch[..length].to_vec()),
                // An ICMP message about an earlier answer, whose client has gone. The socket is well.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(error) => return Err(error),
            };
            if let Some(flow) = self.deliver(client, datagram) {
                return Ok(flow);
            }
        }
    }

    fn poll_receive(
        &self,
        context: &mut Context<'_>,
        scratch: &mut [u8],
    ) -> Poll<io::Result<ReceivedDatagram>> {
        // Before the socket: these came earlier.
        if let Some((client, datagram)) = self.returned.borrow_mut().pop_front() {
            return Poll::Ready(Ok(ReceivedDatagram::Returned(client, datagram)));
        }
        let received = self.socket.poll_recv_from(context, scratch);
        // A datagram that a session gives back does not wake the socket, so the reader's waker is kept for that.
        if received.is_pending() {
            *self.waker.borrow_mut() = Some(context.waker().clone());
        }
        received.map_ok(|(length, client)| ReceivedDatagram::New(client, length))
    }

    /// Gives a datagram to the session of its client. Without one, a new session begins with it.
    fn deliver(
        self: &Rc<Self>,
        client: SocketAddress,
        datagram: Vec<u8>,
    ) -> Option<Rc<DatagramSession>> {
        let mut sessions = self.sessions.borrow_mut();
        if let Some(flow) = sessions.get(&client) {
            // The client has a session: nothing begins.
            flow.push(datagram);
            return None;
        }
        let id = self.next.get();
        self.next.set(id + 1);
        let flow = Rc::new(DatagramSession {
            datagrams: Rc::clone(self),
            id,
            client: client.clone(),
            opening: RefCell::new(Some(datagram)),
            waiting: RefCell::default(),
            waker: RefCell::default(),
        });
        sessions.insert(client, Rc::clone(&flow));
        Some(flow)
    }
}

impl DatagramSession {
    /// The client.
    pub fn client(&self) -> &SocketAddress {
        &self.client
    }

    /// Where the socket is bound.
    pub fn local(&self) -> SocketAddress {
        let bound = self.datagrams.socket.local_addr();
        bound.unwrap_or_else(|_| SocketAddress::Unix(rt::net::UnixPath::default()))
    }

    /// The length of the datagram that began the session, unless it has been read.
    pub fn opening_length(&self) -> Option<usize> {
        self.opening.borrow().as_ref().map(Vec::len)
    }

    /// The next datagram of the client.
    pub fn poll_receive(&self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        if let Some(datagram) = self.opening.borrow_mut().take() {
            return Poll::Ready(datagram);
        }
        match self.waiting.borrow_mut().pop_front() {
            Some(datagram) => Poll::Ready(datagram),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Sends a datagram to the client.
    pub async fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.datagrams
            .socket
            .send_to(datagram, &self.client)
            .await
            .map(drop)
    }

    /// Ends the session for this client: its next datagram begins another one, and so do those that this session has
    /// not read, except for its first.
    pub fn end_session(&self) {
        self.leave();
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        if waiting.is_empty() {
            return;
        }
        let client = &self.client;
        let waiting = waiting
            .into_iter()
            .map(|datagram| (client.clone(), datagram));
        self.datagrams.returned.borrow_mut().extend(waiting);
        if let Some(waker) = self.datagrams.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Forgets the client without a session. What it has sent so far is lost.
    pub(crate) fn refuse_session(&self) {
        self.leave();
        self.waiting.borrow_mut().clear();
    }

    /// Takes the session out of those of the socket, unless a later one has its place.
    fn leave(&self) {
        let mut sessions = self.datagrams.sessions.borrow_mut();
        // Called more than once at the end of a session, by when the client may have a new one.
        if sessions
            .get(&self.client)
            .is_some_and(|flow| flow.id == self.id)
        {
            sessions.remove(&self.client);
        }
    }

    /// Adds a datagram for the session to read, and wakes it.
    fn push(&self, datagram: Vec<u8>) {
        let mut waiting = self.waiting.borrow_mut();
        if waiting.len() < MAX_WAITING {
            waiting.push_back(datagram);
        }
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}
