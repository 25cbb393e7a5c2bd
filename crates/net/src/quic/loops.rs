//! Datagrams that arrive where their connection is not.
//!
//! The kernel distributes datagrams over the sockets of an address by a hash of both ends. A client that changes its
//! address, or a reload that changes the number of loops, sends datagrams of a connection to a loop that does not have
//! it; during an upgrade, or with several worker processes, to another process. The id of the connection says who has
//! it (`connection_ids`), and the datagram is passed on: to a loop through its inbox, to a loop of another process as
//! [`processes`](super::processes) says.
//!
//! What does not fit into a bounded queue is lost, which QUIC repairs.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::sync::Mutex;
use host::listen::ListenAddress;
use rt::net::IncomingDatagram;

use super::connection_ids::{IdOwner, this_process};
use super::endpoint::{LocalIp, QuicEndpoint, QuicEndpointSettings, is_here};
use super::processes;

/// How many datagrams may wait in a loop's inbox.
const FORWARD_LIMIT: usize = 1024;

/// A datagram on its way to another loop, or that waits.
pub(super) struct ForwardedDatagram {
    pub(super) from: SocketAddr,
    pub(super) to: LocalIp,
    pub(super) ecn: u8,
    pub(super) content: Vec<u8>,
}

impl ForwardedDatagram {
    pub(super) fn of(datagram: &IncomingDatagram<'_>) -> ForwardedDatagram {
        ForwardedDatagram {
            from: datagram.from,
            to: datagram.to,
            ecn: datagram.ecn,
            content: datagram.content.to_vec(),
        }
    }
}

/// A datagram as another loop or process has received it.
pub(super) fn received(datagram: &ForwardedDatagram) -> IncomingDatagram<'_> {
    IncomingDatagram {
        from: datagram.from,
        to: datagram.to,
        ecn: datagram.ecn,
        content: &datagram.content,
    }
}

/// An endpoint as other loops see it.
struct KnownEndpoint {
    owner: IdOwner,
    address: ListenAddress,
    handle: rt::LoopHandle,
    /// It takes new clients.
    is_accepting: bool,
    /// Datagrams that are in the loop's inbox.
    waiting: Arc<AtomicUsize>,
}

/// The endpoints of all loops of this process.
static ENDPOINTS: Mutex<Vec<KnownEndpoint>> = Mutex::new(Vec::new());

rt::local! {
    /// Those of this loop.
    static OWN: RefCell<Vec<Weak<QuicEndpoint>>> = const { RefCell::new(Vec::new()) };
    /// The number of this loop in ids, and of its next endpoint.
    static NUMBERS: Cell<(Option<u16>, u16)> = const { Cell::new((None, 0)) };
}

/// The number of the next loop.
static LOOPS: AtomicUsize = AtomicUsize::new(0);

/// The owner of the next endpoint of this loop.
pub(super) fn next_owner() -> IdOwner {
    let loop_number = loop_number();
    let (number, endpoint) = NUMBERS.get();
    NUMBERS.set((number, endpoint.wrapping_add(1)));
    IdOwner {
        process: this_process(),
        loop_number,
        endpoint,
    }
}

/// The number of this loop in its process.
pub fn loop_number() -> u16 {
    let (number, endpoint) = NUMBERS.get();
    let number = number.unwrap_or_else(|| LOOPS.fetch_add(1, Ordering::Relaxed) as u16);
    NUMBERS.set((Some(number), endpoint));
    number
}

/// Lets other loops and processes find an endpoint of this loop.
pub(super) fn register(endpoint: &Rc<QuicEndpoint>) {
    OWN.with_borrow_mut(|own| {
        own.retain(|known| known.strong_count() > 0);
        own.push(Rc::downgrade(endpoint));
    });
    ENDPOINTS.lock().push(KnownEndpoint {
        owner: endpoint.owner,
        address: endpoint.spec().address.clone(),
        handle: rt::handle(),
        is_accepting: true,
        waiting: Arc::default(),
    });
}

