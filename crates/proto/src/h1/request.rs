//! The request head parser: request line and header lines from a growing buffer (RFC 9112).
//!
//! A head is parsed line by line. A line is looked at once, when its end has arrived; until then
//! only the new bytes are searched, so that a client that sends single bytes costs no more than
//! one that sends all at once. When the head is complete it is copied once into the [`Head`]'s own
//! memory, and every text is an offset into that copy: the connection's buffer is free again.
//!
//! What is refused, and how, is nginx's behaviour; where nginx is lax the RFC decides. nginx's
//! header buffers do not exist here, but their limits do: see [`Limits`].

use super::field_line::{self, FieldLine};
use super::method::is_method_byte;
use super::reject::{Reject, RejectKind};
use crate::fields::{Fields, Span};
use crate::known::Known;
use memchr::memchr;
use std::ops::Range;

pub use super::field_line::Underscores;
pub use super::method::Method;

/// Reads one request head. Make a new one, or [`reset`](Parser::reset) it, for each request.
///
/// `buf` must begin with the same bytes at every call, and only grow.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    stage: Stage,
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
enum Stage {
    /// Empty lines before the request line (RFC 9112 section 2.2), or its first byte.
    #[default]
    Start,
    /// The rest of the request line.
    RequestLine,
    /// Header lines.
    Fields,
}

/// How far [`Parser::parse`] came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The head goes on: call again with more bytes.
    Partial,
    /// Only with [`Limits::pause_at_host`]: the Host field was read, its value is this part of
    /// the buffer. Call again, with the limits of the server that it names.
    Host(Range<usize>),
    /// The head is in [`Head`], and is this many bytes of the buffer, the line ends before it
    /// included.
    Complete(usize),
}

/// What a request head may be; the directives of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first buffer, bytes.
    pub client_header_buffer_size: usize,
    /// Number of further buffers.
    pub large_client_header_buffers: usize,
    /// Size of each of them. A line must fit into one buffer.
    pub large_client_header_buffer_size: usize,
    /// Header lines, at most.
    pub max_headers: usize,
    /// What `_` in a field name means.
    pub underscores_in_headers: Underscores,
    /// What happens to a header line with an invalid name.
    pub invalid_headers: InvalidHeaders,
    /// Return [`Status::Host`]. Needed only if the servers of an address differ in these limits.
    pub pause_at_host: bool,
}

/// What happens to a header line with an invalid name: `ignore_invalid_headers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidHeaders {
    /// Dropped; [`Head::ignored`] lists it.
    Ignored,
    /// Kept as a field like any other.
    Kept,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            client_header_buffer_size: 1024,
            large_client_header_buffers: 4,
            large_client_header_buffer_size: 8 * 1024,
            max_headers: 1000,
            underscores_in_headers: Underscores::Invalid,
            invalid_headers: InvalidHeaders::Ignored,
            pause_at_host: false,
        }
    }
}

/// A protocol version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 0 for HTTP/0.9, else 1; 2 and 3 come from other codecs.
    pub major: u8,
    /// Up to three digits are read, as in nginx.
    pub minor: u16,
}

impl Version {
    /// A request line without a version.
    pub const HTTP_09: Version = Version { major: 0, minor: 9 };
    /// HTTP/1.0
    pub const HTTP_10: Version = Version { major: 1, minor: 0 };
    /// HTTP/1.1
    pub const HTTP_11: Version = Version { major: 1, minor: 1 };
    /// HTTP/2
    pub const HTTP_2: Version = Version { major: 2, minor: 0 };
    /// HTTP/3
    pub const HTTP_3: Version = Version { major: 3, minor: 0 };
}

/// The form of the request target (RFC 9112 section 3.2). nginx refuses the asterisk-form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?args`
    Origin,
    /// `http://host:port/path?args`
    Absolute,
    /// `host:port`, of CONNECT.
    Authority,
}

