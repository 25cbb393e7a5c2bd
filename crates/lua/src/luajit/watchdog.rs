//! Ends or suspends scripts that run for too long.
//!
//! A thread looks at every loop once in a *slice*. A loop that has been in the same run of Lua code since the last look
//! gets a signal; its handler does what LuaJIT allows there: it sets a hook. The hook runs at the next instruction, in
//! compiled code too (see `build.rs`), and decides:
//!
//! - the script may give way: its coroutine yields, the loop serves others, and the script goes on later;
//! - it can not, because it stands in a filter or below a function of C such as `table.sort`: it goes on for now;
//! - its time is over ([`Limits`]): it ends with an error, which it may catch, but then the next instruction raises it
//!   again.
//!
//! What can not be ended is one call of a library function that takes long, such as `string.find` with a hopeless
//! pattern: there are no instructions of Lua in it.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::ffi;
use super::stack::Stack;

unsafe extern "C-unwind" {
    fn lua_isyieldable(l: *mut ffi::lua_State) -> c_int;
}

/// How long scripts may run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// What a script may use before it gives way to others.
    pub(crate) slice: Duration,
    /// What one run of a script may use in all, not counting what it waits for.
    pub(crate) run: Duration,
    /// What it may use at a time where it can not give way.
    pub(crate) hold: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            slice: Duration::from_millis(5),
            run: Duration::from_secs(10),
            hold: Duration::from_millis(500),
        }
    }
}

/// What a script has used of its time: processor time of its thread, in microseconds.
///
/// The clock is only read for scripts that were interrupted once: the first slice counts as what it is called.
#[derive(Debug)]
pub(crate) struct Budget {
    slice: u64,
    run: u64,
    hold: u64,
    /// Whether this script may be suspended at all.
    yields: bool,
    used: Cell<u64>,
    /// Since it last gave way.
    held: Cell<u64>,
    /// The thread's clock when the time was last counted; 0 before the first interruption.
    counted: Cell<u64>,
    gave_way: Cell<bool>,
    /// A coroutine inside the script's own gave way; the function that resumed it has to pass that on.
    inner_gave_way: Cell<bool>,
}

impl Budget {
    /// The time of one script.
    pub(crate) fn new(limits: &Limits, yields: bool) -> Budget {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        SLICE_MICROS.store(micros(limits.slice), Ordering::Relaxed);
        Budget {
            slice: micros(limits.slice),
            run: micros(limits.run),
            hold: micros(limits.hold),
            yields,
            used: Cell::new(0),
            held: Cell::new(0),
            counted: Cell::new(0),
            gave_way: Cell::new(false),
            inner_gave_way: Cell::new(false),
        }
    }

    /// Whether the coroutine that yielded just now did so because its time was up.
    pub(crate) fn take_given_way(&self) -> bool {
        self.gave_way.take()
    }

    /// The script is resumed.
    fn begin(&self) {
        self.held.set(0);
        if self.counted.get() != 0 {
            self.counted.set(thread_micros());
        }
    }

    fn judge(&self) -> Verdict {
        let now = thread_micros();
        let spent = match self.counted.replace(now.max(1)) {
            0 => self.slice,
            before => now.saturating_sub(before),
        };
        self.used.set(self.used.get().saturating_add(spent));
        self.held.set(self.held.get().saturating_add(spent));
        if self.used.get() >= self.run {
            Verdict::End(c"the script ran for longer than lua_run_limit")
        } else if self.held.get() >= self.hold {
            Verdict::End(c"the script blocked the event loop for longer than lua_hold_limit")
        } else {
            Verdict::GiveWay
        }
    }
}

/// The processor time of this thread, in microseconds.
fn thread_micros() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the struct; on failure, which can not be, it stays zero.
    // JUSTIFICATION: wall time would end scripts for what other processes do.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

