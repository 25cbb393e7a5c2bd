//! The clock and the timers of a loop.
//!
//! The clock is read once a turn; [`now`] and [`wall_millis`] give what it said then. Timers are as
//! fine as a tick, a millisecond; they never fire early by the loop's clock. A [`Timer`] that is set
//! again and again (an idle timeout at each request) costs a store: its entry stays where it is in the
//! wheel until the wheel comes to it.

mod wheel;

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, RawWakerVTable};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::event_loop;
use wheel::Key;
pub(crate) use wheel::Wheel;

/// Ticks between two looks at the wall clock, which may be set or drift against the monotonic one.
const WALL_SYNC_TICKS: u64 = 100;

/// Further than any timer: "no deadline".
const NEVER: u64 = u64::MAX;

#[derive(Clone, Copy)]
struct Clock {
    /// `None` on threads without a loop: they read the clock each time.
    now: Option<Instant>,
    tick: u64,
    /// Nanoseconds of `now` beyond `tick`.
    beyond: u32,
    /// Milliseconds since the Unix epoch at tick 0.
    wall_base: u64,
    wall_synced: u64,
}

thread_local! {
    /// What `CLOCK.now` says, by itself: it is asked for some twenty times in a proxied request.
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static CLOCK: Cell<Clock> = const {
        Cell::new(Clock { now: None, tick: 0, beyond: 0, wall_base: 0, wall_synced: 0 })
    };
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    // Some seconds before the first reading, so that tick 0 means "long ago" and never "now".
    *EPOCH.get_or_init(|| {
        let now = Instant::now();
        now.checked_sub(Duration::from_secs(10)).unwrap_or(now)
    })
}

const NANOS_PER_TICK: u32 = 1_000_000;

/// The tick of an instant, and the nanoseconds beyond it.
pub(crate) fn tick_of(instant: Instant) -> (u64, u32) {
    let since = instant.saturating_duration_since(epoch());
    let nanos = since.subsec_nanos();
    (
        since.as_secs() * 1000 + u64::from(nanos / NANOS_PER_TICK),
        nanos % NANOS_PER_TICK,
    )
}

fn unix_millis() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The present tick by the real clock.
pub(crate) fn real_tick() -> u64 {
    tick_of(Instant::now()).0
}

/// The tick of this turn.
pub(crate) fn tick() -> u64 {
    let clock = CLOCK.get();
    if clock.now.is_some() {
        clock.tick
    } else {
        real_tick()
    }
}

/// Sets this thread's clock.
pub(crate) fn set_now(now: Instant) {
    let mut clock = CLOCK.get();
    (clock.tick, clock.beyond) = tick_of(now);
    if clock.now.is_none() || clock.tick - clock.wall_synced >= WALL_SYNC_TICKS {
        clock.wall_base = unix_millis().saturating_sub(clock.tick);
        clock.wall_synced = clock.tick;
    }
    clock.now = Some(now);
    NOW.set(clock.now);
    CLOCK.set(clock);
}

/// This thread has no loop any more.
pub(crate) fn clear_now() {
    let mut clock = CLOCK.get();
    clock.now = None;
    NOW.set(None);
    CLOCK.set(clock);
}

/// The time at which this turn of the loop began (the real time on a thread without a loop).
#[inline]
pub fn now() -> Instant {
    NOW.get().unwrap_or_else(Instant::now)
}

/// Milliseconds of the monotonic clock since a moment some seconds before the start of the process, as of this turn: one
/// scale for all threads.
pub fn monotonic_millis() -> u64 {
    tick()
}

/// Milliseconds since the Unix epoch, as of this turn.
pub fn wall_millis() -> u64 {
    let clock = CLOCK.get();
    if clock.now.is_some() {
        clock.wall_base + clock.tick
    } else {
        unix_millis()
    }
}

/// The wall clock, as of this turn, to the millisecond.
pub fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(wall_millis())
}

/// A timeout that is set many times: see the module's page.
///
/// Its owner's deadline is here; the wheel has an entry only while a task waits, which comes up at
/// `due`, not later than the deadline. When it comes up too early, because the deadline was put off
/// meanwhile, the task is woken for nothing and lays the entry again: once for each period of the
/// timeout, against a touch of the wheel at each request.
pub struct Timer {
    /// The tick at which it expires.
    deadline: Cell<u64>,
    /// The tick at which its entry comes up; [`NEVER`] if it has none in the wheel.
    due: Cell<u64>,
    /// Whom the entry wakes. Only compared; the entry keeps the waker, so that no other can come to be
    /// at the same address.
    waker: Cell<(*const (), *const RawWakerVTable)>,
    key: Cell<Option<Key>>,
    loop_id: Cell<u64>,
}

impl Timer {
    /// A timer that is not set.
    pub const fn new() -> Self {
        Self {
            deadline: Cell::new(NEVER),
            due: Cell::new(NEVER),
            waker: Cell::new((std::ptr::null(), std::ptr::null())),
            key: Cell::new(None),
            loop_id: Cell::new(0),
        }
    }

