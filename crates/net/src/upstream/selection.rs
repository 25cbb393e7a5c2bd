//! One request's way to a peer.

use std::fmt;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::balance::Memory;
use super::idle::{Connection, Idle, Reuse};
use super::peer::Peer;
use super::state::GroupState;

/// What a balancer may look at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The value of the balancer's key, if it has one ([`Balance::key`](super::Balance::key)).
    pub key: &'a [u8],
    /// The client's address; `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// What `sticky` found: a server's identifier, or a session with `learn`. Empty: nothing.
    pub sticky: &'a [u8],
}

/// What a request remembers of its tries. It gets no peer twice.
pub struct Selection {
    state: Arc<GroupState>,
    memory: Memory,
    tries: u32,
}

/// What came of one look at the group.
#[derive(Debug)]
pub enum Pick {
    /// Go there.
    Peer(Lease),
    /// Not now: see why.
    None(NoPeer),
}

/// Why there is no peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// Every server is down, has failed or was tried. nginx logs `no live upstreams`.
    NoneAlive,
    /// Those that would do are all at `max_conns`, and there is no queue. nginx logs `no live upstreams`.
    Busy,
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
}

impl Selection {
    pub(crate) fn new(state: Arc<GroupState>, request: &Request<'_>) -> Selection {
        let memory = Memory::new(request.key, request.client, state.server_of(request.sticky));
        let tries = state.tries();
        Selection {
            state,
            memory,
            tries,
        }
    }

    /// How many tries are left.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Takes tries away until no more than `most` are left (`proxy_next_upstream_tries`).
    pub fn limit_tries(&mut self, most: u32) {
        self.tries = self.tries.min(most);
    }

    /// One try more: the last one failed on a connection that had been idle, which says little about the server.
    pub fn grant_try(&mut self) {
        self.tries += 1;
    }

    /// The group's state.
    pub fn state(&self) -> &Arc<GroupState> {
        &self.state
    }

    /// A peer, if there is one now.
    pub fn pick(&mut self) -> Pick {
        match self.state.pick(&mut self.memory) {
            Ok(lease) => Pick::Peer(lease),
            Err(why) => Pick::None(why),
        }
    }

    /// A peer, for which it may have to wait in the group's queue.
    ///
    /// The wait is first in, first out over all loops. Dropping the future leaves the queue.
    pub async fn acquire(&mut self) -> Result<Lease, NoPeer> {
        match self.pick() {
            Pick::Peer(lease) => Ok(lease),
            Pick::None(NoPeer::Busy) => self.state.clone().wait(&mut self.memory).await,
            Pick::None(why) => Err(why),
        }
    }

    /// Ends the use of a peer, and counts the try.
    pub fn release(&mut self, lease: Lease, outcome: Outcome) -> Released {
        let (released, was_single) = lease.end(outcome);
        // There is nobody else to try.
        self.tries = if was_single {
            0
        } else {
            self.tries.saturating_sub(1)
        };
        released
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection")
            .field("memory", &self.memory)
            .field("tries", &self.tries)
            .finish_non_exhaustive()
    }
}

/// A peer in use by a request: one of its `max_conns`.
///
/// Dropped, it is free again without saying how the exchange went; [`Selection::release`] says that.
#[derive(Debug)]
pub struct Lease {
    state: Arc<GroupState>,
    peer: Arc<Peer>,
    /// It counts as under way for `least_time … inflight`.
    inflight: bool,
    /// It is still to be given back.
    held: bool,
}

impl Lease {
    pub(crate) fn new(state: Arc<GroupState>, peer: Arc<Peer>, inflight: bool) -> Lease {
        Lease {
            state,
            peer,
            inflight,
            held: true,
        }
    }

    /// The peer, to keep after the lease.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// An idle connection to this peer, of this loop or another one. `reuse` says who will use it.
    pub async fn reuse(&self, reuse: Reuse) -> Option<Connection> {
        Idle::take(&self.state, &self.peer, reuse).await
    }

    /// Keeps a connection for the next request. It is closed if the group keeps none, or if its time is over.
    ///
    /// The caller knows that nothing more of a response can come on it.
    pub fn keep(&self, connection: Connection) {
        let peer = &self.peer;
        Idle::keep(&self.state, peer.address(), &peer.idle_chain, connection);
    }

    /// The response head is there. Matters to `least_time header`.
    pub fn head_arrived(&mut self, took: Duration) {
        if !self.inflight {
            return;
        }
        self.state.head_arrived(
            &self.peer,
            took,
            std::mem::take(&mut self.inflight),
            &mut self.inflight,
        );
    }

    /// The connection stands, where that alone says that the server is well again: in stream, whose sessions may last.
    /// The time is not to be told again at the end.
    pub fn connected(&self, took: Duration) {
        self.state.connected(&self.peer, took);
    }

    fn end(mut self, outcome: Outcome) -> (Released, bool) {
        self.held = false;
        self.state.release(&self.peer, Some(outcome), self.inflight)
    }

    /// Takes the peer out without freeing it: for who holds the lock already.
    pub(crate) fn into_peer(mut self) -> Arc<Peer> {
        self.held = false;
        self.peer.clone()
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
            self.state.release(&self.peer, None, self.inflight);
        }
    }
}
