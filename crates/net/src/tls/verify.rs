//! Verifies a peer's certificate.
//!
//! A handshake does not fail because of a certificate. As in nginx, the result is recorded, and the server answers
//! with an error page, or the proxy tries the next upstream. The messages are OpenSSL's, because logs, error pages
//! and `$ssl_client_verify` show them, and so are the rules: the path is built from the trusted certificates first
//! and then from what the peer sent; certificates of version 1 are accepted as leaves and as roots; the last fault
//! found is reported. OpenSSL also checks policies and the strength of keys, which is not done here beyond what the
//! cryptography library refuses. Name constraints are not examined either, so an authority that has them is
//! refused.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::*;

use super::certificate::{Certificate, SignedContent};
use super::config_error::TlsConfigError;
use super::content_digest::ContentDigest;
use super::pem;
use super::provider::algorithms;
use super::shared_by_name::SharedByName;

/// The result of verifying a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyResult {
    /// The peer sent none.
    Absent,
    /// It is valid.
    Good,
    /// It is not valid.
    Bad(VerifyError),
}

/// Why a certificate is not valid: OpenSSL's number and text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// `X509_V_ERR_…`; 0: OpenSSL has no number for it.
    pub number: u32,
    /// What `X509_verify_cert_error_string` says.
    pub text: &'static str,
}

impl fmt::Display for VerifyError {
    /// As logs have it: the number and the words, in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            0 => f.write_str(self.text),
            number => write!(f, "({number}:{})", self.text),
        }
    }
}

impl VerifyError {
    /// Whether the only fault is an unknown issuer: the numbers that nginx accepts for `optional_no_ca`.
    pub(super) fn is_unknown_issuer(self) -> bool {
        matches!(self.number, 18..=21 | 27)
    }
}

const fn fault(number: u32, text: &'static str) -> VerifyError {
    VerifyError { number, text }
}

const NO_CRL: VerifyError = fault(3, "unable to get certificate CRL");
const SIGNATURE: VerifyError = fault(7, "certificate signature failure");
const CRL_SIGNATURE: VerifyError = fault(8, "CRL signature failure");
const NOT_YET: VerifyError = fault(9, "certificate is not yet valid");
const EXPIRED: VerifyError = fault(10, "certificate has expired");
const CRL_NOT_YET: VerifyError = fault(11, "CRL is not yet valid");
const CRL_EXPIRED: VerifyError = fault(12, "CRL has expired");
const SELF_SIGNED: VerifyError = fault(18, "self-signed certificate");
const SELF_SIGNED_IN_CHAIN: VerifyError = fault(19, "self-signed certificate in certificate chain");
const NO_LOCAL_ISSUER: VerifyError = fault(20, "unable to get local issuer certificate");
const NO_ISSUER: VerifyError = fault(2, "unable to get issuer certificate");
const LEAF_UNVERIFIED: VerifyError = fault(21, "unable to verify the first certificate");
const TOO_LONG: VerifyError = fault(22, "certificate chain too long");
pub(super) const REVOKED: VerifyError = fault(23, "certificate revoked");
const PATH_LENGTH: VerifyError = fault(25, "path length constraint exceeded");
const PURPOSE: VerifyError = fault(26, "unsuitable certificate purpose");
const NOT_AN_AUTHORITY: VerifyError = fault(79, "invalid CA certificate");
const MAY_NOT_SIGN: VerifyError = fault(32, "key usage does not include certificate signing");
const MAY_NOT_SIGN_CRL: VerifyError = fault(35, "key usage does not include CRL signing");
const CRITICAL: VerifyError = fault(34, "unhandled critical extension");
const NAME_CONSTRAINTS: VerifyError = fault(51, "unsupported name constraint type");
const UNREADABLE: VerifyError = fault(1, "unspecified certificate verification error");

/// The longest path that is followed, whatever the settings say: each step costs a signature check, and the peer
/// chooses the certificates.
const MAX_PATH: usize = 32;
/// How many signatures one verification may check: certificates with the same name multiply the possible paths.
const MAX_SIGNATURES: usize = 100;