/// A request head. Reuse it from request to request: [`Head::clear`] keeps the memory.
#[derive(Clone, Debug)]
pub struct Head {
    /// The method; [`Head::method_text`] has its text.
    pub method: Method,
    /// The protocol version.
    pub version: Version,
    /// How the target was written.
    pub form: TargetForm,
    /// The header fields, without ignored ones.
    pub fields: Fields,
    line: Span,
    method_text: Span,
    target: Span,
    scheme: Span,
    authority: Span,
    protocol: Span,
    ignored: Vec<Span>,
    size: u32,
    /// The length of the parsed text at the beginning of the fields' arena.
    text_len: u32,
}

impl Default for Head {
    fn default() -> Head {
        Head::new()
    }
}

impl Head {
    /// Ignored header lines that are remembered for the log; further ones are dropped silently.
    pub const MAX_IGNORED: usize = 32;

    /// An empty head.
    pub const fn new() -> Head {
        const NONE: Span = Span { start: 0, end: 0 };
        Head {
            method: Method::Other,
            version: Version::HTTP_09,
            form: TargetForm::Origin,
            fields: Fields::new(),
            line: NONE,
            method_text: NONE,
            target: NONE,
            scheme: NONE,
            authority: NONE,
            protocol: NONE,
            ignored: Vec::new(),
            size: 0,
            text_len: 0,
        }
    }

    /// Makes it empty again and keeps the memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        let mut ignored = std::mem::take(&mut self.ignored);
        fields.clear();
        ignored.clear();
        *self = Head {
            fields,
            ignored,
            ..Head::new()
        };
    }

    /// The request line without its line end: `$request`. After a reject, as much of it as came.
    pub fn request_line(&self) -> &[u8] {
        self.text(self.line)
    }

    /// The method as sent: `$request_method`.
    pub fn method_text(&self) -> &[u8] {
        self.text(self.method_text)
    }

    /// The target from its path on, as sent: `$request_uri`. It begins with `/`, or with `?` for
    /// an absolute-form without a path; for CONNECT it is `/`.
    pub fn target(&self) -> &[u8] {
        self.text(self.target)
    }

    /// The scheme of an absolute-form target.
    pub fn scheme(&self) -> Option<&[u8]> {
        (!self.scheme.is_empty()).then(|| self.text(self.scheme))
    }

    /// `host:port` of an absolute-form or authority-form target; it wins over the Host field
    /// (RFC 9112 section 3.2.2). May be empty (`http:///`), which
    /// [`host::parse`](crate::host::parse) then refuses.
    pub fn authority(&self) -> Option<&[u8]> {
        (self.form != TargetForm::Origin).then(|| self.text(self.authority))
    }

    /// The version as sent, empty for HTTP/0.9: `$server_protocol`.
    pub fn protocol(&self) -> &[u8] {
        self.text(self.protocol)
    }

    /// The first of the header lines that were ignored, to be logged at level `info` as
    /// `client sent invalid header line: "…"`.
    pub fn ignored(&self) -> impl Iterator<Item = &[u8]> + '_ {
        self.ignored.iter().map(|&line| self.text(line))
    }

    /// The size of the head on the wire, line ends included, but not empty lines before it: its
    /// part of `$request_length`.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Whether the client wants the connection to stay open: the last Connection field that says
    /// so decides, else the version (RFC 9112 section 9.3).
    pub fn wants_keep_alive(&self) -> bool {
        let mut keep = self.version >= Version::HTTP_11;
        for value in self.fields.all_known(Known::Connection) {
            if has_token(value, b"close") {
                keep = false;
            } else if has_token(value, b"keep-alive") {
                keep = true;
            }
        }
        keep
    }

    /// The checks that need the whole head, in nginx's order: Host is there, the framing is sound,
    /// CONNECT and TRACE are allowed. Returns where the body ends.
    pub fn check(&self, allow_connect: bool) -> Result<super::body::Framing, Reject> {
        use super::body::Framing;
        if self.version < Version::HTTP_10 {
            return Ok(Framing::None);
        }
        if self.version > Version::HTTP_10 && !self.fields.has(Known::Host) {
            return Err(Reject::new(RejectKind::MissingHost));
        }
        let framing = Framing::of_request(self.version, &self.fields).map_err(Reject::new)?;
        match self.method {
            Method::Connect if !allow_connect || self.version != Version::HTTP_11 => {
                Err(Reject::new(RejectKind::ConnectNotAllowed))
            }
            Method::Connect if framing.has_body() => Err(Reject::new(RejectKind::ConnectWithBody)),
            Method::Trace => Err(Reject::new(RejectKind::TraceNotAllowed)),
            _ => Ok(framing),
        }
    }

    pub(crate) fn text(&self, span: Span) -> &[u8] {
        self.fields
            .arena()
            .get(span.start as usize..span.end as usize)
            .unwrap_or_default()
    }

    pub(crate) fn text_len(&self) -> u32 {
        self.text_len
    }

    fn adopt(&mut self, text: &[u8]) {
        self.fields.adopt(text);
        self.text_len = text.len() as u32;
    }
}

