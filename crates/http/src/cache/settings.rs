//! What the `…_cache` directives say in a location. The rows are in `modules/shared/upstream_rows`.

use std::sync::Arc;
use std::time::Duration;

use base::ByteSlice as _;
use conf::Expression;
use proto::caching::Rules;
use proto::message::Method;

use super::zone::Cache;
use crate::upstream::RetryReasons;

/// The cache settings of a location. Names are those of the directives without `…_cache_`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Which cache, if any.
    pub cache: Which,
    /// The key; `None`: the protocol's own.
    pub key: Option<Expression>,
    /// How long responses of a status that say nothing themselves are fresh, in seconds; no status is any.
    pub valid: Vec<(Option<u16>, u32)>,
    /// Bits of the methods that are looked up, beside GET and HEAD.
    pub methods: u32,
    /// From which request for a key on its response is stored.
    pub min_uses: i64,
    /// The cache is not asked if one of these is true.
    pub bypass: Vec<Expression>,
    /// The response is not stored if one of these is true.
    pub no_cache: Vec<Expression>,
    /// The key is purged if one of these is true.
    pub purge: Vec<Expression>,
    /// When a stale object is served.
    pub use_stale: RetryReasons,
    /// Stale objects are renewed beside the request that meets them.
    pub background_update: bool,
    /// Stale objects are renewed with a conditional request.
    pub revalidate: bool,
    /// One fetch per key, which all requests follow.
    pub lock: bool,
    /// How long a request waits for the head of another one's fetch; `None`: as long as that takes.
    pub lock_timeout: Option<Duration>,
    /// A fetch that is older and not complete is not waited for any more; `None`: never.
    pub lock_age: Option<Duration>,
    /// HEAD is fetched as GET.
    pub convert_head: bool,
    /// Ranges that begin here or further on are passed by the cache.
    pub max_range_offset: Option<u64>,
    /// A range of what is not stored is asked for as a range, and kept as a part.
    pub partial: bool,
    /// A response without validators that broke off is asked for again if no more than this had come, in bytes.
    pub repeat_max: u64,
    /// How long a key whose response could not be stored is remembered.
    pub uncacheable_time: Duration,
    /// What the client's `Cache-Control` says counts.
    pub request_control: bool,
    /// A variant by `Accept-Language` answers clients that prefer its language.
    pub language: bool,
    /// A response to POST that says that it is what GET would get is stored for GET.
    pub post: bool,
    /// An unsafe request that succeeded purges the key.
    pub invalidate: bool,
    /// The `Cache-Status` field that responses get.
    pub status_header: StatusHeader,
    /// The rules by which responses are judged.
    pub rules: Rules,
}

/// Which cache a location uses.
#[derive(Clone, Debug, Default)]
pub enum Which {
    /// None.
    #[default]
    Off,
    /// This one.
    Cache(Arc<Cache>),
    /// The one that the value names.
    Value(Expression),
}

/// Whether responses tell what the cache did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatusHeader {
    /// They do not.
    #[default]
    Off,
    /// By `Cache-Status` (RFC 9211), under this name.
    Named(bstr::BString),
}

impl Settings {
    /// Whether there is a cache at all.
    pub fn is_on(&self) -> bool {
        !matches!(self.cache, Which::Off)
    }

    /// Whether the key tells users apart, so that what `Authorization` brought is found by that user alone.
    pub fn key_has_credentials(&self) -> bool {
        let named = [
            &b"$http_authorization"[..],
            b"${http_authorization}",
            b"$remote_user",
            b"${remote_user}",
        ];
        let key = self.key.as_ref();
        key.is_some_and(|key| named.iter().any(|name| key.source().contains_str(name)))
    }

    /// Whether the key tells one range of a response from another, so that a part is all that stands under it.
    pub fn key_has_range(&self) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| {
            let names = key.source().split_str("$").skip(1);
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_{".contains(byte);
            let mut names =
                names.map(|text| &text[..text.iter().take_while(|b| is_word(b)).count()]);
            names.any(|name| name.contains_str("range"))
        })
    }

    /// Whether requests of this method are looked up.
    pub fn has_method(&self, method: Method) -> bool {
        matches!(method, Method::Get | Method::Head) || self.methods & method.bit() != 0
    }

    /// How long a response of this status is fresh that says nothing itself, in seconds.
    pub fn valid_s(&self, status: u16) -> Option<u32> {
        self.valid
            .iter()
            .find(|(known, _)| known.is_none_or(|known| known == status))
            .map(|(_, seconds)| *seconds)
    }
}
