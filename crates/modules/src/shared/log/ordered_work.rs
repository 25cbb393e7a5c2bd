//! A queue of work that must stay in order and off the loops, emptied by one thread at a time.
//!
//! Adding an item wakes a thread of the default pool; while one is at work, others only add. The
//! bound is on bytes: beyond it items are refused, and the caller reports the loss in the error
//! log.

use std::collections::VecDeque;
use std::sync::Arc;

use base::sync::{Mutex, MutexGuard};
use rt::pool::DeviceNumber;

/// How many bytes may wait.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// A queue and the function that processes its items.
pub(super) struct OrderedWork<T> {
    queue: Mutex<WaitingItems<T>>,
    /// Held by the thread that takes items out, until it has processed them: that preserves the
    /// order.
    running: Mutex<()>,
    work: fn(T),
}

/// The items that wait.
struct WaitingItems<T> {
    items: VecDeque<(usize, T)>,
    /// The total size of the items, which is bounded.
    bytes: usize,
    /// A pool thread has been asked for and has not yet found the queue empty, so no further one is
    /// needed.
    worker_called: bool,
}

impl<T: Send + 'static> OrderedWork<T> {
    /// An empty queue; `work` processes one item.
    pub(super) fn new(work: fn(T)) -> Arc<OrderedWork<T>> {
        let queue = WaitingItems {
            items: VecDeque::new(),
            bytes: 0,
            worker_called: false,
        };
        Arc::new(OrderedWork {
            queue: Mutex::new(queue),
            running: Mutex::new(()),
            work,
        })
    }

    /// Adds an item that accounts for `bytes` bytes. If too much waits, the item is handed back.
    pub(super) fn push(self: &Arc<Self>, bytes: usize, item: T) -> Result<(), T> {
        let mut queue = self.queue();
        // An item larger than the bound passes when the queue is empty; otherwise it could never be
        // written.
        if queue.bytes.saturating_add(bytes) > MAX_WAITING_BYTES && !queue.items.is_empty() {
            return Err(item);
        }
        queue.bytes += bytes;
        queue.items.push_back((bytes, item));
        if !std::mem::replace(&mut queue.worker_called, true) {
            // The pool may run the job at once on its own thread, which needs the lock.
            drop(queue);
            let batch = Arc::clone(self);
            rt::pool::default_pool().submit(DeviceNumber::UNKNOWN, Box::new(move || batch.drain()));
        }
        Ok(())
    }

    /// Processes everything that waits on the calling thread, after whatever another thread has
    /// begun.
    pub(super) fn drain(&self) {
        let _turn = self.running.lock();
        while let Some(item) = self.next() {
            (self.work)(item);
        }
    }

    /// The next item, or `None` if the thread may go.
    fn next(&self) -> Option<T> {
        let mut queue = self.queue();
        let Some((bytes, item)) = queue.items.pop_front() else {
            // Under the same lock as the look at the empty queue: an item added later asks for a
            // thread again.
            queue.worker_called = false;
            return None;
        };
        queue.bytes -= bytes;
        Some(item)
    }

    /// The queue, locked for a moment.
    fn queue(&self) -> MutexGuard<'_, WaitingItems<T>> {
        self.queue.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn items_are_done_in_order() {
        let (sender, receiver) = mpsc::channel();
        let batch = OrderedWork::new(|(number, sender): (u32, mpsc::Sender<u32>)| {
            sender.send(number).unwrap()
        });
        for number in 0..1000 {
            assert!(batch.push(1, (number, sender.clone())).is_ok());
        }
        for number in 0..1000 {
            assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(number));
        }
    }

    #[test]
    fn the_bound_is_on_bytes_and_one_item_always_fits() {
        let batch: Arc<OrderedWork<()>> = OrderedWork::new(|()| {});
        let _nobody_works = batch.running.lock();
        assert!(batch.push(MAX_WAITING_BYTES * 2, ()).is_ok());
        assert!(batch.push(1, ()).is_err());
    }
}
