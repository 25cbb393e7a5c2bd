//! A certificate chain with its private key.
//!
//! `data:…` stands for the content of a file, as in nginx. For an encrypted key each password is tried.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock, OnceLock};

use bstr::{BStr, ByteSlice};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer,
};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};

use super::certificate::Certificate;
use super::checked_pairs;
use super::config_error::TlsConfigError;
use super::content_digest::ContentDigest;
use super::ocsp::OcspStaple;
use super::provider::provider;
use super::shared_by_name::SharedByName;
use super::{encrypted_key, pem};

/// The longest password in bytes; nginx's bound.
const MAX_PASSWORD: usize = 4096;

/// The identities that are in use, by content: servers share them, and so do the configurations before and after a
/// reload.
static IDENTITIES: LazyLock<SharedByName<ContentDigest, TlsIdentity>> =
    LazyLock::new(SharedByName::default);

/// A chain, leaf first, with the leaf's private key.
pub struct TlsIdentity {
    pub(super) key: Arc<CertifiedKey>,
    /// The end of the certificate's validity, in seconds since 1970; parsed on first use.
    pub(super) end: OnceLock<Option<u64>>,
    /// The key was encrypted, so it is not cached in decrypted form.
    pub(super) secret: bool,
    /// The source of OCSP responses to send along with it (stapling).
    pub(super) staple: Option<Arc<OcspStaple>>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

impl TlsIdentity {
    /// The end of the certificate's validity, in seconds since 1970.
    pub fn certificate_end(&self) -> Option<u64> {
        let read = || {
            let (_, certificate) =
                x509_parser::parse_x509_certificate(self.key.cert.first()?).ok()?;
            u64::try_from(certificate.validity().not_after.timestamp()).ok()
        };
        *self.end.get_or_init(read)
    }

