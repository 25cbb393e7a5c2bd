//! The `…_cache` directives of a location. Their rows are in `modules/shared/upstream_rows`.

use std::sync::Arc;
use std::time::Duration;

use base::ByteSlice as _;
use conf::Expression;
use net::cluster::Cluster;
use proto::caching::StoringRules;
use proto::message::Method;

use super::zone::CacheZone;
use crate::upstream::RetryReasons;

/// A condition, and where it stands, to explain why nothing was cached.
#[derive(Clone, Debug)]
pub struct CacheCondition {
    /// True if it is neither empty nor `0`.
    pub value: Expression,
    /// The name of the file and the line.
    pub place: Arc<str>,
}

/// The cache settings of a location. Names are those of the directives without `…_cache_`.
#[derive(Clone, Debug, Default)]
pub struct CacheSettings {
    /// Which cache the location uses, if any.
    pub cache: CacheChoice,
    /// The cluster whose members fetch for each other.
    pub cluster: Option<Arc<Cluster>>,
    /// The key; `None`: the protocol's own.
    pub key: Option<Expression>,
    /// Lifetimes in seconds for responses that declare none themselves; `None` as status is `any`.
    pub valid: Vec<(Option<u16>, u32)>,
    /// Bits of the methods that are looked up besides GET and HEAD.
    pub methods: u32,
    /// The number of requests for a key from which on its response is stored.
    pub min_uses: i64,
    /// If one of these is true, nothing is looked up.
    pub bypass: Vec<CacheCondition>,
    /// If one of these is true, the response is not stored.
    pub no_cache: Vec<CacheCondition>,
    /// If one of these is true, the key is purged.
    pub purge: Vec<Expression>,
    /// The cases in which a stale object is served.
    pub use_stale: RetryReasons,
    /// Stale objects are renewed in the background.
    pub background_update: bool,
    /// Stale objects are renewed by conditional requests.
    pub revalidate: bool,
    /// Requests for the same key share one fetch.
    pub lock: bool,
    /// How long a request waits for the head of another request's fetch; `None`: without limit.
    pub lock_timeout: Option<Duration>,
    /// A fetch older than this that is not complete is no longer waited for; `None`: never.
    pub lock_age: Option<Duration>,
    /// HEAD is sent to the origin as GET.
    pub convert_head: bool,
    /// Ranges that begin here or later are not cached.
    pub max_range_offset: Option<u64>,
    /// If nothing is stored, only the client's range is fetched, and stored as a part.
    pub partial: bool,
    /// A response without validators that breaks off is requested again, if at most this number of bytes had arrived.
    pub repeat_max: u64,
    /// How long a key is remembered as hit-for-miss.
    pub uncacheable_time: Duration,
    /// The client's `Cache-Control` is observed; nginx ignores it.
    pub request_control: bool,
    /// A variant by `Accept-Language` is served to all clients that prefer its language.
    pub language: bool,
    /// A response to POST that is declared to be what GET would return is stored for GET.
    pub post: bool,
    /// A successful unsafe request purges the key.
    pub invalidate: bool,
    /// The `Cache-Status` header of responses.
    pub status_header: StatusHeader,
    /// The rules that decide whether a response may be stored, and for how long.
    pub rules: StoringRules,
}

/// Which cache a location uses.
#[derive(Clone, Debug, Default)]
pub enum CacheChoice {
    /// None.
    #[default]
    Off,
    /// A fixed one.
    Cache(Arc<CacheZone>),
    /// The one that this value names, evaluated for each request.
    Value(Expression),
}

/// Whether responses report what the cache did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StatusHeader {
    /// No.
    #[default]
    Off,
    /// In `Cache-Status` (RFC 9211), with this name for the cache.
    Named(bstr::BString),
}

impl CacheSettings {
    /// Whether the location may use a cache. A value that evaluates to `off` is found out per request.
    pub fn is_on(&self) -> bool {
        !matches!(self.cache, CacheChoice::Off)
    }

    /// Whether the key distinguishes users. Then a response to a request with `Authorization` can be reached by that
    /// user alone, and the restriction of RFC 9111, section 3.5 is not needed.
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

    /// Whether the key distinguishes ranges. Then a 206 is all that belongs under its key, as with `slice`.
    pub fn key_has_range(&self) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| {
            // `$slice_range`, `$http_range`, or a variable of a `map` whose name says that it is a range.
            let names = key.source().split_str("$").skip(1);
            let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_{".contains(byte);
            let mut names =
                names.map(|text| &text[..text.iter().take_while(|b| is_word(b)).count()]);
            names.any(|name| name.contains_str("range"))
        })
    }

    /// Whether requests with this method are looked up.
    pub fn has_method(&self, method: Method) -> bool {
        matches!(method, Method::Get | Method::Head) || self.methods & method.bit() != 0
    }

    /// The lifetime in seconds for a response with this status that declares none itself.
    pub fn valid_s(&self, status: u16) -> Option<u32> {
        self.valid
            .iter()
            // As in nginx, the first matching line wins, `any` included.
            .find(|(known, _)| known.is_none_or(|known| known == status))
            .map(|(_, seconds)| *seconds)
    }
}
