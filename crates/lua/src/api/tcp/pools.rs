//! Pools of cosocket connections.
//!
//! A pool holds idle connections and counts all of its connections, idle or in use. With a
//! `backlog` the count is a limit: further connects queue up until a connection is returned or
//! closed.
//!
//! ```text
//!             acquire                    setkeepalive
//!   (none) ─────────────▶ counted, in use ───────────▶ idle ──┐
//!      ▲                       │   ▲                          │ taken again
//!      └──── closed ───────────┘   └──────────────────────────┘
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use net::Transport;

/// The pools of a VM by key. A pool exists as long as it has connections.
#[derive(Default)]
pub(crate) struct CosocketPools {
    /// By key: host and port, or the name that the script has given.
    by_key: RefCell<HashMap<Vec<u8>, Rc<CosocketPool>>>,
    /// The number of the next idle connection.
    next: Cell<u64>,
}

/// Connections that are interchangeable.
struct CosocketPool {
    /// The key, to be removed by.
    key: Vec<u8>,
    /// How many idle connections are kept; with a backlog, how many there may be in all.
    size: usize,
    /// How many connects may wait beyond `size`; `None`: there is no limit on connections.
    backlog: Option<usize>,
    /// How many connections are in use, idle, or waited for.
    connections: Cell<usize>,
    /// The most recently used one last.
    idle: RefCell<VecDeque<IdleCosocket>>,
    /// Connects in the queue.
    waiting: RefCell<VecDeque<Rc<PoolWaiter>>>,
    /// The list to leave when it is empty.
    pools: Weak<CosocketPools>,
}

/// Counts a connection until it is dropped, which lets the next connect in; quietly, if the flag is
/// set.
pub(super) struct PoolSlot(Rc<CosocketPool>, bool);

impl Drop for PoolSlot {
    fn drop(&mut self) {
        self.0.release();
        if !self.1 {
            self.0.wake_next();
        }
    }
}

/// A connection from a pool.
pub(super) struct PooledConnection {
    /// The connection, with its TLS session if it has one.
    pub(super) transport: Rc<Transport>,
    /// How often it was taken from a pool: `getreusedtimes`.
    pub(super) reused: u32,
    /// Its place in the pool's count.
    pub(super) slot: PoolSlot,
}

/// An idle connection.
struct IdleCosocket {
    /// Tells connections apart: the task that watches one has to find it again.
    number: u64,
    kept: Option<PooledConnection>,
    /// The task that waits for its timeout, or for the server to close it.
    watch: rt::JoinHandle<()>,
}

impl Drop for IdleCosocket {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// A connect in the queue.
#[derive(Default)]
struct PoolWaiter {
    /// A place has become free for it.
    woken: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// What a pool offers to a connect.
pub(super) enum PoolOffer {
    /// An idle connection.
    Kept(PooledConnection),
    /// Permission to open one. Without a pool it is not counted.
    Free(Option<PoolSlot>),
    /// The pool is full: wait.
    Queue(QueuedConnect),
    /// The queue is full, too.
    Full,
}

/// A place in the queue. Giving it up must not cost another connect its turn, see `drop`.
pub(super) struct QueuedConnect {
    /// Waiting connects count, so that their number is limited.
    slot: Option<PoolSlot>,
    waiting: Rc<PoolWaiter>,
}

impl CosocketPools {
    /// What the pool `key` offers. With a size the pool is created if it does not exist.
    pub(super) fn acquire(
        self: &Rc<CosocketPools>,
        key: &[u8],
        size: Option<usize>,
        backlog: Option<usize>,
    ) -> PoolOffer {
        let known = self.by_key.borrow().get(key).cloned();
        let pool = match (known, size) {
            (Some(pool), _) => pool,
            (None, Some(size)) => self.make(key, size, backlog),
            (None, None) => return PoolOffer::Free(None),
        };
        if let Some(kept) = pool.take_idle() {
            return PoolOffer::Kept(kept);
        }
        if let Some(backlog) = pool.backlog {
            let connections = pool.connections.get() + 1;
            if connections > pool.size.saturating_add(backlog) {
                return PoolOffer::Full;
            }
            if connections > pool.size {
                let waiting = Rc::new(PoolWaiter::default());
                pool.waiting.borrow_mut().push_back(Rc::clone(&waiting));
                let slot = Some(pool.slot());
                return PoolOffer::Queue(QueuedConnect { slot, waiting });
            }
        }
        PoolOffer::Free(Some(pool.slot()))
    }

    /// Creates a pool.
    fn make(
        self: &Rc<CosocketPools>,
        key: &[u8],
        size: usize,
        backlog: Option<usize>,
    ) -> Rc<CosocketPool> {
        let pool = Rc::new(CosocketPool {
            key: key.to_vec(),
            size,
            backlog,
            connections: Cell::new(0),
            idle: RefCell::default(),
            waiting: RefCell::default(),
            pools: Rc::downgrade(self),
        });
        let mut by_key = self.by_key.borrow_mut();
        by_key.insert(key.to_vec(), Rc::clone(&pool));
        pool
    }

