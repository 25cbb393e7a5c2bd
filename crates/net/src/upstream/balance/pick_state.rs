//! What a request remembers between its tries, so that it does not get the same peer twice.

use std::net::IpAddr;
use std::sync::Arc;

use bstr::BString;

use super::peer_set::PeerSet;
use crate::upstream::peer::{PeerAvailability, UpstreamPeer};

/// After this many unusable peers, a method that hashes or draws leaves the choice to round robin; nginx's bound.
/// Without it, hashing could go on for ever while most peers are down.
pub(super) const MAX_DRAWS: u32 = 20;

/// What one request remembers between its tries.
#[derive(Debug, Default)]
pub struct PickState {
    /// The peers that it was given already.
    pub(super) tried: TriedPeers,
    /// No primary peer was left: from now on only backup peers.
    pub(super) on_backup: bool,
    /// What `hash` hashes.
    pub(super) key: Vec<u8>,
    /// The client that `ip_hash` hashes; `None` for one on a unix socket.
    pub(crate) client: Option<IpAddr>,
    /// The identifier of the server that the client is bound to (`sticky`).
    pub(super) sid: Option<BString>,
    /// The hash, or the position on the ring, that the next try continues from; `None` before the first.
    pub(super) hash: Option<u64>,
    /// How often the key was hashed.
    pub(super) rehash: u32,
    /// How many draws gave a peer that could not be used.
    pub(super) draws: u32,
}

/// Ids of peers. Most requests try one, which needs no allocation.
#[derive(Debug, Default)]
pub(super) struct TriedPeers {
    first: Option<u64>,
    more: Vec<u64>,
}

impl TriedPeers {
    pub(super) fn add(&mut self, id: u64) {
        match self.first {
            None => self.first = Some(id),
            Some(_) => self.more.push(id),
        }
    }

    /// Forgets the one that was added last.
    fn forget_last(&mut self) {
        if self.more.pop().is_none() {
            self.first = None;
        }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.first == Some(id) || self.more.contains(&id)
    }
}

impl PickState {
    pub(crate) fn new(key: &[u8], client: Option<IpAddr>, sid: Option<BString>) -> PickState {
        PickState {
            key: key.to_vec(),
            client,
            sid,
            ..PickState::default()
        }
    }

    /// The last try said nothing about its peer.
    pub(crate) fn forget_last_try(&mut self) {
        self.tried.forget_last();
    }

    /// Whether the request may get a peer that it is not bound to.
    pub(super) fn may_take(&self, peer: &UpstreamPeer, now: i64) -> bool {
        !self.tried.contains(peer.id) && peer.availability(now) == PeerAvailability::Free
    }

    /// The peer that the client is bound to (`sticky`), if it can be used: also one that is draining.
    pub(super) fn sticky_peer(&self, peers: &PeerSet, now: i64) -> Option<Arc<UpstreamPeer>> {
        let sid = self.sid.as_ref()?;
        let peer = peers.peers.iter().find(|peer| peer.is_called(sid))?;
        let free = peer.availability_when_bound(now) == PeerAvailability::Free;
        (free && !self.tried.contains(peer.id)).then(|| peer.clone())
    }
}
