//! Private keys that are encrypted with a password.
//!
//! There are two forms: PKCS #8 (RFC 5958, RFC 8018), which OpenSSL writes today, and an older one in which PEM
//! headers name a cipher whose key is derived from the password by MD5.

use aes::cipher::{BlockModeDecrypt, KeyIvInit, block_padding::Pkcs7};
use md5::{Digest, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;

use super::pem::PemBlock;

const BAD_PASSWORD: &str = "SSL: error:1C800064:Provider routines::bad decrypt";
const NO_PASSWORD: &str = "SSL: error:04800068:PEM routines::bad password read";

/// Decrypts a PKCS #8 key with the first password that fits.
pub(super) fn pkcs8(der: &[u8], passwords: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    if passwords.is_empty() {
        return Err(NO_PASSWORD.to_owned());
    }
    let info = EncryptedPrivateKeyInfoRef::try_from(der).map_err(|error| error.to_string())?;
    for password in passwords {
        if let Ok(key) = info.decrypt(password) {
            return Ok(key.as_bytes().to_vec());
        }
    }
    Err(BAD_PASSWORD.to_owned())
}

/// Decrypts a key of the older form with the first password that fits.
pub(super) fn legacy(block: &PemBlock, passwords: &[Vec<u8>]) -> Result<Vec<u8>, String> {
    if passwords.is_empty() {
        return Err(NO_PASSWORD.to_owned());
    }
    let info = block.headers.iter().find(|(name, _)| name == "DEK-Info");
    let (cipher, iv) = info
        .and_then(|(_, value)| value.split_once(','))
        .ok_or("SSL: error:04800069:PEM routines::not dek info")?;
    let iv = hexadecimal(iv.trim()).ok_or("SSL: error:04800067:PEM routines::bad iv chars")?;
    for password in passwords {
        if let Some(key) = decrypt(cipher.trim(), &iv, password, &block.content)? {
            return Ok(key);
        }
    }
    Err(BAD_PASSWORD.to_owned())
}

fn decrypt(
    cipher: &str,
    iv: &[u8],
    password: &[u8],
    content: &[u8],
) -> Result<Option<Vec<u8>>, String> {
    fn run<C>(key: &[u8], iv: &[u8], content: &[u8]) -> Option<Vec<u8>>
    where
        C: KeyIvInit + BlockModeDecrypt,
    {
        let cipher = C::new_from_slices(key, iv).ok()?;
        let key = cipher.decrypt_padded_vec::<Pkcs7>(content).ok()?;
        // A wrong password leaves valid padding once in 256 times. A key is a SEQUENCE, so its first byte must be
        // 0x30.
        (key.first() == Some(&0x30)).then_some(key)
    }
    // The older form has no salt of its own: the first 8 bytes of the IV serve as one.
    let salt = iv
        .get(..8)
        .ok_or("SSL: error:04800065:PEM routines::bad iv")?;
    let key = |length| derive(password, salt, length);
    Ok(match cipher {
        "AES-128-CBC" => run::<cbc::Decryptor<aes::Aes128>>(&key(16), iv, content),
        "AES-192-CBC" => run::<cbc::Decryptor<aes::Aes192>>(&key(24), iv, content),
        "AES-256-CBC" => run::<cbc::Decryptor<aes::Aes256>>(&key(32), iv, content),
        "DES-EDE3-CBC" => run::<cbc::Decryptor<des::TdesEde3>>(&key(24), iv, content),
        "DES-CBC" => run::<cbc::Decryptor<des::Des>>(&key(8), iv, content),
        other => return Err(format!("the cipher \"{other}\" is not supported")),
    })
}

/// Derives the cipher's key: repeated MD5 over the previous digest, the password and the salt (OpenSSL's
/// EVP_BytesToKey with one iteration).
fn derive(password: &[u8], salt: &[u8], length: usize) -> Vec<u8> {
    let mut key = Vec::new();
    let mut last: Vec<u8> = Vec::new();
    while key.len() < length {
        let mut digest = Md5::new();
        digest.update(&last);
        digest.update(password);
        digest.update(salt);
        last = digest.finalize().to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(length);
    key
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits() {
        assert_eq!(hexadecimal("00fF"), Some(vec![0, 255]));
        assert_eq!(hexadecimal("0"), None);
        assert_eq!(hexadecimal("zz"), None);
    }
}
