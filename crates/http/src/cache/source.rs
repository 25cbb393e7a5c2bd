//! What a protocol brings that caches its responses: `proxy`, `fastcgi`, `scgi`, `uwsgi`.

use crate::module::Outcome;
use crate::request::Request;
use crate::upstream::Plan;

/// What a protocol module brings.
pub struct Source {
    /// How a request is passed on. It is asked once for each fetch, with the request that the fetch makes.
    pub plan: fn(&mut Request) -> Result<Plan, Outcome>,
    /// Appends the key where no directive gives one.
    pub key: fn(&mut Request, &mut Vec<u8>) -> Result<(), Outcome>,
}
