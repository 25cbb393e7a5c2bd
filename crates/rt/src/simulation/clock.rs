//! The simulation's clock: one for all loops, moved on by the schedule.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When every simulation begins, in seconds of the Unix epoch: an afternoon in 2026.
const BEGINNING: u64 = 1_795_000_000;
/// How long a reading takes, in nanoseconds: code that reads until some time has passed comes to its end.
const READING: u64 = 200;

static RUNS: AtomicBool = AtomicBool::new(false);
/// Nanoseconds since the beginning.
static NOW: AtomicU64 = AtomicU64::new(0);
/// What the wall clock has been set forward by, in milliseconds.
static WALL_SHIFT: AtomicI64 = AtomicI64::new(0);
/// What stands for the beginning. Only differences of instants have a meaning.
static BASE: OnceLock<Instant> = OnceLock::new();

thread_local! {
    /// This thread is a loop of the simulation: time passes while it reads the clock. Other threads would make it pass by
    /// chance.
    static MOVES_CLOCK: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn start() {
    let _known = BASE.get_or_init(Instant::now);
    RUNS.store(true, Relaxed);
}

/// Whether this process is simulated.
pub(crate) fn is_running() -> bool {
    RUNS.load(Relaxed)
}

pub(super) fn note_loop() {
    MOVES_CLOCK.set(true);
}

/// Nanoseconds since the beginning.
pub fn nanos() -> u64 {
    NOW.load(Relaxed)
}

pub(super) fn set_nanos(nanos: u64) {
    NOW.fetch_max(nanos, Relaxed);
}

/// Sets the wall clock forward or back, as an administrator or a time server does.
pub fn shift_wall(millis: i64) {
    WALL_SHIFT.fetch_add(millis, Relaxed);
}

/// The monotonic clock, if it is simulated.
pub(crate) fn read() -> Option<Instant> {
    if !is_running() {
        return None;
    }
    let now = match MOVES_CLOCK.get() {
        true => NOW.fetch_add(READING, Relaxed) + READING,
        false => nanos(),
    };
    Some(*BASE.get()? + Duration::from_nanos(now))
}

/// The wall clock, if it is simulated.
pub(crate) fn read_wall() -> Option<SystemTime> {
    if !is_running() {
        return None;
    }
    let millis = BEGINNING * 1000 + nanos() / 1_000_000;
    let shifted = millis.saturating_add_signed(WALL_SHIFT.load(Relaxed));
    Some(UNIX_EPOCH + Duration::from_millis(shifted))
}
