//! The PROXY protocol, versions 1 and 2: by it a proxy in front of us tells who the client of a
//! connection is, and we tell a server behind us.
//!
//! ```text
//! version 1   PROXY TCP4 192.0.2.1 192.0.2.2 51234 80 CR LF          at most 107 bytes
//! version 2   0D 0A 0D 0A 00 0D 0A 51 55 49 54 0A   signature
//!             2c    version 2, command c: 0 local, 1 proxy
//!             ft    family f: 1 IPv4, 2 IPv6; transport t: 1 stream
//!             LL LL length of what follows: addresses, ports, then TLVs (type, 2 bytes length, value)
//! ```
//!
//! The specification is doc/proxy-protocol.txt of HAProxy; what is tolerated is nginx's choice.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the fixed part: signature, version and command, family and transport, length.
const V2_HEAD: usize = 16;

/// The largest header that is accepted: nginx's limit.
pub const MAX_HEADER: usize = 4096;
/// The largest header of version 1, by the specification.
pub const MAX_V1: usize = 107;

/// The result of [`parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyHeaderStatus {
    /// The header is incomplete.
    Partial,
    /// The header has this length. Without addresses (`UNKNOWN`, local, another transport) the
    /// connection's own apply.
    Complete(usize, Option<DecodedProxyHeader>),
}

/// The content of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedProxyHeader {
    /// The client's address.
    pub source: ProxyEndpoint,
    /// The address that the client connected to.
    pub destination: ProxyEndpoint,
    /// The TLVs of version 2 as received; see [`DecodedProxyHeader::tlv`].
    pub tlvs: Vec<u8>,
}

/// An address and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyEndpoint {
    /// The address as text, in version 1 as received: `$proxy_protocol_addr`.
    pub text: String,
    /// The address, unless version 1 had text that is none, which nginx tolerates.
    pub ip: Option<IpAddr>,
    /// `$proxy_protocol_port`
    pub port: u16,
}

/// The header is invalid: the connection is to be closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// Neither version's format. The first line, for the log.
    Header(Vec<u8>),
    /// The signature of version 2 with this other version.
    Version(u8),
    /// Longer than [`MAX_HEADER`].
    TooLarge,
    /// It is too short for its addresses.
    Addresses,
}

impl ProxyHeaderError {
    /// The line for the error log at level `error`, as nginx has it.
    pub fn log_line(&self) -> Vec<u8> {
        match self {
            ProxyHeaderError::Header(line) => {
                [b"broken header: \"", line.as_slice(), b"\""].concat()
            }
            ProxyHeaderError::Version(version) => {
                format!("unknown PROXY protocol version: {version}").into_bytes()
            }
            ProxyHeaderError::TooLarge => b"header is too large".to_vec(),
            ProxyHeaderError::Addresses => b"broken PROXY protocol addresses".to_vec(),
        }
    }
}

/// Parses the header at the beginning of a connection.
pub fn parse(buf: &[u8]) -> Result<ProxyHeaderStatus, ProxyHeaderError> {
    let start = &buf[..buf.len().min(SIGNATURE.len())];
    if !start.is_empty() && SIGNATURE.starts_with(start) {
        return if start.len() == SIGNATURE.len() {
            parse_v2(buf)
        } else {
            Ok(ProxyHeaderStatus::Partial)
        };
    }
    parse_v1(buf)
}

fn parse_v1(buf: &[u8]) -> Result<ProxyHeaderStatus, ProxyHeaderError> {
    const START: &[u8] = b"PROXY ";
    const KINDS: [&[u8]; 3] = [b"UNKNOWN", b"TCP4 ", b"TCP6 "];
    let broken = || {
        let shown = &buf[..buf.len().min(MAX_V1)];
        let end = shown
            .iter()
            .position(|b| matches!(b, b'\r' | b'\n'))
            .unwrap_or(shown.len());
        ProxyHeaderError::Header(shown[..end].to_vec())
    };
    let common = buf.len().min(START.len());
    if buf[..common] != START[..common] {
        return Err(broken());
    }
    let window = &buf[..buf.len().min(MAX_V1)];
    let Some(end) = memchr::memmem::find(window, b"\r\n") else {
        // Not waiting for what cannot become a header any more.
        let kind = &window[START.len().min(window.len())..];
        let may_become = |known: &&[u8]| kind.starts_with(known) || known.starts_with(kind);
        return if buf.len() >= MAX_V1 || !KINDS.iter().any(may_become) {
            Err(broken())
        } else {
            Ok(ProxyHeaderStatus::Partial)
        };
    };
    let used = end + 2;
    let words = &window[START.len().min(end)..end];
    if words.starts_with(b"UNKNOWN") {
        return Ok(ProxyHeaderStatus::Complete(used, None));
    }
    parse_v1_words(words)
        .map(|header| ProxyHeaderStatus::Complete(used, Some(header)))
        .ok_or_else(broken)
}

