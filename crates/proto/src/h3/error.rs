//! Error codes (RFC 9114, section 8.1; RFC 9204, section 6), and what a client did to earn one.

/// An error code of HTTP/3 or of QPACK, as it stands in RESET_STREAM, STOP_SENDING and CONNECTION_CLOSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3ErrorCode(pub u64);

impl H3ErrorCode {
    /// Nothing is wrong.
    pub const NO_ERROR: H3ErrorCode = H3ErrorCode(0x100);
    /// The peer broke the protocol in a way for which there is no other code.
    pub const GENERAL_PROTOCOL_ERROR: H3ErrorCode = H3ErrorCode(0x101);
    /// A fault of the sender of the code.
    pub const INTERNAL_ERROR: H3ErrorCode = H3ErrorCode(0x102);
    /// A stream that the peer must not open, or does not have to be accepted.
    pub const STREAM_CREATION_ERROR: H3ErrorCode = H3ErrorCode(0x103);
    /// A stream that the connection needs was closed.
    pub const CLOSED_CRITICAL_STREAM: H3ErrorCode = H3ErrorCode(0x104);
    /// A frame that must not come now, or not on this stream.
    pub const FRAME_UNEXPECTED: H3ErrorCode = H3ErrorCode(0x105);
    /// A frame of the wrong length or layout.
    pub const FRAME_ERROR: H3ErrorCode = H3ErrorCode(0x106);
    /// The peer causes too much work.
    pub const EXCESSIVE_LOAD: H3ErrorCode = H3ErrorCode(0x107);
    /// An identifier that is out of bounds, or goes in the wrong direction.
    pub const ID_ERROR: H3ErrorCode = H3ErrorCode(0x108);
    /// A fault in SETTINGS.
    pub const SETTINGS_ERROR: H3ErrorCode = H3ErrorCode(0x109);
    /// The control stream does not begin with SETTINGS.
    pub const MISSING_SETTINGS: H3ErrorCode = H3ErrorCode(0x10a);
    /// The request was not processed at all; it may be sent again.
    pub const REQUEST_REJECTED: H3ErrorCode = H3ErrorCode(0x10b);
    /// The request, or its response, is not wanted any more.
    pub const REQUEST_CANCELLED: H3ErrorCode = H3ErrorCode(0x10c);
    /// The stream ended before the request did.
    pub const REQUEST_INCOMPLETE: H3ErrorCode = H3ErrorCode(0x10d);
    /// The message is malformed.
    pub const MESSAGE_ERROR: H3ErrorCode = H3ErrorCode(0x10e);
    /// The connection that a CONNECT asked for was reset.
    pub const CONNECT_ERROR: H3ErrorCode = H3ErrorCode(0x10f);
    /// The request has to be made by an earlier version of HTTP.
    pub const VERSION_FALLBACK: H3ErrorCode = H3ErrorCode(0x110);
    /// A header block that cannot be decompressed.
    pub const QPACK_DECOMPRESSION_FAILED: H3ErrorCode = H3ErrorCode(0x200);
    /// A fault on the encoder stream.
    pub const QPACK_ENCODER_STREAM_ERROR: H3ErrorCode = H3ErrorCode(0x201);
    /// A fault on the decoder stream.
    pub const QPACK_DECODER_STREAM_ERROR: H3ErrorCode = H3ErrorCode(0x202);
}

/// What an error ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultScope {
    /// The stream on which it occurred.
    Stream,
    /// The connection.
    Connection,
}

/// What a peer did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3Error {
    /// The code that tells it so.
    pub code: H3ErrorCode,
    /// What it ends.
    pub scope: FaultScope,
    /// What it sent, for the log: the line begins with "client sent" unless this begins with "http3".
    pub what: &'static str,
}

impl H3Error {
    /// An error that ends the connection (RFC 9114, section 8).
    pub const fn connection(code: H3ErrorCode, what: &'static str) -> H3Error {
        H3Error {
            code,
            scope: FaultScope::Connection,
            what,
        }
    }

    /// An error that ends only its stream.
    pub const fn stream(code: H3ErrorCode, what: &'static str) -> H3Error {
        H3Error {
            code,
            scope: FaultScope::Stream,
            what,
        }
    }
}
