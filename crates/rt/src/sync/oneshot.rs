//! One value from one task of this loop to another.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::ChannelClosed;

struct OneshotSlot<T> {
    value: Cell<Option<T>>,
    closed: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
    sender: RefCell<Option<Waker>>,
}

/// Sends the value.
pub struct OneshotSender<T>(Rc<OneshotSlot<T>>);

/// Waits for the value.
pub struct OneshotReceiver<T>(Rc<OneshotSlot<T>>);

/// A connected pair.
pub fn channel<T>() -> (OneshotSender<T>, OneshotReceiver<T>) {
    let slot = Rc::new(OneshotSlot {
        value: Cell::new(None),
        closed: Cell::new(false),
        receiver: RefCell::new(None),
        sender: RefCell::new(None),
    });
    (OneshotSender(Rc::clone(&slot)), OneshotReceiver(slot))
}

impl<T> OneshotSender<T> {
    /// Sends the value, or returns it if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        if self.0.closed.get() {
            return Err(value);
        }
        self.0.value.set(Some(value));
        Ok(())
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }

    /// Ready when the receiver is gone.
    pub fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.closed.get() {
            return Poll::Ready(());
        }
        *self.0.sender.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for OneshotSender<T> {
    fn drop(&mut self) {
        self.0.closed.set(true);
        if let Some(waker) = self.0.receiver.take() {
            waker.wake();
        }
    }
}

impl<T> Drop for OneshotReceiver<T> {
    fn drop(&mut self) {
        self.0.closed.set(true);
        if let Some(waker) = self.0.sender.take() {
            waker.wake();
        }
    }
}

impl<T> Future for OneshotReceiver<T> {
    type Output = Result<T, ChannelClosed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(value) = self.0.value.take() {
            return Poll::Ready(Ok(value));
        }
        if self.0.closed.get() {
            return Poll::Ready(Err(ChannelClosed));
        }
        *self.0.receiver.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }
}
