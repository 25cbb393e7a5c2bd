//! The tasks that serve connections, reused.
//!
//! The future of a connection is large (2 KB: it has room for most of what may happen in a request). Creating one costs
//! an allocation and a copy of all of it. So a task whose connection
//! has ended waits for the next one; at most [`MAX_WAITING`] of them do.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::connection_start;
use crate::loop_connections::{LoopConnections, TablePlace};
use crate::waiting_connection::WaitingConnection;

/// How many tasks wait for a connection at most: some 150 KB for each loop.
const MAX_WAITING: usize = 64;

/// How many of them stay after a peak.
const KEPT_WAITING: usize = 8;

/// The connection that a task has to serve.
pub(crate) struct TaskAssignment {
    /// The connection.
    pub(crate) connection: WaitingConnection,
    /// Its entry in the loop's table.
    pub(crate) place: TablePlace,
}

/// A task that serves one connection after another.
pub(crate) struct ConnectionTask {
    assignment: Cell<Option<TaskAssignment>>,
    /// Wakes the task when it waits for an assignment.
    waker: Cell<Option<Waker>>,
    task: OnceCell<rt::JoinHandle<()>>,
}

impl ConnectionTask {
    /// Ends the task and the connection that it serves.
    pub(crate) fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    async fn next(&self) -> TaskAssignment {
        std::future::poll_fn(|context| match self.assignment.take() {
            Some(assignment) => Poll::Ready(assignment),
            None => {
                self.waker.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}

/// The tasks of a loop that have no connection.
#[derive(Default)]
pub(crate) struct ConnectionTasks {
    waiting: RefCell<Vec<Rc<ConnectionTask>>>,
    closed: Cell<bool>,
}

impl ConnectionTasks {
    /// Has a waiting task, or a new one, serve a connection.
    pub(crate) fn assign_connection(&self, assignment: TaskAssignment) -> Rc<ConnectionTask> {
        // The one that finished last: its future is most likely still in the processor's cache.
        let waiting = self.waiting.borrow_mut().pop();
        if let Some(serving) = waiting {
            serving.assignment.set(Some(assignment));
            if let Some(waker) = serving.waker.take() {
                waker.wake();
            }
            return serving;
        }
        let engine = Rc::clone(&assignment.place.engine);
        let serving = Rc::new(ConnectionTask {
            assignment: Cell::new(Some(assignment)),
            waker: Cell::new(None),
            task: OnceCell::new(),
        });
        let task = serve_all(engine, Rc::clone(&serving));
        // The cell was made above, so it is empty.
        let _ = serving.task.set(rt::spawn_handle("http connection", task));
        serving
    }

    /// Ends the waiting tasks. Those that serve end with their connection.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for serving in self.waiting.take() {
            serving.abort();
        }
    }

    /// Ends waiting tasks that only a peak of connections needed.
    pub(crate) fn shrink(&self) {
        let surplus = {
            let mut waiting = self.waiting.borrow_mut();
            let kept = waiting.len().min(KEPT_WAITING);
            waiting.split_off(kept)
        };
        for serving in surplus {
            serving.abort();
        }
    }

    fn put_back(&self, serving: &Rc<ConnectionTask>) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        // After the loop has stopped accepting, a waiting task would never get another connection.
        let room = !self.closed.get() && waiting.len() < MAX_WAITING;
        if room {
            waiting.push(Rc::clone(serving));
        }
        room
    }
}

/// Counts a task that serves a connection, for as long as it does.
struct CountedTask<'a>(&'a LoopConnections);

impl CountedTask<'_> {
    fn new(engine: &LoopConnections) -> CountedTask<'_> {
        let served = &engine.http.served;
        served.set(served.get() + 1);
        engine.peak.note_memory(engine.memory_in_use());
        CountedTask(engine)
    }
}

impl Drop for CountedTask<'_> {
    fn drop(&mut self) {
        let served = &self.0.http.served;
        served.set(served.get() - 1);
    }
}

async fn serve_all(engine: Rc<LoopConnections>, serving: Rc<ConnectionTask>) {
    loop {
        let TaskAssignment { connection, place } = serving.next().await;
        let _served = CountedTask::new(&engine);
        connection_start::serve_waiting(connection, place).await;
        if !engine.tasks.put_back(&serving) {
            return;
        }
    }
}
