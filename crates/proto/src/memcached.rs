//! memcached's text protocol, as far as it is needed to read values.
//!
//! ```text
//! get KEY\r\n
//! VALUE KEY FLAGS LENGTH\r\n  LENGTH bytes  \r\nEND\r\n        or        END\r\n
//! ```
//!
//! Lines for the error log are nginx's.

use memchr::memchr;

use crate::uri::{EscapeClass, escape};

/// The bytes after a value.
pub const TRAILER: &[u8] = b"\r\nEND\r\n";

/// Escapes a key for the protocol: blanks and control characters would end it, and `%` must be
/// unambiguous.
pub fn escape_key(key: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(key.len());
    escape(EscapeClass::Memcached, key, &mut escaped);
    escaped
}

/// Appends the request for an escaped key.
pub fn write_get(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get ");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n");
}

/// The beginning of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemcachedHead {
    /// Its first line is incomplete.
    Partial,
    /// There is no value, and the response ends after this many bytes.
    Missing(usize),
    /// There is a value, which begins after `used` bytes.
    Value {
        /// The length of the line.
        used: usize,
        /// The flags that were stored with the value; `None` if they are not a number.
        flags: Option<u32>,
        /// The length of the value.
        length: u64,
    },
}

/// Parses the first line of the response to the request for the escaped `key`. The error is the
/// line for the error log.
pub fn read_head(input: &[u8], key: &[u8]) -> Result<MemcachedHead, Vec<u8>> {
    let Some(end) = memchr(b'\n', input) else {
        return Ok(MemcachedHead::Partial);
    };
    let used = end + 1;
    let Some(line) = input[..end].strip_suffix(b"\r") else {
        return Err(invalid("response", &input[..end], None));
    };
    if line == b"END" {
        return Ok(MemcachedHead::Missing(used));
    }
    let Some(rest) = line.strip_prefix(b"VALUE ") else {
        return Err(invalid("response", line, None));
    };
    let Some(rest) = rest.strip_prefix(key) else {
        return Err(invalid("key", line, Some(key)));
    };
    let Some(numbers) = rest.strip_prefix(b" ") else {
        return Err(invalid("response", line, None));
    };
    let Some(blank) = memchr(b' ', numbers) else {
        return Err(invalid("response", line, None));
    };
    let (flags, length) = (&numbers[..blank], &numbers[blank + 1..]);
    let Some(length) = number(length) else {
        return Err(invalid("length", line, Some(key)));
    };
    Ok(MemcachedHead::Value {
        used,
        flags: number(flags).and_then(|flags| u32::try_from(flags).ok()),
        length,
    })
}

/// The line for the error log about an invalid first line.
pub fn invalid(what: &str, line: &[u8], key: Option<&[u8]>) -> Vec<u8> {
    match key {
        None => [
            b"memcached sent invalid ",
            what.as_bytes(),
            b": \"",
            line,
            b"\"",
        ]
        .concat(),
        Some(key) => {
            let middle = b" in response \"";
            [
                b"memcached sent invalid ",
                what.as_bytes(),
                middle,
                line,
                b"\" for key \"",
                key,
                b"\"",
            ]
            .concat()
        }
    }
}

/// A decimal number; `None` if it overflows.
fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    text.iter().try_fold(0_u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_a_miss_and_nonsense() {
        let read = |line: &[u8]| read_head(line, b"k");
        assert_eq!(
            read(b"VALUE k 2 8\r\nSEE"),
            Ok(MemcachedHead::Value {
                used: 13,
                flags: Some(2),
                length: 8
            })
        );
        assert_eq!(
            read(b"VALUE k x 8\r\n"),
            Ok(MemcachedHead::Value {
                used: 13,
                flags: None,
                length: 8
            })
        );
        assert_eq!(read(b"END\r\n"), Ok(MemcachedHead::Missing(5)));
        assert_eq!(read(b"VALUE k 0 8\r"), Ok(MemcachedHead::Partial));
        let wrong =
            |line: &[u8]| String::from_utf8(read(line).expect_err("nonsense")).expect("text");
        assert_eq!(
            wrong(b"ERROR\r\n"),
            "memcached sent invalid response: \"ERROR\""
        );
        assert_eq!(
            wrong(b"VALUE j 0 1\r\n"),
            "memcached sent invalid key in response \"VALUE j 0 1\" for key \"k\""
        );
        assert_eq!(
            wrong(b"VALUE kk 0 1\r\n"),
            "memcached sent invalid response: \"VALUE kk 0 1\""
        );
        assert_eq!(
            wrong(b"VALUE k 0 -1\r\n"),
            "memcached sent invalid length in response \"VALUE k 0 -1\" for key \"k\""
        );
        assert_eq!(wrong(b"\n"), "memcached sent invalid response: \"\"");
    }

    #[test]
    fn keys_are_escaped() {
        assert_eq!(escape_key(b"a b\r\n%"), b"a%20b%0D%0A%25");
    }
}
