//! One value from any thread to a task of a loop.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::Closed;
use base::sync::{Mutex, MutexGuard};

enum State<T> {
    Waiting(Option<Waker>),
    Sent(T),
    Closed,
}

struct Slot<T>(Mutex<State<T>>);

impl<T> Slot<T> {
    fn state(&self) -> MutexGuard<'_, State<T>> {
        // No code of ours panics while it holds the lock.
        self.0.lock()
    }

    fn close(&self) {
        let mut state = self.state();
        if let State::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = State::Closed;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Sends the value, on any thread.
pub struct Sender<T>(Arc<Slot<T>>);

/// Waits for the value.
pub struct Receiver<T>(Arc<Slot<T>>);

/// A connected pair.
pub fn channel<T: Send>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    (Sender(Arc::clone(&slot)), Receiver(slot))
}

impl<T> Sender<T> {
    /// Sends the value, or returns it if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.0.state();
        let State::Waiting(waker) = &mut *state else {
            return Err(value);
        };
        let waker = waker.take();
        *state = State::Sent(value);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Whether the receiver is gone: the work may be left undone.
    pub fn is_closed(&self) -> bool {
        matches!(*self.0.state(), State::Closed)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = std::mem::replace(&mut *self.0.state(), State::Closed);
        drop(unread);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Closed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(old) if old.will_wake(cx.waker()) => {}
                _ => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Closed) {
            State::Sent(value) => Poll::Ready(Ok(value)),
            State::Waiting(_) | State::Closed => Poll::Ready(Err(Closed)),
        }
    }
}
