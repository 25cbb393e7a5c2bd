//! The peer that will probably be done first: its mean time, for each request that it has already and one more.
//!
//! Times are put into steps of 20 ms, so that peers that are about as fast take turns; above 5 s all are equally slow,
//! and the number of connections decides.

use std::sync::Arc;

use super::least_conn::least;
use super::{Memory, Ring, bound, may_take};
use crate::upstream::group::Metric;
use crate::upstream::peer::{Peer, average};

/// Times within one step of so many milliseconds count as equal.
const STEP: i64 = 20;
/// Milliseconds from which on a peer is as slow as any.
const SLOWEST: i64 = 5000;

pub(super) fn choose(
    ring: &Ring,
    memory: &Memory,
    metric: Metric,
    inflight: bool,
    now: i64,
) -> Option<Arc<Peer>> {
    if let Some(bound) = bound(ring, memory, now) {
        return Some(bound);
    }
    let candidates = || ring.peers.iter().filter(|peer| may_take(peer, memory, now));
    if inflight {
        candidates().for_each(|peer| observe_inflight(peer, now));
    }
    least(candidates, |peer| expected(peer, metric, now), now)
}

/// The milliseconds that a peer needs for what it has and one request more.
pub(super) fn expected(peer: &Peer, metric: Metric, now: i64) -> i64 {
    let mut time = peer.time(metric).get();
    let unseen = now - peer.load.checked.get();
    if unseen > peer.fail_timeout {
        // One that had nothing to do for long may have become faster: it gets another chance.
        let seconds = |milliseconds: i64| milliseconds / 1000;
        let halvings = seconds(unseen) / (seconds(peer.fail_timeout) + 1);
        time >>= halvings.min(62);
    }
    if peer.load.inflight.get() > 0 {
        // Requests that are under way for longer than it takes in the mean: something is wrong there.
        time = time.max(peer.load.inflight_time.get());
    }
    let time = if time > SLOWEST {
        SLOWEST
    } else {
        time + STEP - time % STEP
    };
    time * (1 + peer.load.connections.get())
}

/// Takes the present age of the requests under way into their mean.
fn observe_inflight(peer: &Peer, now: i64) {
    let load = &peer.load;
    let count = load.inflight.get();
    if count > 0 {
        let age = load.inflight_spent.get() / count + (now - load.inflight_changed.get());
        average(&load.inflight_time, age);
    }
}

/// A request is under way now.
pub(crate) fn inflight_begins(peer: &Peer, now: i64) {
    let load = &peer.load;
    let count = load.inflight.get();
    if count > 0 {
        load.inflight_spent
            .add((now - load.inflight_changed.get()) * count);
    }
    load.inflight_changed.set(now);
    load.inflight.set(count + 1);
}

/// A request is under way no more; it took so many milliseconds.
pub(crate) fn inflight_ends(peer: &Peer, took: i64, now: i64) {
    let load = &peer.load;
    let count = load.inflight.get();
    if count <= 1 {
        load.inflight_spent.set(0);
    } else {
        load.inflight_spent
            .add((now - load.inflight_changed.get()) * count - took);
        load.inflight_changed.set(now);
    }
    load.inflight.set((count - 1).max(0));
}

#[cfg(test)]
mod tests {
    use super::super::Method;
    use super::super::tests::{NOW, balancer, ports};
    use super::*;

    const METHOD: Method = Method::LeastTime {
        metric: Metric::Header,
        inflight: false,
    };

    #[test]
    fn the_fastest_until_it_is_busy() {
        let mut least = balancer(METHOD, &[1, 1]);
        let peers = least.primary.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        peers[0].load.header_time.set(95);
        peers[1].load.header_time.set(30);
        assert_eq!(ports(&mut least, 2), [2, 2]);
        peers[1].load.connections.set(2);
        assert_eq!(ports(&mut least, 1), [1]);
    }

    #[test]
    fn peers_of_one_step_take_turns() {
        let mut least = balancer(METHOD, &[1, 1]);
        let peers = least.primary.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        peers[0].load.header_time.set(21);
        peers[1].load.header_time.set(39);
        assert_eq!(ports(&mut least, 4), [1, 2, 1, 2]);
    }

    #[test]
    fn requests_under_way_weigh_by_their_age() {
        let mut least = balancer(
            Method::LeastTime {
                metric: Metric::Header,
                inflight: true,
            },
            &[1, 1],
        );
        let peers = least.primary.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        inflight_begins(&peers[0], NOW - 1000);
        assert_eq!(ports(&mut least, 1), [2]);
        inflight_ends(&peers[0], 1000, NOW);
        assert_eq!(peers[0].load.inflight.get(), 0);
        assert_eq!(peers[0].load.inflight_spent.get(), 0);
    }
}
