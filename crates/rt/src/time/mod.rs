//! The clock and the timers of a loop.
//!
//! The clock is read once a turn; [`now`] and [`wall_millis`] give what it said then. Timers are as
//! fine as a tick, a millisecond; they never fire early by the loop's clock. A [`Timer`] that is set
//! again and again (an idle timeout at each request) costs a store: its entry stays where it is in the
//! wheel, and is moved only when the wheel comes to it and finds that it was put off.

mod wheel;

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
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
    /// Milliseconds since the Unix epoch at tick 0.
    wall_base: u64,
    wall_synced: u64,
}

thread_local! {
    static CLOCK: Cell<Clock> = const {
        Cell::new(Clock { now: None, tick: 0, wall_base: 0, wall_synced: 0 })
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

fn tick_of(instant: Instant) -> u64 {
    u64::try_from(instant.saturating_duration_since(epoch()).as_millis()).unwrap_or(NEVER)
}

fn unix_millis() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The present tick by the real clock.
pub(crate) fn real_tick() -> u64 {
    tick_of(Instant::now())
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
    clock.tick = tick_of(now);
    if clock.now.is_none() || clock.tick - clock.wall_synced >= WALL_SYNC_TICKS {
        clock.wall_base = unix_millis().saturating_sub(clock.tick);
        clock.wall_synced = clock.tick;
    }
    clock.now = Some(now);
    CLOCK.set(clock);
}

/// This thread has no loop any more.
pub(crate) fn clear_now() {
    let mut clock = CLOCK.get();
    clock.now = None;
    CLOCK.set(clock);
}

/// The time at which this turn of the loop began (the real time on a thread without a loop).
pub fn now() -> Instant {
    CLOCK.get().now.unwrap_or_else(Instant::now)
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
#[derive(Default)]
pub struct Timer {
    key: Cell<Option<Key>>,
    deadline: Cell<Option<u64>>,
    loop_id: Cell<u64>,
}

impl Timer {
    /// A timer that is not set.
    pub const fn new() -> Self {
        Self {
            key: Cell::new(None),
            deadline: Cell::new(None),
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
        self.set_at(now().checked_add(duration));
    }

    /// Sets it to fire at `deadline`.
    pub fn set_deadline(&self, deadline: Instant) {
        self.set_at(Some(deadline));
    }

    fn set_at(&self, deadline: Option<Instant>) {
        // Rounded up, so that it never fires early.
        let tick = deadline.map_or(NEVER, |at| tick_of(at + Duration::from_micros(999)));
        self.deadline.set(Some(tick));
        if let Some(key) = self.key.get() {
            event_loop::try_with(|core| core.wheel.borrow_mut().put_off(key, tick));
        }
    }

    /// Unsets it.
    pub fn clear(&self) {
        self.deadline.set(None);
        if let Some(key) = self.key.get() {
            event_loop::try_with(|core| core.wheel.borrow_mut().put_off(key, NEVER));
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.deadline.get().is_some()
    }

    /// Whether it is set and its time has come.
    pub fn is_expired(&self) -> bool {
        self.deadline
            .get()
            .is_some_and(|deadline| deadline <= tick())
    }

    /// Ready once it is set and its time has come; the task is woken then. A timer that is not set
    /// keeps the task waiting until someone sets it and the time comes. It stays expired until it is
    /// set again or cleared.
    pub fn poll_expired(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_expired() {
            return Poll::Ready(());
        }
        let deadline = self.deadline.get().unwrap_or(NEVER);
        event_loop::with(|core| {
            let mut wheel = core.wheel.borrow_mut();
            let key = self.key.get().unwrap_or_else(|| {
                let key = wheel.create();
                self.key.set(Some(key));
                self.loop_id.set(core.shared.id);
                key
            });
            wheel.wait(key, deadline, cx.waker());
        });
        Poll::Pending
    }

    /// Waits until it expires.
    pub async fn expired(&self) {
        std::future::poll_fn(|cx| self.poll_expired(cx)).await;
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key.get() {
            event_loop::try_with(|core| {
                if core.shared.id == self.loop_id.get() {
                    core.wheel.borrow_mut().remove(key);
                }
            });
        }
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
