//! What sending a response has in common in all protocols.

use std::io;

use crate::body::{Body, BodyError};
use crate::request::Request;

/// Why a response did not reach its end.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The connection failed.
    Failed(io::Error),
    /// The client cancelled the request.
    ClientLeft,
    /// The client accepted nothing for longer than `send_timeout`.
    TimedOut,
    /// The body broke off.
    Body(BodyError),
}

/// Whether the producer may still find out that there is no response: the head must not leave before that.
pub(crate) fn is_undecided(body: &Body) -> bool {
    matches!(body, Body::Stream(source) if source.is_undecided())
}

/// The thread pool of the request's location, for reads that are not in memory.
pub(crate) fn pool(request: &mut Request) -> rt::pool::Pool {
    let core = request.core();
    crate::files::pool(request, &core.delivery.aio)
}

/// A file could not be read to its end.
pub(crate) fn file_error(error: &io::Error) -> SendError {
    SendError::Body(BodyError::File(error.to_string()))
}
