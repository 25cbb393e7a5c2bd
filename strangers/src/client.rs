//! The client: one request, one observation. Connections are kept for as long as the server keeps them.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::behind::find;
use crate::requests::Request;

/// What a client saw of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    /// 0 when there was none, and `body` says why.
    pub(crate) status: u16,
    /// Fields as they came, with their names in small letters.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) is_chunked: bool,
}

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// The connections to one server under test.
pub(crate) struct Client {
    tls: Arc<ClientConfig>,
    kept: HashMap<String, Box<dyn Wire>>,
}

/// No answer within this time is an observation too.
const PATIENCE: Duration = Duration::from_secs(4);

impl Client {
    pub(crate) fn new(tls: Arc<ClientConfig>) -> Client {
        Client {
            tls,
            kept: HashMap::new(),
        }
    }

    /// Sends a request and reads its answer.
    pub(crate) fn ask(&mut self, request: &Request) -> Answer {
        if request.listen.is_udp {
            return datagram(request).unwrap_or_else(|error| nothing(&error));
        }
        let key = format!("{} {}", request.listen.address, request.name);
        for is_second in [false, true] {
            let kept = self
                .kept
                .remove(&key)
                .filter(|_| !is_second && !request.is_raw);
            let was_kept = kept.is_some();
            let wire = kept.map_or_else(|| self.connect(request), Ok);
            let mut wire = match wire {
                Ok(wire) => wire,
                Err(error) => return nothing(&error),
            };
            match converse(&mut wire, request) {
                Ok((answer, stays)) => {
                    if stays && !request.is_raw {
                        self.kept.insert(key, wire);
                    }
                    return answer;
                }
                // The server had closed it meanwhile.
                Err(_) if was_kept => {}
                Err(error) => return nothing(&error),
            }
        }
        Answer::default()
    }

    fn connect(&self, request: &Request) -> io::Result<Box<dyn Wire>> {
        let listen = &request.listen;
        if let Some(path) = listen.address.strip_prefix("unix:") {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            return Ok(Box::new(stream));
        }
        let mut stream = TcpStream::connect(&listen.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        if listen.is_proxied {
            stream.write_all(b"PROXY TCP4 192.0.2.7 192.0.2.8 1234 443\r\n")?;
        }
        if !listen.is_tls {
            return Ok(Box::new(stream));
        }
        let name = ServerName::try_from(request.name.clone())
            .or_else(|_| ServerName::try_from("localhost".to_owned()))
            .map_err(io::Error::other)?;
        let tls = ClientConnection::new(Arc::clone(&self.tls), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, stream);
        stream.flush()?;
        Ok(Box::new(stream))
    }
}

fn nothing(error: &io::Error) -> Answer {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => "closed without an answer".to_owned(),
        io::ErrorKind::InvalidData | io::ErrorKind::Other => "no TLS".to_owned(),
        kind => format!("{kind:?}"),
    };
    Answer {
        body: why.into_bytes(),
        ..Answer::default()
    }
}

fn datagram(request: &Request) -> io::Result<Answer> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(PATIENCE / 8))?;
    socket.send_to(&request.bytes, &request.listen.address)?;
    let mut buffer = [0; 2048];
    let count = socket.recv(&mut buffer)?;
    Ok(Answer {
        body: buffer[..count].to_vec(),
        ..Answer::default()
    })
}

/// The answer, and whether the connection stays.
fn converse(wire: &mut Box<dyn Wire>, request: &Request) -> io::Result<(Answer, bool)> {
    wire.write_all(&request.bytes)?;
    wire.flush()?;
    let mut received = Vec::new();
    loop {
        let closed = !receive(wire, &mut received)?;
        if let Some((answer, ends)) = parse(&received, &request.method, closed) {
            let says_close = answer
                .fields
                .iter()
                .any(|(name, value)| name == "connection" && value.eq_ignore_ascii_case("close"));
            return Ok((answer, !ends && !closed && !says_close));
        }
        if closed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn receive(wire: &mut Box<dyn Wire>, received: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = vec![0; 65536];
    match wire.read(&mut piece) {
        Ok(count) => {
            received.extend_from_slice(&piece[..count]);
            Ok(count > 0)
        }
        // A body that a reset or a missing close_notify ends has come as far as it will.
        Err(error) if !received.is_empty() && error.kind() != io::ErrorKind::WouldBlock => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The answer in these bytes, if it is complete, and whether the connection's end was its end.
fn parse(bytes: &[u8], method: &str, closed: bool) -> Option<(Answer, bool)> {
    if !bytes.starts_with(b"HTTP/") {
        let all = Answer {
            body: bytes.to_vec(),
            ..Answer::default()
        };
        return (closed && !bytes.is_empty()).then_some((all, true));
    }
    let end = find(bytes, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let fields: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let rest = &bytes[end + 4..];
    if (100..200).contains(&status) && status != 101 {
        return parse(rest, method, closed);
    }
    let value = |name: &str| {
        fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.clone())
    };
    let has_none = method == "HEAD" || matches!(status, 101 | 204 | 304);
    let is_chunked = value("transfer-encoding").is_some();
    let length = value("content-length").and_then(|text| text.parse::<usize>().ok());
    let (body, ends) = if has_none {
        (Vec::new(), status == 101)
    } else if is_chunked {
        match chunks(rest) {
            Some(body) => (body, false),
            None if closed => ([rest, b" (cut)"].concat(), true),
            None => return None,
        }
    } else if let Some(length) = length {
        match rest.get(..length) {
            Some(body) => (body.to_vec(), false),
            None if closed => ([rest, b" (cut)"].concat(), true),
            None => return None,
        }
    } else if closed {
        (rest.to_vec(), true)
    } else {
        return None;
    };
    let answer = Answer {
        status,
        fields,
        body,
        is_chunked,
    };
    Some((answer, ends))
}

fn chunks(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = find(bytes, b"\r\n")?;
        let text = String::from_utf8_lossy(&bytes[..end]);
        let size = usize::from_str_radix(text.split(';').next()?.trim(), 16).ok()?;
        bytes = bytes.get(end + 2..)?;
        if size == 0 {
            find(bytes, b"\r\n")?;
            return Some(body);
        }
        body.extend_from_slice(bytes.get(..size)?);
        bytes = bytes.get(size + 2..)?;
    }
}
