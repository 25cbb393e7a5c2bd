//! The configuration of a group.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;

use super::balance::{BalanceMethod, RoundRobin};
use super::server::UpstreamServer;
use super::sticky::StickySettings;
use crate::resolver::Resolver;

/// The configuration of a group.
#[derive(Clone)]
pub struct GroupSettings {
    /// The name of the `upstream` block, or the host of the URL.
    pub name: BString,
    /// Whether a block defined it, or a URL.
    pub origin: GroupOrigin,
    /// Where it is defined, `FILE:LINE`, for messages.
    pub place: String,
    /// Its servers, in the order of the file. Shared with the group's state until that is given other ones.
    pub servers: Arc<Vec<UpstreamServer>>,
    /// The balancing method; `None`: weighted round robin.
    pub balance: Option<Arc<dyn BalanceMethod>>,
    /// The rules for idle connections; `None`: none are kept.
    pub keepalive: Option<KeepaliveSettings>,
    /// The queue for requests when every server is at `max_conns`; `None`: they fail.
    pub queue: Option<QueueSettings>,
    /// How a client is bound to a server.
    pub sticky: Option<StickySettings>,
    /// The resolver for names at run time; `None`: that of the engine's outermost block.
    pub resolver: Option<Arc<Resolver>>,
    /// The time limit of a lookup.
    pub resolver_timeout: Option<Duration>,
    /// The shared memory zone that `zone` names. The state is shared without one, too: it is a name for who asks.
    pub zone: BString,
    /// The file that keeps what is changed while the server runs (`state`).
    pub state_file: Option<PathBuf>,
    /// A script that chooses servers instead of the balancing method.
    pub chooser: Option<AnyChooser>,
    /// The engine's name, which keeps apart groups of the same name in two engines.
    pub realm: &'static str,
}

impl GroupSettings {
    /// A group without servers that balances in turn and keeps no connections.
    pub fn new(name: impl Into<BString>, origin: GroupOrigin) -> GroupSettings {
        GroupSettings {
            name: name.into(),
            origin,
            place: String::new(),
            servers: Arc::default(),
            balance: None,
            keepalive: None,
            queue: None,
            sticky: None,
            resolver: None,
            resolver_timeout: None,
            zone: BString::default(),
            state_file: None,
            chooser: None,
            realm: "",
        }
    }

    /// Appends a server.
    pub fn add_server(&mut self, server: UpstreamServer) {
        Arc::make_mut(&mut self.servers).push(server);
    }

    /// The balancing method.
    pub fn method(&self) -> &dyn BalanceMethod {
        self.balance.as_deref().unwrap_or(&RoundRobin)
    }

    /// The key under which the state survives a reload. A block and a URL may have the same name; their ports keep
    /// them apart.
    pub(crate) fn state_key(&self) -> String {
        let realm = self.realm;
        match self.origin {
            GroupOrigin::Block => format!("{realm}upstream {}", self.name),
            GroupOrigin::Url { port } => format!("{realm}url {}:{}", self.name, port.unwrap_or(0)),
        }
    }
}

/// What made a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupOrigin {
    /// An `upstream` block.
    Block,
    /// A URL with this port (a unix socket has none).
    Url {
        /// The port.
        port: Option<u16>,
    },
}

/// `keepalive` and the directives that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// How many idle connections are kept for each loop. All loops share the total; the one that was unused for
    /// longest makes room.
    pub connections: usize,
    /// A connection is used again only where it was used before (`keepalive … local`).
    pub local: bool,
    /// The most requests on one connection.
    pub requests: u64,
    /// The age from which a connection is not kept any more.
    pub time: Duration,
    /// How long an unused connection stays open.
    pub timeout: Duration,
}

/// `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The most waiting requests, over all loops.
    pub length: usize,
    /// How long a request may wait.
    pub timeout: Duration,
}

/// A chooser ([`ServerChooser`](super::ServerChooser)) of either engine. The type that it chooses for is not known
/// to this crate.
#[derive(Clone)]
pub struct AnyChooser(pub(super) Arc<dyn Any + Send + Sync>);
