//! What the runtime has to tell the operator: one enum, one reporter for the process.
//!
//! The runtime has no log of its own. It hands each event to the reporter that the binary installed;
//! until one is installed the text goes to standard error. Reports are rare by construction (each
//! kind is limited at its source), so the reporter may format and allocate, but it must not block:
//! it runs on whatever thread met the event, a loop's thread included.

use std::backtrace::Backtrace;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock;
use base::sync::{Mutex, RwLock};

/// Something that happened inside the runtime and that an operator may want to know.
#[derive(Debug)]
#[non_exhaustive]
pub enum RuntimeEvent<'a> {
    /// A task panicked; it was dropped and its loop goes on.
    Panic {
        /// The name the task was spawned with.
        task: &'a str,
        /// The panic's message.
        message: &'a str,
        /// `file:line:column`, when known.
        location: &'a str,
        /// Where it happened.
        backtrace: &'a Backtrace,
    },
    /// A pool's queue is full; callers wait their turn. At most once a second for a pool.
    PoolOverflow {
        /// The pool's name.
        pool: &'a str,
        /// How many callers wait for a place in the queue.
        waiting: usize,
    },
    /// `accept` failed for want of descriptors or memory; the listener pauses. At most once a second.
    AcceptPaused {
        /// What the kernel said (EMFILE, ENFILE, ENOBUFS, ENOMEM).
        error: &'a io::Error,
        /// How long it pauses.
        pause: Duration,
    },
    /// A system call that the runtime would like to use is refused here (old kernel, seccomp).
    /// Reported once for each call.
    Unsupported {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        error: &'a io::Error,
        /// What is done in its place.
        instead: &'static str,
    },
    /// A log sink lost lines because its buffer was full or its file could not be written.
    LogLost {
        /// The sink's name.
        sink: &'a str,
        /// Lines lost since the last report.
        lines: u64,
        /// The error, if writing failed.
        error: Option<&'a io::Error>,
    },
}

impl fmt::Display for RuntimeEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic {
                task,
                message,
                location,
                backtrace,
            } => {
                write!(
                    f,
                    "task \"{task}\" panicked at {location}: {message}\n{backtrace}"
                )
            }
            Self::PoolOverflow { pool, waiting } => {
                write!(
                    f,
                    "thread pool \"{pool}\" queue overflow: {waiting} tasks waiting"
                )
            }
            Self::AcceptPaused { error, pause } => {
                write!(
                    f,
                    "accept4() failed ({error}), pausing for {} ms",
                    pause.as_millis()
                )
            }
            Self::Unsupported {
                call,
                error,
                instead,
            } => {
                write!(f, "{call} is not available ({error}), {instead}")
            }
            Self::LogLost {
                sink,
                lines,
                error: None,
            } => {
                write!(f, "log \"{sink}\": {lines} lines lost, its buffer was full")
            }
            Self::LogLost {
                sink,
                lines,
                error: Some(error),
            } => {
                write!(f, "log \"{sink}\": {lines} lines lost ({error})")
            }
        }
    }
}

type EventReporter = Arc<dyn Fn(&RuntimeEvent<'_>) + Send + Sync>;

static REPORTER: RwLock<Option<EventReporter>> = RwLock::new(None);

/// Installs the process's reporter in place of the one before.
pub fn set_reporter(reporter: impl Fn(&RuntimeEvent<'_>) + Send + Sync + 'static) {
    *REPORTER.write() = Some(Arc::new(reporter));
}

/// When something that may happen very often was last reported.
#[derive(Default)]
pub struct ReportLimit(AtomicU64);

impl ReportLimit {
    /// One that has reported nothing.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether a second has passed since this last said so.
    pub fn allows_report(&self) -> bool {
        let tick = clock::real_tick();
        let last = self.0.load(Relaxed);
        tick.saturating_sub(last) >= 1000
            && self
                .0
                .compare_exchange(last, tick, Relaxed, Relaxed)
                .is_ok()
    }
}

/// How many stalls are kept.
const STALLS_KEPT: usize = 20;

/// How many calls of a stack are kept.
const FRAMES_KEPT: usize = 40;

/// A loop that was late, as it is kept for pages that show it.
#[derive(Clone, Debug)]
pub struct RecordedStall {
    /// When, in milliseconds since 1970.
    pub wall_ms: u64,
    /// The loop's name.
    pub loop_name: String,
    /// The number of its turn.
    pub turn: u64,
    /// How long the turn had lasted; where it ended before a stack was taken, how long it took.
    pub late: Duration,
    /// What it did: calls, innermost first; empty if it ended before.
    pub frames: Vec<String>,
    /// The tasks of its longest stretch, if it has ended.
    pub tasks: Vec<&'static str>,
}

static STALLS: Mutex<VecDeque<RecordedStall>> = Mutex::new(VecDeque::new());

/// The last loops that were late, the latest first.
pub fn recent_stalls() -> Vec<RecordedStall> {
    STALLS.lock().iter().rev().cloned().collect()
}

/// Keeps a stall: when it is reported, and again when it has ended.
pub fn keep_stall(mut stall: RecordedStall) {
    stall.frames.truncate(FRAMES_KEPT);
    let mut stalls = STALLS.lock();
    let is_same =
        |last: &&mut RecordedStall| last.turn == stall.turn && last.loop_name == stall.loop_name;
    if let Some(last) = stalls.back_mut().filter(is_same) {
        // Its stack may have been known while it lasted only.
        if stall.frames.is_empty() {
            stall.frames = std::mem::take(&mut last.frames);
        }
        *last = stall;
        return;
    }
    if stalls.len() >= STALLS_KEPT {
        stalls.pop_front();
    }
    stalls.push_back(stall);
}

/// Hands an event to the reporter.
pub fn report_event(event: &RuntimeEvent<'_>) {
    // Cloned out of the lock: a reporter may itself cause a report.
    let reporter = REPORTER.read().clone();
    match reporter {
        Some(reporter) => reporter(event),
        None => {
            // Not `eprintln`, which panics when nobody reads.
            let _ = writeln!(io::stderr(), "{event}");
        }
    }
}
