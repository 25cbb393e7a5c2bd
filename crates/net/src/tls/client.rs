//! TLS to upstream servers.

use std::fmt;
use std::io;
use std::sync::Arc;

use quinn_proto::crypto::rustls::QuicClientConfig;
use rt::net::StreamSocket;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientSessionMemoryCache, ResolvesClientCert, Resumption};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
};

use super::certificate::Certificate;
use super::ciphers::{CipherChoice, TlsProtocols};
use super::config_error::TlsConfigError;
use super::handshake::{self, HandshakeError};
use super::identity::TlsIdentity;
use super::provider::{algorithms, warm_up};
use super::server::verify_signature;
use super::session::{AgreedParameters, HandshakeFacts, TlsSession, TlsState};
use super::verify::{CertificatePurpose, TrustStore, VerifyResult};

/// How many sessions with servers are remembered for one set of settings.
const SESSIONS: usize = 256;

/// How many sessions with one server are kept by a client that stores them itself: a TLS 1.3 server sends several
/// tickets, each for one use.
const SESSIONS_OF_ONE: usize = 8;

/// The input for the settings of a client.
#[derive(Clone, Default)]
pub struct ClientOptions {
    /// The enabled versions.
    pub protocols: TlsProtocols,
    /// Cipher suites and groups.
    pub choice: CipherChoice,
    /// Whether the server's name is sent (SNI).
    pub server_name: bool,
    /// What the server's certificate is verified against; `None`: it is not verified.
    pub trust: Option<Arc<TrustStore>>,
    /// Whether sessions are remembered and resumed.
    pub session_reuse: bool,
    /// The protocols offered by ALPN, the preferred one first.
    pub alpn: Vec<Vec<u8>>,
    /// The certificate for servers that ask for one.
    pub identity: Option<Arc<TlsIdentity>>,
}

/// The settings of a client, with its remembered sessions.
#[derive(Clone)]
pub struct ClientSettings {
    config: Arc<ClientConfig>,
    trust: Option<Arc<TrustStore>>,
    /// The sessions belong to one server, whatever name it is asked for by.
    one_server: bool,
    has_1_3: bool,
}

/// The sessions with one server, for a client that stores them itself and decides when to resume.
#[derive(Clone)]
pub struct ClientSessions(Arc<ClientSessionMemoryCache>);

impl ClientSessions {
    /// An empty store for one server.
    #[allow(
        clippy::new_without_default,
        reason = "it takes memory: each use says so"
    )]
    pub fn new() -> ClientSessions {
        ClientSessions(Arc::new(ClientSessionMemoryCache::new(SESSIONS_OF_ONE)))
    }
}

impl fmt::Debug for ClientSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSessions").finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientSettings").finish_non_exhaustive()
    }
}

impl ClientSettings {
    /// The same settings with other ALPN protocols. They share the remembered sessions.
    pub fn with_alpn(&self, protocols: Vec<Vec<u8>>) -> ClientSettings {
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols;
        ClientSettings {
            config: Arc::new(config),
            trust: self.trust.clone(),
            one_server: self.one_server,
            has_1_3: self.has_1_3,
        }
    }

    /// The same settings with sessions that the caller stores: they are resumed, and new ones are added.
    pub fn with_sessions(&self, sessions: &ClientSessions) -> ClientSettings {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::store(Arc::clone(&sessions.0) as Arc<_>);
        ClientSettings {
            config: Arc::new(config),
            trust: self.trust.clone(),
            one_server: true,
            has_1_3: self.has_1_3,
        }
    }

    /// The same settings, verifying the server's certificate by `trust`.
    pub fn with_trust(&self, trust: Option<Arc<TrustStore>>) -> ClientSettings {
        ClientSettings {
            config: Arc::clone(&self.config),
            trust,
            one_server: self.one_server,
            has_1_3: self.has_1_3,
        }
    }

    /// What the server's certificate is verified against.
    pub fn trust(&self) -> Option<&Arc<TrustStore>> {
        self.trust.as_ref()
    }
}

