//! HTTP/1 as an upstream protocol (RFC 9112). One value of [`Http1Exchange`] serves all tries of a request:
//! whatever belongs to one connection is reset in `begin_response`.

use std::sync::Arc;

use bstr::BStr;
use http::Request;
use http::http_site::ConfRef;
use http::upstream::{
    ChunkPiece, ContentLength, HeadProgress, NoResponse, ProtocolFault, RequestLength,
    RequestTraits, SettingsRef, UpstreamProtocol, ValueOrigin, ValueTerminator,
};
use proto::KnownField;
use proto::connection::NominatedFields;
use proto::fields::Fields;
use proto::h1::body::{ChunkDecoder, write_chunk, write_last_chunk};
use proto::h1::response::{ResponseParser, ResponseProgress};
use proto::message::{Method, ResponseFraming, ResponseHead};

use super::{Conf, cookie, rules, url};
use crate::shared::gateway::response::{framing_fault, warn_of_repeated};

/// One request and its response.
pub(super) struct Http1Exchange {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    address: Arc<url::ProxyAddress>,
    /// The method as sent, which decides whether the response has content.
    method: Method,
    /// Whether the content is sent in chunks, because its length is unknown.
    chunked_request: bool,
    /// What the request asks of the response, such as a protocol switch.
    traits: RequestTraits,
    parser: ResponseParser,
    /// The framing of the content, and how much of it is left.
    body: Http1Body,
    /// The length of the content as announced.
    length: ContentLength,
    /// Whether the server keeps the connection open.
    keeps_alive: bool,
}

/// How the content of the response is framed.
enum Http1Body {
    None,
    /// This many bytes are left.
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    /// HTTP/1.0's way: the end of the connection is the end of the content.
    UntilClose,
}

impl Http1Exchange {
    /// The codec of a request, before its first try.
    pub(super) fn new(
        conf: ConfRef<Conf>,
        settings: SettingsRef,
        address: Arc<url::ProxyAddress>,
    ) -> Http1Exchange {
        Http1Exchange {
            conf,
            settings,
            address,
            // Set with the request line.
            method: Method::Get,
            chunked_request: false,
            traits: RequestTraits::default(),
            parser: ResponseParser::new(),
            body: Http1Body::None,
            length: ContentLength::None,
            keeps_alive: false,
        }
    }

    /// Evaluates a complete response header.
    fn accept_head(
        &mut self,
        request: &Request,
        head: &mut ResponseHead,
        used: usize,
    ) -> Result<HeadProgress, ProtocolFault> {
        // Interim responses come before the real one. A 101 is final: it switches protocols.
        if head.status < 200 && head.status != 101 {
            // The real header follows on the same connection.
            self.parser.reset();
            return Ok(HeadProgress::Interim(used));
        }
        warn_of_repeated(request, head);
        let framing = ResponseFraming::of_response(self.method, head.status, &head.fields)
            .map_err(|bad| ProtocolFault::new(framing_fault(bad, head)))?;
        // After a 101 the connection speaks another protocol and can carry no further request.
        self.keeps_alive = head.keeps_alive() && head.status != 101;
        // After the framing and keep-alive have been read, which depend on these fields.
        drop_nominated(head)?;
        (self.body, self.length) = match framing {
            ResponseFraming::None => (Http1Body::None, ContentLength::None),
            ResponseFraming::Length(length) => {
                (Http1Body::Length(length), ContentLength::Known(length))
            }
            ResponseFraming::Chunked => (
                Http1Body::Chunked(Box::new(ChunkDecoder::new())),
                ContentLength::Unknown,
            ),
            ResponseFraming::UntilClose => {
                // The end of the connection is the end of the content.
                self.keeps_alive = false;
                (Http1Body::UntilClose, ContentLength::Unknown)
            }
        };
        Ok(HeadProgress::Complete(used))
    }
}

