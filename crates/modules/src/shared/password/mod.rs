//! Passwords against the hashes of a password file (`htpasswd`): which format a hash has, and whether it fits.
//!
//! | written as | is |
//! |---|---|
//! | `{PLAIN}…` | the password itself |
//! | `{SHA}…`, `{SSHA}…` | SHA-1, without and with salt, in Base64 |
//! | `$apr1$…`, `$1$…` | the MD5 crypt of Apache and of old Unixes |
//! | `$5$…`, `$6$…` | SHA-256 and SHA-512 crypt |
//! | `$2a$…`, `$2b$…`, `$2x$…`, `$2y$…` | bcrypt |
//! | thirteen signs | the DES crypt of the first Unixes |
//!
//! These are what nginx takes together with glibc's `crypt(3)`. What newer systems add to it (`$y$`, `$7$`) is not
//! known here. Slow hashes are meant to be slow: see [`Hash::is_slow`].

mod des;
mod md5_crypt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha_crypt::{PasswordVerifier, ShaCrypt};
use sha1::{Digest, Sha1};

/// The bytes of a SHA-1 value; in `{SSHA}` the salt follows them.
const SHA1_SIZE: usize = 20;

/// A hash of a password file, by its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    /// `{PLAIN}`
    Plain(Box<[u8]>),
    /// `{SHA}` and `{SSHA}`; without salt that is empty.
    Sha1 {
        digest: [u8; SHA1_SIZE],
        salt: Box<[u8]>,
    },
    /// `$apr1$` and `$1$`, as written.
    Md5Crypt(Box<[u8]>),
    /// `$5$` and `$6$`, as written.
    ShaCrypt(Box<str>),
    /// `$2y$` and its kin, as written.
    Bcrypt(Box<str>),
    /// DES crypt, as written.
    Des(Box<[u8]>),
    /// Of a format that is known, but not a value of it: no password fits.
    Broken,
    /// Of a format that is not known.
    Unknown,
}

impl Hash {
    /// Reads a hash as it stands in the file.
    pub(crate) fn parse(text: &[u8]) -> Hash {
        if let Some(password) = text.strip_prefix(b"{PLAIN}") {
            return Hash::Plain(password.into());
        }
        if let Some(encoded) = text.strip_prefix(b"{SSHA}") {
            return sha1_hash(encoded);
        }
        if let Some(encoded) = text.strip_prefix(b"{SHA}") {
            return match sha1_hash(encoded) {
                Hash::Sha1 { salt, .. } if !salt.is_empty() => Hash::Broken,
                hash => hash,
            };
        }
        if text.starts_with(b"$apr1$") || text.starts_with(b"$1$") {
            return Hash::Md5Crypt(text.into());
        }
        let as_str = |make: fn(Box<str>) -> Hash| {
            std::str::from_utf8(text).map_or(Hash::Broken, |text| make(text.into()))
        };
        if text.starts_with(b"$5$") || text.starts_with(b"$6$") {
            return as_str(Hash::ShaCrypt);
        }
        if let [b'$', b'2', b'a' | b'b' | b'x' | b'y', b'$', ..] = text {
            return as_str(Hash::Bcrypt);
        }
        if des::is_hash(text) {
            Hash::Des(text.into())
        } else {
            Hash::Unknown
        }
    }

    /// Whether comparing takes long enough to matter to everybody else on the loop (a good part of a millisecond, or
    /// very much more): then it belongs on a thread of its own.
    pub(crate) fn is_slow(&self) -> bool {
        match self {
            Hash::Plain(_) | Hash::Sha1 { .. } | Hash::Broken | Hash::Unknown => false,
            Hash::Md5Crypt(_) | Hash::ShaCrypt(_) | Hash::Bcrypt(_) | Hash::Des(_) => true,
        }
    }

    /// Whether this is a hash of the password.
    pub(crate) fn fits(&self, password: &[u8]) -> bool {
        // C libraries end a password at its first zero byte, and hashes were made by them: such a password is not
        // the one that the user was given.
        if password.contains(&0) {
            return false;
        }
        match self {
            Hash::Plain(known) => equal(known, password),
            Hash::Sha1 { digest, salt } => {
                let mut sha1 = Sha1::new();
                sha1.update(password);
                sha1.update(salt);
                equal(digest, &sha1.finalize())
            }
            Hash::Md5Crypt(known) => equal(known, &md5_crypt::crypt(password, known)),
            Hash::ShaCrypt(known) => ShaCrypt::default()
                .verify_password(password, &**known)
                .is_ok(),
            Hash::Bcrypt(known) => bcrypt::verify(password, known).unwrap_or(false),
            Hash::Des(known) => equal(known, &des::crypt(password, [known[0], known[1]])),
            Hash::Broken | Hash::Unknown => false,
        }
    }
}

fn sha1_hash(encoded: &[u8]) -> Hash {
    let Ok(decoded) = STANDARD.decode(encoded) else {
        return Hash::Broken;
    };
    match decoded.split_first_chunk() {
        Some((digest, salt)) => Hash::Sha1 {
            digest: *digest,
            salt: salt.into(),
        },
        None => Hash::Broken,
    }
}

/// Compares in a time that does not depend on where the first difference is.
fn equal(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len()
        && one
            .iter()
            .zip(two)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

/// The 64 signs of `crypt(3)` in the order of their values.
const SIGNS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(hash: &str, password: &str) -> bool {
        Hash::parse(hash.as_bytes()).fits(password.as_bytes())
    }

    /// Values made by openssl and glibc.
    #[test]
    fn each_format_knows_its_password_and_no_other() {
        let hashes = [
            "{PLAIN}secret",
            "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
            "{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0",
            "$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0",
            "$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA",
            "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
            "./17m29LFAflg",
        ];
        for hash in hashes {
            assert!(fits(hash, "secret"), "{hash}");
            for wrong in ["", "secre", "secret2", "Secret", "secret\0"] {
                assert!(!fits(hash, wrong), "{hash} {wrong}");
            }
        }
        assert!(fits("$apr1$salt$Xxd1irWT9ycqoYxGFn4cb.", "password"));
    }

    #[test]
    fn a_bcrypt_hash_made_here_fits() {
        let hash = bcrypt::hash("secret", 4).expect("a cost of 4 is allowed");
        assert!(fits(&hash, "secret") && !fits(&hash, "Secret"));
        assert!(fits(&hash.replacen("$2b$", "$2y$", 1), "secret"));
    }

    #[test]
    fn broken_hashes_fit_nothing() {
        let broken = [
            "{SHA}_____Mm5Pz8GgiULbPgzG37mj9g=",
            "{SHA}Zm9vCg==",
            "{SSHA}Zm9vCg==",
            "{SSHA}",
            "$apr1$",
            "$1$",
            "$5$",
            "$6$rounds=5000$salt",
            "$2y$10$",
            "$2y$99$aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        ];
        for hash in broken {
            assert!(!fits(hash, "") && !fits(hash, "1"), "{hash}");
        }
        assert_eq!(Hash::parse(b""), Hash::Unknown);
        assert_eq!(Hash::parse(b"$y$j9T$salt$value"), Hash::Unknown);
    }
}
