//! The content of a request as it arrives on a stream.

use std::rc::Rc;
use std::task::{Context, Poll};

use proto::fields::Fields;

use super::stream::Http3Stream;
use crate::body_reader::{BodyInput, BodyReadError};
use crate::client_stream::ClientStream;

/// Reads the content of a request from its stream.
pub(super) struct Http3BodyInput {
    stream: Rc<Http3Stream>,
    length: Option<u64>,
    /// The client waits for `100 Continue` before it sends content, and has not been told yet.
    expects_continue: bool,
}

impl Http3BodyInput {
    pub(super) fn new(
        stream: Rc<Http3Stream>,
        length: Option<u64>,
        expects_continue: bool,
    ) -> Http3BodyInput {
        Http3BodyInput {
            length,
            expects_continue,
            stream,
        }
    }
}

impl BodyInput for Http3BodyInput {
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        // A client that has begun to send does not wait any more (RFC 9110, section 10.1.1).
        if std::mem::take(&mut self.expects_continue) && self.stream.is_silent() {
            self.stream.send_interim(100, &Fields::new());
        }
        let begin = out.len();
        let result = self.stream.poll_read(out, max, context);
        // Before the content is passed on: an upstream server over HTTP/1 must not get a body that differs from the
        // length it was told, which is request smuggling (RFC 9114, sections 4.1.2 and 10.3).
        if let Some(fault) = self.stream.length_fault() {
            out.truncate(begin);
            return Poll::Ready(Err(BodyReadError::Length(fault)));
        }
        // A reset and the end of the connection look the same to a handler.
        result.map_err(|_left| BodyReadError::Closed)
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn trailers(&mut self) -> Fields {
        self.stream.take_trailer_fields()
    }

    fn bytes_taken(&self) -> u64 {
        self.stream.content_received()
    }

    fn refuse_continue(&mut self) {
        self.expects_continue = false;
    }
}
