//! Addresses as a configuration writes them: where to listen, whom to connect to, which network.
//!
//! Nothing is resolved here: a name stays a name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use base::text::decimal;
use base::{BString, ByteSlice};

use crate::parse::path;

/// A host, and a port or a range of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whom.
    pub host: Host,
    /// The port; `None` if none was written.
    pub port: Option<u16>,
    /// The last port of a range (`8000-8010`); listening only.
    pub last_port: Option<u16>,
}

/// Whom an address names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
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

/// Bytes of a UNIX socket's path: the field of the system call holds 108 with the closing NUL.
pub const MAX_UNIX_PATH: usize = 107;

impl Address {
    /// An address to listen on: `80`, `*:80`, `127.0.0.1`, `[::]:80`, `name:80`, `8000-8010`, `unix:path`. The
    /// error is nginx's reason.
    pub fn listen(text: &[u8]) -> Result<Address, &'static str> {
        Reader { listen: true }.address(text)
    }

    /// The address of a peer: as for listening, without `*`, a lone port or a range.
    pub fn peer(text: &[u8]) -> Result<Address, &'static str> {
        Reader { listen: false }.address(text)
    }

    /// The address of a peer with what follows it in a URL: `host:port/uri`, `unix:path:/uri`.
    pub fn peer_and_uri(text: &[u8]) -> Result<(Address, &[u8]), &'static str> {
        if let Some(rest) = strip_unix(text) {
            let end = rest.find_byte(b':').unwrap_or(rest.len());
            let uri = rest.get(end + 1..).unwrap_or_default();
            return Ok((Reader { listen: false }.unix(&rest[..end])?, uri));
        }
        // Inside brackets there is neither.
        let end = text
            .iter()
            .position(|byte| matches!(byte, b'/' | b'?'))
            .unwrap_or(text.len());
        let (host, uri) = text.split_at(end);
        Ok((Reader { listen: false }.address(host)?, uri))
    }

    /// The IP address, if it is one; `Any` is `0.0.0.0`.
    pub fn ip(&self) -> Option<IpAddr> {
        match self.host {
            Host::Any => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            Host::V4(ip) => Some(IpAddr::V4(ip)),
            Host::V6(ip) => Some(IpAddr::V6(ip)),
            Host::Name(_) | Host::Unix(_) => None,
        }
    }
}

fn strip_unix(text: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = text.split_at_checked(5)?;
    scheme.eq_ignore_ascii_case(b"unix:").then_some(rest)
}

struct Reader {
    listen: bool,
}

impl Reader {
    fn address(&self, text: &[u8]) -> Result<Address, &'static str> {
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
            return Ok(Address {
                host: self.host(&text[..colon])?,
                port: Some(port),
                last_port,
            });
        }
        if self.listen && text.first().is_some_and(u8::is_ascii_digit) && looks_like_ports(text) {
            let (port, last_port) = self.ports(text)?;
            return Ok(Address {
                host: Host::Any,
                port: Some(port),
                last_port,
            });
        }
        Ok(Address {
            host: self.host(text)?,
            port: None,
            last_port: None,
        })
    }

    fn unix(&self, text: &[u8]) -> Result<Address, &'static str> {
        match text.len() {
            0 => Err("no path in the unix domain socket"),
            1..=MAX_UNIX_PATH => {
                let host = Host::Unix(path(text).to_owned());
                Ok(Address {
                    host,
                    port: None,
                    last_port: None,
                })
            }
            _ => Err("too long path in the unix domain socket"),
        }
    }

    /// After the opening bracket.
    fn bracketed(&self, text: &[u8]) -> Result<Address, &'static str> {
        let close = text.find_byte(b']').ok_or("invalid host")?;
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
        Ok(Address {
            host: Host::V6(ip.ok_or("invalid IPv6 address")?),
            port,
            last_port,
        })
    }

    fn host(&self, text: &[u8]) -> Result<Host, &'static str> {
        if text.is_empty() {
            return Err("no host");
        }
        if self.listen && text == b"*" {
            return Ok(Host::Any);
        }
        Ok(ipv4(text).map_or_else(|| Host::Name(text.into()), Host::V4))
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

/// Four decimal numbers. Unlike the standard library this takes leading zeros, because nginx does.
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

/// A network: an address and the number of bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cidr {
    /// Of IPv4 addresses. Bits after the prefix are zero.
    V4 {
        /// The address as a number.
        address: u32,
        /// Ones where the address counts.
        mask: u32,
    },
    /// Of IPv6 addresses. Bits after the prefix are zero.
    V6 {
        /// The address as a number.
        address: u128,
        /// Ones where the address counts.
        mask: u128,
    },
}

impl Cidr {
    /// Reads `10.0.0.0/8`, `2001:db8::/32` or a lone address. The flag is false if bits after the prefix were
    /// set; they are cleared.
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

    /// Whether an address is in the network. An IPv4 address that is written as an IPv6 one counts as IPv4.
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
