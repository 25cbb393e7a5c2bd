//! The cache of responses: between a location and its upstream exchange.
//!
//! ```text
//! handler (proxy, fastcgi, …) → admission
//!   admission           how a request concerns the cache; hits in memory end here
//!   execute             carries out what `decide` says, and looks up again if the store has changed
//!     unshared          an exchange for one client, stored if it turns out to be for all
//!     follow            a client that follows a fill, whichever request started it
//!     partial_content   a partial object: the stored part is served, the rest is fetched alone
//!     cache_response    the response from a stored object or from a fill
//!   invalidate          purges, and unsafe methods, which outdate what is stored
//!   explained           what admission would decide, for `weir explain`
//!   lookup              the keys of a request, and what is stored under them
//!   cluster_answer      what another member of the cluster gets
//!
//! fetch                 a request of its own to the origin, in a task of its own
//!   storing             from the response head into the store, as `fetch_verdict` says
//!   cluster_fetch       the owner of the key in the cluster is asked before the origin
//!   fetch_content       the body, and what happens if it breaks off
//!   storable_response   whether a response may be stored
//!
//! decide                what is done with a request: a table without I/O, clock or store
//! fetch_verdict         what is done with a response: the same
//! stored_head           the format of a stored response's head
//! copy_head             the same for compressed copies of stored responses
//! zone                  `…_cache_path`: the stores, their opening and their upkeep
//! zone_journal        the purges of a zone that a cluster keeps
//! ```
//!
//! The bytes are kept by the crate `cache`, which knows no HTTP; the rules of RFC 9111 are `proto::caching`, which
//! knows no I/O. Here they meet: directives, requests, exchanges.
//!
//! A miss starts one fetch, which belongs to no request: each client that asks for the key, including the first,
//! follows it with a cursor of its own, so that a slow or disconnected client does not affect the others. If the
//! response head says that the response must not be shared, the exchange is handed to the first client, and the others
//! fetch for themselves.

mod admission;
mod cache_response;
mod cache_settings;
mod cache_status;
mod cached_protocol;
mod cluster_answer;
mod cluster_fetch;
mod copy_head;
mod decide;
mod execute;
mod explained;
mod fetch;
mod fetch_content;
mod fetch_fields;
mod fetch_verdict;
mod first_client;
mod follow;
mod inspect;
mod invalidate;
mod key;
mod lookup;
mod partial_content;
mod ranges;
mod storable_response;
mod stored_head;
mod storing;
mod unshared;
mod variables;
mod zone;
mod zone_journal;

pub use admission::serve_cached;
pub use cache::{
    CacheKey, CacheStore, ObjectKind, PurgeMode, PurgeRequest, StoreOpenError, StoreOptions,
    StoreStats, StoreSurvey, SurveyedObject, survey_store,
};
pub use cache_settings::{CacheChoice, CacheCondition, CacheSettings, StatusHeader};
pub use cache_status::UpstreamCacheStatus;
pub use cached_protocol::CachedProtocol;
pub use copy_head::CopyHead;
pub(crate) use explained::explain_admission;
pub use explained::{ExplainedCache, ExplainedCacheUse};
pub use fetch_fields::FetchFields;
pub use inspect::{InspectedEntry, inspect_stored};
pub use stored_head::{MarkerHead, StoredHead, StoredVariant};
pub use variables::VARIABLES;
pub use zone::{CacheZone, CacheZones, OpenedStore, UPKEEP, ZoneEvent, ZoneParameters};
pub use zone_journal::JournaledZone;
