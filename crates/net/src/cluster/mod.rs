//! A cluster: servers that share the work of one cache. Who its members are, which of them owns a key, and how they
//! recognize each other.
//!
//! ```text
//! cluster_settings   what the configuration says, and the registry of all clusters
//! membership         the members, which of them answer, and the order in which a key is asked for
//! member_tls         certificates of members
//! member_verdict     what a member that is asked for a key does
//! rendezvous         the arithmetic of that order: pure functions
//! rate_share         the part of a common rate that a member may use; slot_share: of a limit of what is in progress
//! peer_token         the line by which a request of a member is recognized
//! refusal_log        when it is logged that a request was of no member
//! purge_journal      the purges of a zone, in Redis; journal_position: what a reader makes of what it finds there;
//!                    kept_entries: which of them a member may be named for
//! ```
//!
//! Nothing here knows HTTP: a key is a number, a request is a text that is signed, and whether a member answers is told
//! by those who ask it.

mod cluster_settings;
mod journal_position;
mod kept_entries;
mod member_tls;
mod member_verdict;
mod membership;
mod peer_token;
mod purge_journal;
mod rate_share;
mod refusal_log;
mod rendezvous;
mod slot_share;

pub use cluster_settings::{
    Cluster, ClusterSettings, Clusters, JournalAway, JournalSettings, MemberList, MemberSource,
};
pub use journal_position::{JournalId, JournalPosition};
pub use member_tls::MemberTls;
pub use member_verdict::{
    AskedWork, FillSource, MemberQuestion, MemberVerdict, judge_member, may_wait_for,
};
pub use membership::{
    ClusterMember, ClusterRoute, ClusterState, ClusterView, MemberUse, RouteStep,
};
pub use peer_token::{PeerClaim, PeerToken, TokenFault, hash_of_key};
pub use purge_journal::{JournalReading, JournalTarget, KeptAnswer, PurgeJournal, read_journal};
pub use rate_share::{RATE_SCRIPT, RateReport, RateShare, WHOLE, equal_weight, scaled, unscaled};
pub use refusal_log::RefusalLog;
pub use slot_share::{SLOT_SCRIPT, SlotShare};

#[cfg(test)]
mod simulation;
