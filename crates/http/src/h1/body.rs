//! The content of a request as it comes from an HTTP/1 connection.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use proto::fields::Fields;
use proto::h1::{ChunkDecoder, Piece};
use proto::message::RequestFraming;

use crate::body_reader::{BodyInput, BodyReadError};
use crate::byte_stream::ByteStream;

/// Decodes content out of the connection's input.
pub(super) struct Input {
    bytes: Rc<ByteStream>,
    state: State,
    taken: u64,
    /// The client waits for `100 Continue` before it sends content.
    expects_continue: bool,
}

enum State {
    Length { left: u64, total: u64 },
    Chunked(Box<ChunkDecoder>),
    Done(Fields),
}

/// How much is read from the socket at once, in bytes.
const READ_SIZE: usize = 16 * 1024;

impl Input {
    /// The input of a request with this framing; `None` when there is no content.
    pub(super) fn new(
        bytes: Rc<ByteStream>,
        framing: RequestFraming,
        expects_continue: bool,
    ) -> Option<Input> {
        let state = match framing {
            RequestFraming::None => return None,
            // A client that asks whether to go on is told so even when nothing follows.
            RequestFraming::Length(0) if !expects_continue => return None,
            RequestFraming::Length(total) => State::Length { left: total, total },
            RequestFraming::Chunked => State::Chunked(Box::new(ChunkDecoder::new())),
        };
        Some(Input {
            bytes,
            state,
            taken: 0,
            expects_continue,
        })
    }

    /// Moves content that has arrived to `out`. `None` when more has to arrive first.
    fn decode(&mut self, out: &mut Vec<u8>, max: usize) -> Option<Result<bool, BodyReadError>> {
        let mut input = self.bytes.input.borrow_mut();
        let used = match &mut self.state {
            State::Done(_) => return Some(Ok(true)),
            State::Length { left, .. } => {
                let n = input
                    .len()
                    .min(max)
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                out.extend_from_slice(&input[..n]);
                *left -= n as u64;
                n
            }
            State::Chunked(decoder) => {
                let mut at = 0;
                let limit = out.len() + max;
                let end = loop {
                    match decoder.next(&input[at..]) {
                        Ok(Piece::Data(range)) => {
                            out.extend_from_slice(&input[at + range.start..at + range.end]);
                            at += range.end;
                            if out.len() >= limit {
                                break None;
                            }
                        }
                        Ok(Piece::More) => {
                            at = input.len();
                            break None;
                        }
                        Ok(Piece::End(n)) => {
                            at += n;
                            break Some(decoder.trailers().clone());
                        }
                        Err(_) => return Some(Err(BodyReadError::Malformed)),
                    }
                };
                if let Some(trailers) = end {
                    self.state = State::Done(trailers);
                }
                at
            }
        };
        input.drain(..used);
        self.taken += used as u64;
        match &self.state {
            State::Done(_) => Some(Ok(true)),
            State::Length { left: 0, .. } => Some(Ok(true)),
            _ if used > 0 => Some(Ok(false)),
            _ => None,
        }
    }

    /// Tells a client that waits for it to go on. It is a hint: when it can not be sent at once the client's own
    /// timeout helps it (RFC 9110, section 10.1.1).
    fn say_continue(&mut self) {
        if std::mem::take(&mut self.expects_continue) && self.bytes.input.borrow().is_empty() {
            const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
            if let Ok(n) = self.bytes.transport.try_write(CONTINUE) {
                self.bytes.count_sent(n);
            }
        }
    }
}

impl BodyInput for Input {
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        self.say_continue();
        loop {
            if let Some(result) = self.decode(out, max) {
                return Poll::Ready(result);
            }
            let mut input = self.bytes.input.borrow_mut();
            match ready!(
                self.bytes
                    .transport
                    .poll_read_into(context, &mut input, READ_SIZE)
            ) {
                Ok(0) => return Poll::Ready(Err(BodyReadError::Closed)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(BodyReadError::Io(error))),
            }
        }
    }

    fn length(&self) -> Option<u64> {
        match self.state {
            State::Length { total, .. } => Some(total),
            State::Chunked(_) | State::Done(_) => None,
        }
    }

    fn trailers(&mut self) -> Fields {
        match &mut self.state {
            State::Done(trailers) => std::mem::take(trailers),
            State::Length { .. } | State::Chunked(_) => Fields::default(),
        }
    }

    fn taken(&self) -> u64 {
        self.taken
    }

    fn refuse_continue(&mut self) {
        self.expects_continue = false;
    }
}