/// Whether a comma-separated list has this token, in any case.
pub fn has_token(list: &[u8], token: &[u8]) -> bool {
    list.split(|&b| b == b',')
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token))
}

/// Fields that a request must not repeat; nginx's list.
const UNIQUE: u128 = Known::Host.bit()
    | Known::IfModifiedSince.bit()
    | Known::IfUnmodifiedSince.bit()
    | Known::IfMatch.bit()
    | Known::IfNoneMatch.bit()
    | Known::IfRange.bit()
    | Known::ContentLength.bit()
    | Known::ContentRange.bit()
    | Known::TransferEncoding.bit()
    | Known::Expect.bit()
    | Known::Authorization.bit()
    | Known::ProxyAuthorization.bit();

impl Parser {
    /// Ready for the first request.
    pub fn new() -> Parser {
        Parser::default()
    }

    /// Ready for the next request, whose head begins at the start of the next buffer.
    pub fn reset(&mut self) {
        *self = Parser::default();
    }

    /// Whether nothing but line ends has come yet. The caller may then empty its buffer,
    /// [`reset`](Parser::reset), and not count the client as having begun a request.
    pub fn is_blank(&self) -> bool {
        self.stage == Stage::Start
    }

    /// Reads on. `head` must be the same, and empty at the first call, for one request; it is
    /// readable after [`Status::Complete`] and after an error.
    pub fn parse(
        &mut self,
        buf: &[u8],
        limits: &Limits,
        head: &mut Head,
    ) -> Result<Status, Reject> {
        // Offsets are 32 bits; no configuration allows a larger head.
        if buf.len() > Fields::MAX_BYTES {
            return Err(Reject::new(RejectKind::HeadTooLarge));
        }
        let result = self.advance(buf, limits, head);
        match &result {
            Ok(Status::Complete(length)) => head.adopt(&buf[..*length]),
            Ok(Status::Partial | Status::Host(_)) => {}
            Err(_) => self.adopt_refused(buf, head),
        }
        result
    }

