//! Response heads: written for clients, read from upstream servers (RFC 9112 section 4).
//!
//! Reading is as tolerant as nginx is with applications: what does not begin with a status line
//! is reported as such, and may be passed on as a body without a head. Writing is not tolerant:
//! no value can break out of its line.

use super::field_line::{self, FieldLine};
use crate::fields::{ArenaSpan, Fields};
use crate::known_fields::KnownField;
use crate::message::{BadFraming, MessageVersion, ResponseHead, UnderscorePolicy};
use crate::status::reason;
use memchr::{memchr, memchr2};

/// Appends `HTTP/1.1 CODE REASON` and a line end. Clients get 1.1 whatever they asked with
/// (RFC 9112 section 2.3). `text` replaces the usual phrase.
pub fn write_status_line(status: u16, text: Option<&[u8]>, out: &mut Vec<u8>) {
    if status == 200 && text.is_none() {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    let digit = |divisor: u16| b'0' + (status / divisor % 10) as u8;
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&[digit(100), digit(10), digit(1), b' ']);
    write_text(text.unwrap_or(reason(status).as_bytes()), out);
    out.extend_from_slice(b"\r\n");
}

/// Appends one header line. CR, LF and NUL in a value become spaces (RFC 9110 section 5.5): a
/// value may come from a decoded URI, and must not become a second header line.
#[inline]
pub fn write_field(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    write_text(name, out);
    out.extend_from_slice(b": ");
    write_text(value, out);
    out.extend_from_slice(b"\r\n");
}

/// Appends all header lines, without the empty line that ends the head.
pub fn write_fields(fields: &Fields, out: &mut Vec<u8>) {
    for (name, value) in fields.iter() {
        write_field(name, value, out);
    }
}

/// Appends the empty line that ends a head.
pub fn write_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

#[inline]
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(text);
    if has_control(text) {
        blank_line_breaks(&mut out[start..]);
    }
}

/// Whether a text has a byte below the space. Eight bytes at a time: most texts are two or three such words.
#[inline]
fn has_control(text: &[u8]) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    // Subtracting borrows from the top bit of a byte that is too small; bytes from 0x80 on have that bit themselves.
    let flags = |word: u64| word.wrapping_sub(LOW * 0x20) & !word;
    let (words, rest) = text.as_chunks();
    let mut found = 0;
    for word in words {
        found |= flags(u64::from_le_bytes(*word));
    }
    // The last word overlaps the one before it.
    match text.last_chunk() {
        Some(last) => (found | flags(u64::from_le_bytes(*last))) & (LOW << 7) != 0,
        None => rest.iter().any(|byte| *byte < b' '),
    }
}

#[cold]
fn blank_line_breaks(text: &mut [u8]) {
    text.iter_mut()
        .filter(|b| matches!(**b, b'\r' | b'\n' | 0))
        .for_each(|b| *b = b' ');
}

/// How far [`ResponseParser::parse`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseProgress {
    /// The head goes on.
    Partial,
    /// The head is complete and is this many bytes of the buffer.
    Complete(usize),
    /// This is no HTTP/1 response. All of the buffer is body, if one wants HTTP/0.9.
    NotHttp,
}

/// What is wrong with an upstream's head: answer 502.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadResponse {
    /// A byte that no header line may have; the line up to it, and the byte.
    InvalidField(Vec<u8>, u8),
    /// A second Content-Length or Transfer-Encoding; the line and the previous value.
    Duplicate(KnownField, Vec<u8>, Vec<u8>),
    /// Larger than the buffer for it.
    TooBig,
    /// A status below 100.
    InvalidStatus,
    /// Contradicting framing fields.
    Framing(BadFraming),
}

