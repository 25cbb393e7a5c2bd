//! How the use of a peer ended, or why there was none.

use std::time::Duration;

/// Why there is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// Every server is down, has failed or was tried. nginx logs `no live upstreams`.
    NoneAlive,
    /// Those that would do are all at `max_conns`, and there is no queue. nginx logs `no live upstreams`.
    Occupied,
    /// They are at `max_conns`, and the queue is full: answer 503 with `Retry-After`.
    QueueFull,
    /// The time in the queue is over.
    QueueTimeout,
}

/// How an exchange with a peer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It answered.
    Ok(Times),
    /// It failed: counts towards `max_fails`.
    Failed(Times),
    /// It answered, but the next one is tried (`proxy_next_upstream http_403`, `http_404`): no failure.
    Next(Times),
}

/// How long an exchange took, from the beginning of the connect. `None`: did not come so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Until the connection stood.
    pub connect: Option<Duration>,
    /// Until the response head (in stream, the first byte) was there.
    pub header: Option<Duration>,
    /// Until everything was there.
    pub response: Option<Duration>,
}

/// What the end of an exchange did to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// This failure made it unavailable. nginx warns `upstream server temporarily disabled`.
    pub disabled: bool,
    /// The group has only this peer.
    pub(super) is_only_peer: bool,
}
