//! HTTP/1 as an upstream protocol (RFC 9112).

use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use http::Request;
use http::site::ConfRef;
use http::upstream::{
    Asks, Content, ContentLength, Ends, Fault, HeadProgress, Piece, Place, Protocol, SettingsRef,
};
use proto::Known;
use proto::connection::Nominated;
use proto::fields::Fields;
use proto::h1::Method;
use proto::h1::body::{
    CHUNK_END, ChunkDecoder, ResponseFraming, write_chunk_start, write_last_chunk,
};
use proto::h1::response::{Parser, ResponseHead, Status};

use super::{Conf, cookie, rules, url};

/// One request and its response.
pub(super) struct Http1 {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    address: Arc<url::Address>,
    method: Method,
    chunked_request: bool,
    asks: Asks,
    parser: Parser,
    body: Body,
    length: ContentLength,
    keeps_alive: bool,
}

enum Body {
    None,
    /// So many bytes are left.
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    UntilClose,
}

impl Http1 {
    pub(super) fn new(
        conf: ConfRef<Conf>,
        settings: SettingsRef,
        address: Arc<url::Address>,
    ) -> Http1 {
        Http1 {
            conf,
            settings,
            address,
            method: Method::Get,
            chunked_request: false,
            asks: Asks::default(),
            parser: Parser::new(),
            body: Body::None,
            length: ContentLength::None,
            keeps_alive: false,
        }
    }

    fn accept(
        &mut self,
        request: &Request,
        head: &mut ResponseHead,
        used: usize,
    ) -> Result<HeadProgress, Fault> {
        if head.status < 200 && head.status != 101 {
            self.parser.reset();
            return Ok(HeadProgress::Interim(used));
        }
        for line in head.repeated() {
            let line = line.as_bstr();
            request.log(
                rt::error_log::Level::Warn,
                format_args!("upstream sent duplicate header line: \"{line}\", ignored while reading response header from upstream"),
            );
        }
        let framing = ResponseFraming::of_response(self.method, head.status, &head.fields)
            .map_err(|bad| Fault::new(proto::h1::response::BadResponse::Framing(bad).log_line()))?;
        self.keeps_alive = head.keeps_alive() && head.status != 101;
        drop_nominated(head)?;
        (self.body, self.length) = match framing {
            ResponseFraming::None => (Body::None, ContentLength::None),
            ResponseFraming::Length(length) => (Body::Length(length), ContentLength::Known(length)),
            ResponseFraming::Chunked => (
                Body::Chunked(Box::new(ChunkDecoder::new())),
                ContentLength::Unknown,
            ),
            ResponseFraming::UntilClose => {
                self.keeps_alive = false;
                (Body::UntilClose, ContentLength::Unknown)
            }
        };
        Ok(HeadProgress::Complete(used))
    }

    /// Gives whether there is anything to ask for.
    fn write_request_line(
        &mut self,
        request: &mut Request,
        address: &url::Address,
        out: &mut Vec<u8>,
    ) -> Result<bool, u16> {
        let start = out.len();
        write_method(request, &self.conf, out)?;
        // nginx compares without regard to case here.
        self.method = match out[start..].eq_ignore_ascii_case(b"HEAD") {
            true => Method::Head,
            false => Method::from_bytes(&out[start..]),
        };
        out.push(b' ');
        let target = out.len();
        url::write_target(request, &self.conf, address, out);
        let target = &out[target..];
        let is_something = !target.is_empty();
        let record = request.upstream.get_or_make();
        record.target.extend_from_slice(target);
        out.extend_from_slice(if self.conf.http_1_0 {
            b" HTTP/1.0\r\n"
        } else {
            b" HTTP/1.1\r\n"
        });
        Ok(is_something)
    }
}

/// Drops the fields that are meant for this connection alone (RFC 9110, section 7.6.1): nobody gets to see them, and no
/// cache keeps them. How the content is framed has been read by then, and counts.
fn drop_nominated(head: &mut ResponseHead) -> Result<(), Fault> {
    let nominated = Nominated::by(&head.fields);
    if nominated.are_too_many() {
        return Err(Fault::new("upstream sent invalid \"Connection\" header"));
    }
    if !nominated.is_empty() {
        let names = nominated.to_names();
        head.fields.retain(|known, name, _| {
            matches!(
                known,
                Known::Connection | Known::ContentLength | Known::TransferEncoding
            ) || !names.iter().any(|named| named.eq_ignore_ascii_case(name))
        });
    }
    Ok(())
}

