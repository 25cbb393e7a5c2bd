//! The cache: a disk store and the fills that write into it. It knows no HTTP.
//!
//! - [`CacheStore`]: objects by key, on disk in log-structured segments, with the index in memory.
//! - [`FillWriter`] and [`FillFollower`]: a fill is an object of the cache, not of a request. The fetch writes
//!   it once; each client follows with a cursor of its own while it grows.
//!
//! Heads, tags and times are the caller's: the crate keeps them and gives them back. Why the store is as it is
//! stands in `docs/design/2026-11-21-cache-store.md`, its bytes in `format.rs`.
//!
//! The rules of RFC 9111, the directives and the choice of what to store stand above it, in `http`.
#![forbid(unsafe_code)]

mod checksum;
mod disk_space;
mod fill;
mod fill_commit;
mod fill_follower;
mod fill_table;
mod fill_writer;
mod format;
mod index;
mod key;
mod lookup;
mod memory;
mod note_file;
mod note_format;
mod object;
mod open_store;
mod options;
mod purge;
mod reclaim;
pub mod s3_fifo;
mod segment;
mod sibling_stores;
mod store;
mod store_core;
mod store_log;
mod store_note;
mod survey;
mod upkeep;

pub use fill::{
    FeedMark, FillAbandoned, FillCoverage, FillFailure, FillFeed, FillMessage, FollowError,
};
pub use fill_follower::{FillChunk, FillFollower};
pub use fill_writer::FillWriter;
pub use key::{CacheKey, ObjectHead, ObjectKind, ObjectMeta};
pub use lookup::{LookupResult, MissReason, StaleReason};
pub use object::{CachedObject, ReadError, SeenLocation, SegmentRange};
pub use options::{StoreOpenError, StoreOptions};
pub use purge::{PurgeMode, PurgeRequest};
pub use sibling_stores::remove_numbered_stores;
pub use store::{CacheStore, FillStart, FillState, StoreStats, WantedFill};
pub use survey::{StoreSurvey, SurveyedObject, survey_store};
