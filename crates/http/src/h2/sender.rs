//! Sends the content of a response on a stream, as far and as fast as the client takes it.
//!
//! Content goes into the connection's output in frames, never more than there is room for; what produces it is asked for
//! the next piece only then. A file is read straight into the output, with one call for many frames; what is not in the
//! page cache is fetched by a thread of the pool, while the stream, and only the stream, waits.

use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, flag, kind};

use super::head::{self, Content};
use super::link::Output;
use super::stream::Stream;
use crate::body::{Body, BodyError, Chunk, FileRange};
use crate::client_stream::ClientStream;
use crate::limit_rate::{RateLimit, is_paced};
use crate::request::Request;
use crate::sending::{SendError, file_error, is_undecided, pool};

/// Up to this size content is sent together with the head, without a future of its own.
const AT_ONCE: u64 = 32 * 1024;

/// What a thread of the pool reads at a time, in bytes: each stream whose client is slow holds so much.
const COLD_PIECE: u64 = 64 * 1024;

/// Sends head and content, when the content is small and at hand and there is room for it. `None` when it does not come
/// to that; then nothing has been sent.
pub(super) fn send_at_once(request: &mut Request, stream: &Rc<Stream>) -> Option<()> {
    if request.delivery.is_upgraded()
        || !request.out.trailers.is_empty()
        || may_have_trailers(request)
    {
        return None;
    }
    let length = match head::content(request) {
        Content::None | Content::Length(0) => {
            request.ledger.bytes_sent += head::write(request, stream, true) as u64;
            request.out.body = Body::Empty;
            return Some(());
        }
        Content::Length(length) if length <= AT_ONCE => length,
        Content::Length(_) | Content::Unknown => return None,
    };
    if u64::from(stream.room(length as u32)) < length
        || request.out.body.length() != Some(length)
        || is_paced(request)
    {
        return None;
    }
    let frame_size = frame_size(request);
    match &request.out.body {
        Body::Bytes(_) => {
            let Body::Bytes(bytes) = std::mem::take(&mut request.out.body) else {
                return None;
            };
            request.ledger.bytes_sent += head::write(request, stream, false) as u64;
            request.ledger.bytes_sent += append_bytes(stream, &bytes, frame_size, true) as u64;
        }
        Body::File(range) if !range.file.is_direct() => {
            let range = range.clone();
            // The head comes first, but whether there is anything to follow shows only when the file is read.
            let mut content = std::mem::take(&mut *stream.link.http.scratch.borrow_mut());
            content.clear();
            let read = range
                .file
                .try_read_into(&mut content, length as usize, range.offset);
            let is_there = matches!(read, Ok(n) if n as u64 == length);
            if is_there {
                request.out.body = Body::Empty;
                request.ledger.bytes_sent += head::write(request, stream, false) as u64;
                request.ledger.bytes_sent +=
                    append_bytes(stream, &content, frame_size, true) as u64;
            }
            *stream.link.http.scratch.borrow_mut() = content;
            if !is_there {
                return None;
            }
        }
        Body::Empty | Body::File(_) | Body::Parts(_) | Body::Stream(_) => return None,
    }
    request.ledger.body_bytes_sent += length;
    Some(())
}

/// Whether fields may follow the content that are not there yet.
fn may_have_trailers(request: &Request) -> bool {
    matches!(&request.out.body, Body::Stream(source) if source.may_have_trailers())
}

/// The largest frame of a response, in bytes, if the client takes it.
fn frame_size(request: &Request) -> usize {
    let core = &request.site.location(request.location).core;
    core.delivery.http2_chunk_size as usize
}

/// Sends one response.
pub(super) struct Sender<'a> {
    stream: &'a Rc<Stream>,
    frame_size: usize,
    timeout: Duration,
    timer: rt::Timer,
    pace: Option<RateLimit>,
    /// Content that is still to come; `None`: that shows when it ends.
    left: Option<u64>,
    has_trailers: bool,
}

