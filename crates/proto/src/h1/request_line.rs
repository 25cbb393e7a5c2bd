//! The request line (RFC 9112 section 3): method, target, version.
//!
//! The grammar is nginx's: a little wider than the RFC where old clients need it (several spaces, no
//! version at all), narrower where nobody does (letters of methods, no asterisk-form).

use crate::fields::ArenaSpan;
use crate::message::method::is_method_byte;
use crate::message::{MessageVersion, Method, RejectKind, RequestHead, TargetForm};
use memchr::memchr;

/// The request line, without line end, that begins at `base` in the head.
pub(super) struct RequestLine<'a> {
    pub(super) text: &'a [u8],
    pub(super) base: usize,
    pub(super) head: &'a mut RequestHead,
}

impl RequestLine<'_> {
    /// Fills in the head.
    pub(super) fn parse(mut self) -> Result<(), RejectKind> {
        let text = self.text;
        let method_end = text
            .iter()
            .position(|&b| !is_method_byte(b))
            .unwrap_or(text.len());
        if method_end == 0 || text.get(method_end) != Some(&b' ') {
            return Err(RejectKind::InvalidMethod);
        }
        self.head.method = Method::from_bytes(&text[..method_end]);
        self.head.method_text = self.span(0, method_end);
        let target = skip_spaces(text, method_end);
        let after = match (self.head.method, text.get(target)) {
            (Method::Connect, _) => self.authority_form(target)?,
            (_, Some(b'/')) => self.path(target)?,
            (_, Some(byte)) if byte.is_ascii_alphabetic() => self.absolute_form(target)?,
            _ => return Err(RejectKind::InvalidRequest),
        };
        self.version(after)?;
        if self.head.version == MessageVersion::HTTP_09 && self.head.method != Method::Get {
            return Err(RejectKind::InvalidHttp09Method);
        }
        Ok(())
    }

    fn span(&self, start: usize, end: usize) -> ArenaSpan {
        ArenaSpan::new(self.base + start, self.base + end)
    }

    /// Path and args, from `/` or `?` to the next space; returns where they end.
    fn path(&mut self, start: usize) -> Result<usize, RejectKind> {
        let end = start + find_delimiter(&self.text[start..]);
        if !matches!(self.text.get(end), None | Some(b' ')) {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.target = self.span(start, end);
        Ok(end)
    }

    /// `scheme://host[:port][/path][?args]`
    fn absolute_form(&mut self, start: usize) -> Result<usize, RejectKind> {
        let text = self.text;
        let is_scheme = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let scheme_end = start + text[start..].iter().take_while(|b| is_scheme(b)).count();
        if !text[scheme_end..].starts_with(b"://") {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.form = TargetForm::Absolute;
        self.head.scheme = self.span(start, scheme_end);
        let host = scheme_end + 3;
        let (host_end, _) = self.authority(host)?;
        self.head.authority = self.span(host, host_end);
        match text.get(host_end) {
            Some(b'/' | b'?') => self.path(host_end),
            Some(b' ') => {
                // No path means "/" (RFC 9110 section 4.2.3); there is one in "://".
                self.head.target = self.span(scheme_end + 1, scheme_end + 2);
                Ok(host_end)
            }
            _ => Err(RejectKind::InvalidRequest),
        }
    }

    /// `host:port`, both needed.
    fn authority_form(&mut self, start: usize) -> Result<usize, RejectKind> {
        let (end, port_digits) = self.authority(start)?;
        if port_digits.is_none_or(|digits| digits == 0) || self.text.get(end) != Some(&b' ') {
            return Err(RejectKind::InvalidRequest);
        }
        self.head.form = TargetForm::Authority;
        self.head.authority = self.span(start, end);
        // CONNECT has no path; routing sees "/", which is in "HTTP/".
        if let Some(slash) = memchr(b'/', &self.text[end..]) {
            self.head.target = self.span(end + slash, end + slash + 1);
        }
        Ok(end)
    }

    /// A host and perhaps a port; returns where they end and how many digits the port has.
    fn authority(&self, start: usize) -> Result<(usize, Option<usize>), RejectKind> {
        let text = self.text;
        let mut end = start;
        if text.get(start) == Some(&b'[') {
            end += 1 + text[start + 1..]
                .iter()
                .take_while(|b| is_ip_literal_byte(**b))
                .count();
            if text.get(end) != Some(&b']') {
                return Err(RejectKind::InvalidRequest);
            }
            end += 1;
        } else {
            let is_host = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-');
            end += text[start..].iter().take_while(|b| is_host(b)).count();
        }
        if text.get(end) != Some(&b':') {
            return Ok((end, None));
        }
        let digits = text[end + 1..]
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        Ok((end + 1 + digits, Some(digits)))
    }

    /// What follows the target: spaces and a version, or nothing.
    fn version(&mut self, after: usize) -> Result<(), RejectKind> {
        let start = skip_spaces(self.text, after);
        let rest = &self.text[start..];
        let (version, length) = match rest {
            b"" => (MessageVersion::HTTP_09, 0),
            b"HTTP/1.1" => (MessageVersion::HTTP_11, 8),
            b"HTTP/1.0" => (MessageVersion::HTTP_10, 8),
            _ => parse_version(rest)?,
        };
        self.head.version = version;
        self.head.protocol = self.span(start, start + length);
        Ok(())
    }
}

/// `HTTP/` and a version other than the usual two, then only spaces; returns its length.
#[cold]
fn parse_version(text: &[u8]) -> Result<(MessageVersion, usize), RejectKind> {
    let digits = text
        .strip_prefix(b"HTTP/")
        .ok_or(RejectKind::InvalidRequest)?;
    match digits.first() {
        Some(b'1') => {}
        Some(b'2'..=b'9') => return Err(RejectKind::InvalidVersion),
        _ => return Err(RejectKind::InvalidRequest),
    }
    match digits.get(1) {
        Some(b'.') => {}
        // Any further digit makes the major version 10 or more.
        Some(b'0'..=b'9') => return Err(RejectKind::InvalidVersion),
        _ => return Err(RejectKind::InvalidRequest),
    }
    let minor = &digits[2..];
    let count = minor.iter().take_while(|b| b.is_ascii_digit()).count();
    // nginx reads a digit while the value so far is at most 99.
    let mut value = 0u16;
    for digit in &minor[..count] {
        if value > 99 {
            return Err(RejectKind::InvalidRequest);
        }
        value = value * 10 + u16::from(digit - b'0');
    }
    if count == 0 || minor[count..].iter().any(|&b| b != b' ') {
        return Err(RejectKind::InvalidRequest);
    }
    Ok((
        MessageVersion {
            major: 1,
            minor: value,
        },
        7 + count,
    ))
}

/// The characters of an IP literal between the brackets (RFC 3986 section 3.2.2).
pub(crate) const fn is_ip_literal_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b':' | b'-' | b'.' | b'_' | b'~')
        || matches!(
            byte,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        )
}

