//! `least_time`: the peer that will probably answer first. Its mean response time is multiplied by the number of
//! its requests and the new one.
//!
//! Times are rounded to steps of 20 ms, so that peers of about the same speed take turns. Above 5 s all peers count
//! as equally slow, and only the number of connections matters.

use std::sync::Arc;

use super::least_conn::least_cost_peer;
use super::method::{AfterHead, BalanceMethod, Balancer, RequestObserver};
use super::peer_set::PeerSet;
use super::pick_state::PickState;
use crate::upstream::peer::UpstreamPeer;
use crate::upstream::peer_load::moving_average;

/// Times within one step of this many milliseconds count as equal.
const STEP: i64 = 20;
/// From this many milliseconds on, a peer counts as slow as any other.
const SLOWEST: i64 = 5000;

/// `least_time`.
#[derive(Clone, Copy, Debug)]
pub struct LeastTime {
    /// Which part of the response time is compared.
    pub metric: TimeMetric,
    /// Whether requests under way count, not only finished ones (`inflight`).
    pub inflight: bool,
}

/// Which time of a response counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeMetric {
    /// Until the response header arrives (`header`; `first_byte` in stream).
    Header,
    /// Until the response has ended (`last_byte`).
    LastByte,
    /// Until the connection is established (`connect`, stream only).
    Connect,
}

impl TimeMetric {
    /// The mean of a peer's times.
    fn mean(self, peer: &UpstreamPeer) -> i64 {
        let load = &peer.load;
        match self {
            TimeMetric::Connect => load.connect_time.get(),
            TimeMetric::Header => load.header_time.get(),
            TimeMetric::LastByte => load.response_time.get(),
        }
    }
}

impl BalanceMethod for LeastTime {
    fn balancer(&self, _: &PeerSet, _: u64) -> Box<dyn Balancer> {
        Box::new(*self)
    }

    fn observer(&self) -> Option<&'static dyn RequestObserver> {
        match (self.inflight, self.metric) {
            (false, _) => None,
            (true, TimeMetric::Header) => Some(&InflightUntilHead),
            (true, TimeMetric::LastByte | TimeMetric::Connect) => Some(&InflightUntilEnd),
        }
    }
}

impl Balancer for LeastTime {
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
        if self.inflight {
            // Before the comparison, so that a server that has just begun to hang is seen now and not when its
            // requests time out.
            candidates().for_each(|peer| observe_inflight(peer, now));
        }
        least_cost_peer(candidates, |peer| expected(peer, self.metric, now), now)
    }
}

/// `least_time header inflight`: a request counts as under way until its response header arrives.
#[derive(Debug)]
struct InflightUntilHead;

impl RequestObserver for InflightUntilHead {
    fn request_began(&self, peer: &UpstreamPeer, now: i64) {
        inflight_begins(peer, now);
    }

    fn head_arrived(&self, peer: &UpstreamPeer, took: i64, now: i64) -> AfterHead {
        moving_average(&peer.load.header_time, took);
        inflight_ends(peer, took, now);
        AfterHead::Ended
    }

    fn request_ended(&self, peer: &UpstreamPeer, took: i64, now: i64) {
        inflight_ends(peer, took, now);
    }
}

/// `least_time last_byte inflight`: a request counts as under way until its response ends.
#[derive(Debug)]
struct InflightUntilEnd;

impl RequestObserver for InflightUntilEnd {
    fn request_began(&self, peer: &UpstreamPeer, now: i64) {
        inflight_begins(peer, now);
    }

    fn head_arrived(&self, _: &UpstreamPeer, _: i64, _: i64) -> AfterHead {
        AfterHead::UnderWay
    }

    fn request_ended(&self, peer: &UpstreamPeer, took: i64, now: i64) {
        inflight_ends(peer, took, now);
    }
}

