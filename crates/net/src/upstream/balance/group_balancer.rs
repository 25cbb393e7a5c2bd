//! The balancer of a group: the primary peers first, and the backup peers when no primary one is left for a
//! request.

use std::sync::Arc;

use super::method::{BalanceMethod, Balancer};
use super::peer_set::PeerSet;
use super::pick_state::{PickState, TriedPeers};
use crate::upstream::peer::{PeerAvailability, PeerHealth, UpstreamPeer};
use crate::upstream::server::ServerState;

/// The peers of a group, and the choice among them.
#[derive(Debug)]
pub(crate) struct GroupBalancer {
    pub(super) primary: BalancedPeers,
    backup: BalancedPeers,
}

/// One set of peers with its own state of the balancing method: as in nginx, backup peers have a round of their
/// own.
#[derive(Debug)]
pub(super) struct BalancedPeers {
    pub(super) set: PeerSet,
    balancer: Box<dyn Balancer>,
}

impl BalancedPeers {
    fn new(method: &dyn BalanceMethod, peers: Vec<Arc<UpstreamPeer>>, seed: u64) -> BalancedPeers {
        let set = PeerSet::new(peers);
        let balancer = method.balancer(&set, seed);
        BalancedPeers { set, balancer }
    }
}

impl GroupBalancer {
    pub(crate) fn new(
        method: &dyn BalanceMethod,
        primary: Vec<Arc<UpstreamPeer>>,
        backup: Vec<Arc<UpstreamPeer>>,
        seed: u64,
    ) -> GroupBalancer {
        GroupBalancer {
            primary: BalancedPeers::new(method, primary, seed),
            backup: BalancedPeers::new(method, backup, seed),
        }
    }

    /// Whether the group has only one address. Failures do not disable that: an error of the only server is better
    /// than none at all.
    pub(crate) fn is_single(&self) -> bool {
        self.primary.set.peers.len() == 1 && self.backup.set.peers.is_empty()
    }

    /// The most tries that a request can have.
    pub(crate) fn tries(&self) -> u32 {
        self.primary.set.tries() + self.backup.set.tries()
    }

