//! `charset_map`: from the bytes of one charset to those of another, and back.
//!
//! Charsets here have one byte per sign, but for UTF-8, which may be the second of a map. ASCII is the same in all of
//! them. A sign that the other charset does not have becomes `?`; one that comes from UTF-8 becomes `&#NUMBER;`,
//! which browsers show as what it was.

use std::collections::HashMap;

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, Line};

/// A map between two charsets.
pub(super) struct Map {
    /// In lower case, as the other one.
    from: BString,
    to: BString,
    table: Table,
}

enum Table {
    /// Both have one byte per sign.
    Bytes {
        forward: Box<[u8; 256]>,
        backward: Box<[u8; 256]>,
    },
    /// The second is UTF-8.
    Utf8 {
        forward: Vec<Vec<u8>>,
        backward: HashMap<char, u8>,
    },
}

const UTF_8: &str = "utf-8";
const MISSING: u8 = b'?';

impl Map {
    /// Reads a `charset_map` block.
    pub(super) fn read(line: &mut Line) -> Result<Map, Diagnostic> {
        let (from, to) = (
            line.text(0).to_ascii_lowercase(),
            line.text(1).to_ascii_lowercase(),
        );
        if from == to {
            let message = format!(
                "\"charset_map\" between the same charsets \"{}\" and \"{}\"",
                line.text(0),
                line.text(1)
            );
            return Err(line.error(message));
        }
        if from == UTF_8.as_bytes() {
            return Err(line.error(
                "\"charset_map\" with \"utf-8\" charset should be given in the second column",
            ));
        }
        let mut table = Table::new(to == UTF_8.as_bytes());
        for entry in line.entries() {
            let [to] = &entry.args[..] else {
                return Err(entry.error("invalid parameters number"));
            };
            let invalid = |text: &BString| entry.error(format!("invalid value \"{text}\""));
            let byte = hex(&entry.name.text).ok_or_else(|| invalid(&entry.name.text))?;
            table.set(byte, &to.text).ok_or_else(|| invalid(&to.text))?;
        }
        Ok(Map {
            from: from.into(),
            to: to.into(),
            table,
        })
    }

    /// Whether both maps are between the same charsets.
    pub(super) fn is_same_pair(&self, other: &Map) -> bool {
        (&self.from, &self.to) == (&other.from, &other.to)
            || (&self.from, &self.to) == (&other.to, &other.from)
    }

    /// Whether this map leads from one charset to the other: in which direction.
    pub(super) fn direction(&self, from: &BStr, to: &BStr) -> Option<Direction> {
        let is = |name: &BStr, other: &BString| name.eq_ignore_ascii_case(other);
        if is(from, &self.from) && is(to, &self.to) {
            Some(Direction::Forward)
        } else if is(from, &self.to) && is(to, &self.from) {
            Some(Direction::Backward)
        } else {
            None
        }
    }

    /// Whether content keeps its length.
    pub(super) fn keeps_length(&self) -> bool {
        matches!(self.table, Table::Bytes { .. })
    }

    /// Appends a piece of content in the other charset. What stands in `rest` is the beginning of a sign that the
    /// piece before ended in; what the piece ends in is left there.
    pub(super) fn write(
        &self,
        direction: Direction,
        piece: &[u8],
        rest: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        match (&self.table, direction) {
            (Table::Bytes { forward: table, .. }, Direction::Forward)
            | (
                Table::Bytes {
                    backward: table, ..
                },
                Direction::Backward,
            ) => {
                out.extend(piece.iter().map(|byte| table[usize::from(*byte)]));
            }
            (Table::Utf8 { forward, .. }, Direction::Forward) => {
                for byte in piece {
                    out.extend_from_slice(&forward[usize::from(*byte)]);
                }
            }
            (Table::Utf8 { backward, .. }, Direction::Backward) => {
                rest.extend_from_slice(piece);
                let used = from_utf8(backward, rest, out);
                rest.drain(..used);
            }
        }
    }
}

/// Which way a map is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the first charset to the second.
    Forward,
    /// From the second to the first.
    Backward,
}

impl Table {
    fn new(utf8: bool) -> Table {
        let ascii = |byte: usize| if byte < 128 { byte as u8 } else { MISSING };
        if utf8 {
            return Table::Utf8 {
                forward: (0..256).map(|byte| vec![ascii(byte)]).collect(),
                backward: HashMap::new(),
            };
        }
        let identity = || Box::new(std::array::from_fn(ascii));
        Table::Bytes {
            forward: identity(),
            backward: identity(),
        }
    }

