//! `charset_map`: converts between two charsets.
//!
//! Charsets have one byte per character, except UTF-8, which can be the second of a map. ASCII is
//! the same in all of them. A character that the target charset lacks becomes `?`, or, when
//! converting from UTF-8, `&#NUMBER;`, which browsers display as the original character.

use std::collections::HashMap;

use bstr::{BStr, BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine};

/// A `charset_map` block.
pub(super) struct CharsetMap {
    /// The first charset, in lower case like the second.
    from: BString,
    to: BString,
    table: CharsetTable,
}

/// The conversion tables of both directions.
enum CharsetTable {
    /// Both charsets have one byte per character.
    Bytes {
        forward: Box<[u8; 256]>,
        backward: Box<[u8; 256]>,
    },
    /// The second charset is UTF-8.
    Utf8 {
        forward: Vec<Vec<u8>>,
        backward: HashMap<char, u8>,
    },
}

/// The one charset of which characters have several bytes here.
const UTF_8: &str = "utf-8";
/// Stands for a character without a counterpart.
const MISSING: u8 = b'?';

impl CharsetMap {
    /// Reads a `charset_map` block.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<CharsetMap, Diagnostic> {
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
        // The columns could be swapped, but nginx insists on this order.
        if from == UTF_8.as_bytes() {
            return Err(line.error(
                "\"charset_map\" with \"utf-8\" charset should be given in the second column",
            ));
        }
        let mut table = CharsetTable::new(to == UTF_8.as_bytes());
        for entry in line.entries() {
            let [to] = &entry.args[..] else {
                return Err(entry.error("invalid parameters number"));
            };
            let invalid = |text: &BString| entry.error(format!("invalid value \"{text}\""));
            let byte = hex(&entry.name.text).ok_or_else(|| invalid(&entry.name.text))?;
            table.set(byte, &to.text).ok_or_else(|| invalid(&to.text))?;
        }
        Ok(CharsetMap {
            from: from.into(),
            to: to.into(),
            table,
        })
    }

    /// Whether both maps convert between the same two charsets.
    pub(super) fn is_same_pair(&self, other: &CharsetMap) -> bool {
        (&self.from, &self.to) == (&other.from, &other.to)
            || (&self.from, &self.to) == (&other.to, &other.from)
    }

    /// The direction in which this map converts `from` to `to`, if it does.
    pub(super) fn direction(&self, from: &BStr, to: &BStr) -> Option<MapDirection> {
        let is = |name: &BStr, other: &BString| name.eq_ignore_ascii_case(other);
        if is(from, &self.from) && is(to, &self.to) {
            Some(MapDirection::Forward)
        } else if is(from, &self.to) && is(to, &self.from) {
            Some(MapDirection::Backward)
        } else {
            None
        }
    }

    /// Whether converted content keeps its length.
    pub(super) fn keeps_length(&self) -> bool {
        matches!(self.table, CharsetTable::Bytes { .. })
    }

    /// Appends a converted piece. `rest` holds the incomplete character that the previous piece
    /// ended with, and is left with that of this piece.
    pub(super) fn write(
        &self,
        direction: MapDirection,
        piece: &[u8],
        rest: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) {
        match (&self.table, direction) {
            (CharsetTable::Bytes { forward: table, .. }, MapDirection::Forward)
            | (
                CharsetTable::Bytes {
                    backward: table, ..
                },
                MapDirection::Backward,
            ) => {
                out.extend(piece.iter().map(|byte| table[usize::from(*byte)]));
            }
            (CharsetTable::Utf8 { forward, .. }, MapDirection::Forward) => {
                for byte in piece {
                    out.extend_from_slice(&forward[usize::from(*byte)]);
                }
            }
            (CharsetTable::Utf8 { backward, .. }, MapDirection::Backward) => {
                rest.extend_from_slice(piece);
                let used = from_utf8(backward, rest, out);
                rest.drain(..used);
            }
        }
    }
}

/// The direction of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapDirection {
    /// From the first charset to the second.
    Forward,
    /// From the second to the first.
    Backward,
}

