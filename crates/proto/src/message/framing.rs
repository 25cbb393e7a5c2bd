//! Where the body of a message ends, by its fields (RFC 9112, section 6), with all checks against
//! request smuggling.

use super::method::Method;
use super::rejected_head::RejectKind;
use super::version::MessageVersion;
use crate::fields::Fields;
use crate::known_fields::KnownField;
use crate::status::is_bodyless;

/// Where a request's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFraming {
    /// There is none.
    None,
    /// After this many bytes. May be zero: the client said `Content-Length: 0`.
    Length(u64),
    /// Where the last chunk says so.
    Chunked,
}

impl RequestFraming {
    /// The framing of a request, with every check against smuggling (RFC 9112 section 6.3).
    /// That no field stands twice is checked by the parser.
    pub fn of_request(
        version: MessageVersion,
        fields: &Fields,
    ) -> Result<RequestFraming, RejectKind> {
        let length = match fields.get_known(KnownField::ContentLength) {
            Some(value) => Some(parse_length(value).ok_or(RejectKind::InvalidContentLength)?),
            None => None,
        };
        let Some(encoding) = fields.get_known(KnownField::TransferEncoding) else {
            return Ok(length.map_or(RequestFraming::None, RequestFraming::Length));
        };
        if version < MessageVersion::HTTP_11 {
            return Err(RejectKind::TransferEncodingInHttp10);
        }
        if !encoding.eq_ignore_ascii_case(b"chunked") {
            return Err(RejectKind::UnknownTransferEncoding);
        }
        if length.is_some() {
            return Err(RejectKind::LengthAndTransferEncoding);
        }
        Ok(RequestFraming::Chunked)
    }

    /// Whether at least one byte of body may come.
    pub fn has_body(self) -> bool {
        matches!(self, RequestFraming::Chunked | RequestFraming::Length(1..))
    }
}

/// Where a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// There is none, whatever the fields say.
    None,
    /// After this many bytes.
    Length(u64),
    /// Where the last chunk says so.
    Chunked,
    /// Where the connection ends.
    UntilClose,
}

/// An upstream's framing fields contradict each other: answer 502.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFraming {
    /// Content-Length is not a number that fits into 63 bits.
    InvalidContentLength,
    /// Both framings (RFC 9112 section 6.3).
    LengthAndTransferEncoding,
    /// A transfer coding other than `chunked`.
    UnknownTransferEncoding,
}

impl ResponseFraming {
    /// The framing of a response to `method`. Duplicate framing fields were refused by the parser.
    /// The fields are checked even where no body can follow, because a cache may keep them.
    pub fn of_response(
        method: Method,
        status: u16,
        fields: &Fields,
    ) -> Result<ResponseFraming, BadFraming> {
        let length = match fields.get_known(KnownField::ContentLength) {
            Some(value) => Some(parse_length(value).ok_or(BadFraming::InvalidContentLength)?),
            None => None,
        };
        let encoding = fields.get_known(KnownField::TransferEncoding);
        let is_chunked = encoding.is_some_and(|value| value.eq_ignore_ascii_case(b"chunked"));
        if !is_chunked && encoding.is_some_and(|value| !is_unheard_of(value)) {
            return Err(BadFraming::UnknownTransferEncoding);
        }
        if encoding.is_some() && length.is_some() {
            return Err(BadFraming::LengthAndTransferEncoding);
        }
        let is_tunnel = method == Method::Connect && (200..300).contains(&status);
        Ok(match length {
            _ if method.is_head() || is_bodyless(status) || is_tunnel => ResponseFraming::None,
            _ if is_chunked => ResponseFraming::Chunked,
            Some(length) => ResponseFraming::Length(length),
            None => ResponseFraming::UntilClose,
        })
    }
}

/// Whether a response's transfer coding is a single word without a known meaning, like `identity`
/// or `binary`. Then the content ends with the connection (RFC 9112, section 6.3) and is used as it
/// is. Compressed content, or chunks in disguise, would not be what it seems.
fn is_unheard_of(coding: &[u8]) -> bool {
    const HEARD_OF: [&[u8]; 4] = [b"chunked", b"gzip", b"compress", b"deflate"];
    let has = |word: &[u8]| {
        let mut windows = coding.windows(word.len());
        windows.any(|window| window.eq_ignore_ascii_case(word))
    };
    !coding.is_empty()
        && coding
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
        && !HEARD_OF.iter().any(|word| has(word))
}

