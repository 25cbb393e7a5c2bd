//! Counters of one loop, written by its thread and read by any: heartbeat, turns, polls, panics.
//!
//! There is one writer, so that a counter is a relaxed load and a relaxed store: no locked
//! instruction on the path of a request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Number of buckets of the turn-time histogram: bucket `i` counts turns of less than 2^i µs (and at
/// least half of that); the last one takes everything longer, from about four seconds on.
pub const TURN_BUCKETS: usize = 24;

/// The live counters of a loop.
#[derive(Default)]
pub(crate) struct LoopCounters {
    /// Tick at which the present turn began.
    pub(crate) turn_began: AtomicU64,
    /// The loop waits in `epoll_wait`: however old `turn_began` is, it is not late.
    pub(crate) parked: AtomicBool,
    /// A turn that takes longer, in microseconds, is slow; 0: none is. A setting, not a count.
    pub(crate) slow_turn: AtomicU64,
    pub(crate) turns: AtomicU64,
    pub(crate) polls: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) slow_turns: AtomicU64,
    pub(crate) tasks: AtomicU64,
    pub(crate) busy_nanos: AtomicU64,
    pub(crate) histogram: [AtomicU64; TURN_BUCKETS],
}

/// Adds to a counter that only the calling thread writes.
pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

impl LoopCounters {
    /// Counts a turn that kept the thread busy for this number of nanoseconds.
    pub(crate) fn turn(&self, took: u64) {
        add(&self.turns, 1);
        add(&self.busy_nanos, took);
        let micros = took / 1000;
        let bucket = (64 - micros.leading_zeros()) as usize;
        add(&self.histogram[bucket.min(TURN_BUCKETS - 1)], 1);
    }

    /// A copy of the counters.
    pub(crate) fn snapshot(&self) -> LoopStats {
        LoopStats {
            turns: self.turns.load(Relaxed),
            polls: self.polls.load(Relaxed),
            panics: self.panics.load(Relaxed),
            slow_turns: self.slow_turns.load(Relaxed),
            tasks: self.tasks.load(Relaxed),
            busy: Duration::from_nanos(self.busy_nanos.load(Relaxed)),
            turn_times: std::array::from_fn(|i| self.histogram[i].load(Relaxed)),
        }
    }
}

/// A copy of a loop's counters.
#[derive(Debug, Clone)]
pub struct LoopStats {
    /// Turns so far.
    pub turns: u64,
    /// Polls of tasks so far.
    pub polls: u64,
    /// Tasks that panicked.
    pub panics: u64,
    /// Turns longer than `LoopOptions::slow_turn`.
    pub slow_turns: u64,
    /// Tasks that live now.
    pub tasks: u64,
    /// Time not spent waiting for events.
    pub busy: Duration,
    /// Turns by duration: see [`TURN_BUCKETS`].
    pub turn_times: [u64; TURN_BUCKETS],
}
