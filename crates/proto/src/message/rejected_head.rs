//! Why a request was refused: the status to answer and the line for the error log.
//!
//! The words are nginx's, because operators search their logs for them. A reject never says
//! whether to close: every one of these leaves the connection in an unknown state, so always close.

use super::request_head::RequestHead;
use crate::fields::ArenaSpan;
use crate::known_fields::KnownField;

/// A refused request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedHead {
    /// What is wrong.
    pub kind: RejectKind,
    /// The offending line, as far as it was read; offsets into the head.
    line: ArenaSpan,
    /// The offending byte within the head, for [`RejectKind::InvalidFieldLine`].
    at: u32,
}

/// What is wrong with a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectKind {
    /// The method has a character that methods do not have, or nothing follows it.
    InvalidMethod,
    /// The request line does not follow the grammar, or a control character is in it.
    InvalidRequest,
    /// The target cannot be normalised: an invalid escape, NUL, or `..` above the root.
    InvalidUri,
    /// HTTP/2.0 or higher in the request line.
    InvalidVersion,
    /// A request line without version whose method is not GET.
    InvalidHttp09Method,
    /// The request line is longer than a large client header buffer.
    UriTooLong,
    /// A header line is longer than a large client header buffer, or all buffers are full.
    FieldLineTooLong,
    /// The buffers are full and no header line was begun.
    HeadTooLarge,
    /// More header lines than `max_headers`.
    TooManyFields,
    /// A byte that no header line may have: folding, a space in the name, a control character.
    InvalidFieldLine,
    /// A second header line of a name that must stand once.
    DuplicateField(KnownField),
    /// The Host field is not a host.
    InvalidHost,
    /// The target's authority is not a host.
    InvalidHostInTarget,
    /// The Connection field names a field that says who asks for what, or too many.
    InvalidConnection,
    /// HTTP/1.1 without Host (RFC 9112 section 3.2).
    MissingHost,
    /// Content-Length is not a number that fits into 63 bits.
    InvalidContentLength,
    /// Transfer-Encoding in HTTP/1.0 (RFC 9112 section 6.1).
    TransferEncodingInHttp10,
    /// Both framings: the usual sign of request smuggling (RFC 9112 section 6.3).
    LengthAndTransferEncoding,
    /// A transfer coding other than `chunked`.
    UnknownTransferEncoding,
    /// CONNECT where it is not allowed.
    ConnectNotAllowed,
    /// CONNECT with a body.
    ConnectWithBody,
    /// TRACE, which is never allowed.
    TraceNotAllowed,
}

impl RejectedHead {
    /// A reject that concerns the head as a whole.
    pub fn new(kind: RejectKind) -> RejectedHead {
        RejectedHead {
            kind,
            line: ArenaSpan::default(),
            at: 0,
        }
    }

    pub(crate) fn on_line(kind: RejectKind, line: ArenaSpan, at: usize) -> RejectedHead {
        RejectedHead {
            kind,
            line,
            at: at as u32,
        }
    }

    /// The status to answer with. 494 is nginx's own code for an oversized head: `error_page` may
    /// name it, and the client is shown 400 in its place.
    pub fn status(&self) -> u16 {
        use RejectKind::*;
        match self.kind {
            UriTooLong => 414,
            FieldLineTooLong | HeadTooLarge | TooManyFields => 494,
            InvalidVersion => 505,
            UnknownTransferEncoding => 501,
            ConnectNotAllowed | TraceNotAllowed => 405,
            InvalidMethod
            | InvalidRequest
            | InvalidUri
            | InvalidHttp09Method
            | InvalidFieldLine
            | DuplicateField(_)
            | InvalidHost
            | InvalidConnection
            | InvalidHostInTarget
            | MissingHost
            | InvalidContentLength
            | TransferEncodingInHttp10
            | LengthAndTransferEncoding
            | ConnectWithBody => 400,
        }
    }

    /// Whether the client may still be sending, so that the close should linger until it has read
    /// the answer.
    pub fn lingers(&self) -> bool {
        use RejectKind::*;
        matches!(self.kind, FieldLineTooLong | HeadTooLarge | TooManyFields)
    }