/// An endpoint takes no new clients any more.
pub(super) fn stop_accepting(owner: IdOwner) {
    let mut endpoints = ENDPOINTS.lock();
    let known = endpoints.iter_mut().find(|known| known.owner == owner);
    if let Some(known) = known {
        known.is_accepting = false;
    }
}

/// Takes an endpoint out.
pub(super) fn unregister(owner: IdOwner) {
    ENDPOINTS.lock().retain(|known| known.owner != owner);
}

/// Passes a datagram that has come to `from` on to the owner of its connection. `false`: there is none.
pub(super) fn forward(
    from: &Rc<QuicEndpoint>,
    owner: IdOwner,
    datagram: &IncomingDatagram<'_>,
) -> bool {
    if !is_here(owner) {
        return processes::send_to_process(from, owner, datagram);
    }
    if let Some(own) = endpoint_here(owner) {
        own.take_datagram(datagram);
        return true;
    }
    post(|known| known.owner == owner, datagram)
}

/// Passes a new client's datagram on to an endpoint of this address that takes new clients. `false`: there is none.
pub(super) fn forward_new(from: &QuicEndpoint, datagram: &IncomingDatagram<'_>) -> bool {
    let address = &from.spec().address;
    post(
        |known| known.is_accepting && known.address == *address,
        datagram,
    )
}

fn post(wanted: impl Fn(&KnownEndpoint) -> bool, datagram: &IncomingDatagram<'_>) -> bool {
    let found = {
        let endpoints = ENDPOINTS.lock();
        endpoints.iter().find(|known| wanted(known)).map(|known| {
            let waiting = Arc::clone(&known.waiting);
            (known.owner, known.handle.clone(), waiting)
        })
    };
    let Some((owner, handle, waiting)) = found else {
        return false;
    };
    if waiting.fetch_add(1, Ordering::Relaxed) >= FORWARD_LIMIT {
        waiting.fetch_sub(1, Ordering::Relaxed);
        return true;
    }
    let forwarded = ForwardedDatagram::of(datagram);
    let counted = Arc::clone(&waiting);
    let posted = handle.post(move || {
        counted.fetch_sub(1, Ordering::Relaxed);
        if let Some(endpoint) = endpoint_here(owner) {
            endpoint.take_datagram(&received(&forwarded));
        }
    });
    if posted.is_err() {
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
    posted.is_ok()
}

pub(super) fn endpoint_here(owner: IdOwner) -> Option<Rc<QuicEndpoint>> {
    OWN.with_borrow(|own| {
        own.iter()
            .filter_map(Weak::upgrade)
            .find(|endpoint| endpoint.owner == owner)
    })
}

/// Reads the socket of another loop of this process, which is stuck, in its place: see [`QuicEndpoint::read_for`].
pub fn receive_for_stuck_loop(
    socket: OwnedFd,
    address: &ListenAddress,
    still: &Rc<dyn Fn() -> bool>,
) -> io::Result<()> {
    let own = OWN.with_borrow(Vec::clone);
    let mut own = own.iter().filter_map(Weak::upgrade);
    let endpoint = own.find(|own| own.is_accepting.get() && own.spec().address == *address);
    match endpoint {
        Some(endpoint) => endpoint.read_for(socket, Rc::clone(still)),
        None => Ok(()),
    }
}

/// Changes the settings of this loop's endpoints after a reload; `settings` are those of an address, if it has some.
pub fn update_endpoints(settings: impl Fn(&ListenAddress) -> Option<QuicEndpointSettings>) {
    let own = OWN.with_borrow(Vec::clone);
    for endpoint in own.iter().filter_map(Weak::upgrade) {
        if let Some(settings) = settings(&endpoint.spec().address) {
            endpoint.set_retry(settings.retry);
        }
    }
}

/// Leaves the sockets of this loop to the process that takes over: it passes on what is for connections here.
pub fn hand_over_datagrams() {
    let own = OWN.with_borrow(Vec::clone);
    for endpoint in own.iter().filter_map(Weak::upgrade) {
        endpoint.stop_reading();
    }
}