/// The server that a connection is meant for.
#[derive(Clone, Default)]
pub struct ClientName<'a> {
    /// The name without a port. It is sent if SNI is enabled, and the certificate is checked for it.
    pub name: &'a str,
    /// A client certificate instead of that in the settings.
    pub identity: Option<Arc<TlsIdentity>>,
}

impl ClientOptions {
    /// Builds the settings.
    pub fn build(self) -> Result<ClientSettings, TlsConfigError> {
        warm_up();
        let protocols = self.choice.usable(self.protocols);
        if protocols.is_none() {
            return Err(TlsConfigError::new(
                "no TLS version is left: neither the protocols nor the ciphers name anything that is supported",
            ));
        }
        let mut config = ClientConfig::builder_with_provider(self.choice.provider())
            .with_protocol_versions(&protocols.versions())
            .map_err(|error| TlsConfigError::new(error.to_string()))?
            .dangerous()
            // The chain is verified after the handshake, as in nginx: see `TlsSession::verify_result`.
            .with_custom_certificate_verifier(Arc::new(DeferredServerVerifier {
                algorithms: algorithms(),
            }))
            .with_client_cert_resolver(Arc::new(FixedClientCertificate(self.identity)));
        config.enable_sni = self.server_name;
        config.alpn_protocols = self.alpn;
        config.resumption = match self.session_reuse {
            true => Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS))),
            false => Resumption::disabled(),
        };
        config.cert_compressors = Vec::new();
        config.cert_decompressors = Vec::new();
        Ok(ClientSettings {
            config: Arc::new(config),
            trust: self.trust,
            one_server: false,
            has_1_3: protocols.tls13,
        })
    }
}

impl ClientSettings {
    /// The configuration for a connection to this server, the name that it knows the server by, and whether signing is slow.
    fn prepare(
        &self,
        name: ClientName<'_>,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>, bool), HandshakeError> {
        let mut config = Arc::clone(&self.config);
        let server = match ServerName::try_from(name.name) {
            Ok(server) => server.to_owned(),
            // A text that cannot be a host name is not sent. The library needs some name, so it gets a reserved one
            // (RFC 6761, section 6.4).
            Err(_) => {
                let mut nameless = ClientConfig::clone(&config);
                nameless.enable_sni = false;
                // Sessions are stored by name: under the placeholder they would be resumed with other servers.
                if !self.one_server {
                    nameless.resumption = Resumption::disabled();
                }
                config = Arc::new(nameless);
                ServerName::try_from("invalid.invalid").map_err(|_| HandshakeError::Closed)?
            }
        };
        let slow = match name.identity {
            None => false,
            Some(identity) => {
                let slow = identity.is_slow();
                let mut other = ClientConfig::clone(&config);
                // A session carries the client's identity: it must not be resumed with another certificate.
                other.resumption = Resumption::disabled();
                other.client_auth_cert_resolver = Arc::new(FixedClientCertificate(Some(identity)));
                config = Arc::new(other);
                slow
            }
        };
        Ok((config, server, slow))
    }

    /// The configuration of a QUIC connection to this server, and the name that it knows the server by.
    pub(crate) fn prepare_quic(
        &self,
        name: ClientName<'_>,
    ) -> Result<(QuicClientConfig, String), TlsConfigError> {
        let refuse = || {
            TlsConfigError::new(
                "QUIC needs TLS 1.3 and one of its cipher suites, and the settings allow neither",
            )
        };
        let (config, server, _) = self.prepare(name).map_err(|_| refuse())?;
        let suites = &config.crypto_provider().cipher_suites;
        let has_suite = suites
            .iter()
            .filter_map(|suite| suite.tls13())
            .any(|suite| suite.quic.is_some());
        if !self.has_1_3 || !has_suite {
            return Err(refuse());
        }
        // For the first packets, which any observer can read: the suite is fixed (RFC 9001, section 5.2).
        let initial = TLS13_AES_128_GCM_SHA256.tls13();
        let initial = initial
            .and_then(|suite| suite.quic_suite())
            .ok_or_else(refuse)?;
        let config = QuicClientConfig::with_initial(config, initial).map_err(|_| refuse())?;
        Ok((config, server.to_str().into_owned()))
    }

