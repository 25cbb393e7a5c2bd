//! Certificates that a script chooses or builds while a client waits: it gets a [`HandshakeOffer`] and changes what the
//! client will be shown.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};

use super::accept::ReceivedHello;
use super::certificate::DerElement;
use super::ciphers::TlsProtocols;
use super::config_error::TlsConfigError;
use super::external_sessions::KeptSession;
use super::identity::{self, TlsIdentity};
use super::provider::provider;
use super::server::{ClientCertificates, ServerSettings};
use super::verify::TrustStore;

/// What a client asks for, and what it will be shown.
pub struct HandshakeOffer {
    /// The server name that the client asks for (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// The version that will be negotiated, as on the wire: 0x303 for TLS 1.2, 0x304 for 1.3.
    pub version: u16,
    /// The numbers of the cipher suites that the client offers, in its order.
    pub ciphers: Vec<u16>,
    /// The configured certificates.
    pub known: Vec<Arc<TlsIdentity>>,
    /// The certificates it will be shown; `None`: the configured ones.
    pub chosen: Option<Vec<Arc<TlsIdentity>>>,
    /// The extensions of the hello in their order, with their contents.
    pub extensions: Vec<(u16, Vec<u8>)>,
    /// The session that is asked for or was created.
    pub session: Option<KeptSession>,
    /// The random bytes of the hello.
    pub client_random: Vec<u8>,
    /// The numbers of the cipher suites that the settings allow.
    pub own_ciphers: Vec<u16>,
    /// If set, the client is asked for a certificate, which is verified against this instead of what is configured.
    pub client_certificates: Option<ClientCertificates>,
    /// The versions that are allowed instead of the configured ones.
    pub protocols: Option<TlsProtocols>,
}

/// What hooks have decided for one handshake.
#[derive(Default)]
pub struct HandshakeChoice {
    /// The certificates that are shown; `None`: those of the settings.
    pub identities: Option<Vec<Arc<TlsIdentity>>>,
    /// See [`HandshakeOffer::client_certificates`].
    pub client_certificates: Option<ClientCertificates>,
    /// See [`HandshakeOffer::protocols`].
    pub protocols: Option<TlsProtocols>,
}

impl HandshakeChoice {
    /// The settings of this handshake, if they are others than the server's own.
    pub fn settings(
        &mut self,
        own: &ServerSettings,
    ) -> Result<Option<ServerSettings>, TlsConfigError> {
        match (self.client_certificates.take(), self.protocols) {
            (None, None) => Ok(None),
            (wanted, protocols) => own.changed(wanted, protocols).map(Some),
        }
    }
}

/// Has a say in the handshakes of a server. `R` is what an engine knows a client by before its handshake is done.
pub type HandshakeHandler<R> =
    for<'a> fn(
        &'a mut R,
        HandshakePhase,
        Rc<RefCell<HandshakeOffer>>,
    ) -> Pin<Box<dyn Future<Output = Result<(), HandshakeRefused>> + 'a>>;

/// A handshake is not to be completed. Why was logged then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeRefused;

/// The points of a handshake at which a script runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePhase {
    /// The hello was read, and no server is selected by its name yet.
    Hello,
    /// The server is known, and its certificate is to be chosen.
    Certificate,
    /// The client wants to resume a session, which an external store may have.
    SessionWanted,
    /// A session was created, for an external store to keep.
    SessionMade,
}

impl HandshakeOffer {
    /// The offer for this hello: by these settings, if they are known already, and with `identities` if the
    /// certificates depend on the client.
    pub fn new(
        hello: &ReceivedHello,
        settings: Option<&ServerSettings>,
        identities: Option<&[Arc<TlsIdentity>]>,
    ) -> HandshakeOffer {
        let of_settings = settings.map(ServerSettings::identities);
        let newest = settings.is_none_or(ServerSettings::speaks_1_3);
        let ciphers = hello.offered_ciphers();
        let wants = hello.offers_1_3();
        let extensions = hello.raw().extensions().unwrap_or_default();
        HandshakeOffer {
            server_name: hello.server_name().map(Into::into),
            version: if newest && wants { 0x304 } else { 0x303 },
            ciphers: ciphers.to_vec(),
            known: identities.or(of_settings).unwrap_or_default().to_vec(),
            chosen: None,
            extensions: extensions
                .into_iter()
                .map(|(kind, content)| (kind, content.to_vec()))
                .collect(),
            session: None,
            client_random: hello.raw().random().to_vec(),
            own_ciphers: settings.map(ServerSettings::ciphers).unwrap_or_default(),
            client_certificates: None,
            protocols: None,
        }
    }

    /// An offer that is only about a session.
    pub fn for_session(server_name: Option<Box<str>>, session: KeptSession) -> HandshakeOffer {
        HandshakeOffer {
            server_name,
            // Only TLS 1.2 sessions are stored externally.
            version: 0x303,
            ciphers: Vec::new(),
            known: Vec::new(),
            chosen: None,
            extensions: Vec::new(),
            session: Some(session),
            client_random: Vec::new(),
            own_ciphers: Vec::new(),
            client_certificates: None,
            protocols: None,
        }
    }