    /// Loads a certificate and a key, each from a path or from `data:` and the text itself; `read` reads files.
    pub fn load(
        certificate: &BStr,
        key: &BStr,
        passwords: &[Vec<u8>],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Arc<TlsIdentity>, TlsConfigError> {
        Self::load_unless(certificate, key, passwords, read, |_, _| None)
    }

    /// As [`TlsIdentity::load`], for a certificate of the configuration. Files with the same content are one
    /// identity, also across a reload. Whether certificate and key belong together is checked once: a worker is a copy
    /// of the master that has tested the configuration, so it parses a key when the first client needs it.
    pub fn load_shared(
        certificate: &BStr,
        key: &BStr,
        passwords: &[Vec<u8>],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Arc<TlsIdentity>, TlsConfigError> {
        let mut content = None;
        let known = |certificate: &[u8], key: &[u8]| {
            let digest = ContentDigest::of([certificate, key].into_iter().chain(texts(passwords)));
            content = Some(digest);
            IDENTITIES.find(&digest).or_else(|| {
                let algorithm = checked_pairs::is_checked(&digest)?;
                let identity = Self::unparsed(certificate, key, passwords, algorithm)?;
                IDENTITIES.insert(digest, &identity);
                Some(identity)
            })
        };
        let identity = Self::load_unless(certificate, key, passwords, read, known)?;
        if let Some(digest) = content {
            checked_pairs::note_checked(digest, identity.key.key.algorithm());
            IDENTITIES.insert(digest, &identity);
        }
        Ok(identity)
    }

    /// An identity of these texts, whose key is parsed when it is first used.
    fn unparsed(
        certificate: &[u8],
        key: &[u8],
        passwords: &[Vec<u8>],
        algorithm: SignatureAlgorithm,
    ) -> Option<Arc<TlsIdentity>> {
        let chain = chain(certificate)?;
        let (der, secret) = key_of_pem(key, passwords).ok()?;
        let key = Arc::new(UnparsedKey {
            der,
            algorithm,
            parsed: OnceLock::new(),
        });
        Some(Arc::new(TlsIdentity {
            end: OnceLock::new(),
            key: Arc::new(CertifiedKey::new(chain, key)),
            secret,
            staple: None,
        }))
    }

    /// Loads both, unless `known` has an identity of these texts.
    fn load_unless(
        certificate: &BStr,
        key: &BStr,
        passwords: &[Vec<u8>],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
        known: impl FnOnce(&[u8], &[u8]) -> Option<Arc<TlsIdentity>>,
    ) -> Result<Arc<TlsIdentity>, TlsConfigError> {
        // OpenSSL's `store:file:` is just a file.
        let key = key.strip_prefix(b"store:file:").map_or(key, BStr::new);
        let is_elsewhere = key.starts_with(b"engine:") || key.starts_with(b"store:");
        let text = text_of("certificate", certificate, read)?;
        let key_text = match is_elsewhere {
            true => Ok(Vec::new()),
            false => text_of("certificate key", key, read),
        };
        if let Ok(key_text) = &key_text
            && !is_elsewhere
            && let Some(identity) = known(&text, key_text)
        {
            return Ok(identity);
        }
        // What is wrong with the certificate is said first, even if there is no key.
        let chain = chain(&text).ok_or_else(|| {
            TlsConfigError::new(format!(
                "cannot load certificate \"{}\": PEM_read_bio_X509_AUX() failed \
                 (SSL: error:0480006C:PEM routines::no start line:Expecting: TRUSTED CERTIFICATE)",
                shown(certificate)
            ))
        })?;
        if is_elsewhere {
            return Err(TlsConfigError::new(format!(
                "cannot load certificate key \"{key}\": keys in engines and stores are not supported"
            )));
        }
        let key_text = key_text?;
        let key = shown(key);
        let bad = |why: &str| {
            TlsConfigError::new(format!(
                "cannot load certificate key \"{key}\": PEM_read_bio_PrivateKey() failed ({why})"
            ))
        };
        let (signing, secret) = signing_key(&key_text, passwords).map_err(|why| bad(&why))?;
        // Checked at load time: otherwise every handshake would fail with a message that names no file.
        if !belongs(&chain, &*signing) {
            return Err(TlsConfigError::new(format!(
                "SSL_CTX_use_PrivateKey(\"{key}\") failed \
                 (SSL: error:05800074:x509 certificate routines::key values mismatch)"
            )));
        }
        let key = Arc::new(CertifiedKey::new(chain, signing));
        Ok(Arc::new(TlsIdentity {
            end: OnceLock::new(),
            key,
            secret,
            staple: None,
        }))
    }

    /// Keeps the last certificate for each kind of key (RSA, ECDSA), which is the one that OpenSSL would use.
    pub fn last_of_each_kind(identities: Vec<Arc<TlsIdentity>>) -> Vec<Arc<TlsIdentity>> {
        let mut kept: Vec<Arc<TlsIdentity>> = Vec::new();
        for identity in identities {
            let kind = identity.key.key.algorithm();
            match kept
                .iter_mut()
                .find(|known| known.key.key.algorithm() == kind)
            {
                Some(known) => *known = identity,
                None => kept.push(identity),
            }
        }
        kept
    }

    /// The same identity with this OCSP response stapled to it (`ssl_stapling_file`).
    pub fn with_ocsp(&self, response: Vec<u8>) -> Arc<TlsIdentity> {
        let mut key = CertifiedKey::clone(&self.key);
        key.ocsp = (!response.is_empty()).then_some(response);
        Arc::new(TlsIdentity {
            end: OnceLock::new(),
            key: Arc::new(key),
            secret: self.secret,
            staple: None,
        })
    }

    /// The same identity with OCSP responses that are fetched.
    pub fn with_staple(&self, staple: Arc<OcspStaple>) -> Arc<TlsIdentity> {
        Arc::new(TlsIdentity {
            end: OnceLock::new(),
            key: Arc::clone(&self.key),
            secret: self.secret,
            staple: Some(staple),
        })
    }

    /// The chain and key with the OCSP response that is stapled at present.
    pub(super) fn certified(&self) -> Arc<CertifiedKey> {
        let staple = self.staple.as_ref();
        staple
            .and_then(|staple| staple.stapled_key(&self.key))
            .unwrap_or_else(|| Arc::clone(&self.key))
    }

    /// The chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }

    /// The source of stapled OCSP responses.
    pub(super) fn staple(&self) -> Option<&Arc<OcspStaple>> {
        self.staple.as_ref()
    }

    /// The leaf certificate in DER.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }

    /// Whether a signature takes so long that other connections of the loop would notice: RSA keys of more than
    /// 2048 bits.
    pub(super) fn is_slow(&self) -> bool {
        /// The length in bytes that the `SubjectPublicKeyInfo` of a 2048-bit RSA key does not exceed.
        const RSA_2048: usize = 300;
        let length = |key: &dyn SigningKey| key.public_key().map_or(0, |info| info.as_ref().len());
        self.key.key.algorithm() == SignatureAlgorithm::RSA && length(&*self.key.key) > RSA_2048
    }

    /// The signature scheme it uses with a peer that offers these.
    pub(super) fn scheme(&self, offered: &[SignatureScheme]) -> Option<SignatureScheme> {
        Some(self.key.key.choose_scheme(offered)?.scheme())
    }
}

fn texts(passwords: &[Vec<u8>]) -> impl Iterator<Item = &[u8]> {
    passwords.iter().map(Vec::as_slice)
}

/// A key that is parsed when it is first used. Parsing an RSA key checks its arithmetic, which takes a third of a
/// millisecond: with thousands of servers, most of a start.
struct UnparsedKey {
    der: PrivateKeyDer<'static>,
    algorithm: SignatureAlgorithm,
    /// `None` in it cannot be: the key was parsed when the configuration was tested.
    parsed: OnceLock<Option<Arc<dyn SigningKey>>>,
}

impl fmt::Debug for UnparsedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnparsedKey").finish_non_exhaustive()
    }
}

impl UnparsedKey {
    fn parsed(&self) -> Option<&Arc<dyn SigningKey>> {
        let parse = || {
            let keys = provider().key_provider;
            keys.load_private_key(self.der.clone_key()).ok()
        };
        self.parsed.get_or_init(parse).as_ref()
    }
}

impl SigningKey for UnparsedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.parsed()?.choose_scheme(offered)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.parsed()?.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.algorithm
    }
}

