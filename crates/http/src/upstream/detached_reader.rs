//! A response that is stored as a file (`…_store`) continues if its client disconnects, because the file is for other
//! clients too. nginx does not watch the clients of such responses either.

use std::task::{Context, Poll};

use super::response_reader::ResponseReader;
use crate::request::{Request, RequestPurpose};
use crate::response_body::{BodyChunk, BodyError, BodySource};

/// A reader that a task of its own reads to the end once the client's response has been dropped.
pub(super) struct DetachedReader {
    /// The reader, and the request that it continues with.
    reader: Option<(ResponseReader, Box<Request>)>,
}

impl DetachedReader {
    /// Wraps a reader that stores what it reads.
    pub(super) fn new(reader: ResponseReader, request: &Request) -> DetachedReader {
        // Made now, because the client's request no longer exists when it is needed.
        let mut own = request.fork();
        own.flow.purpose = RequestPurpose::Background;
        let record = own.upstream.get_or_make();
        record.begin_exchange();
        record.begin_try();
        DetachedReader {
            reader: Some((reader, Box::new(own))),
        }
    }
}

impl BodySource for DetachedReader {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<BodyChunk, BodyError>>> {
        let Some((reader, _)) = &mut self.reader else {
            return Poll::Ready(None);
        };
        let next = reader.poll_next(request, context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.reader = None;
        }
        next
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        if let Some((reader, _)) = &mut self.reader {
            reader.poll_ahead(request, context);
        }
    }

    fn length(&self) -> Option<u64> {
        self.reader.as_ref().and_then(|(reader, _)| reader.length())
    }

    fn may_have_trailers(&self) -> bool {
        let reader = self.reader.as_ref();
        reader.is_some_and(|(reader, _)| reader.may_have_trailers())
    }
}

impl Drop for DetachedReader {
    fn drop(&mut self) {
        let Some((mut reader, mut request)) = self.reader.take() else {
            return;
        };
        if !reader.is_saving() {
            return;
        }
        rt::spawn_named("stored response", async move {
            let next = |context: &mut Context<'_>| reader.poll_next(&mut request, context);
            let mut next = std::future::poll_fn(next);
            // What it returns has been written to the file already. Errors have been logged.
            while let Some(Ok(_)) = (&mut next).await {}
        });
    }
}
