//! Integers with a prefix (RFC 7541, section 5.1; RFC 9204, section 4.1.1).

/// The maximum number of continuation bytes: headers need no integers of more than 28 bits.
const MAX_CONTINUATION: usize = 4;

/// Why there is no integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntegerFault {
    /// The rest is not here.
    Incomplete,
    /// It has more than [`MAX_CONTINUATION`] continuation bytes.
    TooLarge,
}

/// Decodes the integer that begins in the low `prefix` bits of `first` and continues in `rest`,
/// which is moved past it. `None` if it is too large or incomplete.
#[inline]
pub(crate) fn read(first: u8, prefix: u32, rest: &mut &[u8]) -> Option<usize> {
    let most = (1usize << prefix) - 1;
    let value = usize::from(first) & most;
    if value < most {
        return Some(value);
    }
    read_long(most, rest).ok()
}

/// Like [`read`], for input that may still continue.
#[inline]
pub(crate) fn read_some(first: u8, prefix: u32, rest: &mut &[u8]) -> Result<usize, IntegerFault> {
    let most = (1usize << prefix) - 1;
    let value = usize::from(first) & most;
    if value < most {
        return Ok(value);
    }
    read_long(most, rest)
}

fn read_long(start: usize, rest: &mut &[u8]) -> Result<usize, IntegerFault> {
    let mut value = start;
    for i in 0..MAX_CONTINUATION {
        let (&byte, after) = rest.split_first().ok_or(IntegerFault::Incomplete)?;
        *rest = after;
        value += usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(IntegerFault::TooLarge)
}

/// Appends `value`. `pattern` has the bits above the low `prefix` bits of the first byte.
#[inline]
pub(crate) fn write(value: usize, pattern: u8, prefix: u32, out: &mut Vec<u8>) {
    let most = (1usize << prefix) - 1;
    if value < most {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | most as u8);
    let mut left = value - most;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_rfc_and_every_prefix() {
        let mut out = Vec::new();
        write(1337, 0b1110_0000, 5, &mut out);
        assert_eq!(out, [0xff, 0x9a, 0x0a]);
        for prefix in 1..=8 {
            for value in (0..5000).chain([1 << 20, (1 << 28) - 1]) {
                out.clear();
                write(value, 0, prefix, &mut out);
                let (&first, mut rest) = out.split_first().expect("something was written");
                assert_eq!(read(first, prefix, &mut rest), Some(value));
                assert!(rest.is_empty());
                if out.len() > 1 {
                    let mut short = &out[1..out.len() - 1];
                    assert_eq!(read(first, prefix, &mut short), None);
                }
            }
        }
    }

    #[test]
    fn what_never_ends_is_refused() {
        let mut long = &[0x80; 20][..];
        assert_eq!(read(0xff, 7, &mut long), None);
    }
}
