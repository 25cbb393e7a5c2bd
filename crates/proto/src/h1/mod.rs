//! HTTP/1: how message heads and bodies are written (RFC 9112), as nginx reads and writes them.
//!
//! [`request`] and [`response`] read heads incrementally from a growing buffer; [`body`] decodes and encodes the
//! chunked coding; [`response`] also writes response heads. What the heads become is in [`message`](crate::message).

pub mod body;
mod field_line;
pub mod request;
mod request_line;
pub mod response;

pub use body::{ChunkDecoder, ChunkPiece};
pub use request::{HeadLimits, RequestParser, RequestProgress};

pub(crate) use request_line::is_ip_literal_byte;
