//! Loops that are late: who notices, and what the loop was doing.
//!
//! A loop that is stuck in a task cannot report it. A watchdog thread looks at the heartbeats
//! ([`crate::LoopHandle::turn_duration`]) while any loop works, and sleeps while none does ([`sleep_until_turn`]). What
//! it does about a late loop is decided there; this module takes a [sample](sample()) of the loop's stack.

mod sample;
mod unwind;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

use base::sync::Mutex;

pub(crate) use sample::note_stack;

use crate::handle::LoopHandle;

/// The watchdog sleeps: the loop that starts the next turn wakes it.
static DOZING: AtomicBool = AtomicBool::new(false);
static WATCHER: Mutex<Option<Thread>> = Mutex::new(None);

/// A turn may begin unnoticed between the watchdog's last look and its sleep; it is then noticed after this time.
const LONGEST_DOZE: Duration = Duration::from_secs(1);

/// Called by the watching thread when it saw all loops parked: sleeps until one begins a turn, or a
/// second has passed.
pub fn sleep_until_turn() {
    *WATCHER.lock() = Some(std::thread::current());
    DOZING.store(true, Ordering::SeqCst);
    std::thread::park_timeout(LONGEST_DOZE);
    DOZING.store(false, Ordering::SeqCst);
}

/// Called by a loop at the beginning of each turn: a load in the usual case.
#[inline]
pub(crate) fn turn_begins() {
    if DOZING.load(Ordering::Relaxed) && DOZING.swap(false, Ordering::SeqCst) {
        let watcher = WATCHER.lock();
        if let Some(watcher) = &*watcher {
            watcher.unpark();
        }
    }
}

/// What a loop is doing in its turn of number `turn`, innermost call first, or a line that says why that
/// is not known; `None` when the turn has ended meanwhile. Takes tens of milliseconds: not for a loop's
/// thread.
pub fn sample(handle: &LoopHandle, turn: u64) -> Option<Vec<String>> {
    let thread = handle.thread();
    let stack = sample::take(thread);
    // What was copied belongs to a later turn and would accuse the wrong code.
    if handle.turn_number() != turn || handle.is_parked() {
        return None;
    }
    let frames = match stack {
        Some(stack) => unwind::frame_names(&stack),
        None => vec![in_kernel(thread)],
    };
    // Tables of the whole program were read for a few names.
    crate::system::give_memory_back();
    Some(frames)
}

/// How long the thread of a loop has waited for a processor so far, ready to run. `None` where the kernel does not say.
pub fn processor_wait(handle: &LoopHandle) -> Option<Duration> {
    let thread = handle.thread();
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?;
    // Time on a processor, time waiting for one, number of slices; in nanoseconds.
    let waited = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(waited))
}

/// A thread that does not take a signal waits in the kernel, for a disk as a rule, or has no processor.
fn in_kernel(thread: i32) -> String {
    let read = |file: &str| {
        let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/{file}"));
        text.map_or_else(|_| "?".to_owned(), |text| text.trim().to_owned())
    };
    let call = read("syscall");
    let number = call.split(' ').next().unwrap_or("?");
    if number == "running" {
        return "no stack: the thread is ready to run and waits for a processor".to_owned();
    }
    format!(
        "no stack: the thread does not handle signals (system call {number}, waiting in {})",
        read("wchan")
    )
}
