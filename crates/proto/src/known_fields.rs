//! The header field names that the server itself handles, as small integers.
//!
//! A name is mapped to a [`KnownField`] once, when its field enters a [`Fields`](crate::fields::Fields);
//! later lookups ("is there a Range?") compare one byte per field instead of texts. Names that only
//! users ask for (`$http_x_anything`) remain texts: [`KnownField::Other`].

/// A header field name that the server handles, or [`KnownField::Other`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KnownField {
    /// Any name that is not in this list.
    Other,
    /// `Host`
    Host,
    /// `Connection`
    Connection,
    /// `Content-Length`
    ContentLength,
    /// `Transfer-Encoding`
    TransferEncoding,
    /// `Expect`
    Expect,
    /// `Upgrade`
    Upgrade,
    /// `TE`
    Te,
    /// `Trailer`
    Trailer,
    /// `Keep-Alive`
    KeepAlive,
    /// `Proxy-Connection`
    ProxyConnection,
    /// `Range`
    Range,
    /// `If-Range`
    IfRange,
    /// `If-Match`
    IfMatch,
    /// `If-None-Match`
    IfNoneMatch,
    /// `If-Modified-Since`
    IfModifiedSince,
    /// `If-Unmodified-Since`
    IfUnmodifiedSince,
    /// `Accept`
    Accept,
    /// `Accept-Encoding`
    AcceptEncoding,
    /// `Accept-Language`
    AcceptLanguage,
    /// `Accept-Charset`
    AcceptCharset,
    /// `User-Agent`
    UserAgent,
    /// `Referer`
    Referer,
    /// `Cookie`
    Cookie,
    /// `Authorization`
    Authorization,
    /// `Proxy-Authorization`
    ProxyAuthorization,
    /// `Content-Type`
    ContentType,
    /// `Content-Range`
    ContentRange,
    /// `Content-Encoding`
    ContentEncoding,
    /// `Content-Language`
    ContentLanguage,
    /// `Content-Disposition`
    ContentDisposition,
    /// `Content-Location`
    ContentLocation,
    /// `Via`
    Via,
    /// `Forwarded`
    Forwarded,
    /// `X-Forwarded-For`
    XForwardedFor,
    /// `X-Forwarded-Host`
    XForwardedHost,
    /// `X-Forwarded-Proto`
    XForwardedProto,
    /// `X-Forwarded-Port`
    XForwardedPort,
    /// `X-Real-IP`
    XRealIp,
    /// `X-Request-ID`
    XRequestId,
    /// `Origin`
    Origin,
    /// `Depth`
    Depth,
    /// `Destination`
    Destination,
    /// `Overwrite`
    Overwrite,
    /// `Date`
    Date,
    /// `Cache-Control`
    CacheControl,
    /// `Pragma`
    Pragma,
    /// `Priority`
    Priority,
    /// `Early-Data`
    EarlyData,
    /// `HTTP2-Settings`
    Http2Settings,
    /// `Upgrade-Insecure-Requests`
    UpgradeInsecureRequests,
    /// `Server`
    Server,
    /// `Location`
    Location,
    /// `ETag`
    Etag,
    /// `Last-Modified`
    LastModified,
    /// `Expires`
    Expires,
    /// `Age`
    Age,
    /// `Vary`
    Vary,
    /// `Accept-Ranges`
    AcceptRanges,
    /// `Allow`
    Allow,
    /// `Set-Cookie`
    SetCookie,
    /// `WWW-Authenticate`
    WwwAuthenticate,
    /// `Proxy-Authenticate`
    ProxyAuthenticate,
    /// `Retry-After`
    RetryAfter,
    /// `Refresh`
    Refresh,
    /// `Link`
    Link,
    /// `Status`
    Status,
    /// `Alt-Svc`
    AltSvc,
    /// `Cache-Status`
    CacheStatus,
    /// `CDN-Cache-Control`
    CdnCacheControl,
    /// `Strict-Transport-Security`
    StrictTransportSecurity,
    /// `X-Accel-Redirect`
    XAccelRedirect,
    /// `X-Accel-Expires`
    XAccelExpires,
    /// `X-Accel-Buffering`
    XAccelBuffering,
    /// `X-Accel-Charset`
    XAccelCharset,
    /// `X-Accel-Limit-Rate`
    XAccelLimitRate,
    /// `X-Pad`
    XPad,
    /// `X-Powered-By`
    XPoweredBy,
    /// `Proxy-Support`
    ProxySupport,
}

