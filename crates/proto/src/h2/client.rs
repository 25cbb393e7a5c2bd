//! A client's side of an HTTP/2 connection that carries one request at a time.
//!
//! That is how a proxy uses its idle connections: whoever takes one begins a stream on it, and gives it back when the
//! stream has ended. What outlives a stream is the state of the header compression, the connection's window and the
//! peer's settings, so the whole value stays with the connection.
//!
//! ```text
//!   begin(), content(), trailers() ──▶ output of the request
//!   input ──▶ next() ──▶ Incoming::Head, Data, …
//!   take_control() ──▶ acknowledgements and window updates, to be sent at any time
//! ```

use super::error::{ConnectionError, ErrorCode};
use super::frame::{self, HeadersFrame, MAX_STREAM, PREFACE};
use super::hpack::{Decoder, Encoder, Field, HpackError, ListLimits, Secrecy};
use super::reader::{Event, FrameReader, ReaderLimits};
use super::settings::{self, Settings};
use super::window::Window;
use crate::fields::Fields;
use crate::known::Known;

/// Acknowledgements that wait to be sent, in bytes: a peer that asks for more without reading is cut off.
const MAX_CONTROL: usize = 16 * 1024;

/// What the peer may send before it hears from us: all of a response, because nothing else is on the connection and
/// TCP holds it back when we do not read.
const RECEIVE_WINDOW: u32 = Window::MAX;

/// The windows are opened again when this much has been received.
const REPLENISH: u32 = RECEIVE_WINDOW / 2;

/// Frames that a header block of a response may come in: a server is trusted with more than a client.
const MAX_CONTINUATIONS: u32 = 1000;

/// Fields of a response head or of trailers.
const MAX_FIELDS: usize = 1000;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'a> {
    /// `:method`
    pub method: &'a [u8],
    /// `:scheme`
    pub scheme: &'a [u8],
    /// `:path`
    pub path: &'a [u8],
    /// `:authority`; none when empty.
    pub authority: &'a [u8],
    /// The other fields. Those that belong to a connection must not be among them.
    pub fields: &'a Fields,
}

/// What came of a peer's bytes.
#[derive(Debug)]
pub enum Incoming<'a> {
    /// There is no whole frame more: keep what was not used and come again with more.
    More,
    /// A frame that needs nobody's attention.
    Control,
    /// A header block of our stream; its fields have been handed out.
    Head {
        /// Nothing follows.
        end: bool,
    },
    /// Content of our stream.
    Data {
        /// The content, or a piece of it.
        bytes: &'a [u8],
        /// Nothing follows.
        end: bool,
    },
    /// The peer has given up our stream; after its end it may do so without harm (RFC 9113 section 8.1).
    Reset(ErrorCode),
    /// The peer has gone away without having looked at our stream.
    Gone(ErrorCode),
}

/// Why a connection can not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The peer broke the protocol; what it sent.
    Peer(ConnectionError),
    /// A frame for a stream that never was, or was over.
    UnknownStream(u32),
    /// A frame for our stream after the peer gave it up.
    ClosedStream(u32),
    /// PUSH_PROMISE, which our settings forbid.
    Push,
}

impl From<ConnectionError> for ClientError {
    fn from(error: ConnectionError) -> ClientError {
        ClientError::Peer(error)
    }
}

/// The connection.
#[derive(Debug)]
pub struct Client {
    reader: FrameReader,
    decoder: Decoder,
    encoder: Encoder,
    peer: Settings,
    limits: ListLimits,
    /// What we may send on the connection.
    window: Window,
    /// Bytes received since the connection's window was opened last.
    received: u32,
    control: Vec<u8>,
    /// The present stream, or the last one; 0 before the first.
    stream: u32,
    /// What we may send on the stream.
    stream_window: Window,
    stream_received: u32,
    sent_end: bool,
    got_end: bool,
    /// The peer has given up the stream.
    reset: bool,
    /// The peer takes no more streams.
    gone: bool,
}

impl Client {
    /// A connection on which nothing was said. A list of response fields may take `max_list` bytes.
    pub fn new(max_list: usize) -> Client {
        let peer = Settings::default();
        Client {
            reader: FrameReader::new(ReaderLimits {
                max_block: max_list,
                max_continuations: MAX_CONTINUATIONS,
                ..ReaderLimits::default()
            }),
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            peer,
            limits: ListLimits {
                max_size: max_list,
                max_fields: MAX_FIELDS,
            },
            window: Window::new(Window::DEFAULT),
            received: 0,
            control: Vec::new(),
            stream: 0,
            stream_window: Window::new(peer.initial_window_size),
            stream_received: 0,
            sent_end: true,
            got_end: true,
            reset: false,
            gone: false,
        }
    }

