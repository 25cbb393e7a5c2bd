//! `header_filter_by_lua` and `body_filter_by_lua`.
//!
//! A body filter runs once for each chunk of the body, and once more with an empty chunk and
//! `ngx.arg[2]` set if the end did not come with the last chunk. Scripts see bytes, so a file that
//! would have been sent by `sendfile` is read, in pieces, by a pool's thread when it is not cached.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::module::internal_status;
use http::response_body::{BodyChunk as Piece, BodyError, BodySource, ResponseBody};
use http::{FilterVerdict, Request};

use crate::begin_run;
use crate::chunk::LuaChunk;
use crate::phases;
use crate::run::{ReturnedText, RunEnd};
use crate::scripts::HttpScripts;

/// Runs the header filter, and puts the body filter in front of the body.
pub(crate) fn filter(request: &mut Request) -> FilterVerdict {
    let conf = request.conf::<HttpScripts>();
    if let Some(chunk) = conf.header_filter.clone()
        && let Err(status) = run_header_filter(request, &chunk)
    {
        return FilterVerdict::Status(status);
    }
    if let Some(chunk) = conf.body_filter.clone() {
        let body = std::mem::take(&mut request.out.body);
        request.out.identity = None;
        // The script may change the length, so the announced one is dropped. A length that the
        // header filter has set itself differs from the body's and is believed, as in
        // lua-nginx-module.
        if body.length() == request.out.content_length || request.out.content_length.is_none() {
            request.out.content_changes();
        }
        request.out.body = ResponseBody::stream(LuaFilteredBody {
            body,
            chunk,
            is_done: false,
        });
    }
    FilterVerdict::Pass
}

/// Runs `header_filter_by_lua`.
fn run_header_filter(request: &mut Request, chunk: &Arc<LuaChunk>) -> Result<(), u16> {
    // The handler's response is not sent if its filter fails: nginx closes the connection. A
    // subrequest has no connection of its own, so its parent gets a 500.
    let failed = match request.is_subrequest() {
        true => 500,
        false => internal_status::CLOSE,
    };
    let mut run = begin_run::for_request(request, chunk).map_err(|_| failed)?;
    match run.run_to_completion(request.into()) {
        RunEnd::Completed(_) | RunEnd::Exit(0) => Ok(()),
        // The page of a status passes the filter that has asked for it, and passes it.
        RunEnd::Exit(code)
            if request
                .state::<phases::LastExit>()
                .is_some_and(|last| last.0 == code) =>
        {
            Ok(())
        }
        RunEnd::Exit(phases::ERROR) => Err(internal_status::CLOSE),
        RunEnd::Exit(code) => {
            request.set_state(phases::LastExit(code));
            Err(u16::try_from(code).unwrap_or(500))
        }
        RunEnd::Exec(..) | RunEnd::Jump | RunEnd::Failed => Err(failed),
    }
}

/// A body that passes through `body_filter_by_lua` chunk by chunk.
struct LuaFilteredBody {
    body: ResponseBody,
    chunk: Arc<LuaChunk>,
    /// The script has seen the end of the body, or set `ngx.arg[2]` to make this chunk the last.
    is_done: bool,
}

/// How much of a file the script is given at a time, in bytes.
const FILE_CHUNK: u64 = 64 * 1024;

impl LuaFilteredBody {
    /// Runs the script over a chunk; the result replaces the chunk.
    fn run_body_filter(
        &mut self,
        request: &mut Request,
        piece: Vec<u8>,
        last: bool,
    ) -> Result<Vec<u8>, BodyError> {
        let mut run =
            begin_run::for_request(request, &self.chunk).map_err(|_| BodyError::Producer)?;
        let scope = Rc::clone(&run.scope);
        *scope.body_chunk.borrow_mut() = Some((piece, last));
        // A filter cannot wait. Whatever it does wrong aborts the response, which has already
        // begun.
        match run.run_to_completion(request.into()) {
            RunEnd::Completed(returned) if !is_refusal(&returned) => {}
            RunEnd::Exit(0) => {}
            _ => return Err(BodyError::Producer),
        }
        let (piece, last) = scope.body_chunk.take().unwrap_or_default();
        // A script may end the body early: what the handler would still produce is not asked for.
        self.is_done |= last;
        Ok(piece)
    }
}

/// Whether a body filter returned `ngx.ERROR`, or a status of 300 or more.
fn is_refusal(returned: &[ReturnedText]) -> bool {
    let code = returned.first().and_then(Option::as_deref);
    let code = code.and_then(|code| std::str::from_utf8(code).ok()?.parse::<f64>().ok());
    code.is_some_and(|code| code == f64::from(phases::ERROR) || code >= 300.0)
}

