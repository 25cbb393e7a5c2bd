//! Sends a response on a stream, as far and as fast as the client accepts it.
//!
//! The stream takes what the client's windows and the connection's buffer have room for, and only then the producer is asked
//! for the next piece. If the length of the content is known, one DATA frame has all of it: its head leaves with that of the
//! response, and the content follows as it is, without a copy.

use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use proto::h3::frame;

use super::stream::Http3Stream;
use crate::buffers;
use crate::client_stream::ClientStream;
use crate::ledger::LedgerPhase;
use crate::limit_rate::RateLimit;
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, FileRange, ResponseBody};
use crate::response_section::{
    ResponseLength, each_field, each_of, may_have_trailers, prepare_head, response_length,
};
use crate::response_send::{ResponseSendError, aio_pool, file_error, is_undecided};

/// Content up to this size is copied behind the head of its frame, in bytes. More is cheaper as a piece of its own: what is
/// kept in memory is then only counted once more, and a head alone is so small that the allocator has one at hand.
const COPIED: usize = 512;

/// Up to this size a file is read before the head is handed over, in bytes: then all leaves together.
const READ_AT_ONCE: u64 = 32 * 1024;

/// What has become of a response that was to be sent at once.
enum AtOnce {
    /// It has been handed over, with its end.
    Sent,
    /// The stream has taken a part of it.
    Left([Bytes; 2]),
    /// It is not at hand, or too large.
    Not,
}

/// Sends one response.
pub(super) struct Http3Sender<'a> {
    stream: &'a Rc<Http3Stream>,
    timeout: Duration,
    timer: rt::Timer,
    pace: Option<RateLimit>,
    /// How much content is still to come; `None` if only its end will tell.
    left: Option<u64>,
    /// Trailers may follow the content: where there is none (204, HEAD), there are none.
    may_have_trailers: bool,
    /// Frames that have not been handed over: heads, and content that was copied behind them.
    out: Vec<u8>,
}

impl<'a> Http3Sender<'a> {
    pub(super) fn new(request: &mut Request, stream: &'a Rc<Http3Stream>) -> Http3Sender<'a> {
        let site = Rc::clone(&request.site);
        Http3Sender {
            stream,
            timeout: site.location(request.location).core.delivery.send_timeout,
            timer: rt::Timer::new(),
            pace: RateLimit::of_request(request, &site),
            left: None,
            may_have_trailers: false,
            out: buffers::take_buffer(),
        }
    }

    /// Sends head, content and trailers.
    pub(super) async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        let length = response_length(request);
        self.left = match length {
            ResponseLength::None => Some(0),
            ResponseLength::Length(length) => Some(length),
            ResponseLength::Unknown => None,
        };
        match self.send_at_once(request) {
            AtOnce::Sent => return Ok(()),
            AtOnce::Left(parts) => {
                for part in parts {
                    self.hand_over(request, part).await?;
                }
                request.times.body_bytes_sent += self.left.unwrap_or(0);
                self.stream.end_response();
                return Ok(());
            }
            AtOnce::Not => {}
        }
        let has_content = length != ResponseLength::None;
        let (mut first, mut failed) = (None, None);
        if has_content && is_undecided(&request.out.body) {
            // The producer may still find out that there is no response: the head waits.
            first = self.next_chunk(request).await?;
        } else if has_content && request.delivery.head_waits {
            match self.next_chunk(request).await {
                Ok(chunk) => first = chunk,
                Err(ResponseSendError::Body(error)) if error != BodyError::Withdrawn => {
                    // The response has failed, but its head is valid and goes out, as from nginx: the client sees the
                    // status and then the reset.
                    failed = Some(ResponseSendError::Body(error));
                }
                Err(error) => return Err(error),
            }
        }
        self.write_head(request);
        if let Some(error) = failed {
            self.flush(request).await?;
            return Err(error);
        }
        let has_trailers = !request.out.trailers.is_empty() || may_have_trailers(request);
        self.may_have_trailers = has_content && has_trailers;
        if self.left == Some(0) && !self.may_have_trailers {
            request.out.body = ResponseBody::Empty;
        } else {
            if let Some(length) = self.left.filter(|length| *length > 0) {
                frame::write_data_head(length, &mut self.out);
            }
            self.send_content(request, first).await?;
        }
        self.end(request).await
    }

    /// Hands over head, content and end with one call, if the content is in memory, or a small file that is at hand. Most
    /// responses end here.
    fn send_at_once(&mut self, request: &mut Request) -> AtOnce {
        let Some(length) = self.left else {
            return AtOnce::Not;
        };
        let has_trailers = !request.out.trailers.is_empty() || may_have_trailers(request);
        if self.pace.is_some() || has_trailers {
            return AtOnce::Not;
        }
        let content = match &mut request.out.body {
            _ if length == 0 => Some(Bytes::new()),
            ResponseBody::Bytes(bytes) if bytes.len() as u64 == length => {
                Some(std::mem::take(bytes))
            }
            ResponseBody::File(range) if range.length == length => read_at_once(range),
            _ => None,
        };
        let Some(content) = content else {
            return AtOnce::Not;
        };
        request.out.body = ResponseBody::Empty;
        self.write_head(request);
        if length > 0 {
            frame::write_data_head(length, &mut self.out);
        }
        let mut parts = match content.len() <= COPIED {
            true => {
                self.out.extend_from_slice(&content);
                [self.take_out(), Bytes::new()]
            }
            false => [self.take_out(), content],
        };
        let written = |parts: &[Bytes; 2]| (parts[0].len() + parts[1].len()) as u64;
        let all = written(&parts);
        let is_all = self.stream.try_finish(&mut parts);
        request.times.bytes_sent += all - written(&parts);
        if !is_all {
            return AtOnce::Left(parts);
        }
        request.times.body_bytes_sent += length;
        AtOnce::Sent
    }

