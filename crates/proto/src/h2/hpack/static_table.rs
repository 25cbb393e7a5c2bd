//! The static table (RFC 7541 appendix A).

use crate::known_fields::{COUNT, KnownField};

/// Names and values; the first has index 1.
pub(super) const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// The index of a pseudo-header field with this value, and of one with this name; 0 means none.
pub(super) fn pseudo(name: &[u8], value: &[u8]) -> (usize, usize) {
    let same_name = |i: &usize| ENTRIES[*i - 1].0 == name;
    let first = match name {
        b":authority" => 1,
        b":method" => 2,
        b":path" => 4,
        b":scheme" => 6,
        b":status" => 8,
        _ => return (0, 0),
    };
    let exact = (first..first + 7)
        .take_while(same_name)
        .find(|i| ENTRIES[i - 1].1 == value && first != 1);
    (exact.unwrap_or(0), first)
}

/// The index of each known name; 0 means none.
const INDEXES: [u8; COUNT] = build_indexes();

/// The known name of each index.
pub(super) static KNOWN: [KnownField; ENTRIES.len()] = build_known();

/// The index of a known name; 0 means none.
pub(super) fn index_of(known: KnownField) -> usize {
    usize::from(INDEXES[known as usize])
}

/// The entries from index 15 on are fields, each name once; those before are pseudo-header fields.
const FIRST_FIELD: usize = 14;

const fn build_known() -> [KnownField; ENTRIES.len()] {
    let mut known = [KnownField::Other; ENTRIES.len()];
    let mut i = FIRST_FIELD;
    while i < ENTRIES.len() {
        known[i] = KnownField::from_name_const(ENTRIES[i].0);
        i += 1;
    }
    known
}

const fn build_indexes() -> [u8; COUNT] {
    let known = build_known();
    let mut indexes = [0; COUNT];
    let mut i = FIRST_FIELD;
    while i < ENTRIES.len() {
        // Unknown names share number 0, which means "none".
        if known[i] as u8 != KnownField::Other as u8 {
            indexes[known[i] as usize] = i as u8 + 1;
        }
        i += 1;
    }
    indexes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_lead_to_their_names() {
        for (i, (name, value)) in ENTRIES.into_iter().enumerate() {
            let known = KnownField::from_name(name);
            assert_eq!(KNOWN[i], known);
            if known != KnownField::Other {
                assert_eq!(index_of(known), i + 1);
            }
            if name.starts_with(b":") && i > 0 {
                assert_eq!(pseudo(name, value).0, i + 1);
            }
        }
        assert_eq!(pseudo(b":status", b"201"), (0, 8));
        assert_eq!(pseudo(b":authority", b""), (0, 1));
        assert_eq!(pseudo(b":protocol", b"websocket"), (0, 0));
        assert_eq!(index_of(KnownField::Other), 0);
        assert_eq!(index_of(KnownField::XRealIp), 0);
    }
}