/// What a certificate is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificatePurpose {
    /// A client authenticates to a server.
    Client,
    /// A server authenticates to a client.
    Server,
}

/// The trusted certificates, and the rules for believing others.
pub struct TrustStore {
    /// By file. Files with the same content are one list in the process: a list of the system's authorities takes a
    /// megabyte.
    anchors: Vec<Arc<CertificateList>>,
    revocations: Vec<Arc<RevocationFile>>,
    /// Whether every certificate of a path must be covered by a revocation list.
    check_revocations: bool,
    /// How many certificates may be between a leaf and a root.
    depth: usize,
}

/// The certificates of a PEM text.
struct CertificateList(Vec<Certificate>);

/// The revocation lists of a PEM text.
struct RevocationFile(Vec<RevocationList>);

static CERTIFICATE_LISTS: LazyLock<SharedByName<ContentDigest, CertificateList>> =
    LazyLock::new(SharedByName::default);

static REVOCATION_FILES: LazyLock<SharedByName<ContentDigest, RevocationFile>> =
    LazyLock::new(SharedByName::default);

/// A certificate revocation list.
struct RevocationList {
    issuer: Vec<u8>,
    from: i64,
    until: Option<i64>,
    serials: HashSet<Vec<u8>>,
    signed: SignedContent,
    /// The key that signed it, once that is known. A list may have megabytes, and checking its signature then takes
    /// milliseconds: it is done once, not for each client.
    signer: OnceLock<Vec<u8>>,
}

impl TrustStore {
    /// Without any trusted certificate yet, for paths of this depth.
    pub fn without_anchors(depth: usize) -> TrustStore {
        TrustStore {
            anchors: Vec::new(),
            revocations: Vec::new(),
            check_revocations: false,
            depth: depth.min(MAX_PATH - 2),
        }
    }

    /// Adds the certificates of a PEM text; `name` is for messages.
    pub fn add_certificates(&mut self, text: &[u8], name: &str) -> Result<(), TlsConfigError> {
        let broken = || {
            TlsConfigError::new(format!(
                "cannot load certificate \"{name}\": PEM_read_bio_X509_AUX() failed \
                 (SSL: error:0480006C:PEM routines::no start line:Expecting: TRUSTED CERTIFICATE)"
            ))
        };
        let digest = ContentDigest::of([text]);
        if let Some(known) = CERTIFICATE_LISTS.find(&digest) {
            self.anchors.push(known);
            return Ok(());
        }
        let blocks = pem::parse(text).ok_or_else(broken)?;
        let blocks = blocks.iter().filter(|block| is_certificate(&block.label));
        let list: Option<Vec<Certificate>> = blocks
            .map(|block| Certificate::parse(&block.content))
            .collect();
        let list = list.filter(|list| !list.is_empty()).ok_or_else(broken)?;
        let list = Arc::new(CertificateList(list));
        CERTIFICATE_LISTS.insert(digest, &list);
        self.anchors.push(list);
        Ok(())
    }

    /// The trusted certificates.
    fn anchors(&self) -> impl Iterator<Item = &Certificate> {
        self.anchors.iter().flat_map(|list| &list.0)
    }

    /// The revocation lists.
    fn revocations(&self) -> impl Iterator<Item = &RevocationList> {
        self.revocations.iter().flat_map(|file| &file.0)
    }

    /// Adds a certificate in DER; `None` if it cannot be read.
    pub(super) fn add_der(&mut self, certificate: &CertificateDer<'_>) -> Option<()> {
        let list = CertificateList(vec![Certificate::parse(certificate)?]);
        self.anchors.push(Arc::new(list));
        Some(())
    }

