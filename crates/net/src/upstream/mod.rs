//! Groups of upstream servers: `upstream NAME { … }`, and the implicit group behind `proxy_pass http://host:port`.
//!
//! The words used here:
//!
//! - A *server* is a line of the configuration. It has one or more addresses.
//! - A *peer* is one of those addresses: what a connection is made to.
//! - A [`Group`] is what the configuration says; it does not change. One exists per generation.
//! - A [`GroupState`] is what is going on: connections in use, failures, waiters, idle connections. It is shared by all
//!   loops, so that the balancers and limits behave as if there were one worker, and a reload keeps it by name.
//! - A [`Selection`] is what one request remembers of its tries; a [`Lease`] is a peer that it was given, for as long as
//!   the request uses it.
//!
//! ```text
//! let mut selection = Selection::new(group, &SelectionRequest { key, client, sticky });
//! let lease = selection.acquire().await?;              // may wait in the queue of the group
//! let connection = match lease.reuse(Reuse::of(tag)).await {
//!     Some(connection) => connection,
//!     None => Connection::new(Transport::plain(net::connect(lease.address(), &options).await?), Reuse::of(tag)),
//! };
//! …
//! lease.keep(connection);
//! selection.release(lease, Outcome::Ok(times));
//! ```
//!
//! ```text
//! settings · server   what directives say          groups · group   by name, and with its state
//! lookup · names      the addresses of names       secure           TLS to peers
//! selection           the tries of a request       chooser          a script that chooses instead
//!   state             the choice, under the lock   peer_list        the peers of the servers
//!     balance         which peer is next           queue            requests that wait for one
//!     peer · sticky   numbers, sessions            idle             connections that wait for a request
//!   lease · outcome   a peer in use, and its end
//! ```
//!
//! Nothing here waits while a lock is held.

mod balance;
mod chooser;
mod group;
mod groups;
mod idle;
mod lease;
mod lookup;
mod names;
mod outcome;
mod peer;
mod peer_list;
mod queue;
mod secure;
mod selection;
mod server;
mod settings;
mod state;
mod sticky;

pub use balance::{
    BalanceMethod, ConsistentHash, Hash, IpHash, LeastConn, LeastTime, Random, RandomTwo,
    RoundRobin, TimeMetric,
};
pub use chooser::{
    NoChoice, PendingChooser, ServerChoice, ServerChooser, TimeoutOverrides, TryHistory,
};
pub use group::Group;
pub use groups::{Groups, Reference};
pub use idle::{Connection, Reuse, close_idle};
pub use lease::Lease;
pub use lookup::{Found, lookup, peer_address};
pub use names::Names;
pub use outcome::{NoPeer, Outcome, Released, Times};
pub use peer::{Health, Peer, PeerStatus};
pub use secure::{Asked, NotSecure, Secure};
pub use selection::{Selection, SelectionRequest};
pub use server::{NameToResolve, ResolvedAddress, Server, ServerState};
pub use settings::{AnyChooser, Keepalive, Origin, Queue, Settings};
pub use state::GroupState;
pub use sticky::{CookieAttributes, Learn, MAX_SERVER_ID, Sticky, StickyMethod, is_same_site};
