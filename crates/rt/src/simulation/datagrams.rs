//! Datagrams: what one UDP socket of a simulation sends and another one receives.
//!
//! Each is a unix datagram socket whose name holds its address. What is sent comes here first; chance decides whether it is lost
//! or comes twice, and when, so that a later one may overtake it. It is delivered by a socket of the network's own, with what
//! the receiver has to know in front:
//!
//! ```text
//! kind u8      0: a datagram; 1: there is no socket at an address that the receiver has sent to (RFC 792: port unreachable)
//! length u8    of the address
//! address      the sender's, or the one without a socket, as text
//! rest         the datagram
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, sendto,
    socket_with,
};

use super::network::{DatagramOnWay, DatagramsUnderWay, Network, datagram_name, decoded_name};
use super::wire::hash;
use super::{chance, clock, count_fault, is_running, note};

/// The most bytes in front of a datagram.
const FRONT: usize = 2 + 64;
/// A datagram whose receiver has no room waits for this long, and for this long in all: a dead process reads no more.
const FULL_NANOS: u64 = 1_000_000;
const FULL_LONGEST: u64 = 5_000_000_000;

/// How many sockets the program has.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// How many sockets for datagrams the program has open.
pub fn datagram_sockets() -> usize {
    OPEN.load(Relaxed)
}

/// A socket for datagrams that is bound to this address.
pub fn bind_datagrams(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    bind(&socket, &datagram_name(address)?)?;
    Ok(socket)
}

/// What a socket of the program knows of itself.
pub(crate) struct SimulatedDatagrams {
    own: SocketAddr,
    peer: Option<SocketAddr>,
}

impl Drop for SimulatedDatagrams {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Relaxed);
    }
}

/// What came out of the frame of a datagram.
enum ReceivedFrame {
    Datagram(usize, SocketAddr),
    Unreachable,
    /// It is from another sender than the one that the socket is connected to.
    Foreign,
}

impl SimulatedDatagrams {
    fn new(own: SocketAddr, peer: Option<SocketAddr>) -> SimulatedDatagrams {
        OPEN.fetch_add(1, Relaxed);
        SimulatedDatagrams { own, peer }
    }

    /// Binds to this address, or to a free port of it. `None`: nothing is simulated.
    pub(crate) fn bind(
        address: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> Option<io::Result<(OwnedFd, SimulatedDatagrams)>> {
        is_running().then(|| {
            let mut own = address;
            if own.ip().is_unspecified() {
                own.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
            }
            if own.port() == 0 {
                Network::with(|network| own.set_port(network.free_port()));
            }
            let socket = bind_datagrams(own)?;
            Network::with(|network| match peer {
                Some(peer) => drop(network.datagrams.connected.insert(own, peer)),
                None => drop(network.datagrams.connected.remove(&own)),
            });
            Ok((socket, SimulatedDatagrams::new(own, peer)))
        })
    }

    /// What there is to know of a socket that was opened elsewhere.
    pub(crate) fn of(socket: &OwnedFd) -> Option<SimulatedDatagrams> {
        if !is_running() {
            return None;
        }
        let name = rustix::net::SocketAddrUnix::try_from(getsockname(socket).ok()?).ok()?;
        let own = decoded_name(name.abstract_name()?)?;
        let mut peer = None;
        Network::with(|network| peer = network.datagrams.connected.get(&own).copied());
        Some(SimulatedDatagrams::new(own, peer))
    }

    pub(crate) fn receive(
        &self,
        socket: impl AsFd,
        into: &mut [u8],
    ) -> rustix::io::Result<(usize, SocketAddr)> {
        let mut frame = vec![0; into.len() + FRONT];
        loop {
            let (n, _) = recv(&socket, &mut frame[..], RecvFlags::DONTWAIT)?;
            match self.open_frame(&frame[..n], into) {
                ReceivedFrame::Datagram(n, from) => return Ok((n, from)),
                ReceivedFrame::Unreachable => return Err(Errno::CONNREFUSED),
                ReceivedFrame::Foreign => {}
            }
        }
    }

    fn open_frame(&self, frame: &[u8], into: &mut [u8]) -> ReceivedFrame {
        let [kind, length, rest @ ..] = frame else {
            return ReceivedFrame::Foreign;
        };
        let (address, content) = rest.split_at(usize::from(*length).min(rest.len()));
        let from = std::str::from_utf8(address)
            .ok()
            .and_then(|text| text.parse().ok());
        let Some(from) = from.filter(|from| self.peer.is_none_or(|peer| peer == *from)) else {
            return ReceivedFrame::Foreign;
        };
        match (kind, self.peer) {
            (0, _) => {
                let n = content.len().min(into.len());
                into[..n].copy_from_slice(&content[..n]);
                ReceivedFrame::Datagram(n, from)
            }
            (_, Some(_)) => ReceivedFrame::Unreachable,
            // Only a socket that is connected is told.
            (_, None) => ReceivedFrame::Foreign,
        }
    }

    /// Sends to this address, or to where the socket is connected.
    pub(crate) fn send(&self, content: &[u8], to: Option<SocketAddr>) -> rustix::io::Result<usize> {
        let to = to.or(self.peer).ok_or(Errno::DESTADDRREQ)?;
        Network::with(|network| network.send_datagram(self.own, to, content));
        Ok(content.len())
    }

    pub(crate) fn own(&self) -> SocketAddr {
        self.own
    }
}

impl DatagramsUnderWay {
    pub(super) fn possible_steps(&self, now: u64, mut push: impl FnMut(u64)) -> Option<u64> {
        let mut next: Option<u64> = None;
        for (number, datagram) in &self.datagrams {
            match datagram.due <= now {
                true => push(*number),
                false => next = next.into_iter().chain([datagram.due]).min(),
            }
        }
        next
    }

