//! What the requests of HTTP/2 and HTTP/3 have in common: each comes on a stream of its own, with a head that is a section
//! of fields.
//!
//! Here are the limits of such a head, and the checks in its life that are the same in both. What differs (frames, windows,
//! how a stream is reset) is in `crate::h2` and `crate::h3`.

use std::borrow::Cow;

use bstr::BStr;
use host::error_log::LogLevel;
use proto::KnownField;
use proto::field_section::request::UnderscorePolicy;
use proto::field_section::{
    DecodedField, ENTRY_OVERHEAD, ListLimits, MalformedRequest, RequestLimits, RequestReader, rules,
};
use proto::fields::Fields;
use proto::message::{InvalidHeaders, Method, RejectKind, RejectedHead};

use crate::core::ServerConf;
use crate::lifecycle::RequestRefusal;
use crate::request::Request;

/// How much larger than its fields a header block may be on the wire: the longest Huffman codes have 30 bits for a
/// byte.
pub(crate) const BLOCK_FACTOR: usize = 4;

/// How many fields of a request are examined beyond `max_headers`, for Cookie fields, which may be split.
const MORE_FIELDS: usize = 1000;

/// What the head of a request may be.
pub(crate) fn request_limits(core: &ServerConf) -> RequestLimits {
    RequestLimits {
        underscores_in_headers: match core.underscores_in_headers {
            true => UnderscorePolicy::Allowed,
            false => UnderscorePolicy::Invalid,
        },
        invalid_headers: match core.ignore_invalid_headers {
            true => InvalidHeaders::Ignored,
            false => InvalidHeaders::Kept,
        },
        max_headers: core.max_headers as usize,
        max_text: core.large_buffer_size as usize,
        max_texts: (core.large_buffers * core.large_buffer_size) as usize,
    }
}

/// The limits of the decompressor. nginx counts only names and values, and no Cookie fields; the overhead of the fields
/// themselves is bounded here, too.
pub(crate) fn list_limits(core: &ServerConf) -> ListLimits {
    let texts = (core.large_buffers * core.large_buffer_size) as usize;
    let fields = (core.max_headers as usize).saturating_add(MORE_FIELDS);
    ListLimits {
        max_size: texts.saturating_add(MORE_FIELDS * ENTRY_OVERHEAD),
        max_fields: fields,
    }
}

/// What the connection knows of the request beyond its head.
pub(crate) struct StreamHeadFacts {
    pub(crate) protocol: ConnectProtocol,
    /// The head did not end the client's side: content may follow.
    pub(crate) has_content: bool,
    /// Names of invalid fields that were ignored (`ignore_invalid_headers`), to be logged once the request can log.
    pub(crate) ignored: Vec<Vec<u8>>,
}

/// What the task of an HTTP/2 stream starts from.
pub(crate) struct StreamStart {
    /// The request, of which only the head has been filled in.
    pub(crate) request: Box<Request>,
    pub(crate) verdict: Result<(), MalformedRequest>,
    pub(crate) about: StreamHeadFacts,
}

/// What the client wants to speak on the stream after its request (RFC 8441, RFC 9220).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectProtocol {
    /// Only HTTP.
    None,
    WebSocket,
    Unknown,
}

impl StreamHeadFacts {
    /// The facts of the head that the reader has just finished.
    pub(crate) fn of_reader(reader: &RequestReader, has_content: bool) -> StreamHeadFacts {
        StreamHeadFacts {
            protocol: match reader.protocol() {
                None => ConnectProtocol::None,
                Some(b"websocket") => ConnectProtocol::WebSocket,
                Some(_) => ConnectProtocol::Unknown,
            },
            has_content,
            ignored: reader.ignored().to_vec(),
        }
    }

    /// Logs the fields that were ignored.
    pub(crate) fn log_ignored(&self, request: &Request) {
        for name in &self.ignored {
            request.log(
                LogLevel::Info,
                format_args!(
                    "client sent invalid header: \"{}\" while reading client request headers",
                    BStr::new(name)
                ),
            );
        }
    }

    /// Whether the method, with what is to follow on the stream, is one that is served.
    pub(crate) fn check_method(&self, request: &Request) -> Result<(), RequestRefusal> {
        match (request.method, self.protocol) {
            (_, ConnectProtocol::Unknown) => {
                let why = b"client sent unknown :protocol header";
                Err(RequestRefusal::Protocol(501, why.into()))
            }
            // Only the extended CONNECT of RFC 8441 is supported; this would be a tunnel through the server.
            (Method::Connect, ConnectProtocol::None) => {
                Err(RejectedHead::new(RejectKind::ConnectNotAllowed).into())
            }
            (Method::Trace, _) => Err(RejectedHead::new(RejectKind::TraceNotAllowed).into()),
            _ => Ok(()),
        }
    }
}

