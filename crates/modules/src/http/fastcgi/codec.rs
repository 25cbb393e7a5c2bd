//! The FastCGI codec between the exchange and the wire.
//!
//! A response is a CGI header and content, cut into records, with records of the error stream in
//! between. A record boundary means nothing: the header can end in the middle of one.

use bstr::ByteSlice;
use host::error_log::LogLevel;
use http::Request;
use http::http_site::ConfRef;
use http::upstream::{
    ChunkPiece, ContentLength, HeadProgress, NoResponse, ProtocolFault, RequestLength,
    RequestTraits, SettingsRef, UpstreamProtocol,
};
use proto::cgi::{CgiStatusLine, HeadParser};
use proto::fastcgi::{self, FastcgiEvent, RecordDecoder};
use proto::fields::Fields;
use proto::message::ResponseHead;

use super::Conf;
use crate::shared::gateway::ValueEnding;
use crate::shared::gateway::response::{content_length, warn_of_repeated};

/// One request and its response.
pub(super) struct FastcgiCodec {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    /// What the request asks of the response, such as a protocol switch.
    traits: RequestTraits,
    decoder: RecordDecoder,
    parser: HeadParser,
    /// The response header as far as received, without record framing.
    head_bytes: Vec<u8>,
    /// The parsed header, until it is complete and handed over.
    head: ResponseHead,
    content: ContentLength,
    /// Content still expected, if the response announced a length.
    remaining: Option<u64>,
    /// The application has closed its standard output.
    stdout_ended: bool,
    /// The response is complete and the connection stays open.
    stays_open: bool,
    /// An incomplete message of the error stream. The decoder ends a message at a record of at most
    /// 64 KB, which bounds this.
    stderr: Vec<u8>,
}

/// Characters at the end of a message that say nothing in a log.
const TRAILING: &[u8] = b"\r\n. ";

impl FastcgiCodec {
    pub(super) fn new(conf: ConfRef<Conf>, settings: SettingsRef) -> FastcgiCodec {
        FastcgiCodec {
            conf,
            settings,
            traits: RequestTraits::default(),
            decoder: RecordDecoder::new(),
            parser: HeadParser::new(CgiStatusLine::Never),
            head_bytes: Vec::new(),
            head: ResponseHead::default(),
            content: ContentLength::Unknown,
            remaining: None,
            stdout_ended: false,
            stays_open: false,
            stderr: Vec::new(),
        }
    }

    /// Appends output to the header. If that completes it, returns how much of the output follows
    /// the header.
    fn read_stdout(&mut self, output: &[u8]) -> Result<Option<usize>, ProtocolFault> {
        self.head_bytes.extend_from_slice(output);
        let limit = usize::try_from(self.settings.buffer_size).unwrap_or(usize::MAX);
        let length = self
            .parser
            .parse(&self.head_bytes, limit, &mut self.head)
            .map_err(ProtocolFault::new)?;
        Ok(length.map(|length| self.head_bytes.len() - length))
    }

    /// Takes the complete message, in nginx's wording.
    fn take_message(&mut self) -> Vec<u8> {
        let message = std::mem::take(&mut self.stderr);
        let text = message.trim_end_with(|end| end.is_ascii() && TRAILING.contains(&(end as u8)));
        [b"FastCGI sent in stderr: \"", text, b"\""].concat()
    }

    /// Logs a message that came before the header was complete, unless `fastcgi_catch_stderr` makes
    /// it invalidate the response, so that the next server is tried.
    fn log_head_message(&mut self, request: &Request) -> Result<(), ProtocolFault> {
        let caught = self
            .conf
            .catch_stderr
            .iter()
            .any(|text| self.stderr.contains_str(text));
        let line = self.take_message();
        if caught {
            return Err(ProtocolFault::new(line));
        }
        request.log_while(
            LogLevel::Error,
            "reading response header from upstream",
            format_args!("{}", line.as_bstr()),
        );
        Ok(())
    }
}

