//! MD5 crypt: `$1$salt$…` of old Unix systems and `$apr1$salt$…` of Apache, which differ in this
//! prefix only.
//!
//! Written after the description in the manual page of `crypt(3)` and the observable behaviour of
//! both programs. The thousand rounds are part of the format; they once made it slow.

use md5::{Digest, Md5};

use super::CRYPT_DIGITS;

/// Characters of the salt that count.
const MAX_SALT: usize = 8;
const ROUNDS: usize = 1000;

/// The order in which the bytes of the last digest are written, in groups of four output
/// characters.
const GROUPS: [[usize; 3]; 5] = [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]];

/// Hashes a password with the format and salt of `setting`, which can be a complete hash.
pub(super) fn crypt(password: &[u8], setting: &[u8]) -> Vec<u8> {
    let magic: &[u8] = if setting.starts_with(b"$apr1$") {
        b"$apr1$"
    } else {
        b"$1$"
    };
    let rest = setting.get(magic.len()..).unwrap_or_default();
    let salt_length = rest
        .iter()
        .take(MAX_SALT)
        .take_while(|byte| **byte != b'$')
        .count();
    let salt = &rest[..salt_length];

    let mut digest = first_digest(password, magic, salt);
    for round in 0..ROUNDS {
        digest = next_digest(round, &digest, password, salt);
    }

    let mut out = [magic, salt, b"$"].concat();
    for [high, middle, low] in GROUPS {
        let value =
            u32::from(digest[high]) << 16 | u32::from(digest[middle]) << 8 | u32::from(digest[low]);
        write_digits(value, 4, &mut out);
    }
    write_digits(u32::from(digest[11]), 2, &mut out);
    out
}

/// The digest that the rounds start from. Its odd construction is the format's own.
fn first_digest(password: &[u8], magic: &[u8], salt: &[u8]) -> [u8; 16] {
    let around: [u8; 16] = Md5::new()
        .chain_update(password)
        .chain_update(salt)
        .chain_update(password)
        .finalize()
        .into();
    let mut md5 = Md5::new()
        .chain_update(password)
        .chain_update(magic)
        .chain_update(salt);
    // As many bytes of the digest as the password has, repeating it if necessary.
    for start in (0..password.len()).step_by(around.len()) {
        md5.update(&around[..around.len().min(password.len() - start)]);
    }
    // One byte per bit of the length: zero for a set bit, the password's first byte otherwise.
    let mut bits = password.len();
    while bits != 0 {
        md5.update(if bits & 1 == 1 {
            &[0][..]
        } else {
            &password[..1]
        });
        bits >>= 1;
    }
    md5.finalize().into()
}

/// One of the thousand rounds.
fn next_digest(round: usize, last: &[u8; 16], password: &[u8], salt: &[u8]) -> [u8; 16] {
    let odd = round % 2 == 1;
    let mut md5 = Md5::new().chain_update(if odd { password } else { last });
    if !round.is_multiple_of(3) {
        md5.update(salt);
    }
    if !round.is_multiple_of(7) {
        md5.update(password);
    }
    md5.chain_update(if odd { last } else { password })
        .finalize()
        .into()
}

/// Writes six bits per character, the lowest first.
fn write_digits(mut value: u32, count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        out.push(CRYPT_DIGITS[(value & 63) as usize]);
        value >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_openssl() {
        assert_eq!(
            crypt(b"password", b"$1$salt$"),
            b"$1$salt$qJH7.N4xYta3aEG/dfqo/0"
        );
        assert_eq!(
            crypt(b"password", b"$apr1$salt$x"),
            b"$apr1$salt$Xxd1irWT9ycqoYxGFn4cb."
        );
    }

    #[test]
    fn every_length_of_password_and_salt_is_hashed() {
        for length in 0..70 {
            let password = vec![b'a'; length];
            let hash = crypt(&password, b"$1$0123456789");
            assert_eq!(
                hash.len(),
                "$1$01234567$".len() + 22,
                "the salt ends after eight signs"
            );
            assert_eq!(crypt(&password, &hash), hash, "a hash is a setting too");
        }
        assert_eq!(crypt(b"", b"$1$"), crypt(b"", b"$1$$"));
    }
}
