//! Sends a response on a stream, as far and as fast as the client accepts it.
//!
//! Content goes into the connection's output in frames, never more than there is room for; only then is its producer
//! asked for the next piece. A file is read straight into the output, with one call for many frames. What is not in the
//! page cache is fetched by a thread of the pool while the stream, and only the stream, waits.

use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes};
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, flag, kind};

use super::connection_link::ConnectionOutput;
use super::head;
use super::stream::Http2Stream;
use crate::client_budget::SMALL_WINDOW;
use crate::client_stream::ClientStream;
use crate::ledger::LedgerPhase;
use crate::limit_rate::{RateLimit, is_paced};
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, FileRange, ResponseBody};
use crate::response_section::{ResponseLength, may_have_trailers, response_length};
use crate::response_send::{ResponseSendError, aio_pool, file_error, is_undecided};

/// Up to this size content is sent together with the head, without a future of its own, in bytes.
const AT_ONCE: u64 = 32 * 1024;

/// How much a thread of the pool reads at a time, in bytes: each stream of a slow client holds as much memory.
const COLD_PIECE: u64 = 64 * 1024;

/// Sends head and content if the content is small and at hand and there is room for it. `None` if not; then nothing has
/// been sent.
pub(super) fn send_at_once(request: &mut Request, stream: &Rc<Http2Stream>) -> Option<()> {
    if request.delivery.is_upgraded()
        || !request.out.trailers.is_empty()
        || may_have_trailers(request)
    {
        return None;
    }
    let length = match response_length(request) {
        ResponseLength::None | ResponseLength::Length(0) => {
            request.times.bytes_sent += head::write_head(request, stream, true) as u64;
            request.out.body = ResponseBody::Empty;
            return Some(());
        }
        ResponseLength::Length(length) if length <= AT_ONCE => length,
        ResponseLength::Length(_) | ResponseLength::Unknown => return None,
    };
    // All or nothing: a head that leaves alone could not be taken back, and the content would need the slower path
    // anyway.
    if u64::from(stream.sendable_bytes(length as u32)) < length
        || request.out.body.length() != Some(length)
        || is_paced(request)
    {
        return None;
    }
    let frame_size = frame_size(request);
    match &request.out.body {
        ResponseBody::Bytes(_) => {
            let ResponseBody::Bytes(bytes) = std::mem::take(&mut request.out.body) else {
                return None;
            };
            request.times.bytes_sent += head::write_head(request, stream, false) as u64;
            request.times.bytes_sent += append_bytes(stream, &bytes, frame_size, true) as u64;
        }
        ResponseBody::File(range) if !range.file.is_direct() => {
            let range = range.clone();
            // The head has to come first, but only reading the file shows whether there is content to follow it. So the
            // file is read into the loop's buffer before anything is appended.
            let mut content = std::mem::take(&mut *stream.link.http.scratch.borrow_mut());
            content.clear();
            let read = range
                .file
                .try_read_into(&mut content, length as usize, range.offset);
            let is_there = matches!(read, Ok(n) if n as u64 == length);
            if is_there {
                request.out.body = ResponseBody::Empty;
                request.times.bytes_sent += head::write_head(request, stream, false) as u64;
                request.times.bytes_sent += append_bytes(stream, &content, frame_size, true) as u64;
            }
            *stream.link.http.scratch.borrow_mut() = content;
            if !is_there {
                return None;
            }
        }
        ResponseBody::Empty
        | ResponseBody::File(_)
        | ResponseBody::Parts(_)
        | ResponseBody::Stream(_) => return None,
    }
    request.times.body_bytes_sent += length;
    Some(())
}

/// The largest DATA frame of a response, in bytes, as far as the client accepts it (`http2_chunk_size`).
fn frame_size(request: &Request) -> usize {
    let core = &request.site.location(request.location).core;
    core.delivery.http2_chunk_size as usize
}

/// Sends one response.
pub(super) struct Http2Sender<'a> {
    stream: &'a Rc<Http2Stream>,
    frame_size: usize,
    timeout: Duration,
    timer: rt::Timer,
    pace: Option<RateLimit>,
    /// How much content is still to come; `None` if only its end will tell.
    left: Option<u64>,
    has_trailers: bool,
}

