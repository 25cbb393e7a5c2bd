//! One of the two sides of a comparison: a server, the servers behind it and the client before it.
//!
//! Both sides have the same ports, on addresses of their own that are equally long, so that lengths are equal too.

pub(crate) mod certificates;
pub mod client;
mod dns;
pub mod gateway;
mod grpc;
pub mod http2;
pub mod reply;
pub mod server;
pub mod tls;
pub mod upstream;

/// nginx, and then Weir.
pub const ADDRESSES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
/// Names of the sides' folders, equally long too.
pub const FOLDERS: [&str; 2] = ["a", "b"];
