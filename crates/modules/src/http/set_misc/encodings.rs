//! Base64, hexadecimal, digests and signatures.

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bstr::BString;
use md5::{Digest, Md5};
use sha1::Sha1;

use super::InvalidText;

pub(super) use aws_lc_rs::hmac::{HMAC_SHA1_FOR_LEGACY_USE_ONLY as SHA1, HMAC_SHA256 as SHA256};

/// What decoders accept: the input is cut at the first padding character, and stray bits in the
/// last character are ignored.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::RequireNone)
    .with_decode_allow_trailing_bits(true);

/// As [`STANDARD`], but lenient: values come from clients.
const FROM_BASE64: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::STANDARD, LENIENT);
const FROM_BASE64URL: GeneralPurpose = GeneralPurpose::new(&base64::alphabet::URL_SAFE, LENIENT);

pub(super) fn encode_base64(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    Ok(STANDARD.encode(text).into())
}

pub(super) fn decode_base64(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    decode(&FROM_BASE64, text, "set_decode_base64: invalid value")
}

pub(super) fn encode_base64url(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    Ok(URL_SAFE_NO_PAD.encode(text).into())
}

pub(super) fn decode_base64url(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    decode(&FROM_BASE64URL, text, "set_decode_base64url: invalid value")
}

/// Decodes up to the padding.
fn decode(from: &GeneralPurpose, text: &[u8], invalid: &str) -> Result<Vec<u8>, InvalidText> {
    let end = memchr::memchr(b'=', text).unwrap_or(text.len());
    from.decode(&text[..end])
        .map_err(|_| InvalidText::new(invalid))
}

pub(super) fn encode_hex(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let mut out = Vec::with_capacity(text.len() * 2);
    base::text::write_hex(text, &mut out);
    Ok(out)
}

/// `set_decode_hex`. Both cases of letters are accepted.
pub(super) fn decode_hex(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs
        .iter()
        .map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
    let bytes = bytes.collect::<Option<Vec<u8>>>();
    // An odd digit at the end makes the text invalid, too.
    let bytes = bytes.filter(|_| rest.is_empty());
    bytes.ok_or_else(|| InvalidText::new("set_decode_hex: invalid value"))
}

/// `set_md5`, in hexadecimal as in the third-party module.
pub(super) fn md5(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    encode_hex(&Md5::digest(text))
}

/// `set_sha1`, in hexadecimal as well.
pub(super) fn sha1(text: &[u8]) -> Result<Vec<u8>, InvalidText> {
    encode_hex(&Sha1::digest(text))
}

/// The HMAC of the second text with the first as the key. The result is binary; `set_encode_base64`
/// and `set_encode_hex` make it printable.
pub(super) fn hmac(algorithm: hmac::Algorithm, texts: &[BString]) -> Result<Vec<u8>, InvalidText> {
    let [secret, text] = texts else {
        return Err(InvalidText::new("set_hmac: no secret and text"));
    };
    let key = hmac::Key::new(algorithm, secret);
    Ok(hmac::sign(&key, text).as_ref().to_vec())
}
