//! The format of frames (RFC 9113, section 4), and writing them.
//!
//! ```text
//!   length: 3 bytes │ type: 1 │ flags: 1 │ stream: 4, top bit reserved │ payload: `length` bytes
//! ```

use super::error::ErrorCode;

/// The beginning of a client's connection (section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The length of a frame header.
pub const HEAD_LENGTH: usize = 9;

/// The largest payload that every peer accepts.
pub const MAX_FRAME_SIZE_DEFAULT: u32 = 1 << 14;

/// The largest payload that the length can express.
pub const MAX_FRAME_SIZE_MAX: u32 = (1 << 24) - 1;

/// The largest stream identifier.
pub const MAX_STREAM: u32 = (1 << 31) - 1;

/// Types of frames.
pub mod kind {
    /// Content.
    pub const DATA: u8 = 0x0;
    /// Begins a header block.
    pub const HEADERS: u8 = 0x1;
    /// The priority scheme of RFC 7540, which is deprecated and has no effect.
    pub const PRIORITY: u8 = 0x2;
    /// Ends a stream at once.
    pub const RST_STREAM: u8 = 0x3;
    /// Settings, or their acknowledgement.
    pub const SETTINGS: u8 = 0x4;
    /// Announces a stream that the server begins.
    pub const PUSH_PROMISE: u8 = 0x5;
    /// To be acknowledged with the same payload.
    pub const PING: u8 = 0x6;
    /// The sender accepts no more streams.
    pub const GOAWAY: u8 = 0x7;
    /// The peer may send more.
    pub const WINDOW_UPDATE: u8 = 0x8;
    /// Continues a header block.
    pub const CONTINUATION: u8 = 0x9;
    /// A new priority for a response (RFC 9218).
    pub const PRIORITY_UPDATE: u8 = 0x10;
}

/// Flags of frames.
pub mod flag {
    /// DATA, HEADERS: the sender's last frame of the stream.
    pub const END_STREAM: u8 = 0x1;
    /// SETTINGS, PING: an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// HEADERS, PUSH_PROMISE, CONTINUATION: the header block ends here.
    pub const END_HEADERS: u8 = 0x4;
    /// DATA, HEADERS, PUSH_PROMISE: a padding length and padding are present.
    pub const PADDED: u8 = 0x8;
    /// HEADERS: five bytes of priority are present.
    pub const PRIORITY: u8 = 0x20;
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// The payload's length in bytes.
    pub length: u32,
    /// One of [`kind`], or an unknown type.
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// The stream; 0 is the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Parses a frame header. The reserved bit is ignored.
    #[inline]
    pub fn parse(bytes: &[u8; HEAD_LENGTH]) -> FrameHead {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = *bytes;
        FrameHead {
            length: u32::from_be_bytes([0, l2, l1, l0]),
            kind,
            flags,
            stream: u32::from_be_bytes([s3, s2, s1, s0]) & MAX_STREAM,
        }
    }

    /// The frame header as bytes.
    #[inline]
    pub fn bytes(self) -> [u8; HEAD_LENGTH] {
        let [_, l2, l1, l0] = self.length.to_be_bytes();
        let [s3, s2, s1, s0] = self.stream.to_be_bytes();
        [l2, l1, l0, self.kind, self.flags, s3, s2, s1, s0]
    }
}

/// Appends the header of a frame whose payload the caller writes.
#[inline]
pub fn write_head(length: u32, kind: u8, flags: u8, stream: u32, out: &mut Vec<u8>) {
    let head = FrameHead {
        length,
        kind,
        flags,
        stream,
    };
    out.extend_from_slice(&head.bytes());
}

/// Appends the head of a DATA frame.
#[inline]
pub fn write_data_head(stream: u32, length: u32, end_stream: bool, out: &mut Vec<u8>) {
    let flags = if end_stream { flag::END_STREAM } else { 0 };
    write_head(length, kind::DATA, flags, stream, out);
}

