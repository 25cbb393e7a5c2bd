//! Groups of upstream servers: `upstream NAME { … }`, and the implicit group behind `proxy_pass http://host:port`.
//!
//! The words used here:
//!
//! - A *server* is a line of the configuration. It has one or more addresses.
//! - A *peer* is one of those addresses: what a connection is made to.
//! - An [`UpstreamGroup`] is what the configuration says; it does not change. One exists per generation.
//! - A [`GroupState`] is what is going on: connections in use, failures, waiters, idle connections. It is shared by all
//!   loops, so that the balancers and limits behave as if there were one worker, and a reload keeps it by name.
//! - A [`PeerSelection`] is what one request remembers of its tries; a [`PeerLease`] is a peer that it was given, for
//!   as long as the request uses it.
//!
//! ```text
//! let mut selection = PeerSelection::new(group, &SelectionRequest { key, client, sticky });
//! let lease = selection.acquire().await?;              // may wait in the queue of the group
//! let connection = match lease.take_idle_connection(ReuseTerms::of(tag)).await {
//!     Some(connection) => connection,
//!     None => {
//!         let socket = net::connect(lease.address(), &options).await?;
//!         PeerConnection::new(PeerStream::Socket(Transport::plain(socket)), ReuseTerms::of(tag))
//!     }
//! };
//! …
//! lease.keep_connection(connection);
//! selection.release_peer(lease, PeerOutcome::Ok(times));
//! ```
//!
//! ```text
//! settings · server   what directives say          groups · group   by name, and with its state
//! configured_lookup   addresses at the start       name_watchers    addresses that change later
//! peer_tls            TLS to peers                 chooser          a script that chooses instead
//! selection           the tries of a request       peer_list        the peers of the servers
//!   group_state       the choice, under the lock   queue            requests that wait for one
//!     balance         which peer is next           idle             connections that wait for a request
//!     peer · peer_load · sticky   numbers, counters, sessions
//!   lease · outcome   a peer in use, and its end
//! ```
//!
//! Nothing here waits while a lock is held.

mod balance;
mod chooser;
mod configured_lookup;
mod group;
mod group_state;
mod groups;
mod idle;
mod lease;
mod metrics;
mod name_watchers;
mod outcome;
mod peer;
mod peer_list;
mod peer_load;
mod peer_tls;
mod queue;
mod selection;
mod server;
mod settings;
mod sticky;

pub use balance::{
    BalanceMethod, ConsistentHash, HashMethod, IpHash, LeastConn, LeastTime, RandomMethod,
    RandomTwo, RoundRobin, TimeMetric,
};
pub use chooser::{
    NoChoice, PendingChooser, ServerChoice, ServerChooser, TimeoutOverrides, TryHistory,
};
pub use configured_lookup::{
    HostLookup, lookup_configured, names_asked, note_name_asked, peer_address,
};
pub use group::UpstreamGroup;
pub use group_state::{GroupState, TooManyServers};
pub use groups::{GroupReference, UpstreamGroups};
pub use idle::{PeerConnection, PeerStream, QuicPeerStream, ReuseTerms, close_idle};
pub use lease::PeerLease;
pub use name_watchers::NameWatchers;
pub use outcome::{NoPeer, PeerOutcome, PeerTraffic, ReleasedPeer, UpstreamTimes};
pub use peer::{CheckTotals, PeerHealth, PeerStatus, UpstreamPeer};
pub use peer_tls::{CertifiedName, HandshakeParameters, UpstreamTls, UpstreamTlsError};
pub use selection::{PeerSelection, SelectionRequest};
pub use server::{NameToResolve, ResolvedAddress, ServerState, UpstreamServer};
pub use settings::{AnyChooser, GroupOrigin, GroupSettings, KeepaliveSettings, QueueSettings};
pub use sticky::{
    CookieAttributes, MAX_SERVER_ID, SessionSum, StickyLearn, StickyMethod, StickySettings,
    is_same_site,
};
