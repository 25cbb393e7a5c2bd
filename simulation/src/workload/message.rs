//! HTTP/1.1 as the clients and the origin of a simulation speak it (RFC 9112). It shares no code with the server.

use std::io;

use rt::net::StreamSocket;

/// The most bytes of a head.
const HEAD_MAX: usize = 64 * 1024;
/// How much is read at a time.
const READ: usize = 16 * 1024;

/// A start line and its fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageHead {
    pub(crate) first: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl MessageHead {
    fn parse(bytes: &[u8]) -> Option<MessageHead> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.split("\r\n");
        let first = lines.next()?.to_owned();
        let mut fields = Vec::new();
        for line in lines.filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(MessageHead { first, fields })
    }

    /// The first field of this name, which is in lower case.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// The value of a field that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// The code of a status line.
    pub(crate) fn status(&self) -> Option<u16> {
        let rest = self.first.strip_prefix("HTTP/1.1 ")?;
        rest.get(..3)?.parse().ok()
    }

    /// Whether the connection stays open after this message.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.field("connection") != Some("close")
    }
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// As its framing says.
    Complete,
    /// With the connection, which is how a body without framing ends.
    Closed,
    /// Too early.
    Cut,
}

/// A connection with what was read and not yet used.
pub(crate) struct MessageStream {
    pub(crate) socket: StreamSocket,
    unread: Vec<u8>,
    has_ended: bool,
}

impl MessageStream {
    pub(crate) fn new(socket: StreamSocket) -> MessageStream {
        MessageStream {
            socket,
            unread: Vec::new(),
            has_ended: false,
        }
    }

    /// Reads more; false at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        if self.has_ended {
            return Ok(false);
        }
        let n = self.socket.read_into(&mut self.unread, READ).await?;
        self.has_ended = n == 0;
        Ok(n > 0)
    }

    /// The next head. `None`: the peer has closed instead.
    pub(crate) async fn head(&mut self) -> io::Result<Option<MessageHead>> {
        loop {
            let end = self.unread.windows(4).position(|four| four == b"\r\n\r\n");
            if let Some(end) = end {
                let bytes: Vec<u8> = self.unread.drain(..end + 4).collect();
                let head = MessageHead::parse(&bytes[..end]);
                return head.map(Some).ok_or_else(|| invalid("no head"));
            }
            if self.unread.len() > HEAD_MAX {
                return Err(invalid("an endless head"));
            }
            if !self.fill().await? {
                return match self.unread.is_empty() {
                    true => Ok(None),
                    false => Err(invalid("an end within a head")),
                };
            }
        }
    }

    /// The body of a message with this head, as far as it comes. `ends_with_connection`: it has no framing of its own.
    pub(crate) async fn body(
        &mut self,
        head: &MessageHead,
        ends_with_connection: bool,
        pause: impl AsyncFn(usize),
    ) -> (Vec<u8>, BodyEnd) {
        let mut body = Vec::new();
        let end = self
            .read_body(head, ends_with_connection, &mut body, pause)
            .await;
        (body, end.unwrap_or(BodyEnd::Cut))
    }

    async fn read_body(
        &mut self,
        head: &MessageHead,
        ends_with_connection: bool,
        body: &mut Vec<u8>,
        pause: impl AsyncFn(usize),
    ) -> io::Result<BodyEnd> {
        if head
            .field("transfer-encoding")
            .is_some_and(|coding| coding.ends_with("chunked"))
        {
            return self.read_chunks(body, pause).await;
        }
        let length = match head.number("content-length") {
            Some(length) => length as usize,
            None if ends_with_connection => usize::MAX,
            None => 0,
        };
        while body.len() < length {
            if self.unread.is_empty() && !self.fill().await? {
                return Ok(match length {
                    usize::MAX => BodyEnd::Closed,
                    _ => BodyEnd::Cut,
                });
            }
            let n = self.unread.len().min(length - body.len());
            body.extend(self.unread.drain(..n));
            pause(body.len()).await;
        }
        Ok(BodyEnd::Complete)
    }

    async fn read_chunks(
        &mut self,
        body: &mut Vec<u8>,
        pause: impl AsyncFn(usize),
    ) -> io::Result<BodyEnd> {
        loop {
            let Some(line) = self.line().await? else {
                return Ok(BodyEnd::Cut);
            };
            let size = line.split(';').next().unwrap_or_default().trim().to_owned();
            let size = usize::from_str_radix(&size, 16).map_err(|_| invalid("a chunk's size"))?;
            let end = body.len() + size;
            while body.len() < end {
                if self.unread.is_empty() && !self.fill().await? {
                    return Ok(BodyEnd::Cut);
                }
                let n = self.unread.len().min(end - body.len());
                body.extend(self.unread.drain(..n));
                pause(body.len()).await;
            }
            // After the last chunk: trailers, up to an empty line.
            loop {
                match self.line().await? {
                    None => return Ok(BodyEnd::Cut),
                    Some(line) if line.is_empty() => break,
                    Some(_) if size == 0 => {}
                    Some(_) => return Err(invalid("the end of a chunk")),
                }
            }
            if size == 0 {
                return Ok(BodyEnd::Complete);
            }
        }
    }

    async fn line(&mut self) -> io::Result<Option<String>> {
        loop {
            if let Some(end) = self.unread.windows(2).position(|two| two == b"\r\n") {
                let bytes: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(Some(String::from_utf8_lossy(&bytes[..end]).into_owned()));
            }
            if !self.fill().await? {
                return Ok(None);
            }
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
