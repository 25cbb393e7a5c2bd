//! `least_conn`: the peer with the fewest connections in use relative to its weight; equals take turns.

use std::cmp::Ordering;
use std::sync::Arc;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::PickState;
use super::round_robin;
use crate::upstream::peer::UpstreamPeer;

/// `least_conn`.
#[derive(Clone, Copy, Debug)]
pub struct LeastConn;

impl BalanceMethod for LeastConn {
    fn balancer(&self, _: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(*self)
    }
}

impl Balancer for LeastConn {
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>> {
        if let Some(bound) = pick.sticky_peer(peers, now) {
            return Some(bound);
        }
        let candidates = || peers.peers.iter().filter(|peer| pick.may_take(peer, now));
        least_cost_peer(candidates, |peer| peer.load.connections.get(), now)
    }
}

/// The candidate with the least cost relative to its weight. If there are several, the round robin decides among
/// them.
pub(super) fn least_cost_peer<'a, C, I>(
    candidates: C,
    cost: impl Fn(&UpstreamPeer) -> i64,
    now: i64,
) -> Option<Arc<UpstreamPeer>>
where
    C: Fn() -> I,
    I: Iterator<Item = &'a Arc<UpstreamPeer>>,
{
    // Candidates are gone through twice instead of being collected: no allocation under the group's lock.
    let compare = |a: &UpstreamPeer, b: &UpstreamPeer| compare_cost_per_weight(a, b, &cost, now);
    let mut best: Option<&Arc<UpstreamPeer>> = None;
    let mut several = false;
    for peer in candidates() {
        match best.map_or(Ordering::Less, |best| compare(peer, best)) {
            Ordering::Less => (best, several) = (Some(peer), false),
            Ordering::Equal => several = true,
            Ordering::Greater => {}
        }
    }
    let best = best?;
    if !several {
        return Some(best.clone());
    }
    round_robin::round_robin_turn(
        candidates().filter(|peer| compare(peer, best) == Ordering::Equal),
        None,
        now,
    )
}

/// Compares costs per unit of weight, by cross multiplication: a division would round small costs to the same
/// value.
pub(super) fn compare_cost_per_weight(
    a: &UpstreamPeer,
    b: &UpstreamPeer,
    cost: impl Fn(&UpstreamPeer) -> i64,
    now: i64,
) -> Ordering {
    // The product of a cost, a weight and the weight's unit can exceed 64 bits.
    let product =
        |x: &UpstreamPeer, y: &UpstreamPeer| i128::from(cost(x)) * i128::from(y.weight_at(now));
    product(a, b).cmp(&product(b, a))
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::GroupBalancer;
    use super::super::group_balancer::tests::{balancer, ports};
    use super::LeastConn;

    #[test]
    fn the_least_loaded_by_weight() {
        let mut least = balancer(&LeastConn, &[1, 1, 2]);
        let load = |least: &GroupBalancer, loads: [i64; 3]| {
            for (peer, load) in least.primary.set.peers.iter().zip(loads) {
                peer.load.connections.set(load);
            }
        };
        load(&least, [2, 1, 3]);
        assert_eq!(ports(&mut least, 1), [2]);
        load(&least, [2, 2, 3]);
        assert_eq!(ports(&mut least, 2), [3, 3]);
        load(&least, [1, 1, 2]);
        assert_eq!(ports(&mut least, 4), [3, 1, 2, 3]);
    }

    #[test]
    fn equals_take_turns() {
        let mut least = balancer(&LeastConn, &[1, 1]);
        assert_eq!(ports(&mut least, 4), [1, 2, 1, 2]);
    }
}
