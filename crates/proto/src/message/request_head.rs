//! A request head: what the parser found, and the checks that need all of it.
//!
//! The head owns one copy of the text, in its fields' memory; everything else is an offset into it.

use std::borrow::Cow;

use super::framing::RequestFraming;
use super::method::Method;
use super::rejected_head::{RejectKind, RejectedHead};
use super::response_head::has_token;
use super::version::MessageVersion;
use crate::connection::NominatedFields;
use crate::fields::{ArenaSpan, Fields};
use crate::known_fields::KnownField;

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

/// A request head. Reuse it from request to request: [`RequestHead::clear`] keeps the memory.
#[derive(Clone, Debug)]
pub struct RequestHead {
    /// The method; [`RequestHead::method_text`] has its text.
    pub method: Method,
    /// The protocol version.
    pub version: MessageVersion,
    /// How the target was written.
    pub form: TargetForm,
    /// The header fields, without ignored ones.
    pub fields: Fields,
    pub(crate) line: ArenaSpan,
    pub(crate) method_text: ArenaSpan,
    pub(crate) target: ArenaSpan,
    pub(crate) scheme: ArenaSpan,
    pub(crate) authority: ArenaSpan,
    pub(crate) protocol: ArenaSpan,
    pub(crate) ignored: Vec<ArenaSpan>,
    pub(crate) size: u32,
    /// The length of the parsed text at the beginning of the fields' arena.
    text_len: u32,
}

impl Default for RequestHead {
    fn default() -> RequestHead {
        RequestHead::new()
    }
}

impl RequestHead {
    /// Ignored header lines that are remembered for the log; further ones are dropped silently.
    pub const MAX_IGNORED: usize = 32;

    /// An empty head.
    pub const fn new() -> RequestHead {
        const NONE: ArenaSpan = ArenaSpan { start: 0, end: 0 };
        RequestHead {
            method: Method::Other,
            version: MessageVersion::HTTP_09,
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
        self.method = Method::Other;
        self.version = MessageVersion::HTTP_09;
        self.form = TargetForm::Origin;
        self.fields.clear();
        self.line = ArenaSpan::default();
        self.method_text = ArenaSpan::default();
        self.target = ArenaSpan::default();
        self.scheme = ArenaSpan::default();
        self.authority = ArenaSpan::default();
        self.protocol = ArenaSpan::default();
        self.ignored.clear();
        self.size = 0;
        self.text_len = 0;
    }

    /// The request line without its line end: `$request`. After a reject, as much of it as came.
    pub fn request_line(&self) -> &[u8] {
        self.text(self.line)
    }

    /// The head as it came, from its request line to the empty line at its end, whatever has been
    /// made of its fields since. Empty for versions that do not send it as text.
    pub fn as_sent(&self) -> &[u8] {
        if self.version >= MessageVersion::HTTP_2 {
            return b"";
        }
        self.text(ArenaSpan {
            start: self.line.start.min(self.text_len),
            end: self.text_len,
        })
    }

    /// The head as text, from its request line to the empty line at its end: as it came, or assembled from its fields
    /// for versions that do not send it as text.
    pub fn as_text(&self) -> Cow<'_, [u8]> {
        let sent = self.as_sent();
        if !sent.is_empty() {
            return sent.into();
        }
        let mut text = self.request_line().to_vec();
        text.extend_from_slice(b"\r\n");
        for (name, value) in self.fields.iter() {
            for part in [name, b": ", value, b"\r\n"] {
                text.extend_from_slice(part);
            }
        }
        text.extend_from_slice(b"\r\n");
        text.into()
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
    /// part of `$request_length`. Of a refused head it is that of the lines before the fault.
    pub fn size(&self) -> usize {
        self.size as usize
    }

    /// Leaves the request line of the head: its target was refused, and nginx reads no further.
    pub fn cut_after_line(&mut self) {
        self.count_to_line_end(self.line.end);
        self.fields.retain(|_, _, _| false);
        self.target = ArenaSpan::default();
    }

    /// Counts the head in [`RequestHead::size`] only as far as its Host field: that was refused, and nginx reads no
    /// further.
    pub fn count_to_host(&mut self) {
        let host = self
            .fields
            .iter_spans()
            .find(|(known, _)| *known == KnownField::Host);
        if let Some((_, value)) = host {
            self.count_to_line_end(value.end);
        }
    }

    /// Heads of versions that are no text have no line ends, and keep their size.
    fn count_to_line_end(&mut self, from: u32) {
        let rest = self.text(ArenaSpan {
            start: from.min(self.text_len),
            end: self.text_len,
        });
        if let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
            self.size = from + at as u32 + 1 - self.line.start;
        }
    }

