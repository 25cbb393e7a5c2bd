//! Sends a response on an HTTP/1 connection.
//!
//! Small things leave together: the head and a small body, from memory or read from the page cache, with one `write`. A
//! larger file leaves by `sendfile`, in portions, so that a fast client cannot occupy the loop. Before each portion the
//! page cache is asked whether the bytes are there; if not, a thread of the pool fetches them while this connection,
//! and only this one, waits.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use proto::message::ResponseFraming;

use crate::buffers;
use crate::byte_stream::ByteStream;
use crate::core::location::LocationConf;
use crate::ledger::LedgerPhase;
use crate::limit_rate::{RateLimit, is_paced};
use crate::request::Request;
use crate::response_body::{BodyChunk, BodyError, FileRange, ResponseBody};
use crate::response_send::{ResponseSendError, is_undecided};

/// Up to this size a file is read into the output instead of sent by `sendfile`: one copy of so little costs less than
/// a second system call. Measured in `docs/design/2026-11-21-cpu-per-request.md`.
pub(super) const READ_FILES_UP_TO: u64 = 32 * 1024;

/// Content in memory up to this size is copied behind the head, in bytes: for the kernel a second buffer to send from
/// costs more than the copy.
const COPIED_UP_TO: usize = 2 * 1024;

/// Output is gathered up to this size before it is sent, in bytes.
pub(super) const GATHER: usize = 64 * 1024;

/// How much content in memory is sent before others get their turn, in bytes: a client on this machine takes megabytes
/// within one call.
const MEMORY_PORTION: usize = 256 * 1024;

/// Content up to this size is not given back to its producer, in bytes.
const GIVEN_BACK_FROM: usize = 4 * 1024;

/// How much of a file is sent before others get their turn when `sendfile_max_chunk` is 0, in bytes.
const UNLIMITED_PORTION: u64 = 1 << 30;

/// Sends responses on one connection, one after the other.
pub(super) struct Http1Sender {
    pub(super) bytes: Rc<ByteStream>,
    /// What has been gathered and not yet sent. Between two responses it owns no memory: idle connections need none,
    /// and the buffer that the loop used last is still in the processor's cache.
    pub(super) out: Vec<u8>,
    pub(super) timer: rt::Timer,
    /// The client has been slower than the patience with it: what it does not take is not kept for it.
    pub(super) is_slow: bool,
}

/// The settings of the response that is being sent, and how far it is.
pub(super) struct SendJob {
    pub(super) framing: ResponseFraming,
    pub(super) sendfile: bool,
    /// `tcp_nopush`: the head waits for the file to fill its packet. Without it the client starts working earlier; over
    /// loopback 100 KB then cost 10 µs instead of 23, here as in nginx.
    pub(super) full_packets: bool,
    pub(super) portion: u64,
    pub(super) buffer: usize,
    pub(super) timeout: Duration,
    pub(super) pace: Option<RateLimit>,
    pub(super) body_bytes: u64,
    /// What is left of the announced length.
    left: u64,
    /// How much of the output's beginning is no content: the head, until it has been sent.
    head: usize,
    /// A slow client is waited for in [`Http1Sender::send`], with what is left given back to the response.
    pub(super) stops: bool,
    /// How long it has been waited for before it turned out to be slow.
    pub(super) waited: Duration,
}

/// How far a response has been sent.
enum SendProgress {
    /// To its end.
    Complete,
    /// To where the client became slow.
    Stopped,
}

impl Http1Sender {
    /// A sender for this connection.
    pub(super) fn new(bytes: Rc<ByteStream>) -> Http1Sender {
        Http1Sender {
            bytes,
            out: Vec::new(),
            timer: rt::Timer::new(),
            is_slow: false,
        }
    }