    /// Whether there is a pool with this key.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.by_key.borrow().contains_key(key)
    }

    /// Returns a connection to its pool, which is created with this size if it does not exist.
    pub(super) fn put_idle(
        self: &Rc<CosocketPools>,
        key: &[u8],
        transport: Rc<Transport>,
        reused: u32,
        slot: Option<PoolSlot>,
        (timeout, size): (Duration, usize),
    ) {
        let known = self.by_key.borrow().get(key).cloned();
        let pool = known.unwrap_or_else(|| self.make(key, size, None));
        // A connection that was opened before the pool existed is counted from now on.
        let slot = match slot {
            Some(slot) if Rc::ptr_eq(&slot.0, &pool) => slot,
            _ => pool.slot(),
        };
        let number = self.next.get();
        self.next.set(number + 1);
        // A server may close an idle connection at any time. Watching notices that before the
        // connection is handed to a script; the timeout is enforced by the same task.
        let (weak, watched) = (Rc::downgrade(&pool), Rc::clone(&transport));
        let watch = rt::spawn_handle("lua idle connection", async move {
            if timeout == Duration::MAX {
                watched.closed().await;
            } else {
                let _ = rt::timeout(timeout, watched.closed()).await;
            }
            drop(watched);
            if let Some(pool) = weak.upgrade() {
                drop(pool.remove(number));
            }
        });
        let kept = Some(PooledConnection {
            transport,
            reused,
            slot,
        });
        // A full pool drops its least recently used connection. Outside of the borrow, because
        // dropping comes back to this pool.
        let gone = {
            let mut idle = pool.idle.borrow_mut();
            let gone = match idle.len() >= pool.size {
                true => idle.pop_front(),
                false => None,
            };
            idle.push_back(IdleCosocket {
                number,
                kept,
                watch,
            });
            gone
        };
        drop(gone);
        pool.wake_next();
    }
}

impl Drop for CosocketPools {
    /// Idle connections refer to their pool, which holds them: without this they would never be
    /// freed.
    fn drop(&mut self) {
        for (_, pool) in self.by_key.take() {
            drop(pool.idle.take());
        }
    }
}

impl CosocketPool {
    /// Counts one more connection.
    fn slot(self: &Rc<CosocketPool>) -> PoolSlot {
        self.connections.set(self.connections.get() + 1);
        PoolSlot(Rc::clone(self), false)
    }

    /// Counts one less. A pool without connections is removed.
    fn release(self: &Rc<CosocketPool>) {
        self.connections
            .set(self.connections.get().saturating_sub(1));
        if self.connections.get() > 0 {
            return;
        }
        if let Some(home) = self.pools.upgrade() {
            let mut by_key = home.by_key.borrow_mut();
            if by_key
                .get(&self.key)
                .is_some_and(|known| Rc::ptr_eq(known, self))
            {
                by_key.remove(&self.key);
            }
        }
    }

    /// The most recently used idle connection that is still usable: an older one is more likely to
    /// have been closed by the server.
    fn take_idle(&self) -> Option<PooledConnection> {
        loop {
            let mut idle = self.idle.borrow_mut().pop_back()?;
            if let Some(kept) = idle.kept.take()
                && kept.transport.is_quiet()
            {
                return Some(kept);
            }
        }
    }

    /// Removes an idle connection by its number.
    fn remove(&self, number: u64) -> Option<IdleCosocket> {
        let mut idle = self.idle.borrow_mut();
        let at = idle.iter().position(|idle| idle.number == number)?;
        idle.remove(at)
    }

    /// Wakes the first connect in the queue, which then looks again.
    fn wake_next(&self) {
        let Some(next) = self.waiting.borrow_mut().pop_front() else {
            return;
        };
        next.woken.set(true);
        if let Some(waker) = next.waker.take() {
            waker.wake();
        }
    }
}

impl QueuedConnect {
    /// Waits for its turn, for `time` at most; `None` on timeout.
    pub(super) async fn turn(mut self, time: Duration) -> Option<PoolOffer> {
        let called = poll_fn(|context| match self.waiting.woken.get() {
            true => Poll::Ready(()),
            false => {
                *self.waiting.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        });
        rt::timeout(time, called).await.ok()?;
        let slot = self.slot.take()?;
        let pool = Rc::clone(&slot.0);
        Some(match pool.take_idle() {
            // The pooled connection is counted by itself: the place in the queue need not be.
            Some(kept) => {
                slot.release_quietly();
                PoolOffer::Kept(kept)
            }
            None => PoolOffer::Free(Some(slot)),
        })
    }
}

impl Drop for QueuedConnect {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        if self.waiting.woken.get() {
            // Its turn had come and was not used. Dropping the slot wakes the next one.
            return;
        }
        let mut waiting = slot.0.waiting.borrow_mut();
        waiting.retain(|other| !Rc::ptr_eq(other, &self.waiting));
        drop(waiting);
        slot.release_quietly();
    }
}

impl PoolSlot {
    /// Stops counting without waking the next one: a connect that only waited makes no room.
    fn release_quietly(mut self) {
        self.1 = true;
    }
}
