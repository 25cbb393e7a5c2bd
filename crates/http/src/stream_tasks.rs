//! The tasks that serve the streams of an HTTP/2 or HTTP/3 connection, reused.
//!
//! The future of a request is large: it has room for most of what may happen to one, and is more than the allocator keeps at
//! hand. Making and freeing one cost a tenth of a small request. So a task whose request has ended waits for the next stream of
//! its connection; when that has been idle for a second they all go.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

/// How many tasks of a connection wait for a stream at most.
const MOST_WAITING: usize = 32;

/// A task that serves one stream after another.
pub(crate) struct StreamTask<S> {
    /// The stream that it has to serve next, and what it begins with.
    assignment: RefCell<Option<S>>,
    /// Wakes the task while it waits for one.
    waker: RefCell<Option<Waker>>,
    task: OnceCell<rt::JoinHandle<()>>,
}

impl<S> StreamTask<S> {
    /// The next stream.
    pub(crate) async fn next(&self) -> S {
        std::future::poll_fn(|context| match self.assignment.take() {
            Some(stream) => Poll::Ready(stream),
            None => {
                let mut waker = self.waker.borrow_mut();
                match &mut *waker {
                    Some(known) => known.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        })
        .await
    }

    fn is_finished(&self) -> bool {
        self.task.get().is_none_or(rt::JoinHandle::is_finished)
    }

    fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// The tasks of a connection.
pub(crate) struct StreamTasks<S> {
    all: RefCell<Vec<Rc<StreamTask<S>>>>,
    /// Those of them that have no stream.
    waiting: RefCell<Vec<Rc<StreamTask<S>>>>,
    /// The connection is over.
    closed: Cell<bool>,
}

impl<S> Default for StreamTasks<S> {
    fn default() -> StreamTasks<S> {
        StreamTasks {
            all: RefCell::default(),
            waiting: RefCell::default(),
            closed: Cell::new(false),
        }
    }
}

impl<S: 'static> StreamTasks<S> {
    /// Has a waiting task, or a new one that `serve` makes, serve a stream.
    pub(crate) fn assign_stream<F>(
        &self,
        name: &'static str,
        stream: S,
        rank: rt::TaskRank,
        serve: impl FnOnce(Rc<StreamTask<S>>) -> F,
    ) where
        F: Future<Output = ()> + 'static,
    {
        // The one that ended last: its future is most likely still in the processor's cache.
        let waiting = self.waiting.borrow_mut().pop();
        if let Some(serving) = waiting {
            serving.assignment.replace(Some(stream));
            if let Some(waker) = &*serving.waker.borrow() {
                waker.wake_by_ref();
            }
            return;
        }
        let serving = Rc::new(StreamTask {
            assignment: RefCell::new(Some(stream)),
            waker: RefCell::default(),
            task: OnceCell::new(),
        });
        let task = rt::spawn_ranked(name, rank, serve(Rc::clone(&serving)));
        // The cell was made above, so it is empty.
        let _ = serving.task.set(task);
        self.all.borrow_mut().push(serving);
    }

    /// Keeps a task whose stream has ended, unless enough are kept or no stream will come: `false`.
    pub(crate) fn keep_task(&self, serving: &Rc<StreamTask<S>>) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let has_room = !self.closed.get() && waiting.len() < MOST_WAITING;
        if has_room {
            waiting.push(Rc::clone(serving));
        }
        has_room
    }

    /// Forgets tasks that have ended; `streams` is how many are being served.
    pub(crate) fn forget_ended(&self, streams: usize) {
        let mut all = self.all.borrow_mut();
        // Each waits or serves a stream: only then there are others.
        if all.len() > streams + self.waiting.borrow().len() {
            all.retain(|serving| !serving.is_finished());
        }
    }

    /// Changes the rank of all.
    pub(crate) fn set_rank(&self, rank: rt::TaskRank) {
        for task in self.all.borrow().iter().filter_map(|one| one.task.get()) {
            task.set_rank(rank);
        }
    }

    /// Ends the tasks that wait.
    pub(crate) fn end_waiting(&self) {
        for serving in self.waiting.take() {
            serving.abort();
        }
        self.all
            .borrow_mut()
            .retain(|serving| !serving.is_finished());
    }

    /// Ends all of them, with the streams that they serve.
    pub(crate) fn abort_all(&self) {
        self.closed.set(true);
        drop(self.waiting.take());
        // Out of its cell first: what is dropped may look into it.
        for serving in self.all.take() {
            serving.abort();
        }
    }
}
