//! HTTP/1: message heads and body framing (RFC 9112), as nginx reads and writes them.
//!
//! [`request`] and [`response`] read heads incrementally from a growing buffer; [`reject`] says
//! why one was refused and what to answer; [`body`] knows where a body ends and decodes and encodes
//! the chunked coding; [`response`] also writes response heads.

pub mod body;
mod field_line;
mod head;
pub mod method;
pub mod reject;
pub mod request;
mod request_line;
pub mod response;

pub use body::{ChunkDecoder, Framing, Piece};
pub use method::Method;
pub use reject::{Reject, RejectKind};
pub use request::{Head, Limits, Parser, Status, TargetForm, Version};

pub(crate) use request_line::is_ip_literal_byte;
