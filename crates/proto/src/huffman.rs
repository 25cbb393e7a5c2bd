//! The Huffman code of header compression (RFC 7541 appendix B), which HPACK and QPACK share.
//!
//! The code is canonical: the lengths of the 256 codes determine them, and all tables here are
//! computed from the lengths at compile time. The decoder looks at 12 bits at once, which are two
//! symbols of most that headers contain; longer codes are found by a search over the lengths.

/// The length in bits of each symbol's code.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// The length of the shortest code, in bits: decoding lengthens a text to 8/5 at most.
const SHORTEST: usize = 5;

/// The length of the longest code, in bits.
const LONGEST: usize = 30;

/// The number of bits of the first lookup.
const LOOKUP_BITS: usize = 12;

/// The tables that follow from [`LENGTHS`].
struct CanonicalCode {
    /// The symbols in the order of their codes.
    symbols: [u8; 256],
    /// The code of each symbol, in the low bits.
    codes: [u32; 256],
    /// Per length: the first code of that length.
    first: [u32; LONGEST + 1],
    /// Per length: the position of that code's symbol in `symbols`.
    offset: [u16; LONGEST + 1],
    /// Per length: the first 32-bit word, with the code at the top, that begins with no code up to
    /// this length.
    limit: [u32; LONGEST + 1],
}

const CANONICAL: CanonicalCode = build_canonical();

const fn build_canonical() -> CanonicalCode {
    let mut built = CanonicalCode {
        symbols: [0; 256],
        codes: [0; 256],
        first: [0; LONGEST + 1],
        offset: [0; LONGEST + 1],
        limit: [0; LONGEST + 1],
    };
    let mut code: u32 = 0;
    let mut count: usize = 0;
    let mut length = 1;
    while length <= LONGEST {
        code <<= 1;
        built.first[length] = code;
        built.offset[length] = count as u16;
        let mut symbol = 0;
        while symbol < 256 {
            if LENGTHS[symbol] as usize == length {
                built.symbols[count] = symbol as u8;
                built.codes[symbol] = code;
                code += 1;
                count += 1;
            }
            symbol += 1;
        }
        built.limit[length] = code << (32 - length);
        length += 1;
    }
    // What remains is the code of the end of the string: all ones.
    assert!(count == 256 && code == (1 << LONGEST) - 1);
    built
}

/// The symbols at the beginning of 12 bits. `total` is 0 if the first code is longer.
#[derive(Clone, Copy)]
struct LookupEntry {
    symbols: [u8; 2],
    /// The length of the first symbol's code.
    first: u8,
    /// The length of all codes: one or two.
    total: u8,
}

static LOOKUP: [LookupEntry; 1 << LOOKUP_BITS] = build_lookup();

const fn build_lookup() -> [LookupEntry; 1 << LOOKUP_BITS] {
    const NOTHING: LookupEntry = LookupEntry {
        symbols: [0; 2],
        first: 0,
        total: 0,
    };
    let mut looks = [NOTHING; 1 << LOOKUP_BITS];
    let mut bits = 0;
    while bits < 1 << LOOKUP_BITS {
        let word = (bits as u32) << (32 - LOOKUP_BITS);
        let (symbol, length) = symbol_of(word, LOOKUP_BITS);
        if length > 0 {
            let (next, next_length) = symbol_of(word << length, LOOKUP_BITS - length);
            looks[bits] = LookupEntry {
                symbols: [symbol, next],
                first: length as u8,
                total: (length + next_length) as u8,
            };
        }
        bits += 1;
    }
    looks
}

/// The symbol at the top of `word` and the length of its code; 0 if that is longer than `most`.
const fn symbol_of(word: u32, most: usize) -> (u8, usize) {
    let mut length = SHORTEST;
    while length <= most {
        if word < CANONICAL.limit[length] {
            let index = (word >> (32 - length)) - CANONICAL.first[length];
            let index = index as usize + CANONICAL.offset[length] as usize;
            return (CANONICAL.symbols[index], length);
        }
        length += 1;
    }
    (0, 0)
}

/// The text is not valid: it contains the end symbol, or its padding is too long or not all ones
/// (RFC 7541, section 5.2). The RFC permits seven bits of padding; like nginx we accept a whole
/// byte of ones, too, since some clients always pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHuffman;

/// Appends the decoded text to `out`: at most 8/5 of the input's length.
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> Result<(), InvalidHuffman> {
    let begin = out.len();
    out.resize(begin + input.len() * 8 / SHORTEST + 1, 0);
    match decode_into(input, &mut out[begin..]) {
        Some(length) => {
            out.truncate(begin + length);
            Ok(())
        }
        None => {
            out.truncate(begin);
            Err(InvalidHuffman)
        }
    }
}