    /// All peers; the flag says which are backup.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (&Arc<UpstreamPeer>, bool)> {
        let primary = self.primary.set.peers.iter().map(|peer| (peer, false));
        primary.chain(self.backup.set.peers.iter().map(|peer| (peer, true)))
    }

    /// The next peer for a request, recorded in the request's state. Connections are not counted yet: the caller
    /// does that.
    pub(crate) fn choose(&mut self, pick: &mut PickState, now: i64) -> Option<Arc<UpstreamPeer>> {
        if self.is_single() {
            return self.only_one(pick, now);
        }
        if !pick.on_backup {
            if let Some(peer) = self.choose_in_turn(pick, now) {
                return Some(self.note(peer, pick, now));
            }
            if self.backup.set.peers.is_empty() {
                return None;
            }
            // From now on the request stays with the backup peers, even if a primary one recovers: the number of
            // its tries stays bounded.
            pick.on_backup = true;
            pick.tried = TriedPeers::default();
        }
        let peer = self.choose_in_turn(pick, now)?;
        Some(self.note(peer, pick, now))
    }

    /// Whether to wait in the queue: some untried peer is missing only because it is at `max_conns`.
    pub(crate) fn is_worth_waiting(&self, pick: &PickState, now: i64) -> bool {
        self.peers().any(|(peer, backup)| {
            let tried = pick.on_backup == backup && pick.tried.contains(peer.id);
            !tried && peer.availability(now) == PeerAvailability::Occupied
        })
    }

    fn only_one(&self, pick: &PickState, now: i64) -> Option<Arc<UpstreamPeer>> {
        let peer = &self.primary.set.peers[0];
        if pick.sticky_peer(&self.primary.set, now).is_some() {
            return Some(peer.clone());
        }
        // Failures are not counted for the only peer. An active health check is another matter: it knows the
        // server's present state.
        let out = peer.state != ServerState::Up || peer.health() == PeerHealth::Unhealthy;
        (!out && peer.occupancy() == PeerAvailability::Free).then(|| peer.clone())
    }

    /// A peer among the primary ones, or among the backup ones once the request has turned to them.
    fn choose_in_turn(&mut self, pick: &mut PickState, now: i64) -> Option<Arc<UpstreamPeer>> {
        let BalancedPeers { set, balancer } = match pick.on_backup {
            true => &mut self.backup,
            false => &mut self.primary,
        };
        balancer.choose(set, pick, now)
    }

    fn note(&self, peer: Arc<UpstreamPeer>, pick: &mut PickState, now: i64) -> Arc<UpstreamPeer> {
        pick.tried.add(peer.id);
        // The first request after `fail_timeout` is the probe of a failed peer: recording its time keeps other
        // requests away until it has ended or another `fail_timeout` has passed.
        let checked = &peer.load.checked;
        if now - checked.get() > peer.fail_timeout {
            checked.set(now);
        }
        peer
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::consistent_hash::ConsistentHash;
    use super::super::hash::HashMethod;
    use super::super::ip_hash::IpHash;
    use super::super::least_conn::LeastConn;
    use super::super::round_robin::RoundRobin;
    use super::*;
    use crate::upstream::peer_load::PeerLoad;
    use crate::upstream::server::UpstreamServer;
    use conf::Expression;

    /// Any moment after the epoch of the numbers.
    pub(crate) const NOW: i64 = 1 << 40;

    /// Peers 127.0.0.1:1, :2, … with these weights.
    pub(crate) fn balancer(method: &dyn BalanceMethod, weights: &[u32]) -> GroupBalancer {
        with_servers(method, weights.len(), |i, server| {
            server.weight = weights[i]
        })
    }

    pub(crate) fn with_servers(
        method: &dyn BalanceMethod,
        count: usize,
        change: impl Fn(usize, &mut UpstreamServer),
    ) -> GroupBalancer {
        let (mut primary, mut backup) = (Vec::new(), Vec::new());
        for i in 0..count {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, i as u16 + 1)).into();
            let mut server = UpstreamServer::new(format!("127.0.0.1:{}", i + 1), Vec::new());
            change(i, &mut server);
            let peer = Arc::new(UpstreamPeer::new(
                i as u64 + 1,
                i,
                &server,
                address,
                Arc::new(PeerLoad::default()),
            ));
            if server.backup {
                backup.push(peer)
            } else {
                primary.push(peer)
            }
        }
        GroupBalancer::new(method, primary, backup, 1)
    }

    /// The ports of one pick for each of `count` requests.
    pub(crate) fn ports(balancer: &mut GroupBalancer, count: usize) -> Vec<u16> {
        (0..count)
            .map(|_| port(balancer, &mut PickState::default()))
            .collect()
    }

    /// The port of the next pick; 0 for none.
    pub(crate) fn port(balancer: &mut GroupBalancer, pick: &mut PickState) -> u16 {
        balancer
            .choose(pick, NOW)
            .map_or(0, |peer| peer.address().port())
    }

    #[test]
    fn a_number_falls_on_peers_by_weight() {
        let balancer = balancer(&RoundRobin, &[2, 1, 3]);
        let found: Vec<u16> = (0..6)
            .map(|i| balancer.primary.set.at_weight(i).address().port())
            .collect();
        assert_eq!(found, [1, 1, 2, 3, 3, 3]);
    }

    #[test]
    fn backup_servers_wait_until_no_other_is_left() {
        let mut balancer = with_servers(&RoundRobin, 3, |i, server| server.backup = i == 2);
        let mut pick = PickState::default();
        assert_eq!(balancer.tries(), 3);
        let tries: Vec<u16> = (0..4).map(|_| port(&mut balancer, &mut pick)).collect();
        assert_eq!(tries, [1, 2, 3, 0]);
    }

    #[test]
    fn a_bound_request_goes_to_a_server_that_drains() {
        let key = || Expression::literal(b"unused");
        let methods: [&dyn BalanceMethod; 5] = [
            &RoundRobin,
            &LeastConn,
            &HashMethod { key: key() },
            &ConsistentHash { key: key() },
            &IpHash,
        ];
        for method in methods {
            let mut balancer = with_servers(method, 3, |i, server| {
                server.route = format!("r{}", i + 1).into();
                if i == 1 {
                    server.state = ServerState::Drain;
                }
            });
            let mut pick = PickState {
                sid: Some("r2".into()),
                key: b"k".to_vec(),
                ..PickState::default()
            };
            assert_eq!(port(&mut balancer, &mut pick), 2, "{method:?}");
            let rest: Vec<u16> = (0..3).map(|_| port(&mut balancer, &mut pick)).collect();
            assert!(!rest.contains(&2), "{method:?}");
        }
    }

    #[test]
    fn a_single_server_is_never_lost_to_failures() {
        let mut balancer = balancer(&RoundRobin, &[1]);
        balancer.primary.set.peers[0].load.fails.set(5);
        balancer.primary.set.peers[0].load.checked.set(NOW);
        assert_eq!(ports(&mut balancer, 2), [1, 1]);
    }
}
