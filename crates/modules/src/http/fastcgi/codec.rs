//! FastCGI between the exchange and the wire.

use bstr::ByteSlice;
use http::Request;
use http::site::ConfRef;
use http::upstream::{
    Asks, Content, ContentLength, Fault, HeadProgress, Piece, Protocol, SettingsRef,
};
use proto::cgi::{HeadParser, StatusLine};
use proto::fastcgi::{self, Decoder, Event};
use proto::fields::Fields;
use proto::h1::response::ResponseHead;

use super::Conf;
use crate::shared::gateway::Ending;
use crate::shared::gateway::response::content_length;

/// One exchange.
pub(super) struct Codec {
    conf: ConfRef<Conf>,
    settings: SettingsRef,
    asks: Asks,
    decoder: Decoder,
    parser: HeadParser,
    /// The head as far as it was received, without the records around it.
    head_bytes: Vec<u8>,
    head: ResponseHead,
    content: ContentLength,
    /// Output that is still to come, if that is known.
    left: Option<u64>,
    /// The application has closed its output.
    stdout_ended: bool,
    /// All of the response was there, and the connection stays open.
    alive: bool,
    /// A message of the application that is not complete. A record has 64 KB at most, and so has this.
    stderr: Vec<u8>,
}

/// What a message for the error log may end with that says nothing.
const TRAILING: &[u8] = b"\r\n. ";

impl Codec {
    pub(super) fn new(conf: ConfRef<Conf>, settings: SettingsRef) -> Codec {
        Codec {
            conf,
            settings,
            asks: Asks::default(),
            decoder: Decoder::new(),
            parser: HeadParser::new(StatusLine::Never),
            head_bytes: Vec::new(),
            head: ResponseHead::default(),
            content: ContentLength::Unknown,
            left: None,
            stdout_ended: false,
            alive: false,
            stderr: Vec::new(),
        }
    }

    /// Takes in output that may be the end of the head; gives how much of it came after the head then.
    fn read_stdout(&mut self, output: &[u8]) -> Result<Option<usize>, Fault> {
        self.head_bytes.extend_from_slice(output);
        let limit = usize::try_from(self.settings.buffer_size).unwrap_or(usize::MAX);
        let length = self
            .parser
            .parse(&self.head_bytes, limit, &mut self.head)
            .map_err(Fault::new)?;
        Ok(length.map(|length| self.head_bytes.len() - length))
    }

    /// The complete message of the application, as the error log has it.
    fn take_message(&mut self) -> Vec<u8> {
        let message = std::mem::take(&mut self.stderr);
        let text = message.trim_end_with(|end| end.is_ascii() && TRAILING.contains(&(end as u8)));
        [b"FastCGI sent in stderr: \"", text, b"\""].concat()
    }

    /// Logs the message, unless it makes the response an invalid one.
    fn log_head_message(&mut self, request: &Request) -> Result<(), Fault> {
        let caught = self
            .conf
            .catch_stderr
            .iter()
            .any(|text| self.stderr.contains_str(text));
        let line = self.take_message();
        if caught {
            return Err(Fault::new(line));
        }
        request.error(format_args!(
            "{} while reading response header from upstream",
            line.as_bstr()
        ));
        Ok(())
    }
}

