//! Whether a response may be stored, and for how long it is fresh (RFC 9111, sections 3 and 4.2).

use std::sync::Arc;

use super::freshness::{Freshness, LifetimeSource, initial_age_s};
use super::{targeted, vary};
use crate::cache_control::{CacheControl, DeltaSeconds};
use crate::date;
use crate::fields::Fields;
use crate::known_fields::KnownField;

/// A response, as far as its storing depends on it.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedResponse<'a> {
    /// Its status.
    pub status: u16,
    /// Its fields, as received.
    pub fields: &'a Fields,
    /// When the request was sent to the origin, in milliseconds since the epoch.
    pub requested_ms: u64,
    /// When its header arrived.
    pub received_ms: u64,
}

/// The request, as far as storing depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoringRequest {
    /// The client sent `Authorization`, and the cache key does not contain it.
    pub authorization: bool,
}

/// What the operator has configured.
#[derive(Clone, Debug)]
pub struct StoringRules {
    /// The names of targeted fields in lower case, the most important first (RFC 9213).
    pub targeted: Arc<[Box<[u8]>]>,
    /// The lifetime of responses that have none of their own.
    pub heuristic: Option<HeuristicLifetime>,
    /// The headers that are ignored: the constants of [`StoringRules`].
    pub ignore: u8,
    /// Stale responses are revalidated, so it is worth storing even those that must be validated at
    /// once.
    pub revalidate: bool,
    /// Whether `must-revalidate`, `proxy-revalidate`, `s-maxage` and `no-cache` forbid serving
    /// stale responses.
    pub obey_must_revalidate: bool,
    /// Whether responses to requests with `Authorization` are shared, as in nginx.
    pub share_authorized: bool,
}

/// A lifetime guessed from the age of the content (RFC 9111 section 4.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeuristicLifetime {
    /// The percentage of the time since `Last-Modified`.
    pub percent: u32,
    /// The maximum, in seconds.
    pub max_s: u32,
}

impl StoringRules {
    /// Ignore Cache-Control and targeted fields.
    pub const CACHE_CONTROL: u8 = 1;
    /// Ignore Expires.
    pub const EXPIRES: u8 = 2;
    /// Ignore X-Accel-Expires.
    pub const X_ACCEL_EXPIRES: u8 = 4;
    /// Store responses that set cookies.
    pub const SET_COOKIE: u8 = 8;
    /// Ignore Vary.
    pub const VARY: u8 = 16;

    fn ignores(&self, what: u8) -> bool {
        self.ignore & what != 0
    }
}

impl Default for StoringRules {
    fn default() -> StoringRules {
        StoringRules {
            targeted: Arc::from([Box::from(&b"cdn-cache-control"[..])]),
            heuristic: None,
            ignore: 0,
            revalidate: false,
            obey_must_revalidate: true,
            share_authorized: false,
        }
    }
}

/// Whether a response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoringVerdict {
    /// It is stored.
    Store(Freshness),
    /// It must not be stored, or is not worth it.
    Pass(NotStoredReason),
}

/// Why a response is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStoredReason {
    /// `no-store`
    NoStore,
    /// `private`
    Private,
    /// `no-cache`, and responses are never validated.
    NoCache,
    /// `must-understand`, and the status is unknown here.
    NotUnderstood,
    /// It sets a cookie.
    SetCookie,
    /// `Vary: *`, or more names than we support.
    Vary,
    /// The request had `Authorization`, and the origin does not permit sharing.
    Authorization,
    /// It has no lifetime.
    NoLifetime,
    /// It was stale on arrival, or has `X-Accel-Expires: 0`.
    Stale,
}

impl NotStoredReason {
    /// A word for logs and for the `detail` of Cache-Status.
    pub fn reason_word(self) -> &'static str {
        match self {
            NotStoredReason::NoStore => "no-store",
            NotStoredReason::Private => "private",
            NotStoredReason::NoCache => "no-cache",
            NotStoredReason::NotUnderstood => "must-understand",
            NotStoredReason::SetCookie => "set-cookie",
            NotStoredReason::Vary => "vary",
            NotStoredReason::Authorization => "authorization",
            NotStoredReason::NoLifetime => "no freshness",
            NotStoredReason::Stale => "stale",
        }
    }
}

