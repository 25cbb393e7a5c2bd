//! HTTP/2 as an upstream protocol (RFC 9113): what `grpc_pass` and `proxy_http_version 2` have in common.
//!
//! A connection carries one request at a time and is kept for the next, as with HTTP/1; the peer's streams beyond that
//! are other connections. The state of the connection ([`Client`]) travels with it. What is asked for and how is the
//! [`Speaker`]'s.

use std::ops::Range;

use bstr::{BStr, BString, ByteSlice};
use http::Request;
use http::upstream::{Asks, Carried, Content, ContentLength, Fault, HeadProgress, Piece, Protocol};
use proto::Known;
use proto::fields::Fields;
use proto::h1::body::parse_length;
use proto::h1::response::ResponseHead;
use proto::h2::client::{Client, ClientError, Incoming, RequestHead};
use proto::h2::frame::{self, FrameHead, HEAD_LENGTH, MAX_FRAME_SIZE_DEFAULT};
use proto::h2::hpack::Field;
use proto::h2::{ErrorCode, rules};

/// The fields of a response head may take so many bytes, as HTTP/2 counts them.
const MAX_LIST: usize = 128 * 1024;

/// How much of a fixed content is framed at a time, in bytes.
const PIECE: usize = 64 * 1024;

/// What a request asks for, apart from a connection.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) method: BString,
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    pub(crate) authority: BString,
    pub(crate) path: BString,
    /// The other fields. Those of a connection are left away when they are added by [`Wanted::add`].
    pub(crate) fields: Fields,
    /// Content in place of the client's.
    pub(crate) content: Option<Vec<u8>>,
}

impl Wanted {
    /// Adds a field, unless HTTP/2 has none of that name. `Host` becomes the authority.
    pub(crate) fn add(&mut self, name: &[u8], value: &[u8]) {
        let known = Known::from_name(name);
        if known == Known::Host {
            self.authority = value.into();
        } else if !rules::is_connection_specific(known, value) {
            self.fields.push(name, value);
        }
    }
}

/// What is asked for, and what becomes of fields of the response.
pub(crate) trait Speaker {
    /// What stands before the peer's name in logs: `grpc://`.
    fn scheme(&self) -> &'static str;

    /// The host that TLS is spoken to; `None`: TLS is not spoken.
    fn secure_host(&self) -> Option<&BStr> {
        None
    }

    /// Says what is wanted. The error is the status to answer with; it has been logged.
    fn ask(
        &mut self,
        request: &mut Request,
        content: Content,
        wanted: &mut Wanted,
    ) -> Result<(), u16>;

    /// Whether fields that follow the content go on to the client.
    fn passes_trailers(&self) -> bool;

    /// Rewrites a field of the response; `false` leaves it as it is.
    fn map_field(
        &mut self,
        _request: &mut Request,
        _field: Known,
        _value: &[u8],
        _out: &mut Vec<u8>,
    ) -> bool {
        false
    }
}

/// One request and its response.
pub(crate) struct Http2<S> {
    speaker: S,
    wanted: Wanted,
    /// How much content is announced.
    content: Content,
    client: Option<Box<Client>>,
    /// Of the fixed content, what is framed on the present connection, in bytes.
    framed: u64,
    length: ContentLength,
    /// Content of the response that is still to come, if its length is known.
    left: Option<u64>,
    trailers: Fields,
    /// The beginning of a frame that is not complete.
    carry: Vec<u8>,
    /// Padding that follows a piece of content, in bytes.
    skip: usize,
    /// Something came after the end of the response that the connection can not be used after.
    dirty: bool,
}

impl<S: Speaker> Http2<S> {
    pub(crate) fn new(speaker: S) -> Http2<S> {
        Http2 {
            speaker,
            wanted: Wanted::default(),
            content: Content::None,
            client: None,
            framed: 0,
            length: ContentLength::None,
            left: None,
            trailers: Fields::new(),
            carry: Vec::new(),
            skip: 0,
            dirty: false,
        }
    }

    /// The connection. Every exchange begins a request before it reads or writes.
    fn client(&mut self) -> Result<&mut Client, Fault> {
        self.client
            .as_deref_mut()
            .ok_or_else(|| Fault::new("no request was begun"))
    }

    /// What is left of a fixed content.
    fn fixed(&self) -> &[u8] {
        let content = self.wanted.content.as_deref().unwrap_or_default();
        let from = usize::try_from(self.framed).unwrap_or(usize::MAX);
        content.get(from..).unwrap_or_default()
    }

