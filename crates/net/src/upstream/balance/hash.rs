//! By a key, on the sum of the weights: the same as Perl's `Cache::Memcached`.
//!
//! A server more or less moves nearly every key; `consistent` (`ring.rs`) does not.

use std::sync::Arc;

use base::hash::Crc32;

use super::{MAX_DRAWS, Memory, Ring, bound, may_take, round_robin};
use crate::upstream::peer::Peer;

pub(super) fn choose(ring: &Ring, memory: &mut Memory, now: i64) -> Option<Arc<Peer>> {
    if memory.draws > MAX_DRAWS || ring.peers.len() < 2 || memory.key.is_empty() || memory.on_backup
    {
        return round_robin::choose(ring, memory, now);
    }
    if let Some(bound) = bound(ring, memory, now) {
        return Some(bound);
    }
    let mut hash = memory.hash.unwrap_or(0);
    loop {
        hash = (hash + hash_of(memory.rehash, &memory.key)) & u64::from(u32::MAX);
        memory.rehash += 1;
        memory.hash = Some(hash);
        let peer = ring.at_weight(hash % ring.total_weight);
        if may_take(peer, memory, now) {
            return Some(peer.clone());
        }
        memory.draws += 1;
        if memory.draws > MAX_DRAWS {
            return round_robin::choose(ring, memory, now);
        }
    }
}

/// Fifteen bits of the sum of the key, with the number of the repetition before it from the second time on.
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
    use super::super::Method;
    use super::super::tests::{balancer, port, ports};
    use super::*;

    #[test]
    fn a_key_keeps_its_server_and_another_one_follows() {
        let mut by_key = balancer(Method::Hash, &[1, 1, 1]);
        let memory = || Memory {
            key: b"123456789".to_vec(),
            ..Memory::default()
        };
        // The sum of these nine digits is known: cbf43926.
        assert_eq!(port(&mut by_key, &mut memory()), (0x4bf4 % 3 + 1) as u16);
        let mut all: Vec<u16> = {
            let mut memory = memory();
            (0..4).map(|_| port(&mut by_key, &mut memory)).collect()
        };
        assert_eq!(all.pop(), Some(0));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    }

    #[test]
    fn without_a_key_they_take_turns() {
        let mut by_key = balancer(Method::Hash, &[1, 1]);
        assert_eq!(ports(&mut by_key, 3), [1, 2, 1]);
    }
}
