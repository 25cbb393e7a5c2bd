//! Datagrams that arrive where their connection is not.
//!
//! The kernel distributes datagrams over the sockets of an address by a hash of both ends. A client that changes its
//! address, or a reload that changes the number of loops, sends datagrams of a connection to a loop that does not have
//! it; during an upgrade, or with several worker processes, to another process. The id of the connection says who has
//! it (`connection_ids`), and the datagram is passed on: to a loop through its inbox, to a loop of another process through a
//! datagram socket in the abstract namespace, whose name only those know who have the key of the ids.
//!
//! What does not fit into a bounded queue is lost, which QUIC repairs.
//!
//! ```text
//! between processes    family[1]  from: ip[4|16] port[2]  has_to[1] to: ip[4|16]  ecn[1]  content
//! ```

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base::sync::Mutex;
use host::listen::ListenAddress;
use rt::net::{IncomingDatagram, SocketAddress, UdpSocket};

use super::connection_ids::{IdOwner, QuicSecret, destination_id, this_process};
use super::endpoint::{LocalIp, QuicEndpoint, QuicEndpointSettings, is_here, received};
use super::frames::PacketCursor;

/// How many datagrams may wait in a loop's inbox.
const FORWARD_LIMIT: usize = 1024;

/// The largest datagram that is passed between processes, in bytes.
const LARGEST_DATAGRAM: usize = 65_536;

/// A datagram on its way to another loop.
pub(super) struct ForwardedDatagram {
    pub(super) from: SocketAddr,
    pub(super) to: LocalIp,
    pub(super) ecn: u8,
    pub(super) content: Vec<u8>,
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
    /// The secrets under whose names this loop takes datagrams of other processes.
    static SERVED: RefCell<Vec<QuicSecret>> = const { RefCell::new(Vec::new()) };
    /// The socket that datagrams for other processes are sent on.
    static OUTLET: OnceCell<Option<UdpSocket>> = const { OnceCell::new() };
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

/// Passes a datagram on to the owner of its connection. `false`: there is none.
pub(super) fn forward(
    secret: &QuicSecret,
    owner: IdOwner,
    datagram: &IncomingDatagram<'_>,
) -> bool {
    if !is_here(owner) {
        return send_to_process(secret, owner, datagram);
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
    let forwarded = ForwardedDatagram {
        from: datagram.from,
        to: datagram.to,
        ecn: datagram.ecn,
        content: datagram.content.to_vec(),
    };
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

fn endpoint_here(owner: IdOwner) -> Option<Rc<QuicEndpoint>> {
    OWN.with_borrow(|own| {
        own.iter()
            .filter_map(Weak::upgrade)
            .find(|endpoint| endpoint.owner == owner)
    })
}

// -- between processes --

/// The name of a loop's socket, in the abstract namespace. Each loop has its own: loops of a process that is shutting down
/// end one by one, and none may take the others' datagrams along.
fn loop_address(secret: &QuicSecret, process: u32, loop_number: u16) -> SocketAddress {
    SocketAddress::abstract_name(&secret.socket_name(process, loop_number))
}

fn send_to_process(secret: &QuicSecret, owner: IdOwner, datagram: &IncomingDatagram<'_>) -> bool {
    OUTLET.with(|outlet| {
        let outlet = outlet.get_or_init(|| UdpSocket::unix().ok());
        let Some(outlet) = outlet else { return false };
        let message = encode(datagram);
        let to = loop_address(secret, owner.process, owner.loop_number);
        let sent = outlet.try_send_to(&message, &to);
        match sent {
            Ok(_) => true,
            // Its queue is full: lost, as on the way.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    })
}

/// Takes datagrams that other processes of this server have received for connections of this loop, as long as it runs.
pub fn serve_other_processes(secret: &QuicSecret) -> io::Result<()> {
    if SERVED.with_borrow(|served| served.contains(secret)) {
        return Ok(());
    }
    let socket = UdpSocket::bind(&loop_address(secret, this_process(), loop_number()))?;
    SERVED.with_borrow_mut(|served| served.push(secret.clone()));
    let ids = secret.id_cipher();
    rt::spawn_named("quic from other processes", async move {
        let mut buffer = vec![0; LARGEST_DATAGRAM];
        while let Ok((length, _)) = socket.recv_from(&mut buffer).await {
            let Some(datagram) = decode(&buffer[..length]) else {
                continue;
            };
            let owner = destination_id(&datagram.content).and_then(|id| ids.owner_of(id));
            let Some(owner) = owner.filter(|owner| is_here(*owner)) else {
                continue;
            };
            // None: its connections are gone, and the endpoint with the last of them.
            if let Some(own) = endpoint_here(owner) {
                own.take_datagram(&received(&datagram));
            }
        }
    });
    Ok(())
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

fn encode(datagram: &IncomingDatagram<'_>) -> Vec<u8> {
    let mut message = Vec::with_capacity(datagram.content.len() + 40);
    let put_ip = |message: &mut Vec<u8>, ip: IpAddr| match ip {
        IpAddr::V4(ip) => {
            message.push(4);
            message.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            message.push(6);
            message.extend_from_slice(&ip.octets());
        }
    };
    put_ip(&mut message, datagram.from.ip());
    message.extend_from_slice(&datagram.from.port().to_be_bytes());
    match datagram.to {
        Some(ip) => put_ip(&mut message, ip),
        None => message.push(0),
    }
    message.push(datagram.ecn);
    message.extend_from_slice(datagram.content);
    message
}

fn decode(message: &[u8]) -> Option<ForwardedDatagram> {
    let mut cursor = PacketCursor(message);
    let ip = |cursor: &mut PacketCursor<'_>| -> Option<LocalIp> {
        Some(match cursor.byte()? {
            0 => None,
            4 => Some(<[u8; 4]>::try_from(cursor.bytes(4)?).ok()?.into()),
            6 => Some(<[u8; 16]>::try_from(cursor.bytes(16)?).ok()?.into()),
            _ => return None,
        })
    };
    let from = ip(&mut cursor)??;
    let port = u16::from_be_bytes(cursor.bytes(2)?.try_into().ok()?);
    let to = ip(&mut cursor)?;
    Some(ForwardedDatagram {
        from: SocketAddr::new(from, port),
        to,
        ecn: cursor.byte()?,
        content: cursor.0.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_comes_through_between_processes() {
        for (from, to) in [
            ("10.0.0.1:5", Some("10.0.0.2")),
            ("[fe80::1]:700", Some("::2")),
            ("[::1]:1", None),
        ] {
            let datagram = IncomingDatagram {
                from: from.parse().expect("an address"),
                to: to.map(|ip| ip.parse().expect("an address")),
                ecn: 3,
                content: b"content",
            };
            let message = encode(&datagram);
            let back = decode(&message).expect("what was encoded");
            assert_eq!((back.from, back.to), (datagram.from, datagram.to));
            assert_eq!((back.ecn, &back.content[..]), (3, datagram.content));
            for length in 0..message.len() - datagram.content.len() {
                assert!(decode(&message[..length]).is_none());
            }
        }
    }
}
