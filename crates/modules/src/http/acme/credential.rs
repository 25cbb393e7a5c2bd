//! Keys and certificates for ACME: generating, checking, reading dates.

use std::path::Path;
use std::sync::Arc;

use instant_acme::CertificateIdentifier;
use net::tls::TlsIdentity;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, RsaKeySize};

use x509_parser::extensions::ParsedExtension;

use super::issuer::KeyKind;

/// Certificates with a shorter life, in seconds, are renewed at half of it: for a few days, two
/// thirds would leave too little time for retries.
const SHORT_LIFE: u64 = 10 * 24 * 3600;

/// The text of a library error.
fn error_text(error: rcgen::Error) -> String {
    error.to_string()
}

/// A certificate signing request (DER) and its key (PEM). Takes seconds for long RSA keys.
pub(super) fn certificate_request(
    names: &[String],
    kind: KeyKind,
    common_name: bool,
) -> Result<(Vec<u8>, String), String> {
    let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
    let key = match kind {
        KeyKind::P256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
        KeyKind::P384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
        KeyKind::P521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
        KeyKind::Rsa2048 => rsa(RsaKeySize::_2048),
        KeyKind::Rsa3072 => rsa(RsaKeySize::_3072),
        KeyKind::Rsa4096 => rsa(RsaKeySize::_4096),
    };
    let key = key.map_err(error_text)?;
    let mut params = CertificateParams::new(names).map_err(error_text)?;
    params.distinguished_name = DistinguishedName::new();
    if let (true, Some(first)) = (common_name, names.first()) {
        params
            .distinguished_name
            .push(DnType::CommonName, first.as_str());
    }
    let request = params.serialize_request(&key).map_err(error_text)?;
    Ok((request.der().to_vec(), key.serialize_pem()))
}

/// The self-signed certificate that answers a TLS-ALPN-01 challenge (RFC 8737, section 3).
pub(super) fn challenge_certificate(name: &str, digest: &[u8]) -> Result<Arc<TlsIdentity>, String> {
    let key = KeyPair::generate().map_err(error_text)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(error_text)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(error_text)?;
    load_pair(&certificate.pem(), &key.serialize_pem())
}

/// Loads a certificate and a key, both PEM, and checks that they belong together.
pub(super) fn load_pair(certificate: &str, key: &str) -> Result<Arc<TlsIdentity>, String> {
    let certificate = format!("data:{certificate}");
    let key = format!("data:{key}");
    let mut nothing = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    TlsIdentity::load(
        certificate.as_str().into(),
        key.as_str().into(),
        &[],
        &mut nothing,
    )
    .map_err(|problem| problem.message)
}

/// An account key as DER.
pub(super) fn key_der(pem: &str) -> Result<Vec<u8>, String> {
    Ok(KeyPair::from_pem(pem).map_err(error_text)?.serialize_der())
}

/// A random number from 0 to 1.
pub(super) fn random_fraction() -> f64 {
    let mut random = [0; 2];
    // Without randomness, dates are merely less spread.
    let _ = rt::random::fill(&mut random);
    f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX)
}

/// When to renew a certificate, in milliseconds since the epoch: after two thirds of its life,
/// minus up to a thirtieth. `None`: it cannot be parsed.
pub(super) fn renewal_time_ms(pem: &str) -> Option<u64> {
    let (from, until) = validity(pem)?;
    Some(renewal_between(from, until.checked_sub(from)?, random_fraction()) * 1000)
}

/// The validity period of a certificate, in seconds since the epoch.
pub(super) fn validity(pem: &str) -> Option<(u64, u64)> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let from = u64::try_from(certificate.validity().not_before.timestamp()).ok()?;
    let until = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some((from, until))
}

/// The identifier of a certificate for renewal information (RFC 9773, section 4.1). `None`: it does
/// not name its issuer's key.
pub(super) fn certificate_identifier(pem: &str) -> Option<CertificateIdentifier<'static>> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let authority = certificate
        .iter_extensions()
        .find_map(|one| match one.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(authority) => authority.key_identifier.as_ref(),
            _ => None,
        })?;
    let (authority, serial) = (authority.0.into(), certificate.raw_serial().into());
    Some(CertificateIdentifier::new(authority, serial).into_owned())
}

/// The renewal date in seconds. A certificate's years have four digits (RFC 5280, section
/// 4.1.2.5.2), so nothing can overflow.
fn renewal_between(from: u64, life: u64, chance: f64) -> u64 {
    let share = match life < SHORT_LIFE {
        true => life / 2,
        false => life / 3 * 2,
    };
    let jitter = (life as f64 / 30.0 * chance) as u64;
    from + share.saturating_sub(jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_life_is_renewed_after_two_thirds_and_a_short_one_after_a_half() {
        let day = 24 * 3600;
        assert_eq!(renewal_between(1000, 90 * day, 0.0), 1000 + 60 * day);
        assert_eq!(renewal_between(1000, 90 * day, 1.0), 1000 + 57 * day);
        assert_eq!(renewal_between(1000, 6 * day, 0.0), 1000 + 3 * day);
        assert_eq!(renewal_between(1000, 0, 1.0), 1000);
    }

    #[test]
    fn a_key_of_each_kind_can_be_made_and_asked_for() {
        let names = ["www.example.test".to_owned(), "192.0.2.1".to_owned()];
        for kind in KeyKind::ALL {
            let (request, key) = certificate_request(&names, kind, true).expect("random bytes");
            assert!(!request.is_empty() && key.starts_with("-----BEGIN"));
        }
    }

    #[test]
    fn a_certificate_of_another_key_is_noticed() {
        let key = KeyPair::generate().expect("random bytes");
        let other = KeyPair::generate().expect("random bytes").serialize_pem();
        let params = CertificateParams::new(["a.test".to_owned()]).expect("a host name");
        let certificate = params.self_signed(&key).expect("a key that signs").pem();
        assert!(load_pair(&certificate, &key.serialize_pem()).is_ok());
        let why = load_pair(&certificate, &other).expect_err("another key");
        assert!(why.contains("key values mismatch"), "{why}");
        assert!(!why.contains("PRIVATE KEY"), "{why}");
        assert!(load_pair("nothing", &other).is_err());
    }
}