/// Decides about a final response. `configured_s` is the lifetime that the configuration has for
/// its status, in seconds; it counts if the response has none. Whether the method or a 206 may be
/// stored at all is the caller's decision.
///
/// The order is nginx's: X-Accel-Expires, Cache-Control, Expires; a targeted field takes the place
/// of Cache-Control.
pub fn decide_storing(
    response: &ReceivedResponse<'_>,
    request: &StoringRequest,
    rules: &StoringRules,
    configured_s: Option<u32>,
) -> StoringVerdict {
    let fields = response.fields;
    if !rules.ignores(StoringRules::SET_COOKIE) && fields.has(KnownField::SetCookie) {
        return StoringVerdict::Pass(NotStoredReason::SetCookie);
    }
    if !rules.ignores(StoringRules::VARY) && matches!(vary::of(fields), vary::Vary::Any) {
        return StoringVerdict::Pass(NotStoredReason::Vary);
    }
    let said = ResponseDirectives::of(fields, rules);
    let accelerated = match rules.ignores(StoringRules::X_ACCEL_EXPIRES) {
        true => None,
        false => fields
            .get_known(KnownField::XAccelExpires)
            .and_then(AccelExpires::parse),
    };
    if let Err(why) = said.permission(response.status, request, rules, accelerated.is_some()) {
        return StoringVerdict::Pass(why);
    }
    let lifetime = match accelerated {
        Some(AccelExpires::Never) => return StoringVerdict::Pass(NotStoredReason::Stale),
        Some(AccelExpires::For(seconds)) => {
            FreshnessLifetime::from_now(seconds, LifetimeSource::XAccelExpires)
        }
        Some(AccelExpires::Until(time_s)) => FreshnessLifetime::Until(time_s.saturating_mul(1000)),
        None => said.lifetime(response, rules, configured_s),
    };
    said.verdict(response, rules, lifetime, accelerated.is_some())
}

/// A response's lifetime.
enum FreshnessLifetime {
    /// A number of seconds from its creation, or from now.
    Seconds {
        seconds: u32,
        source: LifetimeSource,
        /// The time in other caches counts.
        is_aged: bool,
    },
    /// Until a time, in milliseconds since the epoch: `X-Accel-Expires: @…`. As in nginx it may be
    /// in the past.
    Until(u64),
    Unknown,
}

impl FreshnessLifetime {
    fn from_now(seconds: u32, source: LifetimeSource) -> FreshnessLifetime {
        FreshnessLifetime::Seconds {
            seconds,
            source,
            is_aged: false,
        }
    }

    fn from_creation(seconds: u32, source: LifetimeSource) -> FreshnessLifetime {
        FreshnessLifetime::Seconds {
            seconds,
            source,
            is_aged: true,
        }
    }
}

/// `X-Accel-Expires`: seconds, or `@` with seconds since the epoch.
#[derive(Clone, Copy)]
enum AccelExpires {
    Never,
    For(u32),
    Until(u64),
}

impl AccelExpires {
    fn parse(value: &[u8]) -> Option<AccelExpires> {
        let (digits, is_time) = match value.strip_prefix(b"@") {
            Some(digits) => (digits, true),
            None => (value, false),
        };
        if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = digits
            .iter()
            .fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
        Some(match (is_time, u32::try_from(number)) {
            (true, _) => AccelExpires::Until(number),
            (false, Ok(0)) => AccelExpires::Never,
            (false, Ok(seconds)) => AccelExpires::For(seconds.min(DeltaSeconds::MAX)),
            (false, Err(_)) => AccelExpires::For(DeltaSeconds::MAX),
        })
    }
}

/// What a response says about its caching.
struct ResponseDirectives {
    control: CacheControl,
    /// `control` is from a targeted field, so Expires is ignored.
    is_targeted: bool,
}