impl BodySource for LuaFilteredBody {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            if self.is_done {
                return Poll::Ready(None);
            }
            let next = match self.body.poll_next(request, context) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            };
            let changed = match next {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                // Not content: the script does not see it.
                Some(Ok(Piece::Flush)) => return Poll::Ready(Some(Ok(Piece::Flush))),
                Some(Ok(Piece::Bytes(bytes))) => {
                    // With a known length the end shows now, and the script is told with its last
                    // chunk rather than by another call with an empty one.
                    let last = self.body.length() == Some(0);
                    self.run_body_filter(request, bytes.to_vec(), last)
                }
                Some(Ok(Piece::File(mut range))) => {
                    let length = range.length.min(FILE_CHUNK) as usize;
                    let mut piece = Vec::with_capacity(length);
                    let read = range.file.try_read_into(&mut piece, length, range.offset);
                    match read {
                        Ok(0) => return Poll::Ready(Some(Err(BodyError::FileTruncated))),
                        Ok(n) => {
                            range.offset += n as u64;
                            range.length -= n as u64;
                            self.put_back(range);
                        }
                        // Not in the page cache: reading here would block the loop.
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                            self.read_cold(range, length);
                            continue;
                        }
                        Err(error) => {
                            return Poll::Ready(Some(Err(BodyError::File(error.to_string()))));
                        }
                    }
                    let last = self.body.length() == Some(0);
                    self.run_body_filter(request, piece, last)
                }
                // The length was unknown: the end comes by itself.
                None => {
                    let changed = self.run_body_filter(request, Vec::new(), true);
                    self.is_done = true;
                    changed
                }
            };
            match changed {
                // The script swallowed the chunk. An empty one would look like the end further on.
                Ok(piece) if piece.is_empty() => {}
                Ok(piece) => return Poll::Ready(Some(Ok(Piece::Bytes(Bytes::from(piece))))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn poll_ahead(&mut self, request: &mut Request, context: &mut Context<'_>) {
        self.body.poll_ahead(request, context);
    }
}

impl LuaFilteredBody {
    /// Puts the rest of a file back in front of what follows it.
    fn put_back(&mut self, range: http::response_body::FileRange) {
        if range.length > 0 {
            self.prepend(Piece::File(range));
        }
    }

    /// Puts a chunk in front of the body.
    fn prepend(&mut self, piece: Piece) {
        let rest = std::mem::take(&mut self.body);
        self.body = match rest {
            ResponseBody::Empty => match piece {
                Piece::Bytes(bytes) => ResponseBody::Bytes(bytes),
                Piece::File(range) => ResponseBody::File(range),
                Piece::Flush => ResponseBody::Empty,
            },
            ResponseBody::Stream(source) => ResponseBody::stream(PrependedChunk {
                piece: Some(piece),
                source,
            }),
            rest => {
                let mut parts = std::collections::VecDeque::from([piece]);
                rest.append_to(&mut parts);
                ResponseBody::Parts(parts)
            }
        };
    }

    /// Lets a thread of the pool read the next piece of a file.
    fn read_cold(&mut self, range: http::response_body::FileRange, length: usize) {
        let (file, offset) = (range.file.clone(), range.offset);
        let mut rest = range;
        rest.offset += length as u64;
        rest.length -= length as u64;
        self.put_back(rest);
        let after = std::mem::take(&mut self.body);
        self.body = ResponseBody::stream(ColdFileRead {
            reading: Some(Box::pin(async move {
                file.read_at(Vec::new(), offset, length, &rt::pool::default_pool())
                    .await
            })),
            after,
        });
    }
}

/// A body with a chunk put in front of it.
struct PrependedChunk {
    piece: Option<Piece>,
    source: Box<dyn BodySource>,
}

impl BodySource for PrependedChunk {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        match self.piece.take() {
            Some(piece) => Poll::Ready(Some(Ok(piece))),
            None => self.source.poll_next(request, context),
        }
    }
}

/// A read that a thread of the pool is doing.
type FileReadFuture = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<u8>>>>>;

/// A body whose next chunk is being read from a file.
struct ColdFileRead {
    reading: Option<FileReadFuture>,
    after: ResponseBody,
}

impl BodySource for ColdFileRead {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        if let Some(reading) = &mut self.reading {
            let piece = ready!(reading.as_mut().poll(context));
            self.reading = None;
            return Poll::Ready(Some(match piece {
                Ok(piece) if piece.is_empty() => Err(BodyError::FileTruncated),
                Ok(piece) => Ok(Piece::Bytes(Bytes::from(piece))),
                Err(error) => Err(BodyError::File(error.to_string())),
            }));
        }
        self.after.poll_next(request, context)
    }
}