    /// Begins the next stream. `end`: no content follows. Begins the connection too, if this is its first stream.
    pub fn begin(&mut self, head: RequestHead<'_>, end: bool, out: &mut Vec<u8>) {
        if self.stream == 0 {
            greet(out);
            self.stream = 1;
        } else {
            out.append(&mut self.control);
            self.stream += 2;
        }
        self.stream_window = Window::new(self.peer.initial_window_size);
        self.stream_received = 0;
        (self.sent_end, self.got_end, self.reset) = (end, false, false);
        let frame = HeadersFrame::begin(self.stream, end, out);
        self.encoder.begin(out);
        for (name, value) in [
            (&b":method"[..], head.method),
            (b":scheme", head.scheme),
            (b":path", head.path),
            (b":authority", head.authority),
        ] {
            if !value.is_empty() || name == b":path" {
                self.encoder.pseudo(name, value, out);
            }
        }
        self.write_fields(head.fields, out);
        frame.finish(self.peer.max_frame_size, out);
    }

    fn write_fields(&mut self, fields: &Fields, out: &mut Vec<u8>) {
        for (known, name, value) in fields.iter_known() {
            let secrecy = match known {
                Known::Authorization | Known::Cookie => Secrecy::Secret,
                _ => Secrecy::Open,
            };
            self.encoder.field(known, name, value, secrecy, out);
        }
    }

    /// How much content may be sent now, in bytes.
    pub fn room(&self) -> usize {
        self.window.available().min(self.stream_window.available()) as usize
    }

    /// Appends content. More than there is [`Client::room`] for breaks the peer's rules.
    pub fn content(&mut self, content: &[u8], end: bool, out: &mut Vec<u8>) {
        let mut pieces = content.chunks(self.peer.max_frame_size as usize).peekable();
        while let Some(piece) = pieces.next() {
            let last = end && pieces.peek().is_none();
            frame::write_data_head(self.stream, piece.len() as u32, last, out);
            out.extend_from_slice(piece);
            // Far from the lower bound: a frame is 16 MB at most.
            let _ = self.window.shift(-(piece.len() as i64));
            let _ = self.stream_window.shift(-(piece.len() as i64));
        }
        // Nothing can be marked as the end where there is no content.
        self.sent_end |= end && !content.is_empty();
    }