impl BadResponse {
    /// The line for the error log, at level `error`, in nginx's words.
    pub fn log_line(&self) -> Vec<u8> {
        match self {
            BadResponse::InvalidField(line, byte) => {
                let tail = format!("\\x{byte:02x}...\"");
                [b"upstream sent invalid header: \"", line.as_slice(), tail.as_bytes()].concat()
            }
            BadResponse::Duplicate(known, line, previous) => {
                let middle = format!("\", previous value: \"{}: ", known.name());
                [b"upstream sent duplicate header line: \"", line.as_slice(), middle.as_bytes(), previous, b"\""]
                    .concat()
            }
            BadResponse::TooBig => b"upstream sent too big header".to_vec(),
            BadResponse::InvalidStatus => b"upstream sent invalid status".to_vec(),
            BadResponse::Framing(BadFraming::InvalidContentLength) => {
                b"upstream sent invalid \"Content-Length\" header".to_vec()
            }
            BadResponse::Framing(BadFraming::LengthAndTransferEncoding) => {
                b"upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time".to_vec()
            }
            BadResponse::Framing(BadFraming::UnknownTransferEncoding) => {
                b"upstream sent unknown \"Transfer-Encoding\"".to_vec()
            }
        }
    }
}

/// Fields of which nginx takes the first and drops the others.
pub const FIRST_WINS: u128 = KnownField::Status.bit()
    | KnownField::ContentType.bit()
    | KnownField::Date.bit()
    | KnownField::LastModified.bit()
    | KnownField::Etag.bit()
    | KnownField::Server.bit()
    | KnownField::Location.bit()
    | KnownField::Refresh.bit()
    | KnownField::Expires.bit()
    | KnownField::XAccelRedirect.bit()
    | KnownField::XAccelExpires.bit()
    | KnownField::XAccelLimitRate.bit();

/// Fields whose repetition makes the length of the body doubtful.
pub const UNIQUE: u128 = KnownField::ContentLength.bit() | KnownField::TransferEncoding.bit();

/// Reads one response head. `buf` must begin with the same bytes at every call, and only grow.
#[derive(Clone, Debug, Default)]
pub struct ResponseParser {
    line_start: usize,
    searched: usize,
    in_fields: bool,
    seen: u128,
}

impl ResponseParser {
    /// Ready for a response.
    pub fn new() -> ResponseParser {
        ResponseParser::default()
    }

    /// For protocols whose head has no status line (CGI and its relatives): only header lines.
    pub fn without_status_line() -> ResponseParser {
        ResponseParser {
            in_fields: true,
            ..ResponseParser::default()
        }
    }

    /// Ready for the next response, which begins at the start of the next buffer.
    pub fn reset(&mut self) {
        *self = ResponseParser::default();
    }

    /// Reads on. `max_bytes` is the largest head. `head` must be empty at the first call for a
    /// response, and is readable after [`ResponseProgress::Complete`].
    pub fn parse(
        &mut self,
        buf: &[u8],
        max_bytes: usize,
        head: &mut ResponseHead,
    ) -> Result<ResponseProgress, BadResponse> {
        let max_bytes = max_bytes.min(Fields::MAX_BYTES);
        let buf = &buf[..buf.len().min(max_bytes)];
        let status = self.advance(buf, head)?;
        match status {
            ResponseProgress::Partial if buf.len() == max_bytes => Err(BadResponse::TooBig),
            ResponseProgress::Complete(length) => {
                head.fields.set_arena(&buf[..length]);
                Ok(status)
            }
            ResponseProgress::Partial | ResponseProgress::NotHttp => Ok(status),
        }
    }

