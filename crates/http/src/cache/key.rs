//! Cache keys: `…_cache_key`, or the protocol's default.

use conf::Expression;

use super::cached_protocol::CachedProtocol;
use crate::module::HandlerOutcome;
use crate::request::Request;

/// The suffix of keys of responses to HEAD, so that no GET finds a response without a body.
pub(super) const HEAD_ONLY: &[u8] = b"\0HEAD";

/// Most keys are no longer than this, in bytes, and are written without the memory growing on the way.
const USUAL_LENGTH: usize = 256;

/// The key of a request. The error is the response to answer with; it has been logged.
pub(super) fn key_text(
    request: &mut Request,
    key: Option<&Expression>,
    source: &CachedProtocol,
) -> Result<Vec<u8>, HandlerOutcome> {
    let mut text = Vec::with_capacity(USUAL_LENGTH);
    match key {
        Some(key) => key.eval(request, &mut text),
        None => (source.key)(request, &mut text)?,
    };
    Ok(text)
}