/// Appends the method to ask with. The error is the status to answer with; it has been logged.
pub(super) fn write_method(
    request: &mut Request,
    conf: &Conf,
    out: &mut Vec<u8>,
) -> Result<(), u16> {
    match &conf.method {
        Some(method) => {
            let place = Place {
                directive: "proxy_method",
                name: b"",
            };
            Ends::Word.write(request, method, place, out)?;
        }
        None if request.method == request.head.wire.method => {
            out.extend_from_slice(request.head.wire.method_text());
        }
        None => out.extend_from_slice(request.method.name().as_bytes()),
    }
    Ok(())
}

/// Rewrites a field of a response, whatever version it came by.
pub(super) fn map_field(
    request: &mut Request,
    conf: &Conf,
    field: Known,
    value: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    match field {
        Known::Location => rules::map_location(request, conf, value, out),
        Known::Refresh => rules::map_refresh(request, conf, value, out),
        Known::SetCookie => cookie::map(request, conf, value, out),
        _ => false,
    }
}

impl Protocol for Http1 {
    fn scheme(&self) -> &'static str {
        self.address.scheme_prefix()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.address.secure.as_deref().map(BStr::new)
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let address = Arc::clone(&self.address);
        if !self.write_request_line(request, &address, out)? {
            request.error(format_args!("zero length URI to proxy"));
            return Err(500);
        }
        self.chunked_request = content == Content::Unknown;
        let body = self.conf.set_body.as_ref().map(|body| request.value(body));
        let content = body
            .as_ref()
            .map_or(content, |body| Content::Length(body.len() as u64));
        let pass_fields = self.settings.pass_request_headers;
        let fields = &self.conf.fields;
        self.asks = fields.write(
            request,
            content,
            &address.host_header,
            self.conf.http_1_0,
            pass_fields,
            out,
        )?;
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&body.unwrap_or_default());
        Ok(())
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if self.chunked_request {
            write_chunk_start(piece.len() as u64, out);
        }
        out.extend_from_slice(piece);
        if self.chunked_request {
            out.extend_from_slice(CHUNK_END);
        }
    }

    fn write_content_end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if self.chunked_request {
            write_last_chunk(trailers, out);
        }
    }

    fn content_is_plain(&self) -> bool {
        !self.chunked_request
    }

    fn begin_response(&mut self) {
        self.parser.reset();
        self.body = Body::None;
        self.keeps_alive = false;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        match self.parser.parse(input, usize::MAX, head) {
            Ok(Status::Partial) => Ok(HeadProgress::Partial),
            Ok(Status::Complete(used)) => self.accept(request, head, used),
            Ok(Status::NotHttp) => Err(Fault::new("upstream sent no valid HTTP/1.0 header")),
            Err(bad) => Err(Fault::new(bad.log_line())),
        }
    }

    fn content_length(&self) -> ContentLength {
        self.length
    }

    fn plain_content(&self) -> Option<u64> {
        match self.body {
            Body::Length(length) => Some(length),
            Body::None | Body::Chunked(_) | Body::UntilClose => None,
        }
    }

    fn read_content(&mut self, _request: &Request, input: &[u8]) -> Result<Piece, Fault> {
        match &mut self.body {
            Body::None | Body::Length(0) => Ok(Piece::End(0)),
            _ if input.is_empty() => Ok(Piece::More),
            Body::Length(left) => {
                let n = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= n as u64;
                Ok(Piece::Data(0..n))
            }
            Body::Chunked(decoder) => decoder
                .next(input)
                .map_err(|_| Fault::new("upstream sent invalid chunked response")),
            Body::UntilClose => Ok(Piece::Data(0..input.len())),
        }
    }

    fn end_of_input(&mut self) -> Result<(), Fault> {
        match self.body {
            Body::UntilClose => Ok(()),
            Body::None | Body::Length(_) | Body::Chunked(_) => {
                Err(Fault::new("upstream prematurely closed connection"))
            }
        }
    }

    fn trailers(&self) -> Option<&Fields> {
        match &self.body {
            Body::Chunked(decoder) => Some(decoder.trailers()),
            Body::None | Body::Length(_) | Body::UntilClose => None,
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
        field: Known,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        map_field(request, &self.conf, field, value, out)
    }

    fn asks(&self) -> Asks {
        self.asks
    }
}