    /// Adds the revocation lists of a PEM text, and from then on demands one for every certificate of a path. The
    /// trusted certificates must be added before.
    pub fn add_revocations(&mut self, text: &[u8], name: &str) -> Result<(), TlsConfigError> {
        let broken = || {
            TlsConfigError::new(format!(
                "cannot load CRL \"{name}\": PEM_read_bio_X509_CRL() failed \
                 (SSL: error:0480006C:PEM routines::no start line:Expecting: X509 CRL)"
            ))
        };
        let digest = ContentDigest::of([text]);
        let file = match REVOCATION_FILES.find(&digest) {
            Some(known) => known,
            None => {
                let blocks = pem::parse(text).ok_or_else(broken)?;
                let lists = blocks.iter().filter(|block| block.label == "X509 CRL");
                let lists: Option<Vec<RevocationList>> = lists
                    .map(|block| RevocationList::parse(&block.content))
                    .collect();
                let lists = lists.filter(|lists| !lists.is_empty());
                let file = Arc::new(RevocationFile(lists.ok_or_else(broken)?));
                REVOCATION_FILES.insert(digest, &file);
                file
            }
        };
        self.revocations.push(file);
        let algorithms = algorithms();
        for list in self.revocations() {
            let issuers = self.anchors();
            // The signer is determined now, not in the first handshake. Only lists of intermediate authorities,
            // which clients send, are left for later.
            let _ = issuers
                .filter(|anchor| anchor.subject == list.issuer)
                .any(|anchor| list.is_signed_by(anchor, &algorithms));
        }
        self.check_revocations = true;
        Ok(())
    }

    /// The encoded subjects of the trusted certificates, for the server's certificate request.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &[u8]> {
        self.anchors().map(|anchor| &anchor.subject[..])
    }

    /// The path from the leaf of a chain to a trusted certificate, or as far as it goes.
    pub(super) fn build_path(&self, chain: &[CertificateDer<'_>], now: i64) -> Vec<Certificate> {
        let mut sent = chain.iter().take(MAX_PATH + 1);
        let Some(leaf) = sent.next().and_then(|der| Certificate::parse(der)) else {
            return Vec::new();
        };
        let others: Vec<Certificate> = sent.filter_map(|der| Certificate::parse(der)).collect();
        let mut examination = PathVerification::new(self);
        let path = examination.build(&leaf, &others, now);
        path.into_iter().cloned().collect()
    }

    /// The issuer of a chain's leaf, in DER: from the chain, or a trusted certificate.
    pub fn issuer_of(&self, chain: &[CertificateDer<'_>]) -> Option<Vec<u8>> {
        let leaf = Certificate::parse(chain.first()?)?;
        let others: Vec<Certificate> = chain[1..]
            .iter()
            .take(MAX_PATH)
            .filter_map(|der| Certificate::parse(der))
            .collect();
        let mut examination = PathVerification::new(self);
        let mut candidates = others.iter().chain(self.anchors());
        let issuer = candidates.find(|issuer| {
            issuer.subject == leaf.issuer && examination.is_signed_by(&leaf, issuer)
        })?;
        Some(issuer.der.clone())
    }

    /// Verifies a chain, leaf first, at a time in seconds.
    pub fn verify_chain(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: CertificatePurpose,
        now: i64,
    ) -> VerifyResult {
        let Some(leaf) = chain.first() else {
            return VerifyResult::Absent;
        };
        let Some(leaf) = Certificate::parse(leaf) else {
            return VerifyResult::Bad(UNREADABLE);
        };
        let others: Vec<Certificate> = chain[1..]
            .iter()
            .take(MAX_PATH)
            .filter_map(|der| Certificate::parse(der))
            .collect();
        let mut examination = PathVerification::new(self);
        examination.run(&leaf, &others, purpose, now);
        match examination.fault {
            None => VerifyResult::Good,
            Some(fault) => VerifyResult::Bad(fault),
        }
    }
}

fn is_certificate(label: &str) -> bool {
    matches!(
        label,
        "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE"
    )
}

impl RevocationList {
    fn parse(der: &[u8]) -> Option<RevocationList> {
        let (_, list) = CertificateRevocationList::from_der(der).ok()?;
        Some(RevocationList {
            issuer: list.issuer().as_raw().to_vec(),
            from: list.last_update().timestamp(),
            until: list.next_update().map(|time| time.timestamp()),
            serials: list
                .iter_revoked_certificates()
                .map(|revoked| revoked.raw_serial().to_vec())
                .collect(),
            signed: SignedContent::parse(der)?,
            signer: OnceLock::new(),
        })
    }

    /// Whether the key of `issuer` signed this list. There is only one such key, so once it is known no other is
    /// tried.
    fn is_signed_by(&self, issuer: &Certificate, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        let key = &issuer.key.info;
        if let Some(signer) = self.signer.get() {
            return signer == key;
        }
        let good = is_signed(&self.signed, issuer, algorithms);
        if good {
            // An error means that another loop has found the same.
            let _ = self.signer.set(key.clone());
        }
        good
    }
}

struct PathVerification<'a> {
    trust: &'a TrustStore,
    algorithms: WebPkiSupportedAlgorithms,
    signatures: usize,
    /// The last fault found, which OpenSSL reports too.
    fault: Option<VerifyError>,
}

