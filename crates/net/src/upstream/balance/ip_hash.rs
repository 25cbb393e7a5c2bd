//! `ip_hash`: by the client's address, so that a client stays with its server as long as the servers do not change.

use std::net::IpAddr;
use std::sync::Arc;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::{MAX_DRAWS, PickState};
use super::round_robin;
use crate::upstream::peer::UpstreamPeer;

/// nginx's numbers. Another hash would send every client of a site that moves to another server, away from its
/// session.
const SEED: u64 = 89;
const FACTOR: u64 = 113;
const MODULUS: u64 = 6271;

/// `ip_hash`.
#[derive(Clone, Copy, Debug)]
pub struct IpHash;

impl BalanceMethod for IpHash {
    fn takes_backup(&self) -> bool {
        false
    }

    fn balancer(&self, _: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(*self)
    }
}

impl Balancer for IpHash {
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>> {
        if pick.draws > MAX_DRAWS || peers.peers.len() < 2 || pick.on_backup {
            return round_robin::choose_round_robin(peers, pick, now);
        }
        if let Some(bound) = pick.sticky_peer(peers, now) {
            return Some(bound);
        }
        let (octets, count) = client_octets(pick.client);
        let mut hash = pick.hash.unwrap_or(SEED);
        loop {
            for &octet in &octets[..count] {
                hash = (hash * FACTOR + u64::from(octet)) % MODULUS;
            }
            let peer = peers.at_weight(hash % peers.total_weight);
            if pick.may_take(peer, now) {
                // Kept only when a peer is taken: the next try continues from this hash, not from the draws that
                // failed.
                pick.hash = Some(hash);
                return Some(peer.clone());
            }
            pick.draws += 1;
            if pick.draws > MAX_DRAWS {
                return round_robin::choose_round_robin(peers, pick, now);
            }
        }
    }
}

/// The bytes that are hashed, as in nginx: the first three of an IPv4 address, so that clients of one network stay
/// together; all of an IPv6 address; zeros for a unix socket.
fn client_octets(client: Option<IpAddr>) -> ([u8; 16], usize) {
    let mut octets = [0; 16];
    match client {
        Some(IpAddr::V4(ip)) => {
            octets[..3].copy_from_slice(&ip.octets()[..3]);
            (octets, 3)
        }
        Some(IpAddr::V6(ip)) => (ip.octets(), 16),
        None => (octets, 3),
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{balancer, port};
    use super::*;

    #[test]
    fn a_network_keeps_its_server_and_weights_count() {
        let mut by_ip = balancer(&IpHash, &[1, 2, 3]);
        let mut counts = [0; 4];
        for i in 0..=255 {
            let pick = |last| PickState {
                client: Some(IpAddr::from([10, 1, i, last])),
                ..PickState::default()
            };
            let first = port(&mut by_ip, &mut pick(1));
            assert_eq!(first, port(&mut by_ip, &mut pick(200)));
            counts[usize::from(first)] += 1;
        }
        assert!(counts[1] < counts[2] && counts[2] < counts[3], "{counts:?}");
    }

    #[test]
    fn known_addresses() {
        // Worked out by hand: 127.0.0 hashes to ((89·113+127)·113 mod 6271…) = see the steps.
        let mut hash = SEED;
        for octet in [127, 0, 0] {
            hash = (hash * FACTOR + octet) % MODULUS;
        }
        let mut by_ip = balancer(&IpHash, &[1, 1, 1]);
        let mut pick = PickState {
            client: Some(IpAddr::from([127, 0, 0, 1])),
            ..PickState::default()
        };
        assert_eq!(u64::from(port(&mut by_ip, &mut pick)), hash % 3 + 1);
    }
}
