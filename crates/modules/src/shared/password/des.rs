//! Traditional DES crypt: thirteen characters, of which two are the salt.
//!
//! The tables are those of FIPS 46-3, one bit per entry and bits counted from 1, as the standard
//! prints them, so that the two can be compared. It is not fast and need not be: it runs once per
//! login attempt, on a thread of its own. No well-kept library offers this dead format, but files
//! with such hashes are still in use.
//!
//! Only the first eight characters of a password count, with seven bits each.

use super::CRYPT_DIGITS;

/// Characters in a hash.
const LENGTH: usize = 13;
/// How often the zero block is encrypted.
const ITERATIONS: usize = 25;

/// A block with one bit per element: slower than packed bits, but the code reads like the standard.
type DesBlock = [u8; 64];
type RoundKey = [u8; 48];

#[rustfmt::skip]
const INITIAL: [u8; 64] = [
    58, 50, 42, 34, 26, 18, 10, 2, 60, 52, 44, 36, 28, 20, 12, 4, 62, 54, 46, 38, 30, 22, 14, 6, 64, 56, 48, 40, 32, 24, 16, 8,
    57, 49, 41, 33, 25, 17, 9, 1, 59, 51, 43, 35, 27, 19, 11, 3, 61, 53, 45, 37, 29, 21, 13, 5, 63, 55, 47, 39, 31, 23, 15, 7,
];
#[rustfmt::skip]
const FINAL: [u8; 64] = [
    40, 8, 48, 16, 56, 24, 64, 32, 39, 7, 47, 15, 55, 23, 63, 31, 38, 6, 46, 14, 54, 22, 62, 30, 37, 5, 45, 13, 53, 21, 61, 29,
    36, 4, 44, 12, 52, 20, 60, 28, 35, 3, 43, 11, 51, 19, 59, 27, 34, 2, 42, 10, 50, 18, 58, 26, 33, 1, 41, 9, 49, 17, 57, 25,
];
#[rustfmt::skip]
const EXPANSION: [u8; 48] = [
    32, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 8, 9, 10, 11, 12, 13, 12, 13, 14, 15, 16, 17,
    16, 17, 18, 19, 20, 21, 20, 21, 22, 23, 24, 25, 24, 25, 26, 27, 28, 29, 28, 29, 30, 31, 32, 1,
];
#[rustfmt::skip]
const PERMUTATION: [u8; 32] = [
    16, 7, 20, 21, 29, 12, 28, 17, 1, 15, 23, 26, 5, 18, 31, 10, 2, 8, 24, 14, 32, 27, 3, 9, 19, 13, 30, 6, 22, 11, 4, 25,
];
#[rustfmt::skip]
const KEY_CHOICE: [u8; 56] = [
    57, 49, 41, 33, 25, 17, 9, 1, 58, 50, 42, 34, 26, 18, 10, 2, 59, 51, 43, 35, 27, 19, 11, 3, 60, 52, 44, 36,
    63, 55, 47, 39, 31, 23, 15, 7, 62, 54, 46, 38, 30, 22, 14, 6, 61, 53, 45, 37, 29, 21, 13, 5, 28, 20, 12, 4,
];
#[rustfmt::skip]
const ROUND_CHOICE: [u8; 48] = [
    14, 17, 11, 24, 1, 5, 3, 28, 15, 6, 21, 10, 23, 19, 12, 4, 26, 8, 16, 7, 27, 20, 13, 2,
    41, 52, 31, 37, 47, 55, 30, 40, 51, 45, 33, 48, 44, 49, 39, 56, 34, 53, 46, 42, 50, 36, 29, 32,
];
/// How far both halves of the key rotate before each round.
const SHIFTS: [usize; 16] = [1, 1, 2, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 2, 1];
/// S1 to S8, each with its four rows one after the other.
#[rustfmt::skip]
const SUBSTITUTION: [[u8; 64]; 8] = [
    [14, 4, 13, 1, 2, 15, 11, 8, 3, 10, 6, 12, 5, 9, 0, 7, 0, 15, 7, 4, 14, 2, 13, 1, 10, 6, 12, 11, 9, 5, 3, 8,
     4, 1, 14, 8, 13, 6, 2, 11, 15, 12, 9, 7, 3, 10, 5, 0, 15, 12, 8, 2, 4, 9, 1, 7, 5, 11, 3, 14, 10, 0, 6, 13],
    [15, 1, 8, 14, 6, 11, 3, 4, 9, 7, 2, 13, 12, 0, 5, 10, 3, 13, 4, 7, 15, 2, 8, 14, 12, 0, 1, 10, 6, 9, 11, 5,
     0, 14, 7, 11, 10, 4, 13, 1, 5, 8, 12, 6, 9, 3, 2, 15, 13, 8, 10, 1, 3, 15, 4, 2, 11, 6, 7, 12, 0, 5, 14, 9],
    [10, 0, 9, 14, 6, 3, 15, 5, 1, 13, 12, 7, 11, 4, 2, 8, 13, 7, 0, 9, 3, 4, 6, 10, 2, 8, 5, 14, 12, 11, 15, 1,
     13, 6, 4, 9, 8, 15, 3, 0, 11, 1, 2, 12, 5, 10, 14, 7, 1, 10, 13, 0, 6, 9, 8, 7, 4, 15, 14, 3, 11, 5, 2, 12],
    [7, 13, 14, 3, 0, 6, 9, 10, 1, 2, 8, 5, 11, 12, 4, 15, 13, 8, 11, 5, 6, 15, 0, 3, 4, 7, 2, 12, 1, 10, 14, 9,
     10, 6, 9, 0, 12, 11, 7, 13, 15, 1, 3, 14, 5, 2, 8, 4, 3, 15, 0, 6, 10, 1, 13, 8, 9, 4, 5, 11, 12, 7, 2, 14],
    [2, 12, 4, 1, 7, 10, 11, 6, 8, 5, 3, 15, 13, 0, 14, 9, 14, 11, 2, 12, 4, 7, 13, 1, 5, 0, 15, 10, 3, 9, 8, 6,
     4, 2, 1, 11, 10, 13, 7, 8, 15, 9, 12, 5, 6, 3, 0, 14, 11, 8, 12, 7, 1, 14, 2, 13, 6, 15, 0, 9, 10, 4, 5, 3],
    [12, 1, 10, 15, 9, 2, 6, 8, 0, 13, 3, 4, 14, 7, 5, 11, 10, 15, 4, 2, 7, 12, 9, 5, 6, 1, 13, 14, 0, 11, 3, 8,
     9, 14, 15, 5, 2, 8, 12, 3, 7, 0, 4, 10, 1, 13, 11, 6, 4, 3, 2, 12, 9, 5, 15, 10, 11, 14, 1, 7, 6, 0, 8, 13],
    [4, 11, 2, 14, 15, 0, 8, 13, 3, 12, 9, 7, 5, 10, 6, 1, 13, 0, 11, 7, 4, 9, 1, 10, 14, 3, 5, 12, 2, 15, 8, 6,
     1, 4, 11, 13, 12, 3, 7, 14, 10, 15, 6, 8, 0, 5, 9, 2, 6, 11, 13, 8, 1, 4, 10, 7, 9, 5, 0, 15, 14, 2, 3, 12],
    [13, 2, 8, 4, 6, 15, 11, 1, 10, 9, 3, 14, 5, 0, 12, 7, 1, 15, 13, 8, 10, 3, 7, 4, 12, 5, 6, 11, 0, 14, 9, 2,
     7, 11, 4, 1, 9, 12, 14, 2, 0, 6, 10, 13, 15, 3, 5, 8, 2, 1, 14, 7, 4, 10, 8, 13, 15, 12, 9, 0, 3, 5, 6, 11],
];