    fn write_head(&mut self, request: &mut Request) {
        let status = prepare_head(request, "http3");
        let begun = frame::HeadersFrame::begin(&mut self.out);
        let mut encoder = self.stream.link.encoder.borrow_mut();
        encoder.begin(&mut self.out);
        encoder.status(status, &mut self.out);
        let out = &mut self.out;
        each_field(request, |known, name, value, secrecy| {
            encoder.field(known, name, value, secrecy, out);
        });
        begun.finish(&mut self.out);
    }

    async fn send_content(
        &mut self,
        request: &mut Request,
        first: Option<BodyChunk>,
    ) -> Result<(), ResponseSendError> {
        let mut first = first;
        loop {
            let chunk = match first.take() {
                Some(chunk) => Some(chunk),
                None if self.is_waiting_for_body(request) => {
                    // The head leaves while the producer takes its time.
                    self.flush(request).await?;
                    self.next_chunk(request).await?
                }
                None => self.next_chunk(request).await?,
            };
            match chunk {
                None => break,
                Some(BodyChunk::Flush) => self.flush(request).await?,
                Some(BodyChunk::Bytes(bytes)) => self.bytes(request, bytes).await?,
                Some(BodyChunk::File(range)) => self.file(request, range).await?,
            }
        }
        match self.left.is_some_and(|left| left > 0) {
            true => Err(ResponseSendError::Body(BodyError::Producer)),
            false => Ok(()),
        }
    }

    /// Whether the next chunk may take a while.
    fn is_waiting_for_body(&self, request: &Request) -> bool {
        !self.out.is_empty() && matches!(request.out.body, ResponseBody::Stream(_))
    }

    /// Ends the stream after the content, with trailers if there are any.
    async fn end(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        if self.may_have_trailers && !request.out.trailers.is_empty() {
            let begun = frame::HeadersFrame::begin(&mut self.out);
            let mut encoder = self.stream.link.encoder.borrow_mut();
            encoder.begin(&mut self.out);
            let out = &mut self.out;
            each_of(&request.out.trailers, |known, name, value, secrecy| {
                encoder.field(known, name, value, secrecy, out);
            });
            drop(encoder);
            begun.finish(&mut self.out);
        }
        self.flush(request).await?;
        self.stream.end_response();
        Ok(())
    }

    /// The next chunk of the body; the client's reset ends the wait for it.
    async fn next_chunk(
        &self,
        request: &mut Request,
    ) -> Result<Option<BodyChunk>, ResponseSendError> {
        let stream = self.stream;
        // A producer that knows better what it waits for enters that phase itself.
        let former = request.ledger.enter(LedgerPhase::Body);
        let next = std::future::poll_fn(|context| {
            let mut body = std::mem::take(&mut request.out.body);
            let next = body.poll_next(request, context);
            if !matches!(next, Poll::Ready(None)) {
                request.out.body = body;
            }
            // A producer may wait for long: nothing is written meanwhile that could fail and reveal that the client
            // left.
            if next.is_pending() && stream.poll_left(context).is_ready() {
                return Poll::Ready(Err(ResponseSendError::ClientLeft));
            }
            next.map(|next| next.transpose().map_err(ResponseSendError::Body))
        })
        .await;
        // The phase in which the client left is told afterwards.
        if !matches!(next, Err(ResponseSendError::ClientLeft)) {
            request.ledger.enter(former);
        }
        next
    }

    async fn bytes(
        &mut self,
        request: &mut Request,
        bytes: Bytes,
    ) -> Result<(), ResponseSendError> {
        // No more than was announced: a sum of DATA frames that differs makes the response malformed (RFC 9114, section
        // 4.1.2).
        let mut bytes = match self.left.map(usize::try_from) {
            Some(Ok(most)) if most < bytes.len() => bytes.slice(..most),
            _ => bytes,
        };
        while !bytes.is_empty() {
            let allowed = self.allowance(request, bytes.len()).await?;
            let part = bytes.split_to(allowed);
            self.part(request, part).await?;
        }
        Ok(())
    }