    /// Takes what was decided.
    pub fn take_choice(&mut self) -> HandshakeChoice {
        HandshakeChoice {
            protocols: self.protocols,
            identities: self.chosen.take(),
            client_certificates: self.client_certificates.take(),
        }
    }

    /// Sends this OCSP response along with whichever certificate the client will be shown; none if it is empty.
    pub fn staple(&mut self, response: &[u8]) {
        let shown = self.chosen.take().unwrap_or_else(|| self.known.clone());
        let stapled = shown.iter().map(|one| one.with_ocsp(response.to_vec()));
        self.chosen = Some(stapled.collect());
    }

    /// Adds a certificate. It replaces one with the same kind of key, as a second `ssl_certificate` does.
    pub fn add_identity(&mut self, identity: Arc<TlsIdentity>) {
        let chosen = self.chosen.take().unwrap_or_else(|| self.known.clone());
        let all = chosen.into_iter().chain([identity]).collect();
        self.chosen = Some(TlsIdentity::last_of_each_kind(all));
    }
}

/// A certificate chain without a key, leaf first.
#[derive(Clone)]
pub struct CertificateChain(Vec<CertificateDer<'static>>);

impl CertificateChain {
    /// Parses PEM; `None` if there is no certificate or one is malformed.
    pub fn from_pem(text: &[u8]) -> Option<CertificateChain> {
        Some(CertificateChain(identity::chain(text)?))
    }

    /// Parses concatenated DER certificates; `None` if these bytes are not that.
    pub fn from_der(mut bytes: &[u8]) -> Option<CertificateChain> {
        let mut chain = Vec::new();
        while !bytes.is_empty() {
            let element = DerElement::first(bytes)?;
            chain.push(CertificateDer::from(element.whole.to_vec()));
            bytes = element.rest;
        }
        // Only the leaf is parsed: the others are sent as they are, and the client judges them.
        let leaf = chain.first()?;
        super::certificate::Certificate::parse(leaf)?;
        Some(CertificateChain(chain))
    }

    /// The concatenated certificates in DER.
    pub fn to_der(&self) -> Vec<u8> {
        self.0.iter().flat_map(|one| one.iter().copied()).collect()
    }
}

impl ClientCertificates {
    /// Verifies against these authorities, of which only the first are named to clients, over paths of this depth;
    /// `None` if a certificate cannot be read.
    pub fn of_chains(
        named: Option<&CertificateChain>,
        others: Option<&CertificateChain>,
        depth: usize,
    ) -> Option<ClientCertificates> {
        let mut trust = TrustStore::without_anchors(depth);
        let mut names = TrustStore::without_anchors(depth);
        for one in named.into_iter().flat_map(|chain| &chain.0) {
            trust.add_der(one)?;
            names.add_der(one)?;
        }
        for one in others.into_iter().flat_map(|chain| &chain.0) {
            trust.add_der(one)?;
        }
        Some(ClientCertificates::new(trust, &names))
    }
}

/// A private key.
#[derive(Clone)]
pub struct CertificateKey(Arc<dyn SigningKey>);

impl CertificateKey {
    /// The first private key of a PEM text, decrypted with one of the passwords if necessary. The error has
    /// OpenSSL's or the library's message.
    pub fn from_pem(text: &[u8], passwords: &[Vec<u8>]) -> Result<CertificateKey, String> {
        Ok(CertificateKey(identity::signing_key(text, passwords)?.0))
    }

    /// A key in DER: PKCS #8, PKCS #1 or SEC 1.
    pub fn from_der(bytes: &[u8]) -> Result<CertificateKey, String> {
        let der = PrivateKeyDer::try_from(bytes).map_err(str::to_owned)?;
        let key = provider()
            .key_provider
            .load_private_key(der.clone_key())
            .map_err(|error| error.to_string())?;
        Ok(CertificateKey(key))
    }

    /// The first private key of a PEM text, in DER.
    pub fn pem_to_der(text: &[u8], passwords: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let (der, _) = identity::key_of_pem(text, passwords)?;
        Ok(der.secret_der().to_vec())
    }
}

impl TlsIdentity {
    /// A chain with its key; an error if they do not match.
    pub fn new(
        chain: &CertificateChain,
        key: &CertificateKey,
    ) -> Result<Arc<TlsIdentity>, TlsConfigError> {
        if !identity::belongs(&chain.0, &*key.0) {
            return Err(TlsConfigError::new(
                "error:05800074:x509 certificate routines::key values mismatch",
            ));
        }
        let key = CertifiedKey::new(chain.0.clone(), Arc::clone(&key.0));
        Ok(Arc::new(TlsIdentity {
            end: OnceLock::new(),
            key: Arc::new(key),
            secret: false,
            staple: None,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_is_no_chain() {
        assert!(CertificateChain::from_der(b"").is_none());
        assert!(CertificateChain::from_der(&[0x30, 3, 1, 1]).is_none());
        assert!(CertificateChain::from_der(&[0x30, 1, 7]).is_none());
        assert!(CertificateChain::from_pem(b"").is_none());
        assert!(CertificateKey::from_der(b"\x30\x01\x07").is_err());
        assert!(CertificateKey::from_pem(b"", &[]).is_err());
    }
}