impl<'a> PathVerification<'a> {
    fn new(trust: &'a TrustStore) -> PathVerification<'a> {
        PathVerification {
            trust,
            algorithms: algorithms(),
            signatures: 0,
            fault: None,
        }
    }

    fn found(&mut self, error: VerifyError) {
        self.fault = Some(error);
    }

    fn run(
        &mut self,
        leaf: &'a Certificate,
        others: &'a [Certificate],
        purpose: CertificatePurpose,
        now: i64,
    ) {
        let path = self.build(leaf, others, now);
        // In OpenSSL's order: the last fault is the one that is reported.
        self.check_uses(&path, purpose);
        if self.trust.check_revocations {
            self.check_revocations(&path, now);
        }
        self.check_signatures(&path, now);
    }

    /// Builds the path from the leaf to a trusted certificate, or as far as it goes.
    fn build(
        &mut self,
        leaf: &'a Certificate,
        others: &'a [Certificate],
        now: i64,
    ) -> Vec<&'a Certificate> {
        let trust = self.trust;
        let mut path = vec![leaf];
        let mut all_sent = true;
        loop {
            let last = path[path.len() - 1];
            // A root, trusted or not, ends the path.
            if last.is_self_issued() && self.is_signed_by(last, last) {
                if trust.anchors().any(|anchor| anchor.der == last.der) {
                    return path;
                }
                let alone = path.len() == 1;
                self.found(if alone {
                    SELF_SIGNED
                } else {
                    SELF_SIGNED_IN_CHAIN
                });
                return path;
            }
            // Before looking for the next issuer: the limit also ends a cycle of certificates.
            if path.len() > trust.depth + 1 {
                // In OpenSSL's order: behind it there is no issuer either.
                self.found(TOO_LONG);
                self.found(if all_sent { NO_LOCAL_ISSUER } else { NO_ISSUER });
                return path;
            }
            let issuer = self.issuer_among(last, trust.anchors(), &path, now);
            let sent = || others.iter();
            match issuer {
                Some(issuer) => {
                    all_sent = false;
                    path.push(issuer);
                }
                // Once the path has reached a trusted certificate, it must not return to those that the peer sent.
                None => match self.issuer_among(last, sent(), &path, now) {
                    Some(issuer) if all_sent => path.push(issuer),
                    _ => {
                        self.found(if all_sent { NO_LOCAL_ISSUER } else { NO_ISSUER });
                        return path;
                    }
                },
            }
        }
    }

