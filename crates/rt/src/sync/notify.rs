//! Wakes tasks of this loop: one, in the order in which they came, or all.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A place where tasks wait to be told that something changed.
///
/// A [`Notify::notify_one`] without a waiting task is kept for the next one that waits; [`Notify::notify_all`] is
/// not kept.
#[derive(Default)]
pub struct Notify {
    waiting: RefCell<VecDeque<Rc<NotifyWaiter>>>,
    kept: Cell<bool>,
}

#[derive(Default)]
struct NotifyWaiter {
    notified: Cell<bool>,
    gone: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Notify {
    /// A place without waiting tasks.
    pub const fn new() -> Self {
        Self {
            waiting: RefCell::new(VecDeque::new()),
            kept: Cell::new(false),
        }
    }

    /// Wakes the one that has waited longest, or the next to come.
    pub fn notify_one(&self) {
        if !self.wake_next() {
            self.kept.set(true);
        }
    }

    /// Wakes all that wait now.
    pub fn notify_all(&self) {
        let waiting = self.waiting.take();
        for one in waiting {
            one.tell();
        }
    }

    fn wake_next(&self) -> bool {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            match next {
                Some(one) if one.gone.get() => {}
                Some(one) => {
                    one.tell();
                    return true;
                }
                None => return false,
            }
        }
    }

    /// Waits for a notification. The task counts as waiting from now on, before the first poll.
    pub fn notified(&self) -> Notified<'_> {
        let waiting = Rc::new(NotifyWaiter::default());
        if self.kept.take() {
            waiting.notified.set(true);
        } else {
            self.waiting.borrow_mut().push_back(Rc::clone(&waiting));
        }
        Notified {
            notify: self,
            waiting,
            done: false,
        }
    }

    /// Whether a task waits.
    pub fn has_waiters(&self) -> bool {
        self.waiting.borrow().iter().any(|one| !one.gone.get())
    }
}

impl NotifyWaiter {
    fn tell(&self) {
        self.notified.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// See [`Notify::notified`].
pub struct Notified<'a> {
    notify: &'a Notify,
    waiting: Rc<NotifyWaiter>,
    done: bool,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.waiting.notified.get() {
            self.done = true;
            return Poll::Ready(());
        }
        *self.waiting.waker.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Notified<'_> {
    fn drop(&mut self) {
        self.waiting.gone.set(true);
        if self.done {
            return;
        }
        if self.waiting.notified.get() {
            // Notified, but dropped before it could look: the notification goes to the next task.
            self.notify.notify_one();
            return;
        }
        // Entries of dropped tasks are removed from the front, so the queue is bounded by the waiting tasks, unless
        // one at the front waits for very long; then the queue is swept when half of it is dead.
        let mut waiting = self.notify.waiting.borrow_mut();
        while waiting.front().is_some_and(|one| one.gone.get()) {
            waiting.pop_front();
        }
        if waiting.len() >= 32 && waiting.len().is_power_of_two() {
            waiting.retain(|one| !one.gone.get());
        }
    }
}