impl CharsetTable {
    /// Tables with ASCII only; everything else is missing.
    fn new(utf8: bool) -> CharsetTable {
        let ascii = |byte: usize| if byte < 128 { byte as u8 } else { MISSING };
        if utf8 {
            return CharsetTable::Utf8 {
                forward: (0..256).map(|byte| vec![ascii(byte)]).collect(),
                backward: HashMap::new(),
            };
        }
        let identity = || Box::new(std::array::from_fn(ascii));
        CharsetTable::Bytes {
            forward: identity(),
            backward: identity(),
        }
    }

    /// Adds a pair; `text` is its second part in hexadecimal. `None` if that is not a character.
    fn set(&mut self, byte: u8, text: &[u8]) -> Option<()> {
        match self {
            CharsetTable::Bytes { forward, backward } => {
                let other = hex(text)?;
                forward[usize::from(byte)] = other;
                backward[usize::from(other)] = byte;
            }
            CharsetTable::Utf8 { forward, backward } => {
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

/// Converts UTF-8 to a single-byte charset. Returns how much was consumed: an incomplete character
/// at the end is left.
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
            None if is_utf8_prefix(&text[used..]) => return used,
            None => out.push(MISSING),
        }
        used += size;
    }
    used
}

/// Whether a text can be the beginning of one UTF-8 character.
fn is_utf8_prefix(text: &[u8]) -> bool {
    std::str::from_utf8(text)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

/// Parses a byte from one or two hexadecimal digits. `from_str_radix` would accept a sign.
fn hex(text: &[u8]) -> Option<u8> {
    let text = text.to_str().ok().filter(|text| !text.starts_with('+'))?;
    u8::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(to: &str, pairs: &[(u8, &str)]) -> CharsetMap {
        let mut table = CharsetTable::new(to == UTF_8);
        for (byte, text) in pairs {
            table.set(*byte, text.as_bytes()).expect("a valid pair");
        }
        CharsetMap {
            from: "koi8-r".into(),
            to: to.into(),
            table,
        }
    }

    fn all(map: &CharsetMap, direction: MapDirection, pieces: &[&[u8]]) -> BString {
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
            all(&map, MapDirection::Forward, &[b"a\xc0\xc1\xc2"]),
            b"a\xfe\xe0?".as_bstr()
        );
        assert_eq!(
            all(&map, MapDirection::Backward, &[b"a\xfe\xe0\xff"]),
            b"a\xc0\xc1?".as_bstr()
        );
        assert!(map.keeps_length());
    }

    #[test]
    fn bytes_to_utf8_and_back() {
        let map = map(UTF_8, &[(0xc0, "D18E"), (0xc1, "D0B0")]);
        assert_eq!(
            all(&map, MapDirection::Forward, &[b"a\xc0\xc1\xff"]),
            "aюа?"
        );
        assert_eq!(
            all(&map, MapDirection::Backward, &["aюа€".as_bytes()]),
            b"a\xc0\xc1&#8364;".as_bstr()
        );
        assert_eq!(all(&map, MapDirection::Backward, &[b"a\xff\xd1"]), "a?!");
        assert!(!map.keeps_length());
    }

    #[test]
    fn a_sign_may_be_cut_anywhere() {
        let map = map(UTF_8, &[(0xc0, "D18E")]);
        let text = "xю€\u{1f600}z".as_bytes();
        let whole = all(&map, MapDirection::Backward, &[text]);
        for cut in 0..=text.len() {
            assert_eq!(
                all(&map, MapDirection::Backward, &[&text[..cut], &text[cut..]]),
                whole,
                "{cut}"
            );
        }
    }

    #[test]
    fn pairs_that_are_none() {
        let mut utf8 = CharsetTable::new(true);
        for text in ["", "D1", "D18", "D18ED18E", "xx", "+1"] {
            assert!(utf8.set(0x80, text.as_bytes()).is_none(), "{text}");
        }
        assert!(CharsetTable::new(false).set(0x80, b"100").is_none());
    }
}
