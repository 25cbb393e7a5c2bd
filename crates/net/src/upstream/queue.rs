//! `queue`: requests that wait until a peer is below its `max_conns`, first in, first out over all loops.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rt::sync::remote_oneshot;

use super::balance::PickState;
use super::group_state::{GroupState, LockedState};
use super::lease::PeerLease;
use super::outcome::NoPeer;
use super::peer::now_ms;

/// How often a waiting request looks again although no peer was released: a server may have become available by the
/// mere passing of time (`fail_timeout`).
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The requests that wait in a group.
#[derive(Default)]
pub(super) struct WaitQueue {
    /// In the order of their tickets.
    waiters: VecDeque<QueuedPick>,
    next_ticket: u64,
    /// How many requests found it full.
    pub(super) overflows: u64,
}

/// A waiting request. Its state moves into the queue, so that any loop can choose for it.
struct QueuedPick {
    ticket: u64,
    pick: PickState,
    sender: remote_oneshot::RemoteSender<QueueGrant>,
}

/// What a waiting request gets: its own state back, and the result.
type QueueGrant = (PickState, Result<PeerLease, NoPeer>);

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Adds a request; returns its ticket and the channel on which its peer arrives.
    fn enter(&mut self, pick: PickState) -> (u64, remote_oneshot::RemoteReceiver<QueueGrant>) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (sender, receiver) = remote_oneshot::channel();
        self.waiters.push_back(QueuedPick {
            ticket,
            pick,
            sender,
        });
        (ticket, receiver)
    }

    fn leave(&mut self, ticket: u64) {
        let by_ticket = |waiter: &QueuedPick| waiter.ticket;
        // Tickets only grow, so the queue is sorted by them.
        if let Ok(at) = self.waiters.binary_search_by_key(&ticket, by_ticket) {
            self.waiters.remove(at);
        }
    }
}

impl GroupState {
    /// Waits in the group's queue, if it has one.
    pub(super) async fn wait(self: Arc<Self>, pick: &mut PickState) -> Result<PeerLease, NoPeer> {
        let (mut place, mut receiver, timeout) = self.enqueue(pick)?;
        let deadline = rt::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(rt::now());
            match rt::timeout(left.min(LOOK_AGAIN), &mut receiver).await {
                Ok(Ok((back, result))) => {
                    *pick = back;
                    place.is_left = true;
                    return result;
                }
                Ok(Err(rt::sync::ChannelClosed)) => return Err(NoPeer::NoneAlive),
                Err(_) if left <= LOOK_AGAIN => return Err(NoPeer::QueueTimeout),
                Err(_) => self.grant_waiting(&mut self.lock()),
            }
        }
    }

    fn enqueue(
        self: &Arc<Self>,
        pick: &mut PickState,
    ) -> Result<
        (
            QueuePlace,
            remote_oneshot::RemoteReceiver<QueueGrant>,
            Duration,
        ),
        NoPeer,
    > {
        let mut locked = self.lock();
        let queue = locked.queue.ok_or(NoPeer::Occupied)?;
        if locked.waiting.len() >= queue.length {
            locked.waiting.overflows += 1;
            return Err(NoPeer::QueueFull);
        }
        let (ticket, receiver) = locked.waiting.enter(std::mem::take(pick));
        // A peer may have been released between the failed choice and now; its release found an empty queue.
        self.grant_waiting(&mut locked);
        let place = QueuePlace {
            state: self.clone(),
            ticket,
            is_left: false,
        };
        Ok((place, receiver, queue.timeout))
    }

    /// Gives free peers to the waiting requests, in their order.
    pub(super) fn grant_waiting(self: &Arc<Self>, locked: &mut LockedState) {
        let now = now_ms();
        while let Some(mut waiter) = locked.waiting.waiters.pop_front() {
            let result = self.choose(locked, &mut waiter.pick, now);
            if let Err(NoPeer::Occupied) = result {
                // The first in line cannot be served, so none of the others is: overtaking could starve it.
                locked.waiting.waiters.push_front(waiter);
                return;
            }
            if let Err((_, Ok(lease))) = waiter.sender.send((waiter.pick, result)) {
                // This request has gone. Its lease must not simply be dropped: that would take the lock, which is
                // held here.
                let (peer, observation) = lease.into_parts();
                locked.count_end(&peer, None, observation, now);
            }
        }
    }
}

/// A place in the queue. Dropping it, when the request's future is dropped, leaves the queue.
struct QueuePlace {
    state: Arc<GroupState>,
    ticket: u64,
    is_left: bool,
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if !self.is_left {
            self.state.lock().waiting.leave(self.ticket);
        }
    }
}
