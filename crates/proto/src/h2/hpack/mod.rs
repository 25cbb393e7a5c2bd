//! HPACK: the compression of header fields (RFC 7541), both directions.

mod decoder;
mod encoder;
mod static_table;

pub use crate::field_section::{
    DecodedField, DecodedList, ENTRY_OVERHEAD, FieldSecrecy, ListLimits,
};
pub use decoder::{HpackDecoder, HpackError};
pub use encoder::HpackEncoder;

/// The maximum size of a dynamic table before settings say otherwise, in bytes as the RFC counts
/// them.
pub const TABLE_SIZE_DEFAULT: usize = 4096;
