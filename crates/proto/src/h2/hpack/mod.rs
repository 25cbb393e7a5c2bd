//! HPACK: the compression of header fields (RFC 7541), both directions.

mod decoder;
mod encoder;
mod integer;
mod static_table;
mod table;

pub use decoder::{DecodedField, DecodedList, HpackDecoder, HpackError, ListLimits};
pub use encoder::{FieldSecrecy, HpackEncoder};

/// The maximum size of a dynamic table before settings say otherwise, in bytes as the RFC counts
/// them.
pub const TABLE_SIZE_DEFAULT: usize = 4096;

/// What the RFC adds to the size of an entry or a field (sections 4.1 and 6.5.2).
pub const ENTRY_OVERHEAD: usize = 32;
