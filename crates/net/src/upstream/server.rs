//! A `server` line of a group, and what its name resolves to.

use std::net::SocketAddr;
use std::time::Duration;

use bstr::BString;
use rt::net::Address;

/// One `server` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The address as it is written, without parameters: what `hash … consistent` hashes.
    pub name: BString,
    /// The addresses known when the configuration was read.
    pub addresses: Vec<Address>,
    /// Whose addresses are to be looked up while running; `None` for a server whose addresses stay as they are.
    pub resolve: Option<NameToResolve>,
    /// The share of requests, relative to the others; at least 1.
    pub weight: u32,
    /// Connections in use at the same time; 0 is without limit.
    pub max_conns: u32,
    /// Failures within `fail_timeout` that make it unavailable; 0: it never becomes that.
    pub max_fails: u32,
    /// How long failures count, and how long it is unavailable then.
    pub fail_timeout: Duration,
    /// The time in which it comes back to its full weight after it was unavailable; zero: at once.
    pub slow_start: Duration,
    /// Used only when no other server can be.
    pub backup: bool,
    /// Whether it is given requests at all.
    pub state: ServerState,
    /// The name in sticky cookies and routes (`route=`); empty: made from the address.
    pub route: BString,
}

impl Server {
    /// A server with nginx's defaults: weight 1, unavailable for 10 seconds after one failure.
    pub fn new(name: impl Into<BString>, addresses: Vec<Address>) -> Server {
        Server {
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

/// A name that is looked up while running.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NameToResolve {
    /// The host.
    pub host: BString,
    /// The port of its addresses; SRV records bring their own.
    pub port: u16,
    /// The service whose SRV records are looked up (`service=`); empty: address records are.
    pub service: BString,
    /// The line has no `resolve`, and the name was unknown when the configuration was read: it is looked up until it is
    /// found, then no more.
    pub once: bool,
}

/// What the configuration says of a server's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It is used.
    Up,
    /// `down`: it is not.
    Down,
    /// `drain`: only by clients that are bound to it.
    Drain,
}

/// An address that a name was found to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedAddress {
    /// The address, with its port.
    pub address: Address,
    /// The weight of an SRV record; 1 otherwise.
    pub weight: u32,
    /// An SRV record of a priority that is not the best: used as `backup` servers are.
    pub backup: bool,
    /// The name in the SRV record; empty otherwise.
    pub name: BString,
}

impl NameToResolve {
    /// What its addresses are kept under: not its port, so that they still hold when a reload changes that.
    pub(super) fn key(&self) -> (BString, BString) {
        (self.host.clone(), self.service.clone())
    }

    /// The address of a record: the port is the line's, but for SRV records, which bring theirs.
    pub(super) fn address_of(&self, found: &ResolvedAddress) -> Address {
        match &found.address {
            Address::Inet(inet) if self.service.is_empty() => {
                SocketAddr::new(inet.ip(), self.port).into()
            }
            address => address.clone(),
        }
    }
}

impl Server {
    /// The server as one of its SRV records changes it; `None` for a record of lower priority of a server that is backup
    /// already.
    pub(super) fn with_record(&self, found: &ResolvedAddress) -> Option<Server> {
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
        if server.weight == 1 {
            server.weight = found.weight.max(1);
        }
        Some(server)
    }
}