    /// Whether the client wants the connection to stay open: the last Connection field that says
    /// so decides, else the version (RFC 9112 section 9.3).
    pub fn wants_keep_alive(&self) -> bool {
        let mut keep = self.version >= MessageVersion::HTTP_11;
        for value in self.fields.all_known(KnownField::Connection) {
            if has_token(value, b"close") {
                keep = false;
            } else if has_token(value, b"keep-alive") {
                keep = true;
            }
        }
        keep
    }

    /// The checks that need the whole head, in nginx's order: Host is there, Connection names none
    /// of the fields that a server behind relies on, the framing is sound, CONNECT and TRACE are
    /// allowed. Returns where the body ends.
    pub fn check(&self, allow_connect: bool) -> Result<RequestFraming, RejectedHead> {
        if self.version < MessageVersion::HTTP_10 {
            return Ok(RequestFraming::None);
        }
        if self.version > MessageVersion::HTTP_10 && !self.fields.has(KnownField::Host) {
            return Err(RejectedHead::new(RejectKind::MissingHost));
        }
        let nominated = NominatedFields::from_fields(&self.fields);
        if nominated.are_too_many() || nominated.forbidden_name().is_some() {
            return Err(RejectedHead::new(RejectKind::InvalidConnection));
        }
        let framing =
            RequestFraming::of_request(self.version, &self.fields).map_err(RejectedHead::new)?;
        match self.method {
            Method::Connect if !allow_connect || self.version != MessageVersion::HTTP_11 => {
                Err(RejectedHead::new(RejectKind::ConnectNotAllowed))
            }
            Method::Connect if framing.has_body() => {
                Err(RejectedHead::new(RejectKind::ConnectWithBody))
            }
            Method::Trace => Err(RejectedHead::new(RejectKind::TraceNotAllowed)),
            _ => Ok(framing),
        }
    }

    pub(crate) fn text(&self, span: ArenaSpan) -> &[u8] {
        span.of(self.fields.arena())
    }

    pub(crate) fn text_len(&self) -> u32 {
        self.text_len
    }

    /// Begins a head that another version of HTTP brought in parts: as if the request line that
    /// they come to had been sent. Its fields are pushed afterwards.
    pub(crate) fn assemble(&mut self, version: MessageVersion, method: &[u8], target: &[u8]) {
        self.clear();
        self.version = version;
        self.method = Method::from_bytes(method);
        self.method_text = self.fields.append_text(method);
        self.fields.append_text(b" ");
        self.target = self.fields.append_text(target);
        self.fields.append_text(b" ");
        self.protocol = self.fields.append_text(match version {
            MessageVersion::HTTP_3 => b"HTTP/3.0",
            _ => b"HTTP/2.0",
        });
        self.line = self.method_text.until(self.protocol);
        self.text_len = self.protocol.end;
    }

    /// Notes the head's size on the wire, in bytes.
    pub fn set_size(&mut self, size: u32) {
        self.size = size;
    }

    /// Gives the spans their text.
    pub(crate) fn set_text(&mut self, text: &[u8]) {
        self.fields.set_arena(text);
        self.text_len = text.len() as u32;
    }
}
