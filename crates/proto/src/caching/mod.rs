//! The rules of HTTP caches (RFC 9111), without I/O and without a clock.
//!
//! ```text
//! a response from the origin   → storing          store it, for how long, or why not
//!   what of it is stored       → storable_fields  without what belongs to one connection or one client
//! a request and what is stored → vary             which of the variants
//!                              → reuse            serve it, serve it and renew it, or ask the origin first
//! the origin's 304             → merge            the stored fields, renewed
//! a POST that succeeded        → invalidation
//! what a cache did             → status           the Cache-Status field (RFC 9211)
//! ```
//!
//! Who decides: the origin by Cache-Control, by the fields addressed to caches like this one
//! ([`targeted`]) and by `X-Accel-Expires`; the operator by [`StoringRules`]. Where nginx and the RFC
//! differ, the difference is a field of [`StoringRules`]. Keys, stores and directives are unknown here.

pub mod freshness;
pub mod invalidation;
pub mod merge;
pub mod reuse;
pub mod status;
pub mod storable_fields;
pub mod storing;
pub mod structured;
pub mod targeted;
pub mod vary;

pub use freshness::{Freshness, LifetimeSource};
pub use invalidation::{invalidated_targets, invalidates, response_tags};
pub use merge::{HeadUpdate, head_update, merge_304, stored_validators};
pub use reuse::{RequestControl, ReuseDecision, StaleRules, decide_reuse};
pub use storable_fields::storable_fields;
pub use storing::{
    HeuristicLifetime, NotStoredReason, ReceivedResponse, StoringRequest, StoringRules,
    StoringVerdict, decide_storing, is_validated,
};
