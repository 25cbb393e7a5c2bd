//! A parsed certificate: what verification needs, and what `$ssl_client_…` shows.
//!
//! The parser is as lenient as OpenSSL's: certificates of version 1, which private authorities still issue, are
//! accepted.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_parser::prelude::*;

/// The parts of a certificate that decide whether it is valid.
#[derive(Clone)]
pub(super) struct Certificate {
    pub(super) der: Vec<u8>,
    /// The distinguished names in their encoding: they are equal if their bytes are.
    pub(super) subject: Vec<u8>,
    pub(super) issuer: Vec<u8>,
    pub(super) serial: Vec<u8>,
    pub(super) not_before: i64,
    pub(super) not_after: i64,
    /// The signed part and the signature.
    pub(super) signed: SignedContent,
    pub(super) key: PublicKey,
    pub(super) version: u32,
    /// Whether it is an authority's (basicConstraints); `None`: it does not say.
    pub(super) authority: Option<bool>,
    pub(super) path_length: Option<u32>,
    /// `None`: every use of the key is allowed.
    pub(super) key_usage: Option<KeyUses>,
    /// Extended key usage; `None`: every purpose is allowed.
    pub(super) purposes: Option<KeyPurposes>,
    pub(super) names: Vec<SubjectAltName>,
    pub(super) common_names: Vec<String>,
    pub(super) key_id: Option<Vec<u8>>,
    pub(super) issuer_key_id: Option<Vec<u8>>,
    /// The first URL of an OCSP responder.
    pub(super) responder: Option<String>,
    pub(super) name_constraints: bool,
    /// It has a critical extension that is not understood here: it must be rejected (RFC 5280, section 4.2).
    pub(super) unknown_critical: bool,
}

/// Signed content: the structure that certificates, revocation lists and OCSP responses share.
#[derive(Clone)]
pub(super) struct SignedContent {
    pub(super) content: Vec<u8>,
    /// The content of the `AlgorithmIdentifier`.
    pub(super) algorithm: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

/// A public key.
#[derive(Clone)]
pub(super) struct PublicKey {
    /// The whole `SubjectPublicKeyInfo`.
    pub(super) info: Vec<u8>,
    /// The content of its `AlgorithmIdentifier`.
    pub(super) algorithm: Vec<u8>,
    pub(super) bits: Vec<u8>,
}

#[derive(Clone, Copy)]
pub(super) struct KeyUses {
    pub(super) certificate_sign: bool,
    pub(super) crl_sign: bool,
    pub(super) digital_signature: bool,
    pub(super) key_agreement: bool,
}

#[derive(Clone, Copy)]
pub(super) struct KeyPurposes {
    pub(super) server: bool,
    pub(super) client: bool,
    /// Signing of OCSP responses. `anyExtendedKeyUsage` does not include it (RFC 6960, section 4.2.2.2).
    pub(super) ocsp: bool,
}

/// A name that a certificate is for.
#[derive(Clone)]
pub(super) enum SubjectAltName {
    Dns(String),
    Ip(IpAddr),
}

impl Certificate {
    /// Parses a certificate; `None` if it is malformed.
    pub(super) fn parse(der: &[u8]) -> Option<Certificate> {
        let (_, parsed) = X509Certificate::from_der(der).ok()?;
        let tbs = &parsed.tbs_certificate;
        let mut certificate = Certificate {
            der: der.to_vec(),
            subject: tbs.subject.as_raw().to_vec(),
            issuer: tbs.issuer.as_raw().to_vec(),
            serial: tbs.raw_serial().to_vec(),
            not_before: tbs.validity.not_before.timestamp(),
            not_after: tbs.validity.not_after.timestamp(),
            signed: SignedContent::parse(der)?,
            key: PublicKey::parse(tbs.subject_pki.raw)?,
            version: tbs.version.0 + 1,
            authority: None,
            path_length: None,
            key_usage: None,
            purposes: None,
            names: Vec::new(),
            common_names: tbs
                .subject
                .iter_common_name()
                .filter_map(|name| name.as_str().ok().map(str::to_owned))
                .collect(),
            key_id: None,
            issuer_key_id: None,
            responder: None,
            name_constraints: false,
            unknown_critical: false,
        };
        for extension in tbs.extensions() {
            certificate.add(extension);
        }
        Some(certificate)
    }

