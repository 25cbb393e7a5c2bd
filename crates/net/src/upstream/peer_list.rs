//! The peers of a group: the addresses of its servers, and what is known of each from before.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rt::net::Address;

use super::peer::{Peer, PeerLoad, now};
use super::server::{ResolvedAddress, Server};

/// Whether peers that stay keep their place in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// No: as after a start.
    Anew,
    /// Yes.
    GoesOn,
}

/// The peers of a group.
#[derive(Default)]
pub(super) struct PeerList {
    pub(super) primary: Vec<Arc<Peer>>,
    pub(super) backup: Vec<Arc<Peer>>,
}

impl PeerList {
    /// The peers of the servers, and of what `resolved` gives for their names. Those among `old` keep their numbers.
    pub(super) fn of<'a>(
        servers: &[Server],
        resolved: impl Fn(&Server) -> &'a [ResolvedAddress],
        old: &[Arc<Peer>],
        round: Round,
    ) -> PeerList {
        let mut list = PeerList::default();
        for (line, server) in servers.iter().enumerate() {
            for address in &server.addresses {
                let peer = successor(old, (line, server, address), round, KnownSince::Start);
                list.add(server, peer);
            }
        }
        // After the others, as in nginx: their order is the order of the round.
        for (line, server) in servers.iter().enumerate() {
            let Some(at) = &server.resolve else { continue };
            for found in resolved(server) {
                if let Some(server) = server.with_record(found) {
                    let address = at.address_of(found);
                    let place = (line, &server, &address);
                    list.add(&server, successor(old, place, round, KnownSince::Lookup));
                }
            }
        }
        list
    }

    fn add(&mut self, server: &Server, peer: Arc<Peer>) {
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
    /// While running.
    Lookup,
}

/// The peer for an address: the one that there is, one with its numbers, or a new one.
fn successor(
    old: &[Arc<Peer>],
    (line, server, address): (usize, &Server, &Address),
    round: Round,
    since: KnownSince,
) -> Arc<Peer> {
    let same = |peer: &&Arc<Peer>| peer.address() == address && *peer.server() == server.name;
    let known = old
        .iter()
        .filter(same)
        .find(|peer| peer.line == line)
        .or_else(|| old.iter().find(same));
    let load = match known {
        Some(peer)
            if round == Round::GoesOn
                && peer.line == line
                && peer.weight == i64::from(server.weight) =>
        {
            return peer.clone();
        }
        Some(peer) => peer.load.clone(),
        None => {
            let load = PeerLoad::default();
            // One that joins servers at work starts slowly, if it is told to.
            if since == KnownSince::Lookup && !old.is_empty() {
                load.started.set(now());
            }
            Arc::new(load)
        }
    };
    Arc::new(Peer::new(next_id(), line, server, address.clone(), load))
}

/// A number that tells a peer, or a balancer, from every other one of the process.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