    /// What the server was doing, in nginx's words, which follow the message in the error log.
    pub fn log_action(&self) -> &'static str {
        use RejectKind::*;
        match self.kind {
            InvalidMethod | InvalidRequest | InvalidUri | InvalidVersion | InvalidHttp09Method
            | InvalidHostInTarget | UriTooLong => "reading client request line",
            FieldLineTooLong
            | HeadTooLarge
            | TooManyFields
            | InvalidFieldLine
            | DuplicateField(_)
            | InvalidHost
            | InvalidConnection
            | MissingHost
            | InvalidContentLength
            | TransferEncodingInHttp10
            | LengthAndTransferEncoding
            | UnknownTransferEncoding
            | ConnectNotAllowed
            | ConnectWithBody
            | TraceNotAllowed => "reading client request headers",
        }
    }

    /// Whether the target was read and is well-formed, as far as the parser looks: what is wrong
    /// comes after it.
    pub fn follows_target(&self) -> bool {
        use RejectKind::*;
        !matches!(
            self.kind,
            InvalidMethod
                | InvalidRequest
                | InvalidUri
                | InvalidVersion
                | InvalidHttp09Method
                | UriTooLong
        )
    }

    /// The line for the error log, at level `info`. `head` is the one the parser filled.
    pub fn log_line(&self, head: &RequestHead) -> Vec<u8> {
        use RejectKind::*;
        let fixed = match self.kind {
            InvalidMethod => "client sent invalid method",
            InvalidRequest | InvalidUri => "client sent invalid request",
            InvalidVersion => "client sent invalid version",
            InvalidHttp09Method => "client sent invalid method in HTTP/0.9 request",
            UriTooLong => "client sent too long URI",
            HeadTooLarge => "client sent too large request",
            TooManyFields => "client sent too many header lines",
            InvalidHost => "client sent invalid host header",
            InvalidConnection => "client sent invalid \"Connection\" header",
            InvalidHostInTarget => "client sent invalid host in request line",
            MissingHost => "client sent HTTP/1.1 request without \"Host\" header",
            InvalidContentLength => "client sent invalid \"Content-Length\" header",
            TransferEncodingInHttp10 => {
                "client sent HTTP/1.0 request with \"Transfer-Encoding\" header"
            }
            LengthAndTransferEncoding => {
                "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time"
            }
            ConnectNotAllowed => "client sent CONNECT method",
            ConnectWithBody => "client sent CONNECT request with body",
            TraceNotAllowed => "client sent TRACE method",
            FieldLineTooLong => return self.too_long_line(head),
            InvalidFieldLine => return self.invalid_line(head),
            DuplicateField(known) => return self.duplicate_line(head, known),
            UnknownTransferEncoding => return unknown_encoding_line(head),
        };
        fixed.as_bytes().to_vec()
    }

    fn too_long_line(&self, head: &RequestHead) -> Vec<u8> {
        /// So much of the line is enough to recognise it; nginx cuts at about the same place.
        const SHOWN: usize = 1748;
        let line = head.text(self.line);
        let shown = &line[..line.len().min(SHOWN)];
        [b"client sent too long header line: \"", shown, b"...\""].concat()
    }

    fn invalid_line(&self, head: &RequestHead) -> Vec<u8> {
        let text = head.text(ArenaSpan {
            start: 0,
            end: head.text_len(),
        });
        let at = (self.at as usize).min(text.len());
        let before = &text[(self.line.start as usize).min(at)..at];
        let byte = text.get(at).copied().unwrap_or(b'\n');
        let tail = format!("\\x{byte:02x}...\"");
        [
            b"client sent invalid header line: \"",
            before,
            tail.as_bytes(),
        ]
        .concat()
    }

    fn duplicate_line(&self, head: &RequestHead, known: KnownField) -> Vec<u8> {
        let what: &[u8] = if known == KnownField::Host {
            b"client sent duplicate host header: \""
        } else {
            b"client sent duplicate header line: \""
        };
        let previous = head.fields.get_known(known).unwrap_or_default();
        let line = head.text(self.line);
        [
            what,
            line,
            b"\", previous value: \"",
            known.name().as_bytes(),
            b": ",
            previous,
            b"\"",
        ]
        .concat()
    }
}

fn unknown_encoding_line(head: &RequestHead) -> Vec<u8> {
    let value = head
        .fields
        .get_known(KnownField::TransferEncoding)
        .unwrap_or_default();
    [
        b"client sent unknown \"Transfer-Encoding\": \"",
        value,
        b"\"",
    ]
    .concat()
}
