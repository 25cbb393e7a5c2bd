//! The rules for fields of HTTP/2 and HTTP/3 messages (RFC 9113, sections 8.2 and 8.3; RFC 9114, section 4.2).

use crate::known_fields::KnownField;

/// Whether `name` is a field name in these versions: a token in lower case.
pub fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&b| NAME[b as usize])
}

const NAME: [bool; 256] = build_name();

const fn build_name() -> [bool; 256] {
    let mut table = [false; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        table[i] = byte.is_ascii_lowercase()
            || byte.is_ascii_digit()
            || matches!(
                byte,
                b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            );
        i += 1;
    }
    table
}

/// Whether `value` contains none of the bytes that would end a line or a string elsewhere: NUL, CR
/// and LF.
#[inline]
pub fn is_value(value: &[u8]) -> bool {
    // Most are shorter than what `memchr` needs to get going.
    if value.len() > LONG_VALUE {
        return memchr::memchr3(0, b'\r', b'\n', value).is_none();
    }
    let (words, rest) = value.as_chunks::<8>();
    let mut last = [b' '; 8];
    last[..rest.len()].copy_from_slice(rest);
    let found = words
        .iter()
        .fold(ends_line(last), |found, word| found | ends_line(*word));
    found == 0
}

/// From here on a search by `memchr` is faster than one by words, in bytes.
const LONG_VALUE: usize = 64;

/// Not 0 if one of the bytes is NUL, CR or LF.
#[inline]
fn ends_line(word: [u8; 8]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let word = u64::from_le_bytes(word);
    // Borrows go only upwards from a byte that is 0, so that the sum of all bits is right.
    let zero = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    zero(word) | zero(word ^ (ONES * b'\r' as u64)) | zero(word ^ (ONES * b'\n' as u64))
}

/// Whether whitespace surrounds `value` (RFC 9113, section 8.2.1): HTTP/1 would lose it.
pub fn is_padded(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_blank(value.first()) || is_blank(value.last())
}

/// Whether a field is connection-specific, which makes a message malformed (RFC 9113, section 8.2.2).
pub fn is_connection_specific(known: KnownField, value: &[u8]) -> bool {
    match known {
        KnownField::Connection
        | KnownField::ProxyConnection
        | KnownField::KeepAlive
        | KnownField::TransferEncoding
        | KnownField::Upgrade => true,
        KnownField::Te => !value.eq_ignore_ascii_case(b"trailers"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values() {
        assert!(is_name(b"x-a_b.c") && is_name(b"!#$%&'*+-.^_`|~09az"));
        for bad in [
            &b""[..],
            b"X",
            b"a b",
            b"a:b",
            b":a",
            b"a\0",
            b"\xff",
            b"a,",
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(is_value(b"") && is_value(b"\t x\xff"));
        for padded in [&b" "[..], b"\ta", b"a "] {
            assert!(is_padded(padded));
        }
        assert!(!is_padded(b"") && !is_padded(b"a b"));
        for bad in [&b"\0"[..], b"a\r", b"\nb"] {
            assert!(!is_value(bad));
        }
        // Every byte at every place of values of different lengths.
        for length in [1, 7, 8, 9, 16, 63, 64, 65, 100] {
            for at in 0..length {
                for byte in 0..=255 {
                    let mut value = vec![b'x'; length];
                    value[at] = byte;
                    let is_good = !matches!(byte, 0 | b'\r' | b'\n');
                    assert_eq!(is_value(&value), is_good, "{byte} at {at} of {length}");
                }
            }
        }
    }

    #[test]
    fn fields_of_a_connection() {
        assert!(is_connection_specific(KnownField::Upgrade, b"x"));
        assert!(is_connection_specific(KnownField::Te, b"gzip"));
        assert!(!is_connection_specific(KnownField::Te, b"Trailers"));
        assert!(!is_connection_specific(KnownField::Host, b"x"));
    }
}
