//! Pools of scripts' connections: those that are idle, and a count of all, so that a pool can be asked not to have more
//! than its size and to let others wait (`backlog`).

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use net::Transport;

/// The pools of a machine, by key. One is there for as long as it has connections.
#[derive(Default)]
pub(crate) struct Pools {
    by_key: RefCell<HashMap<Vec<u8>, Rc<Pool>>>,
    next: Cell<u64>,
}

/// Connections that may stand for each other.
struct Pool {
    key: Vec<u8>,
    /// How many idle connections are kept; with a backlog, how many there may be at all.
    size: usize,
    /// How many may wait for a connection when there are `size`; `None`: there may be any number.
    backlog: Option<usize>,
    /// Connections that count: those in use, idle ones, and those that are waited for.
    connections: Cell<usize>,
    idle: RefCell<VecDeque<Idle>>,
    waiting: RefCell<VecDeque<Rc<Waiting>>>,
    home: Weak<Pools>,
}

/// A connection counts for as long as it has this. Its end lets the next one in, unless it is quiet.
pub(super) struct Slot(Rc<Pool>, bool);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.leave();
        if !self.1 {
            self.0.call_next();
        }
    }
}

/// A connection that was used before.
pub(super) struct Kept {
    pub(super) transport: Rc<Transport>,
    pub(super) reused: u32,
    pub(super) slot: Slot,
}

struct Idle {
    number: u64,
    kept: Option<Kept>,
    /// Watches it; ends with it.
    watch: rt::JoinHandle<()>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[derive(Default)]
struct Waiting {
    called: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// What a pool has for one that wants a connection.
pub(super) enum Place {
    /// One is there.
    Kept(Kept),
    /// One may be made. Without a pool it does not count.
    Free(Option<Slot>),
    /// There are as many as there may be.
    Queue(InQueue),
    /// As many wait already as are allowed to.
    Full,
}

/// A place in the row of those who wait.
pub(super) struct InQueue {
    /// It counts while it waits.
    slot: Option<Slot>,
    waiting: Rc<Waiting>,
}

impl Pools {
    /// What there is for a connection of the pool `key`. With a size the pool is made, if it is not there.
    pub(super) fn enter(
        self: &Rc<Pools>,
        key: &[u8],
        size: Option<usize>,
        backlog: Option<usize>,
    ) -> Place {
        let known = self.by_key.borrow().get(key).cloned();
        let pool = match (known, size) {
            (Some(pool), _) => pool,
            (None, Some(size)) => self.make(key, size, backlog),
            (None, None) => return Place::Free(None),
        };
        if let Some(kept) = pool.take() {
            return Place::Kept(kept);
        }
        if let Some(backlog) = pool.backlog {
            let connections = pool.connections.get() + 1;
            if connections > pool.size.saturating_add(backlog) {
                return Place::Full;
            }
            if connections > pool.size {
                let waiting = Rc::new(Waiting::default());
                pool.waiting.borrow_mut().push_back(Rc::clone(&waiting));
                let slot = Some(pool.slot());
                return Place::Queue(InQueue { slot, waiting });
            }
        }
        Place::Free(Some(pool.slot()))
    }

    fn make(self: &Rc<Pools>, key: &[u8], size: usize, backlog: Option<usize>) -> Rc<Pool> {
        let pool = Rc::new(Pool {
            key: key.to_vec(),
            size,
            backlog,
            connections: Cell::new(0),
            idle: RefCell::default(),
            waiting: RefCell::default(),
            home: Rc::downgrade(self),
        });
        let mut by_key = self.by_key.borrow_mut();
        by_key.insert(key.to_vec(), Rc::clone(&pool));
        pool
    }

    /// Whether there is a pool of this name.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        self.by_key.borrow().contains_key(key)
    }

    /// Keeps a connection that nobody uses for now. A pool that is not there yet is made with this size.
    pub(super) fn keep(
        self: &Rc<Pools>,
        key: &[u8],
        transport: Rc<Transport>,
        reused: u32,
        slot: Option<Slot>,
        (timeout, size): (Duration, usize),
    ) {
        let known = self.by_key.borrow().get(key).cloned();
        let pool = known.unwrap_or_else(|| self.make(key, size, None));
        // One that was made before its pool counts from now on.
        let slot = match slot {
            Some(slot) if Rc::ptr_eq(&slot.0, &pool) => slot,
            _ => pool.slot(),
        };
        let number = self.next.get();
        self.next.set(number + 1);
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
        let kept = Some(Kept {
            transport,
            reused,
            slot,
        });
        let gone = {
            let mut idle = pool.idle.borrow_mut();
            let gone = match idle.len() >= pool.size {
                true => idle.pop_front(),
                false => None,
            };
            idle.push_back(Idle {
                number,
                kept,
                watch,
            });
            gone
        };
        drop(gone);
        pool.call_next();
    }
}

impl Drop for Pools {
    /// An idle connection counts in its pool, which has it: let go of them, or they would never end.
    fn drop(&mut self) {
        for (_, pool) in self.by_key.take() {
            drop(pool.idle.take());
        }
    }
}

impl Pool {
    fn slot(self: &Rc<Pool>) -> Slot {
        self.connections.set(self.connections.get() + 1);
        Slot(Rc::clone(self), false)
    }

    /// A connection counts no more; a pool without any is forgotten.
    fn leave(self: &Rc<Pool>) {
        self.connections
            .set(self.connections.get().saturating_sub(1));
        if self.connections.get() > 0 {
            return;
        }
        if let Some(home) = self.home.upgrade() {
            let mut by_key = home.by_key.borrow_mut();
            if by_key
                .get(&self.key)
                .is_some_and(|known| Rc::ptr_eq(known, self))
            {
                by_key.remove(&self.key);
            }
        }
    }

    /// An idle connection that is still good.
    fn take(&self) -> Option<Kept> {
        loop {
            let mut idle = self.idle.borrow_mut().pop_back()?;
            if let Some(kept) = idle.kept.take()
                && kept.transport.is_quiet()
            {
                return Some(kept);
            }
        }
    }

    fn remove(&self, number: u64) -> Option<Idle> {
        let mut idle = self.idle.borrow_mut();
        let at = idle.iter().position(|idle| idle.number == number)?;
        idle.remove(at)
    }

    /// Lets the first of those who wait look again.
    fn call_next(&self) {
        let Some(next) = self.waiting.borrow_mut().pop_front() else {
            return;
        };
        next.called.set(true);
        if let Some(waker) = next.waker.take() {
            waker.wake();
        }
    }
}

impl InQueue {
    /// Waits for its turn, for `time` at most.
    pub(super) async fn turn(mut self, time: Duration) -> Option<Place> {
        let called = poll_fn(|context| match self.waiting.called.get() {
            true => Poll::Ready(()),
            false => {
                *self.waiting.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        });
        rt::timeout(time, called).await.ok()?;
        let slot = self.slot.take()?;
        let pool = Rc::clone(&slot.0);
        Some(match pool.take() {
            Some(kept) => {
                slot.forget();
                Place::Kept(kept)
            }
            None => Place::Free(Some(slot)),
        })
    }
}

impl Drop for InQueue {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        if self.waiting.called.get() {
            // It was its turn: the next one's now.
            return;
        }
        let mut waiting = slot.0.waiting.borrow_mut();
        waiting.retain(|other| !Rc::ptr_eq(other, &self.waiting));
        drop(waiting);
        slot.forget();
    }
}

impl Slot {
    /// Counts no more, without anybody's turn: what only waited leaves no room.
    fn forget(mut self) {
        self.1 = true;
    }
}
