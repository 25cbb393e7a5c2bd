//! The client's address behind trusted proxies, from `X-Forwarded-For`.
//!
//! The field grows from left to right, and everything left of the last trusted proxy's entry can be
//! forged by the client. So it is read from the right, and never beyond the first address that is
//! not trusted.

use std::net::{IpAddr, SocketAddr};

use bstr::{BString, ByteSlice};
use conf::Cidr;

/// How far back the list is believed: `real_ip_recursive` and its like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardedDepth {
    /// Only the last entry, if the peer is trusted.
    #[default]
    Last,
    /// Every trusted entry is a proxy in turn: the client is the last one that is not trusted.
    Recursive,
}

/// The client's address. `fields` are the values of the header fields in the order they came in;
/// each proxy appended the address it saw. An entry that is not an address ends the search.
pub(crate) fn client_address(
    peer: IpAddr,
    fields: &[BString],
    trusted: &[Cidr],
    depth: ForwardedDepth,
) -> IpAddr {
    if !any_contains(trusted, peer) {
        return peer;
    }
    forwarded_address(fields, trusted, depth).map_or(peer, |address| address.ip())
}

/// The address named by the fields, assuming that a trusted peer sent them. The port is 0 if they
/// do not name one.
pub(crate) fn forwarded_address(
    fields: &[BString],
    trusted: &[Cidr],
    depth: ForwardedDepth,
) -> Option<SocketAddr> {
    let mut client: Option<SocketAddr> = None;
    let separator = |byte: &u8| matches!(byte, b',' | b' ');
    let addresses = fields
        .iter()
        .rev()
        .flat_map(|field| field.rsplit(separator).filter(|text| !text.is_empty()));
    for text in addresses {
        if client.is_some_and(|client| !any_contains(trusted, client.ip())) {
            break;
        }
        // Something that a proxy of ours would not write. Whatever is left of it is not trusted
        // either.
        let Some(address) = parse_address(text) else {
            break;
        };
        client = Some(address);
        if depth == ForwardedDepth::Last {
            break;
        }
    }
    client
}

/// Whether one of the networks contains the address.
fn any_contains(networks: &[Cidr], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// Parses an address, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`,
/// `[2001:db8::1]:80`.
pub(crate) fn parse_address(text: &[u8]) -> Option<SocketAddr> {
    if let Some(ip) = conf::address::ip(text) {
        return Some(SocketAddr::new(ip, 0));
    }
    let text = text.to_str().ok()?;
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let ip = text.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
    Some(SocketAddr::new(IpAddr::V6(ip), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(peer: &str, fields: &[&str], depth: ForwardedDepth) -> String {
        let fields: Vec<BString> = fields.iter().map(|field| (*field).into()).collect();
        let trusted =
            ["127.0.0.1", "10.0.0.0/8"].map(|text| Cidr::parse(text.as_bytes()).unwrap().0);
        client_address(peer.parse().unwrap(), &fields, &trusted, depth).to_string()
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        assert_eq!(
            found("192.0.2.1", &["1.1.1.1"], ForwardedDepth::Last),
            "192.0.2.1"
        );
        assert_eq!(
            found("127.0.0.1", &["1.1.1.1"], ForwardedDepth::Last),
            "1.1.1.1"
        );
        assert_eq!(found("127.0.0.1", &[], ForwardedDepth::Last), "127.0.0.1");
        assert_eq!(
            found("127.0.0.1", &["1.1.1.1, 10.0.0.1"], ForwardedDepth::Last),
            "10.0.0.1"
        );
    }

    #[test]
    fn recursion_goes_back_to_the_first_stranger() {
        let fields = ["3.3.3.3", "2.2.2.2, 1.1.1.1 10.0.0.2", "10.0.0.1"];
        assert_eq!(
            found("127.0.0.1", &fields, ForwardedDepth::Recursive),
            "1.1.1.1"
        );
        assert_eq!(
            found(
                "127.0.0.1",
                &["10.0.0.3,10.0.0.4"],
                ForwardedDepth::Recursive
            ),
            "10.0.0.3"
        );
        assert_eq!(
            found("127.0.0.1", &["junk, 10.0.0.4"], ForwardedDepth::Recursive),
            "10.0.0.4"
        );
    }

    #[test]
    fn ports_are_left_away() {
        assert_eq!(
            found("127.0.0.1", &["1.1.1.1:80"], ForwardedDepth::Last),
            "1.1.1.1"
        );
        assert_eq!(
            found("127.0.0.1", &["2001:db8::1"], ForwardedDepth::Last),
            "2001:db8::1"
        );
        assert_eq!(
            found("127.0.0.1", &["[2001:db8::1]:80"], ForwardedDepth::Last),
            "2001:db8::1"
        );
        assert_eq!(
            found("127.0.0.1", &["[2001:db8::1]"], ForwardedDepth::Last),
            "2001:db8::1"
        );
        assert_eq!(
            found("127.0.0.1", &["unknown"], ForwardedDepth::Last),
            "127.0.0.1"
        );
    }
}
