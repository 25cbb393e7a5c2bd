//! The cache status of a response, in nginx's terms.

/// The value of `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamCacheStatus {
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

impl UpstreamCacheStatus {
    /// The word in nginx's log.
    pub fn nginx_word(self) -> &'static str {
        match self {
            UpstreamCacheStatus::Miss => "MISS",
            UpstreamCacheStatus::Bypass => "BYPASS",
            UpstreamCacheStatus::Expired => "EXPIRED",
            UpstreamCacheStatus::Stale => "STALE",
            UpstreamCacheStatus::Updating => "UPDATING",
            UpstreamCacheStatus::Revalidated => "REVALIDATED",
            UpstreamCacheStatus::Hit => "HIT",
        }
    }
}