impl ResponseDirectives {
    fn of(fields: &Fields, rules: &StoringRules) -> ResponseDirectives {
        if rules.ignores(StoringRules::CACHE_CONTROL) {
            return ResponseDirectives {
                control: CacheControl::default(),
                is_targeted: false,
            };
        }
        match targeted::targeted_cache_control(fields, &rules.targeted) {
            Some(control) => ResponseDirectives {
                control,
                is_targeted: true,
            },
            None => ResponseDirectives {
                control: CacheControl::parse(fields.all_known(KnownField::CacheControl)),
                is_targeted: false,
            },
        }
    }

    /// Whether it may be stored at all. X-Accel-Expires is addressed to this server, so it
    /// overrides Cache-Control.
    fn permission(
        &self,
        status: u16,
        request: &StoringRequest,
        rules: &StoringRules,
        is_accelerated: bool,
    ) -> Result<(), NotStoredReason> {
        let control = &self.control;
        if control.must_understand && !is_understood(status) {
            return Err(NotStoredReason::NotUnderstood);
        }
        if is_accelerated {
            return Ok(());
        }
        // A cache that knows the status ignores `no-store` beside `must-understand` (section
        // 5.2.2.3).
        if control.no_store && !control.must_understand {
            return Err(NotStoredReason::NoStore);
        }
        if control.private_whole {
            return Err(NotStoredReason::Private);
        }
        // These permit sharing in spite of `Authorization` (section 3.5).
        let for_all =
            control.public || control.must_revalidate || control.s_maxage != DeltaSeconds::Absent;
        if request.authorization && !for_all && !rules.share_authorized {
            return Err(NotStoredReason::Authorization);
        }
        Ok(())
    }

    /// The lifetime, from the first source that has one (section 4.2.1).
    fn lifetime(
        &self,
        response: &ReceivedResponse<'_>,
        rules: &StoringRules,
        configured_s: Option<u32>,
    ) -> FreshnessLifetime {
        let source = match self.is_targeted {
            true => LifetimeSource::Targeted,
            false => LifetimeSource::CacheControl,
        };
        for age in [self.control.s_maxage, self.control.max_age] {
            match age {
                DeltaSeconds::Absent => {}
                DeltaSeconds::Seconds(seconds) => {
                    return FreshnessLifetime::from_creation(seconds, source);
                }
                DeltaSeconds::Invalid => return FreshnessLifetime::from_creation(0, source),
            }
        }
        let expires = response.fields.get_known(KnownField::Expires);
        if let Some(expires) = expires
            && !self.is_targeted
            && !rules.ignores(StoringRules::EXPIRES)
        {
            return FreshnessLifetime::from_creation(
                expires_s(expires, response),
                LifetimeSource::Expires,
            );
        }
        if let Some(seconds) = configured_s {
            return FreshnessLifetime::from_now(seconds, LifetimeSource::Configured);
        }
        match heuristic_s(response, &self.control, rules) {
            Some(seconds) => FreshnessLifetime::from_creation(seconds, LifetimeSource::Heuristic),
            None => FreshnessLifetime::Unknown,
        }
    }

