//! One event loop per thread: tasks, timers, sockets, files, pools.
//!
//! Everything above this crate waits through it and names no other runtime, so that what is behind
//! this seam can be replaced (docs/design/2026-11-21-event-loop.md has the figures). The rule that
//! the whole server rests on is kept here: a loop thread never waits for a device. Files are probed
//! first (`openat2(RESOLVE_CACHED)`, `preadv2(RWF_NOWAIT)`) and only what the kernel does not have in
//! memory goes to a thread pool.
//!
//! Tasks never move between threads and need not be `Send`. The words used throughout:
//!
//! - a *turn* is one pass of a loop: wait for events, fire timers, poll the tasks that are ready;
//! - to *park* is to wait in `epoll_wait`;
//! - a *tick* is a millisecond since the process's clock was first read.
//!
//! This crate knows no protocol and reads no configuration. Messages for an operator go to [`report`], and the
//! program decides where they are written.

pub mod clock;
mod event_loop;
mod handle;
pub mod heap;
mod local_time;
mod panics;
pub mod probes;
mod reactor;
pub mod report;
pub mod slow_turn;
pub mod socket_option;
pub mod stats;
mod tables;
mod task;
mod time;

pub mod child;
pub mod file;
pub mod net;
pub mod pool;
pub mod random;
pub mod sandbox;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod stall;
pub mod sync;
pub mod system;

pub use clock::{monotonic_millis, now, wall, wall_millis};
pub use event_loop::{
    EventLoop, LongWork, LoopOptions, at_turn_end, handle, refresh_now, run, suspect, turn_lag,
    yield_now,
};
pub use handle::{INBOX_LIMIT, LoopHandle, PostError};
pub use local_time::{LocalTime, local_time};
pub use task::{
    AbortHandle, JoinError, JoinHandle, TaskRank, continue_as, set_rank, shrink_tables, spawn,
    spawn_abortable, spawn_handle, spawn_named, spawn_ranked, task_count,
};
pub use time::{Elapsed, Interval, Sleep, Timer, sleep, sleep_until, timeout};

/// Thread-local state, which above this crate means state of a loop: `rt::local! { static … }`, with the syntax of
/// the standard library's macro.
///
/// A loop is a thread and its tasks never leave it, so such state needs no lock, belongs to one loop and ends with
/// it. This macro has a name of its own so that one search finds all of it, and one change replaces it.
pub use std::thread_local as local;
