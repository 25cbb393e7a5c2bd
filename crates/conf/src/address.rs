//! Addresses in a configuration: to listen on, to connect to, and networks.
//!
//! Nothing is resolved here: a name remains a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use base::text::decimal;
use base::{BString, ByteSlice};

use crate::parse::path;

/// A host, and a port or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The host.
    pub host: AddressHost,
    /// The port; `None` if none was written.
    pub port: Option<u16>,
    /// The last port of a range (`8000-8010`); listening only.
    pub last_port: Option<u16>,
}

/// The host of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressHost {
    /// Every IPv4 address of this machine: `*`, or only a port.
    Any,
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address, written in brackets.
    V6(Ipv6Addr),
    /// A name.
    Name(BString),
    /// A UNIX socket.
    Unix(PathBuf),
}

/// The maximum length of a UNIX socket's path: the kernel's structure has 108 bytes, including the
/// closing NUL.
pub const MAX_UNIX_PATH: usize = 107;

impl HostPort {
    /// An address to listen on: `80`, `*:80`, `127.0.0.1`, `[::]:80`, `name:80`, `8000-8010`,
    /// `unix:path`. The error is nginx's.
    pub fn parse_listen(text: &[u8]) -> Result<HostPort, &'static str> {
        AddressReader { listen: true }.address(text)
    }

    /// The address of a peer: as for listening, but without `*`, a port alone or a range.
    pub fn parse_peer(text: &[u8]) -> Result<HostPort, &'static str> {
        AddressReader { listen: false }.address(text)
    }

    /// The address of a peer and the rest of a URL: `host:port/uri`, `unix:path:/uri`.
    pub fn peer_and_uri(text: &[u8]) -> Result<(HostPort, &[u8]), &'static str> {
        if let Some(rest) = strip_unix(text) {
            let end = rest.find_byte(b':').unwrap_or(rest.len());
            let uri = rest.get(end + 1..).unwrap_or_default();
            return Ok((AddressReader { listen: false }.unix(&rest[..end])?, uri));
        }
        // Neither occurs within brackets.
        let end = text
            .iter()
            .position(|byte| matches!(byte, b'/' | b'?'))
            .unwrap_or(text.len());
        let (host, uri) = text.split_at(end);
        Ok((AddressReader { listen: false }.address(host)?, uri))
    }

    /// The IP address, if it is one; `Any` is `0.0.0.0`.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.host {
            AddressHost::Any => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            AddressHost::V4(ip) => Some(IpAddr::V4(ip)),
            AddressHost::V6(ip) => Some(IpAddr::V6(ip)),
            AddressHost::Name(_) | AddressHost::Unix(_) => None,
        }
    }
}

fn strip_unix(text: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = text.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case(b"unix:").then_some(rest)
}

struct AddressReader {
    listen: bool,
}

impl AddressReader {
    fn address(&self, text: &[u8]) -> Result<HostPort, &'static str> {
        if let Some(rest) = strip_unix(text) {
            return self.unix(rest);
        }
        if let Some(rest) = text.strip_prefix(b"[") {
            return self.bracketed(rest);
        }
        if text.iter().any(|byte| matches!(byte, b'/' | b'?')) {
            return Err("invalid host");
        }
        if let Some(colon) = text.find_byte(b':') {
            let (port, last_port) = self.ports(&text[colon + 1..])?;
            return Ok(HostPort {
                host: self.host(&text[..colon])?,
                port: Some(port),
                last_port,
            });
        }
        if self.listen && text.first().is_some_and(u8::is_ascii_digit) && looks_like_ports(text) {
            let (port, last_port) = self.ports(text)?;
            return Ok(HostPort {
                host: AddressHost::Any,
                port: Some(port),
                last_port,
            });
        }
        Ok(HostPort {
            host: self.host(text)?,
            port: None,
            last_port: None,
        })
    }

    fn unix(&self, text: &[u8]) -> Result<HostPort, &'static str> {
        match text.len() {
            0 => Err("no path in the unix domain socket"),
            1..=MAX_UNIX_PATH => {
                let host = AddressHost::Unix(path(text).to_owned());
                Ok(HostPort {
                    host,
                    port: None,
                    last_port: None,
                })
            }
            _ => Err("too long path in the unix domain socket"),
        }
    }

    /// An IPv6 address, after the opening bracket.
    fn bracketed(&self, text: &[u8]) -> Result<HostPort, &'static str> {
        let close = text.find_byte(b']').ok_or("invalid host")?;
        if text[close..].contains(&b'/') {
            return Err("invalid host");
        }
        let (port, last_port) = match &text[close + 1..] {
            [] => (None, None),
            [b':', ports @ ..] => {
                let (port, last_port) = self.ports(ports)?;
                (Some(port), last_port)
            }
            _ => return Err("invalid host"),
        };
        if close == 0 {
            return Err("no host");
        }
        let ip = text[..close]
            .to_str()
            .ok()
            .and_then(|text| text.parse().ok());
        Ok(HostPort {
            host: AddressHost::V6(ip.ok_or("invalid IPv6 address")?),
            port,
            last_port,
        })
    }

    fn host(&self, text: &[u8]) -> Result<AddressHost, &'static str> {
        if text.is_empty() {
            return Err("no host");
        }
        if self.listen && text == b"*" {
            return Ok(AddressHost::Any);
        }
        Ok(ipv4(text).map_or_else(|| AddressHost::Name(text.into()), AddressHost::V4))
    }

    fn ports(&self, text: &[u8]) -> Result<(u16, Option<u16>), &'static str> {
        let dash = if self.listen {
            text.find_byte(b'-')
        } else {
            None
        };
        let Some(dash) = dash else {
            return Ok((port(text)?, None));
        };
        let (last, first) = (port(&text[dash + 1..])?, port(&text[..dash])?);
        if first > last {
            return Err("invalid port range");
        }
        Ok((first, Some(last)))
    }
}