    fn verdict(
        &self,
        response: &ReceivedResponse<'_>,
        rules: &StoringRules,
        lifetime: FreshnessLifetime,
        is_accelerated: bool,
    ) -> StoringVerdict {
        let control = &self.control;
        let always_revalidate = control.no_cache_whole && !is_accelerated;
        let age_s = initial_age_s(
            response.fields,
            response.received_ms.saturating_sub(response.requested_ms),
        );
        let (fresh_until_ms, source, is_stale) = match lifetime {
            FreshnessLifetime::Unknown if always_revalidate => {
                (response.received_ms, LifetimeSource::Nobody, true)
            }
            FreshnessLifetime::Unknown => return StoringVerdict::Pass(NotStoredReason::NoLifetime),
            FreshnessLifetime::Until(time_ms) => (time_ms, LifetimeSource::XAccelExpires, false),
            FreshnessLifetime::Seconds {
                seconds,
                source,
                is_aged,
            } => {
                let left = seconds.saturating_sub(if is_aged { age_s } else { 0 });
                let until = response.received_ms.saturating_add(u64::from(left) * 1000);
                (until, source, left == 0)
            }
        };
        let forbidden = always_revalidate || control.must_revalidate || control.proxy_revalidate;
        // `no-cache` and `must-revalidate` forbid stale responses, whatever RFC 5861's directives
        // permit.
        let grace = |age: DeltaSeconds| match forbidden && rules.obey_must_revalidate {
            true => 0,
            false => age.seconds().unwrap_or(0),
        };
        let freshness = Freshness {
            received_ms: response.received_ms,
            initial_age_s: age_s,
            fresh_until_ms,
            source,
            while_revalidate_s: grace(control.stale_while_revalidate),
            if_error_s: grace(control.stale_if_error),
            must_revalidate: always_revalidate
                || rules.obey_must_revalidate
                    && (forbidden || control.s_maxage != DeltaSeconds::Absent),
            always_revalidate,
        };
        // What is stale on arrival is only worth storing if it can be served during its validation,
        // or if a 304 may renew it.
        let validates = is_validated(response.status) && has_validator(response.fields);
        let is_useful = freshness.while_revalidate_s > 0 || rules.revalidate && validates;
        match is_stale || always_revalidate {
            true if always_revalidate && !is_useful => {
                StoringVerdict::Pass(NotStoredReason::NoCache)
            }
            true if !is_useful => StoringVerdict::Pass(NotStoredReason::Stale),
            true | false => StoringVerdict::Store(freshness),
        }
    }
}

/// The lifetime by Expires. An invalid date counts as the past (RFC 9111, section 5.3).
fn expires_s(expires: &[u8], response: &ReceivedResponse<'_>) -> u32 {
    let Some(expires) = strict_date(expires) else {
        return 0;
    };
    let date = date_s(response);
    u32::try_from(expires.saturating_sub(date).max(0))
        .unwrap_or(u32::MAX)
        .min(DeltaSeconds::MAX)
}

/// When the response was generated, in seconds since the epoch.
fn date_s(response: &ReceivedResponse<'_>) -> i64 {
    response
        .fields
        .get_known(KnownField::Date)
        .and_then(date::parse)
        .unwrap_or(i64::try_from(response.received_ms / 1000).unwrap_or(i64::MAX))
}

/// Parses a date, whose zone must be GMT if its form has one: another zone would be another time.
fn strict_date(text: &[u8]) -> Option<i64> {
    let zone = text.len().checked_sub(4).map(|at| &text[at..]);
    let is_gmt = zone.is_some_and(|zone| zone.eq_ignore_ascii_case(b" GMT"));
    let has_zone = text.contains(&b',');
    (is_gmt || !has_zone).then(|| date::parse(text))?
}

fn heuristic_s(
    response: &ReceivedResponse<'_>,
    control: &CacheControl,
    rules: &StoringRules,
) -> Option<u32> {
    let heuristic = rules.heuristic?;
    if !control.public && !HEURISTIC.contains(&response.status) {
        return None;
    }
    let modified = date::parse(response.fields.get_known(KnownField::LastModified)?)?;
    let age = u64::try_from(date_s(response).saturating_sub(modified)).ok()?;
    let seconds = age.saturating_mul(u64::from(heuristic.percent)) / 100;
    Some(
        u32::try_from(seconds)
            .unwrap_or(u32::MAX)
            .min(heuristic.max_s),
    )
}

/// The statuses that are heuristically cacheable (RFC 9110, section 15.1). A 206 is only a part of
/// what a 200 would be.
const HEURISTIC: &[u16] = &[200, 203, 204, 206, 300, 301, 308, 404, 405, 410, 414, 501];

/// The statuses whose caching is understood here (RFC 9111, section 5.2.2.3).
fn is_understood(status: u16) -> bool {
    HEURISTIC.contains(&status)
        || matches!(status, 302 | 303 | 307 | 400 | 401 | 402 | 403 | 406..=409 | 411..=413 | 415..=417)
        || matches!(status, 421..=426 | 428 | 429 | 431 | 451 | 500 | 502..=508 | 510 | 511)
}

