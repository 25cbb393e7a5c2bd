//! The tasks that serve connections, used again and again.
//!
//! The future of a connection is large (18 KB: it has room for whatever may happen in a request), and
//! to make one costs an allocation and a copy of all of it, more than reading and answering a small
//! request does. So a task whose connection has ended waits for the next one, up to [`MAX_WAITING`] of them.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::connection::{self, AcceptedConnection};
use crate::connection_transfer::ConnectionState;
use crate::engine::LoopConnections;

/// ConnectionTasks that wait for a connection at most: about a megabyte for each loop.
const MAX_WAITING: usize = 64;

/// What a task is to serve. The state is that of a connection that has moved: rare, and what every task is to serve is copied
/// a few times on its way into it.
type Assignment = (AcceptedConnection, Option<Box<ConnectionState>>);

/// A task that serves one connection after the other.
pub(crate) struct ConnectionTask {
    assignment: Cell<Option<Assignment>>,
    /// Wakes the task while it has no work.
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

    async fn next(&self) -> Assignment {
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

/// The tasks of a loop that have nothing to do.
#[derive(Default)]
pub(crate) struct ConnectionTasks {
    waiting: RefCell<Vec<Rc<ConnectionTask>>>,
    closed: Cell<bool>,
}

impl ConnectionTasks {
    /// Lets a task serve a connection.
    pub(crate) fn serve(
        &self,
        engine: &Rc<LoopConnections>,
        assignment: Assignment,
    ) -> Rc<ConnectionTask> {
        let waiting = self.waiting.borrow_mut().pop();
        if let Some(serving) = waiting {
            serving.assignment.set(Some(assignment));
            if let Some(waker) = serving.waker.take() {
                waker.wake();
            }
            return serving;
        }
        let serving = Rc::new(ConnectionTask {
            assignment: Cell::new(Some(assignment)),
            waker: Cell::new(None),
            task: OnceCell::new(),
        });
        let task = serve_all(Rc::clone(engine), Rc::clone(&serving));
        // It was just made, so it has none.
        let _ = serving.task.set(rt::spawn_handle("http connection", task));
        serving
    }

    /// Ends the tasks that wait; those that serve end with their connection.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        for serving in self.waiting.take() {
            serving.abort();
        }
    }

    fn put_back(&self, serving: &Rc<ConnectionTask>) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let room = !self.closed.get() && waiting.len() < MAX_WAITING;
        if room {
            waiting.push(Rc::clone(serving));
        }
        room
    }
}

async fn serve_all(engine: Rc<LoopConnections>, serving: Rc<ConnectionTask>) {
    loop {
        let (accepted, state) = serving.next().await;
        let engine_of_this = Rc::clone(&engine);
        match state {
            None => connection::serve_accepted(engine_of_this, accepted).await,
            // Rare: not worth a place in every task.
            Some(state) => {
                Box::pin(connection::resume_moved(engine_of_this, accepted, *state)).await;
            }
        }
        if !engine.tasks.put_back(&serving) {
            return;
        }
    }
}
