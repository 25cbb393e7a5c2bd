//! The loops of a process as they see each other: how many connections each has, which are late, and a queue in
//! which one leaves connections for another.
//!
//! This serves three needs. Long-lived connections should be spread evenly although the kernel wakes any loop that
//! waits: a loop with more than its share passes a new connection to the one with the fewest ([`Seats::lighter`]).
//! A loop that a reload removes passes its idle connections to those that stay. And connections that were left for
//! a loop that then stalls are taken back by another one ([`Seat::take`] may be called by any thread).
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
use base::sync::{Mutex, MutexGuard};
use rt::Handle;
use rt::net::Detached;

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
pub struct Arrival {
    /// The kind of the engine that it belongs to.
    pub kind: &'static str,
    /// The connection.
    pub what: Arriving,
}

/// The connection of an [`Arrival`].
pub enum Arriving {
    /// One that was just accepted.
    New {
        /// The listening socket that accepted it.
        spec: Arc<ListenerSpec>,
        /// The connection.
        stream: Detached,
    },
    /// One that waits for its next request.
    Idle(Parcel),
}

/// A client connection between two requests, with what its engine knows about it, ready to move to another loop or
/// another process.
pub struct Parcel {
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
pub struct Seat {
    /// Unique in the process; never used again.
    pub id: u64,
    /// The loop's number, from 0.
    pub index: usize,
    handle: Handle,
    /// Connections of all engines. Written by the loop only.
    connections: AtomicUsize,
    queue: Mutex<Queue>,
    /// The length of the queue, for readers without the lock.
    queued: AtomicUsize,
    /// Whether the state is [`State::Open`], for readers without the lock.
    open: AtomicBool,
    /// What the loop runs when a connection was left for it.
    arrive: fn(),
}

#[derive(Default)]
struct Queue {
    arrivals: VecDeque<Arrival>,
    state: State,
}

/// Whether a loop takes connections. It goes through these states once, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Its loop has no configuration yet.
    #[default]
    Waiting,
    Open,
    /// Its loop ends.
    Closed,
}

