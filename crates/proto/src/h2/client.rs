//! The client's side of an HTTP/2 connection that carries one request at a time.
//!
//! This suits a proxy's pool of idle connections: a request takes one from the pool, begins a
//! stream, and puts it back when the stream has ended. The state of the header compression, the
//! connection's window and the peer's settings outlive the stream, so this value stays with the
//! connection.
//!
//! ```text
//!   begin_request(), append_content(), end_request() ──▶ output of the request
//!   input ──▶ next_event() ──▶ ResponseEvent::Head, Data, …
//!   take_control() ──▶ acknowledgements and window updates, to be sent at any time
//! ```

use super::error::{ConnectionError, ErrorCode};
use super::event::FrameEvent;
use super::frame::{self, HeadersFrame, MAX_STREAM, PREFACE};
use super::hpack::{
    DecodedField, FieldSecrecy, HpackDecoder, HpackEncoder, HpackError, ListLimits,
};
use super::reader::{FrameReader, ReaderLimits};
use super::settings::{self, H2Settings};
use super::window::FlowControlWindow;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// The maximum size of acknowledgements that wait to be sent: a peer that asks for more without
/// reading is cut off.
const MAX_CONTROL: usize = 16 * 1024;

/// The receive windows. A whole response may be sent without an update: nothing else is on the
/// connection, and TCP holds the peer back if we do not read.
const RECEIVE_WINDOW: u32 = FlowControlWindow::MAX;

/// The windows are extended after this number of bytes.
const REPLENISH_AT: u32 = RECEIVE_WINDOW / 2;

/// The maximum number of frames per header block: an upstream server is trusted more than a client.
const MAX_CONTINUATIONS: u32 = 1000;

/// The maximum number of fields in a response header or in trailers.
const MAX_FIELDS: usize = 1000;

/// The head of a request.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingHead<'a> {
    /// `:method`
    pub method: &'a [u8],
    /// `:scheme`
    pub scheme: &'a [u8],
    /// `:path`
    pub path: &'a [u8],
    /// `:authority`; omitted if empty.
    pub authority: &'a [u8],
    /// The other fields, without those of a connection.
    pub fields: &'a Fields,
}

/// What the peer has sent.
#[derive(Debug)]
pub enum ResponseEvent<'a> {
    /// No more complete frames: the unused input must be passed again with more.
    More,
    /// A frame that is of no concern to the caller.
    Control,
    /// A header block of our stream, whose fields were passed to the callback.
    Head {
        /// The stream ends with it.
        end: bool,
    },
    /// Content of our stream.
    Data {
        /// The content, or a part of it.
        bytes: &'a [u8],
        /// The stream ends with it.
        end: bool,
    },
    /// The peer has reset our stream. After the end of its response it may do so without harm (RFC
    /// 9113, section 8.1).
    Reset(ErrorCode),
    /// The peer has sent GOAWAY and not processed our stream.
    Gone(ErrorCode),
}

/// Why a connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The peer violated the protocol.
    Peer(ConnectionError),
    /// A frame for a stream that has never existed or has ended.
    UnknownStream(u32),
    /// A frame for our stream after the peer has reset it.
    ClosedStream(u32),
    /// PUSH_PROMISE, which our settings forbid.
    Push,
}

impl From<ConnectionError> for ClientError {
    fn from(error: ConnectionError) -> ClientError {
        ClientError::Peer(error)
    }
}

/// The state of a connection.
#[derive(Debug)]
pub struct H2ClientConnection {
    reader: FrameReader,
    decoder: HpackDecoder,
    encoder: HpackEncoder,
    peer: H2Settings,
    limits: ListLimits,
    /// What we may send on the connection.
    window: FlowControlWindow,
    /// The bytes received since the last update of the connection's window.
    received: u32,
    control: Vec<u8>,
    /// The current stream, or the last one; 0 before the first.
    stream: u32,
    /// What we may send on the stream.
    stream_window: FlowControlWindow,
    stream_received: u32,
    sent_end: bool,
    got_end: bool,
    /// The peer has reset the stream.
    reset: bool,
    /// The peer accepts no more streams.
    peer_gone: bool,
}

