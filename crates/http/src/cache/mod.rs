//! The cache of responses: between a location and its upstream exchange.
//!
//! ```text
//! handler (proxy, fastcgi, …) → serve
//!   visit      one request at the cache: key, lookup, what is done with what is found
//!   following  a request that fetches, or follows whoever does
//!   fetch      a fetch: a task of its own with a request of its own, which writes into the store
//!   content    its content, and what is done when that breaks off
//!   answer     the response of what is stored, or of what somebody fetches
//!   parts      an object of which something is missing: what is there is served, the rest fetched alone
//!   changes    requests that change what the cache has: purges, unsafe methods
//!   head       what is stored of a response beside its content
//!   zone       `…_cache_path`: the stores, opened and looked after
//! ```
//!
//! The bytes are kept by the crate `cache`, which knows no HTTP; the rules of RFC 9111 are `proto::caching`, which knows
//! no I/O. Here they meet: directives, requests, exchanges.
//!
//! A miss starts one fetch, which belongs to no request: each client that asks for the key, including the first, follows
//! it with a cursor of its own, so that a slow or disconnected client does not affect the others. Only if the header says
//! that the response must not be shared is the exchange handed to the first client, and the others fetch for themselves.

mod answer;
mod changes;
mod content;
mod fetch;
mod following;
mod head;
mod inspect;
mod parts;
mod settings;
mod visit;
mod zone;

use conf::Variable;

use crate::module::Outcome;
use crate::request::Request;
use crate::upstream::Plan;

pub use cache::{Key, Kind, Listed, Mode, OpenError, Options, Purge, Stats, Store, Survey, survey};
pub use fetch::Ask;
pub use head::{Marker, StoredHead, Variant};
pub use inspect::{Inspected, inspect};
pub use settings::{Settings, StatusHeader, UseStale, Which};
pub use visit::serve;
pub use zone::{Cache, Caches, Declared, Found, News, UPKEEP};

/// What a protocol module brings.
pub struct Source {
    /// How a request is passed on. It is asked once for each fetch, with the request that the fetch makes.
    pub plan: fn(&mut Request) -> Result<Plan, Outcome>,
    /// Appends the key where no directive gives one.
    pub key: fn(&mut Request, &mut Vec<u8>) -> Result<(), Outcome>,
}

/// What the cache did with a request: `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// There was nothing.
    Miss,
    /// It was told not to look.
    Bypass,
    /// What there was is stale, and the origin was asked.
    Expired,
    /// What there was is stale, and was served.
    Stale,
    /// The same, while somebody renews it.
    Updating,
    /// What there was is stale, and the origin said that it is good.
    Revalidated,
    /// It was there.
    Hit,
}

impl Status {
    /// nginx's word.
    pub fn word(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}

/// The variables `$upstream_cache_…`.
pub static VARIABLES: &[Variable<Request>] = &[
    Variable::new(
        "upstream_cache_status",
        |request: &mut Request, out| {
            let status = request.upstream.get().and_then(|record| record.cache);
            status.is_some_and(|status| {
                out.extend_from_slice(status.word().as_bytes());
                true
            })
        },
        "What the cache did: MISS, BYPASS, EXPIRED, STALE, UPDATING, REVALIDATED or HIT.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_last_modified",
        |request: &mut Request, out| {
            let ask = request.state::<Ask>();
            let value = ask.and_then(|ask| ask.last_modified.as_ref());
            value.is_some_and(|value| {
                out.extend_from_slice(value);
                true
            })
        },
        "The `Last-Modified` header of the stale object being revalidated.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_etag",
        |request: &mut Request, out| {
            let ask = request.state::<Ask>();
            let value = ask.and_then(|ask| ask.etag.as_ref());
            value.is_some_and(|value| {
                out.extend_from_slice(value);
                true
            })
        },
        "The `ETag` header of the stale object being revalidated.",
    )
    .volatile(),
    Variable::new(
        "upstream_cache_age",
        |request: &mut Request, out| {
            let record = request.upstream.get();
            let Some(age) = record.and_then(|record| record.cache_age_s) else {
                return false;
            };
            base::text::write_number(age.into(), out);
            true
        },
        "The age of the object that was served, in seconds.",
    )
    .volatile(),
];
