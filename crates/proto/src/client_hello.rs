//! The ClientHello: what a TLS client's first message says in plain text about server name,
//! versions and protocols.
//!
//! Nothing is decrypted and nothing answered: this serves proxies that pass connections on by name.
//! The message may be spread over several records (RFC 8446, section 5.1), at any byte. The result
//! is what nginx's `ssl_preread` has:
//!
//! ```text
//! record      16 03 vv len len                                    again and again
//! handshake     01 len len len  03 vv  random[32]  session<1>  suites<2>  compression<1>  extensions<2>
//! extension       type type len len  …       0: names, 16: application protocols, 43: versions
//! ```

use crate::tls_cursor::TlsCursor;

/// Parses a ClientHello.
#[derive(Clone, Debug, Default)]
pub struct ClientHelloReader {
    /// The length of the complete records that were parsed.
    at: usize,
    /// The content of those records.
    message: Vec<u8>,
}

/// The content of a ClientHello.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The client's newest version, as on the wire. It is `0304` whenever the client sends a list
    /// of versions, since only clients that know TLS 1.3 do.
    pub version: [u8; 2],
    /// The requested host name; empty if there is none (RFC 6066, section 3). The bytes are the
    /// client's, and not checked.
    pub server_name: Vec<u8>,
    /// The client's application protocols, separated by commas (RFC 7301).
    pub alpn_protocols: Vec<u8>,
}

/// The result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloProgress {
    /// More input is needed.
    Partial,
    /// This is not a ClientHello, or an invalid one.
    NotHello,
    /// The complete message.
    Complete(ClientHello),
}

impl ClientHello {
    /// OpenSSL's name for the version; empty if it has none.
    pub fn version_name(&self) -> &'static str {
        match self.version {
            [0, 2] => "SSLv2",
            [3, 0] => "SSLv3",
            [3, 1] => "TLSv1",
            [3, 2] => "TLSv1.1",
            [3, 3] => "TLSv1.2",
            [3, 4] => "TLSv1.3",
            _ => "",
        }
    }
}

const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

impl ClientHelloReader {
    /// Parses `input`, which is everything the client has sent so far, and only grows from call to
    /// call. Keeps at most a copy of it.
    pub fn read(&mut self, input: &[u8]) -> HelloProgress {
        while let Some(&[kind, major, b2, b3, b4]) = input
            .get(self.at..)
            .and_then(<[u8]>::first_chunk::<RECORD_HEADER>)
        {
            // The hello of SSL 2, by which clients once offered newer versions.
            if kind & 0x80 != 0 && b2 == CLIENT_HELLO && (b3 == 0 || b3 == 3) {
                return HelloProgress::Complete(ClientHello {
                    version: [b3, b4],
                    ..ClientHello::default()
                });
            }
            if kind != HANDSHAKE || major != 3 {
                return HelloProgress::NotHello;
            }
            let start = self.at + RECORD_HEADER;
            let end = start + usize::from(u16::from_be_bytes([b3, b4]));
            let Some(content) = input.get(start..end) else {
                break;
            };
            self.message.extend_from_slice(content);
            self.at = end;
            match self.message() {
                HelloProgress::Partial => {}
                done => return done,
            }
        }
        HelloProgress::Partial
    }

    fn message(&self) -> HelloProgress {
        if self
            .message
            .first()
            .is_some_and(|&kind| kind != CLIENT_HELLO)
        {
            return HelloProgress::NotHello;
        }
        let Some(&[_, a, b, c]) = self.message.first_chunk::<MESSAGE_HEADER>() else {
            return HelloProgress::Partial;
        };
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        match self.message[MESSAGE_HEADER..].get(..length) {
            None => HelloProgress::Partial,
            Some(body) => match parse_body(TlsCursor(body)) {
                Some(hello) => HelloProgress::Complete(hello),
                None => HelloProgress::NotHello,
            },
        }
    }
}

/// The bytes that remain to be read.
fn parse_body(mut body: TlsCursor) -> Option<ClientHello> {
    let mut hello = ClientHello::default();
    hello.version.copy_from_slice(body.take(2)?);
    body.take(32)?;
    body.short_vector()?;
    body.vector()?;
    body.short_vector()?;
    if body.is_empty() {
        return Some(hello);
    }
    // What is understood in two ways leads to one server here, and is another one's handshake there: each length must fit the
    // next one, and no name stands there twice (RFC 8446, section 4.2; CVE-2026-123640).
    let mut extensions = body.vector()?;
    if !body.is_empty() {
        return None;
    }
    let (mut named, mut protocols) = (false, false);
    while !extensions.is_empty() {
        let kind = extensions.u16()?;
        let content = extensions.vector()?;
        match kind {
            SERVER_NAME => {
                if std::mem::replace(&mut named, true) {
                    return None;
                }
                hello.server_name = server_name(content)?.to_vec();
            }
            ALPN => {
                if std::mem::replace(&mut protocols, true) {
                    return None;
                }
                hello.alpn_protocols = alpn_protocols(content)?;
            }
            SUPPORTED_VERSIONS => {
                names_versions(content)?;
                hello.version = [3, 4];
            }
            _ => {}
        }
    }
    Some(hello)
}

/// Whether there is a list of versions, and nothing else.
fn names_versions(mut content: TlsCursor) -> Option<()> {
    let list = content.short_vector()?;
    (!list.is_empty() && content.is_empty()).then_some(())
}

/// The first name in the list. The only type of name is that of a host, 0.
fn server_name(mut content: TlsCursor<'_>) -> Option<&[u8]> {
    let mut list = content.vector()?;
    if !content.is_empty() || list.u8()? != 0 {
        return None;
    }
    list.vector().map(|name| name.0)
}

