//! What a request on HTTP/1 has of its client: all of the connection, until the response has been sent.

use std::io;
use std::task::{Context, Poll};

use proto::fields::Fields;
use proto::h1::response::{write_end, write_fields, write_status_line};

use crate::byte_stream::ByteStream;
use crate::client_stream::ClientStream;

/// The end of chunked content without trailers.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

impl ClientStream for ByteStream {
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        self.transport.poll_closed(context)
    }

    fn has_all(&self, announced: Option<u64>, most: u64) -> bool {
        let input = self.input.borrow();
        let here = input.len() as u64;
        match announced {
            Some(length) => length <= most && length <= here,
            // Chunks are not decoded for a question: what looks like the last one mostly is it, and if it is not the content
            // is streamed, as it would have been.
            None => here <= most && input.ends_with(LAST_CHUNK),
        }
    }

    fn send_interim(&self, status: u16, fields: &Fields) {
        let mut out = Vec::new();
        write_status_line(status, None, &mut out);
        write_fields(fields, &mut out);
        write_end(&mut out);
        let mut unsent = self.unsent_interim.borrow_mut();
        let mut sent = 0;
        if unsent.is_empty() {
            // An error shows when the response is sent.
            sent = self.transport.try_write(&out).unwrap_or(0);
            self.count_sent(sent);
        }
        unsent.extend_from_slice(&out[sent..]);
    }

    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool> {
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
            Poll::Ready(Err(_)) => Poll::Ready(false),
        }
    }

    fn end(&self) {
        // A client that is gone does not need to be told.
        let _gone = self.transport.shutdown_write();
    }

    fn can_be_reset(&self) -> bool {
        false
    }

    fn exclusive(&self) -> Option<&ByteStream> {
        Some(self)
    }
}