    /// Judges a head that has come.
    fn accept(
        &mut self,
        request: &Request,
        head: &ResponseHead,
        end: bool,
        used: usize,
    ) -> Result<HeadProgress, Fault> {
        match head.status {
            0 => return Err(Fault::new("upstream sent no :status header")),
            101 => return Err(unexpected_status(head.status)),
            100..200 if end => return Err(Fault::new("upstream prematurely closed stream")),
            100..200 => return Ok(HeadProgress::Interim(used)),
            _ => {}
        }
        let announced = head
            .fields
            .get_known(Known::ContentLength)
            .and_then(parse_length);
        let is_empty = self.wanted.method == "HEAD"
            || request.method.is_head()
            || matches!(head.status, 204 | 304);
        (self.length, self.left) = match announced {
            _ if is_empty => (ContentLength::None, None),
            Some(length) => (ContentLength::Known(length), Some(length)),
            None => (ContentLength::Unknown, None),
        };
        Ok(HeadProgress::Complete(used))
    }

    /// Takes a piece of content into account.
    fn count(&mut self, length: usize) -> Result<(), Fault> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(length as u64).ok_or_else(|| {
                Fault::new("upstream sent response body larger than indicated content length")
            })?;
        }
        Ok(())
    }

    /// Reads one event of the content's part of the stream.
    fn content_event(&mut self, input: &[u8]) -> Result<ContentEvent, Fault> {
        let mut trailers = std::mem::take(&mut self.trailers);
        let mut invalid = None;
        let result = self.client()?.next(input, |field| {
            invalid = invalid.take().or_else(|| check_trailer(&field));
            trailers.push(field.name, field.value);
        });
        self.trailers = trailers;
        let (incoming, used) = result.map_err(fault)?;
        Ok(match incoming {
            Incoming::More => ContentEvent::More(used),
            Incoming::Control => ContentEvent::Skip(used),
            Incoming::Data { bytes, .. } => {
                // The piece is a part of the input.
                let begin = bytes.as_ptr() as usize - input.as_ptr() as usize;
                self.count(bytes.len())?;
                ContentEvent::Data(begin..begin + bytes.len(), used)
            }
            Incoming::Head { end } => match invalid {
                Some(fault) => return Err(fault),
                None if !end => {
                    return Err(Fault::new("upstream sent trailer without end stream flag"));
                }
                None => ContentEvent::Skip(used),
            },
            Incoming::Reset(code) => return Err(rejected(code)),
            Incoming::Gone(code) => return Err(gone(code)),
        })
    }

    /// The stream has ended: looks at what else has come.
    fn after_end(&mut self, input: &[u8]) -> Result<Piece, Fault> {
        if self.left.is_some_and(|left| left > 0) {
            return Err(Fault::new("upstream prematurely closed stream"));
        }
        let mut rest = input;
        while !rest.is_empty() {
            match self.client()?.next(rest, |_| {}).map_err(fault)? {
                (Incoming::Control, used) => rest = &rest[used..],
                // It wanted no more of the request: the response is whole all the same.
                (Incoming::Reset(ErrorCode::NO_ERROR), used) => rest = &rest[used..],
                (Incoming::Reset(code), _) => return Err(rejected(code)),
                _ => {
                    self.dirty = true;
                    break;
                }
            }
        }
        Ok(Piece::End(input.len()))
    }

    /// Goes on with a frame of which the beginning came before.
    fn carried(&mut self, input: &[u8]) -> Result<Piece, Fault> {
        let missing = missing(&self.carry);
        let take = missing.min(input.len());
        self.carry.extend_from_slice(&input[..take]);
        if take < missing {
            return Ok(Piece::More);
        }
        let mut carry = std::mem::take(&mut self.carry);
        match self.content_event(&carry)? {
            // Not even a byte of content is in it: no more was taken than a frame's head.
            ContentEvent::Data(_, used) | ContentEvent::Skip(used) | ContentEvent::More(used) => {
                carry.drain(..used);
            }
        }
        self.carry = carry;
        Ok(Piece::Data(take..take))
    }
}

enum ContentEvent {
    More(usize),
    Skip(usize),
    /// Content, and how much of the input it took with what is around it.
    Data(Range<usize>, usize),
}