/// Appends the request line. Returns the method, and whether there is anything to request.
fn write_request_line(
    request: &mut Request,
    conf: &Conf,
    address: &url::ProxyAddress,
    out: &mut Vec<u8>,
) -> Result<(Method, bool), NoResponse> {
    let start = out.len();
    write_method(request, conf, out)?;
    // nginx ignores case here. It matters only for whether the response has content.
    let method = match out[start..].eq_ignore_ascii_case(b"HEAD") {
        true => Method::Head,
        false => Method::from_bytes(&out[start..]),
    };
    out.push(b' ');
    let target = out.len();
    url::write_target(request, conf, address, out);
    let target = &out[target..];
    let is_something = !target.is_empty();
    // For the log: what the server was asked for can differ from the client's URI.
    let record = request.upstream.get_or_make();
    record.target.extend_from_slice(target);
    out.extend_from_slice(if conf.http_1_0 {
        b" HTTP/1.0\r\n"
    } else {
        b" HTTP/1.1\r\n"
    });
    Ok((method, is_something))
}

/// Drops the fields that are meant for this connection only (RFC 9110, section 7.6.1): they are not
/// passed on, and no cache stores them. The framing has been evaluated by then and stands.
fn drop_nominated(head: &mut ResponseHead) -> Result<(), ProtocolFault> {
    let nominated = NominatedFields::from_fields(&head.fields);
    if nominated.are_too_many() {
        return Err(ProtocolFault::new(
            "upstream sent invalid \"Connection\" header",
        ));
    }
    if !nominated.is_empty() {
        let names = nominated.to_names();
        head.fields.retain(|known, name, _| {
            matches!(
                known,
                // A server cannot strip its own framing by naming it.
                KnownField::Connection | KnownField::ContentLength | KnownField::TransferEncoding
            ) || !names.iter().any(|named| named.eq_ignore_ascii_case(name))
        });
    }
    Ok(())
}

/// Appends the method. The error is the status to respond with; it has been logged.
pub(super) fn write_method(
    request: &mut Request,
    conf: &Conf,
    out: &mut Vec<u8>,
) -> Result<(), NoResponse> {
    match &conf.method {
        Some(method) => {
            let place = ValueOrigin {
                directive: "proxy_method",
                name: b"",
            };
            ValueTerminator::Word.write_value(request, method, place, out)?;
        }
        // The client's own spelling, also of methods that this server does not know.
        None if request.method == request.head.wire.method => {
            out.extend_from_slice(request.head.wire.method_text());
        }
        None => out.extend_from_slice(request.method.name().as_bytes()),
    }
    Ok(())
}

/// Rewrites a field of a response of any protocol version.
pub(super) fn map_field(
    request: &mut Request,
    conf: &Conf,
    field: KnownField,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    match field {
        KnownField::Location => rules::map_location(request, conf, value, out),
        KnownField::Refresh => rules::map_refresh(request, conf, value, out),
        KnownField::SetCookie => cookie::map_cookie(request, conf, value, out),
        _ => false,
    }
}