fn decode_into(input: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut rest = input;
    // The next bits, the first one at the top; those after the first `have` are ones, like padding.
    let mut bits = u64::MAX;
    let mut have: usize = 0;
    let mut at = 0;
    loop {
        if have < LONGEST {
            (bits, have) = refill(bits, have, &mut rest);
        }
        let look = LOOKUP[(bits >> (64 - LOOKUP_BITS)) as usize];
        let used = if look.total != 0 && look.total as usize <= have {
            out[at] = look.symbols[0];
            at += 1;
            if look.total != look.first {
                out[at] = look.symbols[1];
                at += 1;
            }
            look.total as usize
        } else {
            let (symbol, length) = symbol_of((bits >> 32) as u32, LONGEST);
            if length == 0 || length > have {
                break;
            }
            out[at] = symbol;
            at += 1;
            length
        };
        bits = bits << used | ((1 << used) - 1);
        have -= used;
    }
    let padding_is_ones = bits == u64::MAX;
    (rest.is_empty() && have <= 8 && padding_is_ones).then_some(at)
}

/// Adds as many whole bytes as there is room for.
#[inline]
fn refill(bits: u64, have: usize, rest: &mut &[u8]) -> (u64, usize) {
    // At most seven, so that no shift below is by 64 bits.
    let room = ((64 - have) / 8).min(7);
    // Removes the ones below the real bits.
    let mut word = if have == 0 { 0 } else { bits >> (64 - have) };
    let take = if let Some(chunk) = rest.first_chunk::<8>() {
        let next = u64::from_be_bytes(*chunk) >> (64 - room * 8);
        word = word << (room * 8) | next;
        room
    } else {
        let take = room.min(rest.len());
        for &byte in &rest[..take] {
            word = word << 8 | u64::from(byte);
        }
        take
    };
    *rest = &rest[take..];
    let have = have + take * 8;
    let free = 64 - have;
    let filled = if free == 64 {
        u64::MAX
    } else {
        word << free | ((1u64 << free) - 1)
    };
    (filled, have)
}

/// The length of the encoded `text`, in bytes.
pub fn encoded_length(text: &[u8]) -> usize {
    let bits: usize = text.iter().map(|&b| usize::from(LENGTHS[b as usize])).sum();
    bits.div_ceil(8)
}

/// Appends the encoded text to `out`.
pub fn encode(text: &[u8], out: &mut Vec<u8>) {
    let mut bits: u64 = 0;
    let mut have = 0;
    for &byte in text {
        let length = u32::from(LENGTHS[byte as usize]);
        bits = bits << length | u64::from(CANONICAL.codes[byte as usize]);
        have += length;
        if have >= 32 {
            have -= 32;
            out.extend_from_slice(&((bits >> have) as u32).to_be_bytes());
        }
    }
    while have >= 8 {
        have -= 8;
        out.push((bits >> have) as u8);
    }
    if have > 0 {
        let free = 8 - have;
        out.push((bits << free) as u8 | ((1u16 << free) - 1) as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &[u8]) {
        let mut encoded = b"before".to_vec();
        encode(text, &mut encoded);
        assert_eq!(encoded.len() - 6, encoded_length(text));
        let mut decoded = b"kept".to_vec();
        decode(&encoded[6..], &mut decoded).expect("what was encoded can be decoded");
        assert_eq!(&decoded[4..], text);
    }

    #[test]
    fn examples_of_the_rfc() {
        let mut out = Vec::new();
        encode(b"www.example.com", &mut out);
        let expected = [
            0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
        ];
        assert_eq!(out, expected);
        out.clear();
        encode(b"no-cache", &mut out);
        assert_eq!(out, [0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]);
    }

    #[test]
    fn every_byte_and_every_pair_comes_back() {
        round_trip(b"");
        for a in 0..=255 {
            round_trip(&[a]);
            for b in 0..=255 {
                round_trip(&[a, b]);
            }
            round_trip(&[a; 41]);
        }
        let all: Vec<u8> = (0..=255).collect();
        round_trip(&all);
    }

    #[test]
    fn wrong_endings_are_refused() {
        let refused = |input: &[u8]| {
            let mut out = b"x".to_vec();
            assert_eq!(decode(input, &mut out), Err(InvalidHuffman), "{input:x?}");
            assert_eq!(out, b"x");
        };
        // The end symbol, more than eight bits of padding, padding with a zero.
        refused(&[0xff, 0xff, 0xff, 0xff]);
        refused(&[0xff, 0xff, 0xff, 0xfc]);
        refused(&[0xff, 0xff]);
        refused(&[0x1f, 0xff]);
        refused(&[0x00]);
        refused(&[0x1e]);
    }

    #[test]
    fn what_is_accepted_is_what_would_have_been_written() {
        // All inputs of up to two bytes, and a walk over longer ones.
        let mut seed = 1u32;
        let mut inputs: Vec<Vec<u8>> = (0..=u16::MAX).map(|n| n.to_be_bytes().to_vec()).collect();
        inputs.extend((0..=255u8).map(|n| vec![n]));
        for length in 3..40 {
            for _ in 0..200 {
                let mut next = || {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8
                };
                inputs.push((0..length).map(|_| next()).collect());
            }
        }
        for input in inputs {
            let mut text = Vec::new();
            if decode(&input, &mut text).is_ok() {
                let mut again = Vec::new();
                encode(&text, &mut again);
                if input.len() > again.len() {
                    again.push(0xff);
                }
                assert_eq!(again, input);
            }
        }
    }
}
