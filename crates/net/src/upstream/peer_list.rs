//! Builds the peers of a group from the addresses of its servers. What is known about them from before is kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bstr::{BStr, ByteSlice};
use rt::net::SocketAddress;

use super::peer::{UpstreamPeer, now_ms};
use super::peer_load::PeerLoad;
use super::server::{ResolvedAddress, UpstreamServer};

/// Whether peers that stay keep their position in the round robin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRound {
    /// No, as after a start: the configuration has changed, and the round begins like nginx's does after a reload.
    Anew,
    /// Yes: only some addresses of a name have changed.
    GoesOn,
}

/// The peers of a group.
#[derive(Default)]
pub(super) struct PeerList {
    pub(super) primary: Vec<Arc<UpstreamPeer>>,
    pub(super) backup: Vec<Arc<UpstreamPeer>>,
}

impl PeerList {
    /// Builds the peers of the servers and of the addresses that `resolved` has for their names. Peers that are in
    /// `old` too keep their counters.
    pub(super) fn of<'a>(
        servers: &[UpstreamServer],
        resolved: impl Fn(&UpstreamServer) -> &'a [ResolvedAddress],
        old: &[Arc<UpstreamPeer>],
        round: PeerRound,
    ) -> PeerList {
        let mut list = PeerList::default();
        let old = FormerPeers::of(old);
        for (line, server) in servers.iter().enumerate() {
            for address in &server.addresses {
                let peer = successor(&old, (line, server, address), round, KnownSince::Start);
                list.add(server, peer);
            }
        }
        // After the others, as in nginx: the order of peers is the order of the round robin.
        for (line, server) in servers.iter().enumerate() {
            let Some(at) = &server.resolve else { continue };
            for found in resolved(server) {
                if let Some(server) = server.with_record(found) {
                    let address = at.address_of(found);
                    let place = (line, &server, &address);
                    list.add(&server, successor(&old, place, round, KnownSince::Lookup));
                }
            }
        }
        list
    }

    fn add(&mut self, server: &UpstreamServer, peer: Arc<UpstreamPeer>) {
        match server.backup {
            true => self.backup.push(peer),
            false => self.primary.push(peer),
        }
    }
}

/// When an address became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KnownSince {
    /// With the configuration.
    Start,
    /// By a lookup at run time.
    Lookup,
}

/// The peers of before, found by address and name: a search through all of them for each would take a second for 10,000.
struct FormerPeers<'a> {
    by_name: HashMap<(&'a SocketAddress, &'a BStr), Vec<&'a Arc<UpstreamPeer>>>,
}

impl<'a> FormerPeers<'a> {
    fn of(peers: &'a [Arc<UpstreamPeer>]) -> FormerPeers<'a> {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::with_capacity(peers.len());
        for peer in peers {
            let same = by_name.entry((peer.address(), peer.server()));
            same.or_default().push(peer);
        }
        FormerPeers { by_name }
    }

    /// The same address may be in several lines. The same line is preferred, so that each line keeps its own counters.
    fn find(
        &self,
        address: &SocketAddress,
        name: &BStr,
        line: usize,
    ) -> Option<&Arc<UpstreamPeer>> {
        let same = self.by_name.get(&(address, name))?;
        let of_line = same.iter().find(|peer| peer.line == line);
        of_line.or_else(|| same.first()).copied()
    }
}

/// The peer for an address: the existing one, or a new one with the counters of the old, or an entirely new one.
fn successor(
    old: &FormerPeers<'_>,
    (line, server, address): (usize, &UpstreamServer, &SocketAddress),
    round: PeerRound,
    since: KnownSince,
) -> Arc<UpstreamPeer> {
    let load = match old.find(address, server.name.as_bstr(), line) {
        Some(peer) if round == PeerRound::GoesOn && peer.line == line && peer.is_of(server) => {
            return peer.clone();
        }
        // The settings may have changed: a new peer, but connections in use and failures must go on counting.
        Some(peer) => peer.load.clone(),
        None => {
            let load = PeerLoad::default();
            // An address that joins a working group starts slowly, if `slow_start` is set. At the first lookup all
            // are new, and none has to.
            if since == KnownSince::Lookup && !old.by_name.is_empty() {
                load.troubles().started.set(now_ms());
            }
            Arc::new(load)
        }
    };
    Arc::new(UpstreamPeer::new(
        next_id(),
        line,
        server,
        address.clone(),
        load,
    ))
}

/// A number that is unique in the process, for a peer or a balancer's seed.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
