//! The keys of requests: `…_cache_key`, or the protocol's own.

use conf::Expression;

use super::source::Source;
use crate::module::Outcome;
use crate::request::Request;

/// What stands at the end of the keys of responses to HEAD. They have no content, which no GET must get.
pub(super) const HEAD_ONLY: &[u8] = b"\0HEAD";

/// The key of a request. The error is what to answer with; it has been logged.
pub(super) fn key_text(
    request: &mut Request,
    key: Option<&Expression>,
    source: &Source,
) -> Result<Vec<u8>, Outcome> {
    let mut text = Vec::new();
    match key {
        Some(key) => key.eval(request, &mut text),
        None => (source.key)(request, &mut text)?,
    };
    Ok(text)
}
