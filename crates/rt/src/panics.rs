//! Panics of tasks and jobs: caught at the edge of the loop or pool, and reported with the place where they
//! happened.
//!
//! A backtrace exists only in the panic hook: when a panic is caught, its frames are gone. So the hook records it
//! for the thread, if the thread is in [`catch`], and the code that caught the panic reports it. Any other panic
//! goes to the hook that was installed before.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::pool::{self, DeviceNumber, PoolPanic};
use crate::report::{self, RuntimeEvent};

/// How many backtraces may be waiting to be written.
const PENDING_PANICS: usize = 16;

thread_local! {
    /// A panic here will be caught and reported by us.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    /// What the panic hook saw on this thread.
    static PANIC: RefCell<Option<NotedPanic>> = const { RefCell::new(None) };
    /// The future being dropped here has panicked.
    static DROPPING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`, its panic noted for [`report()`] or [`report_elsewhere`].
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> std::thread::Result<R> {
    let outer = CATCHING.replace(true);
    // The caller drops what `f` was working on, so no half-changed state is used afterwards.
    let outcome = panic::catch_unwind(AssertUnwindSafe(f));
    CATCHING.set(outer);
    outcome
}

/// Drops the future of a task that has panicked; it may panic again.
pub(crate) fn drop_panicked<T>(name: &'static str, future: T) {
    DROPPING.set(true);
    let dropped = catch(|| drop(future));
    DROPPING.set(false);
    if let Err(payload) = dropped {
        report_elsewhere(name, payload.as_ref());
    }
}

/// Whether the future of a panicked task is being dropped at the moment.
pub(crate) fn is_dropping_panicked() -> bool {
    DROPPING.get() || std::thread::panicking()
}

/// What the panic hook noted on the way to the handler that caught it.
struct NotedPanic {
    location: String,
    backtrace: Backtrace,
}

impl NotedPanic {
    fn unknown() -> Self {
        Self {
            location: "an unknown place".to_owned(),
            backtrace: Backtrace::disabled(),
        }
    }
}

/// Keeps the backtrace of panics that a loop (or a pool) will catch; all others go to the hook that
/// was there before. A backtrace can only be had here: when the panic is caught its frames are gone.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CATCHING.get() {
                return previous(info);
            }
            let location = info.location().map(ToString::to_string).unwrap_or_default();
            let backtrace = Backtrace::force_capture();
            PANIC.set(Some(NotedPanic {
                location,
                backtrace,
            }));
        }));
    });
}

/// Reports a panic that was caught on this thread, here and now.
pub(crate) fn report(task: &str, payload: &(dyn Any + Send)) {
    let NotedPanic {
        location,
        backtrace,
    } = PANIC.take().unwrap_or_else(NotedPanic::unknown);
    let text = message(payload);
    report::report_event(&RuntimeEvent::Panic {
        task,
        message: text,
        location: &location,
        backtrace: &backtrace,
    });
}

/// Reports a panic that was caught on a loop's thread, on a pool: to find the names of a backtrace's
/// functions takes tens of milliseconds, and reads our own binary from the disk.
pub(crate) fn report_elsewhere(task: &'static str, payload: &(dyn Any + Send)) {
    static PENDING: AtomicUsize = AtomicUsize::new(0);
    if PENDING.fetch_add(1, Relaxed) >= PENDING_PANICS {
        PENDING.fetch_sub(1, Relaxed);
        // Too many at once. The first ones have a backtrace; these only show that it goes on.
        PANIC.with_borrow_mut(|noted| {
            noted.get_or_insert_with(NotedPanic::unknown).backtrace = Backtrace::disabled();
        });
        return report(task, payload);
    }
    let noted = PANIC.take().unwrap_or_else(NotedPanic::unknown);
    let text = message(payload).to_owned();
    let report = move || {
        let NotedPanic {
            location,
            backtrace,
        } = &noted;
        report::report_event(&RuntimeEvent::Panic {
            task,
            message: &text,
            location,
            backtrace,
        });
        PENDING.fetch_sub(1, Relaxed);
    };
    pool::default_pool().submit(DeviceNumber::UNKNOWN, Box::new(report));
}

/// The text of a panic's payload.
pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&'static str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else if let Some(panic) = payload.downcast_ref::<PoolPanic>() {
        panic.message()
    } else {
        "a panic without text"
    }
}