fn alpn_protocols(mut content: TlsCursor) -> Option<Vec<u8>> {
    let mut list = content.vector()?;
    if !content.is_empty() {
        return None;
    }
    let mut names = Vec::with_capacity(list.0.len());
    loop {
        let name = list.short_vector().filter(|name| !name.is_empty())?;
        names.extend_from_slice(name.0);
        if list.is_empty() {
            return Some(names);
        }
        names.push(b',');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut out = kind.to_be_bytes().to_vec();
        out.extend((content.len() as u16).to_be_bytes());
        out.extend(content);
        out
    }

    fn listed(entries: &[u8]) -> Vec<u8> {
        [&(entries.len() as u16).to_be_bytes()[..], entries].concat()
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([2, 1, 2]);
        body.extend([0, 2, 0x13, 1]);
        body.extend([1, 0]);
        body.extend(listed(extensions));
        let length = (body.len() as u32).to_be_bytes();
        [&[1][..], &length[1..], &body].concat()
    }

    fn record(content: &[u8]) -> Vec<u8> {
        [&[22, 3, 1][..], &listed(content)].concat()
    }

    fn sample() -> (Vec<u8>, ClientHello) {
        let mut extensions = extension(10, &[0, 2, 0, 29]);
        extensions.extend(extension(0, &listed(b"\0\0\x0bexample.com")));
        extensions.extend(extension(16, &listed(b"\x02h2\x08http/1.1")));
        extensions.extend(extension(43, &[2, 3, 4]));
        let hello = ClientHello {
            version: [3, 4],
            server_name: b"example.com".to_vec(),
            alpn_protocols: b"h2,http/1.1".to_vec(),
        };
        (message(&extensions), hello)
    }

    #[test]
    fn a_hello_is_the_same_however_it_is_cut() {
        let (message, hello) = sample();
        assert_eq!(hello.version_name(), "TLSv1.3");
        for size in 1..=message.len() {
            let wire: Vec<u8> = message.chunks(size).flat_map(record).collect();
            let mut reader = ClientHelloReader::default();
            for end in 0..wire.len() {
                assert_eq!(
                    reader.read(&wire[..end]),
                    HelloProgress::Partial,
                    "{size} {end}"
                );
            }
            assert_eq!(reader.read(&wire), HelloProgress::Complete(hello.clone()));
        }
    }

    #[test]
    fn every_length_that_lies_is_refused_or_waited_for() {
        let (message, hello) = sample();
        for at in 0..message.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut broken = message.clone();
                broken[at] = byte;
                // It must end with some answer; which one depends on the byte.
                let _ = ClientHelloReader::default().read(&record(&broken));
            }
        }
        for end in 0..message.len() {
            let mut cut = message[..end].to_vec();
            let Some(body) = end.checked_sub(MESSAGE_HEADER) else {
                continue;
            };
            cut[1..4].copy_from_slice(&(body as u32).to_be_bytes()[1..]);
            let progress = ClientHelloReader::default().read(&record(&cut));
            assert_ne!(progress, HelloProgress::Complete(hello.clone()), "{end}");
        }
    }

    #[test]
    fn other_protocols_are_not_taken_for_a_hello() {
        for (input, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], HelloProgress::NotHello),
            (b"\x16\x02\x01\0\x01\x01", HelloProgress::NotHello),
            (b"\x16\x03\x01\0\x01\x02", HelloProgress::NotHello),
            (b"\x16\x03\x01\0", HelloProgress::Partial),
            (b"\x16\x03\x01\0\0", HelloProgress::Partial),
            (b"", HelloProgress::Partial),
            (
                b"\x80\x2e\x01\x03\x01\0\0",
                HelloProgress::Complete(ClientHello {
                    version: [3, 1],
                    ..ClientHello::default()
                }),
            ),
        ] {
            assert_eq!(
                ClientHelloReader::default().read(input),
                expected,
                "{input:?}"
            );
        }
    }

    #[test]
    fn extensions_of_another_length_than_they_say_are_broken() {
        let extensions = extension(10, &[0, 2, 0, 29]);
        let whole = message(&extensions);
        let length = whole.len() - extensions.len() - 1;
        for more in [1, 255] {
            let mut other = whole.clone();
            other[length] = other[length].wrapping_add(more);
            assert_eq!(
                ClientHelloReader::default().read(&record(&other)),
                HelloProgress::NotHello
            );
        }
    }

    #[test]
    fn names_of_other_kinds_and_empty_protocols_are_broken() {
        for extensions in [
            extension(0, &listed(b"\x01\0\x01a")),
            extension(0, &listed(b"\0\0\x09a")),
            extension(16, &listed(b"\0")),
            extension(16, &listed(b"")),
            extension(16, &listed(b"\x03h2")),
            // What is behind a list, and what is there twice.
            extension(0, &[&listed(b"\0\0\x01a")[..], b"x"].concat()),
            extension(16, &[&listed(b"\x02h2")[..], b"x"].concat()),
            extension(43, &[2, 3, 4, 3]),
            extension(43, &[4, 3, 4]),
            extension(43, &[0]),
            extension(43, &[]),
            extension(0, &listed(b"\0\0\x01a")).repeat(2),
            extension(16, &listed(b"\x02h2")).repeat(2),
        ] {
            let wire = record(&message(&extensions));
            assert_eq!(
                ClientHelloReader::default().read(&wire),
                HelloProgress::NotHello
            );
        }
    }
}
