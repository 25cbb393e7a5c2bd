//! The timers of a loop.
//!
//! They are as fine as a tick, a millisecond, and never fire early by the loop's clock ([`crate::clock`]). A [`Timer`]
//! that is set again and again (an idle timeout at each request) costs a store: its entry stays where it is in the
//! wheel until the wheel comes to it.

pub(crate) mod wheel;

use std::cell::Cell;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, RawWakerVTable};
use std::time::{Duration, Instant};

use crate::clock::{ClockTick, NANOS_PER_TICK, exact_tick, tick, tick_of};
use crate::event_loop;
use wheel::TimerKey;
use wheel::TimerWheel;

/// Further than any timer: "no deadline".
const NEVER: u64 = u64::MAX;

/// A timeout that is set many times: see the module's page.
///
/// The owner's deadline is stored here. The wheel has an entry only while a task waits; it comes up at `due`, which
/// is not later than the deadline. If the deadline was put off meanwhile, the entry comes up too early, the task is
/// woken for nothing, and the entry is made again: once per timeout period, instead of a change of the wheel for
/// each request.
pub struct Timer {
    /// The tick at which it expires.
    deadline: Cell<u64>,
    /// The tick at which its entry comes up; [`NEVER`] if it has none in the wheel.
    due: Cell<u64>,
    /// Whom the entry wakes. Only compared; the entry keeps the waker, so that no other can come to be
    /// at the same address.
    waker: Cell<(*const (), *const RawWakerVTable)>,
    key: Cell<Option<TimerKey>>,
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

    /// Sets it to fire `duration` after [`now`](crate::now), in place of what it was set to.
    pub fn set(&self, duration: Duration) {
        let ClockTick { tick, beyond } = exact_tick();
        // Rounded up, so that it never fires early.
        let nanos = u64::from(duration.subsec_nanos()) + u64::from(beyond);
        let ticks = nanos.div_ceil(NANOS_PER_TICK.into());
        let whole = duration.as_secs().saturating_mul(1000);
        self.set_tick(tick.saturating_add(whole).saturating_add(ticks));
    }

    /// Sets it to fire at `deadline`.
    pub fn set_deadline(&self, deadline: Instant) {
        let ClockTick { tick, beyond } = tick_of(deadline);
        self.set_tick(tick + u64::from(beyond > 0));
    }

    fn set_tick(&self, deadline: u64) {
        self.deadline.set(deadline);
        let due = self.due.get();
        if due != NEVER && deadline < due {
            // Earlier than the entry: it must be laid again, for the task that waits.
            self.with_wheel(|wheel, key| self.due.set(wheel.schedule_entry(key, deadline)));
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

    /// Ready once it is set and its time has come. A timer that is not set keeps the task waiting until it is set
    /// and expires. It stays expired until it is set again or cleared.
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
            self.due.set(wheel.schedule_entry(key, deadline));
        });
        self.waker
            .set((waker.data(), std::ptr::from_ref(waker.vtable())));
        Poll::Pending
    }

    /// Makes its entry, unless it has one: in the wheel of this loop, not in that of a loop that ran on
    /// this thread before.
    fn create_entry(&self) {
        event_loop::with_loop(|core| {
            if self.key.get().is_none() || self.loop_id.get() != core.shared.id {
                self.key.set(Some(core.wheel.borrow_mut().create_entry()));
                self.loop_id.set(core.shared.id);
            }
        });
    }

    /// Does something with its entry, if it has one on this thread's loop.
    fn with_wheel(&self, f: impl FnOnce(&mut TimerWheel, TimerKey)) {
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
        self.with_wheel(TimerWheel::remove);
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
        // The future is polled first: a result that is there is returned, however late.
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