/// Whether a text without a colon is meant as a port or a range: digits, or digits, `-`, digits.
fn looks_like_ports(text: &[u8]) -> bool {
    let mut numbers = text.splitn(2, |&byte| byte == b'-');
    numbers.all(|number| decimal(number).is_some())
}

fn port(text: &[u8]) -> Result<u16, &'static str> {
    let port = decimal(text).and_then(|port| u16::try_from(port).ok());
    port.filter(|&port| port > 0).ok_or("invalid port")
}

/// Four decimal numbers. Like nginx, and unlike the standard library, this accepts leading zeros.
pub fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut numbers = text.split(|&byte| byte == b'.');
    for octet in &mut octets {
        *octet = u8::try_from(decimal(numbers.next()?)?).ok()?;
    }
    numbers.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// An IPv4 address, or an IPv6 address without brackets.
pub fn ip(text: &[u8]) -> Option<IpAddr> {
    match ipv4(text) {
        Some(ip) => Some(IpAddr::V4(ip)),
        None => text.to_str().ok()?.parse().ok().map(IpAddr::V6),
    }
}

/// A network: an address and the number of bits that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cidr {
    /// Of IPv4 addresses. Bits after the prefix are zero.
    V4 {
        /// The address as a number.
        address: u32,
        /// The bits that matter.
        mask: u32,
    },
    /// Of IPv6 addresses. Bits after the prefix are zero.
    V6 {
        /// The address as a number.
        address: u128,
        /// The bits that matter.
        mask: u128,
    },
}

impl Cidr {
    /// Parses `10.0.0.0/8`, `2001:db8::/32` or a single address. The flag is false if bits after
    /// the prefix were set; they are cleared, and nginx warns.
    pub fn parse(text: &[u8]) -> Option<(Cidr, bool)> {
        let slash = text.find_byte(b'/');
        let address = ip(&text[..slash.unwrap_or(text.len())])?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = match slash {
            Some(slash) => decimal(&text[slash + 1..]).and_then(|bits| u32::try_from(bits).ok())?,
            None => width,
        };
        if bits > width {
            return None;
        }
        let (given, cidr) = match address {
            IpAddr::V4(ip) => {
                let (given, mask) = (ip.to_bits(), u32::MAX.checked_shl(32 - bits).unwrap_or(0));
                (
                    u128::from(given),
                    Cidr::V4 {
                        address: given & mask,
                        mask,
                    },
                )
            }
            IpAddr::V6(ip) => {
                let (given, mask) = (ip.to_bits(), u128::MAX.checked_shl(128 - bits).unwrap_or(0));
                (
                    given,
                    Cidr::V6 {
                        address: given & mask,
                        mask,
                    },
                )
            }
        };
        let kept = match cidr {
            Cidr::V4 { address, .. } => u128::from(address),
            Cidr::V6 { address, .. } => address,
        };
        Some((cidr, given == kept))
    }

    /// Whether the network contains an address. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, ip: IpAddr) -> bool {
        match (self, ip.to_canonical()) {
            (Cidr::V4 { address, mask }, IpAddr::V4(ip)) => ip.to_bits() & mask == *address,
            (Cidr::V6 { address, mask }, IpAddr::V6(ip)) => ip.to_bits() & mask == *address,
            (Cidr::V6 { address, mask }, IpAddr::V4(ip)) => {
                ip.to_ipv6_mapped().to_bits() & mask == *address
            }
            (Cidr::V4 { .. }, IpAddr::V6(_)) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(text: &str) -> Result<HostPort, &'static str> {
        HostPort::parse_listen(text.as_bytes())
    }

