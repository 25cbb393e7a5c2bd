//! The idle upstream connections of this loop: the sockets themselves, and the task that closes them in time.

use std::cell::{Cell, RefCell};
use std::sync::Weak;
use std::time::{Duration, Instant};

use super::IdlePool;
use super::connection::PeerConnection;
use super::pool::{EntryId, ParkedIndex};

/// How often the idle connections are checked. One task for all: a timer for each would be set and cleared with
/// every request.
const SWEEP: Duration = Duration::from_secs(1);

/// Identifies a parked connection in the process: its pool and its number there. The place alone could by now hold
/// another connection.
pub(super) type ParkedKey = (u64, u64);

/// A place for a connection, free or taken.
struct ParkedSlot {
    key: ParkedKey,
    connection: Option<Box<PeerConnection>>,
    expires: Instant,
    /// Stays when the connection is taken: the next one here is mostly of the same pool, and a new weak reference
    /// costs an atomic operation.
    pool: Weak<IdlePool>,
    entry: EntryId,
}

#[derive(Default)]
struct ParkedConnections {
    slots: Vec<ParkedSlot>,
    free: Vec<u32>,
}

rt::local! {
    static PARKED: RefCell<ParkedConnections> = RefCell::default();
    static SWEEPING: Cell<bool> = const { Cell::new(false) };
    /// The loop is ending: no connection is kept any more.
    static ENDING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the loop is ending and keeps no connections any more.
pub(super) fn is_ending() -> bool {
    ENDING.get()
}

/// Parks a connection whose record in its pool is `entry`. `pool` is called only if the place belonged to another
/// pool.
pub(super) fn park(
    key: ParkedKey,
    connection: Box<PeerConnection>,
    expires: Instant,
    entry: EntryId,
    pool: impl FnOnce() -> Weak<IdlePool>,
) -> ParkedIndex {
    let place = PARKED.with_borrow_mut(|parked| {
        if let Some(index) = parked.free.pop() {
            let slot = &mut parked.slots[index as usize];
            if slot.key.0 != key.0 {
                slot.pool = pool();
            }
            slot.key = key;
            slot.connection = Some(connection);
            (slot.expires, slot.entry) = (expires, entry);
            return ParkedIndex(index);
        }
        let index = u32::try_from(parked.slots.len()).expect("descriptors are 31-bit");
        parked.slots.push(ParkedSlot {
            key,
            connection: Some(connection),
            expires,
            pool: pool(),
            entry,
        });
        ParkedIndex(index)
    });
    if !SWEEPING.replace(true) {
        rt::spawn_named("idle upstream connections", sweep());
    }
    place
}

/// Takes a connection, if it is still there: it may have expired, or another loop may have had it.
pub(super) fn unpark(index: ParkedIndex, key: ParkedKey) -> Option<Box<PeerConnection>> {
    PARKED.with_borrow_mut(|parked| {
        let slot = parked.slots.get_mut(index.0 as usize)?;
        if slot.key != key {
            return None;
        }
        let connection = slot.connection.take()?;
        parked.free.push(index.0);
        Some(connection)
    })
}

/// Closes all idle connections of this loop, which is ending.
pub fn close_idle() {
    // First, so that a request that ends meanwhile does not park its connection after this.
    ENDING.set(true);
    let parked = PARKED.with_borrow_mut(std::mem::take);
    for slot in parked.slots {
        if slot.connection.is_some()
            && let Some(idle) = slot.pool.upgrade()
        {
            idle.forget(slot.entry);
        }
    }
}

/// Closes connections that have expired or that the peer has closed, until none is left.
async fn sweep() {
    loop {
        rt::sleep(SWEEP).await;
        let (closed, empty) = PARKED.with_borrow_mut(|parked| parked.take_over_ones(rt::now()));
        // The list of this loop is no longer borrowed here: the pool's lock is never waited for inside it.
        for (_connection, pool, entry) in closed {
            if let Some(idle) = pool.upgrade() {
                idle.forget(entry);
            }
        }
        if empty {
            SWEEPING.set(false);
            return;
        }
    }
}

/// A connection that is closed, and its entry in its pool.
type ClosedConnection = (Box<PeerConnection>, Weak<IdlePool>, EntryId);

impl ParkedConnections {
    /// Takes out the connections that can no longer be used; the flag says that none is left.
    fn take_over_ones(&mut self, now: Instant) -> (Vec<ClosedConnection>, bool) {
        let mut closed = Vec::new();
        for (index, slot) in (0..).zip(&mut self.slots) {
            if slot.is_over(now)
                && let Some(connection) = slot.connection.take()
            {
                closed.push((connection, slot.pool.clone(), slot.entry));
                self.free.push(index);
            }
        }
        let empty = self.free.len() == self.slots.len();
        if empty {
            // Frees the memory of what was once the peak, and the references to pools of groups that are gone.
            *self = ParkedConnections::default();
        }
        (closed, empty)
    }
}

impl ParkedSlot {
    /// Whether the connection has expired, was closed by the peer, or belongs to a group that is gone.
    fn is_over(&self, now: Instant) -> bool {
        self.connection.as_ref().is_some_and(|connection| {
            self.expires <= now || self.pool.strong_count() == 0 || !connection.stream.is_quiet()
        })
    }
}
