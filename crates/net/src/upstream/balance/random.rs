//! `random`: a random peer, by weight; or with `two` the better one of two random peers. That is nearly as good as
//! the best of all, without a look at all of them.

use std::cmp::Ordering;
use std::sync::Arc;

use super::least_time::TimeMetric;
use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::{MAX_DRAWS, PickState};
use super::{least_conn, least_time, round_robin};
use crate::upstream::peer::UpstreamPeer;

/// `random`.
#[derive(Clone, Copy, Debug)]
pub struct RandomMethod {
    /// How the better one of two is found; `None`: the first one drawn is used.
    pub two: Option<RandomTwo>,
}

/// By what two random peers are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomTwo {
    /// The one with fewer connections in use.
    LeastConn,
    /// The one with the lower response time.
    LeastTime(TimeMetric),
}

impl BalanceMethod for RandomMethod {
    fn takes_backup(&self) -> bool {
        false
    }

    fn balancer(&self, _: &PeerSet, seed: u64) -> Box<dyn Balancer> {
        Box::new(RandomBalancer {
            two: self.two,
            // A xorshift generator never leaves the state zero.
            dice: XorShift64(seed | 1),
        })
    }
}

#[derive(Debug)]
struct RandomBalancer {
    two: Option<RandomTwo>,
    dice: XorShift64,
}

impl Balancer for RandomBalancer {
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
        let mut first: Option<&Arc<UpstreamPeer>> = None;
        loop {
            let drawn = peers.at_weight(self.dice.throw(peers.total_weight));
            // The same peer twice is not a choice of two: draw again, and count it, or a single usable peer would
            // keep this loop running.
            let again = first.is_some_and(|first| first.id == drawn.id);
            if !again && pick.may_take(drawn, now) {
                match (self.two, first) {
                    (None, _) => return Some(drawn.clone()),
                    (Some(two), Some(first)) => {
                        return Some(better(two, first, drawn, now).clone());
                    }
                    (Some(_), None) => {
                        first = Some(drawn);
                        continue;
                    }
                }
            }
            pick.draws += 1;
            if pick.draws > MAX_DRAWS {
                return round_robin::choose_round_robin(peers, pick, now);
            }
        }
    }
}

/// A small generator (xorshift64*). The choice of a server needs no secret randomness, and this runs under the
/// group's lock.
#[derive(Debug)]
struct XorShift64(u64);

impl XorShift64 {
    /// A number below `sides`, which is not zero.
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % sides
    }
}

fn better<'a>(
    two: RandomTwo,
    first: &'a Arc<UpstreamPeer>,
    second: &'a Arc<UpstreamPeer>,
    now: i64,
) -> &'a Arc<UpstreamPeer> {
    let order = match two {
        RandomTwo::LeastConn => least_conn::compare_cost_per_weight(
            second,
            first,
            |peer| peer.load.connections.get(),
            now,
        ),
        RandomTwo::LeastTime(metric) => least_conn::compare_cost_per_weight(
            second,
            first,
            |peer| least_time::expected(peer, metric, now),
            now,
        ),
    };
    if order == Ordering::Greater {
        first
    } else {
        second
    }
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{balancer, ports};
    use super::*;

    #[test]
    fn weights_are_shares() {
        let mut random = balancer(&RandomMethod { two: None }, &[1, 3]);
        let second = ports(&mut random, 4000)
            .iter()
            .filter(|&&port| port == 2)
            .count();
        assert!((2800..3200).contains(&second), "{second}");
    }

    #[test]
    fn the_better_of_two_is_never_the_worst() {
        let mut random = balancer(
            &RandomMethod {
                two: Some(RandomTwo::LeastConn),
            },
            &[1, 1, 1],
        );
        random.primary.set.peers[1].load.connections.set(5);
        let picks = ports(&mut random, 200);
        assert!(!picks.contains(&2));
        assert!(picks.contains(&1) && picks.contains(&3));
    }
}