    fn address(host: AddressHost, port: u16) -> Result<HostPort, &'static str> {
        Ok(HostPort {
            host,
            port: Some(port),
            last_port: None,
        })
    }

    #[test]
    fn listening() {
        let loopback = AddressHost::V4(Ipv4Addr::LOCALHOST);
        assert_eq!(listen("80"), address(AddressHost::Any, 80));
        assert_eq!(listen("*:80"), address(AddressHost::Any, 80));
        assert_eq!(listen("127.0.0.1:80"), address(loopback.clone(), 80));
        assert_eq!(
            listen("[::1]:80"),
            address(AddressHost::V6(Ipv6Addr::LOCALHOST), 80)
        );
        assert_eq!(
            listen("example.org:80"),
            address(AddressHost::Name("example.org".into()), 80)
        );
        assert_eq!(
            listen("127.0.0.1"),
            Ok(HostPort {
                host: loopback,
                port: None,
                last_port: None
            })
        );
        let range = HostPort {
            host: AddressHost::Any,
            port: Some(8000),
            last_port: Some(8010),
        };
        assert_eq!(listen("8000-8010"), Ok(range.clone()));
        assert_eq!(listen("*:8000-8010"), Ok(range));
        let socket = AddressHost::Unix("/run/weir.sock".into());
        assert_eq!(
            listen("UNIX:/run/weir.sock"),
            Ok(HostPort {
                host: socket,
                port: None,
                last_port: None
            })
        );
    }

    #[test]
    fn refusals_have_a_reason() {
        for (text, reason) in [
            ("", "no host"),
            (":80", "no host"),
            ("0", "invalid port"),
            ("65536", "invalid port"),
            ("*:x", "invalid port"),
            ("*:80-70", "invalid port range"),
            ("90-80", "invalid port range"),
            ("a/b", "invalid host"),
            ("[::1", "invalid host"),
            ("[::1]80", "invalid host"),
            ("[]:80", "no host"),
            ("[::g]", "invalid IPv6 address"),
            ("unix:", "no path in the unix domain socket"),
        ] {
            assert_eq!(listen(text), Err(reason), "{text}");
        }
        let long = format!("unix:{}", "x".repeat(MAX_UNIX_PATH));
        assert!(listen(&long).is_ok());
        assert_eq!(
            listen(&format!("{long}x")),
            Err("too long path in the unix domain socket")
        );
    }

    #[test]
    fn peers_have_neither_wildcards_nor_ranges() {
        assert_eq!(
            HostPort::parse_peer(b"80"),
            Ok(HostPort {
                host: AddressHost::Name("80".into()),
                port: None,
                last_port: None
            })
        );
        assert_eq!(HostPort::parse_peer(b"a:80-81"), Err("invalid port"));
    }

    #[test]
    fn a_uri_may_follow_a_peer() {
        let uri = |text: &'static str| {
            HostPort::peer_and_uri(text.as_bytes()).map(|(_, uri)| uri.to_str_lossy())
        };
        assert_eq!(uri("a:80/b:c?d"), Ok("/b:c?d".into()));
        assert_eq!(uri("a?x"), Ok("?x".into()));
        assert_eq!(uri("a"), Ok("".into()));
        assert_eq!(uri("[::1]:80/b"), Ok("/b".into()));
        assert_eq!(uri("unix:/run/s:/b"), Ok("/b".into()));
        assert_eq!(uri("unix:/run/s"), Ok("".into()));
    }

    #[test]
    fn networks() {
        let contains = |cidr: &str, address: &str| {
            let (cidr, _) = Cidr::parse(cidr.as_bytes()).unwrap();
            cidr.contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.0"));
        assert!(contains("0.0.0.0/0", "1.2.3.4"));
        assert!(!contains("0.0.0.0/0", "::1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(contains("2001:db8::/32", "2001:db8:1::"));
        assert!(contains("::/0", "1.2.3.4"));
        assert!(contains("::1", "::1"));
        assert_eq!(
            Cidr::parse(b"10.1.0.0/8").map(|(_, exact)| exact),
            Some(false)
        );
        assert_eq!(
            Cidr::parse(b"10.0.0.0/8").map(|(_, exact)| exact),
            Some(true)
        );
        for wrong in [
            "",
            "/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0/8",
            "::/129",
            "a",
            "1.2.3.4.5",
            "256.0.0.1",
        ] {
            assert_eq!(Cidr::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
