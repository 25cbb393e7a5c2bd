//! PEM: base64 between marker lines (RFC 7468).

use base64::prelude::{BASE64_STANDARD, Engine};

/// One PEM block.
#[derive(Debug)]
pub(super) struct PemBlock {
    /// The text after `BEGIN`.
    pub(super) label: String,
    /// The lines `Name: value` of the older format for encrypted keys (RFC 1421).
    pub(super) headers: Vec<(String, String)>,
    pub(super) content: Vec<u8>,
}

/// Parses all blocks of a text and skips anything between them, such as the text that `openssl x509 -text` writes.
/// `None` if a block is malformed.
pub(super) fn parse(text: &[u8]) -> Option<Vec<PemBlock>> {
    let mut blocks = Vec::new();
    let mut lines = text
        .split(|byte| *byte == b'\n')
        .map(|line| line.trim_ascii_end());
    while let Some(line) = lines.next() {
        let Some(label) = marker(line, b"-----BEGIN ") else {
            continue;
        };
        let mut headers = Vec::new();
        let mut digits = Vec::new();
        loop {
            let line = lines.next()?;
            if let Some(end) = marker(line, b"-----END ") {
                if end != label {
                    return None;
                }
                break;
            }
            match line.iter().position(|byte| *byte == b':') {
                // Headers come before the data; base64 has no colon.
                Some(colon) if digits.is_empty() => headers.push((
                    String::from_utf8_lossy(line[..colon].trim_ascii()).into_owned(),
                    String::from_utf8_lossy(line[colon + 1..].trim_ascii()).into_owned(),
                )),
                _ => digits.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace())),
            }
        }
        blocks.push(PemBlock {
            label,
            headers,
            content: decode(&digits)?,
        });
    }
    Some(blocks)
}

fn marker(line: &[u8], begin: &[u8]) -> Option<String> {
    let label = line.strip_prefix(begin)?.strip_suffix(b"-----")?;
    Some(String::from_utf8_lossy(label).into_owned())
}

fn decode(digits: &[u8]) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(digits).ok()
}

/// Encodes a block, with 64 characters per line.
pub(super) fn encode(label: &str, content: &[u8]) -> String {
    let mut out = format!("-----BEGIN {label}-----\n");
    let digits = BASE64_STANDARD.encode(content);
    for line in digits.as_bytes().chunks(64) {
        out.push_str(std::str::from_utf8(line).expect("digits of base64 are ASCII"));
        out.push('\n');
    }
    out + "-----END " + label + "-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        for length in 0..100 {
            let content: Vec<u8> = (0..length).map(|n: u8| n.wrapping_mul(7)).collect();
            let text = format!("words before\n{}and after\n", encode("X Y", &content));
            let blocks = parse(text.as_bytes()).expect("whole");
            assert_eq!(blocks.len(), 1);
            assert_eq!(
                (blocks[0].label.as_str(), &blocks[0].content),
                ("X Y", &content)
            );
        }
    }

    #[test]
    fn broken_blocks_are_refused() {
        assert!(parse(b"-----BEGIN A-----\nAAAA\n").is_none());
        assert!(parse(b"-----BEGIN A-----\nAAA\n-----END A-----\n").is_none());
        assert!(parse(b"-----BEGIN A-----\nA?AA\n-----END A-----\n").is_none());
        assert!(parse(b"-----BEGIN A-----\nAAAA\n-----END B-----\n").is_none());
    }
}
