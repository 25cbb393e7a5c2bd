//! Keys and certificates of ACME: made, compared, and looked at.

use std::path::Path;
use std::sync::Arc;

use instant_acme::CertificateIdentifier;
use net::tls::Identity;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, RsaKeySize};

use x509_parser::extensions::ParsedExtension;

use super::issuer::KeyKind;

/// Certificates that live less than this many seconds are renewed after the half of their life.
const SHORT_LIFE: u64 = 10 * 24 * 3600;

fn text(error: rcgen::Error) -> String {
    error.to_string()
}

/// A request for a certificate, DER, and the key that goes with it, PEM. Takes seconds for long RSA keys.
pub(super) fn request(
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
    let key = key.map_err(text)?;
    let mut params = CertificateParams::new(names).map_err(text)?;
    params.distinguished_name = DistinguishedName::new();
    if let (true, Some(first)) = (common_name, names.first()) {
        params
            .distinguished_name
            .push(DnType::CommonName, first.as_str());
    }
    let request = params.serialize_request(&key).map_err(text)?;
    Ok((request.der().to_vec(), key.serialize_pem()))
}

/// The certificate that proves a name by TLS-ALPN-01 (RFC 8737, section 3).
pub(super) fn proof(name: &str, digest: &[u8]) -> Result<Arc<Identity>, String> {
    let key = KeyPair::generate().map_err(text)?;
    let mut params = CertificateParams::new([name.to_owned()]).map_err(text)?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key).map_err(text)?;
    check(&certificate.pem(), &key.serialize_pem())
}

/// Whether a certificate and a key, both PEM, belong to each other.
pub(super) fn check(certificate: &str, key: &str) -> Result<Arc<Identity>, String> {
    let certificate = format!("data:{certificate}");
    let key = format!("data:{key}");
    let mut nothing = |_: &Path| Err(std::io::ErrorKind::NotFound.into());
    Identity::load(
        certificate.as_str().into(),
        key.as_str().into(),
        &[],
        &mut nothing,
    )
    .map_err(|problem| problem.message)
}

/// An account's key as DER.
pub(super) fn key_der(pem: &str) -> Result<Vec<u8>, String> {
    Ok(KeyPair::from_pem(pem).map_err(text)?.serialize_der())
}

/// A number from 0 to 1.
pub(super) fn chance() -> f64 {
    let mut random = [0; 2];
    // Without chance it is only less spread.
    let _ = getrandom::fill(&mut random);
    f64::from(u16::from_be_bytes(random)) / f64::from(u16::MAX)
}

/// When a certificate is to be renewed, in milliseconds since 1970: after two thirds of its life, less up to a
/// thirtieth. `None`: it can not be read.
pub(super) fn renewal(pem: &str) -> Option<u64> {
    let (from, until) = validity(pem)?;
    Some(renewal_between(from, until.checked_sub(from)?, chance()) * 1000)
}

/// From when and until when a certificate is good, in seconds since 1970.
pub(super) fn validity(pem: &str) -> Option<(u64, u64)> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    let certificate = pem.parse_x509().ok()?;
    let from = u64::try_from(certificate.validity().not_before.timestamp()).ok()?;
    let until = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some((from, until))
}

/// How a certificate is called when its renewal is talked about (RFC 9773, section 4.1). `None`: it does not say whose it is.
pub(super) fn identifier(pem: &str) -> Option<CertificateIdentifier<'static>> {
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

/// In seconds. The year is one of four digits (RFC 5280, section 4.1.2.5.2), so that nothing overflows.
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
            let (request, key) = request(&names, kind, true).expect("random bytes");
            assert!(!request.is_empty() && key.starts_with("-----BEGIN"));
        }
    }

    #[test]
    fn a_certificate_of_another_key_is_noticed() {
        let key = KeyPair::generate().expect("random bytes");
        let other = KeyPair::generate().expect("random bytes").serialize_pem();
        let params = CertificateParams::new(["a.test".to_owned()]).expect("a host name");
        let certificate = params.self_signed(&key).expect("a key that signs").pem();
        assert!(check(&certificate, &key.serialize_pem()).is_ok());
        let why = check(&certificate, &other).expect_err("another key");
        assert!(why.contains("key values mismatch"), "{why}");
        assert!(!why.contains("PRIVATE KEY"), "{why}");
        assert!(check("nothing", &other).is_err());
    }
}
