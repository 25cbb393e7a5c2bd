//! Byte strings. What comes from a configuration, a peer or a path is bytes, not necessarily UTF-8.
//!
//! The types are `bstr`'s; this file adds the few readings of a byte string that several crates need, and writers of
//! numbers that are faster than the formatting machinery. It does not decode or validate text.

use std::borrow::Cow;

pub use bstr::{BStr, BString, ByteSlice, ByteVec};

/// Reads a non-negative decimal number: digits only, no sign, no spaces.
///
/// This is nginx's notion of a number everywhere in its configuration, so `+1`, ` 1` and `` are `None`,
/// and so is a number that does not fit an `i64`.
pub fn decimal(text: &[u8]) -> Option<i64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0i64, |value, &byte| {
        let digit = byte.is_ascii_digit().then(|| i64::from(byte - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// The text of a system error as nginx writes it into messages: `(2: No such file or directory)`.
///
/// The standard library prints the same text the other way round and adds "os error"; operators
/// search their logs for the form used here. An error without an errno is printed in parentheses.
pub fn errno_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => {
            let message = text
                .rsplit_once(" (os error ")
                .map_or(text.as_str(), |(message, _)| message);
            format!("({code}: {message})")
        }
        None => format!("({text})"),
    }
}

/// The digits of the largest number.
const MAX_DIGITS: usize = 20;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + n as u8 / 10, b'0' + n as u8 % 10];
        n += 1;
    }
    pairs
};

/// Appends a number in decimal. No allocation, no formatting machinery: every response has two or three of these.
pub fn write_number(number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; MAX_DIGITS];
    let mut at = MAX_DIGITS;
    let mut rest = number;
    // Two at a time: half the divisions.
    while rest >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(rest % 100) as usize]);
        rest /= 100;
    }
    let first = PAIRS[rest as usize];
    if rest >= 10 {
        at -= 1;
        digits[at] = first[1];
        at -= 1;
        digits[at] = first[0];
    } else {
        at -= 1;
        digits[at] = first[1];
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a number with zeros in front, so that it has at least `width` digits.
pub fn write_padded(number: u64, width: usize, out: &mut Vec<u8>) {
    let mut enough = 1_u64;
    for _ in 1..width {
        enough = enough.saturating_mul(10);
        if number < enough {
            out.push(b'0');
        }
    }
    write_number(number, out);
}

/// Appends milliseconds as seconds with three places: `12.034`.
pub fn write_seconds(millis: u64, out: &mut Vec<u8>) {
    write_number(millis / 1000, out);
    out.push(b'.');
    write_padded(millis % 1000, 3, out);
}

/// Appends bytes as lower case hexadecimal digits.
pub fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.extend_from_slice(&[
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

/// Whether a text may have a control byte in it: one of ASCII's but a tab, or one of those that terminals with 8 bits, or
/// with UTF-8, obey (0x80 to 0x9f). A letter of UTF-8 may look like one.
fn may_control(text: &[u8]) -> bool {
    text.iter().fold(false, |found, &byte| {
        found | (byte < b' ' && byte != b'\t') | (0x7f..=0x9f).contains(&byte)
    })
}

/// A text as a log or a terminal may show it: on one line, with `\x1b` for what a terminal would obey. Line feeds, with a
/// CR before them or without, become blanks; tabs stay.
pub fn visible(text: &[u8]) -> Cow<'_, [u8]> {
    if !may_control(text) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len() + 16);
    let mut rest = text;
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            let (bytes, after) = rest.split_at(char.len_utf8());
            match char {
                '\n' => out.push(b' '),
                '\r' if after.first() == Some(&b'\n') => {}
                '\t' => out.push(b'\t'),
                char if char.is_control() => write_escaped(bytes, &mut out),
                _ => out.extend_from_slice(bytes),
            }
            rest = after;
        }
        let (bytes, after) = rest.split_at(chunk.invalid().len());
        for byte in bytes {
            match byte {
                0x80..=0x9f => write_escaped(&[*byte], &mut out),
                _ => out.push(*byte),
            }
        }
        rest = after;
    }
    Cow::Owned(out)
}

