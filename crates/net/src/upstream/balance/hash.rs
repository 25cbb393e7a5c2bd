//! `hash` without `consistent`: the key's hash modulo the total weight, with the same results as Perl's
//! `Cache::Memcached` and nginx.
//!
//! Adding or removing a server moves nearly every key; `consistent` (`consistent_hash.rs`) does not.

use std::sync::Arc;

use base::hash::Crc32;
use conf::Expression;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::{MAX_DRAWS, PickState};
use super::round_robin;
use crate::upstream::peer::UpstreamPeer;

/// `hash`, without `consistent`.
#[derive(Clone, Debug)]
pub struct HashMethod {
    /// What is hashed; the engine evaluates it for the request.
    pub key: Expression,
}

impl BalanceMethod for HashMethod {
    fn key(&self) -> Option<&Expression> {
        Some(&self.key)
    }

    fn takes_backup(&self) -> bool {
        false
    }

    fn balancer(&self, _: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(HashBalancer)
    }
}

/// Has no state: all that a choice depends on is in the request.
#[derive(Debug)]
struct HashBalancer;

impl Balancer for HashBalancer {
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>> {
        if pick.draws > MAX_DRAWS || peers.peers.len() < 2 || pick.key.is_empty() || pick.on_backup
        {
            return round_robin::choose_round_robin(peers, pick, now);
        }
        if let Some(bound) = pick.sticky_peer(peers, now) {
            return Some(bound);
        }
        let mut hash = pick.hash.unwrap_or(0);
        loop {
            // Sums up over the tries, in 32 bits, as the other implementations do: only so does a retry find the
            // same second server.
            hash = (hash + hash_of(pick.rehash, &pick.key)) & u64::from(u32::MAX);
            pick.rehash += 1;
            pick.hash = Some(hash);
            let peer = peers.at_weight(hash % peers.total_weight);
            if pick.may_take(peer, now) {
                return Some(peer.clone());
            }
            pick.draws += 1;
            if pick.draws > MAX_DRAWS {
                return round_robin::choose_round_robin(peers, pick, now);
            }
        }
    }
}

/// Fifteen bits of the CRC32 of the key, preceded by the number of the repetition from the second one on.
fn hash_of(repetition: u32, key: &[u8]) -> u64 {
    let mut crc = Crc32::new();
    if repetition > 0 {
        crc.update(repetition.to_string().as_bytes());
    }
    crc.update(key);
    u64::from(crc.finish() >> 16 & 0x7fff)
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{balancer, port, ports};
    use super::*;

    #[test]
    fn a_key_keeps_its_server_and_another_one_follows() {
        let mut by_key = balancer(
            &HashMethod {
                key: Expression::literal(b"unused"),
            },
            &[1, 1, 1],
        );
        let pick = || PickState {
            key: b"123456789".to_vec(),
            ..PickState::default()
        };
        // The sum of these nine digits is known: cbf43926.
        assert_eq!(port(&mut by_key, &mut pick()), (0x4bf4 % 3 + 1) as u16);
        let mut all: Vec<u16> = {
            let mut pick = pick();
            (0..4).map(|_| port(&mut by_key, &mut pick)).collect()
        };
        assert_eq!(all.pop(), Some(0));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    }

    #[test]
    fn without_a_key_they_take_turns() {
        let mut by_key = balancer(
            &HashMethod {
                key: Expression::literal(b"unused"),
            },
            &[1, 1],
        );
        assert_eq!(ports(&mut by_key, 3), [1, 2, 1]);
    }
}
