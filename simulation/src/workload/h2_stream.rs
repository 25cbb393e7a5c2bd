//! HTTP/2 as clients of a simulation speak it (RFC 9113): one request at a time on a connection, without TLS, by prior
//! knowledge. The codec is that of the server's upstream side; what it gives is compared as everything else is.

use std::io;

use proto::Fields;
use proto::h2::H2ClientConnection;
use proto::h2::client::{OutgoingHead, ResponseEvent};
use rt::net::StreamSocket;

use super::message::{BodyEnd, MessageHead};

/// The most bytes of a header list.
const LIST_MAX: usize = 64 * 1024;
/// How much is read at a time.
const READ: usize = 16 * 1024;

/// A connection with what was read and not yet used.
pub(crate) struct H2Stream {
    pub(crate) socket: StreamSocket,
    connection: H2ClientConnection,
    unread: Vec<u8>,
    head: MessageHead,
    /// Content that has come with the head, or while a request was sent.
    body: Vec<u8>,
    state: H2Progress,
}

/// How far the response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H2Progress {
    Waiting,
    Content,
    Ended,
    Reset,
}

impl H2Stream {
    pub(crate) fn new(socket: StreamSocket) -> H2Stream {
        H2Stream {
            socket,
            connection: H2ClientConnection::new(LIST_MAX),
            unread: Vec::new(),
            head: MessageHead::default(),
            body: Vec::new(),
            state: H2Progress::Ended,
        }
    }

    /// Sends a request, whose head is written as that of HTTP/1.
    pub(crate) async fn send(&mut self, text: &str, body: &[u8]) -> io::Result<()> {
        let mut lines = text.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (method, path) = (words.next(), words.next());
        let mut fields = Fields::new();
        let mut host = "";
        for line in lines.filter(|line| !line.is_empty()) {
            match line.split_once(": ") {
                Some(("Host", value)) => host = value,
                Some((name, value)) => {
                    fields.push(name.to_ascii_lowercase().as_bytes(), value.as_bytes());
                }
                None => {}
            }
        }
        let head = OutgoingHead {
            method: method.unwrap_or_default().as_bytes(),
            scheme: b"http",
            path: path.unwrap_or_default().as_bytes(),
            authority: host.as_bytes(),
            fields: &fields,
        };
        self.head = MessageHead::default();
        self.body.clear();
        self.state = H2Progress::Waiting;
        let mut out = Vec::new();
        self.connection
            .begin_request(head, body.is_empty(), &mut out);
        self.socket.write_all(&out).await?;
        let mut rest = body;
        // The server may answer before it has read everything, and then wants no more.
        while !rest.is_empty() && matches!(self.state, H2Progress::Waiting | H2Progress::Content) {
            let room = self.connection.send_window().min(rest.len());
            if room == 0 {
                if !self.step().await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                continue;
            }
            let (piece, later) = rest.split_at(room);
            rest = later;
            let mut out = Vec::new();
            self.connection
                .append_content(piece, rest.is_empty(), &mut out);
            self.socket.write_all(&out).await?;
        }
        Ok(())
    }

    /// The head of the response. `None`: the connection, or the stream, has ended instead.
    pub(crate) async fn head(&mut self) -> io::Result<Option<MessageHead>> {
        while self.head.first.is_empty() {
            if self.state == H2Progress::Reset || !self.step().await? {
                return Ok(None);
            }
        }
        Ok(Some(self.head.clone()))
    }

    /// The body of the response, as far as it comes.
    pub(crate) async fn body(&mut self, pause: impl AsyncFn(usize)) -> (Vec<u8>, BodyEnd) {
        loop {
            let end = match self.state {
                H2Progress::Ended => BodyEnd::Complete,
                H2Progress::Reset => BodyEnd::Cut,
                H2Progress::Waiting | H2Progress::Content => {
                    pause(self.body.len()).await;
                    match self.step().await {
                        Ok(true) => continue,
                        Ok(false) | Err(_) => BodyEnd::Cut,
                    }
                }
            };
            return (std::mem::take(&mut self.body), end);
        }
    }

    /// Whether another request may follow.
    pub(crate) fn is_free(&self) -> bool {
        self.connection.is_free()
    }

    /// Handles one frame, and reads if there is none; false at the end of the connection.
    async fn step(&mut self) -> io::Result<bool> {
        let mut fields = Vec::new();
        let (event, used) = self
            .connection
            .next_event(&self.unread, |field| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                fields.push((text(field.name), text(field.value)));
            })
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{error:?}")))?;
        let is_more = matches!(event, ResponseEvent::More);
        match event {
            ResponseEvent::More | ResponseEvent::Control => {}
            ResponseEvent::Head { end } => {
                let status = fields.iter().find(|(name, _)| name == ":status");
                if let Some((_, status)) = status.filter(|(_, status)| !status.starts_with('1')) {
                    self.head.first = format!("HTTP/1.1 {status} ");
                    self.state = H2Progress::Content;
                }
                self.head.fields.append(&mut fields);
                if end {
                    self.state = H2Progress::Ended;
                }
            }
            ResponseEvent::Data { bytes, end } => {
                self.body.extend_from_slice(bytes);
                if end {
                    self.state = H2Progress::Ended;
                }
            }
            ResponseEvent::Reset(_) | ResponseEvent::Gone(_) => {
                if self.state != H2Progress::Ended {
                    self.state = H2Progress::Reset;
                }
            }
        }
        self.unread.drain(..used);
        if self.connection.has_control() {
            let mut out = Vec::new();
            self.connection.take_control(&mut out);
            self.socket.write_all(&out).await?;
        }
        if is_more {
            let n = self.socket.read_into(&mut self.unread, READ).await?;
            return Ok(n > 0);
        }
        Ok(true)
    }
}
