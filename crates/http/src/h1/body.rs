//! The content of a request on an HTTP/1 connection: framed by `Content-Length` or in chunks (RFC 9112, sections 6 and
//! 7).

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use proto::fields::Fields;
use proto::h1::{ChunkDecoder, ChunkPiece};
use proto::message::RequestFraming;

use crate::body_reader::{BodyInput, BodyReadError};
use crate::buffers;
use crate::byte_stream::ByteStream;

/// Decodes content out of the connection's input. What follows the content stays there: it is the next request.
pub(super) struct Http1BodyInput {
    bytes: Rc<ByteStream>,
    state: BodyDecodeState,
    taken: u64,
    /// The client waits for `100 Continue` before it sends content, and has not been told yet.
    expects_continue: bool,
}

enum BodyDecodeState {
    Length { left: u64, total: u64 },
    Chunked(Box<ChunkDecoder>),
    Done(Fields),
}

/// How much is read from the socket at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

/// What the connection's input may keep in memory when it is empty, in bytes.
const KEPT_INPUT: usize = 4 * 1024;

impl Http1BodyInput {
    /// The input of a request with this framing; `None` when there is no content.
    pub(super) fn new(
        bytes: Rc<ByteStream>,
        framing: RequestFraming,
        expects_continue: bool,
    ) -> Option<Http1BodyInput> {
        let state = match framing {
            RequestFraming::None => return None,
            // A client that expects `100 Continue` gets it even when nothing follows, as from nginx.
            RequestFraming::Length(0) if !expects_continue => return None,
            RequestFraming::Length(total) => BodyDecodeState::Length { left: total, total },
            RequestFraming::Chunked => BodyDecodeState::Chunked(Box::new(ChunkDecoder::new())),
        };
        Some(Http1BodyInput {
            bytes,
            state,
            taken: 0,
            expects_continue,
        })
    }

    /// Moves content that has arrived to `out`. `None` when more has to arrive first.
    fn decode(&mut self, out: &mut Vec<u8>, max: usize) -> Option<Result<bool, BodyReadError>> {
        let before = out.len();
        let mut input = self.bytes.input.borrow_mut();
        let used = match &mut self.state {
            BodyDecodeState::Done(_) => return Some(Ok(true)),
            BodyDecodeState::Length { left, .. } => {
                // Never beyond the announced length: the bytes behind it are the next request.
                let n = input
                    .len()
                    .min(max)
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= n as u64;
                if n == input.len() && out.is_empty() && out.capacity() < n {
                    // All of it goes there as it is. A copy would leave a hole in the heap for each slow upload.
                    *out = std::mem::take(&mut *input);
                } else {
                    out.extend_from_slice(&input[..n]);
                }
                n
            }
            BodyDecodeState::Chunked(decoder) => {
                // Consumed once at the end: draining the input after each of many small chunks would move the rest of
                // it each time.
                let mut at = 0;
                let limit = out.len() + max;
                let end = loop {
                    match decoder.next_piece(&input[at..]) {
                        Ok(ChunkPiece::Data(range)) => {
                            out.extend_from_slice(&input[at + range.start..at + range.end]);
                            at += range.end;
                            if out.len() >= limit {
                                break None;
                            }
                        }
                        // The decoder has consumed everything, part of a chunk's head included.
                        Ok(ChunkPiece::More) => {
                            at = input.len();
                            break None;
                        }
                        Ok(ChunkPiece::End(n)) => {
                            at += n;
                            break Some(decoder.trailers().clone());
                        }
                        // Not resynchronized: a chunk that two parsers read differently is how requests are smuggled
                        // (RFC 9112, section 11.2).
                        Err(_) => return Some(Err(BodyReadError::Malformed)),
                    }
                };
                if let Some(trailers) = end {
                    self.state = BodyDecodeState::Done(trailers);
                }
                at
            }
        };
        let used_here = used.min(input.len());
        input.drain(..used_here);
        // What came along with the head may have been large, and the rest does not pass here.
        if input.is_empty() && input.capacity() > KEPT_INPUT {
            buffers::give_buffer(std::mem::take(&mut *input));
        }
        self.taken += used as u64;
        match &self.state {
            BodyDecodeState::Done(_) => Some(Ok(true)),
            // Reported with the last byte, so that no caller waits for more from a client that has sent everything.
            BodyDecodeState::Length { left: 0, .. } => Some(Ok(true)),
            // Only framing came: there is no content to tell of.
            _ if out.len() == before => None,
            _ => Some(Ok(false)),
        }
    }

    /// Sends `100 Continue` to a client that waits for it. It is a hint: if it cannot be sent at once, the client sends
    /// its content after its own timeout (RFC 9110, section 10.1.1).
    fn say_continue(&mut self) {
        // A client that has begun to send does not wait any more; RFC 9110, section 10.1.1, lets the server omit the
        // response then.
        if std::mem::take(&mut self.expects_continue) && self.bytes.input.borrow().is_empty() {
            const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
            if let Ok(n) = self.bytes.transport.try_write(CONTINUE) {
                self.bytes.count_sent(n);
            }
        }
    }
}

impl BodyInput for Http1BodyInput {
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        // Here, at the first read, and not when the head is parsed: a handler that refuses the request saves the client
        // its content.
        self.say_continue();
        loop {
            // What has already been read comes first: the socket may never become readable again.
            if let Some(result) = self.decode(out, max) {
                return Poll::Ready(result);
            }
            // Content with a length needs no decoding: it goes where it is wanted, and a slow client has no second
            // buffer here.
            if let BodyDecodeState::Length { left, .. } = &mut self.state {
                let most = max.min(READ_SIZE);
                let most = usize::try_from(*left).map_or(most, |left| most.min(left));
                if *left == most as u64 {
                    // Nothing follows that the buffer should have room for.
                    out.reserve_exact(most);
                }
                match ready!(self.bytes.transport.poll_read_into(context, out, most)) {
                    Ok(0) => return Poll::Ready(Err(BodyReadError::Closed)),
                    Ok(n) => {
                        *left -= n as u64;
                        self.taken += n as u64;
                        return Poll::Ready(Ok(*left == 0));
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Poll::Ready(Err(BodyReadError::Io(error))),
                }
            }
            let mut input = self.bytes.input.borrow_mut();
            if input.capacity() == 0 {
                *input = buffers::take_buffer();
            }
            let transport = &self.bytes.transport;
            let read = transport.poll_read_into(context, &mut input, READ_SIZE);
            if read.is_pending() && input.is_empty() {
                buffers::give_buffer(std::mem::take(&mut *input));
            }
            match ready!(read) {
                Ok(0) => return Poll::Ready(Err(BodyReadError::Closed)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(BodyReadError::Io(error))),
            }
        }
    }

    fn length(&self) -> Option<u64> {
        match self.state {
            BodyDecodeState::Length { total, .. } => Some(total),
            BodyDecodeState::Chunked(_) | BodyDecodeState::Done(_) => None,
        }
    }

    fn trailers(&mut self) -> Fields {
        match &mut self.state {
            BodyDecodeState::Done(trailers) => std::mem::take(trailers),
            BodyDecodeState::Length { .. } | BodyDecodeState::Chunked(_) => Fields::default(),
        }
    }

    fn bytes_taken(&self) -> u64 {
        self.taken
    }

    fn refuse_continue(&mut self) {
        self.expects_continue = false;
    }
}
