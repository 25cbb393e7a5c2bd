//! What a balancing method is. Adding one is a file beside this one and the row of its directive.

use std::fmt;
use std::sync::Arc;

use conf::Expression;

use super::peer_set::PeerSet;
use super::pick_state::PickState;
use crate::upstream::peer::Peer;

/// A balancing method as its directive describes it.
pub trait BalanceMethod: fmt::Debug + Send + Sync {
    /// The expression whose value the method hashes: what to evaluate for
    /// [`SelectionRequest::key`](crate::upstream::SelectionRequest::key).
    fn key(&self) -> Option<&Expression> {
        None
    }

    /// Whether servers may be marked `backup`, or start slowly.
    fn takes_backup(&self) -> bool {
        true
    }

    /// Begins to balance over these peers. The seed differs from balancer to balancer.
    fn balancer(&self, peers: &PeerSet, seed: u64) -> Box<dyn Balancer>;

    /// What counts requests while they are under way, if the method needs more than the times at their end.
    fn observer(&self) -> Option<&'static dyn RequestObserver> {
        None
    }
}

/// A method at work on the primary or the backup peers of a group. Runs under the group's lock.
pub trait Balancer: fmt::Debug + Send {
    /// The peer for the next try of a request; `None` if there is none among these.
    fn choose(&mut self, peers: &PeerSet, pick: &mut PickState, now: i64) -> Option<Arc<Peer>>;
}

/// Counts the requests that are under way. What it counts is kept with the peer, because that survives a reload, and the
/// request keeps the observer that it began with, so that a reload with another method does not leave it counted for ever.
/// Times are milliseconds.
pub trait RequestObserver: fmt::Debug + Sync {
    /// A request was given to `peer`.
    fn begins(&self, peer: &Peer, now: i64);

    /// The head of its response arrived after so many milliseconds.
    fn head_arrived(&self, peer: &Peer, took: i64, now: i64) -> AfterHead;

    /// It is over, `took` milliseconds after it began, or it had no end that says anything: then `took` is 0.
    fn ends(&self, peer: &Peer, took: i64, now: i64);
}

/// What an observer makes of a response's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterHead {
    /// The request is still under way.
    UnderWay,
    /// For this method it ended with the head, whose time has been counted.
    Ended,
}
