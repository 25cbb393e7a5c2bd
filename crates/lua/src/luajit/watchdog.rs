//! Suspends or ends scripts that run for too long.
//!
//! A script that computes without waiting would hold its event loop, and with it every client of
//! that loop. nginx has no remedy. Here a thread checks every loop once per time slice. A loop that
//! has been in the same run of Lua code since the last check gets a signal. The signal handler does
//! the one thing that LuaJIT allows there: it sets a hook. The hook runs at the next instruction,
//! also of compiled code (see `build.rs`), and decides:
//!
//! - the script may be suspended: its coroutine yields, the loop serves others, the script
//!   continues later;
//! - it may not, because it is a filter, or within a C function such as `table.sort`: it goes on
//!   for now;
//! - its time is over ([`ScriptLimits`]): it gets an error. It may catch the error, but then the next
//!   instruction raises it again.
//!
//! A single call of a library function that takes long, such as `string.find` with a pathological
//! pattern, cannot be ended: it executes no Lua instructions.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use super::ffi;
use super::stack::LuaStack;
use base::sync::Mutex;

unsafe extern "C-unwind" {
    fn lua_isyieldable(l: *mut ffi::lua_State) -> c_int;
}

/// How long scripts may run, in processor time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScriptLimits {
    /// `lua_time_slice`: how long a script runs before it yields to others.
    pub(crate) slice: Duration,
    /// `lua_run_limit`: how long one run may take in all, not counting the time it waits.
    pub(crate) run: Duration,
    /// `lua_hold_limit`: how long it may run at a time where it cannot be suspended.
    pub(crate) hold: Duration,
}

/// The time that a run has used: processor time of its thread, in microseconds.
///
/// Reading that clock is a system call. So it is read only for scripts that were interrupted
/// before; the first interruption counts as one time slice.
#[derive(Debug)]
pub(crate) struct ScriptBudget {
    /// The time after which a script is preempted, in microseconds.
    slice: u64,
    /// The limits, in microseconds.
    run: u64,
    /// The limit where the script cannot yield: it is shorter, since the whole loop waits.
    hold: u64,
    /// Whether this script may be suspended at all.
    yields: bool,
    /// Used in all.
    used_micros: Cell<u64>,
    /// Used since it was last resumed.
    held_micros: Cell<u64>,
    /// The thread's clock at the last count; 0 before the first interruption.
    counted: Cell<u64>,
    /// The run's own coroutine was preempted: its yield means that.
    was_preempted: Cell<bool>,
    /// A coroutine that the script has resumed was preempted. The function that resumed it has to
    /// yield in turn.
    inner_was_preempted: Cell<bool>,
}

impl ScriptBudget {
    /// A fresh budget for one run.
    pub(crate) fn new(limits: &ScriptLimits, yields: bool) -> ScriptBudget {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        SLICE_MICROS.store(micros(limits.slice), Ordering::Relaxed);
        ScriptBudget {
            slice: micros(limits.slice),
            run: micros(limits.run),
            hold: micros(limits.hold),
            yields,
            used_micros: Cell::new(0),
            held_micros: Cell::new(0),
            counted: Cell::new(0),
            was_preempted: Cell::new(false),
            inner_was_preempted: Cell::new(false),
        }
    }

    /// Whether the coroutine that has just yielded was preempted.
    pub(crate) fn take_preempted(&self) -> bool {
        self.was_preempted.take()
    }

    /// The script is resumed: the time that it waited is not counted.
    fn begin(&self) {
        self.held_micros.set(0);
        if self.counted.get() != 0 {
            self.counted.set(thread_micros());
        }
    }

    /// Counts the time since the last look, and decides.
    fn judge(&self) -> BudgetVerdict {
        let now = thread_micros();
        let spent = match self.counted.replace(now.max(1)) {
            0 => self.slice,
            before => now.saturating_sub(before),
        };
        self.used_micros
            .set(self.used_micros.get().saturating_add(spent));
        self.held_micros
            .set(self.held_micros.get().saturating_add(spent));
        if self.used_micros.get() >= self.run {
            BudgetVerdict::End(c"the script ran for longer than lua_run_limit")
        } else if self.held_micros.get() >= self.hold {
            BudgetVerdict::End(c"the script blocked the event loop for longer than lua_hold_limit")
        } else {
            BudgetVerdict::Preempt
        }
    }
}

/// The processor time of this thread, in microseconds.
fn thread_micros() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct; it cannot fail with this clock, and would leave zeros.
    // JUSTIFICATION: wall time would end scripts for what other processes do.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// What the hook does.
