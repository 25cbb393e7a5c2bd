//! The numbers that servers and locations have in a configuration, for whatever refers to them without holding them.

pub use net::server_name::ServerId;

/// The number of a location in its [`FrozenHttp`](crate::http_site::FrozenHttp). A server that a reload takes over keeps its
/// list, and the numbers in it: they are in its settings, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LocationId {
    /// The list, one for each server. Not the server's own number, which says where its block stands.
    pub(crate) block: u32,
    /// The place in the list.
    pub(crate) index: u32,
}

impl LocationId {
    /// A number for the location that no other one has, in this generation or in one nearby.
    pub fn tag(self, generation: u64) -> u64 {
        let number = u64::from(self.block) << 32 | u64::from(self.index);
        // An odd factor spreads generations over all bits.
        number ^ generation.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