impl UpstreamProtocol for FastcgiCodec {
    fn scheme(&self) -> &'static str {
        "fastcgi://"
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        _: RequestLength,
        out: &mut Vec<u8>,
    ) -> Result<(), NoResponse> {
        let mut params = Vec::new();
        let fields = self.settings.pass_request_headers;
        self.traits =
            self.conf
                .params
                .write(request, fields, ValueEnding::Counted, |name, value| {
                    fastcgi::push_param(name, value, &mut params)
                })?;
        fastcgi::write_begin(self.conf.keep_conn, out);
        fastcgi::write_params(&params, out);
        Ok(())
    }

    fn shown_fields(&self, head: &[u8]) -> http::upstream::ShownFields {
        let params = proto::fastcgi::read_params(head);
        let params = params.into_iter();
        params
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        fastcgi::write_stdin(piece, out);
    }

    fn write_content_end(&mut self, _: &Fields, out: &mut Vec<u8>) {
        fastcgi::write_stdin_end(out);
    }

    fn request_traits(&self) -> RequestTraits {
        RequestTraits {
            // FastCGI cannot switch protocols.
            upgrade: false,
            ..self.traits
        }
    }

    fn begin_response(&mut self) {
        self.decoder = RecordDecoder::new();
        self.parser.reset();
        self.head_bytes.clear();
        self.head.clear();
        self.remaining = None;
        self.stdout_ended = false;
        self.stays_open = false;
        self.stderr.clear();
    }

    /// Consumes records as they arrive ([`HeadProgress::Interim`] with an empty head): there can be
    /// any number of messages for the error log, and they must not count towards the size of the
    /// header.
    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, ProtocolFault> {
        let mut at = 0;
        loop {
            let (event, used) = self
                .decoder
                .next_event(&input[at..])
                .map_err(ProtocolFault::new)?;
            match event {
                FastcgiEvent::More if input.is_empty() => return Ok(HeadProgress::Partial),
                FastcgiEvent::More => return Ok(HeadProgress::Interim(input.len())),
                FastcgiEvent::Stdout(range) => {
                    if let Some(rest) = self.read_stdout(&input[at..][range])? {
                        // What follows the header in this record is content.
                        self.decoder.unread(rest);
                        warn_of_repeated(request, &self.head);
                        self.content = content_length(request, &self.head)?;
                        if let ContentLength::Known(length) = self.content {
                            self.remaining = Some(length);
                        }
                        std::mem::swap(head, &mut self.head);
                        // The header is read; its memory is not needed during the content.
                        self.head_bytes = Vec::new();
                        return Ok(HeadProgress::Complete(at + used - rest));
                    }
                }
                FastcgiEvent::Stderr(range, is_end) => {
                    self.stderr.extend_from_slice(&input[at..][range]);
                    if is_end {
                        self.log_head_message(request)?;
                    }
                }
                FastcgiEvent::StdoutEnd => {
                    return Err(ProtocolFault::new(
                        "upstream prematurely closed FastCGI stdout",
                    ));
                }
                FastcgiEvent::End => {
                    return Err(ProtocolFault::new(
                        "upstream prematurely closed FastCGI request",
                    ));
                }
            }
            at += used;
        }
    }

    fn content_length(&self) -> ContentLength {
        self.content
    }

    fn read_content(
        &mut self,
        request: &Request,
        input: &[u8],
    ) -> Result<ChunkPiece, ProtocolFault> {
        let mut at = 0;
        loop {
            let (event, used) = self
                .decoder
                .next_event(&input[at..])
                .map_err(ProtocolFault::new)?;
            // Whether announced content is still missing.
            let is_short = self.remaining.is_some_and(|left| left > 0);
            match event {
                // Even after the end of the output: closing before the end of the request would
                // abort it.
                FastcgiEvent::More => return Ok(ChunkPiece::More),
                FastcgiEvent::Stdout(range) => {
                    let range = at + range.start..at + range.end;
                    let Some(left) = &mut self.remaining else {
                        return Ok(ChunkPiece::Data(range));
                    };
                    // More than announced. The client was told this length, so the rest is dropped.
                    if *left == 0 {
                        return Ok(ChunkPiece::End(range.start));
                    }
                    let length = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(range.len());
                    *left -= length as u64;
                    self.decoder.unread(range.len() - length);
                    return Ok(ChunkPiece::Data(range.start..range.start + length));
                }
                FastcgiEvent::Stderr(range, is_end) => {
                    self.stderr.extend_from_slice(&input[at..][range]);
                    if is_end {
                        let message = self.take_message();
                        request.log_while(
                            LogLevel::Error,
                            "reading upstream",
                            format_args!("{}", message.as_bstr()),
                        );
                    }
                }
                FastcgiEvent::StdoutEnd if is_short => {
                    return Err(ProtocolFault::content_too_short(
                        "upstream prematurely closed FastCGI stdout",
                    ));
                }
                FastcgiEvent::StdoutEnd => self.stdout_ended = true,
                FastcgiEvent::End if is_short => {
                    return Err(ProtocolFault::content_too_short(
                        "upstream prematurely closed FastCGI request",
                    ));
                }
                FastcgiEvent::End => {
                    // Only now: a connection that ended early must not be used again.
                    self.stays_open = self.conf.keep_conn;
                    return Ok(ChunkPiece::End(at + used));
                }
            }
            at += used;
        }
    }

    /// A connection that closes before the end of the request means a truncated response, unless
    /// all of it had arrived.
    fn end_of_input(&mut self) -> Result<(), ProtocolFault> {
        if self.stdout_ended || self.remaining == Some(0) {
            return Ok(());
        }
        // The response to the client is cut too, so that it cannot be taken for a complete one;
        // nginx ends it properly.
        Err(ProtocolFault::new("upstream prematurely closed connection"))
    }

    fn keeps_alive(&self) -> bool {
        self.stays_open
    }
}