/// The argument as messages show it. The text after `data:` may be a private key, which must not be logged.
fn shown(word: &BStr) -> &BStr {
    match word.starts_with(b"data:") {
        true => "data:...".into(),
        false => word,
    }
}

/// The content of a file, or the text after `data:`.
fn text_of(
    what: &str,
    word: &BStr,
    read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
) -> Result<Vec<u8>, TlsConfigError> {
    if let Some(data) = word.strip_prefix(b"data:") {
        return Ok(data.to_vec());
    }
    load_file(what, &word.to_path_lossy(), read)
}

/// The content of a file. `what` names its kind in the error message, such as `CRL`.
pub fn load_file(
    what: &str,
    path: &Path,
    read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
) -> Result<Vec<u8>, TlsConfigError> {
    read(path).map_err(|error| {
        TlsConfigError::new(format!(
            "cannot load {what} \"{}\": open() failed {}",
            path.display(),
            base::text::errno_text(&error)
        ))
    })
}

/// The certificates of a PEM text.
pub(super) fn chain(text: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let mut chain = Vec::new();
    for block in pem::parse(text)? {
        let der = match block.label.as_str() {
            "CERTIFICATE" | "X509 CERTIFICATE" => block.content,
            // In this format the certificate is followed by OpenSSL's trust settings, which are cut off.
            "TRUSTED CERTIFICATE" => {
                let element = super::certificate::DerElement::first(&block.content)?;
                element.whole.to_vec()
            }
            _ => continue,
        };
        chain.push(CertificateDer::from(der));
    }
    (!chain.is_empty()).then_some(chain)
}

/// The first private key of a PEM text, ready to sign, and whether it was encrypted.
pub(super) fn signing_key(
    text: &[u8],
    passwords: &[Vec<u8>],
) -> Result<(Arc<dyn SigningKey>, bool), String> {
    let (der, secret) = key_of_pem(text, passwords)?;
    provider()
        .key_provider
        .load_private_key(der)
        .map(|key| (key, secret))
        .map_err(|error| error.to_string())
}

/// The first private key of a PEM text, and whether it was encrypted.
pub(super) fn key_of_pem(
    text: &[u8],
    passwords: &[Vec<u8>],
) -> Result<(PrivateKeyDer<'static>, bool), String> {
    let blocks = pem::parse(text).ok_or("SSL: error:04800064:PEM routines::bad base64 decode")?;
    for block in blocks {
        let encrypted = block
            .headers
            .iter()
            .any(|(name, value)| name == "Proc-Type" && value.contains("ENCRYPTED"));
        let secret = encrypted || block.label == "ENCRYPTED PRIVATE KEY";
        let der = if block.label == "ENCRYPTED PRIVATE KEY" {
            let der = encrypted_key::pkcs8(&block.content, passwords)?;
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(der))
        } else {
            let content = match encrypted {
                true => encrypted_key::legacy(&block, passwords)?,
                false => block.content,
            };
            match block.label.as_str() {
                "PRIVATE KEY" => PrivateKeyDer::Pkcs8(content.into()),
                "RSA PRIVATE KEY" => PrivateKeyDer::Pkcs1(content.into()),
                "EC PRIVATE KEY" => PrivateKeyDer::Sec1(content.into()),
                _ => continue,
            }
        };
        return Ok((der, secret));
    }
    Err("SSL: error:0480006C:PEM routines::no start line:Expecting: ANY PRIVATE KEY".to_owned())
}

/// Whether the leaf has the public key that belongs to this private key.
pub(super) fn belongs(chain: &[CertificateDer<'_>], key: &dyn SigningKey) -> bool {
    match (Certificate::parse(&chain[0]), key.public_key()) {
        (Some(leaf), Some(public)) => {
            let bits = |info: &[u8]| Some(super::certificate::PublicKey::parse(info)?.bits);
            bits(&leaf.key.info) == bits(public.as_ref())
        }
        // A key that cannot be compared is accepted: a mismatch then shows in the first handshake.
        _ => true,
    }
}

/// Parses an `ssl_password_file`: one password per line.
pub fn read_passwords(text: &[u8], name: &str) -> Result<Vec<Vec<u8>>, TlsConfigError> {
    let lines = text
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii_end);
    let passwords: Vec<Vec<u8>> = lines
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect();
    if passwords
        .iter()
        .any(|password| password.len() > MAX_PASSWORD)
    {
        return Err(TlsConfigError::new(format!(
            "too long password in \"{name}\""
        )));
    }
    Ok(passwords)
}
