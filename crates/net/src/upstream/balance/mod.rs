//! Which peer is next.
//!
//! Each method is a file here. Their sequences are those of nginx for the same configuration, so that a site that moves
//! sees the same server for the same key, and the same order in a round.
//!
//! All of this runs under the group's lock and takes the time as an argument.

mod hash;
mod ip_hash;
mod least_conn;
mod least_time;
mod random;
mod ring;
mod round_robin;

use std::net::IpAddr;
use std::sync::Arc;

use bstr::BString;

use super::group::{Balance, Metric, RandomTwo, ServerState};
use super::peer::{Availability, Health, Peer};

pub(crate) use least_time::{inflight_begins, inflight_ends};

/// How often a method that draws or hashes is asked for another peer before the round decides.
const MAX_DRAWS: u32 = 20;

/// A method, without what only the engine can evaluate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    RoundRobin,
    LeastConn,
    IpHash,
    Hash,
    ConsistentHash,
    Random { two: Option<RandomTwo> },
    LeastTime { metric: Metric, inflight: bool },
}

impl Method {
    pub(crate) fn of(balance: &Balance) -> Method {
        match balance {
            Balance::RoundRobin => Method::RoundRobin,
            Balance::LeastConn => Method::LeastConn,
            Balance::IpHash => Method::IpHash,
            Balance::Hash {
                consistent: false, ..
            } => Method::Hash,
            Balance::Hash {
                consistent: true, ..
            } => Method::ConsistentHash,
            Balance::Random { two } => Method::Random { two: *two },
            Balance::LeastTime { metric, inflight } => Method::LeastTime {
                metric: *metric,
                inflight: *inflight,
            },
        }
    }
}

/// What one request remembers from try to try.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The peers that it was given: none is given twice.
    tried: Tried,
    /// No primary server was left: from now on only backup servers.
    pub(crate) on_backup: bool,
    /// What `hash` hashes.
    pub(crate) key: Vec<u8>,
    /// Whom `ip_hash` hashes; nothing for a client on a unix socket.
    pub(crate) client: Option<IpAddr>,
    /// The identifier of the server that it is bound to.
    pub(crate) sid: Option<BString>,
    /// Where the hash or the ring stands; `None` before the first try.
    hash: Option<u64>,
    /// How often the key was hashed.
    rehash: u32,
    /// How many draws were no good.
    draws: u32,
}

/// Ids of peers. Most requests try one, which needs no allocation.
#[derive(Debug, Default)]
struct Tried {
    first: Option<u64>,
    more: Vec<u64>,
}

impl Tried {
    fn add(&mut self, id: u64) {
        match self.first {
            None => self.first = Some(id),
            Some(_) => self.more.push(id),
        }
    }

    fn contains(&self, id: u64) -> bool {
        self.first == Some(id) || self.more.contains(&id)
    }
}

impl Memory {
    pub(crate) fn new(key: &[u8], client: Option<IpAddr>, sid: Option<BString>) -> Memory {
        Memory {
            key: key.to_vec(),
            client,
            sid,
            ..Memory::default()
        }
    }
}

/// The peers of a group that are primary, or those that are backup.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    pub(crate) peers: Vec<Arc<Peer>>,
    /// The sum of the configured weights.
    total_weight: u64,
    /// The points of `hash … consistent`.
    points: ring::Points,
    /// For each peer, the sum of the weights before it.
    starts: Vec<u64>,
}

impl Ring {
    pub(crate) fn new(peers: Vec<Arc<Peer>>, method: Method) -> Ring {
        let mut total_weight = 0;
        let mut starts = Vec::with_capacity(peers.len());
        for peer in &peers {
            starts.push(total_weight);
            total_weight += peer.weight.unsigned_abs();
        }
        let points = match method {
            Method::ConsistentHash => ring::Points::new(&peers),
            _ => ring::Points::default(),
        };
        Ring {
            peers,
            total_weight,
            points,
            starts,
        }
    }

    /// The peer on which a number below the total weight falls.
    fn at_weight(&self, weight: u64) -> &Arc<Peer> {
        let after = self.starts.partition_point(|&start| start <= weight);
        &self.peers[after - 1]
    }

