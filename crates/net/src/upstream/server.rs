//! A `server` line of an upstream block, and the addresses that its name resolves to.

use std::net::SocketAddr;
use std::time::Duration;

use bstr::BString;
use rt::net::SocketAddress;

/// One `server` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamServer {
    /// The address as written, without parameters: what `hash … consistent` hashes.
    pub name: BString,
    /// The addresses that were known when the configuration was read.
    pub addresses: Vec<SocketAddress>,
    /// The name to be resolved at run time; `None` if the addresses are fixed.
    pub resolve: Option<Box<NameToResolve>>,
    /// The share of requests relative to other servers; at least 1.
    pub weight: u32,
    /// The most connections in use at the same time; 0: no limit.
    pub max_conns: u32,
    /// How many failures within `fail_timeout` make it unavailable; 0: none do.
    pub max_fails: u32,
    /// How long failures count, and for how long the server is then unavailable.
    pub fail_timeout: Duration,
    /// How long it takes to return to its full weight after it was unavailable; zero: at once.
    pub slow_start: Duration,
    /// Used only when no primary server can be.
    pub backup: bool,
    /// Whether it gets requests at all.
    pub state: ServerState,
    /// Its name in sticky cookies and routes (`route=`); empty: derived from the address.
    pub route: BString,
}

impl UpstreamServer {
    /// A server with nginx's defaults: weight 1, unavailable for 10 seconds after one failure.
    pub fn new(name: impl Into<BString>, addresses: Vec<SocketAddress>) -> UpstreamServer {
        UpstreamServer {
            name: name.into(),
            addresses,
            resolve: None,
            weight: 1,
            max_conns: 0,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            slow_start: Duration::ZERO,
            backup: false,
            state: ServerState::Up,
            route: BString::default(),
        }
    }
}

/// A name that is resolved at run time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameToResolve {
    /// The host.
    pub host: BString,
    /// The port for its addresses; SRV records have their own.
    pub port: u16,
    /// The service to look SRV records up for (`service=`); empty: address records are looked up.
    pub service: BString,
    /// The line has no `resolve`, but its name was unknown when the configuration was read: it is resolved until it
    /// is found, and then no more.
    pub once: bool,
}

/// The configured state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It gets requests.
    Up,
    /// `down`: it gets none.
    Down,
    /// `drain`: only requests of clients that are bound to it.
    Drain,
}

/// An address that a name was resolved to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address, with its port.
    pub address: SocketAddress,
    /// The weight of an SRV record; 1 otherwise.
    pub weight: u32,
    /// An SRV record that does not have the best priority: used like a `backup` server.
    pub backup: bool,
    /// The name in the SRV record; empty otherwise.
    pub name: BString,
}

impl NameToResolve {
    /// The key that its addresses are stored under. Without the port, so that they still hold when a reload changes
    /// that.
    pub(super) fn key(&self) -> (BString, BString) {
        (self.host.clone(), self.service.clone())
    }

    /// The address of a record with the port of the line, or of the SRV record.
    pub(super) fn address_of(&self, found: &ResolvedAddress) -> SocketAddress {
        match &found.address {
            SocketAddress::Inet(inet) if self.service.is_empty() => {
                SocketAddr::new(inet.ip(), self.port).into()
            }
            address => address.clone(),
        }
    }
}

impl UpstreamServer {
    /// The server with the values of one of its SRV records. `None` for a record of lower priority of a server that
    /// is backup itself: there is no third rank.
    pub(super) fn with_record(&self, found: &ResolvedAddress) -> Option<UpstreamServer> {
        let mut server = self.clone();
        if server
            .resolve
            .as_ref()
            .is_none_or(|at| at.service.is_empty())
        {
            return Some(server);
        }
        if found.backup && server.backup {
            return None;
        }
        server.backup |= found.backup;
        server.name.clone_from(&found.name);
        // A weight in the line overrides that of the record.
        if server.weight == 1 {
            server.weight = found.weight.max(1);
        }
        Some(server)
    }
}