    /// Begins a response: returns the buffer into which its head is written. [`Http1Sender::send_at_once`] or
    /// [`Http1Sender::send`] continues from there.
    pub(super) fn begin_head(&mut self) -> &mut Vec<u8> {
        self.out = buffers::take_buffer();
        // What the socket did not accept of an interim response has to leave before the final one.
        self.out.append(&mut self.bytes.unsent_interim.borrow_mut());
        &mut self.out
    }

    /// Sends head and content with one call, if the content is small and at hand and the socket accepts everything. On
    /// `None` [`Http1Sender::send`] continues where this stopped.
    ///
    /// Most responses end here, without a future of their own.
    pub(super) fn send_at_once(
        &mut self,
        request: &mut Request,
        framing: ResponseFraming,
    ) -> Option<()> {
        let content = self.gather(request, framing)?;
        let transport = &self.bytes.transport;
        let written = match content.is_empty() {
            true => transport.try_write(&self.out),
            false => transport.try_writev(&[IoSlice::new(&self.out), IoSlice::new(&content)]),
        };
        // An error counts as nothing sent: the asynchronous path meets it again and reports it.
        let sent = *written.as_ref().unwrap_or(&0);
        self.count(request, sent as u64);
        if written.is_err()
            || sent < self.out.len() + content.len()
            || self.bytes.transport.has_pending()
        {
            // What is left becomes the output. The content was taken out of the response, so its rest must be kept
            // here.
            let head = sent.min(self.out.len());
            self.out.drain(..head);
            self.out.extend_from_slice(&content[sent - head..]);
            return None;
        }
        self.release();
        request.times.complete = true;
        Some(())
    }

    /// Appends the content to the head, or returns it separately if it is in memory and large enough not to be copied.
    /// `None` if neither is possible right now.
    fn gather(&mut self, request: &mut Request, framing: ResponseFraming) -> Option<Bytes> {
        let length = match framing {
            ResponseFraming::None => 0,
            ResponseFraming::Length(_) if request.delivery.header_only => 0,
            ResponseFraming::Length(length) => length,
            ResponseFraming::Chunked | ResponseFraming::UntilClose => return None,
        };
        if length == 0 {
            request.out.body = ResponseBody::Empty;
            return Some(Bytes::new());
        }
        // A body whose own length differs from the announced one is cut or reported by the slower path.
        if length > READ_FILES_UP_TO
            || request.out.body.length() != Some(length)
            || is_paced(request)
        {
            return None;
        }
        let mut apart = Bytes::new();
        match &mut request.out.body {
            // TLS copies everything into records anyway; one buffer makes one record.
            ResponseBody::Bytes(bytes)
                if bytes.len() > COPIED_UP_TO && !self.bytes.transport.is_tls() =>
            {
                apart = std::mem::take(bytes);
            }
            ResponseBody::Bytes(bytes) => self.out.extend_from_slice(bytes),
            ResponseBody::File(range) if !range.file.is_direct() => {
                let head = self.out.len();
                let read = range
                    .file
                    .try_read_into(&mut self.out, length as usize, range.offset);
                if !matches!(read, Ok(n) if n as u64 == length) {
                    // Not in the page cache, or shorter than it was: nothing of it may stay behind the head.
                    self.out.truncate(head);
                    return None;
                }
            }
            ResponseBody::Empty
            | ResponseBody::File(_)
            | ResponseBody::Parts(_)
            | ResponseBody::Stream(_) => return None,
        }
        request.out.body = ResponseBody::Empty;
        // Also tells the asynchronous path that the content is in the output already.
        request.times.body_bytes_sent = length;
        Some(apart)
    }

    fn count(&mut self, request: &mut Request, sent: u64) {
        self.bytes.count_sent(sent as usize);
        request.times.bytes_sent += sent;
    }

