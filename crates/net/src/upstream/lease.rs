//! A peer in use.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::balance::RequestObserver;
use super::idle::{Connection, Reuse};
use super::outcome::{Outcome, Released};
use super::peer::Peer;
use super::state::GroupState;

/// A peer in use by a request: one of its `max_conns`.
///
/// Dropped, it is free again without saying how the exchange went;
/// [`Selection::release`](super::Selection::release) says that.
#[derive(Debug)]
pub struct Lease {
    state: Arc<GroupState>,
    peer: Arc<Peer>,
    observation: Observation,
    /// It is still to be given back.
    held: bool,
}

/// What the balancing method that chose the peer still wants to hear of the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Observation {
    /// Only its times, at its end.
    TimesAtEnd,
    /// This observer counts it as under way.
    UnderWay(&'static dyn RequestObserver),
    /// Its times but the head's, which was counted when the head arrived.
    TimesButHeader,
}

impl Lease {
    pub(super) fn new(state: Arc<GroupState>, peer: Arc<Peer>, observation: Observation) -> Lease {
        Lease {
            state,
            peer,
            observation,
            held: true,
        }
    }

    /// The peer, to keep after the lease.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// An idle connection to this peer, of this loop or another one. `reuse` says who will use it.
    pub async fn reuse(&self, reuse: Reuse) -> Option<Connection> {
        self.state.idle()?.take(&self.peer, reuse).await
    }

    /// Keeps a connection for the next request. It is closed if the group keeps none, or if its time is over.
    ///
    /// The caller knows that nothing more of a response can come on it.
    pub fn keep(&self, connection: Connection) {
        if let Some(idle) = self.state.idle() {
            idle.keep(&self.peer, connection);
        }
    }

    /// The response head is there. Matters to methods that count requests under way; without one it costs nothing.
    pub fn head_arrived(&mut self, took: Duration) {
        if let Observation::UnderWay(observer) = self.observation {
            self.observation = self.state.head_arrived(&self.peer, took, observer);
        }
    }

    /// The connection stands, where that alone says that the server is well again: in stream, whose sessions may last.
    /// The time is not to be told again at the end.
    pub fn connected(&self, took: Duration) {
        self.state.connected(&self.peer, took);
    }

    pub(super) fn end(mut self, outcome: Outcome) -> Released {
        self.held = false;
        self.state
            .release(&self.peer, Some(outcome), self.observation)
    }

    /// Takes the lease apart without freeing the peer: for code that holds the group's lock already.
    pub(super) fn into_parts(mut self) -> (Arc<Peer>, Observation) {
        self.held = false;
        (self.peer.clone(), self.observation)
    }
}

impl Deref for Lease {
    type Target = Peer;

    fn deref(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.held {
            self.state.release(&self.peer, None, self.observation);
        }
    }
}
