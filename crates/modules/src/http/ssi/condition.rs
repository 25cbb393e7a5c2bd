//! The expressions of `if` and `elif`.
//!
//! ```text
//! expr="$name"   expr="$name = text"   expr="$name != text"   expr="$name = /regular expression/"
//! ```

use bstr::{BStr, ByteSlice};
use http::Request;

use super::shared_page;

/// Evaluates an expression. The error is for the log.
pub(super) fn holds(request: &mut Request, expression: &BStr) -> Result<bool, String> {
    let is_left = |byte: &u8| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'$' | b'{' | b'}' | b'_' | b'"' | b'\'')
    };
    let length = expression.iter().take_while(|byte| is_left(byte)).count();
    let (left, rest) = expression.split_at(length);
    // As in nginx, not only the names of variables are in lower case: all of the left side is.
    let left = shared_page::evaluate(request, left.to_ascii_lowercase().as_bstr())?;
    let rest = skip_blanks(rest);
    if rest.is_empty() {
        return Ok(!left.is_empty());
    }
    let (is_negative, right) = match (rest.strip_prefix(b"="), rest.strip_prefix(b"!=")) {
        (Some(right), _) => (false, right),
        (None, Some(right)) => (true, right),
        (None, None) => return Err(invalid(expression)),
    };
    let right = skip_blanks(right);
    let agrees = match right {
        [b'/', pattern @ .., b'/'] => {
            let pattern = shared_page::evaluate(request, pattern.as_bstr())?;
            shared_page::page_of(request).matches(pattern.as_bstr(), left.as_bstr())?
        }
        [b'/', _, ..] => return Err(invalid(expression)),
        // An escaped slash: a text that begins with one, not a regular expression.
        [b'\\', text @ ..] if text.len() > 1 && text[0] == b'/' => {
            left == shared_page::evaluate(request, text.as_bstr())?
        }
        text => left == shared_page::evaluate(request, text.as_bstr())?,
    };
    Ok(agrees != is_negative)
}

/// Skips spaces, the only white space here in nginx.
fn skip_blanks(text: &[u8]) -> &[u8] {
    text.trim_start_with(|sign| sign == ' ')
}

/// The message about an expression, for the log.
fn invalid(expression: &BStr) -> String {
    format!("invalid expression in \"{expression}\"")
}
