//! Any body as bytes in memory, a piece at a time: for filters that look into the content.
//!
//! A file is read in pieces of [`PIECE`] bytes, at once when the kernel has them in memory, else on a pool.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Request;
use http::body::{Body, BodyError, Chunk, FileRange};

/// How much of a file is read at once, in bytes.
const PIECE: usize = 32 * 1024;

/// A body of which the content is wanted in memory.
pub(crate) struct Content {
    body: Body,
    /// A file range that has still to be read.
    file: Option<FileRange>,
    reading: Option<Reading>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Vec<u8>>>>>;

/// What a body brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Content; never empty.
    Bytes(Bytes),
    /// What came so far must leave now.
    Flush,
}

impl Content {
    pub(crate) fn new(body: Body) -> Content {
        Content {
            body,
            file: None,
            reading: None,
        }
    }

    /// The next piece; `None` at the end.
    pub(crate) fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            if self.file.is_some() {
                return self.poll_file(request, context).map(Some);
            }
            match ready!(self.body.poll_next(request, context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Chunk::Flush)) => return Poll::Ready(Some(Ok(Piece::Flush))),
                Some(Ok(Chunk::Bytes(bytes))) => return Poll::Ready(Some(Ok(Piece::Bytes(bytes)))),
                Some(Ok(Chunk::File(range))) => {
                    self.file = Some(range).filter(|range| range.length > 0)
                }
            }
        }
    }

    fn poll_file(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Result<Piece, BodyError>> {
        let Some(range) = &self.file else {
            return Poll::Ready(Err(BodyError::Producer));
        };
        let want = usize::try_from(range.length).unwrap_or(PIECE).min(PIECE);
        if self.reading.is_none() {
            let mut data = Vec::new();
            match range.file.try_read_into(&mut data, want, range.offset) {
                Ok(_) => return Poll::Ready(self.took(data)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reading = Some(read_waiting(request, range.clone(), want));
                }
                Err(error) => return Poll::Ready(Err(failed(&error))),
            }
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Pending;
        };
        let data = ready!(reading.as_mut().poll(context));
        self.reading = None;
        Poll::Ready(
            data.map_err(|error| failed(&error))
                .and_then(|data| self.took(data)),
        )
    }

    /// Notes that these bytes of the file are read.
    fn took(&mut self, data: Vec<u8>) -> Result<Piece, BodyError> {
        if data.is_empty() {
            return Err(BodyError::FileTruncated);
        }
        if let Some(mut range) = self.file.take() {
            let read = data.len() as u64;
            range.offset += read;
            range.length = range.length.saturating_sub(read);
            self.file = Some(range).filter(|range| range.length > 0);
        }
        Ok(Piece::Bytes(data.into()))
    }

    /// Lets the producer of the body work ahead.
    pub(crate) fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }
}

fn failed(error: &io::Error) -> BodyError {
    BodyError::File(base::text::errno_text(error))
}

fn read_waiting(request: &mut Request, range: FileRange, want: usize) -> Reading {
    let site = Rc::clone(&request.site);
    let pool = http::files::pool(request, &site.location(request.location).core.delivery.aio);
    Box::pin(async move {
        range
            .file
            .read_at(Vec::new(), range.offset, want, &pool)
            .await
    })
}
