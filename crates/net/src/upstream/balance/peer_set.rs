//! The peers that a balancer chooses from.

use std::sync::Arc;

use crate::upstream::peer::UpstreamPeer;
use crate::upstream::server::ServerState;

/// The peers of a group that are primary, or those that are backup.
#[derive(Debug, Default)]
pub struct PeerSet {
    pub(crate) peers: Vec<Arc<UpstreamPeer>>,
    /// The sum of the configured weights.
    pub(super) total_weight: u64,
    /// For each peer, the sum of the weights before it.
    starts: Vec<u64>,
}

impl PeerSet {
    pub(crate) fn new(peers: Vec<Arc<UpstreamPeer>>) -> PeerSet {
        let mut total_weight = 0;
        let mut starts = Vec::with_capacity(peers.len());
        for peer in &peers {
            starts.push(total_weight);
            total_weight += peer.weight.unsigned_abs();
        }
        PeerSet {
            peers,
            total_weight,
            starts,
        }
    }

    /// The peer for a number below the total weight: each peer owns as many numbers as its weight, in the order of
    /// the configuration.
    pub(super) fn at_weight(&self, weight: u64) -> &Arc<UpstreamPeer> {
        let after = self.starts.partition_point(|&start| start <= weight);
        &self.peers[after - 1]
    }

    /// How many tries these peers are worth.
    pub(super) fn tries(&self) -> u32 {
        // A draining peer does not count: only few requests, those bound to it, may use it.
        let up = self
            .peers
            .iter()
            .filter(|peer| peer.state == ServerState::Up);
        u32::try_from(up.count()).unwrap_or(u32::MAX)
    }
}
