//! A bounded queue from many tasks of this loop to one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::{ChannelClosed, Notify};

struct MpscQueue<T> {
    items: RefCell<VecDeque<T>>,
    capacity: usize,
    senders: Cell<usize>,
    receiver_gone: Cell<bool>,
    receiver: RefCell<Option<Waker>>,
    room: Notify,
}

/// Puts items in the queue.
pub struct MpscSender<T>(Rc<MpscQueue<T>>);

/// Takes items out of the queue.
pub struct MpscReceiver<T>(Rc<MpscQueue<T>>);

/// Why an item was not taken; it is given back.
#[derive(Debug, PartialEq, Eq)]
pub enum MpscSendError<T> {
    /// The receiver is gone.
    Closed(T),
    /// The queue is full.
    Full(T),
}

/// A queue for `capacity` items (at least one).
pub fn channel<T>(capacity: usize) -> (MpscSender<T>, MpscReceiver<T>) {
    let queue = Rc::new(MpscQueue {
        items: RefCell::default(),
        capacity: capacity.max(1),
        senders: Cell::new(1),
        receiver_gone: Cell::new(false),
        receiver: RefCell::default(),
        room: Notify::new(),
    });
    (MpscSender(Rc::clone(&queue)), MpscReceiver(queue))
}

impl<T> MpscQueue<T> {
    fn wake_receiver(&self) {
        if let Some(waker) = self.receiver.take() {
            waker.wake();
        }
    }
}

impl<T> MpscSender<T> {
    /// Puts an item in the queue if there is room.
    pub fn try_send(&self, item: T) -> Result<(), MpscSendError<T>> {
        if self.0.receiver_gone.get() {
            return Err(MpscSendError::Closed(item));
        }
        if self.0.items.borrow().len() >= self.0.capacity {
            return Err(MpscSendError::Full(item));
        }
        self.0.items.borrow_mut().push_back(item);
        self.0.wake_receiver();
        Ok(())
    }

    /// Waits for room and puts an item in the queue.
    pub async fn send(&self, mut item: T) -> Result<(), MpscSendError<T>> {
        loop {
            match self.try_send(item) {
                Err(MpscSendError::Full(back)) => item = back,
                other => return other,
            }
            self.0.room.notified().await;
        }
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.0.receiver_gone.get()
    }
}

impl<T> Clone for MpscSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.set(self.0.senders.get() + 1);
        Self(Rc::clone(&self.0))
    }
}

impl<T> Drop for MpscSender<T> {
    fn drop(&mut self) {
        self.0.senders.set(self.0.senders.get() - 1);
        if self.0.senders.get() == 0 {
            self.0.wake_receiver();
        }
    }
}

impl<T> MpscReceiver<T> {
    /// The next item; `Err` when the queue is empty and all senders are gone.
    pub async fn recv(&mut self) -> Result<T, ChannelClosed> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// See [`MpscReceiver::recv`].
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, ChannelClosed>> {
        if let Some(item) = self.try_recv() {
            return Poll::Ready(Ok(item));
        }
        if self.0.senders.get() == 0 {
            return Poll::Ready(Err(ChannelClosed));
        }
        *self.0.receiver.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The next item, if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        let item = self.0.items.borrow_mut().pop_front()?;
        self.0.room.notify_one();
        Some(item)
    }
}

impl<T> Drop for MpscReceiver<T> {
    fn drop(&mut self) {
        self.0.receiver_gone.set(true);
        self.0.items.take();
        self.0.room.notify_all();
    }
}