impl UpstreamProtocol for Http1Exchange {
    fn scheme(&self) -> &'static str {
        self.address.scheme_prefix()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.address.tls_host.as_deref().map(BStr::new)
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        // Found once: `ConfRef` searches at each access.
        let conf: &Conf = &self.conf;
        let (method, is_something) = write_request_line(request, conf, &self.address, out)?;
        self.method = method;
        // A value with variables can turn out empty.
        if !is_something {
            request.error(format_args!("zero length URI to proxy"));
            return Err(NoResponse::new(500));
        }
        // HTTP/1.1 needs no length in advance; with HTTP/1.0 the body has been buffered, so its
        // length is known.
        self.chunked_request = content == RequestLength::Unknown;
        let body = conf.set_body.as_ref().map(|body| request.value(body));
        // `proxy_set_body` replaces the client's body, and so its length as well.
        let content = body
            .as_ref()
            .map_or(content, |body| RequestLength::Length(body.len() as u64));
        let pass_fields = self.settings.pass_request_headers;
        self.traits = conf.fields.write(
            request,
            content,
            &self.address.host_header,
            conf.http_1_0,
            pass_fields,
            out,
        )?;
        out.extend_from_slice(b"\r\n");
        // A fixed body is part of the head, so it is sent again with every try.
        out.extend_from_slice(&body.unwrap_or_default());
        Ok(())
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        match self.chunked_request {
            true => write_chunk(piece, out),
            false => out.extend_from_slice(piece),
        }
    }

    fn write_content_end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if self.chunked_request {
            write_last_chunk(trailers, out);
        }
    }

    // Only without chunks may the content be spliced from the client's socket: the kernel cannot insert chunk
    // headers.
    fn content_is_plain(&self) -> bool {
        !self.chunked_request
    }

    fn begin_response(&mut self) {
        // All that belongs to one connection: this try may be the second one.
        self.parser.reset();
        self.body = Http1Body::None;
        self.keeps_alive = false;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        match self.parser.parse(input, usize::MAX, head) {
            // The size of the header is bounded by the caller's buffer.
            Ok(ResponseProgress::Partial) => Ok(HeadProgress::Partial),
            Ok(ResponseProgress::Complete(used)) => self.accept_head(request, head, used),
            // nginx passes an HTTP/0.9 response on; that is indistinguishable from garbage.
            Ok(ResponseProgress::NotHttp) => {
                Err(ProtocolFault::new("upstream sent no valid HTTP/1.0 header"))
            }
            Err(bad) => Err(ProtocolFault::new(bad.log_line())),
        }
    }

    fn content_length(&self) -> ContentLength {
        self.length
    }

    fn plain_content(&self) -> Option<u64> {
        match self.body {
            // Plain bytes of known length can be spliced or written to a file without looking at
            // them.
            Http1Body::Length(length) => Some(length),
            Http1Body::None | Http1Body::Chunked(_) | Http1Body::UntilClose => None,
        }
    }

    fn read_content(
        &mut self,
        _request: &Request,
        input: &[u8],
    ) -> Result<ChunkPiece, ProtocolFault> {
        match &mut self.body {
            Http1Body::None | Http1Body::Length(0) => Ok(ChunkPiece::End(0)),
            // The end of the input is for `end_of_input` to judge.
            _ if input.is_empty() => Ok(ChunkPiece::More),
            // Never more than announced: the rest of the input is not part of this response.
            Http1Body::Length(left) => {
                let n = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= n as u64;
                Ok(ChunkPiece::Data(0..n))
            }
            Http1Body::Chunked(decoder) => decoder
                .next_piece(input)
                .map_err(|_| ProtocolFault::new("upstream sent invalid chunked response")),
            Http1Body::UntilClose => Ok(ChunkPiece::Data(0..input.len())),
        }
    }

    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        match self.body {
            Http1Body::UntilClose => Ok(()),
            // Anything short of its announced end is an incomplete response (RFC 9112, section 8).
            Http1Body::None | Http1Body::Length(_) | Http1Body::Chunked(_) => {
                Err(ProtocolFault::new("upstream prematurely closed connection"))
            }
        }
    }

    fn trailers(&self) -> Option<&Fields> {
        match &self.body {
            Http1Body::Chunked(decoder) => Some(decoder.trailers()),
            Http1Body::None | Http1Body::Length(_) | Http1Body::UntilClose => None,
        }
    }

    fn keeps_alive(&self) -> bool {
        self.keeps_alive
    }

    fn passes_trailers(&self) -> bool {
        self.conf.pass_trailers
    }

    fn map_field(
        &mut self,
        request: &mut Request,
        field: KnownField,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        map_field(request, &self.conf, field, value, out)
    }

    fn request_traits(&self) -> RequestTraits {
        self.traits
    }
}
