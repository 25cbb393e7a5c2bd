//! Names that the configuration names, looked up while it is read.
//!
//! This asks the system and may take seconds: never on a loop. What is to be looked up while running is the resolver's.

use std::net::{SocketAddr, ToSocketAddrs};

use bstr::{BString, ByteSlice};
use conf::{Address as ConfAddress, Host};
use rt::net::{Address, UnixPath};

use super::server::NameToResolve;

/// Addresses of one name; more than this of them are not used.
const MAX_ADDRESSES: usize = 256;

/// What a name was found to be.
#[derive(Debug)]
pub struct Found {
    /// Its addresses: those of IPv4 first, as nginx orders them.
    pub addresses: Vec<Address>,
    /// What is left to look up while running.
    pub later: Option<NameToResolve>,
    /// What to tell the user.
    pub warning: Option<String>,
}

/// The address itself, if nothing must be looked up.
pub fn peer_address(address: &ConfAddress, default_port: u16) -> Option<Address> {
    match &address.host {
        Host::Unix(path) => Some(Address::Unix(UnixPath::new(path))),
        Host::Name(_) => None,
        Host::Any | Host::V4(_) | Host::V6(_) => {
            let port = address.port.unwrap_or(default_port);
            address
                .ip()
                .map(|ip| Address::Inet(SocketAddr::new(ip, port)))
        }
    }
}

/// Looks an address of the configuration up.
///
/// A name that is unknown now is not an error: the server starts, warns, and goes on looking.
pub fn lookup(address: &ConfAddress, default_port: u16) -> Found {
    if let Some(known) = peer_address(address, default_port) {
        return Found {
            addresses: vec![known],
            later: None,
            warning: None,
        };
    }
    let Host::Name(host) = &address.host else {
        unreachable!("only a name has no address of its own")
    };
    let port = address.port.unwrap_or(default_port);
    let addresses = ask_system(host, port);
    if !addresses.is_empty() {
        return Found {
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
    Found {
        addresses,
        later: Some(later),
        warning,
    }
}

fn ask_system(host: &BString, port: u16) -> Vec<Address> {
    let Ok(host) = host.to_str() else {
        return Vec::new();
    };
    let Ok(found) = (host, port).to_socket_addrs() else {
        return Vec::new();
    };
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in found.take(MAX_ADDRESSES) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.into_iter().map(Address::Inet).collect()
}

fn text(host: &BString, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{host}:{port}"),
        None => host.to_string(),
    }
}
