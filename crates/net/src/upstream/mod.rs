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
//! let mut selection = group.select(key, client, sticky);
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
//! Nothing here waits while a lock is held.

mod balance;
mod group;
mod groups;
mod idle;
mod lookup;
mod names;
mod peer;
mod secure;
mod selection;
mod state;
mod sticky;

pub use group::{
    Balance, Group, Keepalive, Metric, Queue, RandomTwo, ResolvedAt, Server, ServerState, Settings,
};
pub use groups::{Groups, Origin, Reference};
pub use idle::{Connection, Reuse, close_idle};
pub use lookup::{Found, lookup, peer_address};
pub use names::Names;
pub use peer::{Health, Peer, PeerStatus};
pub use secure::{Asked, NotSecure, Secure};
pub use selection::{Lease, NoPeer, Outcome, Pick, Released, Request, Selection, Times};
pub use state::{GroupState, Resolved};
pub use sticky::{CookieAttributes, Learn, MAX_SERVER_ID, Sticky, StickyMethod, is_same_site};
