//! HTTP/3 (RFC 9114) without sockets: frames, settings, types of streams.
//!
//! A QUIC stream's bytes go through an [`H3FrameReader`], in pieces of any size: it keeps the beginning of a frame's
//! head and incomplete payloads within bounds, never content. Header blocks go through
//! [`qpack`](crate::qpack); output is appended to a `Vec<u8>` by [`frame`].
//!
//! ```text
//!   request stream ──▶ H3FrameReader ──▶ Head, Trailers { block } ──▶ qpack::QpackDecoder ──▶ name, value …
//!                                   └──▶ Data { bytes } …
//!   control stream ──▶ H3FrameReader ──▶ Settings, GoAway, PriorityUpdate …
//! ```

pub mod error;
pub mod frame;
pub mod reader;
pub mod settings;
pub mod stream_type;
pub mod varint;

pub use error::{FaultScope, H3Error, H3ErrorCode};
pub use reader::{FramePlace, H3Event, H3FrameReader};
pub use settings::H3Settings;
pub use stream_type::UniStreamType;
pub use varint::VarintReader;
