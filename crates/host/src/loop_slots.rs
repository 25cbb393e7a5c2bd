//! The loops of a process as they see each other: how many connections each has, which are late, and a queue in
//! which one leaves connections for another.
//!
//! This serves three needs. Long-lived connections should be spread evenly although the kernel wakes any loop that
//! waits: a loop with more than its share passes a new connection to the one with the fewest
//! ([`LoopSlots::less_loaded_than`]). A loop that a reload removes passes its idle connections to those that stay. And
//! connections that were left for a loop that then stalls are taken back by another one ([`LoopSlot::take_arrivals`]
//! may be called by any thread).
//!
//! A connection does not travel in a message of the loop's inbox, which only that loop could read, but in a queue
//! here; the message only says that the queue is not empty.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::engine::ListenerSpec;
use crate::listen::ListenAddress;
use crate::worker_group::GroupMember;
use base::sync::{Mutex, MutexGuard};
use rt::LoopHandle;
use rt::net::DetachedSocket;

/// How many connections may wait for a loop; beyond that, the giving loop keeps them.
pub const QUEUE_LIMIT: usize = 1024;

/// How many connections more than the least loaded loop a loop may have before it gives any away. Added to this is
/// a [`SLACK_SHARE`]th of what that loop has, so that small differences cause no moves.
const SLACK: usize = 2;
/// The divisor of the relative part of [`SLACK`].
const SLACK_SHARE: usize = 32;

/// A loop whose present turn has lasted this long is given nothing.
const BUSY: Duration = Duration::from_millis(5);

/// A connection on its way to a loop.
pub struct LoopArrival {
    /// The kind of the engine that it belongs to.
    pub kind: &'static str,
    /// The connection.
    pub connection: ArrivingConnection,
}

/// The connection of a [`LoopArrival`].
pub enum ArrivingConnection {
    /// One that was just accepted.
    New {
        /// The listening socket that accepted it.
        spec: Arc<ListenerSpec>,
        /// The connection.
        stream: DetachedSocket,
    },
    /// One that waits for its next request.
    Idle(MovingConnection),
}

/// A client connection between two requests, with what its engine knows about it, ready to move to another loop or
/// another process.
pub struct MovingConnection {
    /// The address of the listening socket that accepted it.
    pub socket: ListenAddress,
    /// The connection.
    pub descriptor: OwnedFd,
    /// The engine's data, which begins with the version of its format: another process may be another release.
    pub facts: Vec<u8>,
    /// State that only another loop of this process can use, such as a TLS session. Absent when the connection goes
    /// to another process.
    pub state: Option<Box<dyn Any + Send>>,
}

/// One loop.
pub struct LoopSlot {
    /// Unique in the process; never used again.
    pub id: u64,
    /// The loop's number in its process, from 0.
    pub index: usize,
    handle: LoopHandle,
    /// This process among others, if there are any: they see how many connections it has.
    group: Option<Arc<GroupMember>>,
    /// Connections of all engines. Written by the loop only.
    connections: AtomicUsize,
    queue: Mutex<ArrivalQueue>,
    /// The length of the queue, for readers without the lock.
    queued: AtomicUsize,
    /// Whether the state is [`SlotState::Open`], for readers without the lock.
    open: AtomicBool,
    /// Memory is short: new connections are closed.
    refuses: AtomicBool,
    /// What the loop runs when a connection was left for it.
    arrive: fn(),
}

#[derive(Default)]
struct ArrivalQueue {
    arrivals: VecDeque<LoopArrival>,
    state: SlotState,
}

/// Whether a loop takes connections. It goes through these states once, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotState {
    /// Its loop has no configuration yet.
    #[default]
    Waiting,
    Open,
    /// Its loop ends.
    Closed,
}

impl LoopSlot {
    /// The slot of a loop. `arrive` runs on it when something was left for it, and should
    /// [`take_arrivals`](LoopSlot::take_arrivals).
    pub fn new(index: usize, handle: LoopHandle, arrive: fn()) -> Arc<LoopSlot> {
        LoopSlot::in_group(index, handle, arrive, None)
    }

