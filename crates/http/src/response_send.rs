//! What sending a response has in common in all protocols.

use std::io;

use crate::request::Request;
use crate::response_body::{BodyError, ResponseBody};

/// Why a response did not reach its end.
#[derive(Debug)]
pub(crate) enum ResponseSendError {
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
pub(crate) fn is_undecided(body: &ResponseBody) -> bool {
    matches!(body, ResponseBody::Stream(source) if source.is_undecided())
}

/// The thread pool of the request's location, for reads that are not in memory.
pub(crate) fn aio_pool(request: &mut Request) -> rt::pool::PoolHandle {
    let core = request.core();
    crate::files::file_pool(request, &core.delivery.aio)
}

/// A file could not be read to its end.
pub(crate) fn file_error(error: &io::Error) -> ResponseSendError {
    ResponseSendError::Body(BodyError::File(error.to_string()))
}