    /// Sends a piece of content.
    async fn part(&mut self, request: &mut Request, part: Bytes) -> Result<(), ResponseSendError> {
        let length = part.len() as u64;
        match &mut self.left {
            // The frame that has all of the content has begun.
            Some(left) => *left -= length,
            None => frame::write_data_head(length, &mut self.out),
        }
        if let Some(pace) = &mut self.pace {
            pace.add_sent(length);
        }
        if part.len() <= COPIED {
            self.out.extend_from_slice(&part);
            self.flush(request).await?;
        } else {
            self.flush(request).await?;
            self.hand_over(request, part).await?;
        }
        request.times.body_bytes_sent += length;
        Ok(())
    }

    async fn file(
        &mut self,
        request: &mut Request,
        range: FileRange,
    ) -> Result<(), ResponseSendError> {
        let mut offset = range.offset;
        let length = self
            .left
            .map_or(range.length, |left| range.length.min(left));
        let end = range.offset + length;
        while offset < end {
            let want = (end - offset).min(buffers::PIECE as u64) as usize;
            let want = self.allowance(request, want).await?;
            let piece = self.read_piece(request, &range, offset, want).await?;
            offset += piece.len() as u64;
            self.part(request, piece).await?;
        }
        Ok(())
    }

    /// Reads a piece of a file; on a thread of the pool if it is not in the page cache.
    async fn read_piece(
        &mut self,
        request: &mut Request,
        range: &FileRange,
        offset: u64,
        want: usize,
    ) -> Result<Bytes, ResponseSendError> {
        let mut piece = match want > buffers::PIECE / 4 {
            true => buffers::take_piece(),
            false => Vec::with_capacity(want),
        };
        match range.file.try_read_into(&mut piece, want, offset) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                // What is at hand leaves before the disk is waited for.
                self.flush(request).await?;
                let former = request.ledger.enter(LedgerPhase::Disk);
                let pool = aio_pool(request);
                let read = range.file.read_at(piece, offset, want, &pool).await;
                piece = read.map_err(|error| file_error(&error))?;
                request.ledger.enter(former);
            }
            Err(error) => return Err(file_error(&error)),
        }
        match piece.is_empty() {
            true => Err(ResponseSendError::Body(BodyError::FileTruncated)),
            false => Ok(buffers::share_piece(piece)),
        }
    }

    /// Hands over the frames that were written.
    async fn flush(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        if self.out.is_empty() {
            return Ok(());
        }
        let out = self.take_out();
        self.hand_over(request, out).await
    }

    /// The frames that were written, in memory of just their size: the stream keeps it until the client has them.
    fn take_out(&mut self) -> Bytes {
        let out = Bytes::copy_from_slice(&self.out);
        self.out.clear();
        out
    }

    /// Hands bytes over to the stream, as fast as it takes them.
    async fn hand_over(
        &mut self,
        request: &mut Request,
        bytes: Bytes,
    ) -> Result<(), ResponseSendError> {
        let (stream, timer, timeout) = (self.stream, &self.timer, self.timeout);
        let all = bytes.len();
        let mut bytes = bytes;
        let mut before = usize::MAX;
        let mut former = None;
        let written = std::future::poll_fn(|context| {
            if let Poll::Ready(written) = stream.poll_write(&mut bytes, context) {
                return Poll::Ready(written.map_err(|_over| ResponseSendError::ClientLeft));
            }
            if former.is_none() {
                former = Some(request.ledger.enter(LedgerPhase::Client));
            }
            // `send_timeout` counts from the last progress, as in nginx.
            if bytes.len() < before {
                before = bytes.len();
                timer.set(timeout);
            }
            ResponseBody::poll_ahead_of(request, context);
            timer
                .poll_expired(context)
                .map(|()| Err(ResponseSendError::TimedOut))
        })
        .await;
        if let Some(former) = former {
            timer.clear();
            request.ledger.enter(former);
        }
        request.times.bytes_sent += (all - bytes.len()) as u64;
        written
    }

    /// `limit_rate`: how much of `want` may be sent now. A client that leaves meanwhile ends the wait.
    async fn allowance(
        &mut self,
        request: &mut Request,
        want: usize,
    ) -> Result<usize, ResponseSendError> {
        loop {
            let Some(pace) = &self.pace else {
                return Ok(want);
            };
            let wait = match pace.allowance(rt::now()) {
                Ok(bytes) => return Ok(usize::try_from(bytes).map_or(want, |most| want.min(most))),
                Err(wait) => wait,
            };
            self.flush(request).await?;
            let former = request.ledger.enter(LedgerPhase::Limit);
            let left = rt::timeout(wait, request.stream.wait_until_left()).await;
            request.ledger.enter(former);
            if left.is_ok() {
                return Err(ResponseSendError::ClientLeft);
            }
        }
    }
}

impl Drop for Http3Sender<'_> {
    fn drop(&mut self) {
        buffers::give_buffer(std::mem::take(&mut self.out));
    }
}

/// A small file, if it can be read without waiting.
fn read_at_once(range: &FileRange) -> Option<Bytes> {
    if range.length > READ_AT_ONCE || range.file.is_direct() {
        return None;
    }
    let mut content = Vec::with_capacity(range.length as usize);
    let read = range
        .file
        .try_read_into(&mut content, range.length as usize, range.offset);
    // A shorter one is an error, which the slower path finds again.
    (read.ok()? as u64 == range.length).then(|| content.into())
}
