//! Connections to other machines: groups of upstream servers, the choice among them, connections kept for reuse.
//!
//! What is here serves the HTTP engine and the stream engine alike, so it knows neither: a request is a key, an
//! address and a few bytes, and a response is the time that it took and whether it failed. The rows and variables that
//! both have are here too: [`core_rows`], [`endpoint`], [`server_name`], [`resolver::directives`], [`client`].
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod client;
pub mod cluster;
mod connect;
pub mod core_rows;
pub mod counters;
pub mod endpoint;
pub mod listen;
pub mod local_time;
pub mod metrics;
pub mod passing;
pub mod quic;
pub mod redis;
pub mod resolver;
pub mod server_name;
pub mod tls;
mod transport;
pub mod upstream;

pub use connect::{ConnectSettings, connect};
pub use transport::{ReadFailed, Transport, TransportParts};