    /// How many tries it is worth.
    fn tries(&self) -> u32 {
        // One that drains does not count: nearly nobody is bound to it.
        let up = self
            .peers
            .iter()
            .filter(|peer| peer.state == ServerState::Up);
        u32::try_from(up.count()).unwrap_or(u32::MAX)
    }
}

/// The peers of a group and the method.
#[derive(Debug)]
pub(crate) struct Balancer {
    pub(crate) method: Method,
    pub(crate) primary: Ring,
    pub(crate) backup: Ring,
    dice: Dice,
}

impl Balancer {
    pub(crate) fn new(
        method: Method,
        primary: Vec<Arc<Peer>>,
        backup: Vec<Arc<Peer>>,
        seed: u64,
    ) -> Balancer {
        Balancer {
            method,
            primary: Ring::new(primary, method),
            backup: Ring::new(backup, method),
            dice: Dice(seed | 1),
        }
    }

    /// A group of one address has no choice: failures do not take it away.
    pub(crate) fn is_single(&self) -> bool {
        self.primary.peers.len() == 1 && self.backup.peers.is_empty()
    }

    /// How many tries a request has at most.
    pub(crate) fn tries(&self) -> u32 {
        self.primary.tries() + self.backup.tries()
    }

    /// All peers; the flag says which are backup.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (&Arc<Peer>, bool)> {
        let primary = self.primary.peers.iter().map(|peer| (peer, false));
        primary.chain(self.backup.peers.iter().map(|peer| (peer, true)))
    }

    /// The next peer for a request, noted in its memory. Nothing is counted yet.
    pub(crate) fn choose(&mut self, memory: &mut Memory, now: i64) -> Option<Arc<Peer>> {
        if self.is_single() {
            return self.only_one(memory, now);
        }
        if !memory.on_backup {
            if let Some(peer) = self.choose_of_ring(memory, now) {
                return Some(self.note(peer, memory, now));
            }
            if self.backup.peers.is_empty() {
                return None;
            }
            memory.on_backup = true;
            memory.tried = Tried::default();
        }
        let peer = self.choose_of_ring(memory, now)?;
        Some(self.note(peer, memory, now))
    }

    /// Whether a peer would be found if a connection in use ended.
    pub(crate) fn is_worth_waiting(&self, memory: &Memory, now: i64) -> bool {
        self.peers().any(|(peer, backup)| {
            let tried = memory.on_backup == backup && memory.tried.contains(peer.id);
            !tried && peer.availability(now) == Availability::Occupied
        })
    }

    fn only_one(&self, memory: &Memory, now: i64) -> Option<Arc<Peer>> {
        let peer = &self.primary.peers[0];
        if bound(&self.primary, memory, now).is_some() {
            return Some(peer.clone());
        }
        // It may have failed: there is nobody else. But an active check knows better than a count of failures.
        let out = peer.state != ServerState::Up || peer.health() == Health::Unhealthy;
        (!out && peer.occupancy() == Availability::Free).then(|| peer.clone())
    }

    fn choose_of_ring(&mut self, memory: &mut Memory, now: i64) -> Option<Arc<Peer>> {
        let ring = if memory.on_backup {
            &self.backup
        } else {
            &self.primary
        };
        match self.method {
            Method::RoundRobin => round_robin::choose(ring, memory, now),
            Method::LeastConn => least_conn::choose(ring, memory, now),
            Method::LeastTime { metric, inflight } => {
                least_time::choose(ring, memory, metric, inflight, now)
            }
            Method::IpHash => ip_hash::choose(ring, memory, now),
            Method::Hash => hash::choose(ring, memory, now),
            Method::ConsistentHash => ring::choose(ring, memory, now),
            Method::Random { two } => random::choose(ring, memory, two, &mut self.dice, now),
        }
    }

    fn note(&self, peer: Arc<Peer>, memory: &mut Memory, now: i64) -> Arc<Peer> {
        memory.tried.add(peer.id);
        let checked = &peer.load.checked;
        if now - checked.get() > peer.fail_timeout {
            checked.set(now);
        }
        peer
    }
}

/// Whether a request may be given a peer.
fn may_take(peer: &Peer, memory: &Memory, now: i64) -> bool {
    !memory.tried.contains(peer.id) && peer.availability(now) == Availability::Free
}

