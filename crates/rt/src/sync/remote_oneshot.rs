//! One value from any thread to a task of a loop.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::ChannelClosed;
use base::sync::{Mutex, MutexGuard};

enum RemoteState<T> {
    Waiting(Option<Waker>),
    Sent(T),
    Closed,
}

struct RemoteSlot<T>(Mutex<RemoteState<T>>);

impl<T> RemoteSlot<T> {
    fn state(&self) -> MutexGuard<'_, RemoteState<T>> {
        // No code of ours panics while it holds the lock.
        self.0.lock()
    }

    fn close(&self) {
        let mut state = self.state();
        if let RemoteState::Waiting(waker) = &mut *state {
            let waker = waker.take();
            *state = RemoteState::Closed;
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// Sends the value, on any thread.
pub struct RemoteSender<T>(Arc<RemoteSlot<T>>);

/// Waits for the value.
pub struct RemoteReceiver<T>(Arc<RemoteSlot<T>>);

/// A connected pair.
pub fn channel<T: Send>() -> (RemoteSender<T>, RemoteReceiver<T>) {
    let slot = Arc::new(RemoteSlot(Mutex::new(RemoteState::Waiting(None))));
    (RemoteSender(Arc::clone(&slot)), RemoteReceiver(slot))
}

impl<T> RemoteSender<T> {
    /// Sends the value, or returns it if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut state = self.0.state();
        let RemoteState::Waiting(waker) = &mut *state else {
            return Err(value);
        };
        let waker = waker.take();
        *state = RemoteState::Sent(value);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Whether the receiver is gone: the work may be left undone.
    pub fn is_closed(&self) -> bool {
        matches!(*self.0.state(), RemoteState::Closed)
    }
}

impl<T> Drop for RemoteSender<T> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl<T> Drop for RemoteReceiver<T> {
    fn drop(&mut self) {
        let unread = std::mem::replace(&mut *self.0.state(), RemoteState::Closed);
        drop(unread);
    }
}

impl<T> Future for RemoteReceiver<T> {
    type Output = Result<T, ChannelClosed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.state();
        if let RemoteState::Waiting(waker) = &mut *state {
            match waker {
                Some(old) if old.will_wake(cx.waker()) => {}
                _ => *waker = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, RemoteState::Closed) {
            RemoteState::Sent(value) => Poll::Ready(Ok(value)),
            RemoteState::Waiting(_) | RemoteState::Closed => Poll::Ready(Err(ChannelClosed)),
        }
    }
}
