//! HTTP/2 (RFC 9113) without sockets: frames, settings, windows, and header compression (RFC 7541).
//!
//! Nothing here knows whether it serves a client or asks a server; what a role may send is for the
//! connection that uses this to judge. A peer's bytes come in through [`FrameReader`], which holds
//! no payload except a header block that is not complete; header blocks go through
//! [`hpack::Decoder`]; what is written goes to a `Vec<u8>`, by [`frame`] and [`hpack::Encoder`].
//!
//! ```text
//!   input ──▶ FrameReader ──▶ Event::Headers { block } ──▶ hpack::Decoder ──▶ name, value …
//!                        └──▶ Event::Data { bytes } …
//!   output ◀── frame::write_* ◀── hpack::Encoder ◀── name, value …
//! ```

pub mod client;
pub mod error;
pub mod frame;
pub mod hpack;
pub mod priority;
pub mod reader;
pub mod request;
pub mod rules;
pub mod settings;
pub mod window;

pub use client::Client;
pub use error::{ConnectionError, ErrorCode};
pub use frame::PREFACE;
pub use priority::Priority;
pub use reader::{Block, Event, FrameReader, ReaderLimits};
pub use request::{Malformed, RequestReader};
pub use settings::Settings;
pub use window::Window;
