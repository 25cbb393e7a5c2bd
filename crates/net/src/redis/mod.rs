//! Redis or Valkey, which keep what the members of a cluster share: commands over connections of our own.
//!
//! ```text
//! settings     where it is, and who we are to it
//! reply        replies as they arrive: the codec is the crate `redis-protocol`
//! connection   one connection: TLS, AUTH, a batch of commands and their replies
//! locate       which server is the master: a list, Sentinel, redirects of a Redis Cluster
//! client       the task that sends the commands of all loops in batches
//! ```
//!
//! One loop has the connection; the others hand their commands to it and wait for the reply, or do not. Nothing that
//! answers a client waits for it except a purge, which says so. All keys of a cluster have one hash tag, so that a Redis
//! Cluster keeps them in one slot, and scripts may use several of them.

mod client;
mod connection;
mod locate;
mod reply;
mod settings;

pub use client::{PendingReply, RedisClient, RedisFault};
pub use connection::{RedisCommand, RedisConnection};
pub use reply::{RedisReply, elements_of, number_of, text_of};
pub use settings::{RedisServer, RedisSettings};
