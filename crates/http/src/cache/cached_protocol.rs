//! What the protocol modules (`proxy`, `fastcgi`, `scgi`, `uwsgi`) supply to the cache, which knows none of them.

use crate::module::HandlerOutcome;
use crate::request::Request;
use crate::upstream::ExchangePlan;

/// The functions of a protocol module that the cache calls.
pub struct CachedProtocol {
    /// How a request is sent to the origin. It is called once per fetch, with the request that the fetch uses.
    pub plan: fn(&mut Request) -> Result<ExchangePlan, HandlerOutcome>,
    /// Appends the protocol's default key, where no `…_cache_key` is configured.
    pub key: fn(&mut Request, &mut Vec<u8>) -> Result<(), HandlerOutcome>,
}
