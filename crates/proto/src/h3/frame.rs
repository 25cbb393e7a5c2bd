//! Frames as they are written (RFC 9114, section 7; RFC 9218, section 7.2).
//!
//! ```text
//!   +----------+------------+-------------+
//!   | type (i) | length (i) | payload …   |      (i): an integer of variable length
//!   +----------+------------+-------------+
//! ```

use super::error::H3ErrorCode;
use super::varint;

/// Types of frames.
pub mod kind {
    /// Content.
    pub const DATA: u64 = 0x0;
    /// A header block.
    pub const HEADERS: u64 = 0x1;
    /// A push is not wanted.
    pub const CANCEL_PUSH: u64 = 0x3;
    /// What the sender supports.
    pub const SETTINGS: u64 = 0x4;
    /// A pushed response is announced.
    pub const PUSH_PROMISE: u64 = 0x5;
    /// The connection ends.
    pub const GOAWAY: u64 = 0x7;
    /// How many pushes the client accepts.
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// The priority of a response.
    pub const PRIORITY_UPDATE: u64 = 0xf0700;
    /// The priority of a pushed response.
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;

    /// Whether the type belongs to HTTP/2 and must not occur (RFC 9114, section 7.2.8).
    pub fn is_forbidden(kind: u64) -> bool {
        matches!(kind, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// The most bytes of a frame's head that this module writes.
pub const HEAD_MAX: usize = 9;

/// Appends the head of a DATA frame.
#[inline]
pub fn write_data_head(length: u64, out: &mut Vec<u8>) {
    varint::write(kind::DATA, out);
    varint::write(length, out);
}

/// A HEADERS frame under way. Its block is appended behind the head; the length is known last.
#[must_use]
#[derive(Debug)]
pub struct HeadersFrame {
    /// Where the length stands in the output.
    length_at: usize,
}

/// How many bytes are reserved for the length of a block: enough for 16 KB, and more is moved.
const LENGTH_RESERVED: usize = 2;

impl HeadersFrame {
    /// Appends the head.
    #[inline]
    pub fn begin(out: &mut Vec<u8>) -> HeadersFrame {
        out.push(kind::HEADERS as u8);
        let length_at = out.len();
        out.extend_from_slice(&[0; LENGTH_RESERVED]);
        HeadersFrame { length_at }
    }

    /// Fills in the length of what was appended since.
    #[inline]
    pub fn finish(self, out: &mut Vec<u8>) {
        let length = out.len() - self.length_at - LENGTH_RESERVED;
        if length < 0x4000 {
            let bytes = (length as u16 | 0x4000).to_be_bytes();
            out[self.length_at..self.length_at + LENGTH_RESERVED].copy_from_slice(&bytes);
            return;
        }
        let mut head = Vec::with_capacity(8);
        varint::write(length as u64, &mut head);
        out.splice(self.length_at..self.length_at + LENGTH_RESERVED, head);
    }
}

/// Appends SETTINGS.
pub fn write_settings(settings: &[(u64, u64)], out: &mut Vec<u8>) {
    let length: usize = settings
        .iter()
        .map(|(id, value)| varint::length(*id) + varint::length(*value))
        .sum();
    varint::write(kind::SETTINGS, out);
    varint::write(length as u64, out);
    for (id, value) in settings {
        varint::write(*id, out);
        varint::write(*value, out);
    }
}

/// Appends GOAWAY: requests on streams from `id` on are not processed.
pub fn write_goaway(id: u64, out: &mut Vec<u8>) {
    varint::write(kind::GOAWAY, out);
    varint::write(varint::length(id) as u64, out);
    varint::write(id, out);
}

/// A code for the log.
impl std::fmt::Display for H3ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}