/// Parses a Content-Length: digits only, at most 63 bits, so that it can be a file offset.
pub fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() {
        return None;
    }
    let mut length = 0i64;
    for byte in value {
        if !byte.is_ascii_digit() {
            return None;
        }
        length = length
            .checked_mul(10)?
            .checked_add(i64::from(byte - b'0'))?;
    }
    Some(length as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_plain_numbers_of_63_bits() {
        assert_eq!(parse_length(b"0"), Some(0));
        assert_eq!(parse_length(b"007"), Some(7));
        assert_eq!(parse_length(b"9223372036854775807"), Some(i64::MAX as u64));
        for bad in [
            "",
            " 1",
            "1 ",
            "+1",
            "-1",
            "0x1",
            "1,1",
            "1.0",
            "9223372036854775808",
            "99999999999999999999",
        ] {
            assert_eq!(parse_length(bad.as_bytes()), None, "{bad}");
        }
    }

    fn fields(text: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::new();
        for (name, value) in text {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        fields
    }

    #[test]
    fn request_framing_has_one_meaning_or_none() {
        let framing =
            |version, text: &[(&str, &str)]| RequestFraming::of_request(version, &fields(text));
        let (v10, v11) = (MessageVersion::HTTP_10, MessageVersion::HTTP_11);
        let (cl, te) = ("Content-Length", "Transfer-Encoding");
        assert_eq!(framing(v11, &[]), Ok(RequestFraming::None));
        assert_eq!(framing(v11, &[(cl, "12")]), Ok(RequestFraming::Length(12)));
        assert_eq!(
            framing(v11, &[(te, "Chunked")]),
            Ok(RequestFraming::Chunked)
        );
        assert_eq!(
            framing(v11, &[(te, "gzip, chunked")]),
            Err(RejectKind::UnknownTransferEncoding)
        );
        assert_eq!(
            framing(v11, &[(te, "")]),
            Err(RejectKind::UnknownTransferEncoding)
        );
        assert_eq!(
            framing(v11, &[(te, "identity"), (cl, "1")]),
            Err(RejectKind::UnknownTransferEncoding)
        );
        assert_eq!(
            framing(v10, &[(te, "chunked")]),
            Err(RejectKind::TransferEncodingInHttp10)
        );
        assert_eq!(
            framing(v11, &[(cl, "1"), (te, "chunked")]),
            Err(RejectKind::LengthAndTransferEncoding)
        );
        assert_eq!(
            framing(v11, &[(cl, "1,1")]),
            Err(RejectKind::InvalidContentLength)
        );
        assert!(
            !RequestFraming::Length(0).has_body()
                && RequestFraming::Length(1).has_body()
                && RequestFraming::Chunked.has_body()
        );
    }

    #[test]
    fn response_framing_follows_the_rfc_list() {
        use ResponseFraming as R;
        let framing =
            |method, status, text: &[(&str, &str)]| R::of_response(method, status, &fields(text));
        let (cl, te) = (("Content-Length", "12"), ("Transfer-Encoding", "chunked"));
        assert_eq!(framing(Method::Get, 200, &[cl]), Ok(R::Length(12)));
        assert_eq!(framing(Method::Get, 200, &[te]), Ok(R::Chunked));
        assert_eq!(framing(Method::Get, 200, &[]), Ok(R::UntilClose));
        assert_eq!(framing(Method::Head, 200, &[cl]), Ok(R::None));
        assert_eq!(framing(Method::Get, 304, &[cl]), Ok(R::None));
        assert_eq!(framing(Method::Get, 204, &[te]), Ok(R::None));
        assert_eq!(framing(Method::Get, 101, &[]), Ok(R::None));
        assert_eq!(framing(Method::Connect, 200, &[cl]), Ok(R::None));
        assert_eq!(framing(Method::Connect, 407, &[cl]), Ok(R::Length(12)));
        assert_eq!(
            framing(Method::Get, 200, &[cl, te]),
            Err(BadFraming::LengthAndTransferEncoding)
        );
        assert_eq!(
            framing(Method::Get, 200, &[("Content-Length", "x")]),
            Err(BadFraming::InvalidContentLength)
        );
        for coding in [
            "gzip",
            "x-gzip",
            "chunked, gzip",
            "xchunked",
            "\u{b}chunked",
            "\"a\"",
            "a, b",
            "",
        ] {
            let coding = ("Transfer-Encoding", coding);
            assert_eq!(
                framing(Method::Get, 200, &[coding]),
                Err(BadFraming::UnknownTransferEncoding)
            );
        }
        let identity = ("Transfer-Encoding", "identity");
        assert_eq!(framing(Method::Get, 200, &[identity]), Ok(R::UntilClose));
        assert_eq!(
            framing(Method::Get, 200, &[cl, identity]),
            Err(BadFraming::LengthAndTransferEncoding)
        );
    }
}
