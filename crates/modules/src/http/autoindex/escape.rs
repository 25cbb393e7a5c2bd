//! File names in HTML, XML and JSON. They come from the file system, and uploads make them a
//! client's input.

pub(super) use http::text::write_html as html;

/// Appends text escaped for a JSON string (RFC 8259, section 7). Bytes that are not UTF-8 are left
/// as they are, as in nginx: the name would otherwise not refer to the file any more.
pub(super) fn json(text: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in text {
        match byte {
            b'\\' | b'"' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..=0x1f => {
                let digits = [
                    DIGITS[usize::from(byte >> 4)],
                    DIGITS[usize::from(byte & 15)],
                ];
                out.extend_from_slice(b"\\u00");
                out.extend_from_slice(&digits);
            }
            other => out.push(other),
        }
    }
}

/// Appends text percent-encoded as one path component of a link. A slash or colon in a name must
/// not change the link's structure.
pub(super) fn link(text: &[u8], out: &mut Vec<u8>) {
    proto::uri::escape(proto::uri::EscapeClass::UriComponent, text, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_string_early() {
        let mut out = Vec::new();
        json(b"a\"\\\x01\x1f\n/", &mut out);
        assert_eq!(out, b"a\\\"\\\\\\u0001\\u001F\\n/");
        out.clear();
        html(b"<a href=\"x\">&", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