    fn add(&mut self, datagram: DatagramOnWay) {
        self.datagrams.insert(self.next, datagram);
        self.next += 1;
    }
}

impl Network {
    fn send_datagram(&mut self, from: SocketAddr, to: SocketAddr, content: &[u8]) {
        let losses = self.weather().losses;
        let has_fate = losses > 0 && chance::number().is_multiple_of(losses);
        let copies = match (has_fate, chance::number() % 2) {
            (false, _) => 1,
            (true, 0) => {
                count_fault("datagram lost");
                0
            }
            (true, _) => {
                count_fault("datagram twice");
                2
            }
        };
        for _ in 0..copies {
            self.begin_way(from, to, (0, content.to_vec()));
        }
    }

    fn begin_way(&mut self, from: SocketAddr, to: SocketAddr, (kind, content): (u8, Vec<u8>)) {
        let (shortest, longest) = match self.weather().is_slow {
            true => (1_000_000, 80_000_000),
            false => (10_000, 500_000),
        };
        let now = clock::nanos();
        let due = now + shortest + chance::number() % (longest - shortest);
        self.datagrams.add(DatagramOnWay {
            from,
            to,
            content,
            kind,
            due,
            sent: now,
        });
    }

    pub(super) fn deliver_datagram(&mut self, number: u64) {
        let Some(mut datagram) = self.datagrams.datagrams.remove(&number) else {
            return;
        };
        let (from, to, len) = (datagram.from, datagram.to, datagram.content.len());
        match send_frame(&datagram) {
            Ok(()) => {
                let is_encrypted = self.is_encrypted(from.port()) || self.is_encrypted(to.port());
                note(|| match is_encrypted {
                    true => format!("datagram {number} of {len} from {from} to {to}"),
                    false => format!(
                        "datagram {number} of {len} from {from} to {to}, {:016x}",
                        hash(&datagram.content)
                    ),
                });
            }
            Err(Errno::AGAIN | Errno::NOBUFS) => {
                let now = clock::nanos();
                if now > datagram.sent + FULL_LONGEST {
                    return;
                }
                count_fault("receiver's buffer full");
                datagram.due = now + FULL_NANOS;
                self.datagrams.datagrams.insert(number, datagram);
            }
            Err(_) => {
                note(|| format!("datagram {number} of {len} from {from} finds no socket at {to}"));
                if datagram.kind == 0 {
                    count_fault("datagram to no socket");
                    self.begin_way(to, from, (1, Vec::new()));
                }
            }
        }
    }
}

fn send_frame(datagram: &DatagramOnWay) -> rustix::io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // One for each: what a receiver has not read counts for its sender.
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    let address = datagram.from.to_string();
    let mut frame = vec![datagram.kind, address.len() as u8];
    frame.extend_from_slice(address.as_bytes());
    frame.extend_from_slice(&datagram.content);
    let name = datagram_name(datagram.to).map_err(|_| Errno::INVAL)?;
    sendto(&socket, &frame, SendFlags::NOSIGNAL, &name).map(drop)
}