/// Appends SETTINGS with these pairs of identifier and value.
pub fn write_settings(pairs: &[(u16, u32)], out: &mut Vec<u8>) {
    write_head(pairs.len() as u32 * 6, kind::SETTINGS, 0, 0, out);
    for (id, value) in pairs {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub fn write_settings_ack(out: &mut Vec<u8>) {
    write_head(0, kind::SETTINGS, flag::ACK, 0, out);
}

/// Appends PING, or the acknowledgement of one.
pub fn write_ping(ack: bool, opaque: [u8; 8], out: &mut Vec<u8>) {
    let flags = if ack { flag::ACK } else { 0 };
    write_head(8, kind::PING, flags, 0, out);
    out.extend_from_slice(&opaque);
}

/// Appends RST_STREAM.
pub fn write_reset(stream: u32, code: ErrorCode, out: &mut Vec<u8>) {
    write_head(4, kind::RST_STREAM, 0, stream, out);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Appends WINDOW_UPDATE; `increment` is at least 1 and at most 2^31-1. Stream 0 is the connection.
pub fn write_window_update(stream: u32, increment: u32, out: &mut Vec<u8>) {
    write_head(4, kind::WINDOW_UPDATE, 0, stream, out);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends GOAWAY without debug data. `last` is the last stream that was or may have been
/// processed.
pub fn write_goaway(last: u32, code: ErrorCode, out: &mut Vec<u8>) {
    write_head(8, kind::GOAWAY, 0, 0, out);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// A HEADERS frame whose header block is being appended to the output. If the block turns out
/// larger than the peer's frames may be, CONTINUATION frames follow.
#[must_use = "the frame's length is written by `finish`"]
pub struct HeadersFrame {
    at: usize,
    stream: u32,
    end_stream: bool,
}

impl HeadersFrame {
    /// Reserves room for the frame header; the caller appends the header block next.
    pub fn begin(stream: u32, end_stream: bool, out: &mut Vec<u8>) -> HeadersFrame {
        let at = out.len();
        out.extend_from_slice(&[0; HEAD_LENGTH]);
        HeadersFrame {
            at,
            stream,
            end_stream,
        }
    }

    /// Completes the frame: everything since [`HeadersFrame::begin`] is the header block.
    /// `max_frame_size` is the peer's.
    pub fn finish(self, max_frame_size: u32, out: &mut Vec<u8>) {
        let most = max_frame_size as usize;
        let block = self.at + HEAD_LENGTH;
        let length = out.len() - block;
        let mut flags = if self.end_stream { flag::END_STREAM } else { 0 };
        if length > most {
            let rest = out.split_off(block + most);
            self.write_continuations(&rest, most, out);
        } else {
            flags |= flag::END_HEADERS;
        }
        let head = FrameHead {
            length: length.min(most) as u32,
            kind: kind::HEADERS,
            flags,
            stream: self.stream,
        };
        out[self.at..block].copy_from_slice(&head.bytes());
    }

    fn write_continuations(&self, rest: &[u8], most: usize, out: &mut Vec<u8>) {
        let mut parts = rest.chunks(most).peekable();
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_none() {
                flag::END_HEADERS
            } else {
                0
            };
            let length = part.len() as u32;
            write_head(length, kind::CONTINUATION, flags, self.stream, out);
            out.extend_from_slice(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_were_written() {
        let head = FrameHead {
            length: 0x01_02_03,
            kind: kind::WINDOW_UPDATE,
            flags: 0xff,
            stream: MAX_STREAM,
        };
        let mut bytes = head.bytes();
        assert_eq!(bytes[..3], [1, 2, 3]);
        bytes[5] |= 0x80;
        assert_eq!(FrameHead::parse(&bytes), head);
    }

    #[test]
    fn a_header_block_is_split_at_the_peers_frame_size() {
        for (length, frames) in [(0, 1), (10, 1), (11, 2), (20, 2), (25, 3)] {
            let mut out = b"before".to_vec();
            let frame = HeadersFrame::begin(5, true, &mut out);
            let block: Vec<u8> = (0..length).collect();
            out.extend_from_slice(&block);
            frame.finish(10, &mut out);
            let mut rest = &out[6..];
            let (mut seen, mut joined) = (0, Vec::new());
            while let Some((bytes, after)) = rest.split_first_chunk() {
                let head = FrameHead::parse(bytes);
                let (payload, after) = after.split_at(head.length as usize);
                joined.extend_from_slice(payload);
                seen += 1;
                let (kind, mut flags) = match seen {
                    1 => (kind::HEADERS, flag::END_STREAM),
                    _ => (kind::CONTINUATION, 0),
                };
                flags |= if seen == frames { flag::END_HEADERS } else { 0 };
                assert_eq!((head.kind, head.flags, head.stream), (kind, flags, 5));
                rest = after;
            }
            assert_eq!((seen, joined), (frames, block));
        }
    }
}
