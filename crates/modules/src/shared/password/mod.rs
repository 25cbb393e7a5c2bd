//! Checks passwords against the hashes of a password file (`htpasswd`).
//!
//! | written as | is |
//! |---|---|
//! | `{PLAIN}…` | the password itself |
//! | `{SHA}…`, `{SSHA}…` | SHA-1, without and with salt, in Base64 |
//! | `$apr1$…`, `$1$…` | the MD5 crypt of Apache and of old Unix systems |
//! | `$5$…`, `$6$…` | SHA-256 and SHA-512 crypt |
//! | `$2a$…`, `$2b$…`, `$2x$…`, `$2y$…` | bcrypt |
//! | `$y$…` | yescrypt, the default of newer systems |
//! | thirteen characters | traditional DES crypt |
//!
//! These are the formats that nginx accepts together with the `crypt(3)` of most systems. `$7$` (scrypt) and
//! `$gy$` are not supported. Slow hashes are slow on purpose: see
//! [`PasswordHash::is_slow`].

mod des;
mod md5_crypt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha_crypt::{PasswordVerifier, ShaCrypt};
use sha1::{Digest, Sha1};
use yescrypt::Yescrypt;

/// The size of a SHA-1 value; in `{SSHA}` the salt follows it.
const SHA1_SIZE: usize = 20;

/// A hash from a password file, by format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PasswordHash {
    /// `{PLAIN}`
    Plain(Box<[u8]>),
    /// `{SHA}`, whose salt is empty, and `{SSHA}`.
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
    /// `$y$`, as written.
    Yescrypt(Box<str>),
    /// DES crypt, as written.
    Des(Box<[u8]>),
    /// A known format with an invalid value: no password matches.
    Malformed,
    /// An unknown format. `auth_basic` answers it with 500, as nginx does when `crypt(3)` fails.
    Unknown,
}

impl PasswordHash {
    /// Parses a hash from the file.
    pub(crate) fn parse(text: &[u8]) -> PasswordHash {
        if let Some(password) = text.strip_prefix(b"{PLAIN}") {
            return PasswordHash::Plain(password.into());
        }
        if let Some(encoded) = text.strip_prefix(b"{SSHA}") {
            return sha1_hash(encoded);
        }
        if let Some(encoded) = text.strip_prefix(b"{SHA}") {
            return match sha1_hash(encoded) {
                // A `{SHA}` that is too long is not a salted one by another name.
                PasswordHash::Sha1 { salt, .. } if !salt.is_empty() => PasswordHash::Malformed,
                hash => hash,
            };
        }
        if text.starts_with(b"$apr1$") || text.starts_with(b"$1$") {
            return PasswordHash::Md5Crypt(text.into());
        }
        let as_str = |make: fn(Box<str>) -> PasswordHash| {
            std::str::from_utf8(text).map_or(PasswordHash::Malformed, |text| make(text.into()))
        };
        if text.starts_with(b"$5$") || text.starts_with(b"$6$") {
            return as_str(PasswordHash::ShaCrypt);
        }
        if let [b'$', b'2', b'a' | b'b' | b'x' | b'y', b'$', ..] = text {
            return as_str(PasswordHash::Bcrypt);
        }
        if text.starts_with(b"$y$") {
            return match is_yescrypt(text) {
                true => as_str(PasswordHash::Yescrypt),
                false => PasswordHash::Malformed,
            };
        }
        if des::is_hash(text) {
            PasswordHash::Des(text.into())
        } else {
            PasswordHash::Unknown
        }
    }

    /// Whether comparing takes long enough to delay everything else on the loop (a good part of a
    /// millisecond, or far more), so that it belongs on a thread of its own.
    pub(crate) fn is_slow(&self) -> bool {
        match self {
            PasswordHash::Plain(_)
            | PasswordHash::Sha1 { .. }
            | PasswordHash::Malformed
            | PasswordHash::Unknown => false,
            PasswordHash::Md5Crypt(_)
            | PasswordHash::ShaCrypt(_)
            | PasswordHash::Bcrypt(_)
            | PasswordHash::Yescrypt(_)
            | PasswordHash::Des(_) => true,
        }
    }

    /// A slow hash as it is written in the file; empty for the others.
    pub(crate) fn written(&self) -> &[u8] {
        match self {
            PasswordHash::Md5Crypt(text) | PasswordHash::Des(text) => text,
            PasswordHash::ShaCrypt(text)
            | PasswordHash::Bcrypt(text)
            | PasswordHash::Yescrypt(text) => text.as_bytes(),
            PasswordHash::Plain(_)
            | PasswordHash::Sha1 { .. }
            | PasswordHash::Malformed
            | PasswordHash::Unknown => &[],
        }
    }