    /// Ends the request, if it has not ended yet.
    pub fn end(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.sent_end, true) {
            return;
        }
        if trailers.is_empty() {
            return frame::write_data_head(self.stream, 0, true, out);
        }
        let block = HeadersFrame::begin(self.stream, true, out);
        self.encoder.begin(out);
        self.write_fields(trailers, out);
        block.finish(self.peer.max_frame_size, out);
    }

    /// Whether something waits for [`Client::take_control`].
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Appends what is to be sent besides the request. Must stand between two frames.
    pub fn take_control(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
    }

    /// Whether the stream is over on both sides and another can follow.
    pub fn is_free(&self) -> bool {
        self.sent_end
            && self.got_end
            && !self.gone
            && self.stream < MAX_STREAM - 2
            && self.reader.is_between_frames()
    }

    /// Whether the peer has ended its side of the stream.
    pub fn has_ended(&self) -> bool {
        self.got_end
    }

    /// Reads on: what came, and how much of `input` it took. `field` gets the fields of a head or of trailers.
    pub fn next<'a>(
        &mut self,
        input: &'a [u8],
        field: impl FnMut(Field<'_>),
    ) -> Result<(Incoming<'a>, usize), ClientError> {
        let (event, used) = self.reader.next(input)?;
        let incoming = match event {
            Event::More => Incoming::More,
            Event::Data {
                stream,
                bytes,
                counted,
                end_stream,
                ..
            } => {
                self.is_ours(stream)?;
                self.count(counted);
                self.got_end = end_stream;
                Incoming::Data {
                    bytes,
                    end: end_stream,
                }
            }
            Event::Headers {
                stream,
                block,
                end_stream,
                ..
            } => {
                self.is_ours(stream)?;
                let decoded = self.decoder.decode(&block, self.limits, field);
                match decoded {
                    Ok(decoded) if !decoded.too_large => {}
                    Ok(_) => return Err(ConnectionError::calm("too large http2 header").into()),
                    Err(error) => return Err(ConnectionError::compression(name(error)).into()),
                }
                self.got_end = end_stream;
                Incoming::Head { end: end_stream }
            }
            Event::Reset { stream, code } if stream == self.stream => {
                if std::mem::replace(&mut self.reset, true) {
                    return Err(ClientError::ClosedStream(stream));
                }
                // Whoever says so when all is said, on both sides, ends nothing but the stream.
                self.gone |= !(self.sent_end && self.got_end && code == ErrorCode::NO_ERROR);
                Incoming::Reset(code)
            }
            Event::Reset { stream, .. } => self.once_ours(stream)?,
            Event::Settings(payload) => self.settings(payload)?,
            Event::Ping { ack: false, opaque } => {
                frame::write_ping(true, opaque, &mut self.control);
                self.bounded()?
            }
            Event::GoAway { last, code } => {
                self.gone = true;
                match last < self.stream && !self.got_end {
                    true => Incoming::Gone(code),
                    false => Incoming::Control,
                }
            }
            Event::WindowUpdate { stream, increment } => self.window_update(stream, increment)?,
            Event::PushPromise { .. } => return Err(ClientError::Push),
            Event::StreamError { stream, code, what } => {
                self.once_ours(stream)?;
                return Err(ConnectionError { code, what }.into());
            }
            Event::SettingsAck
            | Event::Ping { ack: true, .. }
            | Event::Priority { .. }
            | Event::PriorityUpdate { .. }
            | Event::Unknown { .. } => Incoming::Control,
        };
        Ok((incoming, used))
    }

    fn is_ours(&self, stream: u32) -> Result<(), ClientError> {
        match stream == self.stream && !self.got_end {
            true => Ok(()),
            false => Err(ClientError::UnknownStream(stream)),
        }
    }

    /// A late word about a stream that is over does no harm.
    fn once_ours(&self, stream: u32) -> Result<Incoming<'static>, ClientError> {
        match stream % 2 == 1 && stream <= self.stream {
            true => Ok(Incoming::Control),
            false => Err(ClientError::UnknownStream(stream)),
        }
    }

    fn bounded(&self) -> Result<Incoming<'static>, ClientError> {
        match self.control.len() <= MAX_CONTROL {
            true => Ok(Incoming::Control),
            false => Err(ConnectionError::calm("too many control frames").into()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<Incoming<'static>, ClientError> {
        let before = i64::from(self.peer.initial_window_size);
        self.peer.apply(payload)?;
        self.encoder.set_peer_limit(self.peer.header_table_size);
        let change = i64::from(self.peer.initial_window_size) - before;
        self.stream_window
            .shift(change)
            .map_err(|_| ConnectionError::flow_control("too large initial window"))?;
        frame::write_settings_ack(&mut self.control);
        self.bounded()
    }

    fn window_update(
        &mut self,
        stream: u32,
        increment: u32,
    ) -> Result<Incoming<'static>, ClientError> {
        let given = match stream {
            0 => self.window.give(increment),
            stream if stream == self.stream => self.stream_window.give(increment),
            stream => return self.once_ours(stream),
        };
        given.map_err(|_| ConnectionError::flow_control("too large window update"))?;
        Ok(Incoming::Control)
    }

    /// Notes that content was received, and opens the windows before they close.
    fn count(&mut self, counted: u32) {
        for (stream, received) in [
            (0, &mut self.received),
            (self.stream, &mut self.stream_received),
        ] {
            *received += counted;
            if *received >= REPLENISH {
                frame::write_window_update(stream, *received, &mut self.control);
                *received = 0;
            }
        }
    }
}

/// What is wrong with a header block, for the log.
fn name(error: HpackError) -> &'static str {
    match error {
        HpackError::Truncated => "truncated http2 header",
        HpackError::InvalidIndex => "invalid http2 table index",
        HpackError::InvalidHuffman => "invalid encoded header",
        HpackError::InvalidTableSize => "invalid http2 dynamic table size update",
    }
}