enum BudgetVerdict {
    Preempt,
    End(&'static std::ffi::CStr),
}

/// Whether the coroutine that has just yielded to a script was preempted, so that the script must
/// yield, too. Asked by our replacements of `coroutine.resume` and `coroutine.wrap`.
pub(crate) fn inner_gave_way() -> bool {
    // SAFETY: set by `watched` to a budget that lives until it returns, and this is called by the
    // code that it runs.
    let budget = unsafe { RUNNING.with(|running| running.budget.get()).as_ref() };
    budget.is_some_and(|budget| budget.inner_was_preempted.take())
}

/// Whether the running coroutine is the one that the server resumed, not one of the script's own.
pub(crate) fn is_outermost(stack: &LuaStack) -> bool {
    RUNNING.with(|running| ptr::eq(running.entry.load(Ordering::Relaxed), stack.l))
}

/// Whether the running coroutine may yield here: not within a C function that calls back into Lua.
pub(crate) fn may_yield(stack: &LuaStack) -> bool {
    // SAFETY: the state of a living stack; the call only looks.
    unsafe { lua_isyieldable(stack.l) != 0 }
}

/// What this thread is running. Atomic although it is thread-local, because the signal handler
/// reads and writes it between any two instructions.
struct RunningScript {
    /// The Lua thread that was resumed; null while no Lua code runs.
    entry: AtomicPtr<ffi::lua_State>,
    budget: Cell<*const ScriptBudget>,
    /// The handler has set the hook, so it must be removed at the end of the run.
    hooked: AtomicBool,
}

rt::local! {
    static RUNNING: RunningScript = const {
        RunningScript {
            entry: AtomicPtr::new(ptr::null_mut()),
            budget: Cell::new(ptr::null()),
            hooked: AtomicBool::new(false),
        }
    };
    static PULSE: PulseGuard = PulseGuard(register());
}

/// Runs `code`, which runs Lua code on `l`, watched by the watchdog.
pub(crate) fn watched<T>(
    l: *mut ffi::lua_State,
    budget: &ScriptBudget,
    code: impl FnOnce() -> T,
) -> T {
    budget.begin();
    PULSE.with(|pulse| {
        RUNNING.with(|running| {
            let before = (
                running.entry.swap(l, Ordering::Relaxed),
                running.budget.replace(budget),
            );
            pulse.0.turn.fetch_add(1, Ordering::Relaxed);
            wake_if_asleep();
            let result = code();
            pulse.0.turn.fetch_add(1, Ordering::Relaxed);
            running.entry.store(before.0, Ordering::Relaxed);
            running.budget.set(before.1);
            if running.hooked.swap(false, Ordering::Relaxed) {
                // SAFETY: takes the hook off a living state.
                unsafe { ffi::lua_sethook(l, None, 0, 0) };
            }
            result
        })
    })
}

/// The hook: called by Lua at an instruction, because the handler asked for it.
unsafe extern "C-unwind" fn hook(l: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // The calls at the end unwind the C stack, so nothing here may own anything.
    let (entry, budget) =
        RUNNING.with(|running| (running.entry.load(Ordering::Relaxed), running.budget.get()));
    // SAFETY: see `inner_gave_way`.
    let Some(budget) = (unsafe { budget.as_ref() }) else {
        return;
    };
    match budget.judge() {
        BudgetVerdict::Preempt => {
            // SAFETY: takes the hook off the running state, and asks whether it may yield.
            let may = unsafe {
                ffi::lua_sethook(l, None, 0, 0);
                budget.yields && lua_isyieldable(l) != 0
            };
            if may {
                let flag = match ptr::eq(l, entry) {
                    true => &budget.was_preempted,
                    false => &budget.inner_was_preempted,
                };
                flag.set(true);
                // SAFETY: a hook may yield without values, as its last act.
                unsafe { ffi::lua_yield(l, 0) };
            }
        }
        // The hook stays set: a script that catches the error gets the next one at its next
        // instruction.
        BudgetVerdict::End(message) => {
            // SAFETY: a hook may raise an error, as its last act.
            unsafe {
                ffi::luaL_where(l, 0);
                ffi::lua_pushlstring_(l, message.as_ptr(), message.count_bytes());
                ffi::lua_concat(l, 2);
                ffi::lua_error(l)
            }
        }
    }
}

/// The signal. It belongs to interval timers, which nothing in the program uses.
const SIGNAL: c_int = libc::SIGVTALRM;

/// The signal handler. It runs on the loop's thread, interrupting whatever that does.
extern "C" fn on_signal(_: c_int) {
    RUNNING.with(|running| {
        let l = running.entry.load(Ordering::Relaxed);
        if !l.is_null() {
            running.hooked.store(true, Ordering::Relaxed);
            // SAFETY: LuaJIT allows this one call at any moment on the thread that runs the state.
            // JUSTIFICATION: nothing else reaches a script that never calls anything. Setting the
            // hook from the watchdog's thread would race with the compiler's own changes to the
            // tables of instructions.
            unsafe { ffi::lua_sethook(l, Some(hook), ffi::LUA_MASKCOUNT, 1) };
        }
    });
}

/// What the watchdog knows about a thread that runs Lua.
struct ThreadPulse {
    /// Incremented at the start and end of each run: odd while Lua code runs. The same odd number
    /// at two checks means that one run has lasted that long.
    turn: AtomicU64,
    /// A `pthread_t`, as a number: in musl it is a pointer, which the list could not hold.
    thread: usize,
}

/// Removes a thread's pulse from the list when the thread ends.
struct PulseGuard(Arc<ThreadPulse>);

impl Drop for PulseGuard {
    fn drop(&mut self) {
        lock_pulses().retain(|pulse| !Arc::ptr_eq(pulse, &self.0));
    }
}

static PULSES: Mutex<Vec<Arc<ThreadPulse>>> = Mutex::new(Vec::new());
/// `lua_time_slice` of the configuration that ran last.
static SLICE_MICROS: AtomicU64 = AtomicU64::new(5_000);
/// The watchdog is parked.
static ASLEEP: AtomicBool = AtomicBool::new(false);
static WATCHDOG: OnceLock<Thread> = OnceLock::new();

/// After this many checks that found no Lua code running the watchdog parks until it is woken: an
/// idle server must not wake up two hundred times a second.
const IDLE_CHECKS: u32 = 200;

/// How long it parks at most, in case a call to wake it came just too early.
const NAP: Duration = Duration::from_millis(500);

fn lock_pulses() -> base::sync::MutexGuard<'static, Vec<Arc<ThreadPulse>>> {
    PULSES.lock()
}

