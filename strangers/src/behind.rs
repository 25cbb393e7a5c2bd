//! The server behind every configuration: it answers HTTP, TLS, FastCGI, uwsgi, SCGI and memcached on one port, tells
//! them apart by their first byte, and says in its answer what it has seen.
//!
//! `?weir=…` in a request asks for an answer of another kind: a redirect, an error, chunks, an internal redirect.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What has been seen since it was last asked.
pub(crate) type Seen = Arc<Mutex<Vec<String>>>;

/// The server behind.
#[derive(Debug, Clone)]
pub(crate) struct Behind {
    pub(crate) port: u16,
    pub(crate) seen: Seen,
    tls: Arc<ServerConfig>,
}

const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of one request: more is cut.
const LONGEST: usize = 1 << 20;

impl Behind {
    /// Listens on a free port of every address of loopback, for TCP and UDP.
    pub(crate) fn start(tls: Arc<ServerConfig>) -> io::Result<Behind> {
        let listener = TcpListener::bind("0.0.0.0:0")?;
        let port = listener.local_addr()?.port();
        let behind = Behind {
            port,
            seen: Seen::default(),
            tls,
        };
        if let Ok(socket) = UdpSocket::bind(("0.0.0.0", port)) {
            std::thread::spawn(move || echo(&socket));
        }
        let own = behind.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.tcp(stream));
            }
        });
        Ok(behind)
    }

    /// Listens on a unix socket too, until the file is gone and a last client connects.
    pub(crate) fn listen(&self, path: &Path) -> io::Result<()> {
        let listener = UnixListener::bind(path)?;
        let own = self.clone();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (own, name) = (own.clone(), name.clone());
                std::thread::spawn(move || {
                    let _ = stream.set_read_timeout(Some(PATIENCE));
                    let _ = own.talk(stream, &name);
                });
            }
        });
        Ok(())
    }

    fn tcp(&self, stream: TcpStream) {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let _ = stream.set_nodelay(true);
        let name = stream
            .local_addr()
            .map(|address| address.ip().to_string())
            .unwrap_or_default();
        let mut first = [0];
        if !matches!(stream.peek(&mut first), Ok(1)) {
            return;
        }
        // A client that leaves, or speaks another protocol, is the server's business.
        let _ = if first == [0x16] {
            ServerConnection::new(Arc::clone(&self.tls))
                .map_err(io::Error::other)
                .and_then(|tls| self.talk(StreamOwned::new(tls, stream), &format!("tls {name}")))
        } else {
            self.talk(stream, &name)
        };
    }

    fn talk(&self, mut stream: impl Read + Write, name: &str) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            if buffer.is_empty() && !more(&mut stream, &mut buffer)? {
                return Ok(());
            }
            let goes_on = match buffer[0] {
                1 => self.fastcgi(&mut stream, &mut buffer, name)?,
                0 => self.uwsgi(&mut stream, &mut buffer, name)?,
                b'0'..=b'9' => self.scgi(&mut stream, &mut buffer, name)?,
                b'g' => self.memcached(&mut stream, &mut buffer, name)?,
                _ => self.http(&mut stream, &mut buffer, name)?,
            };
            if !goes_on {
                return Ok(());
            }
        }
    }

    fn http(
        &self,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
        name: &str,
    ) -> io::Result<bool> {
        let end = loop {
            if buffer.starts_with(b"PRI ") {
                return Ok(false);
            }
            if let Some(end) = find(buffer, b"\r\n\r\n") {
                break end;
            }
            if !more(stream, buffer)? {
                return Ok(false);
            }
        };
        let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
        buffer.drain(..end + 4);
        let body = content(&head, stream, buffer)?;
        let seen = self.note(name, &head, &body);
        let target = head.split(' ').nth(1).unwrap_or_default();
        let is_old = head
            .lines()
            .next()
            .is_some_and(|line| line.ends_with("HTTP/1.0"));
        let closes = is_old
            || field(&head, "connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        stream.write_all(&answer(target, &seen, head.starts_with("HEAD "), closes))?;
        Ok(!closes && !target.contains("weir=until-close"))
    }

    /// Notes what was seen, with what cannot be the same twice made equal, and gives it back.
    fn note(&self, name: &str, head: &str, body: &[u8]) -> String {
        let text = format!(
            "{name}\n{}\n{}",
            head.replace('\r', ""),
            String::from_utf8_lossy(body)
        );
        let text = crate::compare::settle(&text);
        if let Ok(mut seen) = self.seen.lock() {
            seen.push(text.clone());
        }
        text
    }

    fn memcached(
        &self,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
        name: &str,
    ) -> io::Result<bool> {
        while find(buffer, b"\r\n").is_none() {
            if !more(stream, buffer)? {
                return Ok(false);
            }
        }
        let line = String::from_utf8_lossy(buffer).trim_end().to_owned();
        buffer.clear();
        self.note(name, &line, b"");
        let key = line.trim_start_matches("get ");
        stream.write_all(format!("VALUE {key} 0 5\r\nvalue\r\nEND\r\n").as_bytes())?;
        Ok(true)
    }

    fn scgi(
        &self,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
        name: &str,
    ) -> io::Result<bool> {
        let colon = loop {
            match find(buffer, b":") {
                Some(colon) => break colon,
                None if !more(stream, buffer)? => return Ok(false),
                None => {}
            }
        };
        let length: usize = String::from_utf8_lossy(&buffer[..colon])
            .parse()
            .unwrap_or(0);
        fill(stream, buffer, colon + 1 + length + 1)?;
        let block: Vec<String> = buffer[colon + 1..colon + 1 + length]
            .split(|byte| *byte == 0)
            .map(|part| String::from_utf8_lossy(part).into_owned())
            .collect();
        let pairs = block
            .chunks_exact(2)
            .map(|pair| (pair[0].clone(), pair[1].clone()));
        let rest = buffer.split_off(colon + length + 2);
        *buffer = rest;
        let answer = self.gateway(name, pairs.collect(), stream, buffer)?;
        stream.write_all(&[b"Status: ", answer.as_slice()].concat())?;
        Ok(false)
    }

    fn uwsgi(
        &self,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
        name: &str,
    ) -> io::Result<bool> {
        fill(stream, buffer, 4)?;
        let length = usize::from(u16::from_le_bytes([buffer[1], buffer[2]]));
        fill(stream, buffer, 4 + length)?;
        let mut pairs = Vec::new();
        let mut at = &buffer[4..4 + length];
        let take = |at: &mut &[u8]| -> Option<String> {
            let length = usize::from(u16::from_le_bytes([*at.first()?, *at.get(1)?]));
            let text = String::from_utf8_lossy(at.get(2..2 + length)?).into_owned();
            *at = &at[2 + length..];
            Some(text)
        };
        while let (Some(name), Some(value)) = (take(&mut at), take(&mut at)) {
            pairs.push((name, value));
        }
        *buffer = buffer.split_off(4 + length);
        let answer = self.gateway(name, pairs, stream, buffer)?;
        stream.write_all(&[b"HTTP/1.1 ", answer.as_slice()].concat())?;
        Ok(false)
    }

    /// The rest of a request of SCGI or uwsgi, and the answer from its status on.
    fn gateway(
        &self,
        name: &str,
        pairs: Vec<(String, String)>,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
    ) -> io::Result<Vec<u8>> {
        let length = pairs.iter().find(|(name, _)| name == "CONTENT_LENGTH");
        let length: usize = length
            .and_then(|(_, value)| value.parse().ok())
            .unwrap_or(0);
        fill(stream, buffer, length.min(LONGEST))?;
        Ok(self.script(name, &pairs, buffer))
    }

    /// What a script answers, from the status on.
    fn script(&self, name: &str, pairs: &[(String, String)], body: &[u8]) -> Vec<u8> {
        let lines = pairs.iter().filter(|(name, _)| name != "REMOTE_PORT");
        let head: Vec<String> = lines
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let seen = self.note(name, &head.join("\n"), body);
        let query = pairs
            .iter()
            .find(|(name, _)| name == "QUERY_STRING" || name == "REQUEST_URI");
        let whole = answer(query.map_or("", |(_, value)| value), &seen, false, true);
        let mut text = whole["HTTP/1.1 ".len()..].to_vec();
        if let Some(at) = find(&text, b"Connection: close\r\n") {
            text.drain(at..at + "Connection: close\r\n".len());
        }
        text
    }

    fn fastcgi(
        &self,
        stream: &mut (impl Read + Write),
        buffer: &mut Vec<u8>,
        name: &str,
    ) -> io::Result<bool> {
        let (mut parameters, mut body) = (Vec::new(), Vec::new());
        let keeps = loop {
            fill(stream, buffer, 8)?;
            let length = usize::from(u16::from_be_bytes([buffer[4], buffer[5]]));
            let whole = 8 + length + usize::from(buffer[6]);
            fill(stream, buffer, whole)?;
            let content = buffer[8..8 + length].to_vec();
            let kind = buffer[1];
            buffer.drain(..whole);
            match kind {
                4 => parameters.extend(content),
                5 if length == 0 => break false,
                5 => body.extend(content),
                _ => {}
            }
        };
        let mut pairs = Vec::new();
        let mut at = parameters.as_slice();
        while let (Some(name), Some(value)) = (fastcgi_length(&mut at), fastcgi_length(&mut at)) {
            if at.len() < name + value {
                break;
            }
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            pairs.push((text(&at[..name]), text(&at[name..name + value])));
            at = &at[name + value..];
        }
        let answer = [b"Status: ".to_vec(), self.script(name, &pairs, &body)].concat();
        let mut records = Vec::new();
        for part in answer.chunks(60000) {
            records.extend([1, 6, 0, 1]);
            records.extend((part.len() as u16).to_be_bytes());
            records.extend([0, 0]);
            records.extend_from_slice(part);
        }
        records.extend([
            1, 6, 0, 1, 0, 0, 0, 0, 1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        stream.write_all(&records)?;
        Ok(keeps)
    }
}

fn fastcgi_length(at: &mut &[u8]) -> Option<usize> {
    let first = *at.first()?;
    if first < 128 {
        *at = &at[1..];
        return Some(usize::from(first));
    }
    let length = u32::from_be_bytes([first & 127, *at.get(1)?, *at.get(2)?, *at.get(3)?]);
    *at = &at[4..];
    usize::try_from(length).ok()
}

/// Status and fields of each kind of answer that `?weir=KIND` asks for.
const KINDS: &[(&str, &str, &str)] = &[
    (
        "redirect",
        "302 Found",
        "Location: http://backend.example/there?x=1\r\nRefresh: 3; url=/later\r\n",
    ),
    ("403", "403 Forbidden", ""),
    ("404", "404 Not Found", ""),
    ("500", "500 Internal Server Error", ""),
    ("503", "503 Service Unavailable", "Retry-After: 7\r\n"),
    ("accel", "200 OK", "X-Accel-Redirect: /index.html\r\n"),
    (
        "cookie",
        "200 OK",
        "Set-Cookie: a=b; path=/; domain=backend.example\r\nSet-Cookie: c=d; HttpOnly\r\n",
    ),
    (
        "cached",
        "200 OK",
        "Cache-Control: public, max-age=60\r\nETag: \"seen\"\r\nVary: Accept-Encoding\r\n",
    ),
    (
        "hidden",
        "200 OK",
        "X-Powered-By: stranger\r\nServer: behind\r\nX-Accel-Buffering: no\r\nP3P: x\r\n",
    ),
    (
        "",
        "200 OK",
        "Last-Modified: Sat, 01 Aug 2020 10:00:00 GMT\r\n",
    ),
];

/// The answer to a request for `target`.
fn answer(target: &str, seen: &str, is_head: bool, closes: bool) -> Vec<u8> {
    let kind = target.split("weir=").nth(1).unwrap_or_default();
    let kind = kind.split('&').next().unwrap_or_default();
    let path = target.split('?').next().unwrap_or_default();
    let media_type = match path.rsplit('.').next() {
        Some("css") => "text/css",
        Some("js") => "application/javascript",
        Some("png") => "image/png",
        Some("json") => "application/json",
        _ => "text/html; charset=utf-8",
    };
    let known = KINDS.iter().find(|(name, _, _)| *name == kind);
    let (_, status, more) = known.unwrap_or(&KINDS[KINDS.len() - 1]);
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\n{more}");
    // Without it nginx makes no ranges of what is stored, and Weir does (docs/compat.md, Caching).
    if status.starts_with("200") {
        head.push_str("Accept-Ranges: bytes\r\n");
    }
    if closes {
        head.push_str("Connection: close\r\n");
    }
    let is_chunked = kind == "chunked" && !closes;
    let framing = match kind {
        _ if is_chunked => "Transfer-Encoding: chunked\r\n".to_owned(),
        "until-close" | "chunked" => String::new(),
        _ => format!("Content-Length: {}\r\n", seen.len()),
    };
    let content = match (is_head, is_chunked) {
        (true, _) => String::new(),
        (false, true) => format!("{:x}\r\n{seen}\r\n0\r\n\r\n", seen.len()),
        (false, false) => seen.to_owned(),
    };
    format!("{head}{framing}\r\n{content}").into_bytes()
}

/// The content of a request whose head this is.
fn content(head: &str, stream: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<Vec<u8>> {
    if field(head, "transfer-encoding").is_some() {
        while find(buffer, b"0\r\n\r\n").is_none() && more(stream, buffer)? {}
        return Ok(std::mem::take(buffer));
    }
    let length: usize = field(head, "content-length")
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let length = length.min(LONGEST);
    fill(stream, buffer, length)?;
    let rest = buffer.split_off(length);
    Ok(std::mem::replace(buffer, rest))
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().skip(1).find_map(|line| {
        let (field, value) = line.split_once(':')?;
        field.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn fill(stream: &mut impl Read, buffer: &mut Vec<u8>, length: usize) -> io::Result<()> {
    while buffer.len() < length {
        if !more(stream, buffer)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn more(stream: &mut impl Read, buffer: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 16384];
    let count = stream.read(&mut piece)?;
    buffer.extend_from_slice(&piece[..count]);
    Ok(count > 0 && buffer.len() < 2 * LONGEST)
}

/// Where `needle` begins.
pub(crate) fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes
        .windows(needle.len())
        .position(|window| window == needle)
}

fn echo(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    while let Ok((count, peer)) = socket.recv_from(&mut buffer) {
        let _ = socket.send_to(&buffer[..count], peer);
    }
}

/// Answers every question for an address with the one of loopback that stands for the name.
pub(crate) fn name_server() -> io::Result<u16> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let port = socket.local_addr()?.port();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((count, peer)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = resolve(&buffer[..count]) {
                let _ = socket.send_to(&answer, peer);
            }
        }
    });
    Ok(port)
}

fn resolve(question: &[u8]) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut labels = Vec::new();
    loop {
        let length = usize::from(*question.get(at)?);
        if length == 0 {
            break;
        }
        labels.push(
            String::from_utf8_lossy(question.get(at + 1..at + 1 + length)?).to_ascii_lowercase(),
        );
        at += 1 + length;
    }
    let kind = question.get(at + 2)?;
    let end = at + 5;
    let is_address = *kind == 1;
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    answer.extend_from_slice(question.get(12..end)?);
    if is_address {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(crate::addresses::loopback(&labels.join(".")).octets());
    }
    Some(answer)
}
