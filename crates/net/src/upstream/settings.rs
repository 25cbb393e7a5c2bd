//! What directives say about a group.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;

use super::balance::{BalanceMethod, RoundRobin};
use super::server::Server;
use super::sticky::Sticky;
use crate::resolver::Resolver;

/// Everything that directives say about a group.
#[derive(Clone)]
pub struct Settings {
    /// The name: of the `upstream` block, or the host in the URL.
    pub name: BString,
    /// Whether a block defined it, or a URL.
    pub origin: Origin,
    /// Where it is defined, `FILE:LINE`, for messages.
    pub place: String,
    /// Its servers, in the order of the file.
    pub servers: Vec<Server>,
    /// How one of them is chosen; `None`: in turn, by weight.
    pub balance: Option<Arc<dyn BalanceMethod>>,
    /// Which connections are kept for reuse; `None`: no connection is.
    pub keepalive: Option<Keepalive>,
    /// Where requests wait when every server is at `max_conns`; `None`: they do not.
    pub queue: Option<Queue>,
    /// How a client comes back to the server that it had.
    pub sticky: Option<Sticky>,
    /// What looks up names while running; `None`: what the engine's outermost block names.
    pub resolver: Option<Arc<Resolver>>,
    /// How long it may take.
    pub resolver_timeout: Option<Duration>,
    /// What chooses servers in the place of `balance`.
    pub chooser: Option<AnyChooser>,
    /// Whose group it is, where two engines may have groups of the same name.
    pub realm: &'static str,
}

impl Settings {
    /// A group without servers that balances in turn and keeps no connections.
    pub fn new(name: impl Into<BString>, origin: Origin) -> Settings {
        Settings {
            name: name.into(),
            origin,
            place: String::new(),
            servers: Vec::new(),
            balance: None,
            keepalive: None,
            queue: None,
            sticky: None,
            resolver: None,
            resolver_timeout: None,
            chooser: None,
            realm: "",
        }
    }

    /// How a server is chosen.
    pub fn method(&self) -> &dyn BalanceMethod {
        self.balance.as_deref().unwrap_or(&RoundRobin)
    }

    /// The key under which the state lives on over a reload. A block and a URL may share a name: they differ in port.
    pub(crate) fn state_key(&self) -> String {
        let realm = self.realm;
        match self.origin {
            Origin::Block => format!("{realm}upstream {}", self.name),
            Origin::Url { port } => format!("{realm}url {}:{}", self.name, port.unwrap_or(0)),
        }
    }
}

/// What made a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An `upstream` block.
    Block,
    /// A URL with this port (a unix socket has none).
    Url {
        /// The port.
        port: Option<u16>,
    },
}

/// `keepalive` and its kin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// How many idle connections are kept for each loop. All loops share the sum; the connection unused for longest
    /// makes room.
    pub connections: usize,
    /// A connection is only used again where it was used before, by the tag that the engine gives.
    pub local: bool,
    /// Requests on one connection.
    pub requests: u64,
    /// The age at which a connection is not kept any more.
    pub time: Duration,
    /// How long one stays open unused.
    pub timeout: Duration,
}

/// `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many requests may wait, over all loops.
    pub length: usize,
    /// How long one may.
    pub timeout: Duration,
}

/// A chooser of some engine ([`ServerChooser`](super::ServerChooser)): what it chooses for is a type that this crate does
/// not know.
#[derive(Clone)]
pub struct AnyChooser(pub(super) Arc<dyn Any + Send + Sync>);
