//! The cache status of a response, in nginx's terms.

/// The value of `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing was stored, and the origin was asked.
    Miss,
    /// `…_cache_bypass` prevented the lookup.
    Bypass,
    /// The stored response is stale, and the origin was asked.
    Expired,
    /// A stale response was served, because the origin failed or is being asked in the background.
    Stale,
    /// A stale response was served, because another request is already renewing it.
    Updating,
    /// The stored response was stale; the origin confirmed it by a 304, and it was served.
    Revalidated,
    /// The stored response was served.
    Hit,
}

impl Status {
    /// The word in nginx's log.
    pub fn word(self) -> &'static str {
        match self {
            Status::Miss => "MISS",
            Status::Bypass => "BYPASS",
            Status::Expired => "EXPIRED",
            Status::Stale => "STALE",
            Status::Updating => "UPDATING",
            Status::Revalidated => "REVALIDATED",
            Status::Hit => "HIT",
        }
    }
}