    fn advance(
        &mut self,
        buf: &[u8],
        head: &mut ResponseHead,
    ) -> Result<ResponseProgress, BadResponse> {
        loop {
            // A line that was begun in an earlier call is not looked at from its start again.
            if self.in_fields
                && self.searched == self.line_start
                && let Some((field, next)) = field_line::parse_ordinary(buf, self.line_start)
            {
                let line = ArenaSpan::new(self.line_start, next - 2);
                (self.line_start, self.searched) = (next, next);
                self.keep(buf, field, line, head)?;
                continue;
            }
            let Some(offset) = memchr(b'\n', &buf[self.searched..]) else {
                break;
            };
            let (start, end) = (self.line_start, self.searched + offset);
            self.searched = end + 1;
            self.line_start = end + 1;
            let text_end = if end > start && buf[end - 1] == b'\r' {
                end - 1
            } else {
                end
            };
            let line = &buf[start..text_end];
            if !self.in_fields {
                let Some(found) = parse_status_line(line) else {
                    return Ok(ResponseProgress::NotHttp);
                };
                if found.status < 100 {
                    return Err(BadResponse::InvalidStatus);
                }
                head.status = found.status;
                head.version = found.version;
                head.status_text = ArenaSpan::new(start + found.text, text_end);
                self.in_fields = true;
            } else if line.is_empty() {
                return Ok(ResponseProgress::Complete(end + 1));
            } else {
                self.field(buf, line, start, head)?;
            }
        }
        self.searched = buf.len();
        let could_be_http = |text: &[u8]| text.iter().zip(b"HTTP/").all(|(a, b)| a == b);
        if !self.in_fields && !could_be_http(buf) {
            return Ok(ResponseProgress::NotHttp);
        }
        Ok(ResponseProgress::Partial)
    }

    /// The rarer header lines.
    fn field(
        &mut self,
        buf: &[u8],
        line: &[u8],
        start: usize,
        head: &mut ResponseHead,
    ) -> Result<(), BadResponse> {
        // Some servers repeat their status line among the fields.
        if line.starts_with(b"HTTP/") {
            return Ok(());
        }
        let field = field_line::parse(line, start, UnderscorePolicy::Allowed).map_err(|at| {
            let byte = buf.get(at).copied().unwrap_or(b'\n');
            BadResponse::InvalidField(line[..(at - start).min(line.len())].to_vec(), byte)
        })?;
        self.keep(buf, field, ArenaSpan::new(start, start + line.len()), head)
    }

    /// Adds a field to the head.
    #[inline]
    fn keep(
        &mut self,
        buf: &[u8],
        field: FieldLine,
        line: ArenaSpan,
        head: &mut ResponseHead,
    ) -> Result<(), BadResponse> {
        let bit = field.known.bit();
        if self.seen & bit & UNIQUE != 0 {
            let previous = head
                .fields
                .iter_spans()
                .find(|(known, _)| *known == field.known);
            let previous = previous
                .map(|(_, value)| value.of(buf).to_vec())
                .unwrap_or_default();
            let line = line.of(buf).to_vec();
            return Err(BadResponse::Duplicate(field.known, line, previous));
        }
        if self.seen & bit & FIRST_WINS != 0 {
            if head.repeated.len() < ResponseHead::MAX_REPEATED {
                head.repeated.push(line);
            }
            return Ok(());
        }
        self.seen |= bit;
        head.fields.push_spans(field.known, field.name, field.value);
        Ok(())
    }
}

struct StatusLine {
    version: MessageVersion,
    status: u16,
    /// Where the status begins.
    text: usize,
}

/// `HTTP/1.x CODE[ REASON]`. Several spaces before the code, and `.` after it, are tolerated; another protocol than
/// HTTP/1 is not, nor is what ends a text in a reason phrase (RFC 9112, section 4).
fn parse_status_line(line: &[u8]) -> Option<StatusLine> {
    let rest = line.strip_prefix(b"HTTP/")?;
    let (major, rest) = parse_number(rest)?;
    let (minor, rest) = parse_number(rest.strip_prefix(b".")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let rest = &rest[rest.iter().take_while(|&&b| b == b' ').count()..];
    let text = line.len() - rest.len();
    let (digits, rest) = rest.split_first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) || !matches!(rest.first(), None | Some(b' ' | b'.')) {
        return None;
    }
    if memchr2(b'\r', 0, rest).is_some() {
        return None;
    }
    let status = digits
        .iter()
        .fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
    let version = MessageVersion {
        major: u8::try_from(major).ok().filter(|&major| major == 1)?,
        minor,
    };
    Some(StatusLine {
        version,
        status,
        text,
    })
}