impl H2ClientConnection {
    /// A new connection. A response's header list may have `max_list` bytes.
    pub fn new(max_list: usize) -> H2ClientConnection {
        let peer = H2Settings::default();
        H2ClientConnection {
            reader: FrameReader::new(ReaderLimits {
                max_block: max_list,
                max_continuations: MAX_CONTINUATIONS,
                ..ReaderLimits::default()
            }),
            decoder: HpackDecoder::default(),
            encoder: HpackEncoder::default(),
            peer,
            limits: ListLimits {
                max_size: max_list,
                max_fields: MAX_FIELDS,
            },
            window: FlowControlWindow::new(FlowControlWindow::DEFAULT),
            received: 0,
            control: Vec::new(),
            stream: 0,
            stream_window: FlowControlWindow::new(peer.initial_window_size),
            stream_received: 0,
            sent_end: true,
            got_end: true,
            reset: false,
            peer_gone: false,
        }
    }

    /// Begins the next stream, and the connection if this is its first one. `end` if no content
    /// follows.
    pub fn begin_request(&mut self, head: OutgoingHead<'_>, end: bool, out: &mut Vec<u8>) {
        if self.stream == 0 {
            write_preface(out);
            self.stream = 1;
        } else {
            out.append(&mut self.control);
            // Identifiers of a client's streams are odd (RFC 9113, section 5.1.1).
            self.stream += 2;
        }
        self.stream_window = FlowControlWindow::new(self.peer.initial_window_size);
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
                // Never indexed, so that their values cannot be guessed by way of the compression
                // (RFC 7541, section 7.1).
                KnownField::Authorization | KnownField::Cookie => FieldSecrecy::Secret,
                _ => FieldSecrecy::Open,
            };
            self.encoder.field(known, name, value, secrecy, out);
        }
    }

    /// The number of bytes of content that may be sent now.
    pub fn send_window(&self) -> usize {
        self.window.available().min(self.stream_window.available()) as usize
    }

    /// Appends content, which must not exceed the windows' room.
    pub fn append_content(&mut self, content: &[u8], end: bool, out: &mut Vec<u8>) {
        let mut pieces = content.chunks(self.peer.max_frame_size as usize).peekable();
        while let Some(piece) = pieces.next() {
            let last = end && pieces.peek().is_none();
            frame::write_data_head(self.stream, piece.len() as u32, last, out);
            out.extend_from_slice(piece);
            // Far from the lower bound: a frame has at most 16 MB.
            let _ = self.window.adjust_size(-(piece.len() as i64));
            let _ = self.stream_window.adjust_size(-(piece.len() as i64));
        }
        // Without content there is no frame that could be marked as the last.
        self.sent_end |= end && !content.is_empty();
    }

    /// Ends the request, if it has not ended yet.
    pub fn end_request(&mut self, trailers: &Fields, out: &mut Vec<u8>) {
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

    /// Whether something waits for [`H2ClientConnection::take_control`].
    pub fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Appends acknowledgements and window updates. They must go between two frames.
    pub fn take_control(&mut self, out: &mut Vec<u8>) {
        out.append(&mut self.control);
    }

    /// Whether the stream has ended on both sides and another one can follow.
    pub fn is_free(&self) -> bool {
        self.sent_end
            && self.got_end
            && !self.peer_gone
            && self.stream < MAX_STREAM - 2
            && self.reader.is_between_frames()
    }

    /// Whether the peer has ended its side of the stream.
    pub fn has_ended(&self) -> bool {
        self.got_end
    }

    /// Parses the next event, and returns how much of `input` it consumed. `field` gets the fields
    /// of a header or of trailers.
    pub fn next_event<'a>(
        &mut self,
        input: &'a [u8],
        field: impl FnMut(DecodedField<'_>),
    ) -> Result<(ResponseEvent<'a>, usize), ClientError> {
        let (event, used) = self.reader.next_event(input)?;
        let incoming = match event {
            FrameEvent::More => ResponseEvent::More,
            FrameEvent::Data {
                stream,
                bytes,
                counted,
                end_stream,
                ..
            } => {
                self.require_open(stream)?;
                self.count_received(counted);
                self.got_end = end_stream;
                ResponseEvent::Data {
                    bytes,
                    end: end_stream,
                }
            }
            FrameEvent::Headers {
                stream,
                block,
                end_stream,
                ..
            } => {
                self.require_open(stream)?;
                self.decode(&block, field)?;
                self.got_end = end_stream;
                ResponseEvent::Head { end: end_stream }
            }
            FrameEvent::Reset { stream, code } if stream == self.stream => {
                if std::mem::replace(&mut self.reset, true) {
                    return Err(ClientError::ClosedStream(stream));
                }
                // NO_ERROR after both sides have ended concerns the stream only; anything else
                // makes the connection unusable.
                self.peer_gone |= !(self.sent_end && self.got_end && code == ErrorCode::NO_ERROR);
                ResponseEvent::Reset(code)
            }
            FrameEvent::Reset { stream, .. } => self.require_known(stream)?,
            FrameEvent::Settings(payload) => self.settings(payload)?,
            FrameEvent::Ping { ack: false, opaque } => {
                frame::write_ping(true, opaque, &mut self.control);
                self.check_control_bound()?
            }
            FrameEvent::GoAway { last, code } => {
                self.peer_gone = true;
                match last < self.stream && !self.got_end {
                    true => ResponseEvent::Gone(code),
                    false => ResponseEvent::Control,
                }
            }
            FrameEvent::WindowUpdate { stream, increment } => {
                self.window_update(stream, increment)?
            }
            FrameEvent::PushPromise { .. } => return Err(ClientError::Push),
            FrameEvent::StreamError { stream, code, what } => {
                self.require_known(stream)?;
                return Err(ConnectionError { code, what }.into());
            }
            FrameEvent::SettingsAck
            | FrameEvent::Ping { ack: true, .. }
            | FrameEvent::Priority { .. }
            | FrameEvent::PriorityUpdate { .. }
            | FrameEvent::Unknown { .. } => ResponseEvent::Control,
        };
        Ok((incoming, used))
    }

    fn decode(
        &mut self,
        block: &[u8],
        field: impl FnMut(DecodedField<'_>),
    ) -> Result<(), ClientError> {
        match self.decoder.decode(block, self.limits, field) {
            Ok(decoded) if !decoded.too_large => Ok(()),
            Ok(_) => Err(ConnectionError::enhance_your_calm("too large http2 header").into()),
            Err(error) => Err(ConnectionError::compression(hpack_error_text(error)).into()),
        }
    }

    fn require_open(&self, stream: u32) -> Result<(), ClientError> {
        match stream == self.stream && !self.got_end {
            true => Ok(()),
            false => Err(ClientError::UnknownStream(stream)),
        }
    }

    /// Late frames about a stream that has ended do no harm.
    fn require_known(&self, stream: u32) -> Result<ResponseEvent<'static>, ClientError> {
        match stream % 2 == 1 && stream <= self.stream {
            true => Ok(ResponseEvent::Control),
            false => Err(ClientError::UnknownStream(stream)),
        }
    }

    /// Fails if the peer makes us acknowledge more than it reads.
    fn check_control_bound(&self) -> Result<ResponseEvent<'static>, ClientError> {
        match self.control.len() <= MAX_CONTROL {
            true => Ok(ResponseEvent::Control),
            false => Err(ConnectionError::enhance_your_calm("too many control frames").into()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<ResponseEvent<'static>, ClientError> {
        let before = i64::from(self.peer.initial_window_size);
        self.peer.apply(payload)?;
        self.encoder.set_peer_limit(self.peer.header_table_size);
        let change = i64::from(self.peer.initial_window_size) - before;
        self.stream_window
            .adjust_size(change)
            .map_err(|_| ConnectionError::flow_control("too large initial window"))?;
        frame::write_settings_ack(&mut self.control);
        self.check_control_bound()
    }

    fn window_update(
        &mut self,
        stream: u32,
        increment: u32,
    ) -> Result<ResponseEvent<'static>, ClientError> {
        let given = match stream {
            0 => self.window.replenish(increment),
            stream if stream == self.stream => self.stream_window.replenish(increment),
            stream => return self.require_known(stream),
        };
        given.map_err(|_| ConnectionError::flow_control("too large window update"))?;
        Ok(ResponseEvent::Control)
    }

    /// Counts received content, padding included, and extends the windows before they close.
    fn count_received(&mut self, counted: u32) {
        for (stream, received) in [
            (0, &mut self.received),
            (self.stream, &mut self.stream_received),
        ] {
            *received += counted;
            if *received >= REPLENISH_AT {
                frame::write_window_update(stream, *received, &mut self.control);
                *received = 0;
            }
        }
    }
}

