//! How the use of a peer ended, or why there was none.

use std::time::Duration;

/// Why there is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// Every server is down, has failed or was tried. nginx logs `no live upstreams`.
    NoneAlive,
    /// The usable ones are all at `max_conns`, and there is no queue. nginx logs `no live upstreams`.
    Occupied,
    /// They are at `max_conns` and the queue is full: the answer is 503 with `Retry-After`.
    QueueFull,
    /// The time limit of the queue was reached.
    QueueTimeout,
}

/// How an exchange with a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOutcome {
    /// The server answered.
    Ok(UpstreamTimes),
    /// The exchange failed; counts towards `max_fails`.
    Failed(UpstreamTimes),
    /// The server answered, but the next one is tried (`proxy_next_upstream http_403`, `http_404`). Not a failure:
    /// the server works.
    Next(UpstreamTimes),
}

impl PeerOutcome {
    pub(super) fn times(self) -> UpstreamTimes {
        match self {
            PeerOutcome::Ok(times) | PeerOutcome::Failed(times) | PeerOutcome::Next(times) => times,
        }
    }
}

/// The times of an exchange, from the start of the connect. `None`: it did not get that far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamTimes {
    /// Until the connection was established.
    pub connect: Option<Duration>,
    /// Until the response header (in stream, the first byte) had arrived.
    pub header: Option<Duration>,
    /// Until the response had ended.
    pub response: Option<Duration>,
}

/// What was exchanged with a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// The status of its response; 0: there was none, or the protocol has none.
    pub status: u16,
    /// Bytes that it was sent.
    pub sent: u64,
    /// Bytes that it sent.
    pub received: u64,
}

/// What the end of an exchange did to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReleasedPeer {
    /// This failure made it unavailable. nginx warns `upstream server temporarily disabled`.
    pub disabled: bool,
    /// The group has only one peer, so there is no other to try.
    pub(super) is_only_peer: bool,
}
