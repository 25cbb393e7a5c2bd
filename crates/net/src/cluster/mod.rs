//! A cluster: servers that share the work of one cache. Who its members are, which of them owns a key, and how they
//! recognize each other.
//!
//! ```text
//! cluster_settings   what the configuration says, and the registry of all clusters
//! membership         the members, which of them answer, and the order in which a key is asked for
//! rendezvous         the arithmetic of that order: pure functions
//! peer_token         the line by which a request of a member is recognized
//! ```
//!
//! Nothing here knows HTTP: a key is a number, a request is a text that is signed, and whether a member answers is told
//! by those who ask it.

mod cluster_settings;
mod membership;
mod peer_token;
mod rendezvous;

pub use cluster_settings::{Cluster, ClusterSettings, Clusters, MemberSource};
pub use membership::{
    ClusterMember, ClusterRoute, ClusterState, ClusterView, MemberUse, RouteStep,
};
pub use peer_token::{PeerClaim, PeerToken, TokenFault, hash_of_key};
