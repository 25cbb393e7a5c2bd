//! The network of a simulation: who listens where, and the wires.
//!
//! An address stands for a unix socket in Linux's abstract namespace, whose name holds it; so the addresses that the kernel
//! gives back are the simulated ones ([`decoded_name`]). Datagrams are in [`super::datagrams`]. Unix sockets with a path are not
//! simulated.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use base::sync::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
    socketpair, sockopt,
};

use super::wire::{Wire, WireBreak, WireFate, WirePlan, WireStep, poll_now};
use super::{chance, clock, count_fault, note};

/// What every name of the network begins with.
const PREFIX: &str = "weir-simulation/";
/// What stands before the address in the name of a socket for datagrams.
const DATAGRAMS: &str = "udp/";
/// The first port of clients.
const FIRST_PORT: u16 = 20_000;
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 511;

/// How much goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkWeather {
    /// One wire in this number breaks; 0: none does.
    pub breaks: u64,
    /// One connection in this number is refused, or never comes to be; 0: none.
    pub refusals: u64,
    /// Pieces are small, and take long.
    pub is_slow: bool,
    /// One datagram in this number is lost, and as many come twice; 0: none.
    pub losses: u64,
}

impl NetworkWeather {
    /// Nothing goes wrong, and everything takes a while.
    pub const CALM: NetworkWeather = NetworkWeather {
        breaks: 0,
        refusals: 0,
        is_slow: false,
        losses: 0,
    };
}

/// A step of the network.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetworkStep {
    Wire(WireStep),
    /// The datagram with this number arrives.
    Datagram(u64),
}

/// A datagram on its way.
pub(super) struct DatagramOnWay {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) content: Vec<u8>,
    pub(super) kind: u8,
    pub(super) due: u64,
    pub(super) sent: u64,
}

/// All that are on their way, by number.
#[derive(Default)]
pub(super) struct DatagramsUnderWay {
    pub(super) datagrams: BTreeMap<u64, DatagramOnWay>,
    pub(super) next: u64,
    /// Where sockets are connected to that the program has opened, by their own addresses. It stays so when a socket gets
    /// another form.
    pub(super) connected: BTreeMap<SocketAddr, SocketAddr>,
}

pub(super) struct Network {
    wires: BTreeMap<u64, Wire>,
    next_wire: u64,
    next_port: u16,
    weather: NetworkWeather,
    /// Ports of servers whose bytes are not a function of the seed: they are encrypted.
    encrypted: HashSet<u16>,
    pub(super) datagrams: DatagramsUnderWay,
    /// Sockets of the program that a reset has reached, by inode.
    resets: HashSet<u64>,
    /// Wires whose server has not accepted yet, by the client's address.
    arriving: BTreeMap<SocketAddr, u64>,
}

static NETWORK: Mutex<Option<Network>> = Mutex::new(None);

/// Sets the weather for wires from now on.
pub fn set_weather(weather: NetworkWeather) {
    Network::with(|network| network.weather = weather);
}

/// What is sent to and from this port is encrypted: how much it is follows from the seed, and what it is does not.
pub fn note_encrypted(port: u16) {
    Network::with(|network| {
        network.encrypted.insert(port);
    });
}

/// How many connections there are.
pub fn wire_count() -> usize {
    wires_to(|_| true)
}

/// How many connections there are to servers with such a port.
pub fn wires_to(is_port: impl Fn(u16) -> bool) -> usize {
    let mut count = 0;
    Network::with(|network| {
        let wires = network.wires.values();
        count = wires.filter(|wire| is_port(wire.port)).count();
    });
    count
}

/// Cuts all connections, as the death of the process in the middle does.
pub fn cut_all() {
    Network::with(|network| {
        note(|| "all wires are cut".to_owned());
        for wire in std::mem::take(&mut network.wires).into_values() {
            network.resets.extend(wire.sockets.into_iter().flatten());
        }
    });
}

