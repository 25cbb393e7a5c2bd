//! Responses of SCGI and uwsgi: a head as CGI makes it, then content until its length is reached or the connection
//! closes. A connection serves one request.

use http::Request;
use http::upstream::{ContentLength, Fault, HeadProgress, Piece};
use proto::Known;
use proto::cgi::{HeadParser, StatusLine};
use proto::h1::body::parse_length;
use proto::h1::response::ResponseHead;

use super::is_bodyless;

/// Reads such a response.
pub(crate) struct CgiResponse {
    parser: HeadParser,
    /// The largest head, in bytes.
    head_limit: usize,
    content: ContentLength,
    /// Content that is still to come, if that is known.
    left: Option<u64>,
}

impl CgiResponse {
    /// Ready for a response with a head of at most so many bytes (`…_buffer_size`).
    pub(crate) fn new(head_limit: u64) -> CgiResponse {
        CgiResponse {
            parser: HeadParser::new(StatusLine::Tolerated),
            head_limit: usize::try_from(head_limit).unwrap_or(usize::MAX),
            content: ContentLength::Unknown,
            left: None,
        }
    }

    /// See [`http::upstream::Protocol::begin_response`].
    pub(crate) fn begin(&mut self) {
        self.parser.reset();
        self.left = None;
    }

    /// See [`http::upstream::Protocol::read_head`].
    pub(crate) fn read_head(
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

    /// See [`http::upstream::Protocol::content_length`].
    pub(crate) fn content_length(&self) -> ContentLength {
        self.content
    }

    /// See [`http::upstream::Protocol::read_content`].
    pub(crate) fn read_content(&mut self, input: &[u8]) -> Piece {
        match &mut self.left {
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
        }
    }

    /// See [`http::upstream::Protocol::end_of_input`].
    pub(crate) fn end_of_input(&self) -> Result<(), Fault> {
        match self.left {
            None | Some(0) => Ok(()),
            Some(_) => Err(Fault::new("upstream prematurely closed connection")),
        }
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