    /// The best candidate for the issuer of `of`: one whose key made the signature, and if possible one that is
    /// valid now. Several may have the same name, for example after a renewal.
    fn issuer_among(
        &mut self,
        of: &Certificate,
        among: impl Iterator<Item = &'a Certificate>,
        path: &[&'a Certificate],
        now: i64,
    ) -> Option<&'a Certificate> {
        let mut best: Option<(&Certificate, u32)> = None;
        for candidate in among {
            let names_fit = candidate.subject == of.issuer
                && match (&candidate.key_id, &of.issuer_key_id) {
                    (Some(own), Some(wanted)) => own == wanted,
                    _ => true,
                };
            // A certificate already in the path is skipped, so that a cycle ends.
            if !names_fit || path.iter().any(|known| known.der == candidate.der) {
                continue;
            }
            let valid = (candidate.not_before..=candidate.not_after).contains(&now);
            let rank = u32::from(self.is_signed_by(of, candidate)) * 2 + u32::from(valid);
            if best.is_none_or(|(_, known)| rank > known) {
                best = Some((candidate, rank));
            }
        }
        best.map(|(certificate, _)| certificate)
    }

    fn is_signed_by(&mut self, certificate: &Certificate, issuer: &Certificate) -> bool {
        self.signatures += 1;
        // Beyond the limit nothing counts as signed: the verification fails rather than costs more.
        self.signatures <= MAX_SIGNATURES
            && is_signed(&certificate.signed, issuer, &self.algorithms)
    }

    fn check_uses(&mut self, path: &[&Certificate], purpose: CertificatePurpose) {
        for (index, certificate) in path.iter().enumerate() {
            if certificate.unknown_critical {
                self.found(CRITICAL);
            }
            let fits = certificate.purposes.is_none_or(|purposes| match purpose {
                CertificatePurpose::Client => purposes.client,
                CertificatePurpose::Server => purposes.server,
            });
            // The leaf must be able to sign a handshake or agree on a key.
            if index == 0 {
                let signs = certificate
                    .key_usage
                    .is_none_or(|uses| uses.digital_signature || uses.key_agreement);
                if !fits || !signs {
                    self.found(PURPOSE);
                }
                continue;
            }
            if !fits {
                self.found(PURPOSE);
            }
            self.check_authority(certificate, path, index);
        }
    }

    fn check_authority(&mut self, authority: &Certificate, path: &[&Certificate], index: usize) {
        let old_root = authority.version < 3 && authority.is_self_issued();
        if !(authority.authority == Some(true) || authority.authority.is_none() && old_root) {
            self.found(NOT_AN_AUTHORITY);
        }
        if authority
            .key_usage
            .is_some_and(|uses| !uses.certificate_sign)
        {
            self.found(MAY_NOT_SIGN);
        }
        // pathLenConstraint counts the intermediate certificates below that are not self-issued, without the leaf
        // (RFC 5280, section 4.2.1.9).
        let below = path[1..index]
            .iter()
            .filter(|certificate| !certificate.is_self_issued())
            .count();
        if authority
            .path_length
            .is_some_and(|most| below > most as usize)
        {
            self.found(PATH_LENGTH);
        }
        // Constraints that are not examined must not be ignored (RFC 5280, section 4.2.1.10).
        if authority.name_constraints {
            self.found(NAME_CONSTRAINTS);
        }
    }

    /// Checks every certificate of the path against the lists. As in OpenSSL, even the root needs its own list.
    fn check_revocations(&mut self, path: &[&Certificate], now: i64) {
        for (index, certificate) in path.iter().enumerate() {
            let issuer = path.get(index + 1).unwrap_or(certificate);
            let trust = self.trust;
            // The newest list that is still valid, or else the newest.
            let list = trust
                .revocations()
                .filter(|list| list.issuer == certificate.issuer)
                .max_by_key(|list| (list.until.is_none_or(|until| now <= until), list.from));
            match list {
                None => self.found(NO_CRL),
                Some(list) => self.check_list(list, certificate, issuer, now),
            }
        }
    }