/// `TCP4 SOURCE DESTINATION PORT PORT`
fn parse_v1_words(words: &[u8]) -> Option<DecodedProxyHeader> {
    let mut words = words.split(|&b| b == b' ');
    if !matches!(words.next()?, b"TCP4" | b"TCP6") {
        return None;
    }
    let (source, destination) = (v1_address(words.next()?)?, v1_address(words.next()?)?);
    let (source_port, destination_port) = (v1_port(words.next()?)?, v1_port(words.next()?)?);
    if words.next().is_some() {
        return None;
    }
    let endpoint = |text: &str, port| ProxyEndpoint {
        text: text.to_string(),
        ip: text.parse().ok(),
        port,
    };
    Some(DecodedProxyHeader {
        source: endpoint(source, source_port),
        destination: endpoint(destination, destination_port),
        tlvs: Vec::new(),
    })
}

/// Checks that a text consists of characters of addresses: it goes into logs and variables.
fn v1_address(text: &[u8]) -> Option<&str> {
    let is_address = text
        .iter()
        .all(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.'));
    if is_address {
        std::str::from_utf8(text).ok()
    } else {
        None
    }
}

fn v1_port(text: &[u8]) -> Option<u16> {
    crate::message::parse_length(text).and_then(|port| u16::try_from(port).ok())
}

fn parse_v2(buf: &[u8]) -> Result<ProxyHeaderStatus, ProxyHeaderError> {
    let Some((head, rest)) = buf.split_first_chunk::<V2_HEAD>() else {
        return Ok(ProxyHeaderStatus::Partial);
    };
    let [.., version_command, family_transport, high, low] = *head;
    if version_command >> 4 != 2 {
        return Err(ProxyHeaderError::Version(version_command >> 4));
    }
    let length = usize::from(u16::from_be_bytes([high, low]));
    if V2_HEAD + length > MAX_HEADER {
        return Err(ProxyHeaderError::TooLarge);
    }
    let Some(body) = rest.get(..length) else {
        return Ok(ProxyHeaderStatus::Partial);
    };
    let used = V2_HEAD + length;
    let is_proxied_stream = version_command & 15 == 1 && family_transport & 15 == 1;
    let header = match family_transport >> 4 {
        1 if is_proxied_stream => Some(v2_header::<4>(body).ok_or(ProxyHeaderError::Addresses)?),
        2 if is_proxied_stream => Some(v2_header::<16>(body).ok_or(ProxyHeaderError::Addresses)?),
        // A health check by the proxy itself, or an unsupported family or transport.
        _ => None,
    };
    Ok(ProxyHeaderStatus::Complete(used, header))
}

/// Parses addresses of `N` bytes: source, destination, their ports, then TLVs.
fn v2_header<const N: usize>(body: &[u8]) -> Option<DecodedProxyHeader>
where
    IpAddr: From<[u8; N]>,
{
    let (source, rest) = body.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let (ports, tlvs) = rest.split_first_chunk::<4>()?;
    let endpoint = |address: [u8; N], high, low| {
        let ip = IpAddr::from(address);
        ProxyEndpoint {
            text: ip.to_string(),
            ip: Some(ip),
            port: u16::from_be_bytes([high, low]),
        }
    };
    Some(DecodedProxyHeader {
        source: endpoint(*source, ports[0], ports[1]),
        destination: endpoint(*destination, ports[2], ports[3]),
        tlvs: tlvs.to_vec(),
    })
}

/// The types of TLVs with names: `$proxy_protocol_tlv_NAME`.
const TLV_NAMES: [(&str, u16); 5] = [
    ("alpn", 0x01),
    ("authority", 0x02),
    ("unique_id", 0x05),
    ("ssl", TLV_SSL),
    ("netns", 0x30),
];
/// Those within the `ssl` TLV: `$proxy_protocol_tlv_ssl_NAME`.
const SSL_NAMES: [(&str, u16); 5] = [
    ("version", 0x21),
    ("cn", 0x22),
    ("cipher", 0x23),
    ("sig_alg", 0x24),
    ("key_alg", 0x25),
];
const TLV_SSL: u16 = 0x20;
const TLV_CRC32C: u8 = 0x03;
/// The fixed part of the `ssl` TLV: a byte of flags, and four of the verification's result.
const SSL_HEAD: usize = 5;

impl DecodedProxyHeader {
    /// The value of a TLV by name, as in `$proxy_protocol_tlv_NAME`: `alpn`, `authority`,
    /// `unique_id`, `ssl`, `netns`, `0xNN`, and `ssl_version`, `ssl_cn`, `ssl_cipher`,
    /// `ssl_sig_alg`, `ssl_key_alg`, `ssl_verify`, `ssl_0xNN`.
    pub fn tlv(&self, name: &str) -> Option<Vec<u8>> {
        let Some(name) = name.strip_prefix("ssl_") else {
            return find_tlv(&self.tlvs, tlv_type(name, &TLV_NAMES)?).map(<[u8]>::to_vec);
        };
        let (head, tlvs) = find_tlv(&self.tlvs, TLV_SSL)?.split_first_chunk::<SSL_HEAD>()?;
        if name == "verify" {
            let [_, result @ ..] = *head;
            return Some(u32::from_be_bytes(result).to_string().into_bytes());
        }
        find_tlv(tlvs, tlv_type(name, &SSL_NAMES)?).map(<[u8]>::to_vec)
    }
}

/// Whether [`DecodedProxyHeader::tlv`] knows this name, for the check of the configuration.
pub fn is_tlv_name(name: &str) -> bool {
    match name.strip_prefix("ssl_") {
        Some(name) => name == "verify" || tlv_type(name, &SSL_NAMES).is_some(),
        None => tlv_type(name, &TLV_NAMES).is_some(),
    }
}

fn tlv_type(name: &str, names: &[(&str, u16)]) -> Option<u16> {
    match name.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => {
            u16::from_str_radix(digits, 16).ok()
        }
        Some(_) => None,
        None => names
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, kind)| *kind),
    }
}

