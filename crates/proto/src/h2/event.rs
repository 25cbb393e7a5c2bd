//! What comes out of [`FrameReader`](super::FrameReader): a frame, a piece of one, or a header block from several.

use super::error::ErrorCode;
use std::ops::Deref;

/// What a peer has sent.
#[derive(Debug)]
pub enum FrameEvent<'a> {
    /// No complete event: the unused input must be passed again with more.
    More,
    /// Content of a stream, or a part of it.
    Data {
        /// The stream.
        stream: u32,
        /// The content.
        bytes: &'a [u8],
        /// What this piece counts for flow control: content and padding.
        counted: u32,
        /// This is the first piece of its frame.
        begins: bool,
        /// The peer has ended its side of the stream with this piece.
        end_stream: bool,
    },
    /// A complete header block.
    Headers {
        /// The stream.
        stream: u32,
        /// The encoded fields. They must be decoded even if the stream is refused, since the table
        /// depends on them.
        block: HeaderBlock<'a>,
        /// The peer has ended its side of the stream.
        end_stream: bool,
        /// The stream depends on itself: a stream error (RFC 7540, section 5.3.1).
        depends_on_itself: bool,
    },
    /// The priority of RFC 7540. It has no effect, but callers may count it.
    Priority {
        /// The stream.
        stream: u32,
    },
    /// RST_STREAM.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason.
        code: ErrorCode,
    },
    /// SETTINGS, for [`H2Settings::apply`](super::H2Settings::apply); must be acknowledged.
    Settings(&'a [u8]),
    /// The acknowledgement of our SETTINGS.
    SettingsAck,
    /// A server announces a pushed stream.
    PushPromise {
        /// The stream of the associated request.
        stream: u32,
        /// The new stream.
        promised: u32,
        /// The encoded fields of the promised request.
        block: HeaderBlock<'a>,
    },
    /// PING, or the acknowledgement of ours.
    Ping {
        /// Whether it is an acknowledgement.
        ack: bool,
        /// The payload, to be returned unchanged.
        opaque: [u8; 8],
    },
    /// The peer accepts no more streams.
    GoAway {
        /// The last stream that it has processed or may process.
        last: u32,
        /// The reason.
        code: ErrorCode,
    },
    /// More may be sent on a stream, or on the connection.
    WindowUpdate {
        /// The stream; 0 is the connection.
        stream: u32,
        /// The number of bytes, at least 1.
        increment: u32,
    },
    /// A new priority for a response (RFC 9218).
    PriorityUpdate {
        /// The stream of the response.
        stream: u32,
        /// The value of a Priority field.
        value: &'a [u8],
    },
    /// A frame of an unknown type, whose payload is skipped.
    Unknown {
        /// The type.
        kind: u8,
        /// The payload's length in bytes.
        length: u32,
    },
    /// An invalid frame that ends its stream only.
    StreamError {
        /// The stream.
        stream: u32,
        /// The code for RST_STREAM.
        code: ErrorCode,
        /// What the peer sent, for the log.
        what: &'static str,
    },
}

/// A header block: a part of the input, or gathered from several frames.
#[derive(Debug)]
pub enum HeaderBlock<'a> {
    /// It came in one frame.
    Input(&'a [u8]),
    /// It came in several.
    Gathered(Vec<u8>),
}

impl Deref for HeaderBlock<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            HeaderBlock::Input(bytes) => bytes,
            HeaderBlock::Gathered(bytes) => bytes,
        }
    }
}
