//! What sending a response has in common, whichever protocol does it.

use std::io;

use crate::body::{Body, BodyError};
use crate::request::Request;

/// Why a response did not reach its end.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The connection failed.
    Failed(io::Error),
    /// The client gave the request up.
    ClientLeft,
    /// The client took nothing for longer than `send_timeout`.
    TimedOut,
    /// The content could not be had to its end.
    Body(BodyError),
}

/// Whether it may yet turn out that there is no response: its head is not to be sent before that.
pub(crate) fn is_undecided(body: &Body) -> bool {
    matches!(body, Body::Stream(source) if source.is_undecided())
}

/// The pool that reads what is not in memory, in the request's location.
pub(crate) fn pool(request: &mut Request) -> rt::pool::Pool {
    let core = request.core();
    crate::files::pool(request, &core.delivery.aio)
}

/// A file could not be read to its end.
pub(crate) fn file_error(error: &io::Error) -> SendError {
    SendError::Body(BodyError::File(error.to_string()))
}
