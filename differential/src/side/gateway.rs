//! The protocols of the servers behind, as far as a script needs them: where a request ends, and how an answer is packed.

use std::fmt::Write as _;

use crate::case::Protocol;

use super::upstream::{Received, Wire};

/// Reads a request; `None` when the connection ended before one began.
pub fn read(protocol: Protocol, wire: &mut Wire) -> Option<Received> {
    let read = match protocol {
        Protocol::Http => http(wire),
        Protocol::FastCgi => fastcgi(wire),
        Protocol::Uwsgi => uwsgi(wire),
        Protocol::Scgi => scgi(wire),
        Protocol::Memcached => memcached(wire),
        // Frames need what came before them: `grpc`.
        Protocol::Tcp | Protocol::Udp | Protocol::Dns | Protocol::Grpc => bytes(wire),
    };
    if read.is_none() && !wire.bytes.is_empty() {
        return Some(Received {
            head: wire.all(),
            cut: true,
            ..Received::default()
        });
    }
    read
}

/// In front of bytes of FastCGI that are records already, whole or not.
pub const RAW: u8 = 0;

/// Packs a part of an answer.
pub fn wrap(protocol: Protocol, bytes: &[u8]) -> Vec<u8> {
    if let (Protocol::FastCgi, Some((&RAW, records))) = (protocol, bytes.split_first()) {
        return records.to_vec();
    }
    if protocol != Protocol::FastCgi {
        return bytes.to_vec();
    }
    // Records of FCGI_STDOUT for the request 1.
    let mut out = Vec::new();
    for part in bytes.chunks(0xffff) {
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes();
        out.extend_from_slice(&[1, 6, 0, 1, length[0], length[1], 0, 0]);
        out.extend_from_slice(part);
    }
    out
}

/// What ends an answer.
pub fn end(protocol: Protocol) -> &'static [u8] {
    match protocol {
        // FCGI_END_REQUEST of the request 1: FCGI_REQUEST_COMPLETE, code 0.
        Protocol::FastCgi => &[1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        _ => &[],
    }
}

/// True where a connection may have another request.
pub fn stays(protocol: Protocol) -> bool {
    !matches!(protocol, Protocol::Uwsgi | Protocol::Scgi)
}

fn http(wire: &mut Wire) -> Option<Received> {
    let head = wire.until(b"\r\n\r\n")?;
    let text = String::from_utf8_lossy(&head).into_owned();
    let field = |name: &str| {
        text.lines().skip(1).find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field
                .eq_ignore_ascii_case(name)
                .then(|| value.trim().to_owned())
        })
    };
    let mut received = Received {
        head,
        framing: "none",
        ..Received::default()
    };
    if field("Transfer-Encoding").is_some() {
        received.framing = "chunked";
        received.cut = !chunks(wire, &mut received.body);
    } else if let Some(length) = field("Content-Length").and_then(|text| text.parse().ok()) {
        received.framing = "length";
        match wire.take(length) {
            Some(body) => received.body = body,
            None => {
                received.body = wire.all();
                received.cut = true;
            }
        }
    }
    Some(received)
}

/// False when the connection ends, or what comes are no chunks.
fn chunks(wire: &mut Wire, body: &mut Vec<u8>) -> bool {
    loop {
        let Some(line) = wire.until(b"\r\n") else {
            return false;
        };
        let text = String::from_utf8_lossy(&line).into_owned();
        let Ok(size) = usize::from_str_radix(text.trim(), 16) else {
            return false;
        };
        if size == 0 {
            while let Some(line) = wire.until(b"\r\n") {
                if line == b"\r\n" {
                    return true;
                }
                // Trailers are told as content, so that they are compared.
                body.extend_from_slice(&line);
            }
            return false;
        }
        let Some(data) = wire.take(size) else {
            body.extend(wire.all());
            return false;
        };
        body.extend(data);
        if wire.take(2).is_none_or(|end| end != b"\r\n") {
            return false;
        }
    }
}

fn fastcgi(wire: &mut Wire) -> Option<Received> {
    let (mut parameters, mut received) = (Vec::new(), Received::default());
    loop {
        let header = wire.take(8)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let mut content = wire.take(length + usize::from(header[6]))?;
        content.truncate(length);
        match header[1] {
            1 if content.get(2).is_some_and(|flags| flags & 1 == 1) => received.framing = "keep",
            1 => received.framing = "close",
            4 => parameters.extend(content),
            5 if content.is_empty() => {
                received.head = shown(&fastcgi_pairs(&parameters));
                return Some(received);
            }
            5 => received.body.extend(content),
            _ => {}
        }
    }
}

fn fastcgi_pairs(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    fn length(bytes: &mut &[u8]) -> Option<usize> {
        let (&first, rest) = bytes.split_first()?;
        if first < 128 {
            *bytes = rest;
            return Some(usize::from(first));
        }
        let (word, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        usize::try_from(u32::from_be_bytes(*word) & 0x7fff_ffff).ok()
    }
    let mut pairs = Vec::new();
    while let (Some(name), Some(value)) = (length(&mut bytes), length(&mut bytes)) {
        let Some((pair, rest)) = bytes.split_at_checked(name.saturating_add(value)) else {
            break;
        };
        let (name, value) = pair.split_at(name);
        pairs.push((name.to_vec(), value.to_vec()));
        bytes = rest;
    }
    pairs
}

fn uwsgi(wire: &mut Wire) -> Option<Received> {
    let header = wire.take(4)?;
    let size = usize::from(u16::from_le_bytes([header[1], header[2]]));
    let block = wire.take(size)?;
    let mut pairs = Vec::new();
    let mut rest = block.as_slice();
    while let (Some(name), Some(value)) = (short(&mut rest), short(&mut rest)) {
        pairs.push((name, value));
    }
    Some(with_content(wire, &pairs))
}

fn short(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (text, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *bytes = rest;
    Some(text.to_vec())
}

fn scgi(wire: &mut Wire) -> Option<Received> {
    let length = wire.until(b":")?;
    let length = String::from_utf8_lossy(&length[..length.len() - 1])
        .parse()
        .ok()?;
    let block = wire.take(length)?;
    wire.take(1)?;
    let mut words = block.split(|byte| *byte == 0);
    let mut pairs = Vec::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        pairs.push((name.to_vec(), value.to_vec()));
    }
    Some(with_content(wire, &pairs))
}

/// Reads the content that `CONTENT_LENGTH` announces.
fn with_content(wire: &mut Wire, pairs: &[(Vec<u8>, Vec<u8>)]) -> Received {
    let length = pairs.iter().find(|(name, _)| name == b"CONTENT_LENGTH");
    let length = length.and_then(|(_, value)| String::from_utf8_lossy(value).parse().ok());
    let body = wire.take(length.unwrap_or(0));
    Received {
        head: shown(pairs),
        framing: "length",
        cut: body.is_none(),
        body: body.unwrap_or_else(|| wire.all()),
        ..Received::default()
    }
}

fn shown(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut out = String::new();
    for (name, value) in pairs {
        let (name, value) = (name.escape_ascii(), value.escape_ascii());
        let _ = writeln!(out, "{name}: {value}\r");
    }
    out.into_bytes()
}

fn memcached(wire: &mut Wire) -> Option<Received> {
    Some(Received {
        head: wire.until(b"\r\n")?,
        framing: "line",
        ..Received::default()
    })
}

fn bytes(wire: &mut Wire) -> Option<Received> {
    if wire.bytes.is_empty() && !wire.more() {
        return None;
    }
    Some(Received {
        body: wire.all(),
        ..Received::default()
    })
}
