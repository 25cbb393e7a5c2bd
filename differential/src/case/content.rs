//! Bytes of a case: short texts, and long ones that are said in few words.

use std::fmt;

/// Bytes as a list of texts, each repeated: `"GET /"`, or `"0123456789"*5000 "end"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content {
    /// Texts and how often each stands there.
    pub parts: Vec<(Vec<u8>, usize)>,
}

/// A case bounds what it asks for, also one that was written by hand.
const LARGEST: usize = 64 << 20;

impl Content {
    /// This text, once.
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        Self::repeated(text, 1)
    }

    /// This text, some times.
    pub fn repeated(text: impl AsRef<[u8]>, times: usize) -> Self {
        Self {
            parts: vec![(text.as_ref().to_vec(), times)],
        }
    }

    /// The same with more behind it.
    pub fn and(mut self, text: impl AsRef<[u8]>, times: usize) -> Self {
        self.parts.push((text.as_ref().to_vec(), times));
        self
    }

    /// The bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (text, times) in &self.parts {
            for _ in 0..*times {
                if bytes.len() + text.len() > LARGEST {
                    return bytes;
                }
                bytes.extend_from_slice(text);
            }
        }
        bytes
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.parts
            .iter()
            .map(|(text, times)| text.len().saturating_mul(*times))
            .fold(0, usize::saturating_add)
            .min(LARGEST)
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Content, String> {
        let mut parts = Vec::new();
        let mut rest = text.trim();
        while !rest.is_empty() {
            let (bytes, after) = literal(rest)?;
            let mut times = 1;
            rest = after;
            if let Some(after) = rest.strip_prefix('*') {
                let end = after
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(after.len());
                times = after[..end]
                    .parse()
                    .map_err(|_| format!("no number of times: {after:?}"))?;
                rest = &after[end..];
            }
            parts.push((bytes, times));
            rest = rest.trim_start();
        }
        Ok(Content { parts })
    }
}

/// Reads a text in double quotes; gives its bytes and what follows it.
fn literal(text: &str) -> Result<(Vec<u8>, &str), String> {
    let inner = text
        .strip_prefix('"')
        .ok_or_else(|| format!("expected a text in double quotes: {text:?}"))?;
    let mut bytes = Vec::new();
    let mut chars = inner.char_indices();
    while let Some((at, next)) = chars.next() {
        match next {
            '"' => return Ok((bytes, &inner[at + 1..])),
            '\\' => bytes.push(escaped(&mut chars)?),
            other => bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Err(format!("a text is not closed: {text:?}"))
}

fn escaped(chars: &mut std::str::CharIndices<'_>) -> Result<u8, String> {
    let mut next = || chars.next().map(|(_, c)| c);
    match next() {
        Some('r') => Ok(b'\r'),
        Some('n') => Ok(b'\n'),
        Some('t') => Ok(b'\t'),
        Some(same @ ('"' | '\\')) => Ok(same as u8),
        Some('x') => {
            let digits: String = next().into_iter().chain(next()).collect();
            u8::from_str_radix(&digits, 16).map_err(|_| format!("no byte: \\x{digits}"))
        }
        other => Err(format!("no escape: {other:?}")),
    }
}

impl fmt::Display for Content {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (text, times)) in self.parts.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(out, "{space}\"{}\"", shown(text))?;
            if *times != 1 {
                write!(out, "*{times}")?;
            }
        }
        if self.parts.is_empty() {
            out.write_str("\"\"")?;
        }
        Ok(())
    }
}

/// Bytes as they stand between double quotes: ASCII as it is, everything else escaped.
pub fn shown(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b'\r' => out.push_str("\\r"),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let content = Content::new(&all).and("ab", 3).and("", 0);
        let text = content.to_string();
        let read = Content::parse(&text).expect("it was written here");
        assert_eq!(read.bytes(), content.bytes());
        assert_eq!(read.len(), 262);
        assert!(Content::parse("\"a").is_err() && Content::parse("\"\\q\"").is_err());
    }
}