/// One to three digits.
fn parse_number(text: &[u8]) -> Option<(u16, &[u8])> {
    let count = text.iter().take_while(|b| b.is_ascii_digit()).count();
    if count == 0 || count > 3 {
        return None;
    }
    let value = text[..count]
        .iter()
        .fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
    Some((value, &text[count..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_character_is_found_wherever_it_stands() {
        for filler in [b' ', b'a', 0x7f, 0x80, 0xff] {
            for length in 0..20 {
                let mut text = vec![filler; length];
                assert!(!has_control(&text));
                for at in 0..length {
                    for byte in 0..=255 {
                        text[at] = byte;
                        assert_eq!(has_control(&text), byte < b' ', "{text:?}");
                    }
                    text[at] = filler;
                }
            }
        }
    }

    fn parse(wire: &[u8], step: usize) -> (Result<ResponseProgress, BadResponse>, ResponseHead) {
        let (mut parser, mut head) = (ResponseParser::new(), ResponseHead::default());
        let mut end = 0;
        loop {
            end = (end + step).min(wire.len());
            let result = parser.parse(&wire[..end], 4096, &mut head);
            if result != Ok(ResponseProgress::Partial) || end == wire.len() {
                return (result, head);
            }
        }
    }

    #[test]
    fn heads_are_read_alike_in_pieces_of_any_size() {
        let wire = b"HTTP/1.1 404 Not Found\r\nServer: x\r\nset_cookie:  a \nHTTP/1.1 200 OK\r\nServer: y\r\nETag: \"1\"\r\n\r\nbody";
        for step in 1..=wire.len() {
            let (result, head) = parse(wire, step);
            assert_eq!(result, Ok(ResponseProgress::Complete(wire.len() - 4)));
            assert_eq!((head.status, head.version), (404, MessageVersion::HTTP_11));
            assert_eq!(head.status_text(), b"404 Not Found");
            assert_eq!(head.fields.len(), 3);
            assert_eq!(head.fields.get(b"set_cookie"), Some(&b"a"[..]));
            assert_eq!(head.repeated().collect::<Vec<_>>(), [b"Server: y"]);
        }
    }

    #[test]
    fn status_lines_are_tolerated_as_in_nginx() {
        for (line, status, text) in [
            ("HTTP/1.1 200 OK", 200, "200 OK"),
            ("HTTP/1.0 200", 200, "200"),
            ("HTTP/1.1 200 ", 200, "200 "),
            ("HTTP/1.1   200 OK", 200, "200 OK"),
            ("HTTP/1.1 403.1 No", 403, "403.1 No"),
            ("HTTP/1.9 999 X\x01\t\u{e9}", 999, "999 X\x01\t\u{e9}"),
        ] {
            let (result, head) = parse(format!("{line}\r\n\r\n").as_bytes(), 1);
            assert!(
                matches!(result, Ok(ResponseProgress::Complete(_))),
                "{line}"
            );
            assert_eq!(
                (head.status, head.status_text()),
                (status, text.as_bytes()),
                "{line}"
            );
        }
        for line in [
            "",
            "hello",
            "HTTP",
            "HTP/1.1 200 OK",
            "http/1.1 200 OK",
            "HTTP/1.1",
            "HTTP/1.1 20",
            "HTTP/1.1 2000",
            "HTTP/1.1 20x",
            "HTTP/1.1 OK",
            "HTTP/ 200",
            "HTTP/1 200 OK",
            "HTTP/0.9 200 OK",
            "HTTP/2.0 200 OK",
            "HTTP/9.9 200 OK",
            "HTTP/1.1 200 O\0K",
            "HTTP/1.1 200 O\rK",
            "HTTP/1.1 200 OK\r",
            "HTTP/1.x 200 OK",
            "HTTP/1.1\t200",
            "HTTP/1234.1 200 OK",
            "HTTP/1.1 200\tOK",
        ] {
            let (result, _) = parse(format!("{line}\r\n\r\n").as_bytes(), 1);
            assert_eq!(result, Ok(ResponseProgress::NotHttp), "{line}");
        }
        assert_eq!(
            parse(b"HTTP/1.1 099 x\r\n\r\n", 1).0,
            Err(BadResponse::InvalidStatus)
        );
        assert_eq!(parse(b"HTT", 1).0, Ok(ResponseProgress::Partial));
        assert_eq!(parse(b"HTX", 1).0, Ok(ResponseProgress::NotHttp));
    }

    #[test]
    fn bad_fields_are_refused_with_nginx_words() {
        let log = |fields: &str| {
            let (result, _) = parse(
                format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n").as_bytes(),
                1000,
            );
            String::from_utf8(result.expect_err("a bad field").log_line()).expect("ASCII")
        };
        assert_eq!(
            log(" folded: 1"),
            "upstream sent invalid header: \"\\x20...\""
        );
        assert_eq!(log("a b: 1"), "upstream sent invalid header: \"a\\x20...\"");
        assert_eq!(
            log("a: b\0"),
            "upstream sent invalid header: \"a: b\\x00...\""
        );
        assert_eq!(
            log("Content-Length: 1\r\ncontent-length: 2"),
            "upstream sent duplicate header line: \"content-length: 2\", previous value: \"Content-Length: 1\""
        );
    }

    #[test]
    fn a_head_may_be_as_large_as_its_buffer_and_no_larger() {
        let head = |size: usize| {
            let start = b"HTTP/1.1 200 OK\r\nA: ".to_vec();
            let fill = vec![b'x'; size - start.len() - 4];
            [start, fill, b"\r\n\r\n".to_vec()].concat()
        };
        assert_eq!(
            parse(&head(4096), 100).0,
            Ok(ResponseProgress::Complete(4096))
        );
        assert_eq!(parse(&head(4097), 100).0, Err(BadResponse::TooBig));
        assert_eq!(parse(&head(4097), 5000).0, Err(BadResponse::TooBig));
    }

    #[test]
    fn connections_are_kept_as_the_fields_and_the_version_say() {
        let keeps = |head: &str| {
            parse(format!("{head}\r\n\r\n").as_bytes(), 1000)
                .1
                .keeps_alive()
        };
        assert!(keeps("HTTP/1.1 200 OK"));
        assert!(!keeps("HTTP/1.0 200 OK"));
        assert!(keeps("HTTP/1.0 200 OK\r\nConnection: Keep-Alive"));
        assert!(!keeps("HTTP/1.1 200 OK\r\nConnection: foo, Close"));
        assert!(!keeps(
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close"
        ));
    }

    #[test]
    fn heads_without_status_line_are_for_cgi() {
        let (mut parser, mut head) = (
            ResponseParser::without_status_line(),
            ResponseHead::default(),
        );
        let wire = b"Status: 302 Found\r\nLocation: /\r\n\r\n";
        assert_eq!(
            parser.parse(wire, 4096, &mut head),
            Ok(ResponseProgress::Complete(wire.len()))
        );
        assert_eq!(
            head.fields.get_known(KnownField::Status),
            Some(&b"302 Found"[..])
        );
    }

    #[test]
    fn nothing_breaks_out_of_a_line() {
        let mut out = Vec::new();
        write_status_line(200, None, &mut out);
        write_status_line(404, None, &mut out);
        write_status_line(599, None, &mut out);
        write_status_line(200, Some(b"Fine\r\nX: y"), &mut out);
        write_field(b"Location", b"/a\r\nSet-Cookie: x\0", &mut out);
        write_field(b"A", b"", &mut out);
        write_end(&mut out);
        let expected = b"HTTP/1.1 200 OK\r\nHTTP/1.1 404 Not Found\r\nHTTP/1.1 599 \r\nHTTP/1.1 200 Fine  X: y\r\n\
            Location: /a  Set-Cookie: x \r\nA: \r\n\r\n";
        assert_eq!(
            String::from_utf8_lossy(&out),
            String::from_utf8_lossy(expected)
        );
    }
}
