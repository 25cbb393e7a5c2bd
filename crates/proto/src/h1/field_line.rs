//! One header line of a message head or of a trailer section (RFC 9112 section 5).
//!
//! The caller has found the line; this splits it into name and value and judges the bytes.

use crate::fields::ArenaSpan;
use crate::known_fields::KnownField;
use crate::message::UnderscorePolicy;
use memchr::{memchr2, memchr3};

/// A header line that may be used.
pub(crate) struct FieldLine {
    pub(crate) known: KnownField,
    pub(crate) name: ArenaSpan,
    pub(crate) value: ArenaSpan,
    /// The name has a character that nginx calls invalid: it would be dropped or, with
    /// `ignore_invalid_headers off`, passed on.
    pub(crate) odd: bool,
}

/// The classes of bytes in a field name.
const LETTER: u8 = 0;
const UNDERSCORE: u8 = 1;
/// Visible, but not a letter, digit or hyphen. Wider than RFC 9110's token on purpose: nginx
/// skips such a line and goes on, and so do we.
const ODD: u8 = 2;
const COLON: u8 = 3;
/// Controls and the space: never part of a line that is skipped, always an error, because peers
/// disagree on what they mean (RFC 9112 section 5.1).
const FORBIDDEN: u8 = 4;

const CLASSES: [u8; 256] = build_classes();

const fn build_classes() -> [u8; 256] {
    let mut table = [ODD; 256];
    let mut i = 0;
    while i < 256 {
        let byte = i as u8;
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            table[i] = LETTER;
        } else if byte == b'_' {
            table[i] = UNDERSCORE;
        } else if byte == b':' {
            table[i] = COLON;
        } else if byte <= b' ' || byte == 0x7f {
            table[i] = FORBIDDEN;
        }
        i += 1;
    }
    table
}

/// Reads the header line that begins at `start` if it is an ordinary one and `buf` has all of it:
/// a name of letters, a colon, a value, CR LF. One pass over the name and one over the value.
/// Returns the offset after its line end too; `None` says nothing but "look closer".
///
/// A head takes a sixth less time than with the line found first and judged afterwards
/// (`examples/head_speed.rs`).
#[inline]
pub(crate) fn parse_ordinary(buf: &[u8], start: usize) -> Option<(FieldLine, usize)> {
    let line = &buf[start..];
    let colon = find_colon(line)?;
    let known = KnownField::from_name(&line[..colon]);
    // Known names consist of letters.
    if known == KnownField::Other && !is_ordinary_name(&line[..colon]) {
        return None;
    }
    let mut value = colon + 1;
    while matches!(line.get(value)?, b' ' | b'\t') {
        value += 1;
    }
    let line_end = value + memchr3(b'\r', b'\n', 0, &line[value..])?;
    if line[line_end] != b'\r' || *line.get(line_end + 1)? != b'\n' {
        return None;
    }
    let mut end = line_end;
    while end > value && matches!(line[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    let field = FieldLine {
        known,
        name: ArenaSpan::new(start, start + colon),
        value: ArenaSpan::new(start + value, start + end),
        odd: false,
    };
    Some((field, start + line_end + 2))
}

/// Names up to this length are ordinary, in bytes. A line without a colon must not cost a search in all that follows it.
const LONGEST_ORDINARY: usize = 128;

/// The colon behind an ordinary name, mostly within the first two words.
#[inline]
fn find_colon(line: &[u8]) -> Option<usize> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let line = &line[..line.len().min(LONGEST_ORDINARY)];
    let (words, rest) = line.as_chunks();
    for (index, word) in words.iter().enumerate() {
        // A byte that is the colon becomes zero, and the lowest zero is where a subtraction first borrows.
        let zero = u64::from_le_bytes(*word) ^ (LOW * b':' as u64);
        let found = zero.wrapping_sub(LOW) & !zero & (LOW << 7);
        if found != 0 {
            return Some(index * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|&b| b == b':')?;
    Some(words.len() * 8 + at)
}

/// Whether a name has letters only, and at least one.
fn is_ordinary_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|&b| CLASSES[b as usize] == LETTER)
}

/// Splits `line`, which has no line end, is not empty, and begins at `base` in the head.
/// The error is the offset of the offending byte in the head.
#[inline]
pub(crate) fn parse(
    line: &[u8],
    base: usize,
    underscores: UnderscorePolicy,
) -> Result<FieldLine, usize> {
    let letters = line
        .iter()
        .position(|&b| CLASSES[b as usize] != LETTER)
        .unwrap_or(line.len());
    let (name_end, odd) = match line.get(letters) {
        Some(b':') if letters > 0 => (letters, false),
        _ => odd_name(line, letters, base, underscores)?,
    };
    let (start, end) = value_bounds(line, name_end);
    if let Some(bad) = memchr2(0, b'\r', &line[start..end]) {
        return Err(base + start + bad);
    }
    Ok(FieldLine {
        known: if odd {
            KnownField::Other
        } else {
            KnownField::from_name(&line[..name_end])
        },
        name: ArenaSpan::new(base, base + name_end),
        value: ArenaSpan::new(base + start, base + end),
        odd,
    })
}

/// The rare names: with underscores, odd bytes, or no colon at all. A line without a colon is a
/// field with an empty value, as in nginx.
#[cold]
fn odd_name(
    line: &[u8],
    from: usize,
    base: usize,
    underscores: UnderscorePolicy,
) -> Result<(usize, bool), usize> {
    let mut odd = false;
    for (i, &byte) in line.iter().enumerate().skip(from) {
        match CLASSES[byte as usize] {
            LETTER => {}
            UNDERSCORE => odd |= underscores == UnderscorePolicy::Invalid,
            ODD => odd = true,
            COLON if i > 0 => return Ok((i, odd)),
            // A run of CR before the line end is dropped below, not an error.
            FORBIDDEN if i > 0 && line[i..].iter().all(|&b| b == b'\r') => return Ok((i, odd)),
            _ => return Err(base + i),
        }
    }
    Ok((line.len(), odd))
}

/// The value without the white space around it and without further CRs before the line end.
fn value_bounds(line: &[u8], name_end: usize) -> (usize, usize) {
    let mut start = (name_end + 1).min(line.len());
    let mut end = line.len();
    while start < end && matches!(line[start], b' ' | b'\t') {
        start += 1;
    }
    while end > start && line[end - 1] == b'\r' {
        end -= 1;
    }
    while end > start && matches!(line[end - 1], b' ' | b'\t') {
        end -= 1;
    }
    (start, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_colon_is_found_wherever_it_stands() {
        // Neighbours of the colon, with and without the top bit, must not be taken for it.
        for filler in [0, b'9', b';', b'a', 0x80 | b':', 0xff] {
            for length in 0..30 {
                let mut line = vec![filler; length];
                assert_eq!(find_colon(&line), None);
                for at in 0..length {
                    line[at] = b':';
                    assert_eq!(find_colon(&line), Some(at));
                    line[length - 1] = b':';
                    assert_eq!(find_colon(&line), Some(at));
                    line.fill(filler);
                }
            }
        }
    }
}
