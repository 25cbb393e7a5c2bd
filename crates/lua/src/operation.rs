//! What a coroutine waits for. An API function that cannot complete at once stores one of these in
//! the scope and yields; the run takes it from there. So API functions never see the run, and the
//! run knows nothing of the API.

use std::future::Future;
use std::pin::Pin;

use bstr::BString;

use crate::luajit::LuaValue;

/// The results of the API function: what the coroutine is resumed with.
pub(crate) type ResumeValues = Vec<LuaValue>;

/// A future that needs no request. It must own what it uses: the request is lent to the run only
/// while the run is polled.
pub(crate) type WaitTask = Pin<Box<dyn Future<Output = ResumeValues>>>;

/// What a coroutine waits for, or what the whole run comes to.
pub(crate) enum YieldOperation {
    /// A future.
    Task(WaitTask),
    /// The request body, which the driver of the run reads.
    ReadBody,
    /// The output so far to be sent.
    Flush,
    /// The first of these light threads to end.
    WaitThreads(Vec<usize>),
    /// Lets the light thread that it has spawned run first, then continues with this value.
    RunSpawned(LuaValue),
    /// Lets the light threads that it has killed be dropped, then continues with this value. Their
    /// sockets are free again afterwards.
    AfterKill(LuaValue),
    /// Ends the run with this status or return code of nginx's.
    Exit(i32),
    /// Ends the run with an internal redirect: a path and arguments, or a named location.
    Exec(BString, BString),
    /// Ends the rewrite phase; the location is looked up again.
    Jump,
}

impl YieldOperation {
    /// A future, boxed.
    pub(crate) fn task(future: impl Future<Output = ResumeValues> + 'static) -> YieldOperation {
        YieldOperation::Task(Box::pin(future))
    }
}
