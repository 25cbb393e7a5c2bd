//! The request head parser: request line and header lines from a growing buffer (RFC 9112).
//!
//! A head is parsed line by line. A line is looked at once, when its end has arrived; until then
//! only the new bytes are searched, so that a client that sends single bytes costs no more than
//! one that sends all at once. When the head is complete it is copied once into the [`RequestHead`]'s own
//! memory, and every text is an offset into that copy: the connection's buffer is free again.
//!
//! What is refused, and how, is nginx's behaviour; where nginx is lax the RFC decides. nginx's
//! header buffers do not exist here, but their limits do: see [`HeadLimits`].

use super::field_line::{self, FieldLine};
use super::request_line::RequestLine;
use crate::fields::{ArenaSpan, Fields};
use crate::known_fields::KnownField;
use crate::message::method::is_method_byte;
use crate::message::{
    InvalidHeaders, MessageVersion, RejectKind, RejectedHead, RequestHead, UNIQUE, UnderscorePolicy,
};
use memchr::memchr;
use std::ops::Range;

/// Reads one request head. Make a new one, or [`reset`](RequestParser::reset) it, for each request.
///
/// `buf` must begin with the same bytes at every call, and only grow.
#[derive(Clone, Debug, Default)]
pub struct RequestParser {
    stage: RequestStage,
    /// Where the line that is being read begins.
    line_start: usize,
    /// No line end was found before this offset.
    searched: usize,
    /// Bytes left in the buffer that nginx would be filling.
    room: usize,
    /// Large buffers that nginx would be using.
    large_used: usize,
    /// Which known names have been seen.
    seen: u128,
}

/// What is read next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestStage {
    /// Empty lines before the request line (RFC 9112 section 2.2), or its first byte.
    #[default]
    Start,
    /// The method, or a request line that has just begun.
    Method,
    /// The request line after its first space.
    RequestLine,
    /// Header lines.
    Fields,
}

/// How far [`RequestParser::parse`] came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestProgress {
    /// The head goes on: call again with more bytes.
    Partial,
    /// Only with [`HeadLimits::pause_at_host`]: the Host field was read, its value is this part of
    /// the buffer. Call again, with the limits of the server that it names.
    Host(Range<usize>),
    /// The head is in [`RequestHead`], and is this many bytes of the buffer, the line ends before it
    /// included.
    Complete(usize),
}

/// What a request head may be; the directives of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The first buffer, bytes.
    pub client_header_buffer_size: usize,
    /// Number of further buffers.
    pub large_client_header_buffers: usize,
    /// Size of each of them. A line must fit into one buffer.
    pub large_client_header_buffer_size: usize,
    /// Header lines, at most.
    pub max_headers: usize,
    /// What `_` in a field name means.
    pub underscores_in_headers: UnderscorePolicy,
    /// What happens to a header line with an invalid name.
    pub invalid_headers: InvalidHeaders,
    /// Return [`RequestProgress::Host`]. Needed only if the servers of an address differ in these limits.
    pub pause_at_host: bool,
}

impl Default for HeadLimits {
    fn default() -> HeadLimits {
        HeadLimits {
            client_header_buffer_size: 1024,
            large_client_header_buffers: 4,
            large_client_header_buffer_size: 8 * 1024,
            max_headers: 1000,
            underscores_in_headers: UnderscorePolicy::Invalid,
            invalid_headers: InvalidHeaders::Ignored,
            pause_at_host: false,
        }
    }
}

impl RequestParser {
    /// Ready for the first request.
    pub fn new() -> RequestParser {
        RequestParser::default()
    }

    /// Ready for the next request, whose head begins at the start of the next buffer.
    pub fn reset(&mut self) {
        *self = RequestParser::default();
    }

    /// Whether nothing but line ends has come yet. The caller may then empty its buffer,
    /// [`reset`](RequestParser::reset), and not count the client as having begun a request.
    pub fn is_blank(&self) -> bool {
        self.stage == RequestStage::Start
    }

    /// Whether the request line is complete.
    pub fn has_request_line(&self) -> bool {
        self.stage == RequestStage::Fields
    }

