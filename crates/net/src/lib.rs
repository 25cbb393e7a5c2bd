//! Connections: accepting them, TLS on them, resolving names, and groups of upstream servers with the choice among
//! them and the idle connections that are kept for reuse.
//!
//! The http and the stream engine both use this, so it knows neither. To it, a request is a hash key, an address
//! and a few bytes of a session; a response is the time it took and whether it failed.
#![forbid(unsafe_code)]

pub mod acceptor;
pub mod client;
mod connect;
pub mod core_rows;
pub mod counters;
pub mod endpoint;
pub mod listen;
pub mod local_time;
pub mod passing;
pub mod resolver;
pub mod server_name;
pub mod tls;
mod transport;
pub mod upstream;

pub use connect::{ConnectSettings, connect};
pub use transport::{ReadFailed, Transport, TransportParts};
