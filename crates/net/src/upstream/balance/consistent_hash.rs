//! `hash … consistent`: servers own points on a ring, and a key goes to the next point (ketama). Adding or removing
//! a server moves only the keys of that server.
//!
//! Every peer has 160 points for each unit of weight. They are at the same places as those of Perl's
//! `Cache::Memcached::Fast` and of nginx: a chain of CRC32 sums over the host and port as the `server` line has
//! them. So a site that moves, or a script that fills the same memcached, finds the same server for a key.

use std::collections::HashMap;
use std::sync::Arc;

use base::hash::{Crc32, crc32};
use bstr::{BStr, ByteSlice};
use conf::Expression;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::{MAX_DRAWS, PickState};
use super::round_robin;
use crate::upstream::peer::UpstreamPeer;

/// Points for each unit of weight; part of the agreement with other clients, not a setting.
const POINTS: i64 = 160;

/// The ring: points in order of their hash, each with its server.
#[derive(Debug)]
struct HashRing {
    points: Vec<RingPoint>,
    /// The addresses of each server, as indices into the peers. Searching them for a name would take longer than all else,
    /// where there are thousands.
    servers: Vec<Vec<u32>>,
}

#[derive(Clone, Copy, Debug)]
struct RingPoint {
    hash: u32,
    /// Index into the servers. One with several addresses owns its points once, and its addresses take turns.
    server: u32,
}

impl HashRing {
    fn new(peers: &PeerSet) -> HashRing {
        let mut numbers: HashMap<&BStr, usize> = HashMap::new();
        let mut servers: Vec<Vec<u32>> = Vec::new();
        let mut points = Vec::new();
        for (index, peer) in peers.peers.iter().enumerate() {
            let server = *numbers.entry(peer.server()).or_insert(servers.len());
            if server == servers.len() {
                servers.push(Vec::with_capacity(1));
            }
            servers[server].push(index as u32);
            let base = base_of(peer.server());
            let mut previous: u32 = 0;
            // Each point hashes the one before it, in little-endian order: the layout that the other
            // implementations agree on.
            for _ in 0..peer.weight * POINTS {
                let mut crc = base;
                crc.update(&previous.to_le_bytes());
                previous = crc.finish();
                points.push(RingPoint {
                    hash: previous,
                    server: server as u32,
                });
            }
        }
        points.sort_by_key(|point| point.hash);
        // Two servers on one point: the sort is stable, so the first in the configuration keeps it.
        points.dedup_by_key(|point| point.hash);
        points.shrink_to_fit();
        HashRing { points, servers }
    }

    /// The position of the first point at or after a hash; one past the end is the beginning of the ring.
    fn position(&self, hash: u32) -> u64 {
        self.points.partition_point(|point| point.hash < hash) as u64
    }

    /// The addresses of the server that owns a point.
    fn addresses(&self, position: u64) -> &[u32] {
        let point = self.points[(position % self.points.len() as u64) as usize];
        &self.servers[point.server as usize]
    }
}

/// The CRC32 of the host, a zero byte and the port, with which every point of a server begins.
fn base_of(server: &BStr) -> Crc32 {
    let (host, port) = host_and_port(server);
    let mut crc = Crc32::new();
    crc.update(host);
    crc.update(&[0]);
    crc.update(port);
    crc
}

/// The text is split as it is written: the hash must not depend on what a name resolves to.
fn host_and_port(server: &[u8]) -> (&[u8], &[u8]) {
    if server
        .get(..5)
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"unix:"))
    {
        return (&server[5..], b"");
    }
    match server.rfind_byte(b':') {
        Some(colon) if server[colon + 1..].iter().all(u8::is_ascii_digit) => {
            (&server[..colon], &server[colon + 1..])
        }
        _ => (server, b""),
    }
}

/// `hash … consistent`.
#[derive(Clone, Debug)]
pub struct ConsistentHash {
    /// What is hashed; the engine evaluates it for the request.
    pub key: Expression,
}

impl BalanceMethod for ConsistentHash {
    fn key(&self) -> Option<&Expression> {
        Some(&self.key)
    }

    fn takes_backup(&self) -> bool {
        false
    }

    fn balancer(&self, peers: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(HashRing::new(peers))
    }
}

impl Balancer for HashRing {
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>> {
        // An empty key says nothing about the request: to hash it would send all such requests to one server.
        if pick.draws > MAX_DRAWS || pick.key.is_empty() || pick.on_backup || self.points.is_empty()
        {
            return round_robin::choose_round_robin(peers, pick, now);
        }
        if let Some(bound) = pick.sticky_peer(peers, now) {
            return Some(bound);
        }
        let mut position = pick.hash.unwrap_or_else(|| self.position(crc32(&pick.key)));
        loop {
            pick.hash = Some(position);
            // All addresses of this server, less those that were tried: after a failure its other addresses come
            // before the next server.
            let of_server = self.addresses(position).iter();
            let of_server = of_server.map(|index| &peers.peers[*index as usize]);
            let of_server = of_server.filter(|peer| pick.may_take(peer, now));
            if let Some(peer) = round_robin::round_robin_turn(of_server, None, now) {
                return Some(peer);
            }
            // The next point may be the same server's. Each step counts as a draw, so the walk ends.
            position += 1;
            pick.draws += 1;
            if pick.draws > MAX_DRAWS {
                pick.hash = Some(position);
                return round_robin::choose_round_robin(peers, pick, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{balancer, port, with_servers};
    use super::*;

    fn pick(key: u32) -> PickState {
        PickState {
            key: key.to_string().into_bytes(),
            ..PickState::default()
        }
    }

    fn method() -> ConsistentHash {
        ConsistentHash {
            key: Expression::literal(b"unused"),
        }
    }

    #[test]
    fn points_of_a_known_server() {
        // zlib's crc32 of "127.0.0.1", a zero, "8081" and four zeros, and of the same with that sum as the last four.
        let mut crc = Crc32::new();
        crc.update(b"127.0.0.1\08081\0\0\0\0");
        let first = crc.finish();
        let mut crc = base_of(BStr::new("127.0.0.1:8081"));
        crc.update(&[0; 4]);
        assert_eq!(crc.finish(), first);
        assert_eq!(host_and_port(b"unix:/a:1"), (&b"/a:1"[..], &b""[..]));
        assert_eq!(host_and_port(b"[::1]:80"), (&b"[::1]"[..], &b"80"[..]));
        assert_eq!(host_and_port(b"name"), (&b"name"[..], &b""[..]));
    }

    #[test]
    fn a_server_less_moves_only_its_keys() {
        let mut all = balancer(&method(), &[1, 1, 1]);
        let mut without = with_servers(&method(), 3, |i, server| {
            if i == 2 {
                server.state = crate::upstream::ServerState::Down;
            }
        });
        for key in 0..1000 {
            let before = port(&mut all, &mut pick(key));
            let after = port(&mut without, &mut pick(key));
            assert!(
                before == after || before == 3,
                "key {key}: {before} {after}"
            );
        }
    }

    #[test]
    fn weights_are_shares() {
        let mut ring = balancer(&method(), &[1, 3]);
        let second = (0..4000)
            .filter(|&key| port(&mut ring, &mut pick(key)) == 2)
            .count();
        assert!((2600..3400).contains(&second), "{second}");
    }
}
