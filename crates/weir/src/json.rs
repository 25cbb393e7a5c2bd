//! Members of JSON objects, for commands whose output programs read.
//!
//! The objects are small and their shapes are fixed, so they are written in order as text. What has to be right is the
//! escaping (RFC 8259, section 7), and that is here.

use std::fmt::Write as _;

/// A member of an object, with `before` in front: a string, escaped as JSON demands.
pub(crate) fn member(out: &mut String, name: &str, value: &str, before: &str) {
    let _ = write!(out, "{before}\"{name}\": ");
    string(out, value);
}

/// A string with its quotes.
pub(crate) fn string(out: &mut String, value: &str) {
    out.push('"');
    for char in value.chars() {
        match char {
            '"' | '\\' => {
                out.push('\\');
                out.push(char);
            }
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            char if char.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push('"');
}
