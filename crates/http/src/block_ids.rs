//! The numbers of servers and locations in a configuration, for code that refers to them without holding them.

/// The number of a server in its [`Frozen`](crate::site::Frozen).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServerId(pub u32);

/// The number of a location in its [`Frozen`](crate::site::Frozen).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId(pub u32);
