//! Exchanges over SCGI and uwsgi. Their responses are alike: a CGI header, then content up to its
//! announced length or the end of the connection. A connection serves one request.

use bstr::{BStr, ByteSlice};
use host::error_log::LogLevel;
use http::Request;
use http::upstream::{
    ChunkPiece, ContentLength, ExchangePlan, ExchangeTarget, HeadProgress, NoResponse,
    ProtocolFault, RequestLength, RequestTraits, SettingsRef, UpstreamProtocol, UpstreamSettings,
};
use proto::KnownField;
use proto::cgi::{CgiStatusLine, HeadParser};
use proto::h1::response::BadResponse;
use proto::message::{BadFraming, Method, ResponseFraming, ResponseHead, parse_length};

use super::{connection_tag, is_bodyless, request_content};

/// What the two protocols differ in: how a request begins.
pub(crate) trait CgiHead: 'static {
    /// See [`UpstreamProtocol::scheme`].
    fn scheme(&self) -> &'static str;

    /// See [`UpstreamProtocol::secure_host`].
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// See [`UpstreamProtocol::write_head`]. Returns what the request asks for.
    fn write(
        &mut self,
        request: &mut Request,
        settings: &UpstreamSettings,
        content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<RequestTraits, NoResponse>;

    /// Reads the params back, to show them.
    fn read_params(head: &[u8]) -> Vec<(&[u8], &[u8])>;
}

/// The plan for a request to `target`. Both protocols announce the length of the content in front
/// of it.
pub(crate) fn plan(
    request: &Request,
    settings: SettingsRef,
    target: ExchangeTarget,
    head: impl CgiHead,
) -> ExchangePlan {
    let exchange = CgiExchange {
        head,
        traits: RequestTraits::default(),
        parser: HeadParser::new(CgiStatusLine::Tolerated),
        head_limit: usize::try_from(settings.buffer_size).unwrap_or(usize::MAX),
        content: ContentLength::Unknown,
        remaining: None,
        settings: settings.clone(),
    };
    ExchangePlan {
        content: request_content(request, &settings, true),
        protocol: Box::new(exchange),
        settings,
        target,
        watch_client: true,
        tag: connection_tag(request),
    }
}

/// One request and its response.
struct CgiExchange<H> {
    /// What writes the beginning of the request.
    head: H,
    settings: SettingsRef,
    /// What the request asks of the response, such as a protocol switch.
    traits: RequestTraits,
    parser: HeadParser,
    /// The largest head of a response, in bytes (`…_buffer_size`).
    head_limit: usize,
    content: ContentLength,
    /// Content still expected, if the response announced a length.
    remaining: Option<u64>,
}

impl<H: CgiHead> UpstreamProtocol for CgiExchange<H> {
    fn scheme(&self) -> &'static str {
        self.head.scheme()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.head.secure_host()
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        self.traits = self.head.write(request, &self.settings, content, out)?;
        Ok(())
    }

    fn shown_fields(&self, head: &[u8]) -> http::upstream::ShownFields {
        let params = H::read_params(head).into_iter();
        params
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn content_is_plain(&self) -> bool {
        true
    }

    // Called for every try: what an earlier server has sent must not count for the next one.
    fn begin_response(&mut self) {
        self.parser.reset();
        self.remaining = None;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        let Some(used) = self
            .parser
            .parse(input, self.head_limit, head)
            .map_err(ProtocolFault::new)?
        else {
            return Ok(HeadProgress::Partial);
        };
        warn_of_repeated(request, head);
        self.content = content_length(request, head)?;
        self.remaining = match self.content {
            ContentLength::Known(length) => Some(length),
            ContentLength::None | ContentLength::Unknown => None,
        };
        Ok(HeadProgress::Complete(used))
    }

    fn content_length(&self) -> ContentLength {
        self.content
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<ChunkPiece, ProtocolFault> {
        Ok(match &mut self.remaining {
            // The announced length counts even if the application sends more: the client was told
            // this length.
            Some(0) => ChunkPiece::End(0),
            _ if input.is_empty() => ChunkPiece::More,
            None => ChunkPiece::Data(0..input.len()),
            Some(left) => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= length as u64;
                ChunkPiece::Data(0..length)
            }
        })
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        match self.remaining {
            // Without an announced length the close is the end, and a truncated response cannot be
            // told from a complete one. CGI offers nothing better.
            None | Some(0) => Ok(()),
            Some(_) => Err(ProtocolFault::new("upstream prematurely closed connection")),
        }
    }

    fn keeps_alive(&self) -> bool {
        false
    }

    fn request_traits(&self) -> RequestTraits {
        self.traits
    }
}

/// The line for the error log, with the value that is wrong.
pub(crate) fn framing_fault(bad: BadFraming, head: &ResponseHead) -> Vec<u8> {
    let mut line = BadResponse::Framing(bad).log_line();
    let (before, name) = match bad {
        BadFraming::InvalidContentLength => (": \"Content-Length: ", KnownField::ContentLength),
        BadFraming::UnknownTransferEncoding => (": \"", KnownField::TransferEncoding),
        BadFraming::LengthAndTransferEncoding => return line,
    };
    line.extend_from_slice(before.as_bytes());
    line.extend_from_slice(head.fields.get_known(name).unwrap_or_default());
    line.push(b'"');
    line
}

/// nginx's warning about fields that may occur only once: the first one counts.
pub(crate) fn warn_of_repeated(request: &Request, head: &ResponseHead) {
    for line in head.repeated() {
        let line = line.as_bstr();
        let (name, _) = line.split_once_str(":").unwrap_or((line, b""));
        let fields = head.fields.iter();
        let mut known = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        // The first one as it was spelled.
        let (name, previous) = known.next().unwrap_or((name, b""));
        let (name, previous) = (name.as_bstr(), previous.as_bstr());
        request.log_while(
            LogLevel::Warn,
            "reading response header from upstream",
            format_args!(
                "upstream sent duplicate header line: \"{line}\", previous value: \"{name}: {previous}\", ignored"
            ),
        );
    }
}

/// The content length of a CGI response.
pub(crate) fn content_length(
    request: &Request,
    head: &ResponseHead,
) -> Result<ContentLength, ProtocolFault> {
    // What announces the content wrongly is an error in any protocol, also where there is none.
    if let Err(bad) = ResponseFraming::of_response(Method::Get, 200, &head.fields) {
        return Err(ProtocolFault::new(framing_fault(bad, head)));
    }
    // A response to HEAD, a 204 or a 304 has no content, whatever length its header announces (RFC 9110,
    // section 6.4.1).
    if is_bodyless(request, head.status) {
        return Ok(ContentLength::None);
    }
    match head.fields.get_known(KnownField::ContentLength) {
        None => Ok(ContentLength::Unknown),
        Some(value) => match parse_length(value) {
            Some(length) => Ok(ContentLength::Known(length)),
            None => Ok(ContentLength::Unknown),
        },
    }
}
