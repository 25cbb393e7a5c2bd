//! The balancing methods: which peer a request gets.
//!
//! Each method is a file here. For the same configuration they choose the same sequence as nginx, so that after a
//! migration a key finds the same server and a round has the same order.
//!
//! ```text
//! group_balancer   primary peers, then backup peers; the group of one server
//!   method         what a method is: how it chooses, and what it observes of requests
//!     round_robin · least_conn · least_time · ip_hash · hash · consistent_hash · random
//!   peer_set       the peers that it chooses from
//!   pick_state     what a request remembers from try to try
//! ```
//!
//! All of this runs under the group's lock and takes the time as an argument.

mod consistent_hash;
mod group_balancer;
mod hash;
mod ip_hash;
mod least_conn;
mod least_time;
mod method;
mod peer_set;
mod pick_state;
mod random;
mod round_robin;

pub use consistent_hash::ConsistentHash;
pub(crate) use group_balancer::GroupBalancer;
pub use hash::HashMethod;
pub use ip_hash::IpHash;
pub use least_conn::LeastConn;
pub use least_time::{LeastTime, TimeMetric};
pub use method::BalanceMethod;
pub(crate) use method::{AfterHead, RequestObserver};
pub(crate) use pick_state::PickState;
pub use random::{RandomMethod, RandomTwo};
pub use round_robin::RoundRobin;
