//! A path through which TCP and QUIC pass alike: packets leave the system through a TUN device, are delayed, lost,
//! reordered, doubled, spoiled or thinned out here, and come back.
//!
//! ```text
//!  client                                   relay                                server
//!  10.9.0.1 → 10.9.0.2     ──▶     10.9.0.3 (or .4, .5 …) → 10.9.0.1     ──▶     10.9.0.1
//!  10.9.0.2 → 10.9.0.1     ◀──     10.9.0.1 → 10.9.0.3 (or .4, .5 …)     ◀──
//! ```
//!
//! Both ends have the one address of the device; the relay exchanges addresses, so that each end sees another host. `socat`
//! opens the device and passes its packets over a Unix socket: opening one needs an `ioctl`, and this program has no
//! `unsafe`. All of this belongs into a network namespace of its own.

use std::collections::BinaryHeap;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The address of the device, and so of both ends.
pub(crate) const HERE: [u8; 4] = [10, 9, 0, 1];
/// Where clients find the server.
pub(crate) const SERVER: [u8; 4] = [10, 9, 0, 2];
/// The last byte of the address that the server sees its client at, at first.
const FIRST_CLIENT: u8 = 3;

/// How much may wait in front of a slow link, in bytes: 100 ms of 50 Mbit/s.
const QUEUE: u64 = 625_000;

/// When a path goes dark, after its first packet.
const DARK_AFTER: Duration = Duration::from_millis(500);

/// What happens to packets on their way. Probabilities are of one packet in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathConditions {
    /// In one direction.
    pub(crate) delay: Duration,
    pub(crate) loss: f64,
    /// Packets that take a quarter longer.
    pub(crate) reordering: f64,
    pub(crate) duplication: f64,
    pub(crate) corruption: f64,
    /// Bits per second; 0: no limit.
    pub(crate) rate: u64,
    /// The ECN field is cleared.
    pub(crate) bleaches_ecn: bool,
    /// For how long nothing passes, from [`DARK_AFTER`] on.
    pub(crate) dark: Duration,
    pub(crate) seed: u64,
}

/// A running relay; it ends when this is dropped.
pub(crate) struct PathRelay {
    socat: Child,
    thread: Option<JoinHandle<()>>,
    control: Arc<RelayControl>,
    sockets: [PathBuf; 2],
}

#[derive(Default)]
struct RelayControl {
    is_over: AtomicBool,
    /// How often the client's address has changed.
    moves: AtomicU8,
    passed: AtomicU64,
    lost: AtomicU64,
}

/// A packet that leaves at its time.
struct Packet {
    due: Instant,
    number: u64,
    bytes: Vec<u8>,
}