/// Whether a text has the form of a DES hash.
pub(super) fn is_hash(text: &[u8]) -> bool {
    text.len() == LENGTH && text.iter().all(|sign| CRYPT_DIGITS.contains(sign))
}

/// Hashes a password. Characters that are not valid in a salt count as zero.
pub(super) fn crypt(password: &[u8], salt: [u8; 2]) -> Vec<u8> {
    let keys = round_keys(password);
    let value = |sign: u8| {
        CRYPT_DIGITS
            .iter()
            .position(|known| *known == sign)
            .unwrap_or(0)
    };
    let expansion = salted_expansion(value(salt[0]) | value(salt[1]) << 6);

    let mut block: DesBlock = [0; 64];
    for _ in 0..ITERATIONS {
        block = encrypt(&block, &keys, &expansion);
    }

    let mut out = salt.to_vec();
    for group in block.chunks(6) {
        // The last group has four bits and is padded with zeros.
        let index = group
            .iter()
            .fold(0, |value, bit| value << 1 | usize::from(*bit))
            << (6 - group.len());
        out.push(CRYPT_DIGITS[index]);
    }
    out
}

/// Applies the salt: bit `i` of it exchanges the entries `i` and `i + 24` of the expansion, which
/// made DES hardware useless for cracking.
fn salted_expansion(salt: usize) -> [u8; 48] {
    let mut expansion = EXPANSION;
    for bit in 0..12 {
        if salt >> bit & 1 == 1 {
            expansion.swap(bit, bit + 24);
        }
    }
    expansion
}