    /// The session of a QUIC connection whose handshake is complete.
    pub(crate) fn quic_session(
        &self,
        alpn: Option<Vec<u8>>,
        chain: Vec<CertificateDer<'static>>,
    ) -> TlsSession {
        let mut facts = HandshakeFacts::default();
        if let Some(trust) = &self.trust {
            let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
            facts.verify_result = Some(trust.verify_chain(&chain, CertificatePurpose::Server, now));
        }
        let agreed = AgreedParameters {
            alpn,
            chain,
            ..AgreedParameters::default()
        };
        TlsSession::of_quic(agreed, facts)
    }
}

/// Does the handshake as a client. An invalid certificate is not an error here: [`TlsSession::verify_result`] has the
/// result, and [`TlsSession::is_for`] compares the name. The caller limits the time.
pub async fn connect(
    socket: &StreamSocket,
    settings: &ClientSettings,
    name: ClientName<'_>,
) -> Result<TlsSession, HandshakeError> {
    let (config, server, slow) = settings.prepare(name)?;
    let connection = ClientConnection::new(config, server).map_err(HandshakeError::Tls)?;
    let state = handshake::drive_handshake(socket, TlsState::new(connection), slow).await?;
    let mut facts = HandshakeFacts::default();
    if let Some(trust) = &settings.trust {
        let chain = state.tls.peer_certificates().unwrap_or_default();
        let now = i64::try_from(rt::wall_millis() / 1000).unwrap_or(i64::MAX);
        facts.verify_result = Some(trust.verify_chain(chain, CertificatePurpose::Server, now));
    }
    Ok(TlsSession::new(state, facts))
}

/// Begins a session for a command that may wait: the first read or write does the handshake. The server's certificate is not
/// verified, and a text that cannot be a host name is not sent.
pub fn begin_session<S: io::Read + io::Write>(
    settings: &ClientSettings,
    name: &str,
    stream: S,
) -> io::Result<impl io::Read + io::Write + use<S>> {
    let mut config = ClientConfig::clone(&settings.config);
    let server = match ServerName::try_from(name.to_owned()) {
        Ok(server) => server,
        Err(_) => {
            config.enable_sni = false;
            ServerName::try_from("invalid.invalid").map_err(io::Error::other)?
        }
    };
    let connection = ClientConnection::new(Arc::new(config), server).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}

impl TlsSession {
    /// Whether the peer's certificate is valid for this host.
    pub fn is_for(&self, host: &str) -> bool {
        self.peer_certificate()
            .and_then(|der| Certificate::parse(&der))
            .is_some_and(|certificate| certificate.is_for(host))
    }

    /// What is wrong with the peer's certificate, if anything, in nginx's form: `(20:unable to …)`.
    pub fn verify_error(&self) -> Option<String> {
        match self.verify_result()? {
            VerifyResult::Good => None,
            VerifyResult::Absent => Some("no certificate".to_owned()),
            VerifyResult::Bad(fault) => Some(format!("({}:{})", fault.number, fault.text)),
        }
    }
}

/// Presents one certificate, or none.
struct FixedClientCertificate(Option<Arc<TlsIdentity>>);

impl fmt::Debug for FixedClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedClientCertificate")
            .finish_non_exhaustive()
    }
}

impl ResolvesClientCert for FixedClientCertificate {
    fn resolve(
        &self,
        _authorities: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        // Whatever authorities the server names: like OpenSSL, the certificate is presented and the server decides.
        self.0.as_ref().map(|identity| Arc::clone(&identity.key))
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

/// Accepts any certificate chain for now, because it is verified after the handshake. The signature that proves
/// possession of the key is checked here.
#[derive(Debug)]
struct DeferredServerVerifier {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for DeferredServerVerifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, dss, &self.algorithms, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_signature(message, cert, dss, &self.algorithms, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
