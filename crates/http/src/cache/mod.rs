//! The cache of responses: between a location and its upstream exchange.
//!
//! ```text
//! handler (proxy, fastcgi, …) → serve
//!   serve        what a request is to the cache; hits in memory end here
//!   execute      carries out what `decide` says, and looks again where the store has changed
//!     unshared   an exchange for one client, stored if it turns out to be for all
//!     follow     a client that follows a fill, whoever began it
//!     parts      an object of which something is missing: what is there is served, the rest fetched alone
//!     answer     the response of what is stored, or of what is being fetched
//!   invalidate   purges, and unsafe methods, after which what is stored is no longer true
//!   lookup       the keys of a request, and what stands under them
//!
//! fetch          a request of its own to the origin, in a task of its own
//!   storing      from the head into the store, as `verdict` says
//!   content      the content, and what is done when it breaks off
//!   judging      what a response is good for
//!
//! decide         what is done with a request: a table without I/O, clock or store
//! verdict        what becomes of a response: the same
//! head           what is stored of a response beside its content
//! zone           `…_cache_path`: the stores, opened and looked after
//! ```
//!
//! The bytes are kept by the crate `cache`, which knows no HTTP; the rules of RFC 9111 are `proto::caching`, which knows
//! no I/O. Here they meet: directives, requests, exchanges.
//!
//! A miss starts one fetch, which belongs to no request: each client that asks for the key, including the first, follows
//! it with a cursor of its own, so that a slow or disconnected client does not affect the others. Only if the header says
//! that the response must not be shared is the exchange handed to the first client, and the others fetch for themselves.

mod answer;
mod ask;
mod content;
mod decide;
mod execute;
mod fetch;
mod first_client;
mod follow;
mod head;
mod inspect;
mod invalidate;
mod judging;
mod key;
mod lookup;
mod parts;
mod ranges;
mod serve;
mod settings;
mod source;
mod status;
mod storing;
mod unshared;
mod variables;
mod verdict;
mod zone;

pub use ask::Ask;
pub use cache::{Key, Kind, Listed, Mode, OpenError, Options, Purge, Stats, Store, Survey, survey};
pub use head::{Marker, StoredHead, Variant};
pub use inspect::{Inspected, inspect};
pub use serve::serve;
pub use settings::{Settings, StatusHeader, Which};
pub use source::Source;
pub use status::Status;
pub use variables::VARIABLES;
pub use zone::{Cache, Caches, Declared, Found, News, UPKEEP};
