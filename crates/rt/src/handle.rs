//! What other threads see of a loop: its inbox, its wake-up and its heartbeat.
//!
//! Sending a message takes a short lock. The eventfd is written only if the loop is parked or about to park, so
//! that a busy loop is never interrupted.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;
use crate::slow_turn::SlowTurns;
use crate::stats::{LoopCounters, LoopStats};
use base::sync::{Mutex, MutexGuard};

/// A way to reach a loop from any thread.
#[derive(Clone)]
pub struct LoopHandle(pub(crate) Arc<LoopShared>);

/// Messages a loop's inbox holds before [`LoopHandle::post`] says [`PostError::Full`].
pub const INBOX_LIMIT: usize = 65_536;

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError {
    /// The loop has ended.
    Closed,
    /// [`INBOX_LIMIT`] messages wait already.
    Full,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the loop has ended",
            Self::Full => "the loop's inbox is full",
        })
    }
}

impl std::error::Error for PostError {}

impl LoopHandle {
    /// Runs `message` on the loop's thread in its next turn; it may spawn tasks there.
    pub fn post(&self, message: impl FnOnce() + Send + 'static) -> Result<(), PostError> {
        {
            let mut inbox = self.0.inbox();
            if inbox.closed {
                return Err(PostError::Closed);
            }
            if inbox.posts.len() >= INBOX_LIMIT {
                return Err(PostError::Full);
            }
            inbox.posts.push_back(Box::new(message));
        }
        self.0.notify();
        Ok(())
    }

    /// The loop's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How long the present turn has lasted; zero while the loop is parked. A loop that is late by tens of
    /// milliseconds is stuck in a task.
    pub fn turn_duration(&self) -> Duration {
        if self.0.counters.parked.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let began = self.0.counters.turn_began.load(Ordering::Relaxed);
        Duration::from_millis(clock::real_tick().saturating_sub(began))
    }

    /// Sets the length from which a turn is counted and reported as slow; zero: never.
    pub fn set_slow_turn(&self, limit: Duration) {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        self.0.counters.slow_turn.store(micros, Ordering::Relaxed);
    }

    /// The slow turns since this was last called; `None` if there were none.
    pub fn take_slow_turns(&self) -> Option<SlowTurns> {
        let mut turns = self.0.slow_turns();
        (turns.count > 0).then(|| std::mem::take(&mut *turns))
    }

    /// The number of the loop's thread; 0 before it runs.
    pub(crate) fn thread(&self) -> i32 {
        self.0.thread.load(Ordering::Relaxed)
    }

    /// Whether the loop waits for something to do.
    pub fn is_parked(&self) -> bool {
        self.0.counters.parked.load(Ordering::Relaxed)
    }

    /// The number of the present turn.
    pub fn turn_number(&self) -> u64 {
        self.0.counters.turns.load(Ordering::Relaxed)
    }

    /// The time the loop has spent on anything but waiting for events.
    pub fn busy_time(&self) -> Duration {
        Duration::from_nanos(self.0.counters.busy_nanos.load(Ordering::Relaxed))
    }

    /// The loop's counters now.
    pub fn stats(&self) -> LoopStats {
        self.0.counters.snapshot()
    }

    /// Whether the calling thread is the loop's own.
    pub fn is_current(&self) -> bool {
        current_id() == self.0.id
    }
}

impl fmt::Debug for LoopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopHandle")
            .field("name", &self.0.name)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// The id of the loop that runs here, 0 for none: what a waker compares.
    static CURRENT_ID: Cell<u64> = const { Cell::new(0) };
}

/// The id of the loop that runs on this thread, or 0.
#[inline]
pub(crate) fn current_id() -> u64 {
    CURRENT_ID.get()
}

/// Says which loop runs on this thread; 0: none any more.
pub(crate) fn set_current_id(id: u64) {
    CURRENT_ID.set(id);
}

type PostedCall = Box<dyn FnOnce() + Send>;

/// A task's slot in the slab of its loop. The generation distinguishes it from earlier tasks in the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Messages from other threads.
#[derive(Default)]
pub(crate) struct LoopInbox {
    /// Tasks to poll. At most one entry for each living task (`TaskHeader::posted`), hence bounded.
    pub(crate) wakes: Vec<TaskId>,
    pub(crate) posts: VecDeque<PostedCall>,
    pub(crate) closed: bool,
}

/// The loop is looking at its work; it will see the inbox before it parks.
const AWAKE: u8 = 0;
/// The loop is in `epoll_wait` or about to be: the eventfd must be written.
const PARKED: u8 = 1;
/// Something is in the inbox, and its sender has woken the loop or knows that it will look.
const NOTIFIED: u8 = 2;

pub(crate) struct LoopShared {
    /// Unique in the process; never 0.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) counters: LoopCounters,
    /// See [`LoopHandle::thread`].
    pub(crate) thread: AtomicI32,
    inbox: Mutex<LoopInbox>,
    /// Turns that were slow, until they are asked for.
    slow_turns: Mutex<SlowTurns>,
    state: AtomicU8,
    eventfd: OwnedFd,
}

impl LoopShared {
    pub(crate) fn new(name: String) -> io::Result<Self> {
        use rustix::event::{EventfdFlags, eventfd};
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        Ok(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name,
            counters: LoopCounters::default(),
            thread: AtomicI32::new(0),
            inbox: Mutex::default(),
            slow_turns: Mutex::default(),
            state: AtomicU8::new(AWAKE),
            eventfd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    pub(crate) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    pub(crate) fn slow_turns(&self) -> MutexGuard<'_, SlowTurns> {
        self.slow_turns.lock()
    }

    fn inbox(&self) -> MutexGuard<'_, LoopInbox> {
        self.inbox.lock()
    }

    /// Asks the loop to poll a task; called on other threads.
    pub(crate) fn wake(&self, task: TaskId) {
        {
            let mut inbox = self.inbox();
            if inbox.closed {
                return;
            }
            inbox.wakes.push(task);
        }
        self.notify();
    }

    fn notify(&self) {
        // SeqCst pairs with `park`: either we see PARKED and write, or the loop sees NOTIFIED.
        if self.state.swap(NOTIFIED, Ordering::SeqCst) == PARKED {
            // Registered edge-triggered: every write is an event, so the counter never needs to be read, and it
            // cannot overflow in practice.
            let written = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
            debug_assert!(written.is_ok());
        }
    }

    /// Called before the loop waits; `false` means that something has arrived and it must not wait.
    pub(crate) fn park(&self) -> bool {
        self.state
            .compare_exchange(AWAKE, PARKED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Called after the wait: takes the contents of the inbox, if there are any.
    pub(crate) fn unpark(&self) -> Option<LoopInbox> {
        if self.state.swap(AWAKE, Ordering::SeqCst) != NOTIFIED {
            return None;
        }
        let mut inbox = self.inbox();
        let closed = inbox.closed;
        Some(std::mem::replace(
            &mut *inbox,
            LoopInbox {
                closed,
                ..LoopInbox::default()
            },
        ))
    }

    /// Closes the inbox of a loop that ends; returns what is in it, to be dropped.
    pub(crate) fn close(&self) -> LoopInbox {
        std::mem::replace(
            &mut *self.inbox(),
            LoopInbox {
                closed: true,
                ..LoopInbox::default()
            },
        )
    }
}