    /// Whether this is the hash of the password.
    pub(crate) fn matches(&self, password: &[u8]) -> bool {
        // C libraries cut a password at its first zero byte, and the hashes were made by them. Such
        // a password is not the one that the user was given.
        if password.contains(&0) {
            return false;
        }
        match self {
            PasswordHash::Plain(known) => constant_time_eq(known, password),
            PasswordHash::Sha1 { digest, salt } => {
                let mut sha1 = Sha1::new();
                sha1.update(password);
                sha1.update(salt);
                constant_time_eq(digest, &sha1.finalize())
            }
            PasswordHash::Md5Crypt(known) => {
                constant_time_eq(known, &md5_crypt::crypt(password, known))
            }
            PasswordHash::ShaCrypt(known) => ShaCrypt::default()
                .verify_password(password, &**known)
                .is_ok(),
            PasswordHash::Bcrypt(known) => bcrypt::verify(password, known).unwrap_or(false),
            PasswordHash::Yescrypt(known) => Yescrypt::default()
                .verify_password(password, &**known)
                .is_ok(),
            PasswordHash::Des(known) => {
                constant_time_eq(known, &des::crypt(password, [known[0], known[1]]))
            }
            PasswordHash::Malformed | PasswordHash::Unknown => false,
        }
    }
}

/// The most memory that a yescrypt hash may ask for, in bytes: that of the highest cost of `mkpasswd`.
const YESCRYPT_MEMORY: u64 = 1 << 30;

/// Characters of a yescrypt value: 32 bytes. One that is shorter would fit more passwords.
const YESCRYPT_VALUE: usize = 43;

/// Whether this is `$y$parameters$salt$value`, with parameters that can be computed. Asked when the file is read, so that a
/// line whose cost is a mistake takes neither the memory nor the time at a login.
fn is_yescrypt(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let parts: Vec<&str> = text.split('$').collect();
    let ["", "y", parameters, _salt, value] = parts[..] else {
        return false;
    };
    let parameters = parameters.parse::<yescrypt::Params>();
    // 128 bytes are the unit of both numbers.
    let memory = parameters.map(|all| {
        all.n()
            .saturating_mul(u64::from(all.r()))
            .saturating_mul(128)
    });
    value.len() == YESCRYPT_VALUE && memory.is_ok_and(|memory| memory <= YESCRYPT_MEMORY)
}

/// Parses the Base64 of `{SHA}` and `{SSHA}`: a digest and, if anything is left, a salt.
fn sha1_hash(encoded: &[u8]) -> PasswordHash {
    let Ok(decoded) = STANDARD.decode(encoded) else {
        return PasswordHash::Malformed;
    };
    match decoded.split_first_chunk() {
        Some((digest, salt)) => PasswordHash::Sha1 {
            digest: *digest,
            salt: salt.into(),
        },
        None => PasswordHash::Malformed,
    }
}

/// Compares in a time that does not depend on the position of the first difference, so that the
/// time of a response does not reveal a prefix.
fn constant_time_eq(one: &[u8], two: &[u8]) -> bool {
    one.len() == two.len()
        && one
            .iter()
            .zip(two)
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
}

/// The digits of `crypt(3)` in the order of their values. It is not Base64: the alphabet begins
/// with `./`.
const CRYPT_DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[cfg(test)]
mod tests {
    use super::*;

    const YESCRYPT_SECRET: &str = "$y$j75$saltsaltsalt$jyf/lxrpdyAIshWRo1x5DRC6KIE7sNRRtjcomR3PgHA";

    fn fits(hash: &str, password: &str) -> bool {
        PasswordHash::parse(hash.as_bytes()).matches(password.as_bytes())
    }

    /// Values made by openssl, glibc and libxcrypt.
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
            YESCRYPT_SECRET,
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
        assert_eq!(PasswordHash::parse(b""), PasswordHash::Unknown);
        assert_eq!(
            PasswordHash::parse(b"$7$C6..../....salt$value"),
            PasswordHash::Unknown
        );
    }

    #[test]
    fn a_yescrypt_hash_has_a_whole_value_and_bounded_memory() {
        let value = "a".repeat(43);
        let parsed = |text: &str| PasswordHash::parse(text.as_bytes());
        let good = format!("$y$j9T$saltsalt${value}");
        assert_eq!(parsed(&good), PasswordHash::Yescrypt(good.as_str().into()));
        for broken in [
            "$y$".to_owned(),
            "$y$j9T$salt$".to_owned(),
            "$y$j9T$salt$value".to_owned(),
            format!("$y$j9T$salt${value}$more"),
            format!("$y$$salt${value}"),
            format!("$y$\u{e4}$salt${value}"),
            // 2^63 blocks.
            format!("$y$jzzT$salt${value}"),
        ] {
            assert_eq!(parsed(&broken), PasswordHash::Malformed, "{broken}");
        }
    }
}
