//! Entity tags (RFC 9110 section 8.8.3).

/// Appends nginx's tag of a file: `"MTIME-LENGTH"`, both in hexadecimal.
pub fn write_file(modified: i64, length: u64, out: &mut Vec<u8>) {
    out.push(b'"');
    write_hex(modified.cast_unsigned(), out);
    out.push(b'-');
    write_hex(length, out);
    out.push(b'"');
}

/// Appends a number in hexadecimal, without leading zeros. By hand, because every response with a
/// file has two.
fn write_hex(number: u64, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 16];
    let (mut at, mut rest) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = DIGITS[rest as usize & 15];
        rest >>= 4;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Whether a tag is weak.
pub fn is_weak(tag: &[u8]) -> bool {
    tag.starts_with(b"W/")
}

/// The tag without `W/`.
pub fn opaque_tag(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Strong comparison: both are strong and equal (RFC 9110, section 8.8.3.2).
pub fn strong_eq(a: &[u8], b: &[u8]) -> bool {
    !is_weak(a) && a == b
}

/// Weak comparison: equal but for `W/`.
pub fn weak_eq(a: &[u8], b: &[u8]) -> bool {
    opaque_tag(a) == opaque_tag(b)
}

/// The tag after a filter has changed the bytes but not the meaning: a weak one. `None` if it was
/// not valid and must be removed.
pub fn weaken_etag(tag: &[u8]) -> Option<Vec<u8>> {
    if is_weak(tag) {
        return Some(tag.to_vec());
    }
    (tag.len() >= 2 && tag.starts_with(b"\"") && tag.ends_with(b"\""))
        .then(|| [b"W/", tag].concat())
}

/// Whether a list (If-Match, If-None-Match) contains a tag for which `same` holds. Tags may contain
/// commas; anything that is not a tag ends at the next comma and is compared as it is.
pub fn list_has(list: &[u8], mut same: impl FnMut(&[u8]) -> bool) -> bool {
    let mut rest = list;
    loop {
        let skip = rest
            .iter()
            .take_while(|b| matches!(b, b' ' | b'\t' | b','))
            .count();
        rest = &rest[skip..];
        if rest.is_empty() {
            return false;
        }
        let quote = if is_weak(rest) { 2 } else { 0 };
        let end = match rest.get(quote) {
            Some(b'"') => memchr::memchr(b'"', &rest[quote + 1..]).map(|length| quote + length + 2),
            _ => None,
        };
        let end = end.unwrap_or_else(|| memchr::memchr(b',', rest).unwrap_or(rest.len()));
        if same(rest[..end].trim_ascii_end()) {
            return true;
        }
        rest = &rest[end..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_compare_strongly_and_weakly() {
        assert!(strong_eq(b"\"1\"", b"\"1\"") && !strong_eq(b"W/\"1\"", b"W/\"1\""));
        assert!(!strong_eq(b"W/\"1\"", b"\"1\"") && !strong_eq(b"\"1\"", b"\"2\""));
        assert!(
            weak_eq(b"W/\"1\"", b"\"1\"")
                && weak_eq(b"W/\"1\"", b"W/\"1\"")
                && !weak_eq(b"\"1\"", b"\"2\"")
        );
        assert_eq!(weaken_etag(b"\"1\"").as_deref(), Some(&b"W/\"1\""[..]));
        assert_eq!(weaken_etag(b"W/\"1\"").as_deref(), Some(&b"W/\"1\""[..]));
        assert_eq!(weaken_etag(b"1"), None);
        assert_eq!(weaken_etag(b"\""), None);
        let mut out = Vec::new();
        write_file(0x5f5e_1000, 0x10, &mut out);
        assert_eq!(out, b"\"5f5e1000-10\"");
    }

    #[test]
    fn lists_are_taken_apart() {
        let found = |list: &str| {
            let mut tags = Vec::new();
            list_has(list.as_bytes(), |tag| {
                tags.push(String::from_utf8_lossy(tag).into_owned());
                false
            });
            tags.join("|")
        };
        assert_eq!(found("\"a\", \"b,c\" ,\tW/\"d\""), "\"a\"|\"b,c\"|W/\"d\"");
        assert_eq!(found(",, \"a\",,"), "\"a\"");
        assert_eq!(found("abc, \"d\""), "abc|\"d\"");
        assert_eq!(found("\"open, \"b"), "\"open, \"|b");
        assert_eq!(found("\"open"), "\"open");
        assert_eq!(found(""), "");
        assert!(list_has(b"\"x\", \"y\"", |tag| tag == b"\"y\""));
    }
}