/// The key schedule. The eighth bit of each character, parity in the standard, is not used.
fn round_keys(password: &[u8]) -> [RoundKey; 16] {
    let mut key: DesBlock = [0; 64];
    for (letter, bits) in password.iter().zip(key.chunks_mut(8)) {
        for (position, bit) in bits.iter_mut().take(7).enumerate() {
            *bit = letter >> (6 - position) & 1;
        }
    }
    let mut halves: [u8; 56] = permute(&key, &KEY_CHOICE);
    SHIFTS.map(|shift| {
        halves[..28].rotate_left(shift);
        halves[28..].rotate_left(shift);
        permute(&halves, &ROUND_CHOICE)
    })
}

/// Encrypts a block: initial permutation, sixteen Feistel rounds, final permutation.
fn encrypt(block: &DesBlock, keys: &[RoundKey; 16], expansion: &[u8; 48]) -> DesBlock {
    let start: DesBlock = permute(block, &INITIAL);
    let (mut left, mut right) = ([0; 32], [0; 32]);
    left.copy_from_slice(&start[..32]);
    right.copy_from_slice(&start[32..]);
    for key in keys {
        let mixed = round_function(&right, key, expansion);
        let next = std::array::from_fn(|bit| left[bit] ^ mixed[bit]);
        left = std::mem::replace(&mut right, next);
    }
    // The halves are not exchanged after the last round.
    let end: DesBlock =
        std::array::from_fn(|bit| if bit < 32 { right[bit] } else { left[bit - 32] });
    permute(&end, &FINAL)
}

/// The standard's function f.
fn round_function(right: &[u8; 32], key: &RoundKey, expansion: &[u8; 48]) -> [u8; 32] {
    let mut wide: RoundKey = permute(right, expansion);
    for (bit, key) in wide.iter_mut().zip(key) {
        *bit ^= key;
    }
    let mut narrow = [0; 32];
    for ((six, four), table) in wide.chunks(6).zip(narrow.chunks_mut(4)).zip(&SUBSTITUTION) {
        let row = six[0] << 1 | six[5];
        let column = six[1] << 3 | six[2] << 2 | six[3] << 1 | six[4];
        let value = table[usize::from(row << 4 | column)];
        for (position, bit) in four.iter_mut().enumerate() {
            *bit = value >> (3 - position) & 1;
        }
    }
    permute(&narrow, &PERMUTATION)
}

/// Selects bits of `from` by a table, in its order.
fn permute<const N: usize>(from: &[u8], table: &[u8; N]) -> [u8; N] {
    table.map(|place| from[usize::from(place) - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_c_library() {
        let values: [(&str, &[u8]); 17] = [
            ("sa3tHJ3/KuYvI", b"password"),
            ("./17m29LFAflg", b"secret"),
            ("zZb64kacvY9KA", b"longer than eight"),
            ("zZb64kacvY9KA", b"longer th"),
            ("abmF1QH4PEr.E", b""),
            ("..4/MD05HLWjI", b"a"),
            ("..4Pk.oTj8DXA", b"p\xe4ssw\xf6rd"),
            ("..2TeB3cXogZI", b"\x7f\x80\xff"),
            ("zzJZ5PtvFqi9o", b"a"),
            ("zzgY6KmwxFoIA", b"p\xe4ssw\xf6rd"),
            ("zzv7Yj9YTD30M", b"\x7f\x80\xff"),
            ("A1sQ7d/WPBslM", b"a"),
            ("A15BAN1tAxrn.", b"p\xe4ssw\xf6rd"),
            ("A1NkFXxhkAQcM", b"\x7f\x80\xff"),
            ("9/q0knMeAoaHg", b"a"),
            ("9/m65OXpQd7Q6", b"p\xe4ssw\xf6rd"),
            ("9//8R3otD/GVw", b"\x7f\x80\xff"),
        ];
        for (hash, password) in values {
            let bytes = hash.as_bytes();
            assert_eq!(crypt(password, [bytes[0], bytes[1]]), bytes, "{hash}");
        }
    }

    #[test]
    fn the_form_is_thirteen_signs() {
        assert!(is_hash(b"sa3tHJ3/KuYvI"));
        assert!(!is_hash(b"sa3tHJ3/KuYv"));
        assert!(!is_hash(b"sa3tHJ3/KuYv!"));
    }
}