/// The number of variants of [`KnownField`], including [`KnownField::Other`].
pub const COUNT: usize = NAMES.len() + 1;

/// All known names in their usual spelling, in the order of the variants.
const NAMES: [(KnownField, &str); 78] = [
    (KnownField::Host, "Host"),
    (KnownField::Connection, "Connection"),
    (KnownField::ContentLength, "Content-Length"),
    (KnownField::TransferEncoding, "Transfer-Encoding"),
    (KnownField::Expect, "Expect"),
    (KnownField::Upgrade, "Upgrade"),
    (KnownField::Te, "TE"),
    (KnownField::Trailer, "Trailer"),
    (KnownField::KeepAlive, "Keep-Alive"),
    (KnownField::ProxyConnection, "Proxy-Connection"),
    (KnownField::Range, "Range"),
    (KnownField::IfRange, "If-Range"),
    (KnownField::IfMatch, "If-Match"),
    (KnownField::IfNoneMatch, "If-None-Match"),
    (KnownField::IfModifiedSince, "If-Modified-Since"),
    (KnownField::IfUnmodifiedSince, "If-Unmodified-Since"),
    (KnownField::Accept, "Accept"),
    (KnownField::AcceptEncoding, "Accept-Encoding"),
    (KnownField::AcceptLanguage, "Accept-Language"),
    (KnownField::AcceptCharset, "Accept-Charset"),
    (KnownField::UserAgent, "User-Agent"),
    (KnownField::Referer, "Referer"),
    (KnownField::Cookie, "Cookie"),
    (KnownField::Authorization, "Authorization"),
    (KnownField::ProxyAuthorization, "Proxy-Authorization"),
    (KnownField::ContentType, "Content-Type"),
    (KnownField::ContentRange, "Content-Range"),
    (KnownField::ContentEncoding, "Content-Encoding"),
    (KnownField::ContentLanguage, "Content-Language"),
    (KnownField::ContentDisposition, "Content-Disposition"),
    (KnownField::ContentLocation, "Content-Location"),
    (KnownField::Via, "Via"),
    (KnownField::Forwarded, "Forwarded"),
    (KnownField::XForwardedFor, "X-Forwarded-For"),
    (KnownField::XForwardedHost, "X-Forwarded-Host"),
    (KnownField::XForwardedProto, "X-Forwarded-Proto"),
    (KnownField::XForwardedPort, "X-Forwarded-Port"),
    (KnownField::XRealIp, "X-Real-IP"),
    (KnownField::XRequestId, "X-Request-ID"),
    (KnownField::Origin, "Origin"),
    (KnownField::Depth, "Depth"),
    (KnownField::Destination, "Destination"),
    (KnownField::Overwrite, "Overwrite"),
    (KnownField::Date, "Date"),
    (KnownField::CacheControl, "Cache-Control"),
    (KnownField::Pragma, "Pragma"),
    (KnownField::Priority, "Priority"),
    (KnownField::EarlyData, "Early-Data"),
    (KnownField::Http2Settings, "HTTP2-Settings"),
    (
        KnownField::UpgradeInsecureRequests,
        "Upgrade-Insecure-Requests",
    ),
    (KnownField::Server, "Server"),
    (KnownField::Location, "Location"),
    (KnownField::Etag, "ETag"),
    (KnownField::LastModified, "Last-Modified"),
    (KnownField::Expires, "Expires"),
    (KnownField::Age, "Age"),
    (KnownField::Vary, "Vary"),
    (KnownField::AcceptRanges, "Accept-Ranges"),
    (KnownField::Allow, "Allow"),
    (KnownField::SetCookie, "Set-Cookie"),
    (KnownField::WwwAuthenticate, "WWW-Authenticate"),
    (KnownField::ProxyAuthenticate, "Proxy-Authenticate"),
    (KnownField::RetryAfter, "Retry-After"),
    (KnownField::Refresh, "Refresh"),
    (KnownField::Link, "Link"),
    (KnownField::Status, "Status"),
    (KnownField::AltSvc, "Alt-Svc"),
    (KnownField::CacheStatus, "Cache-Status"),
    (KnownField::CdnCacheControl, "CDN-Cache-Control"),
    (
        KnownField::StrictTransportSecurity,
        "Strict-Transport-Security",
    ),
    (KnownField::XAccelRedirect, "X-Accel-Redirect"),
    (KnownField::XAccelExpires, "X-Accel-Expires"),
    (KnownField::XAccelBuffering, "X-Accel-Buffering"),
    (KnownField::XAccelCharset, "X-Accel-Charset"),
    (KnownField::XAccelLimitRate, "X-Accel-Limit-Rate"),
    (KnownField::XPad, "X-Pad"),
    (KnownField::XPoweredBy, "X-Powered-By"),
    (KnownField::ProxySupport, "Proxy-Support"),
];

