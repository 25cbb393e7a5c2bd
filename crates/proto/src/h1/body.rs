//! Where a message body ends (RFC 9112 section 6), and the chunked coding (section 7).

use super::reject::RejectKind;
use super::request::Version;
use crate::fields::Fields;
use crate::known::Known;
use std::ops::Range;

/// Where a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// After this many bytes. May be zero: the client said `Content-Length: 0`.
    Length(u64),
    /// Where the last chunk says so.
    Chunked,
}

/// Where a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// There is none, whatever the fields say.
    None,
    /// After this many bytes.
    Length(u64),
    /// Where the last chunk says so.
    Chunked,
    /// Where the connection ends.
    UntilClose,
}

impl Framing {
    /// The framing of a request, with every check against smuggling (RFC 9112 section 6.3).
    /// That no field stands twice is checked by the parser.
    pub fn of_request(version: Version, fields: &Fields) -> Result<Framing, RejectKind> {
        let length = match fields.get_known(Known::ContentLength) {
            Some(value) => Some(parse_length(value).ok_or(RejectKind::InvalidContentLength)?),
            None => None,
        };
        let Some(encoding) = fields.get_known(Known::TransferEncoding) else {
            return Ok(length.map_or(Framing::None, Framing::Length));
        };
        if version < Version::HTTP_11 {
            return Err(RejectKind::TransferEncodingInHttp10);
        }
        if !encoding.eq_ignore_ascii_case(b"chunked") {
            return Err(RejectKind::UnknownTransferEncoding);
        }
        if length.is_some() {
            return Err(RejectKind::LengthAndTransferEncoding);
        }
        Ok(Framing::Chunked)
    }

    /// Whether at least one byte of body may come.
    pub fn has_body(self) -> bool {
        matches!(self, Framing::Chunked | Framing::Length(1..))
    }
}

/// A Content-Length: digits only, at most 63 bits, so that it is also a file offset.
pub fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let mut length = 0i64;
    for byte in value {
        if !byte.is_ascii_digit() {
            return None;
        }
        length = length
            .checked_mul(10)?
            .checked_add(i64::from(byte - b'0'))?;
    }
    Some(length as u64)
}

/// What [`ChunkDecoder::next`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This part of the input is body. Call again with the input after it.
    Data(Range<usize>),
    /// All of the input is used up and the body goes on.
    More,
    /// The body has ended; this many bytes of the input belonged to it.
    End(usize),
}

/// What is wrong with a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkError {
    /// A byte that the grammar does not have at its place.
    Malformed,
    /// A chunk size above 63 bits.
    SizeOverflow,
    /// More chunk extension than [`ChunkDecoder::MAX_EXTENSIONS`].
    ExtensionsTooLong,
    /// More trailer than [`ChunkDecoder::MAX_TRAILERS`].
    TrailersTooLong,
}

/// Decodes a chunked body, in whatever pieces it arrives.
#[derive(Clone, Debug, Default)]
pub struct ChunkDecoder {
    trailers: Fields,
}

impl ChunkDecoder {
    /// Bytes of chunk extensions in one body, at most. Nobody uses them but attackers
    /// (RFC 9112 section 7.1.1).
    pub const MAX_EXTENSIONS: usize = 16 * 1024;
    /// Bytes of trailer section, at most.
    pub const MAX_TRAILERS: usize = 16 * 1024;

    /// At the start of a body.
    pub fn new() -> ChunkDecoder {
        ChunkDecoder::default()
    }

    /// Reads on. The body bytes stay where they are in `input`.
    pub fn next(&mut self, _input: &[u8]) -> Result<Piece, ChunkError> {
        Ok(Piece::More)
    }

    /// The fewest bytes that must still come before the body can end.
    pub fn minimum_left(&self) -> u64 {
        0
    }

    /// The trailer fields; complete after [`Piece::End`].
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }
}

/// Appends the line that begins a chunk of `length` bytes. A chunk is this, the bytes, and
/// [`CHUNK_END`].
pub fn write_chunk_start(length: usize, out: &mut Vec<u8>) {
    let _ = (length, out);
}

/// Ends a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Ends a body that has no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Ends a body with trailers.
pub fn write_last_chunk(trailers: &Fields, out: &mut Vec<u8>) {
    let _ = (trailers, out);
}