    /// Enters a pair, of which `text` is the second part in hexadecimal; `None` when it is no sign of the charset.
    fn set(&mut self, byte: u8, text: &[u8]) -> Option<()> {
        match self {
            Table::Bytes { forward, backward } => {
                let other = hex(text)?;
                forward[usize::from(byte)] = other;
                backward[usize::from(other)] = byte;
            }
            Table::Utf8 { forward, backward } => {
                let bytes: Option<Vec<u8>> = text
                    .chunks(2)
                    .map(|pair| hex(pair).filter(|_| pair.len() == 2))
                    .collect();
                let bytes = bytes?;
                let mut signs = std::str::from_utf8(&bytes).ok()?.chars();
                let sign = signs.next().filter(|_| signs.next().is_none())?;
                backward.insert(sign, byte);
                forward[usize::from(byte)] = bytes;
            }
        }
        Some(())
    }
}

/// Appends UTF-8 in a charset of bytes; gives how much of it was used. An incomplete sign at the end is left.
fn from_utf8(backward: &HashMap<char, u8>, text: &[u8], out: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while used < text.len() {
        let (sign, size) = bstr::decode_utf8(&text[used..]);
        match sign {
            Some(sign) if sign.is_ascii() => out.push(sign as u8),
            Some(sign) => match backward.get(&sign) {
                Some(byte) => out.push(*byte),
                None => {
                    out.extend_from_slice(b"&#");
                    base::text::write_number(u64::from(u32::from(sign)), out);
                    out.push(b';');
                }
            },
            None if is_beginning(&text[used..]) => return used,
            None => out.push(MISSING),
        }
        used += size;
    }
    used
}

/// Whether a text may be the beginning of one sign of UTF-8.
fn is_beginning(text: &[u8]) -> bool {
    std::str::from_utf8(text)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

/// A byte in one or two hexadecimal digits.
fn hex(text: &[u8]) -> Option<u8> {
    let text = text.to_str().ok().filter(|text| !text.starts_with('+'))?;
    u8::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(to: &str, pairs: &[(u8, &str)]) -> Map {
        let mut table = Table::new(to == UTF_8);
        for (byte, text) in pairs {
            table.set(*byte, text.as_bytes()).expect("a valid pair");
        }
        Map {
            from: "koi8-r".into(),
            to: to.into(),
            table,
        }
    }

    fn all(map: &Map, direction: Direction, pieces: &[&[u8]]) -> BString {
        let (mut rest, mut out) = (Vec::new(), Vec::new());
        for piece in pieces {
            map.write(direction, piece, &mut rest, &mut out);
        }
        out.extend(rest.iter().map(|_| b'!'));
        out.into()
    }

    #[test]
    fn bytes_to_bytes_and_back() {
        let map = map("windows-1251", &[(0xc0, "fe"), (0xc1, "E0")]);
        assert_eq!(
            all(&map, Direction::Forward, &[b"a\xc0\xc1\xc2"]),
            b"a\xfe\xe0?".as_bstr()
        );
        assert_eq!(
            all(&map, Direction::Backward, &[b"a\xfe\xe0\xff"]),
            b"a\xc0\xc1?".as_bstr()
        );
        assert!(map.keeps_length());
    }

    #[test]
    fn bytes_to_utf8_and_back() {
        let map = map(UTF_8, &[(0xc0, "D18E"), (0xc1, "D0B0")]);
        assert_eq!(all(&map, Direction::Forward, &[b"a\xc0\xc1\xff"]), "aюа?");
        assert_eq!(
            all(&map, Direction::Backward, &["aюа€".as_bytes()]),
            b"a\xc0\xc1&#8364;".as_bstr()
        );
        assert_eq!(all(&map, Direction::Backward, &[b"a\xff\xd1"]), "a?!");
        assert!(!map.keeps_length());
    }

    #[test]
    fn a_sign_may_be_cut_anywhere() {
        let map = map(UTF_8, &[(0xc0, "D18E")]);
        let text = "xю€\u{1f600}z".as_bytes();
        let whole = all(&map, Direction::Backward, &[text]);
        for cut in 0..=text.len() {
            assert_eq!(
                all(&map, Direction::Backward, &[&text[..cut], &text[cut..]]),
                whole,
                "{cut}"
            );
        }
    }

    #[test]
    fn pairs_that_are_none() {
        let mut utf8 = Table::new(true);
        for text in ["", "D1", "D18", "D18ED18E", "xx", "+1"] {
            assert!(utf8.set(0x80, text.as_bytes()).is_none(), "{text}");
        }
        assert!(Table::new(false).set(0x80, b"100").is_none());
    }
}
