//! Content-Type values: the type itself and its charset.

/// The type without parameters and whitespace: `text/html`. It is to be compared without regard to
/// case.
pub fn essence(value: &[u8]) -> &[u8] {
    let end = memchr::memchr(b';', value).unwrap_or(value.len());
    value[..end].trim_ascii()
}

/// The value of the first `charset` parameter, without quotes.
pub fn charset(value: &[u8]) -> Option<&[u8]> {
    parameter(value, b"charset").filter(|charset| !charset.is_empty())
}

/// The value of a parameter without its quotes (RFC 9110, section 5.6.6). The name's case does not
/// matter.
pub fn parameter<'a>(value: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    value.split(|&b| b == b';').skip(1).find_map(|parameter| {
        let equals = memchr::memchr(b'=', parameter)?;
        let text = parameter[equals + 1..].trim_ascii();
        let text = text
            .strip_prefix(b"\"")
            .map_or(text, |text| text.strip_suffix(b"\"").unwrap_or(text));
        parameter[..equals]
            .trim_ascii()
            .eq_ignore_ascii_case(name)
            .then_some(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_parameters_are_split() {
        for (value, kind, set) in [
            ("text/html", "text/html", None),
            ("text/html; charset=utf-8", "text/html", Some("utf-8")),
            (
                "text/html ;CHARSET=\"utf-8\" ; x=y",
                "text/html",
                Some("utf-8"),
            ),
            (
                "text/html; x=charset; charset = koi8-r",
                "text/html",
                Some("koi8-r"),
            ),
            ("text/html; charset=", "text/html", None),
            ("text/html; charset", "text/html", None),
            ("text/html; mycharset=x", "text/html", None),
            ("text/html; charset=\"open", "text/html", Some("open")),
            (" ; charset=x", "", Some("x")),
            ("", "", None),
        ] {
            assert_eq!(essence(value.as_bytes()), kind.as_bytes(), "{value}");
            assert_eq!(charset(value.as_bytes()), set.map(str::as_bytes), "{value}");
        }
        assert_eq!(
            parameter(b"multipart/form-data; boundary=a", b"Boundary"),
            Some(&b"a"[..])
        );
    }
}
