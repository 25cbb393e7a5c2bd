//! The static table (RFC 9204, appendix A).
//!
//! Entries with the same name are not always neighbours: the encoder goes from one to the next by [`NEXT`].

use crate::known_fields::{COUNT, KnownField};

/// How many entries there are.
const LENGTH: usize = 99;

/// The index of `:status: 103`; the others with this name follow in two places.
const STATUS: usize = 24;

/// Names and values; the first has index 0.
pub(super) const ENTRIES: [(&[u8], &[u8]); LENGTH] = [
    (b":authority", b""),
    (b":path", b"/"),
    (b"age", b"0"),
    (b"content-disposition", b""),
    (b"content-length", b"0"),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"referer", b""),
    (b"set-cookie", b""),
    (b":method", b"CONNECT"),
    (b":method", b"DELETE"),
    (b":method", b"GET"),
    (b":method", b"HEAD"),
    (b":method", b"OPTIONS"),
    (b":method", b"POST"),
    (b":method", b"PUT"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"103"),
    (b":status", b"200"),
    (b":status", b"304"),
    (b":status", b"404"),
    (b":status", b"503"),
    (b"accept", b"*/*"),
    (b"accept", b"application/dns-message"),
    (b"accept-encoding", b"gzip, deflate, br"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-headers", b"cache-control"),
    (b"access-control-allow-headers", b"content-type"),
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"max-age=0"),
    (b"cache-control", b"max-age=2592000"),
    (b"cache-control", b"max-age=604800"),
    (b"cache-control", b"no-cache"),
    (b"cache-control", b"no-store"),
    (b"cache-control", b"public, max-age=31536000"),
    (b"content-encoding", b"br"),
    (b"content-encoding", b"gzip"),
    (b"content-type", b"application/dns-message"),
    (b"content-type", b"application/javascript"),
    (b"content-type", b"application/json"),
    (b"content-type", b"application/x-www-form-urlencoded"),
    (b"content-type", b"image/gif"),
    (b"content-type", b"image/jpeg"),
    (b"content-type", b"image/png"),
    (b"content-type", b"text/css"),
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-type", b"text/plain"),
    (b"content-type", b"text/plain;charset=utf-8"),
    (b"range", b"bytes=0-"),
    (b"strict-transport-security", b"max-age=31536000"),
    (
        b"strict-transport-security",
        b"max-age=31536000; includesubdomains",
    ),
    (
        b"strict-transport-security",
        b"max-age=31536000; includesubdomains; preload",
    ),
    (b"vary", b"accept-encoding"),
    (b"vary", b"origin"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-xss-protection", b"1; mode=block"),
    (b":status", b"100"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"302"),
    (b":status", b"400"),
    (b":status", b"403"),
    (b":status", b"421"),
    (b":status", b"425"),
    (b":status", b"500"),
    (b"accept-language", b""),
    (b"access-control-allow-credentials", b"FALSE"),
    (b"access-control-allow-credentials", b"TRUE"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-allow-methods", b"get"),
    (b"access-control-allow-methods", b"get, post, options"),
    (b"access-control-allow-methods", b"options"),
    (b"access-control-expose-headers", b"content-length"),
    (b"access-control-request-headers", b"content-type"),
    (b"access-control-request-method", b"get"),
    (b"access-control-request-method", b"post"),
    (b"alt-svc", b"clear"),
    (b"authorization", b""),
    (
        b"content-security-policy",
        b"script-src 'none'; object-src 'none'; base-uri 'none'",
    ),
    (b"early-data", b"1"),
    (b"expect-ct", b""),
    (b"forwarded", b""),
    (b"if-range", b""),
    (b"origin", b""),
    (b"purpose", b"prefetch"),
    (b"server", b""),
    (b"timing-allow-origin", b"*"),
    (b"upgrade-insecure-requests", b"1"),
    (b"user-agent", b""),
    (b"x-forwarded-for", b""),
    (b"x-frame-options", b"deny"),
    (b"x-frame-options", b"sameorigin"),
];

/// The known name of each index.
pub(super) static KNOWN: [KnownField; LENGTH] = build_known();

/// The first index of each known name, plus 1; 0 means none.
const FIRST: [u8; COUNT] = build_first();

/// The next index with the same known name; 0 means none. Index 0, a pseudo-header field, is never the next one.
const NEXT: [u8; LENGTH] = build_next();

const fn build_known() -> [KnownField; LENGTH] {
    let mut known = [KnownField::Other; LENGTH];
    let mut i = 0;
    while i < LENGTH {
        if ENTRIES[i].0[0] != b':' {
            known[i] = KnownField::from_name_const(ENTRIES[i].0);
        }
        i += 1;
    }
    known
}

const fn build_first() -> [u8; COUNT] {
    let known = build_known();
    let mut first = [0; COUNT];
    let mut i = LENGTH;
    while i > 0 {
        if known[i - 1] as u8 != KnownField::Other as u8 {
            first[known[i - 1] as usize] = i as u8;
        }
        i -= 1;
    }
    first
}

const fn build_next() -> [u8; LENGTH] {
    let known = build_known();
    let mut next = [0; LENGTH];
    let mut i = 0;
    while i < LENGTH {
        let mut other = i + 1;
        while other < LENGTH && next[i] == 0 && known[i] as u8 != KnownField::Other as u8 {
            if known[other] as u8 == known[i] as u8 {
                next[i] = other as u8;
            }
            other += 1;
        }
        i += 1;
    }
    next
}

/// The index of a field with this known name and value, and of one with this name.
pub(super) fn find(known: KnownField, value: &[u8]) -> (Option<usize>, Option<usize>) {
    let Some(first) = usize::from(FIRST[known as usize]).checked_sub(1) else {
        return (None, None);
    };
    let mut at = first;
    loop {
        if ENTRIES[at].1 == value {
            return (Some(at), Some(first));
        }
        match NEXT[at] {
            0 => return (None, Some(first)),
            next => at = next.into(),
        }
    }
}

/// The index of a pseudo-header field with this name and value, and of one with this name.
pub(super) fn find_pseudo(name: &[u8], value: &[u8]) -> (Option<usize>, Option<usize>) {
    let named = |i: &usize| ENTRIES[*i].0 == name;
    let exact = (0..LENGTH).filter(named).find(|i| ENTRIES[*i].1 == value);
    (exact, (0..LENGTH).find(named))
}

/// The index of `:status` with this value, or the index of its name.
pub(super) fn find_status(status: u16) -> Result<usize, usize> {
    Ok(match status {
        103 => STATUS,
        200 => STATUS + 1,
        304 => STATUS + 2,
        404 => STATUS + 3,
        503 => STATUS + 4,
        100 => 63,
        204 => 64,
        206 => 65,
        302 => 66,
        400 => 67,
        403 => 68,
        421 => 69,
        425 => 70,
        500 => 71,
        _ => return Err(STATUS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_name_and_value() {
        for (i, (name, value)) in ENTRIES.into_iter().enumerate() {
            if name.starts_with(b":") {
                assert_eq!(find_pseudo(name, value).0, Some(i));
            } else {
                assert_eq!(KNOWN[i], KnownField::from_name(name));
                if KNOWN[i] != KnownField::Other {
                    let (exact, named) = find(KNOWN[i], value);
                    assert_eq!(exact, Some(i));
                    assert!(named.is_some_and(|n| n <= i && ENTRIES[n].0 == name));
                }
            }
        }
        assert_eq!(find(KnownField::Other, b""), (None, None));
        assert_eq!(find_pseudo(b":protocol", b"websocket"), (None, None));
        assert_eq!(find_pseudo(b":authority", b"a"), (None, Some(0)));
    }

    #[test]
    fn every_status_is_the_one_that_it_says() {
        for status in 100..1000u16 {
            let known = (0..LENGTH)
                .filter(|i| ENTRIES[*i].0 == b":status")
                .find(|i| ENTRIES[*i].1 == status.to_string().as_bytes());
            assert_eq!(find_status(status).ok(), known, "{status}");
        }
        assert_eq!(ENTRIES[STATUS].0, b":status");
    }
}