/// The error in a header block, for the log.
fn hpack_error_text(error: HpackError) -> &'static str {
    match error {
        HpackError::Truncated => "truncated http2 header",
        HpackError::InvalidIndex => "invalid http2 table index",
        HpackError::InvalidHuffman => "invalid encoded header",
        HpackError::InvalidTableSize => "invalid http2 dynamic table size update",
    }
}

/// The client's connection preface: the magic, our settings, and a connection window as large as a
/// stream's.
fn write_preface(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    let settings = [
        (settings::id::ENABLE_PUSH, 0),
        (settings::id::INITIAL_WINDOW_SIZE, RECEIVE_WINDOW),
    ];
    frame::write_settings(&settings, out);
    frame::write_window_update(0, RECEIVE_WINDOW - FlowControlWindow::DEFAULT, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::frame::{FrameHead, HEAD_LENGTH, flag, kind};

    fn head(fields: &Fields) -> OutgoingHead<'_> {
        OutgoingHead {
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
    fn response(encoder: &mut HpackEncoder, stream: u32, status: u16, end: bool) -> Vec<u8> {
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
        let mut client = H2ClientConnection::new(4096);
        let mut encoder = HpackEncoder::default();
        for stream in [1, 3, 5] {
            let mut out = Vec::new();
            client.begin_request(head(&fields), true, &mut out);
            assert_eq!(out.starts_with(PREFACE), stream == 1);
            let last = frames(&out).pop().expect("there is a head");
            assert_eq!((last.0.kind, last.0.stream), (kind::HEADERS, stream));
            assert!(!client.is_free());
            let mut status = Vec::new();
            let input = response(&mut encoder, stream, 200, true);
            let (event, used) = client
                .next_event(&input, |field| status.extend_from_slice(field.value))
                .expect("it is a response");
            assert!(matches!(event, ResponseEvent::Head { end: true }) && used == input.len());
            assert_eq!(status, b"200");
            assert!(client.is_free() && client.has_ended());
        }
    }

    #[test]
    fn content_stays_within_the_windows() {
        let fields = Fields::new();
        let mut client = H2ClientConnection::new(4096);
        let mut out = Vec::new();
        client.begin_request(head(&fields), false, &mut out);
        assert_eq!(client.send_window(), 65_535);
        out.clear();
        client.append_content(&vec![0; 65_535], false, &mut out);
        assert_eq!(client.send_window(), 0);
        assert_eq!(frames(&out).len(), 4);
        let mut input = Vec::new();
        frame::write_window_update(0, 10, &mut input);
        frame::write_window_update(1, 20, &mut input);
        frame::write_settings(&[(settings::id::INITIAL_WINDOW_SIZE, 65_530)], &mut input);
        let mut rest = &input[..];
        while !rest.is_empty() {
            let (_, used) = client.next_event(rest, |_| {}).expect("frames are whole");
            rest = &rest[used..];
        }
        assert_eq!(client.send_window(), 10);
        out.clear();
        client.append_content(b"last", true, &mut out);
        client.end_request(&Fields::new(), &mut out);
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
            let mut client = H2ClientConnection::new(4096);
            client.begin_request(head(&fields), true, &mut Vec::new());
            client
        };
        let mut unknown = Vec::new();
        frame::write_data_head(3, 0, true, &mut unknown);
        assert_eq!(
            begun().next_event(&unknown, |_| {}).err(),
            Some(ClientError::UnknownStream(3))
        );
        let mut overflow = Vec::new();
        frame::write_window_update(1, FlowControlWindow::MAX, &mut overflow);
        assert!(matches!(
            begun().next_event(&overflow, |_| {}),
            Err(ClientError::Peer(_))
        ));
        let mut ping = Vec::new();
        frame::write_ping(false, [7; 8], &mut ping);
        let mut client = begun();
        let flood = (0..2_000).find_map(|_| client.next_event(&ping, |_| {}).err());
        assert!(matches!(flood, Some(ClientError::Peer(_))));
    }

    #[test]
    fn a_peer_that_leaves_says_whether_it_saw_the_stream() {
        let fields = Fields::new();
        for (last, seen) in [(0, false), (1, true)] {
            let mut client = H2ClientConnection::new(4096);
            client.begin_request(head(&fields), true, &mut Vec::new());
            let mut input = Vec::new();
            frame::write_goaway(last, ErrorCode::NO_ERROR, &mut input);
            let (event, _) = client.next_event(&input, |_| {}).expect("it may leave");
            assert_eq!(matches!(event, ResponseEvent::Control), seen);
            assert!(!client.is_free());
        }
    }
}
