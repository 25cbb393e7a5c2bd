//! The replacement strings of `ngx.re.sub` and `ngx.re.gsub`: `$1` or `${1}` is a capture, `$$` a
//! dollar sign.
//!
//! A string is parsed once per call, and not per match. An invalid one is an error even if nothing
//! matches.

use bstr::ByteSlice;

/// A part of a replacement string.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TemplatePart {
    Text(Vec<u8>),
    Group(usize),
}

/// Parses a replacement string. The error is lua-nginx-module's.
pub(super) fn parse_template(template: &[u8]) -> Result<Vec<TemplatePart>, Vec<u8>> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < template.len() {
        if template[at] != b'$' {
            let end = template[at..]
                .find_byte(b'$')
                .map_or(template.len(), |n| at + n);
            parts.push(TemplatePart::Text(template[at..end].to_vec()));
            at = end;
            continue;
        }
        at += 1;
        // `$$` is a dollar sign.
        if template.get(at) == Some(&b'$') {
            parts.push(TemplatePart::Text(b"$".to_vec()));
            at += 1;
            continue;
        }
        let braced = template.get(at) == Some(&b'{');
        let begin = at + usize::from(braced);
        let name = name(&template[begin.min(template.len())..]);
        at = begin + name.len();
        if begin >= template.len() {
            return Err(invalid(template));
        }
        if braced {
            if template.get(at) != Some(&b'}') {
                return Err([
                    b"the closing bracket in \"",
                    name,
                    b"\" variable is missing",
                ]
                .concat());
            }
            at += 1;
        }
        if name.is_empty() {
            return Err(invalid(template));
        }
        if !name[0].is_ascii_digit() {
            return Err([
                b"attempt to use named capturing variable \"",
                name,
                b"\" (named captures not supported yet)",
            ]
            .concat());
        }
        // A number too large for any pattern is a capture that does not exist.
        let group = name.to_str().ok().and_then(|digits| digits.parse().ok());
        parts.push(TemplatePart::Group(group.unwrap_or(usize::MAX)));
    }
    Ok(parts)
}

/// The name at the beginning of the text: digits, or letters.
fn name(text: &[u8]) -> &[u8] {
    let is_number = text.first().is_some_and(u8::is_ascii_digit);
    let end = text.iter().position(|byte| match is_number {
        true => !byte.is_ascii_digit(),
        false => !byte.is_ascii_alphanumeric() && *byte != b'_',
    });
    &text[..end.unwrap_or(text.len())]
}

/// The error for a `$` that no name follows.
fn invalid(template: &[u8]) -> Vec<u8> {
    [
        b"lua script: invalid capturing variable name found in \"",
        template,
        b"\"",
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stand_between_text() {
        let text = |text: &str| TemplatePart::Text(text.as_bytes().to_vec());
        assert_eq!(
            parse_template(b"a$1b${22}c$$3").expect("it is one"),
            [
                text("a"),
                TemplatePart::Group(1),
                text("b"),
                TemplatePart::Group(22),
                text("c"),
                text("$"),
                text("3")
            ]
        );
    }

    #[test]
    fn what_is_no_template_says_why() {
        let why = |template: &str| {
            let error = parse_template(template.as_bytes()).expect_err("it is none");
            String::from_utf8(error).expect("text")
        };
        assert!(why("$").contains("invalid capturing variable name found in \"$\""));
        assert!(why("a$-").contains("invalid capturing"));
        assert!(why("${}").contains("invalid capturing"));
        assert!(why("${1").contains("closing bracket in \"1\""));
        assert!(why("${1a}").contains("closing bracket in \"1\""));
        assert!(why("$name").contains("named capturing variable \"name\""));
        assert!(why("${name}").contains("named capturing variable \"name\""));
    }
}
