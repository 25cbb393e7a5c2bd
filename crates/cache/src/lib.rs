//! The cache: a disk store and the fills that write into it. It knows no HTTP.
//!
//! - [`Store`]: objects by key, on disk in log-structured segments, with the index in memory.
//! - [`Writer`] and [`Follower`]: a fill is an object of the cache, not of a request. The fetch writes
//!   it once; each client follows with a cursor of its own while it grows.
//!
//! Heads, tags and times are the caller's: the crate keeps them and gives them back. Why the store is as it is
//! stands in `docs/design/2026-11-21-cache-store.md`, its bytes in `format.rs`.
//!
//! The rules of RFC 9111, the directives and the choice of what to store stand above it, in `http`.
#![forbid(unsafe_code)]

mod checksum;
mod fill;
mod fill_commit;
mod fill_table;
mod fill_writer;
mod follower;
mod format;
mod index;
mod key;
mod load;
mod log;
mod lookup;
mod memory;
mod object;
mod options;
pub mod policy;
mod purge;
mod reclaim;
mod room;
mod segment;
mod store;
mod store_core;
mod survey;
mod upkeep;

pub use fill::{Abandoned, Coverage, Ended, Failure, Instead};
pub use fill_writer::Writer;
pub use follower::{Follower, Part};
pub use key::{Head, Key, Kind, Meta};
pub use lookup::{Lookup, Miss, Why};
pub use object::{FileRange, Object, ReadError, Seen};
pub use options::{OpenError, Options};
pub use purge::{Mode, Purge};
pub use store::{FillStart, FillState, Stats, Store};
pub use survey::{Listed, Survey, survey};
