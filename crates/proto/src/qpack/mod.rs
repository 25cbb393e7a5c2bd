//! QPACK: the compression of header fields of HTTP/3 (RFC 9204).
//!
//! Unlike HPACK's, the dynamic table is filled by instructions on a stream of its own, so that a lost packet delays only
//! the blocks that need what it contained. A block says how many insertions it needs; until they have come its stream is
//! *blocked*.
//!
//! ```text
//!   encoder stream ─▶ QpackDecoder::handle_instructions ──▶ table ──▶ which streams may go on
//!   header block   ─▶ QpackDecoder::decode ──▶ name, value …            (or: the stream is blocked)
//!   decoder stream ◀─ QpackDecoder::take_output
//! ```
//!
//! Our own blocks ([`QpackEncoder`]) use the static table only: no response ever waits for another packet, and nothing has to
//! be remembered of what the peer has acknowledged.

mod decoder;
mod encoder;
mod static_table;

pub use decoder::{QpackDecoder, QpackError, SectionOutcome};
pub use encoder::{DecoderStreamReader, QpackEncoder};
