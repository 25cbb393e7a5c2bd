//! Integers of variable length (RFC 9000, section 16).
//!
//! ```text
//!   00xxxxxx                      6 bits
//!   01xxxxxx xxxxxxxx            14 bits
//!   10xxxxxx … 4 bytes           30 bits
//!   11xxxxxx … 8 bytes           62 bits
//! ```

/// The largest value.
pub const VARINT_MAX: u64 = (1 << 62) - 1;

/// Reads one integer, of which any part may still be missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct VarintReader {
    value: u64,
    /// How many bytes are still to come; 0 before the first.
    missing: u8,
}

impl VarintReader {
    /// Takes bytes from the front of `input`. `None`: all of them were taken, and more are needed.
    #[inline]
    pub fn take(&mut self, input: &mut &[u8]) -> Option<u64> {
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            if self.missing == 0 {
                self.missing = (1 << (byte >> 6)) - 1;
                self.value = u64::from(byte & 0x3f);
            } else {
                self.missing -= 1;
                self.value = self.value << 8 | u64::from(byte);
            }
            if self.missing == 0 {
                return Some(self.value);
            }
        }
        None
    }

    /// Whether an integer has begun and is not complete.
    pub fn is_begun(&self) -> bool {
        self.missing > 0
    }
}

/// Takes a complete integer from the front of `input`.
pub fn read(input: &mut &[u8]) -> Option<u64> {
    VarintReader::default().take(input)
}

/// How many bytes `value` takes.
pub fn length(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Appends `value`, which is at most [`VARINT_MAX`].
#[inline]
pub fn write(value: u64, out: &mut Vec<u8>) {
    debug_assert!(value <= VARINT_MAX, "{value}");
    match length(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_rfc_and_every_length() {
        let read_all = |bytes: &[u8]| {
            let mut input = bytes;
            (read(&mut input), input.len())
        };
        // RFC 9000, appendix A.1.
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(read_all(bytes), (Some(value), 0));
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out, bytes);
        }
        // Not in the shortest form, which is allowed.
        assert_eq!(read_all(&[0x40, 0x25, 9]), (Some(37), 1));
        for value in [0, 63, 64, 16383, 16384, (1 << 30) - 1, 1 << 30, VARINT_MAX] {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out.len(), length(value));
            assert_eq!(read_all(&out), (Some(value), 0));
            let mut reader = VarintReader::default();
            for (i, byte) in out.iter().enumerate() {
                let is_last = i + 1 == out.len();
                assert_eq!(reader.take(&mut &[*byte][..]), is_last.then_some(value));
                assert_eq!(reader.is_begun(), !is_last);
            }
        }
    }
}