fn skip_spaces(text: &[u8], from: usize) -> usize {
    from + text[from..].iter().take_while(|&&b| b == b' ').count()
}

/// The number of bytes before the first space or control character, eight at a time.
fn find_delimiter(text: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGHS: u64 = ONES << 7;
    let (words, tail) = text.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let is_low = word.wrapping_sub(ONES * 0x21) & !word;
        let deleted = word ^ (ONES * 0x7f);
        let is_delete = deleted.wrapping_sub(ONES) & !deleted;
        // A borrow can mark a byte wrongly, but only after one that is marked rightly.
        let found = (is_low | is_delete) & HIGHS;
        if found != 0 {
            return i * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let rest = tail.iter().position(|&b| b <= b' ' || b == 0x7f);
    rest.map_or(text.len(), |offset| text.len() - tail.len() + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_are_found_at_every_place() {
        let is_delimiter = |b: u8| b <= b' ' || b == 0x7f;
        for length in 0..20usize {
            for place in 0..length {
                for byte in 0..=255u8 {
                    let mut text = vec![b'\xff'; length];
                    text[place] = byte;
                    let expected = if is_delimiter(byte) { place } else { length };
                    assert_eq!(find_delimiter(&text), expected);
                    text[length - 1] = b' ';
                    assert_eq!(find_delimiter(&text), expected.min(length - 1));
                }
            }
        }
    }
}
