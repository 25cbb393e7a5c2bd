//! The host of a request, from the Host field or the target: validated and normalised as nginx
//! does.
//!
//! Valid are a reg-name or an IP-literal (RFC 3986, section 3.2.2), with an optional port.

use std::net::Ipv6Addr;

use memchr::memchr_iter;

use crate::h1::is_ip_literal_byte;

/// A valid host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UriHost<'a> {
    /// The name as sent, without port and final dot; not in lower case.
    pub name: &'a [u8],
    /// The port, if there is one with digits.
    pub port: Option<u16>,
}

/// The value is not a valid host: 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost;

impl UriHost<'_> {
    /// Appends the name in lower case: `$host`.
    pub fn write_lowercase(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.name);
        out[start..].make_ascii_lowercase();
    }
}

/// Parses `host[:port]`. The port may be empty.
pub fn parse(text: &[u8]) -> Result<UriHost<'_>, InvalidHost> {
    let (name, rest) = match text.first() {
        Some(b'[') => split_literal(text)?,
        _ => split_name(text)?,
    };
    let port = match rest {
        [] => None,
        [b':', digits @ ..] => parse_port(digits)?,
        _ => return Err(InvalidHost),
    };
    // `example.com.` is the same host, fully qualified.
    let name = name.strip_suffix(b".").unwrap_or(name);
    if name.is_empty() {
        return Err(InvalidHost);
    }
    Ok(UriHost { name, port })
}

/// Splits off an IP-literal, `[…]`.
fn split_literal(text: &[u8]) -> Result<(&[u8], &[u8]), InvalidHost> {
    let inside = text[1..]
        .iter()
        .take_while(|&&b| is_ip_literal_byte(b))
        .count();
    if text.get(1 + inside) != Some(&b']') {
        return Err(InvalidHost);
    }
    if !is_address(&text[1..=inside]) {
        return Err(InvalidHost);
    }
    Ok(text.split_at(inside + 2))
}

/// Whether this is an IPv6 address, or one of a future version: `v`, hexadecimal digits, a dot and
/// something.
fn is_address(text: &[u8]) -> bool {
    if let Some(future) = text.strip_prefix(b"v").or_else(|| text.strip_prefix(b"V")) {
        let mut parts = future.splitn(2, |&byte| byte == b'.');
        let version = parts.next().unwrap_or_default();
        let address = parts.next().unwrap_or_default();
        return !version.is_empty()
            && version.iter().all(u8::is_ascii_hexdigit)
            && !address.is_empty()
            && !address.windows(2).any(|pair| pair == b"..");
    }
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

fn split_name(text: &[u8]) -> Result<(&[u8], &[u8]), InvalidHost> {
    let (name, rest) = text.split_at(text.iter().position(|&b| b == b':').unwrap_or(text.len()));
    let mut before = 0;
    for &byte in name {
        // `..` means nothing in a name, but much in a path that contains `$host`.
        if !NAME_BYTES[usize::from(byte)] || (byte == b'.' && before == b'.') {
            return Err(InvalidHost);
        }
        before = byte;
    }
    if !are_escapes_whole(name) {
        return Err(InvalidHost);
    }
    Ok((name, rest))
}

/// Whether two hexadecimal digits follow each `%`.
fn are_escapes_whole(name: &[u8]) -> bool {
    memchr_iter(b'%', name).all(|at| {
        let digits = name.get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

/// The bytes of a reg-name (RFC 3986, section 3.2.2). A table, since each byte of each request's
/// host is looked up.
const NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_ip_literal_byte(byte as u8) || byte as u8 == b'%';
        byte += 1;
    }
    table
};

fn parse_port(digits: &[u8]) -> Result<Option<u16>, InvalidHost> {
    let mut port: Option<u16> = None;
    for byte in digits {
        if !byte.is_ascii_digit() {
            return Err(InvalidHost);
        }
        let next = port
            .unwrap_or(0)
            .checked_mul(10)
            .and_then(|p| p.checked_add(u16::from(byte - b'0')));
        port = Some(next.ok_or(InvalidHost)?);
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Option<(String, Option<u16>)> {
        let host = parse(text.as_bytes()).ok()?;
        let mut name = Vec::new();
        host.write_lowercase(&mut name);
        Some((String::from_utf8(name).expect("hosts are ASCII"), host.port))
    }

    #[test]
    fn names_ports_and_literals_are_split() {
        for (text, name, port) in [
            ("l", "l", None),
            ("Example.COM", "example.com", None),
            ("example.com:8080", "example.com", Some(8080)),
            ("example.com:", "example.com", None),
            ("example.com.", "example.com", None),
            ("example.com.:88", "example.com", Some(88)),
            ("a_b~!$&'()*+,;=%41", "a_b~!$&'()*+,;=%41", None),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("h:0", "h", Some(0)),
            ("h:00080", "h", Some(80)),
            (".h", ".h", None),
            ("[::1]", "[::1]", None),
            ("[::FFFF:1.2.3.4]:443", "[::ffff:1.2.3.4]", Some(443)),
            ("[v1.a:b]", "[v1.a:b]", None),
            ("[VF0.x]", "[vf0.x]", None),
        ] {
            assert_eq!(host(text), Some((name.to_string(), port)), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for text in [
            "",
            ".",
            ":",
            ":80",
            ".:80",
            "a..b",
            "..",
            "a b",
            "a/b",
            "a\\b",
            "a?b",
            "a#b",
            "a@b",
            "a\tb",
            "a\0b",
            "a\"b",
            "h:65536",
            "h:99999999999999999999",
            "h:8x",
            "h:80:80",
            "h:-1",
            "h:1.2",
            "[::1",
            "[::1]x",
            "[::1].",
            "[::1].:80",
            "x[::1]",
            "[]",
            "[zz]",
            "[1.2.3.4]",
            "[::1%1]",
            "[:::1]",
            "[v.a]",
            "[v1.]",
            "[v1]",
            "[vx.a]",
            "a%",
            "a%4",
            "a%zz",
            "%",
            "[a..b]",
            "[v1.a..b]",
            "[a b]",
            "[a%b]",
            "[[::1]]",
            "]",
            "h\u{e9}",
        ] {
            assert_eq!(host(text), None, "{text}");
        }
    }

    #[test]
    fn every_host_of_up_to_three_bytes_is_answered_and_never_unclean() {
        for length in 0..=3u32 {
            // Every class of byte that the grammar distinguishes, and two that it refuses.
            let alphabet = b"aZ0.:[]-_%/\x00\xff";
            for number in 0..(alphabet.len() as u32).pow(length) {
                let text: Vec<u8> = (0..length)
                    .map(|i| alphabet[(number / 13u32.pow(i)) as usize % 13])
                    .collect();
                if let Ok(host) = parse(&text) {
                    assert!(
                        !host.name.is_empty()
                            && !host.name.contains(&b'/')
                            && !host.name.contains(&0)
                    );
                    assert!(!host.name.ends_with(b"."), "{text:?}");
                    assert!(text.starts_with(host.name));
                }
            }
        }
    }
}
