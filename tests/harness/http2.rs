//! A peer of HTTP/2 that sends what it is told, right or wrong, and shows what it hears: a client, or an upstream server.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use proto::h2::frame::{self, HeadersFrame, flag, kind};
use proto::h2::hpack::{FieldSecrecy, HpackDecoder, HpackEncoder, ListLimits};
use proto::h2::settings::{id::HEADER_TABLE_SIZE, pairs};
use proto::h2::{ErrorCode, FrameEvent, FrameReader, PREFACE};
use proto::{KnownField, h2};

use crate::server::Server;
use crate::wait::PATIENCE;

/// Something that the server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A header block.
    Headers {
        /// The stream.
        stream: u32,
        /// Names and values.
        fields: Vec<(String, String)>,
        /// The stream ends.
        ends: bool,
    },
    /// A piece of content.
    Data {
        /// The stream.
        stream: u32,
        /// The content.
        bytes: Vec<u8>,
        /// The stream ends.
        ends: bool,
    },
    /// RST_STREAM.
    Reset(u32, ErrorCode),
    /// GOAWAY: the last stream, and why.
    GoAway(u32, ErrorCode),
    /// SETTINGS; they are acknowledged at once.
    Settings(Vec<(u16, u32)>),
    /// The acknowledgement of ours.
    SettingsAck,
    /// An answer to PING.
    Pong([u8; 8]),
    /// WINDOW_UPDATE.
    Window(u32, u32),
    /// The connection is closed.
    Closed,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub struct Http2Reply {
    /// Statuses below 200 that came first.
    pub interim: Vec<u16>,
    /// The status; 0 when there is none.
    pub status: u16,
    /// Names and values.
    pub fields: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
    /// What followed the content.
    pub trailers: Vec<(String, String)>,
    /// The stream was reset.
    pub reset: Option<ErrorCode>,
}

