//! The TLS settings of a server: built when the configuration is read, immutable, and shared by all loops.

use std::fmt;
use std::sync::{Arc, LazyLock, OnceLock};

use aws_lc_rs::digest::{Context, SHA256};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::certificate::Certificate;
use super::ciphers::{CipherChoice, TlsProtocols};
use super::config_error::TlsConfigError;
use super::identity::TlsIdentity;
use super::ocsp::OcspResolver;
use super::provider::{algorithms, warm_up};
use super::session_cache::{ContextSessionCache, SessionCache};
use super::shared_by_name::SharedByName;
use super::tickets::{SessionTicketer, TicketKeys};
use super::verify::TrustStore;

/// The input for the settings of a server.
pub struct ServerOptions {
    /// The enabled versions.
    pub protocols: TlsProtocols,
    /// Cipher suites and groups.
    pub choice: CipherChoice,
    /// Whether the server's order of cipher suites counts, not the client's.
    pub prefer_server_ciphers: bool,
    /// The certificates; empty if they depend on the client.
    pub identities: Vec<Arc<TlsIdentity>>,
    /// If set, clients are asked for a certificate, which is verified against this.
    pub client_certificates: Option<ClientCertificates>,
    /// The ALPN protocols, the preferred one first; empty: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// The session cache.
    pub cache: Option<Arc<SessionCache>>,
    /// The ticket keys; `None`: no tickets.
    pub tickets: Option<Arc<TicketKeys>>,
    /// How long a session may be resumed, in seconds.
    pub session_timeout: u32,
    /// The largest record in bytes; 0: the protocol's limit.
    pub record_size: usize,
    /// The most bytes of early data; 0: not accepted.
    pub early_data: u32,
    /// Whether certificates are compressed for clients that support it (RFC 8879).
    pub compress_certificates: bool,
    /// Keeps the sessions of the engines apart.
    pub context: Vec<u8>,
}

/// What clients' certificates are verified against.
#[derive(Clone)]
pub struct ClientCertificates {
    /// The trusted certificates.
    pub trust: Arc<TrustStore>,
    /// The authorities named in the request to clients: encoded subjects.
    pub named: Vec<Vec<u8>>,
}

/// The TLS settings of a server.
#[derive(Clone)]
pub struct ServerSettings {
    template: Arc<ConfigTemplate>,
    /// The library's settings, made when the first client connects: most of thousands of servers are idle.
    config: OnceLock<Arc<ServerConfig>>,
    pub(super) identities: Vec<Arc<TlsIdentity>>,
    client_certificates: Option<ClientCertificates>,
    /// The usable versions.
    protocols: TlsProtocols,
    /// A digest of all that its sessions depend on.
    pub(super) context: [u8; 32],
    /// How long a session may be resumed, in seconds.
    pub(super) session_timeout: u32,
    cache: Option<Arc<SessionCache>>,
    tickets: Option<Arc<TicketKeys>>,
}

/// The library's settings without certificates and sessions. Servers that differ in nothing else share them.
struct ConfigTemplate {
    config: ServerConfig,
    key: TemplateKey,
}

/// What a template depends on.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TemplateKey {
    /// TLS 1.2 and 1.3.
    protocols: (bool, bool),
    /// The numbers of cipher suites and groups.
    choice: (Vec<u16>, Vec<u16>),
    prefer_server_ciphers: bool,
    /// The authorities named to clients; `None`: no certificate is asked for.
    named: Option<Vec<Vec<u8>>>,
    record_size: usize,
    early_data: u32,
    compress_certificates: bool,
    resumes: bool,
    alpn: Vec<Vec<u8>>,
}

static TEMPLATES: LazyLock<SharedByName<TemplateKey, ConfigTemplate>> =
    LazyLock::new(SharedByName::default);

impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSettings").finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// Builds the settings.
    pub fn build(self) -> Result<ServerSettings, TlsConfigError> {
        warm_up();
        let context = self.session_context();
        let protocols = self.choice.usable(self.protocols);
        if protocols.is_none() {
            return Err(TlsConfigError::new(
                "no TLS version is left: neither \"ssl_protocols\" nor \"ssl_ciphers\" names anything that is supported",
            ));
        }
        let template = self.template(protocols)?;
        // Early data can be replayed by an attacker. So sessions with it are in a cache, and each is used once (RFC
        // 8446, section 8.1); a ticket could be presented any number of times.
        let (cache, tickets) = match (self.early_data, self.cache) {
            (0, cache) => (cache, self.tickets),
            (_, Some(cache)) => (Some(cache), None),
            (_, None) => (
                Some(SessionCache::shared("early data", EARLY_SESSIONS)),
                None,
            ),
        };
        Ok(ServerSettings {
            template,
            config: OnceLock::new(),
            identities: self.identities,
            client_certificates: self.client_certificates,
            protocols,
            context,
            session_timeout: self.session_timeout,
            cache,
            tickets,
        })
    }

    /// What servers with the same options share.
    fn template(&self, protocols: TlsProtocols) -> Result<Arc<ConfigTemplate>, TlsConfigError> {
        // Nothing could resume a session: no ticket is sent.
        let resumes = self.tickets.is_some() || self.cache.is_some() || self.early_data > 0;
        let key = TemplateKey {
            protocols: (protocols.tls12, protocols.tls13),
            choice: self.choice.numbers(),
            prefer_server_ciphers: self.prefer_server_ciphers,
            named: self
                .client_certificates
                .as_ref()
                .map(|wanted| wanted.named.clone()),
            record_size: self.record_size,
            early_data: self.early_data,
            compress_certificates: self.compress_certificates,
            resumes,
            alpn: self.alpn.clone(),
        };
        if let Some(known) = TEMPLATES.find(&key) {
            return Ok(known);
        }
        let builder = ServerConfig::builder_with_provider(self.choice.provider())
            .with_protocol_versions(&protocols.versions())
            .map_err(|error| TlsConfigError::new(error.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(verifier(self.client_certificates.as_ref()))
            .with_cert_resolver(Arc::new(CertificateResolver {
                identities: Vec::new(),
                newest: protocols.speaks_1_3(),
            }));
        config.ignore_client_order = self.prefer_server_ciphers;
        config.alpn_protocols = self.alpn.clone();
        config.max_fragment_size = fragment_size(self.record_size);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if self.early_data > 0 {
            config.max_early_data_size = self.early_data;
            config.send_half_rtt_data = true;
        }
        if !resumes {
            config.send_tls13_tickets = 0;
        }
        if !self.compress_certificates {
            config.cert_compressors = Vec::new();
        }
        // Clients' certificates are not accepted in compressed form: a client could make the server decompress at
        // will.
        config.cert_decompressors = Vec::new();
        let template = Arc::new(ConfigTemplate {
            config,
            key: key.clone(),
        });
        TEMPLATES.insert(key, &template);
        Ok(template)
    }

    /// A digest of the certificates, of whether clients are asked for theirs, and of the client authorities. A session is
    /// not resumed by a server with others: its client has proved its identity only to those, or was not asked for it.
    fn session_context(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(&self.context);
        for identity in &self.identities {
            context.update(identity.leaf());
        }
        if let Some(wanted) = &self.client_certificates {
            context.update(b"asked");
            for name in &wanted.named {
                context.update(name);
            }
        }
        let mut out = [0; 32];
        out.copy_from_slice(context.finish().as_ref());
        out
    }
}

/// The size in bytes of the cache for sessions with early data if none is configured.
const EARLY_SESSIONS: usize = 4 << 20;

/// How many bytes of records may be tried for decryption and skipped as early data. Clients may have been promised
/// 16 KB of content, as OpenSSL and nginx do, and all received records are tried again with each piece that
/// arrives. rustls keeps 18 KB of them, so if that content comes in records of less than 140 bytes, the end is
/// refused. To try all this takes a few milliseconds, once per connection.
const SKIPPED_EARLY_DATA: u32 = 1 << 20;

/// rustls counts the record's overhead as a part of the fragment.
fn fragment_size(record: usize) -> Option<usize> {
    const OVERHEAD: usize = 5;
    const MOST: usize = 16 * 1024;
    (1..MOST)
        .contains(&record)
        // At least 512 bytes, the least that OpenSSL accepts.
        .then_some(record.max(512) + OVERHEAD)
}

impl ServerSettings {
    /// When the first of its certificates ends, in seconds since 1970.
    pub fn certificate_end(&self) -> Option<u64> {
        self.identities
            .iter()
            .filter_map(|identity| identity.certificate_end())
            .min()
    }

    /// The library's settings.
    pub(super) fn config(&self) -> &Arc<ServerConfig> {
        self.config
            .get_or_init(|| self.config_with(&self.identities))
    }

    /// The library's settings with these certificates.
    pub(super) fn config_with(&self, identities: &[Arc<TlsIdentity>]) -> Arc<ServerConfig> {
        let mut config = self.template.config.clone();
        config.cert_resolver = Arc::new(CertificateResolver {
            identities: identities.to_vec(),
            newest: self.speaks_1_3(),
        });
        if self.template.key.compress_certificates {
            // It has room for a few chains.
            config.cert_compression_cache = Arc::default();
        }
        if let Some(cache) = &self.cache {
            config.session_storage = Arc::new(ContextSessionCache {
                cache: Arc::clone(cache),
                context: self.context,
                timeout: self.session_timeout,
            });
        }
        if let Some(tickets) = &self.tickets {
            config.ticketer = Arc::new(SessionTicketer {
                tickets: Arc::clone(tickets),
                context: self.context,
                timeout: self.session_timeout,
            });
        }
        Arc::new(config)
    }

    /// The settings with another verification of clients, or other versions.
    pub(super) fn changed(
        &self,
        wanted: Option<ClientCertificates>,
        protocols: Option<TlsProtocols>,
    ) -> Result<ServerSettings, TlsConfigError> {
        let own = &self.template.config;
        let wanted = wanted.or_else(|| self.client_certificates.clone());
        let protocols = protocols.unwrap_or(self.protocols);
        let builder = ServerConfig::builder_with_provider(Arc::clone(own.crypto_provider()))
            .with_protocol_versions(&protocols.versions())
            .map_err(|error| TlsConfigError::new(error.to_string()))?;
        let mut config = builder
            .with_client_cert_verifier(verifier(wanted.as_ref()))
            .with_cert_resolver(Arc::clone(&own.cert_resolver));
        // Verifier and versions cannot be changed in a clone, so all that a template sets is copied.
        config.ignore_client_order = own.ignore_client_order;
        config.alpn_protocols.clone_from(&own.alpn_protocols);
        config.max_fragment_size = own.max_fragment_size;
        config.session_storage = Arc::clone(&own.session_storage);
        config.max_early_data_size = own.max_early_data_size;
        config.send_half_rtt_data = own.send_half_rtt_data;
        config.send_tls13_tickets = own.send_tls13_tickets;
        config.cert_compressors.clone_from(&own.cert_compressors);
        config
            .cert_decompressors
            .clone_from(&own.cert_decompressors);
        // Not among the shared templates: a script may choose anew for each connection.
        let template = ConfigTemplate {
            config,
            key: self.template.key.clone(),
        };
        Ok(ServerSettings {
            template: Arc::new(template),
            config: OnceLock::new(),
            client_certificates: wanted,
            protocols,
            ..self.clone()
        })
    }

    /// The numbers of the cipher suites, in the server's order.
    pub(super) fn ciphers(&self) -> Vec<u16> {
        let suites = &self.template.config.crypto_provider().cipher_suites;
        suites.iter().map(|one| u16::from(one.suite())).collect()
    }

    /// The settings for a hello with early data of this session if that data will not be accepted; `None` if it
    /// will.
    ///
    /// Unaccepted early data must be skipped (RFC 8446, section 4.2.10). How much rustls skips before it fails with
    /// bad_record_mac depends on how much it would accept: 16 KB, where the overhead of records counts too, and
    /// what was skipped counts again each time that more arrives. So clients that send as much as they may, or a
    /// little in several pieces, would be refused. These settings skip more. They know no sessions, so that rustls
    /// neither accepts early data nor promises to, and the client gets an ordinary session with its next handshake.
    /// One case remains: a session that is known and still not accepted, because it is too old or the client's
    /// protocols differ.
    pub(super) fn config_skipping(
        &self,
        config: &Arc<ServerConfig>,
        session: &[u8],
    ) -> Option<Arc<ServerConfig>> {
        let takes = config.max_early_data_size > 0 && !config.ticketer.enabled();
        if takes && config.session_storage.get(session).is_some() {
            return None;
        }
        let mut config = ServerConfig::clone(config);
        config.max_early_data_size = SKIPPED_EARLY_DATA;
        // Tickets that contain the session may stay enabled: with these rustls accepts no early data.
        if !config.ticketer.enabled() {
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Some(Arc::new(config))
    }

    /// The settings with other ALPN protocols.
    pub fn with_alpn(&self, alpn: Vec<Vec<u8>>) -> ServerSettings {
        self.with_protocol(alpn, |early_data| early_data)
    }

    /// The settings for another protocol: its names in ALPN, and what it makes of the most bytes of early data.
    pub(super) fn with_protocol(
        &self,
        alpn: Vec<Vec<u8>>,
        early_data: impl Fn(u32) -> u32,
    ) -> ServerSettings {
        let known = &self.template.key;
        let key = TemplateKey {
            alpn,
            early_data: early_data(known.early_data),
            ..known.clone()
        };
        let template = TEMPLATES.get(key.clone(), || {
            let mut config = self.template.config.clone();
            config.alpn_protocols.clone_from(&key.alpn);
            config.max_early_data_size = key.early_data;
            Arc::new(ConfigTemplate { config, key })
        });
        ServerSettings {
            template,
            config: OnceLock::new(),
            ..self.clone()
        }
    }

    /// Whether TLS 1.3 is enabled.
    pub fn speaks_1_3(&self) -> bool {
        self.protocols.speaks_1_3()
    }

    /// Renews the stapled OCSP responses on this loop where it is time to. Failures go to `log`.
    pub fn refresh_staples(
        &self,
        network: impl Fn() -> OcspResolver,
        log: impl Fn(String) + Clone + 'static,
    ) {
        for staple in self.identities.iter().filter_map(|known| known.staple()) {
            staple.refresh_if_due(&network, log.clone());
        }
    }

    /// The certificates.
    pub(super) fn identities(&self) -> &[Arc<TlsIdentity>] {
        &self.identities
    }

    /// The trusted certificates for clients, to be kept.
    pub(super) fn trust_store(&self) -> Option<Arc<TrustStore>> {
        let wanted = self.client_certificates.as_ref()?;
        Some(Arc::clone(&wanted.trust))
    }

    /// The trusted certificates for clients.
    pub fn trust(&self) -> Option<&TrustStore> {
        let wanted = self.client_certificates.as_ref()?;
        Some(&wanted.trust)
    }
}

/// Chooses among certificates of several kinds by the client's preferred signature scheme.
struct CertificateResolver {
    identities: Vec<Arc<TlsIdentity>>,
    /// TLS 1.3 is enabled.
    newest: bool,
}

impl fmt::Debug for CertificateResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateResolver")
            .finish_non_exhaustive()
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let identities = &self.identities;
        if let [only] = &identities[..] {
            return Some(only.certified());
        }
        let fits = |scheme: &SignatureScheme| {
            identities
                .iter()
                .find(|identity| identity.scheme(std::slice::from_ref(scheme)).is_some())
        };
        let schemes = hello.signature_schemes();
        // In TLS 1.3, PKCS #1 v1.5 padding is allowed only in certificates, not in the handshake (RFC 8446, section
        // 4.2.3).
        let newest = self.newest && hello.cipher_suites().iter().any(|suite| is_of_1_3(*suite));
        let signs = |scheme: &&SignatureScheme| !newest || !is_pkcs1(**scheme);
        let identity = schemes
            .iter()
            .filter(signs)
            .find_map(fits)
            // No scheme fits: a certificate is presented all the same, so that the error comes from the handshake
            // and not as a missing certificate.
            .or_else(|| schemes.iter().find_map(fits))
            .or(identities.first())?;
        Some(identity.certified())
    }
}