/// The number of slots in the name table: a power of two, large enough that multipliers without
/// collisions exist.
const SLOTS: usize = 512;

/// Maps a slot to the position in [`NAMES`] plus one; 0 is an empty slot. Built at compile time and
/// checked for collisions then: if a new name collides, [`slot`] needs other multipliers.
const TABLE: [u8; SLOTS] = build_table();

const fn build_table() -> [u8; SLOTS] {
    let mut table = [0; SLOTS];
    let mut i = 0;
    while i < NAMES.len() {
        let (known, name) = NAMES[i];
        assert!(
            known as usize == i + 1,
            "NAMES must be in the order of the variants"
        );
        let slot = slot(name.as_bytes());
        assert!(
            table[slot] == 0,
            "two known names share a slot: choose other multipliers"
        );
        table[slot] = i as u8 + 1;
        i += 1;
    }
    table
}

/// A perfect hash of [`NAMES`]: three letters and the length tell them all apart. The multipliers
/// were found by search. Setting bit 5 makes letters lower case; what it does to other bytes is
/// harmless, because the name is compared in full afterwards.
const fn slot(name: &[u8]) -> usize {
    let length = name.len();
    let last = name[length - 1] | 0x20;
    let fourth_last = name[length.saturating_sub(4)] | 0x20;
    let middle = name[length / 2] | 0x20;
    let sum = (last as u32)
        .wrapping_mul(18787)
        .wrapping_add((fourth_last as u32).wrapping_mul(21433))
        .wrapping_add((middle as u32).wrapping_mul(21395))
        .wrapping_add((length as u32).wrapping_mul(8899));
    (sum >> 7) as usize & (SLOTS - 1)
}

impl KnownField {
    /// The variant for `name` in any case; [`KnownField::Other`] if there is none.
    #[inline]
    pub fn from_name(name: &[u8]) -> KnownField {
        if name.is_empty() {
            return KnownField::Other;
        }
        let Some(index) = TABLE[slot(name)].checked_sub(1) else {
            return KnownField::Other;
        };
        let (known, text) = NAMES[index as usize];
        if is_spelled(text.as_bytes(), name) {
            known
        } else {
            KnownField::Other
        }
    }

