//! What a balancing method has to provide. A new one is a file beside this and the row of its directive.

use std::fmt;
use std::sync::Arc;

use conf::Expression;

use super::peer_set::PeerSet;
use super::pick_state::PickState;
use crate::upstream::peer::UpstreamPeer;

/// A balancing method as its directive describes it.
pub trait BalanceMethod: fmt::Debug + Send + Sync {
    /// The expression whose value the method hashes. The engine evaluates it and passes the value as
    fn key(&self) -> Option<&Expression> {
        None
    }

    /// Whether `backup` and `slow_start` are allowed with this method; nginx rejects them with the hash methods and
    /// `random`.
    fn takes_backup(&self) -> bool {
        true
    }

    /// Starts balancing over these peers. The seed differs from balancer to balancer.
    fn balancer(&self, peers: &PeerSet, seed: u64) -> Box<dyn Balancer>;

    /// What counts requests while they are under way, for a method that needs more than the times at their end.
    fn observer(&self) -> Option<&'static dyn RequestObserver> {
        None
    }
}

/// The running state of a method over the primary or the backup peers of a group. It runs under the group's lock,
/// so it must not wait.
pub trait Balancer: fmt::Debug + Send {
    /// The peer for the next try of a request; `None` if there is none among these.
    fn choose(
        &mut self,
        peers: &PeerSet,
        pick: &mut PickState,
        now: i64,
    ) -> Option<Arc<UpstreamPeer>>;
}

/// Counts requests under way. The counts are kept with the peer, because that survives a reload. A request keeps
/// the observer it began with, so that a reload to another method does not leave it counted for ever. Times are in
/// milliseconds.
pub trait RequestObserver: fmt::Debug + Sync {
    /// A request was given to `peer`.
    fn request_began(&self, peer: &UpstreamPeer, now: i64);

    /// The response header arrived after this many milliseconds.
    fn head_arrived(&self, peer: &UpstreamPeer, took: i64, now: i64) -> AfterHead;

    /// The request has ended after `took` milliseconds, with a response or without.
    fn request_ended(&self, peer: &UpstreamPeer, took: i64, now: i64);
}

/// Whether a request still counts after its response header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterHead {
    /// The request is still under way.
    UnderWay,
    /// For this method it has ended with the header, whose time is counted.
    Ended,
}