impl Ord for Packet {
    fn cmp(&self, other: &Packet) -> std::cmp::Ordering {
        // The heap has the largest first.
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Packet) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for Packet {}

impl PartialEq for Packet {
    fn eq(&self, other: &Packet) -> bool {
        self.cmp(other).is_eq()
    }
}

impl PathRelay {
    pub(crate) fn start(folder: &Path, conditions: PathConditions) -> Result<PathRelay, String> {
        let told = |error: std::io::Error| format!("relay: {error}");
        let sockets = [folder.join("relay.sock"), folder.join("tun.sock")];
        for path in &sockets {
            // One of an earlier relay.
            let _ = std::fs::remove_file(path);
        }
        let socket = UnixDatagram::bind(&sockets[0]).map_err(told)?;
        let here = std::net::Ipv4Addr::from(HERE);
        let device = format!("TUN:{here}/24,iff-up,iff-no-pi,tun-name=weir-path,tun-type=tun");
        let other = format!(
            "UNIX-SENDTO:{},bind={}",
            sockets[0].display(),
            sockets[1].display()
        );
        let socat = Command::new("socat")
            .args(["-b", "65536", &device, &other])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("socat: {error}"))?;
        let control = Arc::new(RelayControl::default());
        let mut relay = PathRelay {
            socat,
            thread: None,
            control,
            sockets,
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        // The address is there once the device is.
        let is_up = || std::net::UdpSocket::bind((here, 0)).is_ok();
        while !relay.sockets[1].exists() || !is_up() {
            if Instant::now() > deadline || !matches!(relay.socat.try_wait(), Ok(None)) {
                return Err(
                    "socat does not open a TUN device; root, and a namespace, are needed".into(),
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        socket.connect(&relay.sockets[1]).map_err(told)?;
        let control = Arc::clone(&relay.control);
        relay.thread = Some(std::thread::spawn(move || {
            pass(&socket, conditions, &control)
        }));
        Ok(relay)
    }

    /// The client has another address from now on.
    pub(crate) fn move_client(&self) {
        self.control.moves.fetch_add(1, Relaxed);
    }

    /// Packets that were passed on, and lost.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (
            self.control.passed.load(Relaxed),
            self.control.lost.load(Relaxed),
        )
    }
}

impl Drop for PathRelay {
    fn drop(&mut self) {
        self.control.is_over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it has been shown.
            let _ = thread.join();
        }
        // It may have ended by itself.
        let _ = self.socat.kill();
        let _ = self.socat.wait();
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One direction of the path.
struct Direction {
    /// When the link is free.
    free: Instant,
    random: u64,
}

impl Direction {
    /// A number from 0 to 1 (xorshift64*).
    fn chance(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// When a packet arrives, as far as it does.
    fn arrivals(&mut self, length: usize, conditions: &PathConditions) -> Vec<Instant> {
        let now = Instant::now();
        // All numbers are drawn for each packet: the same packets are lost whatever else happens.
        let [lost, late, twice] = [self.chance(), self.chance(), self.chance()];
        if lost < conditions.loss {
            return Vec::new();
        }
        let mut leaves = now;
        if conditions.rate > 0 {
            let bits = length as f64 * 8.0;
            let waiting = self.free.saturating_duration_since(now);
            if waiting.as_secs_f64() * conditions.rate as f64 / 8.0 > QUEUE as f64 {
                return Vec::new();
            }
            leaves = self.free.max(now) + Duration::from_secs_f64(bits / conditions.rate as f64);
            self.free = leaves;
        }
        let delay = match late < conditions.reordering {
            true => conditions.delay + conditions.delay / 4,
            false => conditions.delay,
        };
        let mut arrivals = vec![leaves + delay];
        if twice < conditions.duplication {
            arrivals.push(leaves + delay);
        }
        arrivals
    }
}

fn pass(socket: &UnixDatagram, conditions: PathConditions, control: &RelayControl) {
    let mut directions = [1, 2].map(|which: u64| Direction {
        free: Instant::now(),
        random: (conditions.seed + which).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
    });
    let mut waiting: BinaryHeap<Packet> = BinaryHeap::new();
    let mut buffer = vec![0; 65_536];
    let mut number = 0;
    let mut began = None;
    while !control.is_over.load(Relaxed) {
        let now = Instant::now();
        while waiting.peek().is_some_and(|packet| packet.due <= now) {
            let Some(packet) = waiting.pop() else { break };
            // A device that takes nothing: lost.
            let _ = socket.send(&packet.bytes);
        }
        let wait = waiting.peek().map_or(Duration::from_millis(50), |packet| {
            packet.due.saturating_duration_since(Instant::now())
        });
        let wait = wait.clamp(Duration::from_micros(50), Duration::from_millis(50));
        if socket.set_read_timeout(Some(wait)).is_err() {
            return;
        }
        let length = match socket.recv(&mut buffer) {
            Ok(length) => length,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut bytes = buffer[..length].to_vec();
        let moves = control.moves.load(Relaxed);
        let Some(to_server) = readdress(&mut bytes, moves) else {
            continue;
        };
        let direction = &mut directions[usize::from(to_server)];
        if conditions.bleaches_ecn {
            bleach(&mut bytes);
        }
        let spoils = direction.chance() < conditions.corruption;
        if spoils && let Some(last) = bytes.last_mut() {
            *last ^= 0x55;
        }
        let age = began.get_or_insert_with(Instant::now).elapsed();
        let is_dark = age
            .checked_sub(DARK_AFTER)
            .is_some_and(|dark| dark < conditions.dark);
        let arrivals = match is_dark {
            true => Vec::new(),
            false => direction.arrivals(length, &conditions),
        };
        let count = if arrivals.is_empty() {
            &control.lost
        } else {
            &control.passed
        };
        count.fetch_add(1, Relaxed);
        for due in arrivals {
            number += 1;
            let bytes = bytes.clone();
            waiting.push(Packet { due, number, bytes });
        }
    }
}

/// Exchanges the addresses of a packet. Whether it goes to the server; `None`: it is not of this path.
fn readdress(packet: &mut [u8], moves: u8) -> Option<bool> {
    if packet.len() < 20 || packet[0] >> 4 != 4 {
        return None;
    }
    let to: [u8; 4] = packet[16..20].try_into().ok()?;
    let to_server = to == SERVER;
    if !to_server && (to[..3] != HERE[..3] || to[3] < FIRST_CLIENT) {
        return None;
    }
    let from = match to_server {
        true => [10, 9, 0, FIRST_CLIENT + moves % 200],
        false => SERVER,
    };
    let before: [u8; 8] = packet[12..20].try_into().ok()?;
    packet[12..16].copy_from_slice(&from);
    packet[16..20].copy_from_slice(&HERE);
    let after: [u8; 8] = packet[12..20].try_into().ok()?;
    let header = usize::from(packet[0] & 0xf) * 4;
    adjust(packet, 10, &before, &after);
    match packet[9] {
        6 => adjust(packet, header + 16, &before, &after),
        17 if packet.get(header + 6..header + 8) != Some(&[0, 0]) => {
            adjust(packet, header + 6, &before, &after);
        }
        _ => {}
    }
    Some(to_server)
}

/// Clears the ECN field.
fn bleach(packet: &mut [u8]) {
    let before = [packet[0], packet[1]];
    packet[1] &= !3;
    let after = [packet[0], packet[1]];
    adjust(packet, 10, &before, &after);
}

/// Brings a checksum up to date (RFC 1624, equation 3).
fn adjust(packet: &mut [u8], at: usize, before: &[u8], after: &[u8]) {
    let Some(sum) = packet.get(at..at + 2) else {
        return;
    };
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair[1]]));
    let mut new = !word(sum) & 0xffff;
    for pair in before.chunks_exact(2) {
        new += !word(pair) & 0xffff;
    }
    for pair in after.chunks_exact(2) {
        new += word(pair);
    }
    while new >> 16 != 0 {
        new = (new & 0xffff) + (new >> 16);
    }
    packet[at..at + 2].copy_from_slice(&(!new as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(bytes: &[u8]) -> u32 {
        let mut sum: u32 = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
            .sum();
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    #[test]
    fn a_header_that_was_readdressed_has_the_right_checksum() {
        let mut packet = vec![0x45, 3, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0];
        packet.extend([HERE, SERVER].concat());
        packet.extend([0x30, 0x39, 0x1f, 0x90, 0, 8, 0, 0]);
        let sum = !checksum(&packet[..20]) as u16;
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(readdress(&mut packet, 4), Some(true));
        assert_eq!(packet[12..20], [10, 9, 0, 7, 10, 9, 0, 1]);
        assert_eq!(checksum(&packet[..20]), 0xffff);
        bleach(&mut packet);
        assert_eq!((packet[1], checksum(&packet[..20])), (0, 0xffff));
        packet[16..20].copy_from_slice(&[10, 9, 0, 7]);
        assert_eq!(readdress(&mut packet, 4), Some(false));
        assert_eq!(packet[12..20], [10, 9, 0, 2, 10, 9, 0, 1]);
    }
}
