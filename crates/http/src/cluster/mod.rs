//! What a cluster is to HTTP: how members ask each other, and how they recognize each other's requests.
//!
//! ```text
//! who asks                                       who is asked
//! cache/cluster_fetch ─ peer_exchange ──────────▶ admit_member (post_read: 403 for all others) ─ cache/cluster_answer
//!                      Weir-Cluster: …                                        │
//!                      ◀──────────────────────────── Weir-Cluster-Object: … ──┘ object_field
//! ```
//!
//! A member asks with the request of its client: same method, host, target and fields, so that the other one comes to the
//! same server, the same location and the same key. The answer is what is stored, not what the location would make of it;
//! that is done once, where the client is. Members, owners and signatures are `net::cluster`.

mod admit_member;
mod object_field;
mod peer_exchange;

pub(crate) use admit_member::admit_member;
pub use admit_member::{claim_of, is_of_member};
pub use object_field::age_of_member;
pub(crate) use object_field::{ObjectField, PeerVerdict, RESPONSE_FIELD, freshness_here};
pub(crate) use peer_exchange::{AskedMember, PeerExchange};
