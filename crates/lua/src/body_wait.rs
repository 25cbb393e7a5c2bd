//! `ngx.req.read_body` while the script's other coroutines go on: the body is read between polls of the run, since both
//! need the request.

use std::task::{Context, Poll, ready};

use http::Request;
use http::body_reader::BodyReading;

use crate::run::ScriptRun;

/// The coroutines of a run that wait for the request body.
#[derive(Default)]
pub(crate) struct BodyWait {
    /// `None` while none of them waits.
    reading: Option<BodyReading>,
    threads: Vec<usize>,
}

impl BodyWait {
    /// Another coroutine waits.
    pub(crate) fn add(&mut self, request: &mut Request, thread: usize) {
        self.threads.push(thread);
        self.reading
            .get_or_insert_with(|| BodyReading::new(request).with_named_file());
    }

    /// Whether a coroutine waits.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Ready when the coroutines can go on. The error is the status to answer with; it has been logged.
    pub(crate) fn poll(
        &mut self,
        request: &mut Request,
        run: &mut ScriptRun,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), u16>> {
        let Some(reading) = &mut self.reading else {
            return Poll::Pending;
        };
        let result = ready!(reading.poll(request, context));
        self.release(run);
        Poll::Ready(result)
    }

    /// Lets the coroutines go on, whether the body is there or not.
    pub(crate) fn release(&mut self, run: &mut ScriptRun) {
        self.reading = None;
        for thread in self.threads.drain(..) {
            run.resume_with(thread, Vec::new());
        }
    }
}
