//! Byte strings. What comes from a configuration, a peer or a path is bytes, not necessarily UTF-8.
//!
//! The types are `bstr`'s; this file adds the few readings of a byte string that several crates need.
//! It does not decode or validate text.

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

#[cfg(test)]
mod tests {
    use super::*;

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
