//! What a request has for itself of a connection that carries several requests at once.
//!
//! On HTTP/1 a request has the whole connection, and whether its client is still there is a question to the socket. On
//! HTTP/2 it has a stream, which may end while the connection goes on. Who asks for the client asks here.

use std::rc::Rc;
use std::task::{Context, Poll};

use proto::fields::Fields;

use crate::client::Client;
use crate::request::Request;

/// A stream of a connection, as a request sees it.
pub trait Lane {
    /// Ready when the client gave the request up, or its connection is over.
    fn poll_left(&self, context: &mut Context<'_>) -> Poll<()>;

    /// Whether all of the request's content has come, and is no more than `most` bytes.
    fn has_all(&self, most: u64) -> bool;

    /// Sends an interim response: a status below 200 and its fields.
    fn send_interim(&self, status: u16, fields: &Fields);

    /// Takes what the client sends once the stream speaks another protocol: appends to `out`, at most `max` bytes.
    /// `false` when the client has ended its side.
    fn poll_take(&self, out: &mut Vec<u8>, max: usize, context: &mut Context<'_>) -> Poll<bool>;

    /// Ends our side, while the client may go on with its own.
    fn end(&self);
}

/// Tells whether a request's client is still there; independent of the request, which somebody else may be using.
#[derive(Clone)]
pub struct Presence {
    client: Rc<Client>,
    lane: Option<Rc<dyn Lane>>,
}

impl Presence {
    /// Ready when the client has left.
    pub fn poll_left(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.lane {
            Some(lane) => lane.poll_left(context),
            None => self.client.stream.poll_closed(context),
        }
    }

    /// Waits until the client has left.
    pub async fn left(&self) {
        std::future::poll_fn(|context| self.poll_left(context)).await;
    }
}

impl Request {
    /// Ready when the client has left.
    pub fn poll_client_left(&self, context: &mut Context<'_>) -> Poll<()> {
        match &self.lane {
            Some(lane) => lane.poll_left(context),
            None => self.client.stream.poll_closed(context),
        }
    }

    /// For whoever must know while the request is lent to somebody else.
    pub fn presence(&self) -> Presence {
        Presence {
            client: Rc::clone(&self.client),
            lane: self.lane.clone(),
        }
    }
}