enum Verdict {
    GiveWay,
    End(&'static std::ffi::CStr),
}

/// Whether a coroutine that yielded nothing did so because its time was up, so that whoever resumed it must pass that
/// on. Asked by the functions that replace Lua's `coroutine.resume` and `coroutine.wrap`.
pub(crate) fn inner_gave_way() -> bool {
    // SAFETY: set by `watched` to a budget that lives until it returns, and this is called by the code that it runs.
    let budget = unsafe { RUNNING.with(|running| running.budget.get()).as_ref() };
    budget.is_some_and(|budget| budget.inner_gave_way.take())
}

/// Whether the coroutine that runs is the one that was resumed by the server.
pub(crate) fn is_outermost(stack: &Stack) -> bool {
    RUNNING.with(|running| ptr::eq(running.entry.load(Ordering::Relaxed), stack.l))
}

/// Whether the coroutine that runs may yield here: not below a function of C.
pub(crate) fn may_yield(stack: &Stack) -> bool {
    // SAFETY: the state of a living stack; the call only looks.
    unsafe { lua_isyieldable(stack.l) != 0 }
}

/// What runs on this thread.
struct Running {
    /// The thread of Lua that was resumed; null while no Lua code runs. Read by the signal's handler.
    entry: AtomicPtr<ffi::lua_State>,
    budget: Cell<*const Budget>,
    /// The handler has set the hook.
    hooked: AtomicBool,
}

thread_local! {
    static RUNNING: Running = const {
        Running {
            entry: AtomicPtr::new(ptr::null_mut()),
            budget: Cell::new(ptr::null()),
            hooked: AtomicBool::new(false),
        }
    };
    static PULSE: Watched = Watched(register());
}

/// Runs `code`, which runs Lua code on `l`, under the watch of the watchdog.
pub(crate) fn watched<T>(l: *mut ffi::lua_State, budget: &Budget, code: impl FnOnce() -> T) -> T {
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

/// Called by Lua at an instruction, because the handler asked for it.
unsafe extern "C-unwind" fn hook(l: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // Nothing here owns anything: the calls at the end unwind.
    let (entry, budget) =
        RUNNING.with(|running| (running.entry.load(Ordering::Relaxed), running.budget.get()));
    // SAFETY: see `inner_gave_way`.
    let Some(budget) = (unsafe { budget.as_ref() }) else {
        return;
    };
    match budget.judge() {
        Verdict::GiveWay => {
            // SAFETY: takes the hook off the running state, and asks whether it may yield.
            let may = unsafe {
                ffi::lua_sethook(l, None, 0, 0);
                budget.yields && lua_isyieldable(l) != 0
            };
            if may {
                let flag = match ptr::eq(l, entry) {
                    true => &budget.gave_way,
                    false => &budget.inner_gave_way,
                };
                flag.set(true);
                // SAFETY: a hook may yield without values, as its last act.
                unsafe { ffi::lua_yield(l, 0) };
            }
        }
        // The hook stays: a script that catches the error gets the next one.
        Verdict::End(message) => {
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

/// The signal. Nothing else in the program uses it.
const SIGNAL: c_int = libc::SIGVTALRM;

/// The signal's handler: the loop's thread runs it, in the middle of whatever it does.
extern "C" fn on_signal(_: c_int) {
    RUNNING.with(|running| {
        let l = running.entry.load(Ordering::Relaxed);
        if !l.is_null() {
            running.hooked.store(true, Ordering::Relaxed);
            // SAFETY: LuaJIT allows this one call at any moment on the thread that runs the state.
            // JUSTIFICATION: nothing else reaches a script that never calls anything. Setting the hook from the
            // watchdog's thread would race with the compiler's own changes to the tables of instructions.
            unsafe { ffi::lua_sethook(l, Some(hook), ffi::LUA_MASKCOUNT, 1) };
        }
    });
}

/// What the watchdog knows of a thread that runs Lua.
struct Pulse {
    /// Counted at the begin and the end of each run: odd while Lua code runs.
    turn: AtomicU64,
    thread: libc::pthread_t,
}

/// A thread's pulse; taken off the list when the thread ends.
struct Watched(Arc<Pulse>);

impl Drop for Watched {
    fn drop(&mut self) {
        lock().retain(|pulse| !Arc::ptr_eq(pulse, &self.0));
    }
}

static PULSES: Mutex<Vec<Arc<Pulse>>> = Mutex::new(Vec::new());
static SLICE_MICROS: AtomicU64 = AtomicU64::new(5_000);
static ASLEEP: AtomicBool = AtomicBool::new(false);
static WATCHDOG: OnceLock<Thread> = OnceLock::new();

/// After so many looks that found no Lua at work the watchdog sleeps until it is woken.
const IDLE_LOOKS: u32 = 200;

/// It looks now and then all the same, in case a call to wake came too early.
const NAP: Duration = Duration::from_millis(500);

fn lock() -> std::sync::MutexGuard<'static, Vec<Arc<Pulse>>> {
    PULSES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn register() -> Arc<Pulse> {
    static START: Once = Once::new();
    START.call_once(start);
    let pulse = Arc::new(Pulse {
        turn: AtomicU64::new(0),
        // SAFETY: asks for the calling thread's own name.
        thread: unsafe { libc::pthread_self() },
    });
    lock().push(Arc::clone(&pulse));
    pulse
}

fn start() {
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
        .spawn(watch);
    if let Ok(handle) = spawned {
        let _ = WATCHDOG.set(handle.thread().clone());
    }
}

fn wake_if_asleep() {
    if ASLEEP.load(Ordering::Relaxed)
        && ASLEEP.swap(false, Ordering::Relaxed)
        && let Some(thread) = WATCHDOG.get()
    {
        thread.unpark();
    }
}

fn watch() {
    let mut seen: Vec<(libc::pthread_t, u64)> = Vec::new();
    let mut idle = 0;
    loop {
        if idle > IDLE_LOOKS {
            ASLEEP.store(true, Ordering::Relaxed);
            std::thread::park_timeout(NAP);
            ASLEEP.store(false, Ordering::Relaxed);
        } else {
            std::thread::sleep(Duration::from_micros(
                SLICE_MICROS.load(Ordering::Relaxed).max(500),
            ));
        }
        let pulses = lock();
        let now: Vec<(libc::pthread_t, u64)> = pulses
            .iter()
            .map(|pulse| (pulse.thread, pulse.turn.load(Ordering::Relaxed)))
            .collect();
        for pulse in &now {
            if pulse.1 % 2 == 1 && seen.contains(pulse) {
                // SAFETY: the thread takes its pulse off the list, under this lock, before it ends.
                unsafe { libc::pthread_kill(pulse.0, SIGNAL) };
            }
        }
        drop(pulses);
        idle = if now == seen && now.iter().all(|pulse| pulse.1 % 2 == 0) {
            idle + 1
        } else {
            0
        };
        seen = now;
    }
}
