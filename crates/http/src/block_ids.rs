//! The numbers that servers and locations have in a configuration, for whatever refers to them without holding them.

pub use net::server_name::ServerId;

/// The number of a location in its [`FrozenHttp`](crate::http_site::FrozenHttp).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);