/// How many bytes more make a frame, or the head of a frame whose payload passes in pieces.
fn missing(carry: &[u8]) -> usize {
    let Some((bytes, _)) = carry.split_first_chunk::<HEAD_LENGTH>() else {
        return HEAD_LENGTH - carry.len();
    };
    let head = FrameHead::parse(bytes);
    let payload = match head.kind {
        // The length of the padding.
        frame::kind::DATA => 1,
        _ => head.length as usize,
    };
    (HEAD_LENGTH + payload).saturating_sub(carry.len()).max(1)
}

impl<S: Speaker> Protocol for Http2<S> {
    fn scheme(&self) -> &'static str {
        self.speaker.scheme()
    }

    fn secure_host(&self) -> Option<&BStr> {
        self.speaker.secure_host()
    }

    fn dialect(&self) -> &'static str {
        "h2"
    }

    fn is_framed(&self) -> bool {
        true
    }

    fn least_buffer(&self) -> usize {
        HEAD_LENGTH + MAX_FRAME_SIZE_DEFAULT as usize
    }

    fn write_head(
        &mut self,
        request: &mut Request,
        content: Content,
        _out: &mut Vec<u8>,
    ) -> Result<(), u16> {
        self.speaker.ask(request, content, &mut self.wanted)?;
        let record = request.upstream.get_or_make();
        record.target.extend_from_slice(&self.wanted.path);
        self.content = match &self.wanted.content {
            Some(content) => Content::Length(content.len() as u64),
            None => content,
        };
        Ok(())
    }

    fn begin_request(&mut self, carried: Option<Carried>, out: &mut Vec<u8>) {
        let known = carried.and_then(|carried| carried.downcast::<Client>().ok());
        let mut client = known.unwrap_or_else(|| Box::new(Client::new(MAX_LIST)));
        let head = RequestHead {
            method: &self.wanted.method,
            scheme: self.wanted.scheme.as_bytes(),
            path: &self.wanted.path,
            authority: &self.wanted.authority,
            fields: &self.wanted.fields,
        };
        let is_empty = matches!(self.content, Content::None | Content::Length(0));
        client.begin(head, is_empty, out);
        self.client = Some(client);
        self.framed = 0;
    }

    fn carry(&mut self) -> Option<Carried> {
        self.client.take().map(|client| client as Carried)
    }

    fn room(&self) -> usize {
        self.client.as_ref().map_or(0, |client| client.room())
    }

    fn has_control(&self) -> bool {
        self.client.as_ref().is_some_and(|client| {
            client.has_control() || client.room() > 0 && !self.fixed().is_empty()
        })
    }

    fn take_control(&mut self, out: &mut Vec<u8>) {
        let Some(mut client) = self.client.take() else {
            return;
        };
        client.take_control(out);
        let fixed = self.fixed();
        let piece = &fixed[..fixed.len().min(client.room()).min(PIECE)];
        client.content(piece, piece.len() == fixed.len(), out);
        self.framed += piece.len() as u64;
        self.client = Some(client);
    }

    fn write_content(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.content(piece, false, out);
        }
    }

    fn write_last_content(&mut self, piece: &[u8], trailers: &Fields, out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.content(piece, trailers.is_empty(), out);
            client.end(trailers, out);
        }
    }

    fn write_content_end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if let Some(client) = &mut self.client {
            client.end(trailers, out);
        }
    }

    fn begin_response(&mut self) {
        self.length = ContentLength::None;
        self.left = None;
        self.trailers.clear();
        self.carry.clear();
        self.skip = 0;
        self.dirty = false;
    }

    fn read_head(
        &mut self,
        request: &Request,
        input: &[u8],
        head: &mut ResponseHead,
    ) -> Result<HeadProgress, Fault> {
        let mut invalid = None;
        let result = self.client()?.next(input, |field| {
            if invalid.is_none() {
                invalid = take_field(&field, head);
            }
        });
        let (incoming, used) = result.map_err(fault)?;
        if let Some(fault) = invalid {
            return Err(fault);
        }
        match incoming {
            Incoming::More if used == 0 => Ok(HeadProgress::Partial),
            Incoming::More | Incoming::Control => Ok(HeadProgress::Interim(used)),
            Incoming::Head { end } => self.accept(request, head, end, used),
            Incoming::Data { .. } => Err(Fault::new("upstream sent unexpected http2 frame: 0")),
            Incoming::Reset(code) => Err(rejected(code)),
            Incoming::Gone(code) => Err(gone(code)),
        }
    }

    fn content_length(&self) -> ContentLength {
        self.length
    }

    fn read_content(&mut self, _request: &Request, input: &[u8]) -> Result<Piece, Fault> {
        if self.skip > 0 {
            let n = self.skip.min(input.len());
            self.skip -= n;
            return Ok(match n {
                0 => Piece::More,
                n => Piece::Data(n..n),
            });
        }
        if self.client()?.has_ended() {
            return self.after_end(input);
        }
        if input.is_empty() {
            return Ok(Piece::More);
        }
        if !self.carry.is_empty() {
            return self.carried(input);
        }
        Ok(match self.content_event(input)? {
            ContentEvent::More(used) => {
                self.carry.extend_from_slice(&input[used..]);
                Piece::More
            }
            ContentEvent::Skip(used) => Piece::Data(used..used),
            ContentEvent::Data(range, used) => {
                self.skip = used - range.end;
                Piece::Data(range)
            }
        })
    }

    fn end_of_input(&mut self) -> Result<(), Fault> {
        Err(Fault::new("upstream prematurely closed connection"))
    }

    fn trailers(&self) -> Option<&Fields> {
        Some(&self.trailers)
    }

    fn passes_trailers(&self) -> bool {
        self.speaker.passes_trailers()
    }

    fn asks(&self) -> Asks {
        Asks {
            // HTTP/2 has no such thing.
            upgrade: false,
            part: self.wanted.fields.has(Known::Range),
        }
    }

    fn keeps_alive(&self) -> bool {
        let is_free = self.client.as_ref().is_some_and(|client| client.is_free());
        is_free && !self.dirty && self.fixed().is_empty()
    }

    fn map_field(
        &mut self,
        request: &mut Request,
        field: Known,
        value: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        self.speaker.map_field(request, field, value, out)
    }
}