/// Whether a stale response with this status is validated by a conditional request. As in nginx
/// only those to which validators apply: with anything else an origin would answer with 200 (RFC
/// 9110, section 13.2.1).
pub fn is_validated(status: u16) -> bool {
    matches!(status, 200 | 206)
}

fn has_validator(fields: &Fields) -> bool {
    fields.has(KnownField::Etag) || fields.has(KnownField::LastModified)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000_000;
    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";

    fn fields(text: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in text {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    fn judged(status: u16, text: &[(&str, &str)], rules: &StoringRules) -> StoringVerdict {
        let fields = fields(text);
        let response = ReceivedResponse {
            status,
            fields: &fields,
            requested_ms: NOW - 1500,
            received_ms: NOW,
        };
        decide_storing(&response, &StoringRequest::default(), rules, None)
    }

    /// Seconds of freshness, or why it is not stored.
    fn lifetime(text: &[(&str, &str)]) -> Result<u64, NotStoredReason> {
        seconds(judged(200, text, &StoringRules::default()))
    }

    fn seconds(verdict: StoringVerdict) -> Result<u64, NotStoredReason> {
        match verdict {
            StoringVerdict::Store(freshness) => Ok((freshness.fresh_until_ms - NOW) / 1000),
            StoringVerdict::Pass(why) => Err(why),
        }
    }

    #[test]
    fn who_is_heard_first() {
        let later = ("Expires", "Sun, 09 Sep 2001 01:47:40 GMT");
        let control = ("Cache-Control", "max-age=30");
        let targeted = ("CDN-Cache-Control", "max-age=20");
        let accelerated = ("X-Accel-Expires", "10");
        assert_eq!(lifetime(&[]), Err(NotStoredReason::NoLifetime));
        assert_eq!(lifetime(&[later, ("Date", DATE)]), Ok(60));
        assert_eq!(lifetime(&[later, control]), Ok(30));
        assert_eq!(
            lifetime(&[later, control, ("Cache-Control", "s-maxage=40")]),
            Ok(40)
        );
        assert_eq!(lifetime(&[later, control, targeted]), Ok(20));
        assert_eq!(lifetime(&[later, control, targeted, accelerated]), Ok(10));
        assert_eq!(
            lifetime(&[control, ("X-Accel-Expires", "0")]),
            Err(NotStoredReason::Stale)
        );
        assert_eq!(lifetime(&[control, ("X-Accel-Expires", "x")]), Ok(30));
        assert_eq!(
            lifetime(&[("Cache-Control", "no-cache"), accelerated]),
            Ok(10)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "private"), accelerated]),
            Ok(10)
        );
        assert_eq!(lifetime(&[("Cache-Control", "no-store"), targeted]), Ok(20));
        assert_eq!(
            lifetime(&[("CDN-Cache-Control", "no-store"), control]),
            Err(NotStoredReason::NoStore)
        );
        assert_eq!(
            lifetime(&[
                ("CDN-Cache-Control", "max-age=20, &&"),
                ("Cache-Control", "no-store")
            ]),
            Err(NotStoredReason::NoStore)
        );
        assert_eq!(
            lifetime(&[later, ("CDN-Cache-Control", "public")]),
            Err(NotStoredReason::NoLifetime)
        );
    }

    #[test]
    fn the_configuration_fills_in() {
        let fields = fields(&[
            ("Cache-Control", "stale-while-revalidate=10"),
            ("Age", "500"),
        ]);
        let response = ReceivedResponse {
            status: 200,
            fields: &fields,
            requested_ms: NOW,
            received_ms: NOW,
        };
        let verdict = decide_storing(
            &response,
            &StoringRequest::default(),
            &StoringRules::default(),
            Some(60),
        );
        let StoringVerdict::Store(freshness) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(freshness.while_revalidate_s, 10);
        assert_eq!(freshness.source, LifetimeSource::Configured);
        assert_eq!(
            freshness.fresh_until_ms,
            NOW + 60_000,
            "its age is no matter"
        );
        assert_eq!(freshness.age_s(NOW), 500);
    }

    #[test]
    fn what_may_not_be_stored() {
        let fresh = ("Cache-Control", "max-age=60");
        assert_eq!(
            lifetime(&[fresh, ("Set-Cookie", "a=b")]),
            Err(NotStoredReason::SetCookie)
        );
        assert_eq!(
            lifetime(&[fresh, ("Vary", "a, *")]),
            Err(NotStoredReason::Vary)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60, nO-StOrE")]),
            Err(NotStoredReason::NoStore)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60, private")]),
            Err(NotStoredReason::Private)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60, private=a")]),
            Ok(60)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60, no-cache")]),
            Err(NotStoredReason::NoCache)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60, no-cache=\"a\"")]),
            Ok(60)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=0")]),
            Err(NotStoredReason::Stale)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=x")]),
            Err(NotStoredReason::Stale)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "a=\"max-age=60\"")]),
            Err(NotStoredReason::NoLifetime)
        );
        let understand = ("Cache-Control", "max-age=60, no-store, must-understand");
        assert_eq!(lifetime(&[understand]), Ok(60));
        assert_eq!(
            judged(599, &[understand], &StoringRules::default()),
            StoringVerdict::Pass(NotStoredReason::NotUnderstood)
        );
        let all = StoringRules {
            ignore: StoringRules::SET_COOKIE | StoringRules::VARY | StoringRules::CACHE_CONTROL,
            ..StoringRules::default()
        };
        let text = [
            ("Set-Cookie", "a"),
            ("Vary", "*"),
            ("Cache-Control", "no-store"),
            ("X-Accel-Expires", "5"),
        ];
        assert_eq!(seconds(judged(200, &text, &all)), Ok(5));
    }

    #[test]
    fn age_and_expires_are_reckoned() {
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60"), ("Age", "20")]),
            Ok(39)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=60"), ("Age", "60")]),
            Err(NotStoredReason::Stale)
        );
        let expires = |text: &str| lifetime(&[("Date", DATE), ("Expires", text)]);
        assert_eq!(expires("Sun, 09 Sep 2001 01:46:50 GMT"), Ok(10));
        assert_eq!(expires("SUN, 09 SEP 2001 01:46:50 gMt"), Ok(10));
        assert_eq!(expires("Sun Sep  9 01:46:50 2001"), Ok(10));
        assert_eq!(expires(DATE), Err(NotStoredReason::Stale));
        for bad in [
            "0",
            "Sun, 09 Sep 2001 01:46:50 UTC",
            "Sun, 09 Sep 2001 01:46:50 AEST",
            "Sun 09 Sep 2001 01:46:50 GMT",
            "Sun, 09  Sep  2001 01:46:50 GMT",
            "Sun, 09-Sep-2001 01:46:50 GMT",
            "Sun, 09 Sep 2001 1:46:50 GMT",
            "Sun, 09 Sep 2001 01.46.50 GMT",
            "Sun, 09 Sep 50 01:46:50 GMT",
        ] {
            assert_eq!(expires(bad), Err(NotStoredReason::Stale), "{bad}");
        }
        let fast = [
            ("Date", "Sun, 09 Sep 2001 02:46:40 GMT"),
            ("Expires", "Sun, 09 Sep 2001 02:46:50 GMT"),
        ];
        assert_eq!(lifetime(&fast), Ok(10), "the origin's clock is not ours");
        assert_eq!(lifetime(&[("X-Accel-Expires", "@1000000007")]), Ok(7));
        assert!(matches!(
            judged(200, &[("X-Accel-Expires", "@1")], &StoringRules::default()),
            StoringVerdict::Store(freshness) if freshness.fresh_until_ms == 1000
        ));
    }

    #[test]
    fn what_can_be_asked_for_is_stored() {
        let rules = StoringRules {
            revalidate: true,
            ..StoringRules::default()
        };
        let tag = ("ETag", "\"a\"");
        for control in ["no-cache", "no-cache, max-age=60"] {
            let verdict = judged(200, &[tag, ("Cache-Control", control)], &rules);
            let StoringVerdict::Store(freshness) = verdict else {
                panic!("{control}: {verdict:?}");
            };
            assert!(freshness.always_revalidate && freshness.must_revalidate);
        }
        let stale = [tag, ("Cache-Control", "max-age=0")];
        assert_eq!(seconds(judged(200, &stale, &rules)), Ok(0));
        assert_eq!(
            seconds(judged(200, &[tag], &rules)),
            Err(NotStoredReason::NoLifetime)
        );
        assert_eq!(
            lifetime(&[("Cache-Control", "max-age=0, stale-while-revalidate=5")]),
            Ok(0)
        );
    }

    #[test]
    fn the_origin_may_forbid_stale_use() {
        let of = |control: &str, obey| {
            let rules = StoringRules {
                obey_must_revalidate: obey,
                ..StoringRules::default()
            };
            let text = format!("{control}, stale-while-revalidate=5");
            match judged(200, &[("Cache-Control", &text)], &rules) {
                StoringVerdict::Store(freshness) => {
                    (freshness.must_revalidate, freshness.while_revalidate_s)
                }
                StoringVerdict::Pass(why) => panic!("{control}: {why:?}"),
            }
        };
        assert_eq!(of("max-age=5, must-revalidate", true), (true, 0));
        assert_eq!(of("max-age=5, proxy-revalidate", true), (true, 0));
        assert_eq!(
            of("s-maxage=5", true),
            (true, 5),
            "it asked for that itself"
        );
        assert_eq!(of("max-age=5", true), (false, 5));
        assert_eq!(of("max-age=5, must-revalidate", false), (false, 5));
        assert_eq!(of("s-maxage=5", false), (false, 5));
    }

    #[test]
    fn credentials_are_not_shared() {
        let asked = StoringRequest {
            authorization: true,
        };
        let verdict = |control: &str, rules: &StoringRules| {
            let fields = fields(&[("Cache-Control", control)]);
            let response = ReceivedResponse {
                status: 200,
                fields: &fields,
                requested_ms: NOW,
                received_ms: NOW,
            };
            seconds(decide_storing(&response, &asked, rules, Some(5)))
        };
        let rules = StoringRules::default();
        assert_eq!(
            verdict("max-age=9", &rules),
            Err(NotStoredReason::Authorization)
        );
        assert_eq!(verdict("max-age=9, public", &rules), Ok(9));
        assert_eq!(verdict("max-age=9, must-revalidate", &rules), Ok(9));
        assert_eq!(verdict("s-maxage=9", &rules), Ok(9));
        let shared = StoringRules {
            share_authorized: true,
            ..rules
        };
        assert_eq!(verdict("max-age=9", &shared), Ok(9));
    }

    #[test]
    fn lifetimes_are_guessed_where_asked() {
        let rules = StoringRules {
            heuristic: Some(HeuristicLifetime {
                percent: 10,
                max_s: 50,
            }),
            ..StoringRules::default()
        };
        let modified = |text: &'static str| [("Date", DATE), ("Last-Modified", text)];
        let recent = modified("Sun, 09 Sep 2001 01:41:40 GMT");
        assert_eq!(seconds(judged(200, &recent, &rules)), Ok(30));
        assert_eq!(
            seconds(judged(201, &recent, &rules)),
            Err(NotStoredReason::NoLifetime)
        );
        let public = [recent[0], recent[1], ("Cache-Control", "public")];
        assert_eq!(seconds(judged(599, &public, &rules)), Ok(30));
        let old = modified("Sun, 09 Sep 2000 01:41:40 GMT");
        assert_eq!(seconds(judged(404, &old, &rules)), Ok(50));
        let ahead = modified("Sun, 09 Sep 2002 01:41:40 GMT");
        assert_eq!(
            seconds(judged(200, &ahead, &rules)),
            Err(NotStoredReason::NoLifetime)
        );
        assert_eq!(lifetime(&recent), Err(NotStoredReason::NoLifetime));
    }
}