/// The first TLV with this type; `None` also if the list is truncated before it.
fn find_tlv(mut tlvs: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let ([found, high, low], rest) = tlvs.split_first_chunk::<3>()?;
        let (value, rest) =
            rest.split_at_checked(usize::from(u16::from_be_bytes([*high, *low])))?;
        if u16::from(*found) == kind {
            return Some(value);
        }
        tlvs = rest;
    }
}

/// Appends a header of version 1. Without two IP addresses (a unix socket) it says `UNKNOWN`.
pub fn write_v1(source: Option<SocketAddr>, destination: Option<SocketAddr>, out: &mut Vec<u8>) {
    let text = match (source, destination) {
        (Some(s), Some(d)) if s.is_ipv4() && d.is_ipv4() => {
            format!(
                "PROXY TCP4 {} {} {} {}\r\n",
                s.ip(),
                d.ip(),
                s.port(),
                d.port()
            )
        }
        (Some(s), Some(d)) => {
            format!(
                "PROXY TCP6 {} {} {} {}\r\n",
                as_v6(s.ip()),
                as_v6(d.ip()),
                s.port(),
                d.port()
            )
        }
        _ => "PROXY UNKNOWN\r\n".to_string(),
    };
    out.extend_from_slice(text.as_bytes());
}

/// Appends a header of version 2 with TLVs and, as nginx does, their CRC-32C at the end. Without
/// two addresses its command is local.
///
/// TLVs with which the header would exceed [`MAX_HEADER`] are omitted.
pub fn write_v2(
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    tlvs: &[(u8, &[u8])],
    out: &mut Vec<u8>,
) {
    const CRC_TLV: usize = 3 + 4;
    let start = out.len();
    out.extend_from_slice(SIGNATURE);
    write_addresses(source.zip(destination), out);
    for (kind, value) in tlvs {
        if out.len() - start + 3 + value.len() + CRC_TLV <= MAX_HEADER {
            write_tlv(*kind, value, out);
        }
    }
    write_tlv(TLV_CRC32C, &[0; 4], out);
    // The limit above keeps this far below 16 bits.
    let length = (out.len() - start - V2_HEAD) as u16;
    out[start + V2_HEAD - 2..start + V2_HEAD].copy_from_slice(&length.to_be_bytes());
    // The sum covers the whole header, with zeros in its own place.
    let sum = crc32c(&out[start..]);
    let end = out.len();
    out[end - 4..].copy_from_slice(&sum.to_be_bytes());
}