    /// A timer set to fire after `duration`.
    pub fn after(duration: Duration) -> Self {
        let timer = Self::new();
        timer.set(duration);
        timer
    }

    /// Sets it to fire `duration` after [`now`], in place of what it was set to.
    pub fn set(&self, duration: Duration) {
        let mut clock = CLOCK.get();
        if clock.now.is_none() {
            (clock.tick, clock.beyond) = tick_of(Instant::now());
        }
        // Rounded up, so that it never fires early.
        let nanos = u64::from(duration.subsec_nanos()) + u64::from(clock.beyond);
        let ticks = nanos.div_ceil(NANOS_PER_TICK.into());
        let whole = duration.as_secs().saturating_mul(1000);
        self.set_tick(clock.tick.saturating_add(whole).saturating_add(ticks));
    }

    /// Sets it to fire at `deadline`.
    pub fn set_deadline(&self, deadline: Instant) {
        let (tick, beyond) = tick_of(deadline);
        self.set_tick(tick + u64::from(beyond > 0));
    }

    fn set_tick(&self, deadline: u64) {
        self.deadline.set(deadline);
        let due = self.due.get();
        if due != NEVER && deadline < due {
            // Earlier than the entry: it must be laid again, for the task that waits.
            self.with_wheel(|wheel, key| self.due.set(wheel.lay(key, deadline)));
        }
    }

    /// Unsets it.
    pub fn clear(&self) {
        self.deadline.set(NEVER);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.deadline.get() != NEVER
    }

    /// Whether it is set and its time has come.
    pub fn is_expired(&self) -> bool {
        self.deadline.get() <= tick()
    }

    /// Ready once it is set and its time has come; the task is woken then. A timer that is not set
    /// keeps the task waiting until somebody sets it and the time comes. It stays expired until it is
    /// set again or cleared.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        let (tick, deadline, due) = (tick(), self.deadline.get(), self.due.get());
        if deadline <= tick {
            return Poll::Ready(());
        }
        let waker = cx.waker();
        let same = self.waker.get() == (waker.data(), std::ptr::from_ref(waker.vtable()));
        if same && due > tick && due <= deadline && due != NEVER {
            return Poll::Pending;
        }
        self.create_entry();
        self.with_wheel(|wheel, key| {
            wheel.set_waker(key, waker);
            // One that is not set has its entry at the horizon: `set_tick` will lay it again.
            self.due.set(wheel.lay(key, deadline));
        });
        self.waker
            .set((waker.data(), std::ptr::from_ref(waker.vtable())));
        Poll::Pending
    }

    /// Makes its entry, unless it has one: in the wheel of this loop, not in that of a loop that ran on
    /// this thread before.
    fn create_entry(&self) {
        event_loop::with(|core| {
            if self.key.get().is_none() || self.loop_id.get() != core.shared.id {
                self.key.set(Some(core.wheel.borrow_mut().create()));
                self.loop_id.set(core.shared.id);
            }
        });
    }

    /// Does something with its entry, if it has one on this thread's loop.
    fn with_wheel(&self, f: impl FnOnce(&mut Wheel, Key)) {
        let Some(key) = self.key.get() else { return };
        event_loop::try_with(|core| {
            if core.shared.id == self.loop_id.get() {
                f(&mut core.wheel.borrow_mut(), key);
            }
        });
    }

    /// Waits until it expires.
    pub async fn expired(&self) {
        std::future::poll_fn(|cx| self.poll_expired(cx)).await;
    }
}

impl Default for Timer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.with_wheel(Wheel::remove);
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer")
            .field("deadline", &self.deadline.get())
            .finish_non_exhaustive()
    }
}

/// Waits for `duration`.
pub fn sleep(duration: Duration) -> Sleep {
    Sleep {
        timer: Timer::after(duration),
    }
}

/// Waits until `deadline`.
pub fn sleep_until(deadline: Instant) -> Sleep {
    let timer = Timer::new();
    timer.set_deadline(deadline);
    Sleep { timer }
}

/// See [`sleep`].
#[derive(Debug)]
pub struct Sleep {
    timer: Timer,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.timer.poll_expired(cx)
    }
}

/// The time of [`timeout`] is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(_: Elapsed) -> Self {
        std::io::ErrorKind::TimedOut.into()
    }
}

/// Gives `future` no longer than `duration`; it is dropped when the time is over.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let timer = Timer::after(duration);
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(move |cx| {
        // The future first: what is done is done, however late.
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        timer.poll_expired(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Fires again and again, a fixed time after the last time it fired.
#[derive(Debug)]
pub struct Interval {
    timer: Timer,
    period: Duration,
}

impl Interval {
    /// Fires first after `period`.
    pub fn new(period: Duration) -> Self {
        Self {
            timer: Timer::after(period),
            period,
        }
    }

    /// Waits for the next time.
    pub async fn tick(&self) {
        self.timer.expired().await;
        self.timer.set(self.period);
    }
}