/// The peer that the request is bound to, if it may be used.
fn bound(ring: &Ring, memory: &Memory, now: i64) -> Option<Arc<Peer>> {
    let sid = memory.sid.as_ref()?;
    let peer = ring.peers.iter().find(|peer| peer.sid() == sid)?;
    let free = peer.availability_when_bound(now) == Availability::Free;
    (free && !memory.tried.contains(peer.id)).then(|| peer.clone())
}

/// Small random numbers (xorshift64*): the choice of a server is no secret.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    /// A number below `sides`, which is not zero.
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % sides
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::group::Server;
    use super::super::peer::Load;
    use super::*;

    /// Any moment after the epoch of the numbers.
    pub(crate) const NOW: i64 = 1 << 40;

    /// Peers 127.0.0.1:1, :2, … with these weights.
    pub(crate) fn balancer(method: Method, weights: &[u32]) -> Balancer {
        with_servers(method, weights.len(), |i, server| {
            server.weight = weights[i]
        })
    }

    pub(crate) fn with_servers(
        method: Method,
        count: usize,
        change: impl Fn(usize, &mut Server),
    ) -> Balancer {
        let (mut primary, mut backup) = (Vec::new(), Vec::new());
        for i in 0..count {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, i as u16 + 1)).into();
            let mut server = Server::new(format!("127.0.0.1:{}", i + 1), Vec::new());
            change(i, &mut server);
            let peer = Arc::new(Peer::new(
                i as u64 + 1,
                i,
                &server,
                address,
                Arc::new(Load::default()),
            ));
            if server.backup {
                backup.push(peer)
            } else {
                primary.push(peer)
            }
        }
        Balancer::new(method, primary, backup, 1)
    }

    /// The ports of one pick for each of `count` requests.
    pub(crate) fn ports(balancer: &mut Balancer, count: usize) -> Vec<u16> {
        (0..count)
            .map(|_| port(balancer, &mut Memory::default()))
            .collect()
    }

    /// The port of the next pick; 0 for none.
    pub(crate) fn port(balancer: &mut Balancer, memory: &mut Memory) -> u16 {
        balancer
            .choose(memory, NOW)
            .map_or(0, |peer| peer.address().port())
    }

    #[test]
    fn a_number_falls_on_peers_by_weight() {
        let balancer = balancer(Method::RoundRobin, &[2, 1, 3]);
        let found: Vec<u16> = (0..6)
            .map(|i| balancer.primary.at_weight(i).address().port())
            .collect();
        assert_eq!(found, [1, 1, 2, 3, 3, 3]);
    }

    #[test]
    fn backup_servers_wait_until_no_other_is_left() {
        let mut balancer = with_servers(Method::RoundRobin, 3, |i, server| server.backup = i == 2);
        let mut memory = Memory::default();
        assert_eq!(balancer.tries(), 3);
        let tries: Vec<u16> = (0..4).map(|_| port(&mut balancer, &mut memory)).collect();
        assert_eq!(tries, [1, 2, 3, 0]);
    }

    #[test]
    fn a_bound_request_goes_to_a_server_that_drains() {
        let methods = [
            Method::RoundRobin,
            Method::LeastConn,
            Method::Hash,
            Method::ConsistentHash,
            Method::IpHash,
        ];
        for method in methods {
            let mut balancer = with_servers(method, 3, |i, server| {
                server.route = format!("r{}", i + 1).into();
                if i == 1 {
                    server.state = ServerState::Drain;
                }
            });
            let mut memory = Memory {
                sid: Some("r2".into()),
                key: b"k".to_vec(),
                ..Memory::default()
            };
            assert_eq!(port(&mut balancer, &mut memory), 2, "{method:?}");
            let rest: Vec<u16> = (0..3).map(|_| port(&mut balancer, &mut memory)).collect();
            assert!(!rest.contains(&2), "{method:?}");
        }
    }

    #[test]
    fn a_single_server_is_never_lost_to_failures() {
        let mut balancer = balancer(Method::RoundRobin, &[1]);
        balancer.primary.peers[0].load.fails.set(5);
        balancer.primary.peers[0].load.checked.set(NOW);
        assert_eq!(ports(&mut balancer, 2), [1, 1]);
    }
}