/// Puts a field of a head where it belongs; says what is wrong with it.
fn take_field(field: &Field<'_>, head: &mut ResponseHead) -> Option<Fault> {
    if field.name != b":status" {
        if !is_valid(field) {
            return Some(invalid("header", field));
        }
        head.fields.push(field.name, field.value);
        return None;
    }
    if head.status != 0 {
        return Some(Fault::new("upstream sent duplicate :status header"));
    }
    let status = match field.value {
        digits if digits.len() == 3 && digits.iter().all(u8::is_ascii_digit) => digits
            .iter()
            .fold(0, |n, digit| n * 10 + u16::from(digit - b'0')),
        _ => 0,
    };
    head.status = status;
    let value = field.value.as_bstr();
    (status < 100).then(|| Fault::new(format!("upstream sent invalid :status \"{value}\"")))
}

fn check_trailer(field: &Field<'_>) -> Option<Fault> {
    (!is_valid(field)).then(|| invalid("trailer", field))
}

fn is_valid(field: &Field<'_>) -> bool {
    rules::is_name(field.name) && rules::is_value(field.value)
}

fn invalid(what: &str, field: &Field<'_>) -> Fault {
    let (name, value) = (field.name.as_bstr(), field.value.as_bstr());
    Fault::new(format!("upstream sent invalid {what}: \"{name}: {value}\""))
}

fn unexpected_status(status: u16) -> Fault {
    Fault::new(format!("upstream sent unexpected :status \"{status}\""))
}

fn rejected(code: ErrorCode) -> Fault {
    let message = format!("upstream rejected request with error {}", code.0);
    match code {
        // It did nothing with the request (RFC 9113, section 8.7).
        ErrorCode::REFUSED_STREAM => Fault::unseen(message),
        _ => Fault::new(message),
    }
}

fn gone(code: ErrorCode) -> Fault {
    let message = format!("upstream sent goaway with error {}", code.0);
    match code {
        // It closes a connection that was idle; the request came too late.
        ErrorCode::NO_ERROR => Fault::unseen(message),
        _ => Fault::new(message),
    }
}

fn fault(error: ClientError) -> Fault {
    Fault::new(match error {
        ClientError::Peer(error) => format!("upstream sent {}", error.what),
        ClientError::UnknownStream(stream) => {
            format!("upstream sent frame for unknown stream {stream}")
        }
        ClientError::ClosedStream(stream) => {
            format!("upstream sent frame for closed stream {stream}")
        }
        ClientError::Push => "upstream sent unexpected push promise frame".to_owned(),
    })
}
