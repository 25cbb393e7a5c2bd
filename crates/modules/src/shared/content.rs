//! Reads any body as bytes in memory, piece by piece, for filters that have to look at the content.
//!
//! A file is read in pieces of [`READ_SIZE`] bytes: directly if the kernel has them in memory,
//! otherwise on a thread pool, because a loop must not wait for a disk.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::response_body::{BodyChunk, BodyError, FileRange, ResponseBody};

/// How much of a file is read at a time, in bytes.
const READ_SIZE: usize = 32 * 1024;

/// A body whose content is needed in memory, including the parts that would otherwise go out by
/// `sendfile`.
pub(crate) struct ContentReader {
    body: ResponseBody,
    /// What is left of the file range that is being read.
    file: Option<FileRange>,
    /// A read on the pool that has not finished.
    reading: Option<PendingRead>,
}

/// A read that a pool thread performs.
type PendingRead = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// What pulling on the body yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContentPiece {
    /// Content; never empty.
    Bytes(Bytes),
    /// The producer wants everything before this sent now; a filter that buffers must pass it on.
    Flush,
}

impl ContentReader {
    pub(crate) fn new(body: ResponseBody) -> ContentReader {
        ContentReader {
            body,
            file: None,
            reading: None,
        }
    }

    /// Pulls the next piece; `None` at the end.
    pub(crate) fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ContentPiece, BodyError>>> {
        loop {
            if self.file.is_some() {
                return self.poll_file(request, context).map(Some);
            }
            match ready!(self.body.poll_next(request, context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(BodyChunk::Flush)) => return Poll::Ready(Some(Ok(ContentPiece::Flush))),
                Some(Ok(BodyChunk::Bytes(bytes))) => {
                    return Poll::Ready(Some(Ok(ContentPiece::Bytes(bytes))));
                }
                Some(Ok(BodyChunk::File(range))) => {
                    // An empty range has no piece to yield.
                    self.file = Some(range).filter(|range| range.length > 0)
                }
            }
        }
    }

    /// Reads the next piece of the file range.
    fn poll_file(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<ContentPiece, BodyError>> {
        let Some(range) = &self.file else {
            return Poll::Ready(Err(BodyError::Producer));
        };
        let want = usize::try_from(range.length)
            .unwrap_or(READ_SIZE)
            .min(READ_SIZE);
        if self.reading.is_none() {
            let mut data = Vec::new();
            // Most files that are served are in the page cache, and a copy from there is cheaper
            // than a round trip to the pool.
            match range.file.try_read_into(&mut data, want, range.offset) {
                Ok(_) => return Poll::Ready(self.advance_file(data)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reading = Some(read_on_pool(request, range.clone(), want));
                }
                Err(error) => return Poll::Ready(Err(read_error(&error))),
            }
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Pending;
        };
        let data = ready!(reading.as_mut().poll(context));
        self.reading = None;
        Poll::Ready(
            data.map_err(|error| read_error(&error))
                .and_then(|data| self.advance_file(data)),
        )
    }

    /// Advances past `data`, which was just read.
    fn advance_file(&mut self, data: Vec<u8>) -> Result<ContentPiece, BodyError> {
        if data.is_empty() {
            // The file became shorter after its length was announced. Ending the response normally
            // would make the client take a part for the whole.
            return Err(BodyError::FileTruncated);
        }
        if let Some(mut range) = self.file.take() {
            let read = data.len() as u64;
            range.offset += read;
            range.length = range.length.saturating_sub(read);
            self.file = Some(range).filter(|range| range.length > 0);
        }
        Ok(ContentPiece::Bytes(data.into()))
    }

    /// Lets the producer work ahead while the client is busy.
    pub(crate) fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }
}

/// The error of a body whose file cannot be read.
fn read_error(error: &io::Error) -> BodyError {
    BodyError::File(base::text::errno_text(error))
}

/// Starts a read on the location's pool (`aio threads=…`).
fn read_on_pool(request: &mut Request, range: FileRange, want: usize) -> PendingRead {
    let site = Rc::clone(&request.site);
    let pool = http::files::file_pool(request, &site.location(request.location).core.delivery.aio);
    Box::pin(async move {
        range
            .file
            .read_at(Vec::new(), range.offset, want, &pool)
            .await
    })
}
