//! The content of a request as it arrives on a stream. The connection's task receives it; this reads what it has
//! buffered.

use std::rc::Rc;
use std::task::{Context, Poll};

use proto::fields::Fields;
use proto::h2::FlowControlWindow;

use super::stream::Http2Stream;
use crate::body_reader::{BodyInput, BodyReadError};
use crate::client_stream::ClientStream;

/// Reads the content of a request from its stream.
pub(super) struct Http2BodyInput {
    stream: Rc<Http2Stream>,
    length: Option<u64>,
    taken: u64,
    /// The client waits for `100 Continue` before it sends content, and has not been told yet.
    expects_continue: bool,
}

impl Http2BodyInput {
    pub(super) fn new(
        stream: Rc<Http2Stream>,
        length: Option<u64>,
        expects_continue: bool,
    ) -> Http2BodyInput {
        Http2BodyInput {
            stream,
            length,
            taken: 0,
            expects_continue,
        }
    }

    fn say_continue(&mut self) {
        // A client that has begun to send does not wait any more (RFC 9110, section 10.1.1).
        let nothing_came = self.stream.input.borrow().is_empty() && !self.stream.has_all_input();
        if std::mem::take(&mut self.expects_continue) && nothing_came {
            self.stream.send_interim(100, &Fields::new());
        }
    }
}

impl BodyInput for Http2BodyInput {
    fn poll_read(
        &mut self,
        out: &mut Vec<u8>,
        max: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<bool, BodyReadError>> {
        self.say_continue();
        // Before the content is passed on: an upstream server over HTTP/1 must not get a body that differs from the
        // length it was told, which is request smuggling (RFC 9113, sections 8.1.1 and 10.3).
        if let Some(fault) = self.stream.length_fault() {
            return Poll::Ready(Err(BodyReadError::Length(fault)));
        }
        let before = out.len();
        let result = self
            .stream
            .poll_read(out, max.min(FlowControlWindow::MAX as usize), context);
        self.taken += (out.len() - before) as u64;
        // A reset and the end of the connection look the same to a handler.
        result.map_err(|_left| BodyReadError::Closed)
    }

    fn length(&self) -> Option<u64> {
        self.length
    }

    fn trailers(&mut self) -> Fields {
        std::mem::take(&mut *self.stream.trailers.borrow_mut())
    }

    fn bytes_taken(&self) -> u64 {
        self.taken
    }

    fn refuse_continue(&mut self) {
        self.expects_continue = false;
    }
}