    fn advance(&mut self, buf: &[u8], limits: &Limits, head: &mut Head) -> Result<Status, Reject> {
        if self.stage == Stage::Start {
            let Some(first) = buf[self.line_start..]
                .iter()
                .position(|b| !matches!(b, b'\r' | b'\n'))
            else {
                self.line_start = buf.len();
                return Ok(Status::Partial);
            };
            self.line_start += first;
            self.searched = self.line_start;
            self.room = limits.client_header_buffer_size;
            self.stage = Stage::RequestLine;
        }
        if self.stage == Stage::RequestLine {
            let Some(end) = self.find_line_end(buf) else {
                return self.partial_request_line(buf, limits);
            };
            self.request_line(buf, end, limits, head)?;
            if head.version < Version::HTTP_10 {
                head.size = (end + 1 - head.line.start as usize) as u32;
                return Ok(Status::Complete(end + 1));
            }
            self.stage = Stage::Fields;
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
        limits: &Limits,
        head: &mut Head,
    ) -> Result<(), Reject> {
        let start = self.line_start;
        if !self.take(end + 1 - start, limits) {
            return Err(Reject::new(RejectKind::UriTooLong));
        }
        let text_end = if end > start && buf[end - 1] == b'\r' {
            end - 1
        } else {
            end
        };
        head.line = Span::new(start, text_end);
        RequestLine {
            text: &buf[start..text_end],
            base: start,
            head,
        }
        .parse()
        .map_err(Reject::new)?;
        self.line_start = end + 1;
        Ok(())
    }

    fn fields(&mut self, buf: &[u8], limits: &Limits, head: &mut Head) -> Result<Status, Reject> {
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
                if let Some(host) = self.keep(field, Span::new(start, next - 2), limits, head)? {
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
        limits: &Limits,
        head: &mut Head,
    ) -> Result<Option<Status>, Reject> {
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
            return Ok(Some(Status::Complete(end + 1)));
        }
        let line = Span::new(start, text_end);
        let field = field_line::parse(&buf[start..text_end], start, limits.underscores_in_headers)
            .map_err(|at| Reject::on_line(RejectKind::InvalidFieldLine, line, at))?;
        self.line_start = end + 1;
        if field.odd && limits.invalid_headers == InvalidHeaders::Ignored {
            if head.ignored.len() < Head::MAX_IGNORED {
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
        line: Span,
        limits: &Limits,
        head: &mut Head,
    ) -> Result<Option<Status>, Reject> {
        if head.fields.len() >= limits.max_headers {
            return Err(Reject::new(RejectKind::TooManyFields));
        }
        if self.seen & UNIQUE & field.known.bit() != 0 {
            return Err(Reject::on_line(
                RejectKind::DuplicateField(field.known),
                line,
                0,
            ));
        }
        self.seen |= field.known.bit();
        head.fields.push_spans(field.known, field.name, field.value);
        if limits.pause_at_host && field.known == Known::Host {
            return Ok(Some(Status::Host(
                field.value.start as usize..field.value.end as usize,
            )));
        }
        Ok(None)
    }

    /// Accounts for a whole line of `length` bytes, line end included, in nginx's buffers: what
    /// remains of the present one, else a new large one. False if it does not fit.
    #[inline]
    fn take(&mut self, length: usize, limits: &Limits) -> bool {
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
    fn may_grow(&self, limits: &Limits) -> bool {
        self.large_used < limits.large_client_header_buffers
            && self.room < limits.large_client_header_buffer_size
    }

    /// Whether an unfinished line of `length` bytes has already filled every buffer it could have.
    fn is_full(&self, length: usize, limits: &Limits) -> bool {
        length >= self.room
            && (!self.may_grow(limits) || length >= limits.large_client_header_buffer_size)
    }

    /// The request line goes on. What can never become a request is refused at once: a TLS client
    /// on a plain port waits for our answer and will not send a line end.
    fn partial_request_line(&mut self, buf: &[u8], limits: &Limits) -> Result<Status, Reject> {
        let line = &buf[self.line_start..];
        let new = &buf[self.searched..];
        let had_space = memchr(b' ', &buf[self.line_start..self.searched]).is_some();
        self.searched = buf.len();
        let method = if had_space {
            &[][..]
        } else {
            &new[..memchr(b' ', new).unwrap_or(new.len())]
        };
        if !method.iter().all(|&b| is_method_byte(b)) || line.starts_with(b" ") {
            return Err(Reject::new(RejectKind::InvalidMethod));
        }
        let controls = new.iter().take(new.len().saturating_sub(1));
        if controls.into_iter().any(|&b| b < b' ' || b == 0x7f) {
            return Err(Reject::new(RejectKind::InvalidRequest));
        }
        if self.is_full(line.len(), limits) {
            return Err(Reject::new(RejectKind::UriTooLong));
        }
        Ok(Status::Partial)
    }

    /// A header line goes on.
    fn partial_field_line(&mut self, buf: &[u8], limits: &Limits) -> Result<Status, Reject> {
        let start = self.line_start;
        let new = self.searched;
        self.searched = buf.len();
        let line = Span::new(start, buf.len());
        if let Some(nul) = memchr(0, &buf[new..]) {
            return Err(Reject::on_line(
                RejectKind::InvalidFieldLine,
                line,
                new + nul,
            ));
        }
        if matches!(buf.get(start), Some(b' ' | b'\t' | b':')) {
            return Err(Reject::on_line(RejectKind::InvalidFieldLine, line, start));
        }
        if self.is_full(buf.len() - start, limits) {
            return Err(self.too_long(start, buf.len()));
        }
        Ok(Status::Partial)
    }

    fn too_long(&self, start: usize, end: usize) -> Reject {
        if start == end {
            return Reject::new(RejectKind::HeadTooLarge);
        }
        Reject::on_line(RejectKind::FieldLineTooLong, Span::new(start, end), 0)
    }

    /// Gives the log what there is of a refused head.
    fn adopt_refused(&self, buf: &[u8], head: &mut Head) {
        let end = self.searched.max(self.line_start).min(buf.len());
        head.adopt(&buf[..end]);
        head.size = end as u32 - head.line.start.min(end as u32);
        if self.stage != Stage::Fields {
            let line = &buf[self.line_start..end];
            let length = line
                .iter()
                .position(|b| matches!(b, b'\r' | b'\n'))
                .unwrap_or(line.len());
            head.line = Span::new(self.line_start, self.line_start + length);
        }
    }
}

/// The request line, without line end, that begins at `base` in the head.
struct RequestLine<'a> {
    text: &'a [u8],
    base: usize,
    head: &'a mut Head,
}

impl RequestLine<'_> {
    fn parse(mut self) -> Result<(), RejectKind> {
        let text = self.text;
        let method_end = text
            .iter()
            .position(|&b| !is_method_byte(b))
            .unwrap_or(text.len());
        if method_end == 0 || text.get(method_end) != Some(&b' ') {
            return Err(RejectKind::InvalidMethod);
        }
        self.head.method = Method::from_bytes(&text[..method_end]);
        self.head.method_text = self.span(0, method_end);
        let target = skip_spaces(text, method_end);
        let after = match (self.head.method, text.get(target)) {
            (Method::Connect, _) => self.authority_form(target)?,
            (_, Some(b'/')) => self.path(target)?,
            (_, Some(byte)) if byte.is_ascii_alphabetic() => self.absolute_form(target)?,
            _ => return Err(RejectKind::InvalidRequest),
        };
        self.version(after)?;
        if self.head.version == Version::HTTP_09 && self.head.method != Method::Get {
            return Err(RejectKind::InvalidHttp09Method);
        }
        Ok(())
    }

    fn span(&self, start: usize, end: usize) -> Span {
        Span::new(self.base + start, self.base + end)
    }

    /// Path and args, from `/` or `?` to the next space; returns where they end.
    fn path(&mut self, start: usize) -> Result<usize, RejectKind> {
        let end = start + find_delimiter(&self.text[start..]);
        if !matches!(self.text.get(end), None | Some(b' ')) {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.target = self.span(start, end);
        Ok(end)
    }

    /// `scheme://host[:port][/path][?args]`
    fn absolute_form(&mut self, start: usize) -> Result<usize, RejectKind> {
        let text = self.text;
        let is_scheme = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let scheme_end = start + text[start..].iter().take_while(|b| is_scheme(b)).count();
        if !text[scheme_end..].starts_with(b"://") {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.form = TargetForm::Absolute;
        self.head.scheme = self.span(start, scheme_end);
        let host = scheme_end + 3;
        let (host_end, _) = self.authority(host)?;
        self.head.authority = self.span(host, host_end);
        match text.get(host_end) {
            Some(b'/' | b'?') => self.path(host_end),
            Some(b' ') => {
                // No path means "/" (RFC 9110 section 4.2.3); there is one in "://".
                self.head.target = self.span(scheme_end + 1, scheme_end + 2);
                Ok(host_end)
            }
            _ => Err(RejectKind::InvalidRequest),
        }
    }

    /// `host:port`, both needed.
    fn authority_form(&mut self, start: usize) -> Result<usize, RejectKind> {
        let (end, port_digits) = self.authority(start)?;
        if port_digits.is_none_or(|digits| digits == 0) || self.text.get(end) != Some(&b' ') {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.form = TargetForm::Authority;
        self.head.authority = self.span(start, end);
        // CONNECT has no path; routing sees "/", which is in "HTTP/".
        if let Some(slash) = memchr(b'/', &self.text[end..]) {
            self.head.target = self.span(end + slash, end + slash + 1);
        }
        Ok(end)
    }

    /// A host and perhaps a port; returns where they end and how many digits the port has.
    fn authority(&self, start: usize) -> Result<(usize, Option<usize>), RejectKind> {
        let text = self.text;
        let mut end = start;
        if text.get(start) == Some(&b'[') {
            end += 1 + text[start + 1..]
                .iter()
                .take_while(|b| is_ip_literal_byte(**b))
                .count();
            if text.get(end) != Some(&b']') {
                return Err(RejectKind::InvalidRequest);
            }
            end += 1;
        } else {
            let is_host = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
            end += text[start..].iter().take_while(|b| is_host(b)).count();
        }
        if text.get(end) != Some(&b':') {
            return Ok((end, None));
        }
        let digits = text[end + 1..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        Ok((end + 1 + digits, Some(digits)))
    }

    /// What follows the target: spaces and a version, or nothing.
    fn version(&mut self, after: usize) -> Result<(), RejectKind> {
        let start = skip_spaces(self.text, after);
        let rest = &self.text[start..];
        let (version, length) = match rest {
            b"" => (Version::HTTP_09, 0),
            b"HTTP/1.1" => (Version::HTTP_11, 8),
            b"HTTP/1.0" => (Version::HTTP_10, 8),
            _ => parse_version(rest)?,
        };
        self.head.version = version;
        self.head.protocol = self.span(start, start + length);
        Ok(())
    }
}

/// `HTTP/` and a version other than the usual two, then only spaces; returns its length.
#[cold]
fn parse_version(text: &[u8]) -> Result<(Version, usize), RejectKind> {
    let digits = text
        .strip_prefix(b"HTTP/")
        .ok_or(RejectKind::InvalidRequest)?;
    match digits.first() {
        Some(b'1') => {}
        Some(b'2'..=b'9') => return Err(RejectKind::InvalidVersion),
        _ => return Err(RejectKind::InvalidRequest),
    }
    match digits.get(1) {
        Some(b'.') => {}
        // Any further digit makes the major version 10 or more.
        Some(b'0'..=b'9') => return Err(RejectKind::InvalidVersion),
        _ => return Err(RejectKind::InvalidRequest),
    }
    let minor = &digits[2..];
    let count = minor.iter().take_while(|b| b.is_ascii_digit()).count();
    // nginx reads a digit while the value so far is at most 99.
    let mut value = 0u16;
    for digit in &minor[..count] {
        if value > 99 {
            return Err(RejectKind::InvalidRequest);
        }
        value = value * 10 + u16::from(digit - b'0');
    }
    if count == 0 || minor[count..].iter().any(|&b| b != b' ') {
        return Err(RejectKind::InvalidRequest);
    }
    Ok((
        Version {
            major: 1,
            minor: value,
        },
        7 + count,
    ))
}

/// The characters of an IP literal between the brackets (RFC 3986 section 3.2.2).
pub(crate) fn is_ip_literal_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b":-._~!$&'()*+,;=".contains(&byte)
}

fn skip_spaces(text: &[u8], from: usize) -> usize {
    from + text[from..].iter().take_while(|&&b| b == b' ').count()
}

/// The number of bytes before the first space or control character, eight at a time.
fn find_delimiter(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let (words, tail) = text.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let is_low = word.wrapping_sub(ONES * 0x21) & !word;
        let deleted = word ^ (ONES * 0x7f);
        let is_delete = deleted.wrapping_sub(ONES) & !deleted;
        // A borrow can mark a byte wrongly, but only after one that is marked rightly.
        let found = (is_low | is_delete) & HIGHS;
        if found != 0 {
            return i * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let rest = tail.iter().position(|&b| b <= b' ' || b == 0x7f);
    rest.map_or(text.len(), |offset| text.len() - tail.len() + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_found_at_every_place() {
        let is_delimiter = |b: u8| b <= b' ' || b == 0x7f;
        for length in 0..20usize {
            for place in 0..length {
                for byte in 0..=255u8 {
                    let mut text = vec![b'\xff'; length];
                    text[place] = byte;
                    let expected = if is_delimiter(byte) { place } else { length };
                    assert_eq!(find_delimiter(&text), expected);
                    text[length - 1] = b' ';
                    assert_eq!(find_delimiter(&text), expected.min(length - 1));
                }
            }
        }
    }
}