    fn add(&mut self, extension: &X509Extension<'_>) {
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(basic) => {
                self.authority = Some(basic.ca);
                self.path_length = basic.path_len_constraint;
            }
            ParsedExtension::KeyUsage(usage) => {
                self.key_usage = Some(KeyUses {
                    certificate_sign: usage.key_cert_sign(),
                    crl_sign: usage.crl_sign(),
                    digital_signature: usage.digital_signature(),
                    key_agreement: usage.key_agreement(),
                });
            }
            ParsedExtension::ExtendedKeyUsage(usage) => {
                self.purposes = Some(KeyPurposes {
                    server: usage.any || usage.server_auth,
                    client: usage.any || usage.client_auth,
                    ocsp: usage.ocsp_signing,
                });
            }
            ParsedExtension::SubjectAlternativeName(names) => {
                self.names
                    .extend(names.general_names.iter().filter_map(name));
            }
            ParsedExtension::SubjectKeyIdentifier(id) => self.key_id = Some(id.0.to_vec()),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                self.issuer_key_id = id.key_identifier.as_ref().map(|id| id.0.to_vec());
            }
            ParsedExtension::AuthorityInfoAccess(access) => self.responder = responder(access),
            ParsedExtension::NameConstraints(_) => self.name_constraints = true,
            ParsedExtension::CertificatePolicies(_)
            // Known and without effect here: policies are not examined, and lists come from the configuration.
            | ParsedExtension::PolicyConstraints(_)
            | ParsedExtension::PolicyMappings(_)
            | ParsedExtension::InhibitAnyPolicy(_)
            | ParsedExtension::IssuerAlternativeName(_)
            | ParsedExtension::CRLDistributionPoints(_) => {}
            _ => self.unknown_critical |= extension.critical,
        }
    }

    /// Whether its issuer is itself.
    pub(super) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }

    /// Whether it is valid for this host. Common names count only if there is no DNS name, as in OpenSSL (RFC 6125,
    /// section 6.4.4).
    pub(super) fn is_for(&self, host: &str) -> bool {
        // An address matches only an address entry, never a DNS name that looks like one.
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return self
                .names
                .iter()
                .any(|name| matches!(name, SubjectAltName::Ip(known) if *known == address));
        }
        let mut has_dns = false;
        for name in &self.names {
            if let SubjectAltName::Dns(pattern) = name {
                has_dns = true;
                if matches_host(pattern, host) {
                    return true;
                }
            }
        }
        !has_dns
            && self
                .common_names
                .iter()
                .any(|pattern| matches_host(pattern, host))
    }
}

fn responder(access: &AuthorityInfoAccess<'_>) -> Option<String> {
    let ocsp = oid_registry::OID_PKIX_ACCESS_DESCRIPTOR_OCSP;
    let found = access.accessdescs.iter().find_map(|description| {
        match (&description.access_method, &description.access_location) {
            (method, GeneralName::URI(url)) if *method == ocsp => Some(*url),
            _ => None,
        }
    });
    found.map(str::to_owned)
}

fn name(name: &GeneralName<'_>) -> Option<SubjectAltName> {
    match name {
        GeneralName::DNSName(name) => Some(SubjectAltName::Dns((*name).to_owned())),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
            _ => None,
        }
        .map(SubjectAltName::Ip),
        _ => None,
    }
}

/// Whether a name, possibly with a wildcard as its first label, matches this host (RFC 6125, section 6.4). The
/// wildcard stands for exactly one label, and `*.com` is refused.
fn matches_host(pattern: &str, host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    match pattern.strip_prefix("*.") {
        None => pattern.eq_ignore_ascii_case(host),
        Some(domain) => host.split_once('.').is_some_and(|(label, rest)| {
            !label.is_empty() && domain.contains('.') && rest.eq_ignore_ascii_case(domain)
        }),
    }
}

impl SignedContent {
    /// Parses the structure of certificates, revocation lists and OCSP responses: `SEQUENCE { content,
    /// AlgorithmIdentifier, BIT STRING }`.
    pub(super) fn parse(der: &[u8]) -> Option<SignedContent> {
        let whole = DerElement::first(der)?;
        let content = DerElement::first(whole.content)?;
        let algorithm = DerElement::first(content.rest)?;
        let signature = DerElement::first(algorithm.rest)?;
        Some(SignedContent {
            // With its tag and length: the signature covers those too.
            content: content.whole.to_vec(),
            algorithm: algorithm.content.to_vec(),
            signature: signature.bits()?.to_vec(),
        })
    }
}

impl PublicKey {
    pub(super) fn parse(info: &[u8]) -> Option<PublicKey> {
        let whole = DerElement::first(info)?;
        let algorithm = DerElement::first(whole.content)?;
        let bits = DerElement::first(algorithm.rest)?;
        Some(PublicKey {
            info: info.to_vec(),
            algorithm: algorithm.content.to_vec(),
            bits: bits.bits()?.to_vec(),
        })
    }
}

/// A DER element: a tag, a length and that many bytes.
pub(super) struct DerElement<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    pub(super) whole: &'a [u8],
    pub(super) rest: &'a [u8],
}