impl<'a> Http2Sender<'a> {
    pub(super) fn new(request: &mut Request, stream: &'a Rc<Http2Stream>) -> Http2Sender<'a> {
        let site = Rc::clone(&request.site);
        Http2Sender {
            stream,
            frame_size: frame_size(request),
            timeout: site.location(request.location).core.delivery.send_timeout,
            timer: rt::Timer::new(),
            pace: RateLimit::of_request(request, &site),
            left: None,
            has_trailers: false,
        }
    }

    /// Sends head, content and trailers.
    pub(super) async fn send(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        let content = response_length(request);
        self.left = match content {
            ResponseLength::None => Some(0),
            ResponseLength::Length(length) => Some(length),
            ResponseLength::Unknown => None,
        };
        let has_trailers = !request.out.trailers.is_empty() || may_have_trailers(request);
        self.has_trailers = has_trailers && content != ResponseLength::None;
        let mut first = None;
        let mut failed = None;
        if content != ResponseLength::None && is_undecided(&request.out.body) {
            // The producer may still find out that there is no response: the head waits.
            first = self.next_chunk(request).await?;
        } else if content != ResponseLength::None && request.delivery.head_waits {
            // The first content is about to follow: both become one record and one packet, as with nginx.
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
        // END_STREAM on the head saves an empty DATA frame.
        let ends = self.left == Some(0) && !self.has_trailers;
        request.times.bytes_sent += head::write_head(request, self.stream, ends) as u64;
        if let Some(error) = failed {
            return Err(error);
        }
        if ends {
            request.out.body = ResponseBody::Empty;
            return Ok(());
        }
        loop {
            let chunk = match first.take() {
                Some(chunk) => Some(chunk),
                None => self.next_chunk(request).await?,
            };
            match chunk {
                None => break,
                // Appending wakes the connection's task, which sends what there is: nothing is gathered here.
                Some(BodyChunk::Flush) => {}
                Some(BodyChunk::Bytes(bytes)) => self.bytes(request, bytes).await?,
                Some(BodyChunk::File(range)) => self.file(request, range).await?,
            }
        }
        self.end(request)
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

    /// Ends the stream after the content, with trailers or an empty DATA frame.
    fn end(&mut self, request: &mut Request) -> Result<(), ResponseSendError> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(ResponseSendError::Body(BodyError::Producer));
        }
        // The last DATA frame carried END_STREAM.
        if self.stream.is_ended() {
            return Ok(());
        }
        let trailers = &request.out.trailers;
        let appended = if trailers.is_empty() {
            self.stream.has_sent_end();
            let id = self.stream.id;
            let write = |output: &mut ConnectionOutput| {
                frame::write_data_head(id, 0, true, &mut output.bytes)
            };
            self.stream.link.append_frames(write).1
        } else {
            self.stream.write_headers(true, |encoder, out| {
                head::write_fields(trailers, encoder, out);
            })
        };
        request.times.bytes_sent += appended as u64;
        Ok(())
    }

    async fn bytes(
        &mut self,
        request: &mut Request,
        bytes: Bytes,
    ) -> Result<(), ResponseSendError> {
        // No more than was announced: a sum of DATA frames that differs makes the response malformed (RFC 9113, section
        // 8.1.1).
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
            let room = self.room(request, end - offset).await?;
            let want = room.min((end - offset) as usize);
            let ends = self.is_last(want);
            match append_file(self.stream, &range, offset, want, self.frame_size, ends) {
                Ok((0, _)) => return Err(ResponseSendError::Body(BodyError::FileTruncated)),
                Ok((n, appended)) => {
                    self.count(request, n, appended);
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // This stream has no content at hand now, so another one may use its room.
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

    /// Reads a part of a file that is not in the page cache, on a thread of the pool. It goes to memory of its own,
    /// because the connection's output is shared and cannot leave the loop.
    async fn read_cold(
        &mut self,
        request: &mut Request,
        range: &FileRange,
        offset: u64,
        want: usize,
    ) -> Result<Bytes, ResponseSendError> {
        let former = request.ledger.enter(LedgerPhase::Disk);
        let pool = aio_pool(request);
        let data = range
            .file
            .read_at(Vec::new(), offset, want, &pool)
            .await
            .map_err(|error| file_error(&error))?;
        request.ledger.enter(former);
        match data.is_empty() {
            true => Err(ResponseSendError::Body(BodyError::FileTruncated)),
            false => Ok(data.into()),
        }
    }

    /// Whether the next `n` bytes end the content and the response.
    fn is_last(&self, n: usize) -> bool {
        self.left == Some(n as u64) && !self.has_trailers
    }

    fn count(&mut self, request: &mut Request, content: usize, appended: usize) {
        let content = content as u64;
        if let Some(left) = &mut self.left {
            *left -= content;
        }
        if let Some(pace) = &mut self.pace {
            pace.add_sent(content);
        }
        request.times.body_bytes_sent += content;
        request.times.bytes_sent += appended as u64;
    }

    /// Waits until something may be sent; returns how much, at most `want` bytes.
    async fn room(&mut self, request: &mut Request, want: u64) -> Result<usize, ResponseSendError> {
        let mut want = want.min(u64::from(u32::MAX));
        if self.pace.is_some() {
            want = want.min(self.allowance(request).await?);
        }
        let stream = self.stream;
        // Mostly there is room: then no future is made and no timer set.
        let ready = stream.sendable_bytes(want as u32);
        if ready > 0 {
            return Ok(ready as usize);
        }
        self.timer.set(self.timeout);
        let former = request.ledger.enter(LedgerPhase::Client);
        let timer = &self.timer;
        let room = std::future::poll_fn(|context| {
            if let Poll::Ready(room) = stream.poll_room(want as u32, context) {
                return Poll::Ready(room.map_err(|_| ResponseSendError::ClientLeft));
            }
            ResponseBody::poll_ahead_of(request, context);
            timer
                .poll_expired(context)
                .map(|()| Err(ResponseSendError::TimedOut))
        })
        .await;
        request.ledger.enter(former);
        // A stream that gave up must not be chosen as the next to send: nothing would come of its turn.
        if room.is_err() {
            stream.link.leave_queue(stream);
        }
        room.map(|room| room as usize)
    }

    /// `limit_rate`: how much may be sent now. A client that leaves meanwhile ends the wait.
    async fn allowance(&self, request: &mut Request) -> Result<u64, ResponseSendError> {
        loop {
            let Some(pace) = &self.pace else {
                return Ok(u64::MAX);
            };
            let wait = match pace.allowance(rt::now()) {
                Ok(bytes) => return Ok(bytes),
                Err(wait) => wait,
            };
            let former = request.ledger.enter(LedgerPhase::Limit);
            let left = rt::timeout(wait, request.stream.wait_until_left()).await;
            request.ledger.enter(former);
            if left.is_ok() {
                return Err(ResponseSendError::ClientLeft);
            }
        }
    }
}

/// Appends content from memory, for which there must be room. Returns its size on the wire.
fn append_bytes(stream: &Http2Stream, bytes: &[u8], frame_size: usize, ends: bool) -> usize {
    let ((), appended) = stream.link.append_frames(|output| {
        let frame_size = frame_size.min(output.peer.max_frame_size as usize);
        let mut parts = bytes.chunks(frame_size).peekable();
        while let Some(part) = parts.next() {
            let is_last = ends && parts.peek().is_none();
            frame::write_data_head(stream.id, part.len() as u32, is_last, &mut output.bytes);
            output.bytes.extend_from_slice(part);
        }
    });
    sent(stream, bytes.len(), frame_size, ends);
    appended
}

/// Appends content from a file, for which there must be room. Returns how much of it was read, and its size on the
/// wire. One call reads the content behind the space for all frame heads; then each part is moved to its place between
/// them.
fn append_file(
    stream: &Http2Stream,
    range: &FileRange,
    offset: u64,
    want: usize,
    frame_size: usize,
    ends: bool,
) -> io::Result<(usize, usize)> {
    let (read, appended) = stream.link.append_frames(|output| {
        let frame_size = frame_size.min(output.peer.max_frame_size as usize);
        let out = &mut output.bytes;
        let start = out.len();
        let content = start + want.div_ceil(frame_size) * HEAD_LENGTH;
        // The heads come first in the buffer, so every part moves to the front, and never over content that has not
        // moved yet.
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
                // A short read is not the end: the file may have been truncated, which the next read shows.
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
        sent(stream, n, frame_size, ends && n == want);
    }
    Ok((n, appended))
}

/// Counts content that was appended, and lets the next stream take its turn.
fn sent(stream: &Http2Stream, bytes: usize, frame_size: usize, ends: bool) {
    // Never more than the room, which is a 32-bit number.
    let has_window = stream.consume_windows(bytes as u32);
    let small = SMALL_WINDOW as usize;
    let last = bytes % frame_size;
    // The last frame may have been cut to the window: then its size was the client's choice.
    let is_last_small = last > 0 && last < small && (ends || has_window);
    let full = if frame_size < small {
        bytes / frame_size
    } else {
        0
    };
    if full > 0 || is_last_small {
        stream
            .link
            .note_small_frames(full as u32 + u32::from(is_last_small));
    }
    if ends {
        stream.has_sent_end();
    }
    stream.link.wake_next();
}