/// A socket that listens at this address.
pub fn listen_at(address: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    bind(&socket, &name_of(address)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn name_of(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    name_below(address, "")
}

/// The name of a socket for datagrams.
pub(super) fn datagram_name(address: SocketAddr) -> io::Result<SocketAddrUnix> {
    name_below(address, DATAGRAMS)
}

fn name_below(address: SocketAddr, kind: &str) -> io::Result<SocketAddrUnix> {
    let name = format!("{PREFIX}{}/{kind}{address}", std::process::id());
    Ok(SocketAddrUnix::new_abstract_name(name.as_bytes())?)
}

/// The address that a name in the abstract namespace stands for.
pub(crate) fn decoded_name(name: &[u8]) -> Option<SocketAddr> {
    let name = std::str::from_utf8(name).ok()?.strip_prefix(PREFIX)?;
    let address = name.split_once('/')?.1;
    address
        .strip_prefix(DATAGRAMS)
        .unwrap_or(address)
        .parse()
        .ok()
}

/// What becomes of a connection that is begun now.
pub(crate) fn draw_connection() -> ConnectFate {
    let mut fate = ConnectFate::Refused;
    Network::with(|network| fate = network.fate_of_connection());
    fate
}

/// Connects to an address of the network, from this address: the socket, and its own address.
pub(crate) fn connect_to(
    address: SocketAddr,
    from: Option<IpAddr>,
) -> io::Result<(OwnedFd, SocketAddr)> {
    let mut connected = Err(io::ErrorKind::NotConnected.into());
    Network::with(|network| connected = network.connect(address, from));
    connected
}

/// Notes the socket that a server got for a connection.
pub(crate) fn note_accepted(socket: &OwnedFd, peer: SocketAddr) {
    Network::try_with(|network| {
        if let Some(number) = network.arriving.remove(&peer)
            && let Some(wire) = network.wires.get_mut(&number)
        {
            wire.sockets[1] = inode(socket);
        }
    });
}

/// Whether the end of a stream was a reset, which unix sockets do not tell.
pub(crate) fn was_reset(socket: impl AsFd) -> bool {
    let mut reset = false;
    Network::try_with(|network| {
        let inode = inode(&socket);
        reset = inode.is_some_and(|inode| network.resets.contains(&inode));
    });
    reset
}

fn inode(socket: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|found| found.st_ino)
}

/// What becomes of a connection.
pub(crate) enum ConnectFate {
    Refused,
    NeverArrives,
    /// After this number of nanoseconds.
    Arrives(u64),
}

impl Network {
    pub(super) fn start() {
        *NETWORK.lock() = Some(Network {
            wires: BTreeMap::new(),
            next_wire: 1,
            next_port: FIRST_PORT,
            weather: NetworkWeather::CALM,
            encrypted: HashSet::new(),
            datagrams: DatagramsUnderWay::default(),
            resets: HashSet::new(),
            arriving: BTreeMap::new(),
        });
    }

    pub(super) fn with(f: impl FnOnce(&mut Network)) {
        f(NETWORK.lock().as_mut().expect("a simulation runs"));
    }

    pub(super) fn try_with(f: impl FnOnce(&mut Network)) {
        if let Some(network) = NETWORK.lock().as_mut() {
            f(network);
        }
    }

    fn fate_of_connection(&mut self) -> ConnectFate {
        let weather = self.weather;
        if weather.refusals > 0 && chance::number().is_multiple_of(weather.refusals) {
            return match chance::number().is_multiple_of(2) {
                true => {
                    count_fault("connection refused");
                    ConnectFate::Refused
                }
                false => {
                    count_fault("connection never arrives");
                    ConnectFate::NeverArrives
                }
            };
        }
        ConnectFate::Arrives(100_000 + chance::number() % 2_000_000)
    }

    fn connect(
        &mut self,
        address: SocketAddr,
        from: Option<IpAddr>,
    ) -> io::Result<(OwnedFd, SocketAddr)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, near) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let far = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let from = from.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let from = SocketAddr::new(from, self.free_port());
        bind(&far, &name_of(from)?)?;
        // Nobody listens there, or more wait than may.
        connect(&far, &name_of(address)?).map_err(|_| rustix::io::Errno::CONNREFUSED)?;
        let plan = self.plan();
        // Small buffers, so that writers meet their end.
        let buffer = 8_192 << (chance::number() % 5);
        for socket in [&own, &near, &far] {
            sockopt::set_socket_send_buffer_size(socket, buffer)?;
        }
        let number = self.next_wire;
        self.next_wire += 1;
        note(|| format!("wire {number}: {from} to {address}"));
        let is_encrypted = self.is_encrypted(address.port());
        let mut wire = Wire::new(number, [near, far], (address.port(), is_encrypted), plan);
        wire.sockets[0] = inode(&own);
        self.wires.insert(number, wire);
        self.arriving.insert(from, number);
        Ok((own, from))
    }

    pub(super) fn free_port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }

    pub(super) fn is_encrypted(&self, port: u16) -> bool {
        self.encrypted.contains(&port)
    }

    pub(super) fn weather(&self) -> NetworkWeather {
        self.weather
    }

    fn plan(&self) -> WirePlan {
        let weather = self.weather;
        let is_slow = weather.is_slow && chance::number().is_multiple_of(2);
        if is_slow {
            count_fault("slow wire");
        }
        let breaks = weather.breaks > 0 && chance::number().is_multiple_of(weather.breaks);
        let how = match chance::number().is_multiple_of(3) {
            true => WireBreak::Silence,
            false => WireBreak::Reset,
        };
        let direction = (chance::number() % 2) as usize;
        // Soon more often than late: 1 byte to 128 KB.
        let after = 1 + chance::number() % (1 << (chance::number() % 18));
        WirePlan {
            way: match is_slow {
                true => (1_000_000, 40_000_000),
                false => (10_000, 500_000),
            },
            piece: 1 << (if is_slow { 3 } else { 5 } + chance::number() % 12),
            window: 4_096 << (chance::number() % 6),
            breaks: breaks.then_some((direction, after, how)),
        }
    }

    /// What can be done now, and when there is more if there is nothing.
    pub(super) fn possible_steps(
        &self,
        now: u64,
        mut push: impl FnMut(NetworkStep),
    ) -> Option<u64> {
        let mut polled: Vec<PollFd<'_>> = Vec::with_capacity(2 * self.wires.len());
        for wire in self.wires.values() {
            for (end, wanted) in wire.ends.iter().zip(wire.wanted(now)) {
                polled.push(PollFd::from_borrowed_fd(end.as_fd(), wanted));
            }
        }
        poll_now(&mut polled);
        let mut next = self
            .datagrams
            .possible_steps(now, |number| push(NetworkStep::Datagram(number)));
        for (wire, found) in self.wires.values().zip(polled.chunks_exact(2)) {
            let found: [PollFlags; 2] = [found[0].revents(), found[1].revents()];
            let due = wire.steps(now, found, &mut |step| push(NetworkStep::Wire(step)));
            next = next.into_iter().chain(due).min();
        }
        next
    }

    pub(super) fn do_step(&mut self, step: NetworkStep) {
        let now = clock::nanos();
        let step = match step {
            NetworkStep::Wire(step) => step,
            NetworkStep::Datagram(number) => return self.deliver_datagram(number),
        };
        let Some(wire) = self.wires.get_mut(&step.wire) else {
            return;
        };
        let fate = match step.takes_in {
            true => wire.take_in(step.direction, now),
            false => wire.deliver(step.direction),
        };
        let reached: &[usize] = match fate {
            WireFate::Lives => return,
            WireFate::Finished => &[],
            WireFate::ResetOf(0) => &[0],
            WireFate::ResetOf(_) => &[1],
            WireFate::ResetOfBoth => &[0, 1],
        };
        let sockets = wire.sockets;
        self.resets
            .extend(reached.iter().filter_map(|side| sockets[*side]));
        self.wires.remove(&step.wire);
    }
}
