//! What a coroutine may wait for.

use std::future::Future;
use std::pin::Pin;

use bstr::BString;

use crate::luajit::Value;

/// What a waiting coroutine is handed when it goes on.
pub(crate) type Reply = Vec<Value>;

/// Something that takes time and needs no request.
pub(crate) type Task = Pin<Box<dyn Future<Output = Reply>>>;

/// What a coroutine waits for, or what the whole run is to come to.
pub(crate) enum Operation {
    /// Something that takes time.
    Task(Task),
    /// The request's content.
    ReadBody,
    /// That what was said so far is sent.
    Flush,
    /// The first of these light threads to end.
    Threads(Vec<usize>),
    /// Nothing but that the light thread which it began runs first.
    Begin(Value),
    /// Nothing but that what the script has ended is gone before it goes on.
    Settle(Value),
    /// The end of the run, with nginx's code.
    Exit(i32),
    /// The request goes elsewhere: a path and arguments, or a named location.
    Exec(BString, BString),
    /// The rewrite phase ends, and the location is chosen again.
    Jump,
}

impl Operation {
    /// A task.
    pub(crate) fn task(future: impl Future<Output = Reply> + 'static) -> Operation {
        Operation::Task(Box::pin(future))
    }
}
