//! Cache keys: `…_cache_key`, or the protocol's default.

use conf::Expression;

use super::cached_protocol::CachedProtocol;
use crate::module::HandlerOutcome;
use crate::request::Request;

/// The suffix of keys of responses to HEAD, so that no GET finds a response without a body.
pub(super) const HEAD_ONLY: &[u8] = b"\0HEAD";

/// The key of a request. The error is the response to answer with; it has been logged.
pub(super) fn key_text(
    request: &mut Request,
    key: Option<&Expression>,
    source: &CachedProtocol,
) -> Result<Vec<u8>, HandlerOutcome> {
    let mut text = Vec::new();
    match key {
        Some(key) => key.eval(request, &mut text),
        None => (source.key)(request, &mut text)?,
    };
    Ok(text)
}
