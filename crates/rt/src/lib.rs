//! One event loop per thread: tasks, timers, sockets, files, pools, log sinks.
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
//! This crate knows no protocol and reads no configuration.

mod event_loop;
mod handle;
mod panics;
mod reactor;
pub mod report;
mod socket_option;
pub mod stats;
mod task;
mod time;

pub mod channel;
pub mod child;
pub mod engine;
pub mod error_log;
pub mod file;
pub mod listen;
pub mod log;
pub mod net;
pub mod pool;
pub mod process;
pub mod sandbox;
pub mod seats;
pub mod signal;
pub mod stall;
pub mod sync;
pub mod watch;

pub use event_loop::{Loop, LoopOptions, handle, refresh_now, run, yield_now};
pub use handle::{Handle, INBOX_LIMIT, PostError};
pub use task::{
    JoinError, JoinHandle, Rank, continue_as, set_rank, spawn, spawn_handle, spawn_named,
    spawn_ranked, task_count,
};
pub use time::{
    Elapsed, Interval, Sleep, Timer, monotonic_millis, now, sleep, sleep_until, timeout, wall,
    wall_millis,
};
