//! Quotes texts for SQL and JSON.

use super::InvalidText;

/// Quotes for SQL with backslash escapes, as MySQL reads them.
pub(super) fn sql(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_sql(text, &mut out);
    Ok(out)
}

/// Appends a text in single quotes. A dollar sign is escaped too.
fn write_sql(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'\'');
    for &byte in text {
        // MySQL's escapes, control-Z included, which ends a file on Windows.
        let letter = match byte {
            0 => b'0',
            0x08 => b'b',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x1a => b'Z',
            b'\\' | b'\'' | b'"' | b'$' => byte,
            other => {
                out.push(other);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
    out.push(b'\'');
}

/// Quotes for PostgreSQL: a constant with escapes, `E'…'`. If the text is not UTF-8, every byte
/// beyond ASCII is escaped as a number.
pub(super) fn pgsql(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    if text.is_empty() {
        return Ok(b"''".to_vec());
    }
    let mut out = vec![b'E'];
    write_sql(text, &mut out);
    // PostgreSQL checks the encoding of a literal, so invalid bytes are sent as numbers.
    if std::str::from_utf8(&out).is_ok() {
        return Ok(out);
    }
    let mut escaped = Vec::with_capacity(out.len() + 16);
    for byte in out {
        match byte.is_ascii() {
            true => escaped.push(byte),
            false => escaped.extend_from_slice(format!("\\\\{byte:03o}").as_bytes()),
        }
    }
    Ok(escaped)
}

/// Quotes for JSON. An empty text becomes `null`.
pub(super) fn json(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    if text.is_empty() {
        return Ok(b"null".to_vec());
    }
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    for &byte in text {
        let letter = match byte {
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            0x0c => b'f',
            0x08 => b'b',
            b'\\' | b'"' => byte,
            // RFC 8259, section 7: control characters must be escaped; the common ones have
            // letters.
            0..b' ' => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                continue;
            }
            other => {
                out.push(other);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
    out.push(b'"');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_and_what_would_end_them() {
        let text = b"a'b\"c\\d$\0\n\x1a\x01\xc3\xa9";
        let written = sql(text).expect("every text can be quoted");
        assert_eq!(written, b"'a\\'b\\\"c\\\\d\\$\\0\\n\\Z\x01\xc3\xa9'");
        let written = pgsql(text).expect("every text can be quoted");
        assert_eq!(written, b"E'a\\'b\\\"c\\\\d\\$\\0\\n\\Z\x01\xc3\xa9'");
        let written = pgsql(b"\xc3").expect("every text can be quoted");
        assert_eq!(written, b"E'\\\\303'");
        let written = json(text).expect("every text can be quoted");
        assert_eq!(
            written,
            b"\"a'b\\\"c\\\\d$\\u0000\\n\\u001a\\u0001\xc3\xa9\""
        );
    }
}