impl<'a> DerElement<'a> {
    /// The first element. Tags of one byte and lengths of up to four are supported, which is all that certificates
    /// use.
    pub(super) fn first(bytes: &'a [u8]) -> Option<DerElement<'a>> {
        let (&tag, after_tag) = bytes.split_first()?;
        let (&first, after_first) = after_tag.split_first()?;
        let (length, header) = if first < 0x80 {
            (usize::from(first), 2)
        } else {
            let count = usize::from(first & 0x7f);
            // The indefinite length (0x80) is BER, not DER.
            if count == 0 || count > 4 {
                return None;
            }
            let digits = after_first.get(..count)?;
            let length = digits
                .iter()
                .fold(0_usize, |sum, digit| sum << 8 | usize::from(*digit));
            (length, 2 + count)
        };
        let end = header.checked_add(length)?;
        Some(DerElement {
            tag,
            content: bytes.get(header..end)?,
            whole: &bytes[..end],
            rest: &bytes[end..],
        })
    }

    /// The bytes of a bit string without unused bits, as in all keys and signatures.
    fn bits(&self) -> Option<&'a [u8]> {
        match (self.tag, self.content.split_first()) {
            (0x03, Some((0, bits))) => Some(bits),
            _ => None,
        }
    }
}

/// The values of a certificate that variables show. It is parsed at each use, because few requests need any.
pub struct CertificateView {
    der: CertificateDer<'static>,
}

impl CertificateView {
    /// The values of this certificate.
    pub fn of(der: CertificateDer<'static>) -> CertificateView {
        CertificateView { der }
    }

    fn with<T>(&self, show: impl FnOnce(&X509Certificate<'_>) -> Option<T>) -> Option<T> {
        let (_, certificate) = X509Certificate::from_der(&self.der).ok()?;
        show(&certificate)
    }

    /// The certificate in PEM, with LF as line end.
    pub fn pem(&self) -> String {
        super::pem::encode("CERTIFICATE", &self.der)
    }

    /// The subject in the form of RFC 2253.
    pub fn subject(&self) -> Option<String> {
        self.with(|certificate| Some(super::distinguished_names::rfc2253(certificate.subject())))
    }

    /// The issuer in the form of RFC 2253.
    pub fn issuer(&self) -> Option<String> {
        self.with(|certificate| Some(super::distinguished_names::rfc2253(certificate.issuer())))
    }

    /// The subject in OpenSSL's old form with slashes.
    pub fn subject_legacy(&self) -> Option<String> {
        self.with(|certificate| Some(super::distinguished_names::oneline(certificate.subject())))
    }

    /// The issuer in OpenSSL's old form with slashes.
    pub fn issuer_legacy(&self) -> Option<String> {
        self.with(|certificate| Some(super::distinguished_names::oneline(certificate.issuer())))
    }

    /// The serial number in hexadecimal digits.
    pub fn serial(&self) -> Option<String> {
        self.with(|certificate| {
            let serial = certificate.raw_serial();
            // A leading zero byte only keeps the INTEGER positive; OpenSSL does not show it.
            let zeros = serial.iter().take_while(|byte| **byte == 0).count();
            let digits = &serial[zeros.min(serial.len().saturating_sub(1))..];
            Some(digits.iter().map(|byte| format!("{byte:02X}")).collect())
        })
    }

    /// The SHA-1 of the encoded certificate, which identifies it and protects nothing.
    pub fn fingerprint(&self) -> String {
        let algorithm = &aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY;
        let digest = aws_lc_rs::digest::digest(algorithm, &self.der);
        digest
            .as_ref()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    /// The start of its validity, in OpenSSL's format.
    pub fn valid_from(&self) -> Option<String> {
        self.with(|certificate| Some(time(certificate.validity().not_before)))
    }

    /// The end of its validity.
    pub fn valid_until(&self) -> Option<String> {
        self.with(|certificate| Some(time(certificate.validity().not_after)))
    }

    /// Whole days until the end of its validity; 0 after it.
    pub fn days_left(&self) -> Option<u64> {
        let end = self.with(|certificate| Some(certificate.validity().not_after.timestamp()))?;
        let now = i64::try_from(rt::wall_millis() / 1000).ok()?;
        Some(u64::try_from(end - now).unwrap_or(0) / 86400)
    }
}

/// `Nov 21 10:42:31 2026 GMT`.
fn time(time: ASN1Time) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let time = time.to_datetime();
    format!(
        "{} {:2} {:02}:{:02}:{:02} {} GMT",
        MONTHS[(u8::from(time.month()) - 1) as usize % 12],
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.year()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_stand_for_one_label() {
        assert!(matches_host("*.example.com", "a.Example.com"));
        assert!(!matches_host("*.example.com", "a.b.example.com"));
        assert!(!matches_host("*.example.com", "example.com"));
        assert!(!matches_host("*.com", "example.com"));
        assert!(matches_host("example.com", "example.com."));
    }

    #[test]
    fn lengths_that_lie_are_no_elements() {
        assert!(DerElement::first(&[0x30]).is_none());
        assert!(DerElement::first(&[0x30, 3, 1, 1]).is_none());
        assert!(DerElement::first(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]).is_none());
        let element = DerElement::first(&[0x30, 1, 7, 9]).expect("whole");
        assert_eq!((element.content, element.rest), (&[7][..], &[9][..]));
    }
}
