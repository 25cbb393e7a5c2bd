//! Base32 (RFC 4648) with a configurable alphabet.

use bstr::BStr;
use conf::{Diagnostic, DirectiveLine};

/// The number of bits per digit.
const BITS: u32 = 5;
/// The number of digits in an alphabet.
const DIGITS: usize = 1 << BITS;
/// Padding extends the text to a multiple of this many characters, which are 40 bits.
const GROUP: usize = 8;

/// An alphabet: the digits in the order of their values. The default is `base32hex` of RFC 4648,
/// section 7, in lower case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base32Alphabet([u8; DIGITS]);

impl Default for Base32Alphabet {
    fn default() -> Base32Alphabet {
        Base32Alphabet(*b"0123456789abcdefghijklmnopqrstuv")
    }
}

impl Base32Alphabet {
    /// Reads `set_base32_alphabet`.
    pub(super) fn read(line: &DirectiveLine) -> Result<Base32Alphabet, Diagnostic> {
        let text: &BStr = line.text(0);
        match <[u8; DIGITS]>::try_from(text.as_ref() as &[u8]) {
            Ok(digits) => Ok(Base32Alphabet(digits)),
            Err(_) => Err(line.error_at(
                0,
                format!(
                    "\"set_base32_alphabet\" directive takes an alphabet of {} bytes but {DIGITS} expected",
                    text.len()
                ),
            )),
        }
    }

    /// Encodes bytes, with padding if asked for.
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

    /// Decodes a text, with or without padding; `None` if it is not base32.
    pub(super) fn decode(&self, text: &[u8]) -> Option<Vec<u8>> {
        let end = memchr::memchr(b'=', text).unwrap_or(text.len());
        let text = &text[..end];
        // No whole number of bytes leaves this many digits over.
        if matches!(text.len() % GROUP, 1 | 3 | 6) {
            return None;
        }
        let mut out = Vec::with_capacity(text.len() * 5 / GROUP);
        let (mut bits, mut held) = (0_u32, 0);
        for byte in text {
            // If the alphabet contains a digit twice, its last position counts.
            // An unknown character is an error; the third-party module takes it for the first of
            // the alphabet.
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
        let alphabet = Base32Alphabet(*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567");
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
