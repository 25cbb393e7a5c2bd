//! Parsers of single values. They return `None` for invalid text; [`crate::DirectiveLine`] has the same
//! parsers with nginx's error messages.
//!
//! Sizes, times and rates are in [`base::units`], addresses and networks in [`crate::address`].

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::{Span, text};

use crate::tree::DirectiveWord;

pub use base::units::{parse_millis as millis, parse_offset as offset, parse_rate as rate};
pub use base::units::{parse_seconds as seconds, parse_size as size};

/// `on` or `off`, in any case.
pub fn flag(value: &[u8]) -> Option<bool> {
    word(value, &["off", "on"]).map(|position| position == 1)
}

/// A non-negative number: digits only.
pub fn number(value: &[u8]) -> Option<i64> {
    text::decimal(value)
}

/// The position of a word in a list, letter case not counted.
pub fn word(value: &[u8], words: &[&str]) -> Option<usize> {
    words
        .iter()
        .position(|word| word.as_bytes().eq_ignore_ascii_case(value))
}

/// A path, not yet made absolute.
pub fn path(value: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(value))
}

/// The value of a parameter written as `name=value`.
pub fn parameter<'a>(value: &'a [u8], name: &str) -> Option<&'a [u8]> {
    value.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// The place of a part of a word. If the word had escapes, offsets in it and in the source differ;
/// then it is the place of the whole word.
pub fn span_within(word: &DirectiveWord, part: &[u8]) -> Span {
    if word.span.len() != word.text.len() || part.len() > word.text.len() {
        return word.span;
    }
    let at = word
        .text
        .windows(part.len().max(1))
        .rposition(|window| window == part);
    match at {
        Some(at) => {
            let start = word.span.start + at as u32;
            Span {
                start,
                end: start + part.len() as u32,
                ..word.span
            }
        }
        None => word.span,
    }
}