/// The refusal of a head that its reader found malformed.
pub(crate) fn refusal_of(malformed: MalformedRequest) -> RequestRefusal {
    RequestRefusal::Protocol(malformed.status, Cow::Owned(malformed.line))
}

/// The refusal of a request to a server for which its version of HTTP is off, on a connection to another one: 421 lets the
/// client open a connection of its own for it (RFC 9110, section 15.5.20).
pub(crate) fn misdirected() -> RequestRefusal {
    let why = b"client attempted to request the server name for which the negotiated protocol is disabled";
    RequestRefusal::Protocol(421, why.into())
}

/// `Content-Length`, if the client sent it.
pub(crate) fn announced_length(request: &Request) -> Result<Option<u64>, RequestRefusal> {
    let fields = &request.head.wire.fields;
    let Some(value) = fields.get_known(KnownField::ContentLength) else {
        return Ok(None);
    };
    match proto::message::parse_length(value) {
        Some(length) => Ok(Some(length)),
        None => Err(RejectedHead::new(RejectKind::InvalidContentLength).into()),
    }
}

/// What is wrong about the amount of content, if anything: RFC 9113, section 8.1.1, and RFC 9114, section 4.1.2, make a
/// request malformed whose DATA frames do not add up to its `Content-Length`.
pub(crate) fn length_fault(announced: u64, received: u64, is_all: bool) -> Option<String> {
    if received > announced {
        return Some("client intended to send body data larger than declared".to_owned());
    }
    (is_all && received < announced).then(|| {
        format!(
            "client prematurely closed stream: only {received} out of {announced} bytes of request body received"
        )
    })
}

/// Rewrites a WebSocket's CONNECT to the form of HTTP/1.1, which handlers and upstream servers know. The key proves
/// nothing there, and HTTP/2 and HTTP/3 have no use for one (RFC 8441, section 5).
pub(crate) fn as_upgrade(fields: &mut Fields) {
    fields.push(b"upgrade", b"websocket");
    fields.push(b"connection", b"Upgrade");
    if fields.get(b"sec-websocket-key").is_none() {
        fields.push(b"sec-websocket-key", b"d2Vpci1vdmVyLWh0dHAvMg==");
    }
}

/// Whether the client asked for a WebSocket (RFC 8441) and would take this answer, an ordinary page, for an open one.
fn is_refused_websocket(request: &Request) -> bool {
    // A client cannot send this field on a stream (RFC 9113, section 8.2.2): we added it in place of `:protocol`.
    let asked = request.head.wire.fields.has(KnownField::Upgrade);
    asked && !request.delivery.is_upgraded() && (200..300).contains(&request.out.status)
}

/// Where no handler switched protocols, a client that asked for a WebSocket gets 501.
pub(crate) fn refuse_websocket(request: &mut Request) {
    if !is_refused_websocket(request) {
        return;
    }
    request.log(
        LogLevel::Info,
        format_args!("client sent CONNECT for a WebSocket where none is configured"),
    );
    request.out.status = 501;
    request.out.content_length = None;
    request.out.body = crate::response_body::ResponseBody::Empty;
}

/// Writes the head to the debug log.
pub(crate) fn debug_head(request: &Request, version: &str) {
    let wire = &request.head.wire;
    request.debug(format_args!(
        "{version} request line: \"{}\"",
        BStr::new(wire.request_line())
    ));
    for (name, value) in wire.fields.iter() {
        request.debug(format_args!(
            "{version} header: \"{}: {}\"",
            BStr::new(name),
            BStr::new(value)
        ));
    }
}

/// The trailers of a request, as they are decoded.
pub(crate) struct TrailerReader {
    pub(crate) fields: Fields,
    /// No field has broken a rule.
    pub(crate) is_valid: bool,
}

impl TrailerReader {
    pub(crate) fn new() -> TrailerReader {
        TrailerReader {
            fields: Fields::new(),
            is_valid: true,
        }
    }

    /// Takes a field. RFC 9113, sections 8.2.1 and 8.2.2: the same rules as for the head. Pseudo-header fields, which trailers
    /// must not contain (section 8.1), fail the first one because of their colon.
    pub(crate) fn add_field(&mut self, field: DecodedField<'_>) {
        self.is_valid &= rules::is_name(field.name)
            && rules::is_value(field.value)
            && !rules::is_padded(field.value)
            && !rules::is_connection_specific(field.known, field.value);
        if self.is_valid {
            self.fields
                .push_numbered(field.known, field.name, field.value);
        }
    }
}