    /// Like [`KnownField::from_name`], but slow: for tables that are built at compile time.
    pub(crate) const fn from_name_const(name: &[u8]) -> KnownField {
        let mut i = 0;
        while i < NAMES.len() {
            if NAMES[i].1.as_bytes().eq_ignore_ascii_case(name) {
                return NAMES[i].0;
            }
            i += 1;
        }
        KnownField::Other
    }

    /// The usual spelling; empty for [`KnownField::Other`].
    pub fn name(self) -> &'static str {
        match (self as usize).checked_sub(1) {
            Some(index) => NAMES[index].1,
            None => "",
        }
    }

    /// The bit of this name in a set. [`COUNT`] is at most 128, so each name has its own.
    pub const fn bit(self) -> u128 {
        1 << self as u8
    }
}

/// Whether `name` is `known` in any case. Compares words: most names of a request are known ones,
/// and comparing bytes took a quarter of the parser's time (`examples/head_speed.rs`).
#[inline]
fn is_spelled(known: &[u8], name: &[u8]) -> bool {
    if known.len() != name.len() {
        return false;
    }
    // The last two words overlap, so that every byte is compared.
    if let (Some(known_last), Some(name_last)) = (known.last_chunk(), name.last_chunk()) {
        let (known_words, _) = known.as_chunks();
        let (name_words, _) = name.as_chunks();
        return lower(u64::from_ne_bytes(*known_last)) == lower(u64::from_ne_bytes(*name_last))
            && known_words
                .iter()
                .zip(name_words)
                .all(|(a, b)| lower(u64::from_ne_bytes(*a)) == lower(u64::from_ne_bytes(*b)));
    }
    match (short_word(known), short_word(name)) {
        (Some(known), Some(name)) => lower(known) == lower(name),
        _ => known.eq_ignore_ascii_case(name),
    }
}

/// A name of four to seven bytes as one word.
#[inline]
fn short_word(name: &[u8]) -> Option<u64> {
    let first = u32::from_ne_bytes(*name.first_chunk()?);
    let last = u32::from_ne_bytes(*name.last_chunk()?);
    Some(u64::from(first) << 32 | u64::from(last))
}

/// Sets bit 5 of each byte that has bit 6: letters become lower case. Known names consist of
/// letters, digits and `-`, and no other byte becomes one of those.
#[inline]
fn lower(word: u64) -> u64 {
    word | (word & 0x4040_4040_4040_4040) >> 1
}

const _: () = assert!(
    COUNT <= 128,
    "a set of known names no longer fits into a u128"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case_and_nothing_near_it() {
        for (known, name) in NAMES {
            assert_eq!(KnownField::from_name(name.as_bytes()), known);
            assert_eq!(
                KnownField::from_name(name.to_ascii_lowercase().as_bytes()),
                known
            );
            assert_eq!(
                KnownField::from_name(name.to_ascii_uppercase().as_bytes()),
                known
            );
            assert_eq!(known.name(), name);
            for i in 0..name.len() {
                for byte in 0..=255u8 {
                    let mut near = name.as_bytes().to_vec();
                    let same = near[i].eq_ignore_ascii_case(&byte);
                    near[i] = byte;
                    assert_eq!(KnownField::from_name(&near) == known, same, "{near:?}");
                }
            }
            let longer = format!("{name}x");
            assert_eq!(KnownField::from_name(longer.as_bytes()), KnownField::Other);
        }
        assert_eq!(KnownField::from_name(b""), KnownField::Other);
        assert_eq!(KnownField::from_name(b"x"), KnownField::Other);
        assert_eq!(KnownField::Other.name(), "");
    }

    #[test]
    fn every_name_of_one_and_two_bytes_is_answered() {
        for a in 0..=255u8 {
            assert_eq!(KnownField::from_name(&[a]), KnownField::Other);
            for b in 0..=255u8 {
                let te = a.eq_ignore_ascii_case(&b't') && b.eq_ignore_ascii_case(&b'e');
                assert_eq!(KnownField::from_name(&[a, b]) == KnownField::Te, te);
            }
        }
    }
}