    /// The same in a process that may be one of several.
    pub fn in_group(
        index: usize,
        handle: LoopHandle,
        arrive: fn(),
        group: Option<Arc<GroupMember>>,
    ) -> Arc<LoopSlot> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Arc::new(LoopSlot {
            id: NEXT_ID.fetch_add(1, Relaxed),
            index,
            handle,
            group: group.filter(|group| group.has_siblings()),
            connections: AtomicUsize::new(0),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            arrive,
        })
    }

    /// This process as one of several; `None` if it is the only one.
    pub fn group(&self) -> Option<&Arc<GroupMember>> {
        self.group.as_ref()
    }

    /// The loop.
    pub fn handle(&self) -> &LoopHandle {
        &self.handle
    }

    /// Connections that it has or is about to have.
    pub fn connection_count(&self) -> usize {
        self.connections.load(Relaxed) + self.queued.load(Relaxed)
    }

    /// Counts a connection. Only the loop itself may call this.
    pub fn count_opened(&self) {
        self.connections
            .store(self.connections.load(Relaxed) + 1, Relaxed);
        if let Some(group) = &self.group {
            group.count_opened();
        }
    }

    /// Counts the end of a connection. Only the loop itself may call this.
    pub fn count_closed(&self) {
        self.connections
            .store(self.connections.load(Relaxed).saturating_sub(1), Relaxed);
        if let Some(group) = &self.group {
            group.count_closed();
        }
    }

    /// Has the loop close new connections from now on, or take them again.
    pub fn refuse_connections(&self, refuses: bool) {
        self.refuses.store(refuses, Relaxed);
    }

    /// Whether new connections are closed.
    pub fn is_refusing(&self) -> bool {
        self.refuses.load(Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, ArrivalQueue> {
        self.queue.lock()
    }

    /// Leaves a connection for the loop. It is returned if the loop takes no more connections or its queue is full.
    pub fn give_connection(&self, arrival: LoopArrival) -> Result<(), LoopArrival> {
        let mut queue = self.queue();
        if queue.state != SlotState::Open || queue.arrivals.len() >= QUEUE_LIMIT {
            return Err(arrival);
        }
        // One message is enough for everything that is in the queue when it arrives. A loop that cannot be told
        // gets nothing.
        if queue.arrivals.is_empty() && self.handle.post(self.arrive).is_err() {
            return Err(arrival);
        }
        queue.arrivals.push_back(arrival);
        self.queued.store(queue.arrivals.len(), Relaxed);
        Ok(())
    }

    /// Takes everything that was left for the loop: done by itself, or by another loop while it is late.
    pub fn take_arrivals(&self) -> VecDeque<LoopArrival> {
        let mut queue = self.queue();
        self.queued.store(0, Relaxed);
        std::mem::take(&mut queue.arrivals)
    }

    /// Lets the loop be given connections, unless it was closed already.
    pub fn open_slot(&self) {
        let mut queue = self.queue();
        if queue.state == SlotState::Waiting {
            queue.state = SlotState::Open;
            self.open.store(true, Relaxed);
        }
    }

    /// Closes the queue; returns what is in it.
    pub fn close_slot(&self) -> VecDeque<LoopArrival> {
        let mut queue = self.queue();
        queue.state = SlotState::Closed;
        self.open.store(false, Relaxed);
        self.queued.store(0, Relaxed);
        std::mem::take(&mut queue.arrivals)
    }

    /// Whether it would serve a connection without delay.
    fn is_responsive(&self) -> bool {
        self.open.load(Relaxed) && self.handle.turn_duration() < BUSY
    }
}

/// The loops of a process under one configuration. A reload may change their number, and each loop learns of it
/// with the new configuration.
#[derive(Clone, Default)]
pub struct LoopSlots {
    /// By index.
    pub list: Arc<[Arc<LoopSlot>]>,
}

impl LoopSlots {
    /// The loop that should have the next connection in place of `own`, if that has more than its
    /// share.
    pub fn less_loaded_than(&self, own: &LoopSlot) -> Option<&Arc<LoopSlot>> {
        if self.list.len() < 2 {
            return None;
        }
        let load = own.connection_count();
        let open = || self.list.iter().filter(|slot| slot.open.load(Relaxed));
        let has_more = |than: &LoopSlot| {
            let fewest = than.connection_count();
            load > fewest + SLACK + fewest / SLACK_SHARE
        };
        let least = open().min_by_key(|slot| slot.connection_count())?;
        if !has_more(least) {
            return None;
        }
        // Lateness needs the clock, so it is checked only for the candidate, which is enough in most cases.
        match least.is_responsive() {
            true => Some(least),
            false => open()
                .filter(|slot| slot.is_responsive())
                .min_by_key(|slot| slot.connection_count())
                .filter(|slot| has_more(slot)),
        }
    }

    /// Whether a loop would serve a connection without delay.
    pub fn has_responsive(&self) -> bool {
        self.list.iter().any(|slot| slot.is_responsive())
    }

    /// The loop with the fewest connections of those that are not late.
    pub fn least_loaded(&self) -> Option<&Arc<LoopSlot>> {
        let responsive = self.list.iter().filter(|slot| slot.is_responsive());
        // All are late: a loop that answers late is better than none.
        responsive
            .min_by_key(|slot| slot.connection_count())
            .or_else(|| {
                let open = self.list.iter().filter(|slot| slot.open.load(Relaxed));
                open.min_by_key(|slot| slot.connection_count())
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::{EventLoop, LoopOptions};

    fn slots(number: usize) -> LoopSlots {
        let slot = |index| {
            let event_loop = EventLoop::new(LoopOptions::default()).expect("an eventfd");
            let slot = LoopSlot::new(index, event_loop.handle(), || {});
            assert!(
                slot.give_connection(arrival()).is_err(),
                "it has no configuration yet"
            );
            slot.open_slot();
            slot
        };
        LoopSlots {
            list: (0..number).map(slot).collect(),
        }
    }

    fn arrival() -> LoopArrival {
        let file = std::fs::File::open("/dev/null").expect("always there");
        LoopArrival {
            kind: "http",
            connection: ArrivingConnection::Idle(MovingConnection {
                socket: ListenAddress::Unix("/x".into()),
                descriptor: file.into(),
                facts: Vec::new(),
                state: None,
            }),
        }
    }

    #[test]
    fn a_loop_with_more_than_its_share_finds_a_lighter_one() {
        let slots = slots(3);
        let own = &slots.list[0];
        for _ in 0..SLACK {
            own.count_opened();
            assert!(
                slots.less_loaded_than(own).is_none(),
                "small differences stay"
            );
        }
        own.count_opened();
        assert_eq!(slots.less_loaded_than(own).expect("lighter ones").index, 1);
        slots.list[1]
            .give_connection(arrival())
            .ok()
            .expect("taken");
        assert_eq!(slots.less_loaded_than(own).expect("one is left").index, 2);
        slots.list[2].count_opened();
        assert!(slots.less_loaded_than(own).is_none());
        own.count_closed();
        assert_eq!(own.connection_count(), SLACK);
    }

    #[test]
    fn a_closed_slot_gives_everything_back() {
        let slots = slots(1);
        let slot = &slots.list[0];
        assert!(slot.give_connection(arrival()).is_ok() && slot.give_connection(arrival()).is_ok());
        assert_eq!(slot.connection_count(), 2);
        assert_eq!(slot.close_slot().len(), 2);
        assert!(slot.give_connection(arrival()).is_err());
        assert_eq!(slot.connection_count(), 0);
    }

    #[test]
    fn the_queue_has_an_end() {
        let slots = slots(1);
        for _ in 0..QUEUE_LIMIT {
            assert!(slots.list[0].give_connection(arrival()).is_ok());
        }
        assert!(slots.list[0].give_connection(arrival()).is_err());
    }

    #[test]
    fn what_is_closed_stays_closed() {
        let slots = slots(2);
        assert!(slots.list[0].close_slot().is_empty());
        slots.list[0].open_slot();
        assert!(slots.list[0].give_connection(arrival()).is_err());
        assert_eq!(slots.least_loaded().expect("one is open").index, 1);
    }
}
