//! What a cosocket reads from and writes to: a connection of its own, the client's, or a request's
//! body.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use http::body_reader::{BodyInput, BodyReadError};
use net::Transport;

/// What a cosocket is connected to.
#[derive(Clone)]
pub(crate) enum CosocketTransport {
    /// A connection that the script has opened.
    Own(Rc<Transport>),
    /// The client's connection in http, as a whole.
    Request(Rc<http::client::HttpClient>),
    /// The client's connection in stream.
    Session(Rc<::stream::client::StreamClient>),
    /// The body of a request, which can only be read.
    Content(Rc<CosocketBody>),
}

/// The body of a request that a cosocket has taken over. Chunked encoding and HTTP/2 frames are
/// removed by the engine, so the script sees content only.
pub(crate) struct CosocketBody {
    pub(crate) input: RefCell<Box<dyn BodyInput>>,
    /// It was read to its end.
    pub(crate) ended: Cell<bool>,
}

impl CosocketTransport {
    /// The connection, unless it is a request body.
    pub(crate) fn transport(&self) -> Option<&Transport> {
        match self {
            CosocketTransport::Own(transport) => Some(transport),
            CosocketTransport::Request(client) => client.bytes().map(|bytes| &bytes.transport),
            CosocketTransport::Session(client) => client.stream().map(|stream| &**stream),
            CosocketTransport::Content(_) => None,
        }
    }

    /// Whether the script has opened it.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, CosocketTransport::Own(_))
    }

    /// Appends what arrives next to `out`, at most `max` bytes; 0 at the end.
    pub(crate) async fn read(&self, out: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        if let CosocketTransport::Content(content) = self {
            return content.read(out, max).await;
        }
        match self.transport() {
            Some(transport) => transport.read_into(out, max).await,
            None => Ok(0),
        }
    }

    /// Sends what the kernel takes without waiting; returns how much that was.
    pub(crate) fn try_send(&self, data: &[u8]) -> usize {
        let sent = match self.transport() {
            // TLS may accept data that is not sent yet, so the caller could not tell what to wait
            // for.
            Some(transport) if !transport.is_tls() => transport.try_write(data).unwrap_or(0),
            _ => 0,
        };
        self.count(sent);
        sent
    }

    /// Counts bytes sent to the client: `$bytes_sent`.
    pub(crate) fn count(&self, sent: usize) {
        match self {
            CosocketTransport::Request(client) => {
                if let Some(bytes) = client.bytes() {
                    bytes.count_sent(sent);
                }
            }
            CosocketTransport::Session(client) => client.sent.set(client.sent.get() + sent as u64),
            CosocketTransport::Own(_) | CosocketTransport::Content(_) => {}
        }
    }
}

impl CosocketBody {
    async fn read(&self, out: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        let before = out.len();
        while !self.ended.get() && out.len() == before {
            let read =
                poll_fn(|context| self.input.borrow_mut().poll_read(out, max, context)).await;
            self.ended.set(read.map_err(error_of)?);
        }
        Ok(out.len() - before)
    }
}

/// The errors of a request body as I/O errors, for which scripts have messages.
fn error_of(error: BodyReadError) -> io::Error {
    match error {
        BodyReadError::Closed => io::ErrorKind::ConnectionAborted.into(),
        BodyReadError::TimedOut => io::ErrorKind::TimedOut.into(),
        BodyReadError::Malformed => io::Error::new(io::ErrorKind::InvalidData, "malformed content"),
        BodyReadError::Length(words) => io::Error::new(io::ErrorKind::InvalidData, words),
        BodyReadError::Io(error) => error,
    }
}
