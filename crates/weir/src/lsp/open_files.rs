//! The texts in the editor, and the places in them.
//!
//! The protocol counts lines, and within a line UTF-16 code units; the parser counts bytes. What is not UTF-8 counts as one
//! unit per byte sequence that cannot be read, which is how it is shown.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A text, from the editor or from the disk.
pub(super) struct EditorText {
    /// Where it is on the disk, or would be.
    pub(super) path: PathBuf,
    /// Bytes, like every configuration: what the editor sends is UTF-8, what is on the disk need not be.
    pub(super) text: Vec<u8>,
    /// Where its lines begin.
    lines: Vec<usize>,
}

/// A place as the protocol has it, both numbers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextPosition {
    /// The line.
    pub(super) line: u32,
    /// In UTF-16 code units.
    pub(super) character: u32,
}

impl EditorText {
    /// Finds the lines once: each answer needs several places of the same text.
    pub(super) fn new(path: PathBuf, text: Vec<u8>) -> EditorText {
        let feeds = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
        let lines = std::iter::once(0).chain(feeds.map(|(at, _)| at + 1));
        EditorText {
            lines: lines.collect(),
            path,
            text,
        }
    }

    /// The offset of a place. One beyond the end of its line or of the text is that end.
    pub(super) fn offset(&self, position: TextPosition) -> usize {
        let line = position.line as usize;
        let Some(&start) = self.lines.get(line) else {
            return self.text.len();
        };
        let end = self
            .lines
            .get(line + 1)
            .map_or(self.text.len(), |next| next - 1);
        let mut left = position.character as usize;
        let text = String::from_utf8_lossy(&self.text[start..end]);
        let mut bytes = 0;
        for sign in text.chars() {
            if left < sign.len_utf16() {
                break;
            }
            left -= sign.len_utf16();
            bytes += sign.len_utf8();
        }
        (start + bytes).min(end)
    }

    /// The place of an offset.
    pub(super) fn position(&self, offset: usize) -> TextPosition {
        let offset = offset.min(self.text.len());
        let line = self.lines.partition_point(|start| *start <= offset) - 1;
        let before = String::from_utf8_lossy(&self.text[self.lines[line]..offset]);
        TextPosition {
            line: u32::try_from(line).unwrap_or(u32::MAX),
            character: u32::try_from(before.encode_utf16().count()).unwrap_or(u32::MAX),
        }
    }

    /// A range as the protocol has it.
    pub(super) fn range(&self, start: usize, end: usize) -> Value {
        let place = |offset| {
            let TextPosition { line, character } = self.position(offset);
            json!({ "line": line, "character": character })
        };
        json!({ "start": place(start), "end": place(end) })
    }
}

/// The path of a `file:` URI (RFC 8089).
pub(super) fn path_of_uri(uri: &str) -> Option<PathBuf> {
    let rest = uri.strip_prefix("file://")?;
    let path = rest.strip_prefix("localhost").unwrap_or(rest);
    let mut bytes = Vec::with_capacity(path.len());
    let mut signs = path.bytes();
    while let Some(byte) = signs.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digits = [signs.next()?, signs.next()?];
        let digits = std::str::from_utf8(&digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
    }
    let path = PathBuf::from(std::ffi::OsString::from_vec(bytes));
    path.is_absolute().then_some(path)
}

/// The URI of a path.
pub(super) fn uri_of_path(path: &Path) -> String {
    let mut uri = String::from("file://");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                uri.push(char::from(*byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_utf_16_units() {
        let text = EditorText::new("/x".into(), "a\u{e9}\u{1f600}b\nc".as_bytes().to_vec());
        for (character, offset) in [(0, 0), (1, 1), (2, 3), (3, 3), (4, 7), (5, 8), (9, 8)] {
            let position = TextPosition { line: 0, character };
            assert_eq!(text.offset(position), offset, "{character}");
        }
        for (offset, line, character) in [
            (0, 0, 0),
            (3, 0, 2),
            (7, 0, 4),
            (8, 0, 5),
            (9, 1, 0),
            (99, 1, 1),
        ] {
            assert_eq!(
                text.position(offset),
                TextPosition { line, character },
                "{offset}"
            );
        }
        assert_eq!(
            text.offset(TextPosition {
                line: 7,
                character: 0
            }),
            10
        );
    }

    #[test]
    fn paths_and_uris() {
        let path = Path::new("/a b/\u{e9}.conf");
        let uri = uri_of_path(path);
        assert_eq!(uri, "file:///a%20b/%C3%A9.conf");
        assert_eq!(path_of_uri(&uri).as_deref(), Some(path));
        for wrong in ["http://x/", "file://%", "file://%zz", "file:///%4"] {
            assert_eq!(path_of_uri(wrong), None, "{wrong}");
        }
    }
}
