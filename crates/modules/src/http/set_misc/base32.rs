//! Base32 (RFC 4648), in an alphabet of the configuration's choice.

use bstr::BStr;
use conf::{Diagnostic, Line};

/// The bits of a digit.
const BITS: u32 = 5;
/// How many there are.
const DIGITS: usize = 1 << BITS;
/// Padding makes the text this many characters long, or a multiple of it.
const GROUP: usize = 8;

/// The digits, in the order of their values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alphabet([u8; DIGITS]);

impl Default for Alphabet {
    fn default() -> Alphabet {
        Alphabet(*b"0123456789abcdefghijklmnopqrstuv")
    }
}

impl Alphabet {
    pub(super) fn read(line: &Line) -> Result<Alphabet, Diagnostic> {
        let text: &BStr = line.text(0);
        match <[u8; DIGITS]>::try_from(text.as_ref() as &[u8]) {
            Ok(digits) => Ok(Alphabet(digits)),
            Err(_) => Err(line.error_at(
                0,
                format!(
                    "\"set_base32_alphabet\" directive takes an alphabet of {} bytes but {DIGITS} expected",
                    text.len()
                ),
            )),
        }
    }

    pub(super) fn encode(&self, text: &[u8], padding: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len().div_ceil(5) * GROUP);
        let (mut bits, mut held) = (0_u32, 0);
        for &byte in text {
            bits = bits << 8 | u32::from(byte);
            held += 8;
            while held >= BITS {
                held -= BITS;
                out.push(self.digit(bits >> held));
            }
            bits &= (1 << held) - 1;
        }
        if held > 0 {
            out.push(self.digit(bits << (BITS - held)));
        }
        if padding {
            out.resize(out.len().next_multiple_of(GROUP), b'=');
        }
        out
    }

    /// `None` for a text that is no base32.
    pub(super) fn decode(&self, text: &[u8]) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'=', text).unwrap_or(text.len());
        let text = &text[..end];
        if matches!(text.len() % GROUP, 1 | 3 | 6) {
            return None;
        }
        let mut out = Vec::with_capacity(text.len() * 5 / GROUP);
        let (mut bits, mut held) = (0_u32, 0);
        for byte in text {
            // Of a digit that stands twice the last one counts.
            let value = self.0.iter().rposition(|digit| digit == byte)?;
            bits = bits << BITS | value as u32;
            held += BITS;
            if held >= 8 {
                held -= 8;
                out.push((bits >> held) as u8);
            }
            bits &= (1 << held) - 1;
        }
        Some(out)
    }

    fn digit(&self, value: u32) -> u8 {
        self.0[value as usize % DIGITS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let alphabet = Alphabet(*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567");
        for (text, padded) in [
            ("", ""),
            ("f", "MY======"),
            ("fo", "MZXQ===="),
            ("foo", "MZXW6==="),
            ("foob", "MZXW6YQ="),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI======"),
        ] {
            let encoded = alphabet.encode(text.as_bytes(), true);
            assert_eq!(encoded, padded.as_bytes());
            let bare = alphabet.encode(text.as_bytes(), false);
            assert_eq!(bare, padded.trim_end_matches('=').as_bytes());
            for code in [encoded, bare] {
                assert_eq!(alphabet.decode(&code), Some(text.into()));
            }
        }
        for wrong in ["M", "MZX", "MZXW6Y", "M1", "my"] {
            assert_eq!(alphabet.decode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