impl Http2Reply {
    /// The first field of this name; empty without one.
    pub fn field(&self, name: &str) -> &str {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What a connection is carried by: TCP, or TLS over it.
trait Carrier: Read + Write {}

impl<T: Read + Write> Carrier for T {}

/// A connection.
pub struct Http2 {
    carrier: Box<dyn Carrier>,
    /// What is below it.
    socket: TcpStream,
    reader: FrameReader,
    decoder: HpackDecoder,
    encoder: HpackEncoder,
    input: Vec<u8>,
    next: u32,
    /// Heard and not yet asked for.
    heard: Vec<Heard>,
    /// Windows open again with what comes.
    pub takes_all: bool,
    /// Header blocks are sent in frames of at most so many bytes.
    pub largest_frame: u32,
}

impl Http2 {
    /// Connects to the server's first port, with settings of its own.
    pub fn connect(server: &Server, settings: &[(u16, u32)]) -> Http2 {
        let socket = TcpStream::connect(("127.0.0.1", server.port(0))).expect("the server listens");
        let carrier = socket.try_clone().expect("there are descriptors");
        Http2::over(carrier, socket, settings)
    }

    /// Begins a client's connection over `carrier`, which is `socket` or stands upon it.
    pub fn over(
        carrier: impl Read + Write + 'static,
        socket: TcpStream,
        settings: &[(u16, u32)],
    ) -> Http2 {
        let mut client = Http2::new(Box::new(carrier), socket);
        let mut out = PREFACE.to_vec();
        frame::write_settings(settings, &mut out);
        client.send(&out);
        client
    }

    /// Takes a connection as a server: a proxy has begun it.
    pub fn accept(socket: &TcpStream) -> Http2 {
        let mut carrier = socket.try_clone().expect("there are descriptors");
        let mut preface = [0; PREFACE.len()];
        carrier.read_exact(&mut preface).expect("a preface comes");
        assert_eq!(&preface, PREFACE);
        let socket = socket.try_clone().expect("there are descriptors");
        let mut server = Http2::new(Box::new(carrier), socket);
        let mut out = Vec::new();
        frame::write_settings(&[], &mut out);
        server.send(&out);
        server
    }

    fn new(carrier: Box<dyn Carrier>, socket: TcpStream) -> Http2 {
        socket
            .set_read_timeout(Some(PATIENCE))
            .expect("the bound is not zero");
        socket
            .set_write_timeout(Some(PATIENCE))
            .expect("the bound is not zero");
        socket
            .set_nodelay(true)
            .expect("a TCP socket has this option");
        Http2 {
            carrier,
            socket,
            reader: FrameReader::default(),
            decoder: HpackDecoder::default(),
            encoder: HpackEncoder::default(),
            input: Vec::new(),
            next: 1,
            heard: Vec::new(),
            takes_all: true,
            largest_frame: 16384,
        }
    }

    /// Sends bytes as they are. `false` when the server has closed.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        match self.carrier.write_all(bytes) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("the server reads nothing")
            }
            Err(_) => false,
        }
    }

    /// Sends a frame.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let mut out = Vec::new();
        frame::write_head(payload.len() as u32, kind, flags, stream, &mut out);
        out.extend_from_slice(payload);
        self.send(&out)
    }

    /// Begins a request with these fields, the pseudo-header fields among them; gives its stream.
    pub fn begin(&mut self, fields: &[(&str, &str)], ends: bool) -> u32 {
        let stream = self.next;
        self.next += 2;
        self.headers(stream, fields, ends);
        stream
    }

    /// Sends a header block.
    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], ends: bool) -> bool {
        let mut out = Vec::new();
        let begun = HeadersFrame::begin(stream, ends, &mut out);
        self.encoder.begin(&mut out);
        for (name, value) in fields {
            if name.starts_with(':') {
                self.encoder
                    .pseudo(name.as_bytes(), value.as_bytes(), &mut out);
            } else {
                let known = KnownField::from_name(name.as_bytes());
                let (name, value) = (name.as_bytes(), value.as_bytes());
                self.encoder
                    .field(known, name, value, FieldSecrecy::Open, &mut out);
            }
        }
        begun.finish(self.largest_frame, &mut out);
        self.send(&out)
    }

    /// Begins an ordinary request.
    pub fn request(&mut self, method: &str, path: &str, more: &[(&str, &str)], ends: bool) -> u32 {
        let mut fields = vec![
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
        ];
        fields.extend_from_slice(more);
        self.begin(&fields, ends)
    }

    /// Sends content.
    pub fn data(&mut self, stream: u32, bytes: &[u8], ends: bool) -> bool {
        let flags = if ends { flag::END_STREAM } else { 0 };
        self.frame(kind::DATA, flags, stream, bytes)
    }

    /// Opens a window.
    pub fn window(&mut self, stream: u32, by: u32) -> bool {
        self.frame(kind::WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
    }

    /// A `GET` and its response.
    pub fn get(&mut self, path: &str) -> Http2Reply {
        let stream = self.request("GET", path, &[], true);
        self.reply(stream)
    }

    /// Reads until the response on a stream is complete, or the stream is reset.
    pub fn reply(&mut self, stream: u32) -> Http2Reply {
        let mut reply = Http2Reply::default();
        loop {
            let heard =
                self.hear(|heard| heard.stream() == Some(stream) || *heard == Heard::Closed);
            let ended = match heard {
                Heard::Headers { fields, ends, .. } => {
                    take_fields(&mut reply, fields);
                    ends
                }
                Heard::Data { bytes, ends, .. } => {
                    reply.body.extend(bytes);
                    ends
                }
                Heard::Reset(_, code) => {
                    reply.reset = Some(code);
                    true
                }
                Heard::Closed => panic!("closed without an answer, after {reply:?}"),
                _ => false,
            };
            if ended {
                return reply;
            }
        }
    }

    /// Waits for something that it is to hear. What else comes meanwhile is kept.
    pub fn hear(&mut self, mut wanted: impl FnMut(&Heard) -> bool) -> Heard {
        let mut at = 0;
        loop {
            while at < self.heard.len() {
                if wanted(&self.heard[at]) {
                    return match self.heard[at] {
                        Heard::Closed => Heard::Closed,
                        _ => self.heard.remove(at),
                    };
                }
                at += 1;
            }
            assert!(
                self.heard.last() != Some(&Heard::Closed),
                "closed before it came: {:?}",
                self.heard
            );
            self.read();
        }
    }

    /// Reads until the server closes; gives the code of its GOAWAY, if it sent one.
    pub fn end(&mut self) -> Option<ErrorCode> {
        self.hear(|heard| *heard == Heard::Closed);
        self.heard.iter().find_map(|heard| match heard {
            Heard::GoAway(_, code) => Some(*code),
            _ => None,
        })
    }

    /// Whether the server has closed, or told it to go; reads what has come, without waiting.
    pub fn is_over(&mut self) -> bool {
        self.socket
            .set_nonblocking(true)
            .expect("a TCP socket has this option");
        self.read();
        self.socket
            .set_nonblocking(false)
            .expect("a TCP socket has this option");
        self.heard
            .iter()
            .any(|heard| matches!(heard, Heard::Closed | Heard::GoAway(..)))
    }

    fn read(&mut self) {
        let mut buffer = vec![0; 64 * 1024];
        match self.carrier.read(&mut buffer) {
            Ok(n) if n > 0 => self.input.extend_from_slice(&buffer[..n]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let is_waiting = self.socket.read_timeout().is_ok();
                debug_assert!(is_waiting, "a read is bounded");
                return;
            }
            _ => return self.heard.push(Heard::Closed),
        }
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        let mut answers = Vec::new();
        loop {
            let (event, used) = self
                .reader
                .next_event(&input[at..])
                .expect("the server's frames are right");
            at += used;
            if matches!(event, FrameEvent::More) {
                break;
            }
            let heard = self.understand(event, &mut answers);
            self.heard.extend(heard);
        }
        self.input = input[at..].to_vec();
        if !answers.is_empty() {
            self.send(&answers);
        }
    }

    fn understand(&mut self, event: FrameEvent<'_>, answers: &mut Vec<u8>) -> Option<Heard> {
        Some(match event {
            FrameEvent::Data {
                stream,
                bytes,
                counted,
                end_stream,
                ..
            } => {
                if self.takes_all && counted > 0 {
                    frame::write_window_update(0, counted, answers);
                    if !end_stream {
                        frame::write_window_update(stream, counted, answers);
                    }
                }
                Heard::Data {
                    stream,
                    bytes: bytes.to_vec(),
                    ends: end_stream,
                }
            }
            FrameEvent::Headers {
                stream,
                block,
                end_stream,
                ..
            } => Heard::Headers {
                stream,
                fields: decode(&mut self.decoder, &block),
                ends: end_stream,
            },
            FrameEvent::Reset { stream, code } => Heard::Reset(stream, code),
            FrameEvent::GoAway { last, code } => Heard::GoAway(last, code),
            FrameEvent::Settings(payload) => {
                frame::write_settings_ack(answers);
                for (_, size) in pairs(payload).filter(|(id, _)| *id == HEADER_TABLE_SIZE) {
                    self.encoder.set_peer_limit(size);
                }
                Heard::Settings(pairs(payload).collect())
            }
            FrameEvent::SettingsAck => Heard::SettingsAck,
            FrameEvent::Ping { ack: true, opaque } => Heard::Pong(opaque),
            FrameEvent::WindowUpdate { stream, increment } => Heard::Window(stream, increment),
            _ => return None,
        })
    }
}

impl Heard {
    /// The stream that it is about, if it is about a response.
    pub fn stream(&self) -> Option<u32> {
        match self {
            Heard::Headers { stream, .. }
            | Heard::Data { stream, .. }
            | Heard::Reset(stream, _) => Some(*stream),
            _ => None,
        }
    }
}

fn take_fields(reply: &mut Http2Reply, fields: Vec<(String, String)>) {
    let status = fields
        .iter()
        .find(|(name, _)| name == ":status")
        .and_then(|(_, value)| value.parse().ok());
    match status {
        Some(status) if status < 200 => reply.interim.push(status),
        Some(status) => {
            reply.status = status;
            reply.fields = fields;
        }
        None => reply.trailers = fields,
    }
}

fn decode(decoder: &mut HpackDecoder, block: &[u8]) -> Vec<(String, String)> {
    let limits = ListLimits {
        max_size: usize::MAX,
        max_fields: usize::MAX,
    };
    let mut fields = Vec::new();
    decoder
        .decode(block, limits, |field: h2::hpack::DecodedField<'_>| {
            fields.push((
                String::from_utf8_lossy(field.name).into_owned(),
                String::from_utf8_lossy(field.value).into_owned(),
            ));
        })
        .expect("the server's header blocks are right");
    fields
}
