//! Weighted round robin, smoothly: weights 5, 1, 1 give A A B A C A A, not A A A A A B C.
//!
//! Each peer has a current weight. At each choice every peer gains its own weight; the one with the highest is
//! chosen and loses the sum of what all gained.

use std::sync::Arc;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::PickState;
use crate::upstream::peer::{UNIT, UpstreamPeer};

/// The method of a group without a balancing directive.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin;

impl BalanceMethod for RoundRobin {
    fn balancer(&self, _: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(*self)
    }
}

impl Balancer for RoundRobin {
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>> {
        choose_round_robin(peers, pick, now)
    }
}

/// A choice by round robin. Other methods fall back on it when their own choice cannot be used.
pub(super) fn choose_round_robin(
    peers: &PeerSet,
    pick: &PickState,
    now: i64,
) -> Option<Arc<UpstreamPeer>> {
    let bound = pick.sticky_peer(peers, now);
    if let Some(bound) = &bound {
        // Bound requests pay like others, so that unbound ones make up for them by going elsewhere. But only one in
        // a row does: otherwise a server with many bound clients would get no new ones for a long time.
        let lowest = bound.weight * UNIT
            - i64::try_from(peers.total_weight).unwrap_or(i64::MAX / UNIT) * UNIT;
        if bound.current_weight.get() <= lowest {
            return Some(bound.clone());
        }
    }
    let candidates = peers.peers.iter().filter(|peer| pick.may_take(peer, now));
    round_robin_turn(candidates, bound, now)
}

/// One turn of the round among the candidates. `decided` is chosen whatever the weights say, and pays for it.
pub(super) fn round_robin_turn<'a>(
    candidates: impl Iterator<Item = &'a Arc<UpstreamPeer>>,
    decided: Option<Arc<UpstreamPeer>>,
    now: i64,
) -> Option<Arc<UpstreamPeer>> {
    let mut best: Option<&Arc<UpstreamPeer>> = None;
    let mut total = 0;
    for peer in candidates {
        let effective = peer.effective_weight.get();
        let gain = peer.slow_start_share(effective, now);
        let current = peer.current_weight.add(gain);
        total += gain;
        // Failures have lowered this weight. It recovers by one with each choice, as in nginx.
        if effective < peer.weight * UNIT {
            peer.effective_weight.add(UNIT);
        }
        // Strictly greater: among equals the first in the configuration comes first.
        if best.is_none_or(|best| current > best.current_weight.get()) {
            best = Some(peer);
        }
    }
    let chosen = decided.or_else(|| best.cloned())?;
    chosen.current_weight.add(-total);
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{NOW, balancer, port, ports, with_servers};
    use super::super::pick_state::PickState;
    use super::RoundRobin;
    use crate::upstream::peer::UNIT;
    use std::time::Duration;

    #[test]
    fn the_smooth_sequence() {
        let mut round = balancer(&RoundRobin, &[5, 1, 1]);
        assert_eq!(ports(&mut round, 7), [1, 1, 2, 1, 3, 1, 1]);
        assert_eq!(ports(&mut round, 7), [1, 1, 2, 1, 3, 1, 1]);
        let mut round = balancer(&RoundRobin, &[3, 2, 1]);
        assert_eq!(ports(&mut round, 6), [1, 2, 1, 3, 2, 1]);
        let mut round = balancer(&RoundRobin, &[1, 1, 1]);
        assert_eq!(ports(&mut round, 6), [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn a_request_is_given_each_server_once() {
        let mut round = balancer(&RoundRobin, &[1, 1]);
        let mut pick = PickState::default();
        let tries: Vec<u16> = (0..3).map(|_| port(&mut round, &mut pick)).collect();
        assert_eq!(tries, [1, 2, 0]);
    }

    #[test]
    fn failed_and_occupied_servers_are_passed_over() {
        let mut round = with_servers(&RoundRobin, 3, |i, server| {
            server.max_conns = u32::from(i == 2);
        });
        round.primary.set.peers[0].load.fails.set(1);
        round.primary.set.peers[0].load.checked.set(NOW);
        assert_eq!(ports(&mut round, 3), [2, 3, 2]);
        round.primary.set.peers[2].load.connections.set(1);
        assert_eq!(ports(&mut round, 2), [2, 2]);
        // Its time is over: it is tried again, by one request.
        round.primary.set.peers[0].load.checked.set(NOW - 10_001);
        assert!(ports(&mut round, 2).contains(&1));
        assert_eq!(round.primary.set.peers[0].load.checked.get(), NOW);
    }

    #[test]
    fn a_slow_start_begins_near_zero_and_ends_at_the_weight() {
        let mut round = with_servers(&RoundRobin, 2, |_, server| {
            server.slow_start = Duration::from_secs(10)
        });
        let peer = round.primary.set.peers[1].clone();
        peer.load.troubles().started.set(NOW - 1000);
        assert_eq!(peer.weight_at(NOW), UNIT / 10);
        assert_eq!(peer.weight_at(NOW + 9000), UNIT);
        let share = ports(&mut round, 110)
            .iter()
            .filter(|&&port| port == 2)
            .count();
        assert!((9..=11).contains(&share), "{share}");
    }

    #[test]
    fn bound_requests_count_in_the_round() {
        let mut round = with_servers(&RoundRobin, 2, |i, server| {
            server.route = format!("{}", i + 1).into()
        });
        let mut bound = PickState {
            sid: Some("1".into()),
            ..PickState::default()
        };
        assert_eq!(port(&mut round, &mut bound), 1);
        assert_eq!(ports(&mut round, 1), [2]);
    }
}
