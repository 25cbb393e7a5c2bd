//! Response heads of CGI and its relatives FastCGI, SCGI and uwsgi (RFC 3875, section 6).
//!
//! They are header lines as in HTTP, without a status line: the field `Status` has the status, and
//! without it the status is 302 if there is a `Location`, else 200. Some SCGI and uwsgi
//! applications send a status line nevertheless.

use crate::h1::response::{ResponseParser, ResponseProgress};
use crate::known_fields::KnownField;
use crate::message::ResponseHead;

/// Parses one header. At every call the buffer must begin with the same bytes, and it may only
/// grow.
#[derive(Clone, Debug)]
pub struct HeadParser {
    fields: ResponseParser,
    status_line: CgiStatusLine,
}

/// Whether a head may begin with a status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgiStatusLine {
    /// A header consists of fields only.
    Never,
    /// If it begins like HTTP it is parsed as HTTP.
    Tolerated,
}

impl HeadParser {
    /// A parser for a response.
    pub fn new(status_line: CgiStatusLine) -> HeadParser {
        let fields = match status_line {
            CgiStatusLine::Never => ResponseParser::without_status_line(),
            CgiStatusLine::Tolerated => ResponseParser::new(),
        };
        HeadParser {
            fields,
            status_line,
        }
    }

    /// Continues, and returns the length of the header once it is complete. `head` must be empty at
    /// the first call.
    ///
    /// The error is the line for the error log, in nginx's words.
    pub fn parse(
        &mut self,
        buf: &[u8],
        max_bytes: usize,
        head: &mut ResponseHead,
    ) -> Result<Option<usize>, Vec<u8>> {
        loop {
            match self
                .fields
                .parse(buf, max_bytes, head)
                .map_err(|bad| bad.log_line())?
            {
                ResponseProgress::Partial => return Ok(None),
                ResponseProgress::NotHttp if has_other_version(buf) => {
                    return Err(b"upstream sent invalid status line".to_vec());
                }
                // What only looks like a status line is passed over as a field, as in nginx.
                ResponseProgress::NotHttp => *self = HeadParser::new(CgiStatusLine::Never),
                ResponseProgress::Complete(length) => {
                    // A status line takes precedence over `Status`.
                    if head.status == 0 {
                        status_from_fields(head)?;
                    }
                    return Ok(Some(length));
                }
            }
        }
    }

    /// Resets the parser for the next response.
    pub fn reset(&mut self) {
        *self = HeadParser::new(self.status_line);
    }
}

/// Whether it begins with a status line of a version that is not HTTP/1: what follows may mean something else.
fn has_other_version(buf: &[u8]) -> bool {
    match buf
        .strip_prefix(b"HTTP/")
        .and_then(|rest| rest.first_chunk::<3>())
    {
        Some([major, b'.', minor]) => {
            *major != b'1' && major.is_ascii_digit() && minor.is_ascii_digit()
        }
        _ => false,
    }
}

fn status_from_fields(head: &mut ResponseHead) -> Result<(), Vec<u8>> {
    let Some(value) = head.fields.get_known(KnownField::Status) else {
        head.status = if head.fields.has(KnownField::Location) {
            302
        } else {
            200
        };
        return Ok(());
    };
    // A status has three digits (RFC 9110, section 15), and this one is the final one: nothing comes behind it.
    let has_more = value.get(3).is_some_and(u8::is_ascii_digit);
    match value.first_chunk::<3>() {
        Some(digits @ [b'2'..=b'9', ..]) if !has_more && digits.iter().all(u8::is_ascii_digit) => {
            head.status = digits
                .iter()
                .fold(0, |value, digit| value * 10 + u16::from(digit - b'0'));
        }
        _ => return Err([b"upstream sent invalid status \"", value, b"\""].concat()),
    }
    head.take_status_text(KnownField::Status);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(wire: &[u8], status_line: CgiStatusLine) -> Result<(u16, Vec<u8>, usize), Vec<u8>> {
        let mut seen = None;
        for step in 1..=wire.len() {
            let (mut parser, mut head) = (HeadParser::new(status_line), ResponseHead::default());
            let mut end = 0;
            let used = loop {
                end = (end + step).min(wire.len());
                if let Some(used) = parser.parse(&wire[..end], 4096, &mut head)? {
                    break used;
                }
                assert!(end < wire.len(), "the head is whole");
            };
            let found = (head.status, head.status_text().to_vec(), used);
            assert!(
                seen.replace(found.clone())
                    .is_none_or(|before| before == found),
                "step {step}"
            );
        }
        Ok(seen.expect("no wire is empty"))
    }

    #[test]
    fn the_status_comes_from_its_field_or_from_location() {
        let status =
            |wire| read(wire, CgiStatusLine::Never).map(|(status, text, _)| (status, text));
        assert_eq!(
            status(b"Status: 404 Gone fishing\r\n\r\n"),
            Ok((404, b"404 Gone fishing".to_vec()))
        );
        assert_eq!(status(b"Status: 404\r\n\r\n"), Ok((404, Vec::new())));
        assert_eq!(status(b"X: y\nLocation: /a\n\n"), Ok((302, Vec::new())));
        assert_eq!(status(b"\r\n"), Ok((200, Vec::new())));
        assert_eq!(
            status(b"Status: no\r\n\r\n"),
            Err(b"upstream sent invalid status \"no\"".to_vec())
        );
        assert_eq!(status(b"Status: 200OK\r\n\r\n"), Ok((200, Vec::new())));
        for invalid in ["1000 x", "103", "100 Continue"] {
            let wire = format!("Status: {invalid}\r\n\r\n").into_bytes();
            let error = format!("upstream sent invalid status \"{invalid}\"").into_bytes();
            assert_eq!(read(&wire, CgiStatusLine::Never).err(), Some(error));
        }
        assert_eq!(
            status(b"Status: 099 x\r\n\r\n"),
            Err(b"upstream sent invalid status \"099 x\"".to_vec())
        );
    }

    #[test]
    fn a_status_line_is_tolerated_where_it_may_be() {
        let wire = b"HTTP/1.1 404 Not Found\r\nStatus: 500 x\r\n\r\nbody";
        assert_eq!(
            read(wire, CgiStatusLine::Tolerated),
            Ok((404, b"404 Not Found".to_vec(), wire.len() - 4))
        );
        for line in ["HTTP/2 404", "HTTP/1.1 x"] {
            let wire = format!("{line}\r\nStatus: 201\r\n\r\n");
            assert_eq!(
                read(wire.as_bytes(), CgiStatusLine::Tolerated),
                Ok((201, Vec::new(), wire.len()))
            );
        }
        assert_eq!(
            read(b"Host: a\r\n\r\n", CgiStatusLine::Tolerated),
            Ok((200, Vec::new(), 11))
        );
    }
}
