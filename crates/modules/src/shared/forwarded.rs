//! Who a client is behind proxies that are trusted: the address that `X-Forwarded-For` names.

use std::net::{IpAddr, SocketAddr};

use bstr::{BString, ByteSlice};
use conf::Cidr;

/// How far back the list of addresses is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The last address is the client, if the peer is trusted.
    #[default]
    Last,
    /// Every trusted address is a proxy itself: the client is the last one that is not trusted.
    Recursive,
}

/// The client's address. `fields` are the values of the header fields in the order in which they came; each proxy has
/// added the address it saw at the end. What is no address ends the search.
pub(crate) fn client(peer: IpAddr, fields: &[BString], trusted: &[Cidr], depth: Depth) -> IpAddr {
    if !includes(trusted, peer) {
        return peer;
    }
    named(fields, trusted, depth).map_or(peer, |address| address.ip())
}

/// The address that the fields name, if a trusted peer sent them; its port is 0 when they do not name one.
pub(crate) fn named(fields: &[BString], trusted: &[Cidr], depth: Depth) -> Option<SocketAddr> {
    let mut client: Option<SocketAddr> = None;
    let separator = |byte: &u8| matches!(byte, b',' | b' ');
    let addresses = fields
        .iter()
        .rev()
        .flat_map(|field| field.rsplit(separator).filter(|text| !text.is_empty()));
    for text in addresses {
        if client.is_some_and(|client| !includes(trusted, client.ip())) {
            break;
        }
        let Some(address) = parse(text) else { break };
        client = Some(address);
        if depth == Depth::Last {
            break;
        }
    }
    client
}

fn includes(networks: &[Cidr], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

/// An address, with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`.
pub(crate) fn parse(text: &[u8]) -> Option<SocketAddr> {
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

    fn found(peer: &str, fields: &[&str], depth: Depth) -> String {
        let fields: Vec<BString> = fields.iter().map(|field| (*field).into()).collect();
        let trusted =
            ["127.0.0.1", "10.0.0.0/8"].map(|text| Cidr::parse(text.as_bytes()).unwrap().0);
        client(peer.parse().unwrap(), &fields, &trusted, depth).to_string()
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        assert_eq!(found("192.0.2.1", &["1.1.1.1"], Depth::Last), "192.0.2.1");
        assert_eq!(found("127.0.0.1", &["1.1.1.1"], Depth::Last), "1.1.1.1");
        assert_eq!(found("127.0.0.1", &[], Depth::Last), "127.0.0.1");
        assert_eq!(
            found("127.0.0.1", &["1.1.1.1, 10.0.0.1"], Depth::Last),
            "10.0.0.1"
        );
    }

    #[test]
    fn recursion_goes_back_to_the_first_stranger() {
        let fields = ["3.3.3.3", "2.2.2.2, 1.1.1.1 10.0.0.2", "10.0.0.1"];
        assert_eq!(found("127.0.0.1", &fields, Depth::Recursive), "1.1.1.1");
        assert_eq!(
            found("127.0.0.1", &["10.0.0.3,10.0.0.4"], Depth::Recursive),
            "10.0.0.3"
        );
        assert_eq!(
            found("127.0.0.1", &["junk, 10.0.0.4"], Depth::Recursive),
            "10.0.0.4"
        );
    }

    #[test]
    fn ports_are_left_away() {
        assert_eq!(found("127.0.0.1", &["1.1.1.1:80"], Depth::Last), "1.1.1.1");
        assert_eq!(
            found("127.0.0.1", &["2001:db8::1"], Depth::Last),
            "2001:db8::1"
        );
        assert_eq!(
            found("127.0.0.1", &["[2001:db8::1]:80"], Depth::Last),
            "2001:db8::1"
        );
        assert_eq!(
            found("127.0.0.1", &["[2001:db8::1]"], Depth::Last),
            "2001:db8::1"
        );
        assert_eq!(found("127.0.0.1", &["unknown"], Depth::Last), "127.0.0.1");
    }
}