    fn check_list(
        &mut self,
        list: &RevocationList,
        certificate: &Certificate,
        issuer: &Certificate,
        now: i64,
    ) {
        if issuer.key_usage.is_some_and(|uses| !uses.crl_sign) {
            self.found(MAY_NOT_SIGN_CRL);
        }
        if now < list.from {
            self.found(CRL_NOT_YET);
        }
        if list.until.is_some_and(|until| now > until) {
            self.found(CRL_EXPIRED);
        }
        self.signatures += 1;
        // An unsigned list is a fault of its own, but its entries still count: to be strict is safe here.
        if self.signatures > MAX_SIGNATURES || !list.is_signed_by(issuer, &self.algorithms) {
            self.found(CRL_SIGNATURE);
        }
        if list.serials.contains(&certificate.serial) {
            self.found(REVOKED);
        }
    }

    fn check_signatures(&mut self, path: &[&Certificate], now: i64) {
        // From the root to the leaf, as OpenSSL does, so that a fault of the leaf is reported last.
        for (index, certificate) in path.iter().enumerate().rev() {
            let issuer = match path.get(index + 1) {
                Some(issuer) => Some(*issuer),
                None if certificate.is_self_issued() => None,
                None => {
                    if path.len() == 1 {
                        self.found(LEAF_UNVERIFIED);
                    }
                    None
                }
            };
            if issuer.is_some_and(|issuer| !self.is_signed_by(certificate, issuer)) {
                self.found(SIGNATURE);
            }
            if now < certificate.not_before {
                self.found(NOT_YET);
            }
            if now > certificate.not_after {
                self.found(EXPIRED);
            }
        }
    }
}

/// Whether the key of `issuer` made this signature. The algorithm comes from the signed object, and must fit the
/// key.
pub(super) fn is_signed(
    signed: &SignedContent,
    issuer: &Certificate,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    algorithms.all.iter().any(|algorithm| {
        algorithm.signature_alg_id().as_ref() == signed.algorithm
            && algorithm.public_key_alg_id().as_ref() == issuer.key.algorithm
            && algorithm
                .verify_signature(&issuer.key.bits, &signed.content, &signed.signature)
                .is_ok()
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
        DnType, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
    };

    use super::*;

    /// An authority; all have the same name.
    fn authority() -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().expect("random bytes");
        CertifiedIssuer::self_signed(params, key).expect("a key that signs")
    }

    fn client(serial: u64, issuer: &CertifiedIssuer<'static, KeyPair>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["client".to_owned()]).expect("a name");
        params.serial_number = Some(SerialNumber::from(serial));
        let key = KeyPair::generate().expect("random bytes");
        let signed = params.signed_by(&key, issuer).expect("a key that signs");
        signed.der().clone()
    }

    fn list(serials: std::ops::Range<u64>, issuer: &CertifiedIssuer<'static, KeyPair>) -> String {
        let revoked = |serial| RevokedCertParams {
            serial_number: SerialNumber::from(serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2094, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(issuer).expect("a key that signs");
        list.pem().expect("it is text")
    }

    #[test]
    fn a_long_list_is_examined_once_and_not_for_each_client() {
        let (issuer, other) = (authority(), authority());
        let mut trust = TrustStore::without_anchors(1);
        trust
            .add_certificates(issuer.pem().as_bytes(), "ca")
            .expect("a certificate");
        let text = list(1000..51_000, &issuer);
        trust
            .add_revocations(text.as_bytes(), "crl")
            .expect("a list");
        let list = trust.revocations().next().expect("it was added");
        assert!(list.signer.get().is_some());
        let now = 1_800_000_000;
        let examine = |leaf| trust.verify_chain(&[leaf], CertificatePurpose::Client, now);
        assert_eq!(examine(client(7, &issuer)), VerifyResult::Good);
        assert_eq!(examine(client(2000, &issuer)), VerifyResult::Bad(REVOKED));
        // Of an authority with the same name the list says nothing.
        let same_name = Certificate::parse(other.der()).expect("a certificate");
        assert!(!list.is_signed_by(&same_name, &algorithms()));
    }
}
