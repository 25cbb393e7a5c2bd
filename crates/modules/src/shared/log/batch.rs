//! Work that must stay in order and off the loops: a queue that one thread at a time empties.
//!
//! Items go to a thread of the default pool; while one works, others only add to the queue. The bound is on bytes:
//! what goes beyond it is refused, and the caller says so in the error log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rt::pool::Device;

/// Bytes that may wait.
const MAX_WAITING: usize = 8 << 20;

/// A queue and what is done with its items.
pub(super) struct Batch<T> {
    queue: Mutex<Queue<T>>,
    /// Held by whoever takes items out, until they are done: that keeps the order.
    at_work: Mutex<()>,
    work: fn(T),
}

struct Queue<T> {
    items: VecDeque<(usize, T)>,
    bytes: usize,
    /// A thread has been called, and has not yet seen the queue empty.
    called: bool,
}

impl<T: Send + 'static> Batch<T> {
    pub(super) fn new(work: fn(T)) -> Arc<Batch<T>> {
        let queue = Queue {
            items: VecDeque::new(),
            bytes: 0,
            called: false,
        };
        Arc::new(Batch {
            queue: Mutex::new(queue),
            at_work: Mutex::new(()),
            work,
        })
    }

    /// Adds an item that stands for so many bytes. It is given back when too many wait.
    pub(super) fn add(self: &Arc<Self>, bytes: usize, item: T) -> Result<(), T> {
        let mut queue = self.queue();
        if queue.bytes.saturating_add(bytes) > MAX_WAITING && !queue.items.is_empty() {
            return Err(item);
        }
        queue.bytes += bytes;
        queue.items.push_back((bytes, item));
        if !std::mem::replace(&mut queue.called, true) {
            drop(queue);
            let batch = Arc::clone(self);
            rt::pool::default_pool().submit(Device::UNKNOWN, Box::new(move || batch.empty()));
        }
        Ok(())
    }

    /// Does everything that waits, on the calling thread, after what another thread has begun.
    pub(super) fn empty(&self) {
        let _turn = self.at_work.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(item) = self.next() {
            (self.work)(item);
        }
    }

    fn next(&self) -> Option<T> {
        let mut queue = self.queue();
        let Some((bytes, item)) = queue.items.pop_front() else {
            queue.called = false;
            return None;
        };
        queue.bytes -= bytes;
        Some(item)
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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
        let batch =
            Batch::new(|(number, sender): (u32, mpsc::Sender<u32>)| sender.send(number).unwrap());
        for number in 0..1000 {
            assert!(batch.add(1, (number, sender.clone())).is_ok());
        }
        for number in 0..1000 {
            assert_eq!(receiver.recv_timeout(Duration::from_secs(10)), Ok(number));
        }
    }

    #[test]
    fn the_bound_is_on_bytes_and_one_item_always_fits() {
        let batch: Arc<Batch<()>> = Batch::new(|()| {});
        let _nobody_works = batch.at_work.lock();
        assert!(batch.add(MAX_WAITING * 2, ()).is_ok());
        assert!(batch.add(1, ()).is_err());
    }
}
