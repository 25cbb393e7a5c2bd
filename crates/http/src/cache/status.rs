//! What the cache did with a request, in nginx's words.

/// What the cache did with a request: `$upstream_cache_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing was stored; the origin was asked.
    Miss,
    /// `…_cache_bypass` said not to look.
    Bypass,
    /// What was stored is stale; the origin was asked.
    Expired,
    /// What was stored is stale and was served, because the origin failed or is asked in the background.
    Stale,
    /// What was stored is stale and was served, because another request is renewing it.
    Updating,
    /// What was stored is stale, and the origin answered 304: it was served, and is fresh again.
    Revalidated,
    /// What was stored was served.
    Hit,
}

impl Status {
    /// nginx's word.
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
