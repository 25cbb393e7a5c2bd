//! A group as the configuration describes it.

use std::any::Any;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use conf::Expression;
use rt::net::Address;

use super::groups::Origin;
use super::selection::{Request, Selection};
use super::state::GroupState;
use super::sticky::Sticky;
use crate::resolver::Resolver;

/// A group of servers. Immutable; what changes is in its [`GroupState`].
pub struct Group {
    /// What the configuration says.
    pub settings: Settings,
    state: OnceLock<Arc<GroupState>>,
}

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
    /// How one of them is chosen.
    pub balance: Balance,
    /// Which connections are kept for reuse; `None`: no connection is.
    pub keepalive: Option<Keepalive>,
    /// Where requests wait when every server is at `max_conns`; `None`: they do not.
    pub queue: Option<Queue>,
    /// How a client comes back to the server that it had.
    pub sticky: Option<Sticky>,
    /// Who looks up names while running; `None`: whom the engine's outermost block names.
    pub resolver: Option<Arc<Resolver>>,
    /// How long it may take.
    pub resolver_timeout: Option<Duration>,
    /// Who chooses servers in the place of `balance`: a type of the engine's own, which asks it.
    pub chooser: Option<Arc<dyn Any + Send + Sync>>,
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
            balance: Balance::RoundRobin,
            keepalive: None,
            queue: None,
            sticky: None,
            resolver: None,
            resolver_timeout: None,
            chooser: None,
            realm: "",
        }
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

/// One `server` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The address as it is written, without parameters: what `hash … consistent` hashes.
    pub name: BString,
    /// The addresses known when the configuration was read.
    pub addresses: Vec<Address>,
    /// Whose addresses are to be looked up while running; `None` for a server whose addresses stay as they are.
    pub resolve: Option<ResolvedAt>,
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
pub struct ResolvedAt {
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

/// How a server is chosen.
#[derive(Clone, Debug)]
pub enum Balance {
    /// In turn, by weight.
    RoundRobin,
    /// The one with the fewest connections in use, relative to its weight.
    LeastConn,
    /// By the client's address: the first three bytes of an IPv4 address, all of an IPv6 one.
    IpHash,
    /// By a key.
    Hash {
        /// What is hashed; the engine evaluates it for the request.
        key: Expression,
        /// By a ring of points (ketama), so that a server more or less moves few keys.
        consistent: bool,
    },
    /// By lot, by weight; with `two`, the better of two.
    Random {
        /// What the better one is.
        two: Option<RandomTwo>,
    },
    /// The one that will probably be done first.
    LeastTime {
        /// Which time of a response.
        metric: Metric,
        /// Whether requests that are under way count too.
        inflight: bool,
    },
}

impl Balance {
    /// The key to evaluate for [`Request::key`].
    pub fn key(&self) -> Option<&Expression> {
        match self {
            Balance::Hash { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Whether the method takes servers marked `backup`.
    pub fn takes_backup(&self) -> bool {
        !matches!(
            self,
            Balance::Hash { .. } | Balance::IpHash | Balance::Random { .. }
        )
    }
}

/// The better of two servers drawn by lot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RandomTwo {
    /// With fewer connections in use.
    LeastConn,
    /// That takes less time.
    LeastTime(Metric),
}

/// Which time of a response counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Until the response head is there (`header`; `first_byte` in stream).
    Header,
    /// Until all of it is there (`last_byte`).
    LastByte,
    /// Until the connection stands (`connect`, stream only).
    Connect,
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

impl Default for Keepalive {
    /// What a block without `keepalive` has in nginx since 1.29.7.
    fn default() -> Self {
        Keepalive {
            connections: 32,
            local: true,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

/// `queue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// How many requests may wait, over all loops.
    pub length: usize,
    /// How long one may.
    pub timeout: Duration,
}

impl Group {
    /// A group with a state of its own until [`Group::commit`] finds an older one.
    pub fn new(settings: Settings) -> Group {
        Group {
            settings,
            state: OnceLock::new(),
        }
    }

    /// A group for addresses that a URL made while running was found to have. It lives as long as its request.
    pub fn of_addresses(name: impl Into<BString>, addresses: Vec<Address>) -> Group {
        let name = name.into();
        let mut settings = Settings::new(name.clone(), Origin::Url { port: None });
        settings.servers.push(Server::new(name, addresses));
        Group::new(settings)
    }

    /// The name.
    pub fn name(&self) -> &BStr {
        self.settings.name.as_bstr()
    }

    /// What is going on in the group.
    pub fn state(&self) -> &Arc<GroupState> {
        self.state.get_or_init(|| {
            let state = Arc::new(GroupState::new());
            state.configure(&self.settings, 1);
            state
        })
    }

    /// Takes over the state that a group of this name had before the reload. To be called before [`Group::state`].
    pub fn commit(&self, zones: &rt::engine::Zones) {
        let state = zones.get_or_create(&self.settings.state_key(), GroupState::new);
        if self.state.set(state.clone()).is_ok() {
            state.configure(&self.settings, zones.loops());
        }
    }

    /// Begins the choice of a server for a request.
    pub fn select(&self, request: &Request<'_>) -> Selection {
        Selection::new(self.state().clone(), request)
    }

    /// As [`Group::select`], for a request that has nothing but a client.
    pub fn select_for(&self, client: Option<IpAddr>) -> Selection {
        self.select(&Request {
            client,
            ..Request::default()
        })
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            name,
            origin,
            servers,
            balance,
            ..
        } = &self.settings;
        f.debug_struct("Group")
            .field("name", name)
            .field("origin", origin)
            .field("servers", servers)
            .field("balance", balance)
            .finish_non_exhaustive()
    }
}
