//! The tasks that serve connections, used again and again.
//!
//! The future of a connection is large (18 KB: it has room for whatever may happen in a request), and
//! to make one costs an allocation and a copy of all of it, more than reading and answering a small
//! request does. So a task whose connection has ended waits for the next one, up to [`MAX_WAITING`] of them.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::connection::{self, Newcomer};
use crate::engine::HttpLoop;
use crate::moving::Facts;

/// Tasks that wait for a connection at most: about a megabyte for each loop.
const MAX_WAITING: usize = 64;

/// What a task is to serve. The facts are those of a connection that has moved: rare, and every connection's work is copied
/// a few times on its way into the task.
type Work = (Newcomer, Option<Box<Facts>>);

/// A task that serves one connection after the other.
pub(crate) struct Serving {
    work: Cell<Option<Work>>,
    /// Wakes the task while it has no work.
    waker: Cell<Option<Waker>>,
    task: OnceCell<rt::JoinHandle<()>>,
}

impl Serving {
    /// Ends the task and the connection that it serves.
    pub(crate) fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }

    async fn next(&self) -> Work {
        std::future::poll_fn(|context| match self.work.take() {
            Some(work) => Poll::Ready(work),
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
pub(crate) struct Tasks {
    waiting: RefCell<Vec<Rc<Serving>>>,
    closed: Cell<bool>,
}

impl Tasks {
    /// Lets a task serve a connection.
    pub(crate) fn serve(&self, engine: &Rc<HttpLoop>, work: Work) -> Rc<Serving> {
        let waiting = self.waiting.borrow_mut().pop();
        if let Some(serving) = waiting {
            serving.work.set(Some(work));
            if let Some(waker) = serving.waker.take() {
                waker.wake();
            }
            return serving;
        }
        let serving = Rc::new(Serving {
            work: Cell::new(Some(work)),
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

    fn put_back(&self, serving: &Rc<Serving>) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let room = !self.closed.get() && waiting.len() < MAX_WAITING;
        if room {
            waiting.push(Rc::clone(serving));
        }
        room
    }
}

async fn serve_all(engine: Rc<HttpLoop>, serving: Rc<Serving>) {
    loop {
        let (newcomer, facts) = serving.next().await;
        let engine_of_this = Rc::clone(&engine);
        match facts {
            None => connection::serve(engine_of_this, newcomer).await,
            // Rare: not worth a place in every task.
            Some(facts) => {
                Box::pin(connection::resume(engine_of_this, newcomer, *facts)).await;
            }
        }
        if !engine.tasks.put_back(&serving) {
            return;
        }
    }
}
