//! HPACK: the compression of header fields (RFC 7541), both directions.

mod decoder;
mod encoder;
mod integer;
mod static_table;
mod table;

pub use decoder::{Decoded, Decoder, Field, HpackError, ListLimits};
pub use encoder::{Encoder, Secrecy};

/// What a dynamic table may hold before settings say otherwise, in bytes as the RFC counts them.
pub const TABLE_SIZE_DEFAULT: usize = 4096;

/// What the RFC adds to the texts of an entry or of a field (sections 4.1 and 6.5.2).
pub const ENTRY_OVERHEAD: usize = 32;
