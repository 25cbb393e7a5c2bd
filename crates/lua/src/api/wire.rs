//! What a script's socket reads from and writes to: a connection of its own, the client's, or a request's content.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;

use http::body_reader::{BodyInput, BodyReadError};
use net::Transport;

/// What a socket is connected to.
#[derive(Clone)]
pub(crate) enum Wire {
    /// A connection that the script has made.
    Own(Rc<Transport>),
    /// The client's connection, in http, all of it.
    Request(Rc<http::client::Client>),
    /// The client's connection in stream.
    Session(Rc<::stream::client::Client>),
    /// The content of a request.
    Content(Rc<Content>),
}

/// The content of a request that a socket has taken over.
pub(crate) struct Content {
    pub(crate) input: RefCell<Box<dyn BodyInput>>,
    /// All of it was read.
    pub(crate) ended: Cell<bool>,
}

impl Wire {
    /// The connection, unless it is content.
    pub(crate) fn transport(&self) -> Option<&Transport> {
        match self {
            Wire::Own(transport) => Some(transport),
            Wire::Request(client) => Some(&client.stream),
            Wire::Session(client) => client.stream().map(|stream| &**stream),
            Wire::Content(_) => None,
        }
    }

    /// Whether it is the script's own.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Wire::Own(_))
    }

    /// Appends what comes next to `out`, at most `max` bytes; nothing at the end.
    pub(crate) async fn read(&self, out: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        if let Wire::Content(content) = self {
            return content.read(out, max).await;
        }
        match self.transport() {
            Some(transport) => transport.read_into(out, max).await,
            None => Ok(0),
        }
    }

    /// Sends what the kernel takes at once; how much that was.
    pub(crate) fn try_send(&self, data: &[u8]) -> usize {
        let sent = match self.transport() {
            // What TLS has taken is not on its way yet.
            Some(transport) if !transport.is_tls() => transport.try_write(data).unwrap_or(0),
            _ => 0,
        };
        self.count(sent);
        sent
    }

    /// This many bytes were sent.
    pub(crate) fn count(&self, sent: usize) {
        let counter = match self {
            Wire::Request(client) => &client.sent,
            Wire::Session(client) => &client.sent,
            Wire::Own(_) | Wire::Content(_) => return,
        };
        counter.set(counter.get() + sent as u64);
    }
}

impl Content {
    async fn read(&self, out: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        let before = out.len();
        while !self.ended.get() && out.len() == before {
            let read =
                poll_fn(|context| self.input.borrow_mut().poll_read(out, max, context)).await;
            self.ended.set(read.map_err(words)?);
        }
        Ok(out.len() - before)
    }
}

fn words(error: BodyReadError) -> io::Error {
    match error {
        BodyReadError::Closed => io::ErrorKind::ConnectionAborted.into(),
        BodyReadError::TimedOut => io::ErrorKind::TimedOut.into(),
        BodyReadError::Malformed => io::Error::new(io::ErrorKind::InvalidData, "malformed content"),
        BodyReadError::Length(words) => io::Error::new(io::ErrorKind::InvalidData, words),
        BodyReadError::Io(error) => error,
    }
}