/// The same for text that is known to be UTF-8.
pub fn visible_text(text: &str) -> Cow<'_, str> {
    match visible(text.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Appends a byte escaped for JSON (RFC 8259, section 7).
pub fn write_json_escape(byte: u8, out: &mut Vec<u8>) {
    out.push(b'\\');
    match byte {
        b'\n' => out.push(b'n'),
        b'\r' => out.push(b'r'),
        b'\t' => out.push(b't'),
        0x08 => out.push(b'b'),
        0x0c => out.push(b'f'),
        b'"' | b'\\' => out.push(byte),
        _ => {
            out.extend_from_slice(b"u00");
            const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            out.extend_from_slice(&[DIGITS[high], DIGITS[low]]);
        }
    }
}

fn write_escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.extend_from_slice(b"\\x");
        write_hex(&[*byte], out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        for (text, shown) in [
            (
                &b"plain\ttext \xc3\xa4\xe2\x82\xac \xf0\x9f\x98\x80"[..],
                &b"plain\ttext \xc3\xa4\xe2\x82\xac \xf0\x9f\x98\x80"[..],
            ),
            (b"\x1b]0;title\x07", b"\\x1b]0;title\\x07"),
            (b"one\ntwo\r\nthree\rfour", b"one two three\\x0dfour"),
            (b"\0\x7f", b"\\x00\\x7f"),
            (b"\x9b31m", b"\\x9b31m"),
            (b"\xc2\x9b31m", b"\\xc2\\x9b31m"),
            (b"\xff\xc3", b"\xff\xc3"),
            (b"\xff\x1b\xc3\x9b", b"\xff\\x1b\xc3\x9b"),
        ] {
            assert_eq!(visible(text).as_bstr(), shown.as_bstr());
        }
        for byte in 0..=255u8 {
            let text = [b'a', byte, b'b'];
            let shown = visible(&text);
            assert!(
                shown
                    .iter()
                    .all(|&byte| byte == b'\t' || byte >= b' ' && !(0x7f..=0x9f).contains(&byte))
            );
        }
        assert_eq!(visible_text("a\u{1b}\u{e4}"), "a\\x1b\u{e4}");
    }

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("only ASCII is written")
    }

    #[test]
    fn numbers_of_every_length() {
        for number in (0..20)
            .map(|n| 10_u64.pow(n))
            .flat_map(|n| [n - 1, n, n + 1])
            .chain([0, u64::MAX])
        {
            assert_eq!(written(|out| write_number(number, out)), number.to_string());
        }
    }

    #[test]
    fn padding_is_for_short_numbers_only() {
        assert_eq!(written(|out| write_padded(0, 3, out)), "000");
        assert_eq!(written(|out| write_padded(9, 3, out)), "009");
        assert_eq!(written(|out| write_padded(99, 3, out)), "099");
        assert_eq!(written(|out| write_padded(1234, 3, out)), "1234");
        assert_eq!(written(|out| write_seconds(12_034, out)), "12.034");
    }

    #[test]
    fn decimal_takes_digits_only() {
        assert_eq!(decimal(b"0"), Some(0));
        assert_eq!(decimal(b"007"), Some(7));
        assert_eq!(decimal(b"9223372036854775807"), Some(i64::MAX));
        for wrong in ["", "-1", "+1", " 1", "1 ", "1k", "9223372036854775808"] {
            assert_eq!(decimal(wrong.as_bytes()), None, "{wrong:?}");
        }
    }

    #[test]
    fn errno_text_puts_the_number_first() {
        let missing = std::io::Error::from_raw_os_error(2);
        assert_eq!(errno_text(&missing), "(2: No such file or directory)");
    }
}
