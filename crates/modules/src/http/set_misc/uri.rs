//! Percent-encoding.

use super::InvalidText;

/// Escapes a text for use in a query string.
pub(super) fn escape(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match stands_for_itself(byte) {
            true => out.push(byte),
            false => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    Ok(out)
}

/// Whether a byte is not escaped. Of RFC 3986's reserved characters `!`, `$`, `'`, `(`, `)`, `*`,
/// `,` and `@` are not.
fn stands_for_itself(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !matches!(
            byte,
            b'"' | b'#'
                | b'%'
                | b'&'
                | b'+'
                | b'/'
                | b':'
                | b';'
                | b'<'
                | b'='
                | b'>'
                | b'?'
                | b'['
                | b'\\'
                | b']'
                | b'^'
                | b'{'
                | b'}'
        )
}

/// Decodes escapes, and `+` as a space. A percent sign that no two hexadecimal digits follow is
/// dropped, and so is a single digit after it.
pub(super) fn unescape(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(&byte) = rest.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let Some(first) = rest.next() else {
                    break;
                };
                // Not an escape: the percent sign is dropped and the byte is kept, as in the third-party module.
                let Some(high) = digit(first) else {
                    out.push(*first);
                    continue;
                };
                if let Some(low) = rest.next().and_then(digit) {
                    out.push((high << 4 | low) as u8);
                }
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_come_and_go() {
        let text = b"a b/c?d=e&f'g,h~\xc3\xa9\0";
        let escaped = escape(text).expect("every text can be escaped");
        assert_eq!(escaped, b"a%20b%2Fc%3Fd%3De%26f'g,h~%C3%A9%00");
        assert_eq!(unescape(&escaped).expect("every text can be"), text);
        for (text, plain) in [("a+b", "a b"), ("%zz%4", "zz"), ("%4zx", "x"), ("%", "")] {
            let unescaped = unescape(text.as_bytes()).expect("every text can be");
            assert_eq!(unescaped, plain.as_bytes(), "{text}");
        }
    }
}
