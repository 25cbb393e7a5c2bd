//! `header_filter_by_lua` and `body_filter_by_lua`.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::body::{Body, BodyError, Chunk as Piece, Source};
use http::module::internal_status;
use http::{Request, Verdict};

use crate::chunk::Chunk;
use crate::directives::Code;
use crate::phases;
use crate::run::{End, Returned};

pub(crate) fn filter(request: &mut Request) -> Verdict {
    let conf = request.conf::<Code>();
    if let Some(chunk) = conf.header_filter.clone()
        && let Err(status) = change_head(request, &chunk)
    {
        return Verdict::Status(status);
    }
    if let Some(chunk) = conf.body_filter.clone() {
        let body = std::mem::take(&mut request.out.body);
        // The script may make the content longer or shorter. A script that says how long it will be is believed.
        if body.length() == request.out.content_length || request.out.content_length.is_none() {
            request.out.content_changes();
        }
        request.out.body = Body::stream(Changed {
            body,
            chunk,
            over: false,
        });
    }
    Verdict::Pass
}

/// Runs the script over the head.
fn change_head(request: &mut Request, chunk: &Arc<Chunk>) -> Result<(), u16> {
    // What fails here is no response to anybody: nginx ends the connection. The parent of a subrequest is told.
    let failed = match request.is_subrequest() {
        true => 500,
        false => internal_status::CLOSE,
    };
    let mut run = phases::begin(request, chunk).map_err(|_| failed)?;
    match run.finish_now(request.into()) {
        End::Through(_) | End::Exit(0) => Ok(()),
        End::Exit(phases::ERROR) => Err(internal_status::CLOSE),
        End::Exit(status) => Err(u16::try_from(status).unwrap_or(500)),
        End::Exec(..) | End::Jump | End::Failed => Err(failed),
    }
}

/// Content that a script changes piece by piece.
struct Changed {
    body: Body,
    chunk: Arc<Chunk>,
    /// The script has said, or seen, that this is all.
    over: bool,
}

/// What is read of a file for the script at a time, in bytes.
const FILE_PIECE: u64 = 64 * 1024;

impl Changed {
    /// Runs the script over a piece; what it makes of it.
    fn change(
        &mut self,
        request: &mut Request,
        piece: Vec<u8>,
        last: bool,
    ) -> Result<Vec<u8>, BodyError> {
        let mut run = phases::begin(request, &self.chunk).map_err(|_| BodyError::Producer)?;
        let scope = Rc::clone(&run.scope);
        *scope.piece.borrow_mut() = Some((piece, last));
        match run.finish_now(request.into()) {
            End::Through(returned) if !is_refusal(&returned) => {}
            End::Exit(0) => {}
            _ => return Err(BodyError::Producer),
        }
        let (piece, last) = scope.piece.take().unwrap_or_default();
        self.over |= last;
        Ok(piece)
    }
}

/// Whether a body filter returned nginx's code for an error, or a status that is one.
fn is_refusal(returned: &[Returned]) -> bool {
    let code = returned.first().and_then(Option::as_deref);
    let code = code.and_then(|code| std::str::from_utf8(code).ok()?.parse::<f64>().ok());
    code.is_some_and(|code| code == f64::from(phases::ERROR) || code >= 300.0)
}

impl Source for Changed {
    fn poll_next(
        &mut self,
        request: &mut Request,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Piece, BodyError>>> {
        loop {
            if self.over {
                return Poll::Ready(None);
            }
            let next = match self.body.poll_next(request, context) {
                Poll::Ready(next) => next,
                Poll::Pending => return Poll::Pending,
            };
            let changed = match next {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Piece::Flush)) => return Poll::Ready(Some(Ok(Piece::Flush))),
                Some(Ok(Piece::Bytes(bytes))) => {
                    let last = self.body.length() == Some(0);
                    self.change(request, bytes.to_vec(), last)
                }
                Some(Ok(Piece::File(mut range))) => {
                    let length = range.length.min(FILE_PIECE) as usize;
                    let mut piece = Vec::with_capacity(length);
                    let read = range.file.try_read_into(&mut piece, length, range.offset);
                    match read {
                        Ok(0) => return Poll::Ready(Some(Err(BodyError::FileTruncated))),
                        Ok(n) => {
                            range.offset += n as u64;
                            range.length -= n as u64;
                            self.put_back(range);
                        }
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                            self.read_cold(range, length);
                            continue;
                        }
                        Err(error) => {
                            return Poll::Ready(Some(Err(BodyError::File(error.to_string()))));
                        }
                    }
                    let last = self.body.length() == Some(0);
                    self.change(request, piece, last)
                }
                None => {
                    let changed = self.change(request, Vec::new(), true);
                    self.over = true;
                    changed
                }
            };
            match changed {
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

impl Changed {
    /// Puts the rest of a file before what follows it.
    fn put_back(&mut self, range: http::body::FileRange) {
        if range.length > 0 {
            self.before(Piece::File(range));
        }
    }

    fn before(&mut self, piece: Piece) {
        let rest = std::mem::take(&mut self.body);
        self.body = match rest {
            Body::Empty => match piece {
                Piece::Bytes(bytes) => Body::Bytes(bytes),
                Piece::File(range) => Body::File(range),
                Piece::Flush => Body::Empty,
            },
            Body::Stream(source) => Body::stream(Before {
                piece: Some(piece),
                source,
            }),
            rest => {
                let mut parts = std::collections::VecDeque::from([piece]);
                rest.append_to(&mut parts);
                Body::Parts(parts)
            }
        };
    }

    /// Has the next piece of a file read by a thread of the pool.
    fn read_cold(&mut self, range: http::body::FileRange, length: usize) {
        let (file, offset) = (range.file.clone(), range.offset);
        let mut rest = range;
        rest.offset += length as u64;
        rest.length -= length as u64;
        self.put_back(rest);
        let after = std::mem::take(&mut self.body);
        self.body = Body::stream(Cold {
            reading: Some(Box::pin(async move {
                file.read_at(Vec::new(), offset, length, &rt::pool::default_pool())
                    .await
            })),
            after,
        });
    }
}

/// A piece and what follows it.
struct Before {
    piece: Option<Piece>,
    source: Box<dyn Source>,
}

impl Source for Before {
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

type Reading = std::pin::Pin<Box<dyn Future<Output = std::io::Result<Vec<u8>>>>>;

/// A piece of a file that is on its way, and what follows it.
struct Cold {
    reading: Option<Reading>,
    after: Body,
}

impl Source for Cold {
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
