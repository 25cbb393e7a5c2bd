//! The clock of a loop, and the machine's clocks, which are read here and nowhere else.
//!
//! A loop reads the clock once a turn, and [`now`] and [`wall_millis`] return that value: this is what code on a
//! loop uses. [`read_clock`], [`read_wall`] and [`elapsed`] read the clock itself, for threads without a loop and for
//! measuring within a turn. Everything above this crate takes the time from here (`cargo xtask tidy` checks it), so
//! that a simulation of time replaces these functions and the wait of the event loop, and nothing else
//! (docs/design/2026-11-23-time-and-chance.md).

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How many ticks pass before the wall clock is read again: it may be set, or drift against the monotonic one.
const WALL_SYNC_TICKS: u64 = 100;

/// The time as a loop's thread knows it.
#[derive(Clone, Copy)]
struct LoopClock {
    /// `None` on threads without a loop: they read the clock each time.
    now: Option<Instant>,
    /// The tick of `now`.
    at: ClockTick,
    /// Milliseconds since the Unix epoch at tick 0.
    wall_base: u64,
    /// The tick at which `wall_base` was taken.
    wall_synced: u64,
}

thread_local! {
    /// A copy of `CLOCK.now` without a `RefCell`: it is asked for some twenty times in a proxied request.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static CLOCK: Cell<LoopClock> = const {
        Cell::new(LoopClock {
            now: None,
            at: ClockTick { tick: 0, beyond: 0 },
            wall_base: 0,
            wall_synced: 0,
        })
    };
}

/// An instant as timers count it. To compare two of these costs a third of what it costs to subtract instants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockTick {
    /// Milliseconds since the epoch.
    pub(crate) tick: u64,
    /// Nanoseconds beyond them.
    pub(crate) beyond: u32,
}

impl ClockTick {
    /// Nanoseconds since an earlier one.
    pub(crate) fn since(self, earlier: ClockTick) -> u64 {
        let ticks = self.tick.saturating_sub(earlier.tick);
        let nanos = ticks * u64::from(NANOS_PER_TICK) + u64::from(self.beyond);
        nanos.saturating_sub(u64::from(earlier.beyond))
    }
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    // Some seconds before the first reading, so that tick 0 means "long ago" and never "now".
    *EPOCH.get_or_init(|| {
        let now = read_clock();
        now.checked_sub(Duration::from_secs(10)).unwrap_or(now)
    })
}

/// A tick is a millisecond.
pub(crate) const NANOS_PER_TICK: u32 = 1_000_000;

/// The tick of an instant.
#[inline]
pub(crate) fn tick_of(instant: Instant) -> ClockTick {
    let since = instant.saturating_duration_since(epoch());
    let nanos = since.subsec_nanos();
    ClockTick {
        tick: since.as_secs() * 1000 + u64::from(nanos / NANOS_PER_TICK),
        beyond: nanos % NANOS_PER_TICK,
    }
}

fn unix_millis() -> u64 {
    let since = read_wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The present tick by the real clock.
pub(crate) fn real_tick() -> u64 {
    tick_of(read_clock()).tick
}

/// The tick of this turn.
#[inline]
pub(crate) fn tick() -> u64 {
    let clock = CLOCK.get();
    if clock.now.is_some() {
        clock.at.tick
    } else {
        real_tick()
    }
}

/// [`tick`], with the nanoseconds beyond it.
#[inline]
pub(crate) fn exact_tick() -> ClockTick {
    let clock = CLOCK.get();
    match clock.now {
        Some(_) => clock.at,
        None => tick_of(read_clock()),
    }
}

/// Sets this thread's clock.
pub(crate) fn set_now(now: Instant) {
    let mut clock = CLOCK.get();
    clock.at = tick_of(now);
    if clock.now.is_none() || clock.at.tick - clock.wall_synced >= WALL_SYNC_TICKS {
        clock.wall_base = unix_millis().saturating_sub(clock.at.tick);
        clock.wall_synced = clock.at.tick;
    }
    clock.now = Some(now);
    NOW.set(clock.now);
    CLOCK.set(clock);
}

/// The loop of this thread has ended.
pub(crate) fn clear_now() {
    let mut clock = CLOCK.get();
    clock.now = None;
    NOW.set(None);
    CLOCK.set(clock);
}

/// The time at which this turn of the loop began (the real time on a thread without a loop).
#[inline]
pub fn now() -> Instant {
    NOW.get().unwrap_or_else(read_clock)
}

/// Milliseconds of the monotonic clock since a moment some seconds before the start of the process, as of this turn:
/// one scale for all threads.
pub fn monotonic_millis() -> u64 {
    tick()
}

/// Milliseconds since the Unix epoch, as of this turn.
pub fn wall_millis() -> u64 {
    let clock = CLOCK.get();
    if clock.now.is_some() {
        clock.wall_base + clock.at.tick
    } else {
        unix_millis()
    }
}

/// The wall clock, as of this turn, to the millisecond.
pub fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(wall_millis())
}

/// The monotonic clock at this moment: about 20 ns.
#[inline]
pub fn read_clock() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::clock::read() {
        return now;
    }
    Instant::now()
}

/// Milliseconds of the monotonic clock since the machine was started: the same in all processes.
pub fn machine_millis() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1000 + nanos / 1_000_000
}

/// The wall clock at this moment, which may be set.
#[inline]
pub fn read_wall() -> SystemTime {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::clock::read_wall() {
        return now;
    }
    SystemTime::now()
}

/// The time that has passed since `begun`.
#[inline]
pub fn elapsed(begun: Instant) -> Duration {
    read_clock().saturating_duration_since(begun)
}
