//! The words every other crate of Weir uses: byte strings, source positions, units, hashes, a bounded map, handlers by
//! phase.
//!
//! It exists so that two crates that must not know each other can still speak of the same things.
//! It does no I/O, keeps no global state and knows neither a protocol nor the configuration language.
#![forbid(unsafe_code)]

mod errno;
pub mod hash;
pub mod lru;
pub mod number_map;
pub mod phases;
pub mod slab;
pub mod span;
pub mod sync;
pub mod text;
pub mod text_table;
pub mod units;

pub use errno::ErrnoText;
pub use lru::Lru;
pub use number_map::NumberMap;
pub use slab::Slab;
pub use span::{FileId, Span};
pub use text::{BStr, BString, ByteSlice};
pub use text_table::TextTable;
