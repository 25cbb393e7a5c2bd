//! The chunked coding (RFC 9112 section 7).
//!
//! The decoder copies nothing: it says which part of its input is body. It keeps no more than the
//! trailer section, which is bounded. A bare LF is no line end here, unlike in heads: chunk
//! headers come from programs, and every known smuggling trick with chunks needs a sloppy one.

use super::field_line;
use crate::fields::Fields;
use crate::known_fields::KnownField;
use crate::message::UnderscorePolicy;
use memchr::memchr2;
use std::ops::Range;

/// What [`ChunkDecoder::next_piece`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkPiece {
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
///
/// ```text
/// Size ──CR──▶ SizeEnd ──LF──▶ Data ──▶ DataEnd ──CR──▶ DataEndLf ──LF──▶ Size
///   └─; SP─▶ Extension ─CR─▲    │ size 0
///                               └──▶ Trailer ─byte─▶ TrailerLine ─CR─▶ TrailerLf ─LF─▶ Trailer
///                                      └──CR──▶ LastLf ──LF──▶ Done
/// ```
#[derive(Clone, Debug, Default)]
pub struct ChunkDecoder {
    state: ChunkState,
    /// Of the size line: the value so far. In `Data`: bytes left of the chunk.
    left: u64,
    /// Bytes of chunk extensions seen in this body.
    extensions: usize,
    /// The trailer line that is being read begins here in `trailer_bytes`.
    line_start: usize,
    trailer_bytes: Vec<u8>,
    trailers: Fields,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkState {
    /// The first digit of a chunk size.
    #[default]
    Start,
    Size,
    Extension,
    SizeEnd,
    Data,
    DataEnd,
    DataEndLf,
    /// At the start of a trailer line or of the last empty line.
    Trailer,
    TrailerLine,
    TrailerLf,
    LastLf,
    Done,
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

    /// Reads on. The body bytes stay where they are in `input`. After an error the connection can
    /// not be used any more.
    pub fn next_piece(&mut self, input: &[u8]) -> Result<ChunkPiece, ChunkError> {
        let mut at = 0;
        while at < input.len() {
            match self.state {
                ChunkState::Data => {
                    let length = usize::try_from(self.left)
                        .unwrap_or(usize::MAX)
                        .min(input.len() - at);
                    self.left -= length as u64;
                    if self.left == 0 {
                        self.state = ChunkState::DataEnd;
                    }
                    return Ok(ChunkPiece::Data(at..at + length));
                }
                ChunkState::Extension => at += self.skip_extension(&input[at..])?,
                ChunkState::TrailerLine => at += self.collect_trailer(&input[at..])?,
                ChunkState::Done => return Ok(ChunkPiece::End(at)),
                _ => {
                    self.step(input[at])?;
                    at += 1;
                    if self.state == ChunkState::Done {
                        return Ok(ChunkPiece::End(at));
                    }
                }
            }
        }
        Ok(if self.state == ChunkState::Done {
            ChunkPiece::End(at)
        } else {
            ChunkPiece::More
        })
    }

    /// One byte of framing.
    fn step(&mut self, byte: u8) -> Result<(), ChunkError> {
        use ChunkState::*;
        self.state = match (self.state, byte) {
            (Start, _) => {
                self.left = u64::from(hex_digit(byte).ok_or(ChunkError::Malformed)?);
                Size
            }
            (Size, b'\r') => SizeEnd,
            (Size, b';' | b' ' | b'\t') => Extension,
            (Size, _) => {
                let digit = hex_digit(byte).ok_or(ChunkError::Malformed)?;
                if self.left > i64::MAX as u64 >> 4 {
                    return Err(ChunkError::SizeOverflow);
                }
                self.left = self.left << 4 | u64::from(digit);
                Size
            }
            (SizeEnd, b'\n') if self.left == 0 => Trailer,
            (SizeEnd, b'\n') => Data,
            (DataEnd, b'\r') => DataEndLf,
            (DataEndLf, b'\n') => Start,
            (Trailer, b'\r') => LastLf,
            (Trailer, byte) if byte != b'\n' => {
                self.keep_trailer(&[byte])?;
                TrailerLine
            }
            (TrailerLf, b'\n') => {
                self.end_trailer_line();
                Trailer
            }
            (LastLf, b'\n') => Done,
            _ => return Err(ChunkError::Malformed),
        };
        Ok(())
    }

    /// Skips to the CR that ends an extension; returns the bytes used.
    fn skip_extension(&mut self, input: &[u8]) -> Result<usize, ChunkError> {
        let end = memchr2(b'\r', b'\n', input);
        let length = end.unwrap_or(input.len());
        self.extensions += length;
        if self.extensions > Self::MAX_EXTENSIONS {
            return Err(ChunkError::ExtensionsTooLong);
        }
        match end {
            Some(end) if input[end] == b'\n' => Err(ChunkError::Malformed),
            Some(end) => {
                self.state = ChunkState::SizeEnd;
                Ok(end + 1)
            }
            None => Ok(length),
        }
    }

    /// Keeps the bytes of a trailer line up to its CR; returns the bytes used.
    fn collect_trailer(&mut self, input: &[u8]) -> Result<usize, ChunkError> {
        let end = memchr2(b'\r', b'\n', input);
        let length = end.unwrap_or(input.len());
        self.keep_trailer(&input[..length])?;
        match end {
            Some(end) if input[end] == b'\n' => Err(ChunkError::Malformed),
            Some(end) => {
                self.state = ChunkState::TrailerLf;
                Ok(end + 1)
            }
            None => Ok(length),
        }
    }

    fn keep_trailer(&mut self, bytes: &[u8]) -> Result<(), ChunkError> {
        if self.trailer_bytes.len() + bytes.len() > Self::MAX_TRAILERS {
            return Err(ChunkError::TrailersTooLong);
        }
        self.trailer_bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Turns a whole line into a field. What is no field is dropped: trailers are optional
    /// (RFC 9110 section 6.5.1), and dropping one cannot shift the end of the message.
    fn end_trailer_line(&mut self) {
        let line = &self.trailer_bytes[self.line_start..];
        if let Ok(field) = field_line::parse(line, 0, UnderscorePolicy::Allowed)
            && !field.odd
            && is_allowed_trailer(field.known)
        {
            self.trailers
                .push(field.name.of(line), field.value.of(line));
        }
        self.line_start = self.trailer_bytes.len();
    }

    /// The fewest bytes that must still come before the body can end. Reading this many never
    /// reads into the next message.
    pub fn minimum_left(&self) -> u64 {
        /// `CRLF 0 CRLF CRLF` after a chunk's data.
        const END: u64 = 7;
        match self.state {
            ChunkState::Start => 5,
            ChunkState::Size | ChunkState::Extension if self.left == 0 => 4,
            ChunkState::SizeEnd if self.left == 0 => 3,
            ChunkState::Size | ChunkState::Extension => 2 + self.left + END,
            ChunkState::SizeEnd => 1 + self.left + END,
            ChunkState::Data => self.left + END,
            ChunkState::DataEnd => END,
            ChunkState::DataEndLf => END - 1,
            ChunkState::Trailer => 2,
            ChunkState::TrailerLine => 4,
            ChunkState::TrailerLf => 3,
            ChunkState::LastLf => 1,
            ChunkState::Done => 0,
        }
    }

    /// The trailer fields; complete after [`ChunkPiece::End`]. Fields that a trailer must not have
    /// (RFC 9110 section 6.5.1) are not among them.
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// Framing, routing, authentication and content description come too late in a trailer.
fn is_allowed_trailer(known: KnownField) -> bool {
    !matches!(
        known,
        KnownField::TransferEncoding
            | KnownField::ContentLength
            | KnownField::Host
            | KnownField::Connection
            | KnownField::KeepAlive
            | KnownField::Upgrade
            | KnownField::Te
            | KnownField::Trailer
            | KnownField::ContentEncoding
            | KnownField::ContentType
            | KnownField::ContentRange
            | KnownField::Authorization
            | KnownField::ProxyAuthorization
            | KnownField::SetCookie
            | KnownField::Cookie
    )
}

/// Appends the line that begins a chunk of `length` bytes. A chunk is this, the bytes, and
/// [`CHUNK_END`]. A length of zero writes nothing: it would end the body.
pub fn write_chunk_start(length: u64, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    if length == 0 {
        return;
    }
    let digits = (u64::BITS - length.leading_zeros()).div_ceil(4);
    for digit in (0..digits).rev() {
        out.push(HEX[(length >> (digit * 4)) as usize & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends a chunk with this content, or nothing if there is none: not even a line break may stand between two chunks.
pub fn write_chunk(content: &[u8], out: &mut Vec<u8>) {
    if !content.is_empty() {
        write_chunk_start(content.len() as u64, out);
        out.extend_from_slice(content);
        out.extend_from_slice(CHUNK_END);
    }
}

/// Ends a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Ends a body that has no trailers.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// Ends a body with trailers.
pub fn write_last_chunk(trailers: &Fields, out: &mut Vec<u8>) {
    out.extend_from_slice(b"0\r\n");
    super::response::write_fields(trailers, out);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `wire` in pieces of `step` bytes; the body and how many bytes belonged to it.
    fn decode(wire: &[u8], step: usize) -> Result<(Vec<u8>, Option<usize>, Fields), ChunkError> {
        let mut decoder = ChunkDecoder::new();
        let (mut body, mut used) = (Vec::new(), 0);
        while used < wire.len() {
            let input = &wire[used..wire.len().min(used + step)];
            let least = decoder.minimum_left();
            match decoder.next_piece(input)? {
                ChunkPiece::Data(range) => {
                    body.extend_from_slice(&input[range.clone()]);
                    used += range.end;
                }
                ChunkPiece::More => used += input.len(),
                ChunkPiece::End(length) => {
                    assert!(least >= 1 && length as u64 >= least.min(step as u64).min(1));
                    return Ok((body, Some(used + length), decoder.trailers().clone()));
                }
            }
        }
        Ok((body, None, decoder.trailers().clone()))
    }

    #[test]
    fn bodies_come_out_the_same_in_pieces_of_any_size() {
        let wire = b"4\r\nWiki\r\n5;x=\"y\"\r\npedia\r\nE \t\r\n in\r\n\r\nchunks.\r\n00\r\nX-Sum: 1\r\nHost: no\r\n\r\nNEXT";
        for step in 1..=wire.len() {
            let (body, end, trailers) = decode(wire, step).expect("a valid body");
            assert_eq!(body, b"Wikipedia in\r\n\r\nchunks.");
            assert_eq!(end, Some(wire.len() - 4));
            assert_eq!(
                trailers.iter().collect::<Vec<_>>(),
                [(&b"X-Sum"[..], &b"1"[..])]
            );
        }
    }

    #[test]
    fn malformed_bodies_are_refused_in_pieces_of_any_size() {
        for wire in [
            &b"\r\n"[..],
            b"x",
            b" 4\r\n",
            b"-4\r\n",
            b"+4\r\n",
            b"0x4\r\nWiki\r\n",
            b"4\nWiki\r\n",
            b"4\r\rWiki",
            b"4,\r\n",
            b"4;a\nWiki",
            b"4\r\nSEE-THIS\r\n",
            b"4\r\nWiki\n",
            b"4\r\nWiki\r\r",
            b"4\r\nWiki\r\n\r\n",
            b"0\n\r\n",
            b"0\r\n\n",
            b"0\r\n\rX",
            b"0\r\nA: b\n\r\n",
            b"0\r\nA: b\rX",
            b"8000000000000000\r\n",
            b"FFFFFFFFFFFFFFFFF\r\n",
            b"\x00\r\n",
            b";\r\n",
        ] {
            for step in 1..=wire.len() {
                assert!(
                    decode(wire, step).is_err(),
                    "{:?}",
                    String::from_utf8_lossy(wire)
                );
            }
        }
        let mut decoder = ChunkDecoder::new();
        assert_eq!(
            decoder.next_piece(b"7fffffffffffffff\r\n"),
            Ok(ChunkPiece::More)
        );
        assert_eq!(decoder.minimum_left(), i64::MAX as u64 + 7);
    }

    #[test]
    fn extensions_and_trailers_are_bounded_exactly() {
        let extension =
            |length: usize| [&b"1"[..], &vec![b' '; length], b"\r\na\r\n0\r\n\r\n"].concat();
        // The byte that begins the extension is a delimiter and is not counted.
        assert!(decode(&extension(ChunkDecoder::MAX_EXTENSIONS + 1), 1000).is_ok());
        let too_long = decode(&extension(ChunkDecoder::MAX_EXTENSIONS + 2), 1000);
        assert_eq!(too_long.map(|_| ()), Err(ChunkError::ExtensionsTooLong));
        let many: Vec<u8> = b"1;x=y\r\na\r\n".repeat(ChunkDecoder::MAX_EXTENSIONS / 3 + 1);
        assert_eq!(
            decode(&many, 4096).map(|_| ()),
            Err(ChunkError::ExtensionsTooLong)
        );
        let trailer = |length: usize| [&b"0\r\n"[..], &vec![b'a'; length], b"\r\n\r\n"].concat();
        assert!(decode(&trailer(ChunkDecoder::MAX_TRAILERS), 7).is_ok());
        let too_long = decode(&trailer(ChunkDecoder::MAX_TRAILERS + 1), 7);
        assert_eq!(too_long.map(|_| ()), Err(ChunkError::TrailersTooLong));
    }

    /// Every input of up to six bytes over the bytes that matter: decoding in one piece and byte
    /// by byte agree, and `minimum_left` never promises too much.
    #[test]
    fn every_short_input_is_read_alike_in_any_pieces() {
        let alphabet = b"02\r\n;a";
        let base = alphabet.len() as u64;
        for length in 1..=6u32 {
            for number in 0..base.pow(length) {
                let wire: Vec<u8> = (0..length)
                    .map(|i| alphabet[(number / base.pow(i) % base) as usize])
                    .collect();
                let whole = decode(&wire, wire.len()).map(|(body, end, _)| (body, end));
                let single = decode(&wire, 1).map(|(body, end, _)| (body, end));
                assert_eq!(whole, single, "{wire:?}");
            }
        }
    }

    #[test]
    fn what_is_encoded_decodes() {
        for length in [1u64, 9, 10, 15, 16, 255, 256, 65_535, 65_536] {
            let mut wire = Vec::new();
            write_chunk_start(length, &mut wire);
            assert_eq!(wire, format!("{length:x}\r\n").into_bytes());
            wire.resize(wire.len() + length as usize, b'b');
            wire.extend_from_slice(CHUNK_END);
            let mut trailers = Fields::new();
            trailers.push(b"X-T", b"1");
            write_last_chunk(&trailers, &mut wire);
            let (body, end, found) = decode(&wire, 1000).expect("our own encoding");
            assert_eq!((body.len() as u64, end), (length, Some(wire.len())));
            assert_eq!(found.get(b"x-t"), Some(&b"1"[..]));
        }
        let mut nothing = Vec::new();
        write_chunk_start(0, &mut nothing);
        write_chunk(b"", &mut nothing);
        assert!(nothing.is_empty());
    }
}