impl Seat {
    /// The seat of a loop. `arrive` runs on it when something was left for it, and should
    /// [`take`](Seat::take) it.
    pub fn new(index: usize, handle: Handle, arrive: fn()) -> Arc<Seat> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Arc::new(Seat {
            id: NEXT_ID.fetch_add(1, Relaxed),
            index,
            handle,
            connections: AtomicUsize::new(0),
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            arrive,
        })
    }

    /// The loop.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Connections that it has or is about to have.
    pub fn load(&self) -> usize {
        self.connections.load(Relaxed) + self.queued.load(Relaxed)
    }

    /// Counts a connection. Only the loop itself may call this.
    pub fn opened(&self) {
        self.connections
            .store(self.connections.load(Relaxed) + 1, Relaxed);
    }

    /// Counts the end of a connection. Only the loop itself may call this.
    pub fn closed(&self) {
        self.connections
            .store(self.connections.load(Relaxed).saturating_sub(1), Relaxed);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Leaves a connection for the loop. It is returned if the loop takes no more connections or its queue is full.
    pub fn give(&self, arrival: Arrival) -> Result<(), Arrival> {
        let mut queue = self.queue();
        if queue.state != State::Open || queue.arrivals.len() >= QUEUE_LIMIT {
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
    pub fn take(&self) -> VecDeque<Arrival> {
        let mut queue = self.queue();
        self.queued.store(0, Relaxed);
        std::mem::take(&mut queue.arrivals)
    }

    /// Lets the loop be given connections, unless it was closed already.
    pub fn open(&self) {
        let mut queue = self.queue();
        if queue.state == State::Waiting {
            queue.state = State::Open;
            self.open.store(true, Relaxed);
        }
    }

    /// Closes the queue; returns what is in it.
    pub fn close(&self) -> VecDeque<Arrival> {
        let mut queue = self.queue();
        queue.state = State::Closed;
        self.open.store(false, Relaxed);
        self.queued.store(0, Relaxed);
        std::mem::take(&mut queue.arrivals)
    }

    /// Whether it would serve a connection without delay.
    fn is_responsive(&self) -> bool {
        self.open.load(Relaxed) && self.handle.late() < BUSY
    }
}

/// The loops of a process under one configuration. A reload may change their number, and each loop learns of it
/// with the new configuration.
#[derive(Clone, Default)]
pub struct Seats {
    /// By index.
    pub list: Arc<[Arc<Seat>]>,
}

impl Seats {
    /// The loop that should have the next connection in place of `own`, if that has more than its
    /// share.
    pub fn lighter(&self, own: &Seat) -> Option<&Arc<Seat>> {
        if self.list.len() < 2 {
            return None;
        }
        let load = own.load();
        let open = || self.list.iter().filter(|seat| seat.open.load(Relaxed));
        let has_more = |than: &Seat| {
            let fewest = than.load();
            load > fewest + SLACK + fewest / SLACK_SHARE
        };
        let least = open().min_by_key(|seat| seat.load())?;
        if !has_more(least) {
            return None;
        }
        // Lateness needs the clock, so it is checked only for the candidate, which is enough in most cases.
        match least.is_responsive() {
            true => Some(least),
            false => open()
                .filter(|seat| seat.is_responsive())
                .min_by_key(|seat| seat.load())
                .filter(|seat| has_more(seat)),
        }
    }

    /// The loop with the fewest connections of those that are not late.
    pub fn lightest(&self) -> Option<&Arc<Seat>> {
        let responsive = self.list.iter().filter(|seat| seat.is_responsive());
        // All are late: a loop that answers late is better than none.
        responsive.min_by_key(|seat| seat.load()).or_else(|| {
            let open = self.list.iter().filter(|seat| seat.open.load(Relaxed));
            open.min_by_key(|seat| seat.load())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rt::{Loop, LoopOptions};

    fn seats(number: usize) -> Seats {
        let seat = |index| {
            let event_loop = Loop::new(LoopOptions::default()).expect("an eventfd");
            let seat = Seat::new(index, event_loop.handle(), || {});
            assert!(seat.give(parcel()).is_err(), "it has no configuration yet");
            seat.open();
            seat
        };
        Seats {
            list: (0..number).map(seat).collect(),
        }
    }

    fn parcel() -> Arrival {
        let file = std::fs::File::open("/dev/null").expect("always there");
        Arrival {
            kind: "http",
            what: Arriving::Idle(Parcel {
                socket: ListenAddress::Unix("/x".into()),
                descriptor: file.into(),
                facts: Vec::new(),
                state: None,
            }),
        }
    }

    #[test]
    fn a_loop_with_more_than_its_share_finds_a_lighter_one() {
        let seats = seats(3);
        let own = &seats.list[0];
        for _ in 0..SLACK {
            own.opened();
            assert!(seats.lighter(own).is_none(), "small differences stay");
        }
        own.opened();
        assert_eq!(seats.lighter(own).expect("lighter ones").index, 1);
        seats.list[1].give(parcel()).ok().expect("taken");
        assert_eq!(seats.lighter(own).expect("one is left").index, 2);
        seats.list[2].opened();
        assert!(seats.lighter(own).is_none());
        own.closed();
        assert_eq!(own.load(), SLACK);
    }

    #[test]
    fn a_closed_seat_gives_everything_back() {
        let seats = seats(1);
        let seat = &seats.list[0];
        assert!(seat.give(parcel()).is_ok() && seat.give(parcel()).is_ok());
        assert_eq!(seat.load(), 2);
        assert_eq!(seat.close().len(), 2);
        assert!(seat.give(parcel()).is_err());
        assert_eq!(seat.load(), 0);
    }

    #[test]
    fn the_queue_has_an_end() {
        let seats = seats(1);
        for _ in 0..QUEUE_LIMIT {
            assert!(seats.list[0].give(parcel()).is_ok());
        }
        assert!(seats.list[0].give(parcel()).is_err());
    }

    #[test]
    fn what_is_closed_stays_closed() {
        let seats = seats(2);
        assert!(seats.list[0].close().is_empty());
        seats.list[0].open();
        assert!(seats.list[0].give(parcel()).is_err());
        assert_eq!(seats.lightest().expect("one is open").index, 1);
    }
}