impl Protocol for Codec {
    fn scheme(&self) -> &'static str {
        "fastcgi://"
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        _: Content,
        out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        let mut params = Vec::new();
        let fields = self.settings.pass_request_headers;
        self.asks = self
            .conf
            .params
            .write(request, fields, Ending::Counted, |name, value| {
                fastcgi::push_param(name, value, &mut params)
            })?;
        fastcgi::write_begin(self.conf.keep_conn, out);
        fastcgi::write_params(&params, out);
        Ok(())
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        fastcgi::write_stdin(piece, out);
    }

    fn write_content_end(&mut self, _: &Fields, out: &mut Vec<u8>) {
        fastcgi::write_stdin_end(out);
    }

    fn asks(&self) -> Asks {
        Asks {
            // There is no way to switch.
            upgrade: false,
            ..self.asks
        }
    }

    fn begin_response(&mut self) {
        self.decoder = Decoder::new();
        self.parser.reset();
        self.head_bytes.clear();
        self.head.clear();
        self.left = None;
        self.stdout_ended = false;
        self.alive = false;
        self.stderr.clear();
    }

    /// Records are taken out of the input as they come ([`HeadProgress::Interim`] with an empty head): messages for the
    /// error log can be any number, and do not count for the size of the head.
    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        let mut at = 0;
        loop {
            let (event, used) = self.decoder.next(&input[at..]).map_err(Fault::new)?;
            match event {
                Event::More if input.is_empty() => return Ok(HeadProgress::Partial),
                Event::More => return Ok(HeadProgress::Interim(input.len())),
                Event::Stdout(range) => {
                    if let Some(rest) = self.read_stdout(&input[at..][range])? {
                        self.decoder.unread(rest);
                        self.content = content_length(request, &self.head)?;
                        if let ContentLength::Known(length) = self.content {
                            self.left = Some(length);
                        }
                        std::mem::swap(head, &mut self.head);
                        self.head_bytes = Vec::new();
                        return Ok(HeadProgress::Complete(at + used - rest));
                    }
                }
                Event::Stderr(range, is_end) => {
                    self.stderr.extend_from_slice(&input[at..][range]);
                    if is_end {
                        self.log_head_message(request)?;
                    }
                }
                Event::StdoutEnd => {
                    return Err(Fault::new("upstream prematurely closed FastCGI stdout"));
                }
                Event::End => {
                    return Err(Fault::new("upstream prematurely closed FastCGI request"));
                }
            }
            at += used;
        }
    }

    fn content_length(&self) -> ContentLength {
        self.content
    }

    fn read_content(&mut self, request: &Request, input: &[u8]) -> Result<Piece, Fault> {
        let mut at = 0;
        loop {
            let (event, used) = self.decoder.next(&input[at..]).map_err(Fault::new)?;
            let is_short = self.left.is_some_and(|left| left > 0);
            match event {
                // Also after the end of the output: to close before the end of the request would be to break it off.
                Event::More => return Ok(Piece::More),
                Event::Stdout(range) => {
                    let range = at + range.start..at + range.end;
                    let Some(left) = &mut self.left else {
                        return Ok(Piece::Data(range));
                    };
                    if *left == 0 {
                        return Ok(Piece::End(range.start));
                    }
                    let length = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(range.len());
                    *left -= length as u64;
                    self.decoder.unread(range.len() - length);
                    return Ok(Piece::Data(range.start..range.start + length));
                }
                Event::Stderr(range, is_end) => {
                    self.stderr.extend_from_slice(&input[at..][range]);
                    if is_end {
                        request.error(format_args!(
                            "{} while reading upstream",
                            self.take_message().as_bstr()
                        ));
                    }
                }
                Event::StdoutEnd if is_short => {
                    return Err(Fault::short("upstream prematurely closed FastCGI stdout"));
                }
                Event::StdoutEnd => self.stdout_ended = true,
                Event::End if is_short => {
                    return Err(Fault::short("upstream prematurely closed FastCGI request"));
                }
                Event::End => {
                    self.alive = self.conf.keep_conn;
                    return Ok(Piece::End(at + used));
                }
            }
            at += used;
        }
    }

    /// A connection that closes before the end of the request is a response that broke off, unless all of it was there.
    fn end_of_input(&mut self) -> Result<(), Fault> {
        if self.stdout_ended || self.left == Some(0) {
            return Ok(());
        }
        Err(Fault::new("upstream prematurely closed connection"))
    }

    fn keeps_alive(&self) -> bool {
        self.alive
    }
}