/// Adds this thread to the list; the first one starts the watchdog.
fn register() -> Arc<ThreadPulse> {
    static START: Once = Once::new();
    START.call_once(start_watchdog);
    let pulse = Arc::new(ThreadPulse {
        turn: AtomicU64::new(0),
        // SAFETY: asks for the calling thread's own name.
        thread: unsafe { libc::pthread_self() } as usize,
    });
    lock_pulses().push(Arc::clone(&pulse));
    pulse
}

/// Installs the signal handler and starts the watchdog's thread.
fn start_watchdog() {
    // SAFETY: installs a handler that does only what a handler may; restarts interrupted calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(SIGNAL, &action, ptr::null_mut());
    }
    let spawned = std::thread::Builder::new()
        .name("lua watchdog".into())
        .spawn(watch_loops);
    // Without the thread scripts run unwatched, as they do in nginx.
    if let Ok(handle) = spawned {
        let _ = WATCHDOG.set(handle.thread().clone());
    }
}

/// The first load keeps the usual case, an awake watchdog, to one relaxed read.
fn wake_if_asleep() {
    if ASLEEP.load(Ordering::Relaxed)
        && ASLEEP.swap(false, Ordering::Relaxed)
        && let Some(thread) = WATCHDOG.get()
    {
        thread.unpark();
    }
}

/// The watchdog's thread.
fn watch_loops() {
    let mut seen: Vec<(usize, u64)> = Vec::new();
    let mut idle = 0;
    loop {
        if idle > IDLE_CHECKS {
            ASLEEP.store(true, Ordering::Relaxed);
            std::thread::park_timeout(NAP);
            ASLEEP.store(false, Ordering::Relaxed);
        } else {
            std::thread::sleep(Duration::from_micros(
                SLICE_MICROS.load(Ordering::Relaxed).max(500),
            ));
        }
        let pulses = lock_pulses();
        let now: Vec<(usize, u64)> = pulses
            .iter()
            .map(|pulse| (pulse.thread, pulse.turn.load(Ordering::Relaxed)))
            .collect();
        for pulse in &now {
            if pulse.1 % 2 == 1 && seen.contains(pulse) {
                // SAFETY: the thread takes its pulse off the list, under this lock, before it ends.
                unsafe { libc::pthread_kill(pulse.0 as libc::pthread_t, SIGNAL) };
            }
        }
        drop(pulses);
        // A script that comes and goes between two checks changes its counter, so the thread stays
        // awake while Lua is in use at all.
        idle = if now == seen && now.iter().all(|pulse| pulse.1 % 2 == 0) {
            idle + 1
        } else {
            0
        };
        seen = now;
    }
}