impl<'a> Sender<'a> {
    pub(super) fn new(request: &mut Request, stream: &'a Rc<Stream>) -> Sender<'a> {
        let site = Rc::clone(&request.site);
        Sender {
            stream,
            frame_size: frame_size(request),
            timeout: site.location(request.location).core.delivery.send_timeout,
            timer: rt::Timer::new(),
            pace: RateLimit::of(request, &site),
            left: None,
            has_trailers: false,
        }
    }

    /// Sends head, content and trailers.
    pub(super) async fn send(&mut self, request: &mut Request) -> Result<(), SendError> {
        let content = head::content(request);
        self.left = match content {
            Content::None => Some(0),
            Content::Length(length) => Some(length),
            Content::Unknown => None,
        };
        let has_trailers = !request.out.trailers.is_empty() || may_have_trailers(request);
        self.has_trailers = has_trailers && content != Content::None;
        let mut first = None;
        let mut failed = None;
        if content != Content::None && is_undecided(&request.out.body) {
            // It may yet turn out that there is no response: the head waits.
            first = self.next_chunk(request).await?;
        } else if content != Content::None && request.delivery.head_waits {
            // The first content follows: both are one record and one packet, as with nginx.
            match self.next_chunk(request).await {
                Ok(chunk) => first = chunk,
                Err(SendError::Body(error)) if error != BodyError::Withdrawn => {
                    failed = Some(SendError::Body(error));
                }
                Err(error) => return Err(error),
            }
        }
        let ends = self.left == Some(0) && !self.has_trailers;
        request.ledger.bytes_sent += head::write(request, self.stream, ends) as u64;
        if let Some(error) = failed {
            return Err(error);
        }
        if ends {
            request.out.body = Body::Empty;
            return Ok(());
        }
        loop {
            let chunk = match first.take() {
                Some(chunk) => Some(chunk),
                None => self.next_chunk(request).await?,
            };
            match chunk {
                None => break,
                Some(Chunk::Flush) => {}
                Some(Chunk::Bytes(bytes)) => self.bytes(request, bytes).await?,
                Some(Chunk::File(range)) => self.file(request, range).await?,
            }
        }
        self.end(request)
    }

    async fn next_chunk(&self, request: &mut Request) -> Result<Option<Chunk>, SendError> {
        let stream = self.stream;
        let next = std::future::poll_fn(|context| {
            let mut body = std::mem::take(&mut request.out.body);
            let next = body.poll_next(request, context);
            if !matches!(next, Poll::Ready(None)) {
                request.out.body = body;
            }
            if next.is_pending() && stream.poll_left(context).is_ready() {
                return Poll::Ready(Err(SendError::ClientLeft));
            }
            next.map(|next| next.transpose().map_err(SendError::Body))
        });
        next.await
    }

    /// What follows the content.
    fn end(&mut self, request: &mut Request) -> Result<(), SendError> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(SendError::Body(BodyError::Producer));
        }
        if self.stream.is_ended() {
            return Ok(());
        }
        let trailers = &request.out.trailers;
        let appended = if trailers.is_empty() {
            self.stream.has_sent_end();
            let id = self.stream.id;
            let write =
                |output: &mut Output| frame::write_data_head(id, 0, true, &mut output.bytes);
            self.stream.link.write(write).1
        } else {
            self.stream.write_headers(true, |encoder, out| {
                head::write_fields(trailers, encoder, out);
            })
        };
        request.ledger.bytes_sent += appended as u64;
        Ok(())
    }

    async fn bytes(&mut self, request: &mut Request, bytes: Bytes) -> Result<(), SendError> {
        let mut bytes = match self.left.map(usize::try_from) {
            Some(Ok(most)) if most < bytes.len() => bytes.slice(..most),
            _ => bytes,
        };
        while !bytes.is_empty() {
            let room = self.room(request, bytes.len() as u64).await?;
            let part = &bytes[..room.min(bytes.len())];
            let n = part.len();
            let ends = self.is_last(n);
            let appended = append_bytes(self.stream, part, self.frame_size, ends);
            self.count(request, n, appended);
            bytes.advance(n);
        }
        Ok(())
    }

    async fn file(&mut self, request: &mut Request, range: FileRange) -> Result<(), SendError> {
        let mut offset = range.offset;
        let length = self
            .left
            .map_or(range.length, |left| range.length.min(left));
        let end = range.offset + length;
        while offset < end {
            let room = self.room(request, end - offset).await?;
            let want = room.min((end - offset) as usize);
            let ends = self.is_last(want);
            match append_file(self.stream, &range, offset, want, self.frame_size, ends) {
                Ok((0, _)) => return Err(SendError::Body(BodyError::FileTruncated)),
                Ok((n, appended)) => {
                    self.count(request, n, appended);
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stream.link.wake_next();
                    let piece = (end - offset).min(COLD_PIECE) as usize;
                    let data = self.read_cold(request, &range, offset, piece).await?;
                    offset += data.len() as u64;
                    self.bytes(request, data).await?;
                }
                Err(error) => return Err(file_error(&error)),
            }
        }
        Ok(())
    }

    async fn read_cold(
        &mut self,
        request: &mut Request,
        range: &FileRange,
        offset: u64,
        want: usize,
    ) -> Result<Bytes, SendError> {
        let begun = rt::clock::read();
        let pool = pool(request);
        let data = range
            .file
            .read_at(Vec::new(), offset, want, &pool)
            .await
            .map_err(|error| file_error(&error))?;
        request.ledger.disk_wait += rt::clock::elapsed(begun);
        match data.is_empty() {
            true => Err(SendError::Body(BodyError::FileTruncated)),
            false => Ok(data.into()),
        }
    }

    /// Whether the content ends with the next `n` bytes, and the response with it.
    fn is_last(&self, n: usize) -> bool {
        self.left == Some(n as u64) && !self.has_trailers
    }

    fn count(&mut self, request: &mut Request, content: usize, appended: usize) {
        let content = content as u64;
        if let Some(left) = &mut self.left {
            *left -= content;
        }
        if let Some(pace) = &mut self.pace {
            pace.paid(content);
        }
        request.ledger.body_bytes_sent += content;
        request.ledger.bytes_sent += appended as u64;
    }

    /// Waits until something may be sent; gives how much, at most `want` bytes.
    async fn room(&mut self, request: &mut Request, want: u64) -> Result<usize, SendError> {
        let mut want = want.min(u64::from(u32::MAX));
        if self.pace.is_some() {
            want = want.min(self.allowance(request).await?);
        }
        let stream = self.stream;
        let ready = stream.room(want as u32);
        if ready > 0 {
            return Ok(ready as usize);
        }
        self.timer.set(self.timeout);
        let timer = &self.timer;
        let room = std::future::poll_fn(|context| {
            if let Poll::Ready(room) = stream.poll_room(want as u32, context) {
                return Poll::Ready(room.map_err(|_| SendError::ClientLeft));
            }
            Body::poll_ahead_of(request, context);
            timer
                .poll_expired(context)
                .map(|()| Err(SendError::TimedOut))
        })
        .await;
        if room.is_err() {
            stream.link.leave_queue(stream);
        }
        room.map(|room| room as usize)
    }

    /// `limit_rate`: how much may be sent now. A client that leaves meanwhile ends the wait.
    async fn allowance(&self, request: &Request) -> Result<u64, SendError> {
        loop {
            let Some(pace) = &self.pace else {
                return Ok(u64::MAX);
            };
            let wait = match pace.allowance(rt::now()) {
                Ok(bytes) => return Ok(bytes),
                Err(wait) => wait,
            };
            if rt::timeout(wait, request.stream.left()).await.is_ok() {
                return Err(SendError::ClientLeft);
            }
        }
    }
}