/// The expected milliseconds until a peer has answered all it has and one request more.
pub(super) fn expected(peer: &UpstreamPeer, metric: TimeMetric, now: i64) -> i64 {
    let mut time = metric.mean(peer);
    let unseen = now - peer.load.checked.get();
    if unseen > peer.fail_timeout {
        // A peer that was idle for long may have become faster. Its mean is halved for each `fail_timeout` that has
        // passed, so that it gets another chance.
        let seconds = |milliseconds: i64| milliseconds / 1000;
        let halvings = seconds(unseen) / (seconds(peer.fail_timeout) + 1);
        time >>= halvings.min(62);
    }
    if let Some(inflight) = peer.load.known_inflight()
        && inflight.count.get() > 0
    {
        // The requests under way have already taken longer than the mean: the server is slower now than it was.
        time = time.max(inflight.time.get());
    }
    let time = if time > SLOWEST {
        SLOWEST
    } else {
        time + STEP - time % STEP
    };
    time * (1 + peer.load.connections.get())
}

/// Adds the present age of the requests under way to their moving average.
fn observe_inflight(peer: &UpstreamPeer, now: i64) {
    let Some(inflight) = peer.load.known_inflight() else {
        return;
    };
    let count = inflight.count.get();
    if count > 0 {
        let age = inflight.spent.get() / count + (now - inflight.changed.get());
        moving_average(&inflight.time, age);
    }
}

/// Counts a request as under way. The time that the others have spent so far is added up first, because from now on
/// it grows faster.
fn inflight_begins(peer: &UpstreamPeer, now: i64) {
    let inflight = peer.load.inflight();
    let count = inflight.count.get();
    if count > 0 {
        let since = now - inflight.changed.get();
        inflight.spent.add(since * count);
    }
    inflight.changed.set(now);
    inflight.count.set(count + 1);
}

/// Ends the count of a request that took this many milliseconds, and removes its share from the sum.
fn inflight_ends(peer: &UpstreamPeer, took: i64, now: i64) {
    let inflight = peer.load.inflight();
    let count = inflight.count.get();
    if count <= 1 {
        // The last one: rounding errors of the sum end here.
        inflight.spent.set(0);
    } else {
        let since = now - inflight.changed.get();
        inflight.spent.add(since * count - took);
        inflight.changed.set(now);
    }
    inflight.count.set((count - 1).max(0));
}

#[cfg(test)]
mod tests {
    use super::super::group_balancer::tests::{NOW, balancer, ports};
    use super::*;

    const METHOD: LeastTime = LeastTime {
        metric: TimeMetric::Header,
        inflight: false,
    };

    #[test]
    fn the_fastest_until_it_is_busy() {
        let mut least = balancer(&METHOD, &[1, 1]);
        let peers = least.primary.set.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        peers[0].load.header_time.set(95);
        peers[1].load.header_time.set(30);
        assert_eq!(ports(&mut least, 2), [2, 2]);
        peers[1].load.connections.set(2);
        assert_eq!(ports(&mut least, 1), [1]);
    }

    #[test]
    fn peers_of_one_step_take_turns() {
        let mut least = balancer(&METHOD, &[1, 1]);
        let peers = least.primary.set.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        peers[0].load.header_time.set(21);
        peers[1].load.header_time.set(39);
        assert_eq!(ports(&mut least, 4), [1, 2, 1, 2]);
    }

    #[test]
    fn requests_under_way_weigh_by_their_age() {
        let mut least = balancer(
            &LeastTime {
                metric: TimeMetric::Header,
                inflight: true,
            },
            &[1, 1],
        );
        let peers = least.primary.set.peers.clone();
        peers.iter().for_each(|peer| peer.load.checked.set(NOW));
        inflight_begins(&peers[0], NOW - 1000);
        assert_eq!(ports(&mut least, 1), [2]);
        inflight_ends(&peers[0], 1000, NOW);
        assert_eq!(peers[0].load.inflight().count.get(), 0);
        assert_eq!(peers[0].load.inflight().spent.get(), 0);
    }
}