fn is_of_1_3(suite: CipherSuite) -> bool {
    u16::from(suite) >> 8 == 0x13
}

/// Whether a scheme uses PKCS #1 v1.5 padding.
pub(super) fn is_pkcs1(scheme: SignatureScheme) -> bool {
    matches!(u16::from(scheme), 0x0401 | 0x0501 | 0x0601)
}

fn verifier(wanted: Option<&ClientCertificates>) -> Arc<dyn ClientCertVerifier> {
    match wanted {
        None => Arc::new(NoClientAuth),
        Some(wanted) => Arc::new(DeferredClientVerifier::new(wanted)),
    }
}

/// Asks for a client certificate and accepts any, because it is verified after the handshake. The signature that
/// proves possession of the key is checked here.
#[derive(Debug)]
struct DeferredClientVerifier {
    named: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl DeferredClientVerifier {
    fn new(wanted: &ClientCertificates) -> DeferredClientVerifier {
        DeferredClientVerifier {
            named: wanted
                .named
                .iter()
                .map(|name| DistinguishedName::from(name.clone()))
                .collect(),
            algorithms: algorithms(),
        }
    }
}

impl ClientCertVerifier for DeferredClientVerifier {
    // A client without a certificate gets an error page (status 400), not an alert, as in nginx.
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.named
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
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

/// Checks the signature over the handshake by the owner of a certificate. rustls's own function refuses
/// certificates of version 1, which it cannot parse.
pub(super) fn verify_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
    new: bool,
) -> Result<HandshakeSignatureValid, Error> {
    use rustls::{CertificateError, PeerMisbehaved};
    let bad = |why: CertificateError| Error::InvalidCertificate(why);
    let certificate = Certificate::parse(certificate).ok_or(bad(CertificateError::BadEncoding))?;
    // SHA-1 and PKCS #1 v1.5 are not allowed in TLS 1.3 (RFC 8446, section 4.4.3).
    if new
        && matches!(
            u16::from(signed.scheme),
            0x0201 | 0x0203 | 0x0401 | 0x0501 | 0x0601
        )
    {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let known = algorithms
        .mapping
        .iter()
        .find(|(scheme, _)| *scheme == signed.scheme);
    let Some((_, candidates)) = known else {
        return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    };
    // In TLS 1.3 a scheme includes the curve (RFC 8446, section 4.2.3); in 1.2 any curve is possible.
    let candidates = if new { &candidates[..1] } else { candidates };
    let verified = candidates.iter().any(|algorithm| {
        algorithm.public_key_alg_id().as_ref() == certificate.key.algorithm
            && algorithm
                .verify_signature(&certificate.key.bits, message, signed.signature())
                .is_ok()
    });
    match verified {
        true => Ok(HandshakeSignatureValid::assertion()),
        false => Err(bad(CertificateError::BadSignature)),
    }
}

impl ClientCertificates {
    /// Verifies against `trust`, and names the authorities of `named` to clients (`ssl_trusted_certificate` is not
    /// named, `ssl_client_certificate` is).
    pub fn new(trust: TrustStore, named: &TrustStore) -> ClientCertificates {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in named.subjects() {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_vec());
            }
        }
        ClientCertificates {
            named: names,
            trust: Arc::new(trust),
        }
    }
}