/// Appends content from memory, for which there is room. Gives how much it is on the wire.
fn append_bytes(stream: &Stream, bytes: &[u8], frame_size: usize, ends: bool) -> usize {
    let ((), appended) = stream.link.write(|output| {
        let frame_size = frame_size.min(output.peer.max_frame_size as usize);
        let mut parts = bytes.chunks(frame_size).peekable();
        while let Some(part) = parts.next() {
            let is_last = ends && parts.peek().is_none();
            frame::write_data_head(stream.id, part.len() as u32, is_last, &mut output.bytes);
            output.bytes.extend_from_slice(part);
        }
    });
    sent(stream, bytes.len(), ends);
    appended
}

/// Appends content from a file, for which there is room. Gives how much of it was read, and how much that is on the wire.
/// The content is read once, behind the place where the frames' heads will be, and then moved between them.
fn append_file(
    stream: &Stream,
    range: &FileRange,
    offset: u64,
    want: usize,
    frame_size: usize,
    ends: bool,
) -> io::Result<(usize, usize)> {
    let (read, appended) = stream.link.write(|output| {
        let frame_size = frame_size.min(output.peer.max_frame_size as usize);
        let out = &mut output.bytes;
        let start = out.len();
        let content = start + want.div_ceil(frame_size) * HEAD_LENGTH;
        out.resize(content, 0);
        let n = match range.file.try_read_into(out, want, offset) {
            Ok(n) => n,
            Err(error) => {
                out.truncate(start);
                return Err(error);
            }
        };
        let mut to = start;
        let mut done = 0;
        while done < n {
            let length = (n - done).min(frame_size);
            let from = content + done;
            done += length;
            let head = FrameHead {
                length: length as u32,
                kind: kind::DATA,
                flags: if ends && done == want {
                    flag::END_STREAM
                } else {
                    0
                },
                stream: stream.id,
            };
            out[to..to + HEAD_LENGTH].copy_from_slice(&head.bytes());
            to += HEAD_LENGTH;
            if from != to {
                out.copy_within(from..from + length, to);
            }
            to += length;
        }
        out.truncate(to);
        Ok(n)
    });
    let n = read?;
    if n > 0 {
        sent(stream, n, ends && n == want);
    }
    Ok((n, appended))
}

/// Counts content that was appended, and lets the next stream have its turn.
fn sent(stream: &Stream, bytes: usize, ends: bool) {
    // No more than there was room for, which is 32 bits.
    stream.sent(bytes as u32);
    if ends {
        stream.has_sent_end();
    }
    stream.link.wake_next();
}
