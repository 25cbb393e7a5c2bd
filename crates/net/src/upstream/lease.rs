//! A peer that is in use by a request.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::balance::RequestObserver;
use super::group_state::GroupState;
use super::idle::{PeerConnection, ReuseTerms};
use super::outcome::{PeerOutcome, PeerTraffic, ReleasedPeer};
use super::peer::UpstreamPeer;

/// A peer in use by a request, counted towards its `max_conns`.
///
/// Dropping it frees the peer without a result of the exchange;
/// [`PeerSelection::release_peer`](super::PeerSelection::release_peer) gives one.
#[derive(Debug)]
pub struct PeerLease {
    state: Arc<GroupState>,
    peer: Arc<UpstreamPeer>,
    observation: LeaseObservation,
    traffic: PeerTraffic,
    /// The peer still has to be freed.
    held: bool,
}

/// What the balancing method that chose the peer still has to be told about the request.
#[derive(Clone, Copy, Debug)]
pub(super) enum LeaseObservation {
    /// Only its times, at its end.
    TimesAtEnd,
    /// This observer has counted it as under way since this time, in milliseconds.
    UnderWay(&'static dyn RequestObserver, i64),
    /// Its times except the header's, which was counted when it arrived.
    TimesExceptHeader,
}

impl PeerLease {
    pub(super) fn new(
        state: Arc<GroupState>,
        peer: Arc<UpstreamPeer>,
        observation: LeaseObservation,
    ) -> PeerLease {
        PeerLease {
            state,
            peer,
            observation,
            traffic: PeerTraffic::default(),
            held: true,
        }
    }

    /// The peer, for use after the lease has ended.
    pub fn peer(&self) -> &Arc<UpstreamPeer> {
        &self.peer
    }

    /// An idle connection to this peer, from any loop. `reuse` says what it must have in common with the request.
    pub async fn take_idle_connection(&self, reuse: ReuseTerms) -> Option<Box<PeerConnection>> {
        self.state.idle()?.take_connection(&self.peer, reuse).await
    }

    /// Keeps a connection for the next request. It is closed if the group keeps none or it is too old.
    ///
    /// The caller must be sure that the response is complete: what still came would be taken for the next one.
    pub fn keep_connection(&self, connection: Box<PeerConnection>) {
        if let Some(idle) = self.state.idle() {
            idle.keep_connection(&self.peer, connection);
        }
    }

    /// The response header has arrived. This matters only to methods that count requests under way, and otherwise
    /// costs nothing.
    pub fn head_arrived(&mut self, took: Duration) {
        if let LeaseObservation::UnderWay(observer, began_ms) = self.observation {
            let observer = (observer, began_ms);
            self.observation = self.state.head_arrived(&self.peer, took, observer);
        }
    }

    /// Notes what was exchanged, to be counted when the lease ends, however that is.
    pub fn note_traffic(&mut self, traffic: PeerTraffic) {
        self.traffic = traffic;
    }

    /// The connection is established. For stream, where this alone shows that a server has recovered, since its
    /// sessions may last for hours. The time must not be reported again at the end.
    pub fn connected(&self, took: Duration) {
        self.state.connected(&self.peer, took);
    }

    pub(super) fn end_exchange(mut self, outcome: PeerOutcome) -> ReleasedPeer {
        self.held = false;
        self.state
            .release(&self.peer, Some(outcome), self.observation, self.traffic)
    }

    /// Takes the lease apart without freeing the peer, for code that holds the group's lock: `drop` would take it
    /// again and deadlock.
    pub(super) fn into_parts(mut self) -> (Arc<UpstreamPeer>, LeaseObservation) {
        self.held = false;
        (self.peer.clone(), self.observation)
    }
}

impl Deref for PeerLease {
    type Target = UpstreamPeer;

    fn deref(&self) -> &UpstreamPeer {
        &self.peer
    }
}

impl Drop for PeerLease {
    fn drop(&mut self) {
        if self.held {
            self.state
                .release(&self.peer, None, self.observation, self.traffic);
        }
    }
}
