//! By lot, by weight; or the better of two drawn by lot, which is nearly as good as the best of all, and needs no look
//! at them all.

use std::cmp::Ordering;
use std::sync::Arc;

use super::{Dice, MAX_DRAWS, Memory, Ring, bound, least_conn, least_time, may_take, round_robin};
use crate::upstream::group::RandomTwo;
use crate::upstream::peer::Peer;

pub(super) fn choose(
    ring: &Ring,
    memory: &mut Memory,
    two: Option<RandomTwo>,
    dice: &mut Dice,
    now: i64,
) -> Option<Arc<Peer>> {
    if memory.draws > MAX_DRAWS || ring.peers.len() < 2 || memory.on_backup {
        return round_robin::choose(ring, memory, now);
    }
    if let Some(bound) = bound(ring, memory, now) {
        return Some(bound);
    }
    let mut first: Option<&Arc<Peer>> = None;
    loop {
        let drawn = ring.at_weight(dice.throw(ring.total_weight));
        let again = first.is_some_and(|first| first.id == drawn.id);
        if !again && may_take(drawn, memory, now) {
            match (two, first) {
                (None, _) => return Some(drawn.clone()),
                (Some(two), Some(first)) => return Some(better(two, first, drawn, now).clone()),
                (Some(_), None) => {
                    first = Some(drawn);
                    continue;
                }
            }
        }
        memory.draws += 1;
        if memory.draws > MAX_DRAWS {
            return round_robin::choose(ring, memory, now);
        }
    }
}

fn better<'a>(
    two: RandomTwo,
    first: &'a Arc<Peer>,
    second: &'a Arc<Peer>,
    now: i64,
) -> &'a Arc<Peer> {
    let order = match two {
        RandomTwo::LeastConn => {
            least_conn::relative(second, first, |peer| peer.load.connections.get(), now)
        }
        RandomTwo::LeastTime(metric) => least_conn::relative(
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
    use super::super::Method;
    use super::super::tests::{balancer, ports};
    use super::*;

    #[test]
    fn weights_are_shares() {
        let mut random = balancer(Method::Random { two: None }, &[1, 3]);
        let second = ports(&mut random, 4000)
            .iter()
            .filter(|&&port| port == 2)
            .count();
        assert!((2800..3200).contains(&second), "{second}");
    }

    #[test]
    fn the_better_of_two_is_never_the_worst() {
        let mut random = balancer(
            Method::Random {
                two: Some(RandomTwo::LeastConn),
            },
            &[1, 1, 1],
        );
        random.primary.peers[1].load.connections.set(5);
        let picks = ports(&mut random, 200);
        assert!(!picks.contains(&2));
        assert!(picks.contains(&1) && picks.contains(&3));
    }
}
