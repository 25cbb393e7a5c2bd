//! Exchanges by SCGI and uwsgi, which answer alike: a head as CGI makes it, then content until its length is reached or the connection
//! closes. A connection serves one request.

use bstr::BStr;
use http::Request;
use http::upstream::{
    Asks, Content, ContentLength, Fault, HeadProgress, Piece, Plan, Protocol, Settings,
    SettingsRef, Target,
};
use proto::Known;
use proto::cgi::{HeadParser, StatusLine};
use proto::h1::body::parse_length;
use proto::h1::response::ResponseHead;

use super::{connection_tag, is_bodyless, request_content};

/// What such protocols differ in: how a request begins.
pub(crate) trait CgiHead: 'static {
    /// See [`Protocol::scheme`].
    fn scheme(&self) -> &'static str;

    /// See [`Protocol::secure_host`].
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// See [`Protocol::write_head`]; gives what the request asks for.
    fn write(
        &mut self,
        request: &mut Request,
        settings: &Settings,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<Asks, u16>;
}

/// What is to be done for a request that goes to `target`, with content that has to have a length.
pub(crate) fn plan(
    request: &Request,
    settings: SettingsRef,
    target: Target,
    head: impl CgiHead,
) -> Plan {
    // Chunks have no length before all of them are here.
    let has_length = !request.head.wire.fields.has(Known::TransferEncoding);
    let exchange = Exchange {
        head,
        asks: Asks::default(),
        parser: HeadParser::new(StatusLine::Tolerated),
        head_limit: usize::try_from(settings.buffer_size).unwrap_or(usize::MAX),
        content: ContentLength::Unknown,
        left: None,
        settings: settings.clone(),
    };
    Plan {
        content: request_content(&settings, has_length),
        protocol: Box::new(exchange),
        settings,
        target,
        watch_client: true,
        tag: connection_tag(request),
    }
}

/// One exchange.
struct Exchange<H> {
    head: H,
    settings: SettingsRef,
    asks: Asks,
    parser: HeadParser,
    /// The largest head of a response, in bytes (`…_buffer_size`).
    head_limit: usize,
    content: ContentLength,
    /// Content that is still to come, if that is known.
    left: Option<u64>,
}

impl<H: CgiHead> Protocol for Exchange<H> {
    fn scheme(&self) -> &'static str {
        self.head.scheme()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.head.secure_host()
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: Content,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        self.asks = self.head.write(request, &self.settings, content, out)?;
        Ok(())
    }

    fn content_is_plain(&self) -> bool {
        true
    }

    fn begin_response(&mut self) {
        self.parser.reset();
        self.left = None;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        let Some(used) = self
            .parser
            .parse(input, self.head_limit, head)
            .map_err(Fault::new)?
        else {
            return Ok(HeadProgress::Partial);
        };
        self.content = content_length(request, head)?;
        self.left = match self.content {
            ContentLength::Known(length) => Some(length),
            ContentLength::None | ContentLength::Unknown => None,
        };
        Ok(HeadProgress::Complete(used))
    }

    fn content_length(&self) -> ContentLength {
        self.content
    }

    fn read_content(&mut self, _: &Request, input: &[u8]) -> Result<Piece, Fault> {
        Ok(match &mut self.left {
            Some(0) => Piece::End(0),
            _ if input.is_empty() => Piece::More,
            None => Piece::Data(0..input.len()),
            Some(left) => {
                let length = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(input.len());
                *left -= length as u64;
                Piece::Data(0..length)
            }
        })
    }

    fn end_of_input(&mut self) -> Result<(), Fault> {
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(Fault::new("upstream prematurely closed connection")),
        }
    }

    fn keeps_alive(&self) -> bool {
        false
    }

    fn asks(&self) -> Asks {
        self.asks
    }
}

/// What the head of a CGI response says of the content.
pub(crate) fn content_length(
    request: &Request,
    head: &ResponseHead,
) -> Result<ContentLength, Fault> {
    if is_bodyless(request, head.status) {
        return Ok(ContentLength::None);
    }
    match head.fields.get_known(Known::ContentLength) {
        None => Ok(ContentLength::Unknown),
        Some(value) => match parse_length(value) {
            Some(length) => Ok(ContentLength::Known(length)),
            None => Err(Fault::new(
                [
                    b"upstream sent invalid \"Content-Length\" header: \"",
                    value,
                    b"\"",
                ]
                .concat(),
            )),
        },
    }
}