    /// Sends the response's content after the head, which is in the output already.
    pub(super) async fn send(
        &mut self,
        request: &mut Request,
        framing: ResponseFraming,
    ) -> Result<(), ResponseSendError> {
        let before = self.bytes.sent.get();
        let head = self.out.len() as u64;
        let mut job = SendJob::new(request, framing, self.out.len());
        let mut result = self.send_in_parts(request, &mut job).await;
        if let Err(ResponseSendError::Body(error)) = &result
            && *error != BodyError::Withdrawn
        {
            // What was produced before the failure still goes to the client; the missing end shows that it is not all.
            // In a box: it is rare, and every connection would have the space for it.
            if let Err(error) = Box::pin(self.flush(request, &job)).await {
                result = Err(error);
            }
        }
        let sent = self.bytes.sent.get() - before;
        request.times.bytes_sent += sent;
        // As in nginx everything but the head counts, chunk sizes included.
        request.times.body_bytes_sent += match framing {
            ResponseFraming::Chunked => sent.saturating_sub(head),
            _ => job.body_bytes,
        };
        request.times.complete = result.is_ok();
        self.release();
        result
    }

    /// Sends until the client is slow, waits for it, and goes on. The future that sends is in a box, because most responses
    /// need none and every connection would have the space for it; and while a slow client is waited for there is none.
    async fn send_in_parts(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<(), ResponseSendError> {
        loop {
            match Box::pin(self.send_with(request, job)).await? {
                SendProgress::Complete => return Ok(()),
                SendProgress::Stopped => self.wait_longer(request, job).await?,
            }
        }
    }

    async fn send_with(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<SendProgress, ResponseSendError> {
        // The content is in the output already.
        let gathered = request.times.body_bytes_sent > 0;
        if job.framing == ResponseFraming::None || request.delivery.header_only || gathered {
            request.out.body = ResponseBody::Empty;
            self.flush(request, job).await?;
            return Ok(SendProgress::Complete);
        }
        if job.pace.is_some() {
            self.paced_head(request, job).await?;
        }
        let mut turn = job.body_bytes;
        loop {
            if job.body_bytes - turn >= job.portion {
                // A client that accepts everything at once must not keep the others waiting.
                rt::yield_now().await;
                turn = job.body_bytes;
            }
            match self.next_chunk(request, job).await? {
                None => break,
                Some(BodyChunk::Flush) => self.flush(request, job).await?,
                Some(BodyChunk::Bytes(bytes)) => {
                    // A producer may deliver more than was announced. The excess is cut off: the client would take it
                    // for the next response (RFC 9112, section 6.3; response splitting).
                    let bytes = match usize::try_from(job.left) {
                        Ok(most) if most < bytes.len() => bytes.slice(..most),
                        _ => bytes,
                    };
                    job.count_content(bytes.len() as u64);
                    if let Some(unsent) = self.bytes(request, job, bytes).await? {
                        job.give_back(request, unsent);
                    }
                }
                Some(BodyChunk::File(mut range)) => {
                    // What precedes it first, so that it can be given back.
                    if self.out.len() > GIVEN_BACK_FROM
                        && job.takes_back(request, 0)
                        && let Some(unsent) = self.offer(request, job, Bytes::new()).await?
                    {
                        job.give_back_to(request, BodyChunk::File(range));
                        job.give_back(request, unsent);
                        continue;
                    }
                    range.length = range.length.min(job.left);
                    job.count_content(range.length);
                    if let Some(rest) = self.file(request, job, range).await? {
                        job.put_back(request, rest);
                        return Ok(SendProgress::Stopped);
                    }
                }
            }
        }
        match job.framing {
            // Fewer bytes than announced: only closing the connection tells the client (RFC 9112, section 8).
            ResponseFraming::Length(_) if job.left > 0 => {
                return Err(ResponseSendError::Body(BodyError::Producer));
            }
            ResponseFraming::Chunked => {
                proto::h1::body::write_last_chunk(&request.out.trailers, &mut self.out)
            }
            _ => {}
        }
        self.flush(request, job).await?;
        Ok(SendProgress::Complete)
    }

    /// The next chunk of the body. Gathered output is sent before this waits for a producer: otherwise a slow producer
    /// would hold back what has long been there.
    async fn next_chunk(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
    ) -> Result<Option<BodyChunk>, ResponseSendError> {
        if !self.out.is_empty() && matches!(request.out.body, ResponseBody::Stream(_)) {
            let ready = std::future::poll_fn(|context| {
                let mut body = std::mem::take(&mut request.out.body);
                let next = body.poll_next(request, context);
                if !matches!(next, Poll::Ready(None)) {
                    request.out.body = body;
                }
                // Wrapped, so that `Pending` is a result here: the output is sent first, and only then does the task
                // wait.
                Poll::Ready(next)
            })
            .await;
            match ready {
                Poll::Ready(next) => return next.transpose().map_err(ResponseSendError::Body),
                Poll::Pending if self.may_wait(request, job) => {}
                Poll::Pending => self.flush(request, job).await?,
            }
        }
        if !matches!(request.out.body, ResponseBody::Stream(_)) {
            return ResponseBody::next_of(request)
                .await
                .transpose()
                .map_err(ResponseSendError::Body);
        }
        // A producer that knows better what it waits for enters that phase itself.
        let former = request.ledger.enter(LedgerPhase::Body);
        let next = ResponseBody::next_of(request).await.transpose();
        request.ledger.enter(former);
        next.map_err(ResponseSendError::Body)
    }

    /// Whether gathered output is better held back while more is awaited. It is a head of which it is not yet known
    /// whether it is that of the response; or one whose first content is about to follow, so that both become one
    /// record and one packet. nginx waits for more of it: until `postpone_output` has come, or all.
    fn may_wait(&self, request: &Request, job: &SendJob) -> bool {
        let waits = request.delivery.head_waits && job.body_bytes == 0 && {
            let core = &request.site.location(request.location).core;
            (self.out.len() as u64) < core.delivery.postpone_output
        };
        waits || is_undecided(&request.out.body)
    }

    /// Gathers or sends content. Returns what is to be given back of what has been gathered.
    async fn bytes(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        bytes: Bytes,
    ) -> Result<Option<Bytes>, ResponseSendError> {
        // A source may have nothing at the moment. As a chunk that would be a line break where none may stand.
        if bytes.is_empty() {
            return Ok(None);
        }
        if job.pace.is_some() {
            self.paced_bytes(request, job, bytes).await?;
            return Ok(None);
        }
        self.begin_chunk(job, bytes.len() as u64);
        // Below the bound a copy is cheaper than a system call; above it the bytes are sent from where they are.
        if self.out.len() + bytes.len() <= self.most_output() {
            self.out.extend_from_slice(&bytes);
            self.end_chunk(job);
            return Ok(None);
        }
        let unsent = self.offer(request, job, bytes).await?;
        self.end_chunk(job);
        Ok(unsent)
    }

    pub(super) fn begin_chunk(&mut self, job: &SendJob, length: u64) {
        if job.framing == ResponseFraming::Chunked {
            proto::h1::body::write_chunk_start(length, &mut self.out);
        }
    }

    pub(super) fn end_chunk(&mut self, job: &SendJob) {
        if job.framing == ResponseFraming::Chunked {
            self.out.extend_from_slice(proto::h1::body::CHUNK_END);
        }
    }

    /// Sends everything that has been gathered.
    pub(super) async fn flush(
        &mut self,
        request: &mut Request,
        job: &SendJob,
    ) -> Result<(), ResponseSendError> {
        self.write_out(request, job.timeout).await
    }

    /// Sends everything that has been gathered, and tells the kernel that more follows at once (`MSG_MORE`).
    pub(super) async fn flush_more(
        &mut self,
        request: &mut Request,
        job: &SendJob,
    ) -> Result<(), ResponseSendError> {
        if self.out.is_empty() {
            return Ok(());
        }
        match self.bytes.transport.try_write_more(&self.out) {
            Ok(n) if n == self.out.len() => {
                self.bytes.count_sent(n);
                self.out.clear();
                Ok(())
            }
            Ok(n) => {
                self.bytes.count_sent(n);
                self.out.drain(..n);
                self.write_out(request, job.timeout).await
            }
            Err(_) => self.write_out(request, job.timeout).await,
        }
    }

    /// Sends what has been gathered. `timeout` bounds the wait for each bit of progress, as `send_timeout` does in
    /// nginx, not the whole.
    pub(super) async fn write_out(
        &mut self,
        request: &mut Request,
        timeout: Duration,
    ) -> Result<(), ResponseSendError> {
        let mut at = 0;
        while at < self.out.len() {
            at += self.write_some(request, &self.out[at..], timeout).await?;
        }
        self.out.clear();
        // Or the last record would stay with us until the next write, which may never come.
        self.finish_write(request, timeout).await
    }

    /// Waits until TLS has written the records that it holds into the socket. Without TLS there are none.
    pub(super) async fn finish_write(
        &mut self,
        request: &mut Request,
        timeout: Duration,
    ) -> Result<(), ResponseSendError> {
        while self.bytes.transport.has_pending() {
            self.release();
            self.wait_flushed(request, timeout).await?;
        }
        Ok(())
    }

    /// Sends what has been gathered, and `bytes` behind it without copying them. If the client takes nothing for a while,
    /// returns the content that its producer can keep for it: a thousand slow clients would hold a thousand copies.
    async fn offer(
        &mut self,
        request: &mut Request,
        job: &mut SendJob,
        bytes: Bytes,
    ) -> Result<Option<Bytes>, ResponseSendError> {
        let gathered = self.out.len();
        let total = gathered + bytes.len();
        // It may have been sent since, with what was gathered then.
        job.head = job.head.min(gathered);
        let (mut at, mut turn) = (0, 0);
        while at < total {
            if at - turn >= MEMORY_PORTION {
                rt::yield_now().await;
                turn = at;
            }
            let end = total.min(at + MEMORY_PORTION);
            let (first, second) = match at < gathered {
                true => (&self.out[at..], &bytes[..end.saturating_sub(gathered)]),
                false => (&bytes[at - gathered..end - gathered], &[][..]),
            };
            let Some(sent) = self.try_write_some(first, second)? else {
                let begin = at.max(job.head);
                let rest = job.timeout.saturating_sub(self.patience(job));
                if !job.takes_back(request, (total - begin) as u64) {
                    self.wait_writable(request, job.timeout).await?;
                } else if !self.is_writable_within(request, self.patience(job)).await? {
                    self.note_slow_client();
                    // The producer may have gone on meanwhile.
                    if total - begin > GIVEN_BACK_FROM
                        && job.takes_back(request, (total - begin) as u64)
                    {
                        return Ok(Some(self.take_unsent(job, at, bytes)));
                    }
                    self.wait_writable(request, rest).await?;
                }
                continue;
            };
            at += sent;
        }
        self.out.clear();
        job.head = 0;
        self.finish_write(request, job.timeout).await?;
        Ok(None)
    }

    /// Takes the content out of the output, of which `at` bytes have been sent, and puts `bytes` behind it. What is left of
    /// the head stays.
    fn take_unsent(&mut self, job: &mut SendJob, at: usize, bytes: Bytes) -> Bytes {
        let begin = at.max(job.head);
        let unsent = match self.out.get(begin..).unwrap_or_default() {
            [] => bytes.slice(begin.saturating_sub(self.out.len())..),
            gathered => [gathered, &bytes[..]].concat().into(),
        };
        let head = self.out[at.min(job.head)..job.head].to_vec();
        self.release();
        job.head = head.len();
        self.out = head;
        unsent
    }

    async fn write_some(
        &self,
        request: &mut Request,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<usize, ResponseSendError> {
        loop {
            match self.try_write_some(bytes, &[])? {
                Some(n) => return Ok(n),
                None => self.wait_writable(request, timeout).await?,
            }
        }
    }

    /// Sends what the socket takes: `None` if that is nothing.
    fn try_write_some(
        &self,
        first: &[u8],
        second: &[u8],
    ) -> Result<Option<usize>, ResponseSendError> {
        loop {
            let result = if second.is_empty() {
                self.bytes.transport.try_write(first)
            } else {
                self.bytes
                    .transport
                    .try_writev(&[IoSlice::new(first), IoSlice::new(second)])
            };
            match result {
                Ok(n) => {
                    self.bytes.count_sent(n);
                    return Ok(Some(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ResponseSendError::Failed(error)),
            }
        }
    }

    /// Gives the output's memory to the next response on the loop.
    pub(super) fn release(&mut self) {
        buffers::give_buffer(std::mem::take(&mut self.out));
    }
}

impl SendJob {
    fn new(request: &mut Request, framing: ResponseFraming, head: usize) -> SendJob {
        let site = Rc::clone(&request.site);
        let core: &LocationConf = &site.location(request.location).core;
        let delivery = &core.delivery;
        let portion = match delivery.sendfile_max_chunk {
            0 => UNLIMITED_PORTION,
            bytes => bytes,
        };
        SendJob {
            framing,
            sendfile: delivery.sendfile,
            full_packets: delivery.tcp_nopush,
            portion,
            buffer: delivery.output_buffer_size as usize,
            timeout: delivery.send_timeout,
            pace: RateLimit::of_request(request, &site),
            body_bytes: 0,
            left: match framing {
                ResponseFraming::Length(length) => length,
                _ => u64::MAX,
            },
            head,
            stops: false,
            waited: Duration::ZERO,
        }
    }

    /// Whether the rest of a file that is being sent can be put back: not where a chunk of it has begun.
    pub(super) fn may_stop(&self, request: &Request) -> bool {
        match &request.out.body {
            _ if self.pace.is_some() || self.framing == ResponseFraming::Chunked => false,
            ResponseBody::Empty | ResponseBody::Parts(_) => true,
            ResponseBody::Stream(source) => source.takes_back(0),
            ResponseBody::Bytes(_) | ResponseBody::File(_) => false,
        }
    }

    /// Puts the rest of a file that was counted as sent back to the front of the response.
    fn put_back(&mut self, request: &mut Request, rest: FileRange) {
        self.left += rest.length;
        self.body_bytes -= rest.length;
        match &mut request.out.body {
            ResponseBody::Parts(parts) => parts.push_front(BodyChunk::File(rest)),
            ResponseBody::Stream(source) => source.take_back(BodyChunk::File(rest)),
            body => *body = ResponseBody::File(rest),
        }
    }

    /// Whether content can be given back to its producer, which then keeps this many bytes more. Not from between the
    /// sizes of chunks.
    fn takes_back(&self, request: &Request, bytes: u64) -> bool {
        self.pace.is_none()
            && self.framing != ResponseFraming::Chunked
            && matches!(&request.out.body, ResponseBody::Stream(source) if source.takes_back(bytes))
    }

    /// Gives content back that was counted as sent.
    fn give_back(&mut self, request: &mut Request, unsent: Bytes) {
        let bytes = unsent.len() as u64;
        self.left += bytes;
        self.body_bytes -= bytes;
        self.give_back_to(request, BodyChunk::Bytes(unsent));
    }

    fn give_back_to(&self, request: &mut Request, chunk: BodyChunk) {
        if let ResponseBody::Stream(source) = &mut request.out.body {
            source.take_back(chunk);
        }
    }

    fn count_content(&mut self, bytes: u64) {
        self.left -= bytes;
        self.body_bytes += bytes;
    }

    pub(super) fn paid(&mut self, bytes: u64) {
        if let Some(pace) = &mut self.pace {
            pace.add_sent(bytes);
        }
    }
}