/// The beginning of a connection: the preface, our settings, and the connection's window as large as a stream's.
fn greet(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    let settings = [
        (settings::id::ENABLE_PUSH, 0),
        (settings::id::INITIAL_WINDOW_SIZE, RECEIVE_WINDOW),
    ];
    frame::write_settings(&settings, out);
    frame::write_window_update(0, RECEIVE_WINDOW - Window::DEFAULT, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frame::{FrameHead, HEAD_LENGTH, flag, kind};

    fn head(fields: &Fields) -> RequestHead<'_> {
        RequestHead {
            method: b"GET",
            scheme: b"http",
            path: b"/",
            authority: b"a",
            fields,
        }
    }

    /// The frames of an output, without the preface.
    fn frames(mut out: &[u8]) -> Vec<(FrameHead, Vec<u8>)> {
        out = out.strip_prefix(PREFACE).unwrap_or(out);
        let mut frames = Vec::new();
        while let Some((bytes, rest)) = out.split_first_chunk::<HEAD_LENGTH>() {
            let head = FrameHead::parse(bytes);
            let (payload, rest) = rest.split_at(head.length as usize);
            frames.push((head, payload.to_vec()));
            out = rest;
        }
        frames
    }

    /// A response with this status on a stream.
    fn response(encoder: &mut Encoder, stream: u32, status: u16, end: bool) -> Vec<u8> {
        let mut out = Vec::new();
        let frame = HeadersFrame::begin(stream, end, &mut out);
        encoder.begin(&mut out);
        encoder.status(status, &mut out);
        frame.finish(16_384, &mut out);
        out
    }

    #[test]
    fn streams_follow_each_other_on_one_connection() {
        let fields = Fields::new();
        let mut client = Client::new(4096);
        let mut encoder = Encoder::default();
        for stream in [1, 3, 5] {
            let mut out = Vec::new();
            client.begin(head(&fields), true, &mut out);
            assert_eq!(out.starts_with(PREFACE), stream == 1);
            let last = frames(&out).pop().expect("there is a head");
            assert_eq!((last.0.kind, last.0.stream), (kind::HEADERS, stream));
            assert!(!client.is_free());
            let mut status = Vec::new();
            let input = response(&mut encoder, stream, 200, true);
            let (event, used) = client
                .next(&input, |field| status.extend_from_slice(field.value))
                .expect("it is a response");
            assert!(matches!(event, Incoming::Head { end: true }) && used == input.len());
            assert_eq!(status, b"200");
            assert!(client.is_free() && client.has_ended());
        }
    }

    #[test]
    fn content_stays_within_the_windows() {
        let fields = Fields::new();
        let mut client = Client::new(4096);
        let mut out = Vec::new();
        client.begin(head(&fields), false, &mut out);
        assert_eq!(client.room(), 65_535);
        out.clear();
        client.content(&vec![0; 65_535], false, &mut out);
        assert_eq!(client.room(), 0);
        assert_eq!(frames(&out).len(), 4);
        let mut input = Vec::new();
        frame::write_window_update(0, 10, &mut input);
        frame::write_window_update(1, 20, &mut input);
        frame::write_settings(&[(settings::id::INITIAL_WINDOW_SIZE, 65_530)], &mut input);
        let mut rest = &input[..];
        while !rest.is_empty() {
            let (_, used) = client.next(rest, |_| {}).expect("frames are whole");
            rest = &rest[used..];
        }
        assert_eq!(client.room(), 10);
        out.clear();
        client.content(b"last", true, &mut out);
        client.end(&Fields::new(), &mut out);
        let sent = frames(&out);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].0.flags & flag::END_STREAM, flag::END_STREAM);
        out.clear();
        client.take_control(&mut out);
        let (ack, _) = frames(&out).remove(0);
        assert_eq!((ack.kind, ack.flags), (kind::SETTINGS, flag::ACK));
    }

    #[test]
    fn what_a_peer_must_not_send_ends_the_connection() {
        let fields = Fields::new();
        let begun = || {
            let mut client = Client::new(4096);
            client.begin(head(&fields), true, &mut Vec::new());
            client
        };
        let mut unknown = Vec::new();
        frame::write_data_head(3, 0, true, &mut unknown);
        assert_eq!(
            begun().next(&unknown, |_| {}).err(),
            Some(ClientError::UnknownStream(3))
        );
        let mut overflow = Vec::new();
        frame::write_window_update(1, Window::MAX, &mut overflow);
        assert!(matches!(
            begun().next(&overflow, |_| {}),
            Err(ClientError::Peer(_))
        ));
        let mut ping = Vec::new();
        frame::write_ping(false, [7; 8], &mut ping);
        let mut client = begun();
        let flood = (0..2_000).find_map(|_| client.next(&ping, |_| {}).err());
        assert!(matches!(flood, Some(ClientError::Peer(_))));
    }

    #[test]
    fn a_peer_that_leaves_says_whether_it_saw_the_stream() {
        let fields = Fields::new();
        for (last, seen) in [(0, false), (1, true)] {
            let mut client = Client::new(4096);
            client.begin(head(&fields), true, &mut Vec::new());
            let mut input = Vec::new();
            frame::write_goaway(last, ErrorCode::NO_ERROR, &mut input);
            let (event, _) = client.next(&input, |_| {}).expect("it may leave");
            assert_eq!(matches!(event, Incoming::Control), seen);
            assert!(!client.is_free());
        }
    }
}