    /// Reads on. `head` must be the same, and empty at the first call, for one request; it is
    /// readable after [`RequestProgress::Complete`] and after an error.
    pub fn parse(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<RequestProgress, RejectedHead> {
        // Offsets are 32 bits; no configuration allows a larger head.
        if buf.len() > Fields::MAX_BYTES {
            return Err(RejectedHead::new(RejectKind::HeadTooLarge));
        }
        let result = self.advance(buf, limits, head);
        match &result {
            Ok(RequestProgress::Complete(length)) => head.set_text(&buf[..*length]),
            Ok(RequestProgress::Partial | RequestProgress::Host(_)) => {}
            Err(_) => self.adopt_refused(buf, head),
        }
        result
    }

    fn advance(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<RequestProgress, RejectedHead> {
        if self.stage == RequestStage::Start {
            let Some(first) = buf[self.line_start..]
                .iter()
                .position(|b| !matches!(b, b'\r' | b'\n'))
            else {
                self.line_start = buf.len();
                return Ok(RequestProgress::Partial);
            };
            self.line_start += first;
            self.searched = self.line_start;
            self.room = limits.client_header_buffer_size;
            self.stage = RequestStage::Method;
        }
        if self.stage != RequestStage::Fields {
            let Some(end) = self.find_line_end(buf) else {
                return self.partial_request_line(buf, limits);
            };
            self.request_line(buf, end, limits, head)?;
            if head.version < MessageVersion::HTTP_10 {
                // A request line that a line feed splits is none (RFC 9112, section 3): what follows is its version.
                if buf[end + 1..].trim_ascii_start().starts_with(b"HTTP/") {
                    return Err(RejectedHead::new(RejectKind::InvalidRequest));
                }
                head.size = (end + 1 - head.line.start as usize) as u32;
                return Ok(RequestProgress::Complete(end + 1));
            }
            self.stage = RequestStage::Fields;
        }
        self.fields(buf, limits, head)
    }

    /// The offset of the next LF, searching only what is new.
    #[inline]
    fn find_line_end(&mut self, buf: &[u8]) -> Option<usize> {
        let found = memchr(b'\n', &buf[self.searched..]);
        match found {
            Some(offset) => {
                let end = self.searched + offset;
                self.searched = end + 1;
                Some(end)
            }
            None => None,
        }
    }

    fn request_line(
        &mut self,
        buf: &[u8],
        end: usize,
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<(), RejectedHead> {
        let start = self.line_start;
        if !self.take(end + 1 - start, limits) {
            return Err(RejectedHead::new(RejectKind::UriTooLong));
        }
        let text_end = if end > start && buf[end - 1] == b'\r' {
            end - 1
        } else {
            end
        };
        head.line = ArenaSpan::new(start, text_end);
        RequestLine {
            text: &buf[start..text_end],
            base: start,
            head,
        }
        .parse()
        .map_err(RejectedHead::new)?;
        self.line_start = end + 1;
        Ok(())
    }

    fn fields(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<RequestProgress, RejectedHead> {
        loop {
            // A line that was begun in an earlier call is not looked at from its start again.
            if self.searched == self.line_start
                && let Some((field, next)) = field_line::parse_ordinary(buf, self.line_start)
            {
                let start = self.line_start;
                if !self.take(next - start, limits) {
                    return Err(self.too_long(start, next - 1));
                }
                (self.line_start, self.searched) = (next, next);
                if let Some(host) =
                    self.keep(field, ArenaSpan::new(start, next - 2), limits, head)?
                {
                    return Ok(host);
                }
                continue;
            }
            let Some(end) = self.find_line_end(buf) else {
                return self.partial_field_line(buf, limits);
            };
            if let Some(status) = self.field_line(buf, end, limits, head)? {
                return Ok(status);
            }
        }
    }

    /// The rarer header lines, and the empty one that ends the head.
    fn field_line(
        &mut self,
        buf: &[u8],
        end: usize,
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<Option<RequestProgress>, RejectedHead> {
        let start = self.line_start;
        if !self.take(end + 1 - start, limits) {
            return Err(self.too_long(start, end));
        }
        let text_end = if end > start && buf[end - 1] == b'\r' {
            end - 1
        } else {
            end
        };
        if text_end == start {
            head.size = end as u32 + 1 - head.line.start;
            return Ok(Some(RequestProgress::Complete(end + 1)));
        }
        let line = ArenaSpan::new(start, text_end);
        // A bare CR (RFC 9112, section 2.2), of which nginx overlooks those before the line's end.
        if buf[text_end - 1] == b'\r' {
            return Err(RejectedHead::on_line(
                RejectKind::InvalidFieldLine,
                line,
                text_end - 1,
            ));
        }
        let field = field_line::parse(&buf[start..text_end], start, limits.underscores_in_headers)
            .map_err(|at| RejectedHead::on_line(RejectKind::InvalidFieldLine, line, at))?;
        self.line_start = end + 1;
        if field.odd && limits.invalid_headers == InvalidHeaders::Ignored {
            if head.ignored.len() < RequestHead::MAX_IGNORED {
                head.ignored.push(line);
            }
            return Ok(None);
        }
        self.keep(field, line, limits, head)
    }

    /// Adds a field to the head.
    #[inline]
    fn keep(
        &mut self,
        field: FieldLine,
        line: ArenaSpan,
        limits: &HeadLimits,
        head: &mut RequestHead,
    ) -> Result<Option<RequestProgress>, RejectedHead> {
        if head.fields.len() >= limits.max_headers {
            return Err(RejectedHead::new(RejectKind::TooManyFields));
        }
        if self.seen & UNIQUE & field.known.bit() != 0 {
            return Err(RejectedHead::on_line(
                RejectKind::DuplicateField(field.known),
                line,
                0,
            ));
        }
        self.seen |= field.known.bit();
        head.fields.push_spans(field.known, field.name, field.value);
        if limits.pause_at_host && field.known == KnownField::Host {
            return Ok(Some(RequestProgress::Host(
                field.value.start as usize..field.value.end as usize,
            )));
        }
        Ok(None)
    }

    /// Accounts for a whole line of `length` bytes, line end included, in nginx's buffers: what
    /// remains of the present one, else a new large one. False if it does not fit.
    #[inline]
    fn take(&mut self, length: usize, limits: &HeadLimits) -> bool {
        if length <= self.room {
            self.room -= length;
            return true;
        }
        let size = limits.large_client_header_buffer_size;
        if !self.may_grow(limits) || length > size {
            return false;
        }
        self.large_used += 1;
        self.room = size - length;
        true
    }

    /// Whether a line that fills the present buffer may move to a large one: one must be free, and
    /// larger than what is already there.
    fn may_grow(&self, limits: &HeadLimits) -> bool {
        self.large_used < limits.large_client_header_buffers
            && self.room < limits.large_client_header_buffer_size
    }

    /// Whether an unfinished line of `length` bytes has already filled every buffer it could have.
    fn is_full(&self, length: usize, limits: &HeadLimits) -> bool {
        length >= self.room
            && (!self.may_grow(limits) || length >= limits.large_client_header_buffer_size)
    }

    /// The request line goes on. What can never become a request is refused at once: a TLS client
    /// on a plain port waits for our answer and will not send a line end.
    fn partial_request_line(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<RequestProgress, RejectedHead> {
        let line = &buf[self.line_start..];
        let new = &buf[self.searched..];
        self.searched = buf.len();
        if self.stage == RequestStage::Method {
            let space = memchr(b' ', new);
            let method = &new[..space.unwrap_or(new.len())];
            if line.starts_with(b" ") || !method.iter().all(|&b| is_method_byte(b)) {
                return Err(RejectedHead::new(RejectKind::InvalidMethod));
            }
            if space.is_some() {
                self.stage = RequestStage::RequestLine;
            }
        }
        // A CR may be half of the line end.
        if new.iter().any(|&b| (b < b' ' && b != b'\r') || b == 0x7f) {
            return Err(RejectedHead::new(RejectKind::InvalidRequest));
        }
        if self.is_full(line.len(), limits) {
            return Err(RejectedHead::new(RejectKind::UriTooLong));
        }
        Ok(RequestProgress::Partial)
    }

    /// A header line goes on.
    fn partial_field_line(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
    ) -> Result<RequestProgress, RejectedHead> {
        // A line that begins with CR is the head's end or nothing.
        if let [b'\r', second, ..] = buf[self.line_start..]
            && second != b'\n'
        {
            return Err(RejectedHead::new(RejectKind::InvalidFieldLine));
        }
        let start = self.line_start;
        let new = self.searched;
        self.searched = buf.len();
        let line = ArenaSpan::new(start, buf.len());
        if let Some(nul) = memchr(0, &buf[new..]) {
            return Err(RejectedHead::on_line(
                RejectKind::InvalidFieldLine,
                line,
                new + nul,
            ));
        }
        if matches!(buf.get(start), Some(b' ' | b'\t' | b':')) {
            return Err(RejectedHead::on_line(
                RejectKind::InvalidFieldLine,
                line,
                start,
            ));
        }
        if self.is_full(buf.len() - start, limits) {
            return Err(self.too_long(start, buf.len()));
        }
        Ok(RequestProgress::Partial)
    }

    fn too_long(&self, start: usize, end: usize) -> RejectedHead {
        if start == end {
            return RejectedHead::new(RejectKind::HeadTooLarge);
        }
        RejectedHead::on_line(RejectKind::FieldLineTooLong, ArenaSpan::new(start, end), 0)
    }

    /// Makes `head` readable as far as it came: for the log, when the client went away or took too
    /// long.
    pub fn abandon(&self, buf: &[u8], head: &mut RequestHead) {
        self.adopt_refused(buf, head);
    }

    /// Gives the log what there is of a refused head.
    fn adopt_refused(&self, buf: &[u8], head: &mut RequestHead) {
        let end = self.searched.max(self.line_start).min(buf.len());
        head.set_text(&buf[..end]);
        // What nginx counts: whole lines, a request line only if it is one.
        head.size = match self.stage {
            RequestStage::Fields => self.line_start as u32 - head.line.start,
            RequestStage::Start | RequestStage::Method | RequestStage::RequestLine => 0,
        };
        if self.stage != RequestStage::Fields {
            let line = &buf[self.line_start.min(end)..end];
            let length = line
                .iter()
                .position(|b| matches!(b, b'\r' | b'\n'))
                .unwrap_or(line.len());
            let start = end - line.len();
            head.line = ArenaSpan::new(start, start + length);
            // What was taken for parts of it is none.
            head.method_text = ArenaSpan::default();
            head.target = ArenaSpan::default();
            head.protocol = ArenaSpan::default();
        }
    }
}