/// Appends version and command, family and transport, a length to be filled in, addresses and
/// ports.
fn write_addresses(endpoints: Option<(SocketAddr, SocketAddr)>, out: &mut Vec<u8>) {
    const LOCAL: u8 = 0x20;
    const PROXY: u8 = 0x21;
    let Some((source, destination)) = endpoints else {
        out.extend_from_slice(&[LOCAL, 0, 0, 0]);
        return;
    };
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(s), IpAddr::V4(d)) => {
            out.extend_from_slice(&[PROXY, 0x11, 0, 0]);
            out.extend_from_slice(&[s.octets(), d.octets()].concat());
        }
        _ => {
            out.extend_from_slice(&[PROXY, 0x21, 0, 0]);
            out.extend_from_slice(
                &[
                    as_v6(source.ip()).octets(),
                    as_v6(destination.ip()).octets(),
                ]
                .concat(),
            );
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn as_v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
        IpAddr::V6(v6) => v6,
    }
}

/// Appends a TLV, also to the value of an `ssl` TLV. A value above 64 KB is truncated.
pub fn write_tlv(kind: u8, value: &[u8], out: &mut Vec<u8>) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    out.push(kind);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&value[..usize::from(length)]);
}

/// CRC-32C (Castagnoli), bit by bit: a header has some hundred bytes, once per connection.
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = sum >> 1 ^ (POLYNOMIAL & (sum & 1).wrapping_neg());
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses in growing prefixes: the outcome must not depend on the pieces.
    fn parse_pieces(wire: &[u8]) -> Result<ProxyHeaderStatus, ProxyHeaderError> {
        for end in 0..wire.len() {
            match parse(&wire[..end]) {
                Ok(ProxyHeaderStatus::Partial) => {}
                early => return early,
            }
        }
        parse(wire)
    }

    fn header(wire: &[u8]) -> DecodedProxyHeader {
        match parse_pieces(wire) {
            Ok(ProxyHeaderStatus::Complete(used, Some(header))) if used == wire.len() => header,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn version_1_names_both_ends() {
        let found = header(b"PROXY TCP4 192.0.2.1 192.0.2.2 123 5678\r\n");
        assert_eq!(
            (found.source.text.as_str(), found.source.port),
            ("192.0.2.1", 123)
        );
        assert_eq!(
            (found.destination.text.as_str(), found.destination.port),
            ("192.0.2.2", 5678)
        );
        let found = header(b"PROXY TCP6 2001:Db8::1 2001:Db8::2 0 65535\r\n");
        assert_eq!(found.source.text, "2001:Db8::1");
        assert_eq!(found.source.ip, "2001:db8::1".parse().ok());
        assert_eq!(header(b"PROXY TCP4 1.2 3 1 2\r\n").source.ip, None);
        for wire in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN 1 2 3 4 5 6\r\n"] {
            assert_eq!(
                parse_pieces(wire),
                Ok(ProxyHeaderStatus::Complete(wire.len(), None))
            );
        }
        assert_eq!(
            parse(b"PROXY UNKNOWN\r\nGET /"),
            Ok(ProxyHeaderStatus::Complete(15, None))
        );
    }

    #[test]
    fn version_1_is_strict() {
        for wire in [
            "GET / HTTP/1.1\r\n",
            "PROXY\r\n",
            "PROXY \r\n",
            "proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n",
            "PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
            "PROXY TCP4  1.1.1.1 1.1.1.1 1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 1 65536\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1 -1 1\r\n",
            "PROXY TCP4 1.1.1.1 1.1.1.1  1\r\n",
            "PROXY TCP4 host 1.1.1.1 1 1\r\n",
            "PROXY TCP4 1.1.1.1\0 1.1.1.1 1 1\r\n",
            "\r\n\r\nX",
        ] {
            assert!(
                matches!(
                    parse_pieces(wire.as_bytes()),
                    Err(ProxyHeaderError::Header(_))
                ),
                "{wire:?}"
            );
        }
        assert_eq!(
            parse(b"GET / HTTP\r\n").expect_err("no header").log_line(),
            b"broken header: \"GET / HTTP\""
        );
    }

    #[test]
    fn version_1_is_bounded() {
        let wire =
            |length: usize| [&b"PROXY UNKNOWN"[..], &vec![b' '; length - 15], b"\r\n"].concat();
        assert_eq!(
            parse_pieces(&wire(MAX_V1)),
            Ok(ProxyHeaderStatus::Complete(MAX_V1, None))
        );
        assert!(parse_pieces(&wire(MAX_V1 + 1)).is_err());
        assert_eq!(
            parse(b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n"),
            Ok(ProxyHeaderStatus::Partial)
        );
    }

    fn address(text: &str) -> Option<SocketAddr> {
        text.parse().ok()
    }

    #[test]
    fn version_2_is_read_as_written() {
        let mut ssl = vec![1, 0, 0, 0, 2];
        write_tlv(0x21, b"TLSv1.3", &mut ssl);
        write_tlv(0x22, b"client", &mut ssl);
        let tlvs: [(u8, &[u8]); 4] = [
            (0x01, b"h2"),
            (0x02, b"example.com"),
            (0xea, b"aws"),
            (0x20, &ssl),
        ];
        for (source, destination) in [
            ("192.0.2.1:123", "192.0.2.2:80"),
            ("[2001:db8::1]:123", "[::2]:80"),
        ] {
            let mut wire = Vec::new();
            write_v2(address(source), address(destination), &tlvs, &mut wire);
            let found = header(&wire);
            let ip = address(source).map(|a| a.ip());
            assert_eq!(
                (found.source.ip, found.source.port, found.destination.port),
                (ip, 123, 80)
            );
            for (name, value) in [
                ("alpn", "h2"),
                ("authority", "example.com"),
                ("0xea", "aws"),
                ("0x02", "example.com"),
                ("ssl_verify", "2"),
                ("ssl_version", "TLSv1.3"),
                ("ssl_cn", "client"),
                ("ssl_0x22", "client"),
            ] {
                assert_eq!(found.tlv(name).as_deref(), Some(value.as_bytes()), "{name}");
                assert!(is_tlv_name(name));
            }
            for name in [
                "unique_id",
                "netns",
                "0x99",
                "ssl_cipher",
                "foo",
                "ssl_foo",
                "0x",
                "0xzz",
                "0x+1",
                "ssl_",
                "",
            ] {
                assert_eq!(found.tlv(name), None, "{name}");
            }
            // The sum of the whole with its own field as zero.
            let sum = wire.split_off(wire.len() - 4);
            wire.extend_from_slice(&[0; 4]);
            assert_eq!(crc32c(&wire).to_be_bytes(), sum[..]);
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn version_2_without_addresses_means_the_connection_itself() {
        let mut wire = Vec::new();
        write_v2(None, address("192.0.2.2:80"), &[], &mut wire);
        assert_eq!(wire[12..14], [0x20, 0]);
        assert_eq!(
            parse_pieces(&wire),
            Ok(ProxyHeaderStatus::Complete(wire.len(), None))
        );
        for (command, family) in [
            (0x20, 0x11),
            (0x22, 0x11),
            (0x21, 0x12),
            (0x21, 0x31),
            (0x21, 0x00),
        ] {
            let wire = [&SIGNATURE[..], &[command, family, 0, 1, 9]].concat();
            assert_eq!(
                parse_pieces(&wire),
                Ok(ProxyHeaderStatus::Complete(17, None))
            );
        }
    }

    #[test]
    fn mapped_addresses_are_written_as_what_they_are() {
        let mut wire = Vec::new();
        write_v2(
            address("[::ffff:192.0.2.1]:1"),
            address("[::ffff:192.0.2.2]:2"),
            &[],
            &mut wire,
        );
        assert_eq!(header(&wire).source.text, "192.0.2.1");
        wire.clear();
        write_v2(
            address("192.0.2.1:1"),
            address("[2001:db8::2]:2"),
            &[],
            &mut wire,
        );
        assert_eq!(header(&wire).source.text, "::ffff:192.0.2.1");
    }

    #[test]
    fn version_2_is_strict_and_bounded() {
        let wire = |head: [u8; 4], body: &[u8]| [&SIGNATURE[..], &head, body].concat();
        assert_eq!(
            parse_pieces(&wire([0x11, 0x11, 0, 0], b"")),
            Err(ProxyHeaderError::Version(1))
        );
        assert_eq!(
            parse_pieces(&wire([0x21, 0x11, 0, 11], &[0; 11])),
            Err(ProxyHeaderError::Addresses)
        );
        assert_eq!(
            parse_pieces(&wire([0x21, 0x21, 0, 35], &[0; 35])),
            Err(ProxyHeaderError::Addresses)
        );
        let body = MAX_HEADER - V2_HEAD;
        let [high, low] = (body as u16).to_be_bytes();
        let status = parse(&wire([0x21, 0x11, high, low], &vec![0; body]));
        assert!(matches!(
            status,
            Ok(ProxyHeaderStatus::Complete(MAX_HEADER, Some(_)))
        ));
        let [high, low] = (body as u16 + 1).to_be_bytes();
        assert_eq!(
            parse(&wire([0x21, 0x11, high, low], b"")),
            Err(ProxyHeaderError::TooLarge)
        );
        let mut long = Vec::new();
        write_v2(
            address("1.1.1.1:1"),
            address("1.1.1.1:1"),
            &[(0xe0, &[7; 5000]), (0xe1, b"x")],
            &mut long,
        );
        assert_eq!(
            (
                header(&long).tlv("0xe0"),
                header(&long).tlv("0xe1").as_deref()
            ),
            (None, Some(&b"x"[..]))
        );
    }

    #[test]
    fn cut_tlvs_are_not_found() {
        let found = |tlvs: &[u8], name| {
            let mut body = vec![0; 12];
            body.extend_from_slice(tlvs);
            let length = (body.len() as u16).to_be_bytes();
            header(&[&SIGNATURE[..], &[0x21, 0x11], &length, &body].concat()).tlv(name)
        };
        assert_eq!(
            found(&[1, 0, 2, b'h', b'2'], "alpn").as_deref(),
            Some(&b"h2"[..])
        );
        for tlvs in [
            &[1][..],
            &[1, 0],
            &[1, 0, 1],
            &[1, 0, 3, b'h', b'2'],
            &[2, 0, 9, 1, 0, 0],
        ] {
            assert_eq!(found(tlvs, "alpn"), None);
        }
        assert_eq!(found(&[0x20, 0, 4, 1, 0, 0, 0], "ssl_verify"), None);
    }

    #[test]
    fn version_1_is_written() {
        let text = |source, destination| {
            let mut out = Vec::new();
            write_v1(source, destination, &mut out);
            String::from_utf8(out).expect("ASCII")
        };
        let (v4, v6) = (address("192.0.2.1:1"), address("[2001:db8::1]:2"));
        assert_eq!(text(v4, v4), "PROXY TCP4 192.0.2.1 192.0.2.1 1 1\r\n");
        assert_eq!(text(v6, v6), "PROXY TCP6 2001:db8::1 2001:db8::1 2 2\r\n");
        assert_eq!(
            text(v6, v4),
            "PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 2 1\r\n"
        );
        assert_eq!(text(None, v4), "PROXY UNKNOWN\r\n");
    }
}
