//! What a request on HTTP/1 sees of its client: it has the whole connection to itself until the response has been sent.

use std::io;
use std::task::{Context, Poll};

use proto::fields::Fields;
use proto::h1::response::{write_end, write_fields, write_status_line};
use proto::h1::{ChunkDecoder, ChunkPiece};

use crate::byte_stream::ByteStream;
use crate::client_stream::ClientStream;

/// Where content in chunks that has not been read yet ends in `input`, before the next request if there is one. What is
/// invalid ends at once: reading it finds that out, before a server is asked.
fn end_of_chunks(input: &[u8]) -> Option<u64> {
    let (mut decoder, mut at) = (ChunkDecoder::new(), 0);
    loop {
        match decoder.next_piece(&input[at..]) {
            Ok(ChunkPiece::Data(range)) => at += range.end,
            Ok(ChunkPiece::More) => return None,
            Ok(ChunkPiece::End(length)) => return Some((at + length) as u64),
            Err(_) => return Some(0),
        }
    }
}

impl ClientStream for ByteStream {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        self.transport.poll_closed(context)
    }

    fn has_all(&self, announced: Option<u64>, most: u64) -> bool {
        let input = self.input.borrow();
        match announced {
            Some(length) => length <= most && length <= input.len() as u64,
            None => end_of_chunks(&input).is_some_and(|end| end <= most),
        }
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        let mut out = Vec::new();
        write_status_line(status, None, &mut out);
        write_fields(fields, &mut out);
        write_end(&mut out);
        let mut unsent = self.unsent_interim.borrow_mut();
        let mut sent = 0;
        // An earlier interim response that did not fit comes first: heads must not be mixed.
        if unsent.is_empty() {
            // An error will show when the response is sent.
            sent = self.transport.try_write(&out).unwrap_or(0);
            self.count_sent(sent);
        }
        unsent.extend_from_slice(&out[sent..]);
    }

    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool> {
        // What was read together with the head belongs to the new protocol, and comes first.
        let mut early = self.input.borrow_mut();
        if !early.is_empty() {
            out.append(&mut early);
            return Poll::Ready(true);
        }
        match self.transport.poll_read_into(context, out, max) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(n)) => Poll::Ready(n > 0),
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {
                Poll::Ready(true)
            }
            // A failed connection counts as an end: a tunnel has no status left to report it with.
            Poll::Ready(Err(_)) => Poll::Ready(false),
        }
    }

    fn end_output(&self) {
        // The error means that the client has left.
        let _gone = self.transport.shutdown_write();
    }

    /// A tunnel on a TCP connection ends where the connection does; its close looks like any other.
    fn can_be_reset(&self) -> bool {
        false
    }

    fn exclusive_bytes(&self) -> Option<&ByteStream> {
        Some(self)
    }
}
