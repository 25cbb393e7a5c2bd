//! Names in the configuration, resolved by the system while it is read.
//!
//! getaddrinfo may block for seconds: never on a loop. Names that are resolved at run time go through the resolver.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};

use bstr::{BString, ByteSlice};
use conf::{AddressHost, HostPort as ConfAddress};
use rt::net::{SocketAddress, UnixPath};

use super::server::NameToResolve;

/// How many addresses of one name are used.
const MAX_ADDRESSES: usize = 256;

/// The result of a lookup.
#[derive(Debug)]
pub struct HostLookup {
    /// The addresses, IPv4 first, which is nginx's order and therefore that of the round robin.
    pub addresses: Vec<SocketAddress>,
    /// What remains to be resolved at run time.
    pub later: Option<Box<NameToResolve>>,
    /// A warning for the user.
    pub warning: Option<String>,
}

/// The address, if it is a literal one that needs no lookup.
pub fn peer_address(address: &ConfAddress, default_port: u16) -> Option<SocketAddress> {
    match &address.host {
        AddressHost::Unix(path) => Some(SocketAddress::Unix(UnixPath::new(path))),
        AddressHost::Name(_) => None,
        AddressHost::Any | AddressHost::V4(_) | AddressHost::V6(_) => {
            let port = address.port.unwrap_or(default_port);
            address
                .ip()
                .map(|ip| SocketAddress::Inet(SocketAddr::new(ip, port)))
        }
    }
}

/// How many names have been resolved for configurations: it tells whether a reload has to resolve any again.
static NAMES_ASKED: AtomicU64 = AtomicU64::new(0);

/// Notes that the system was asked for a name of a configuration.
pub fn note_name_asked() {
    NAMES_ASKED.fetch_add(1, Ordering::Relaxed);
}

/// How often the system was asked for a name of a configuration.
pub fn names_asked() -> u64 {
    NAMES_ASKED.load(Ordering::Relaxed)
}

/// Resolves an address of the configuration.
///
/// A name that is unknown now is not an error, unlike in nginx: the server starts, warns and keeps trying.
pub fn lookup_configured(address: &ConfAddress, default_port: u16) -> HostLookup {
    if let Some(known) = peer_address(address, default_port) {
        return HostLookup {
            addresses: vec![known],
            later: None,
            warning: None,
        };
    }
    note_name_asked();
    let AddressHost::Name(host) = &address.host else {
        unreachable!("only a name has no address of its own")
    };
    let port = address.port.unwrap_or(default_port);
    let addresses = ask_system(host, port);
    if !addresses.is_empty() {
        return HostLookup {
            addresses,
            later: None,
            warning: None,
        };
    }
    let later = NameToResolve {
        host: host.clone(),
        port,
        service: BString::default(),
        once: true,
    };
    let warning = Some(format!(
        "host not found in upstream \"{}\"",
        text(host, address.port)
    ));
    HostLookup {
        addresses,
        later: Some(Box::new(later)),
        warning,
    }
}

fn ask_system(host: &BString, port: u16) -> Vec<SocketAddress> {
    let Ok(host) = host.to_str() else {
        return Vec::new();
    };
    let Ok(found) = (host, port).to_socket_addrs() else {
        return Vec::new();
    };
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found.take(MAX_ADDRESSES) {
        // getaddrinfo may list an address once for each socket type.
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.into_iter().map(SocketAddress::Inet).collect()
}

fn text(host: &BString, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host.to_string(),
    }
}
