//! HTTP/2 (RFC 9113) without sockets: frames, settings, windows, and header compression (RFC 7541).
//!
//! Nothing here knows whether it is a client or a server: the connection that uses it decides what
//! each role may send. A peer's bytes go through [`FrameReader`], which buffers nothing but an
//! incomplete header block; header blocks go through [`hpack::HpackDecoder`]; output is appended to a
//! `Vec<u8>` by [`frame`] and [`hpack::HpackEncoder`].
//!
//! ```text
//!   input ──▶ FrameReader ──▶ FrameEvent::Headers { block } ──▶ hpack::HpackDecoder ──▶ name, value …
//!                        └──▶ FrameEvent::Data { bytes } …
//!   output ◀── frame::write_* ◀── hpack::HpackEncoder ◀── name, value …
//! ```

pub mod client;
pub mod error;
pub mod event;
pub mod frame;
pub mod hpack;
pub mod reader;
pub mod settings;
pub mod window;

pub use crate::field_section::{MalformedRequest, RequestReader, ResponsePriority, request, rules};
pub use client::H2ClientConnection;
pub use error::{ConnectionError, ErrorCode};
pub use event::{FrameEvent, HeaderBlock};
pub use frame::PREFACE;
pub use reader::{FrameReader, ReaderLimits};
pub use settings::H2Settings;
pub use window::FlowControlWindow;
