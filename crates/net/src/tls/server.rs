//! What a server's configuration says of TLS, as it is used: immutable, shared by all loops.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoClientAuth, NoServerSessionStorage, ResolvesServerCert, StoresServerSessions,
};
use rustls::sign::CertifiedKey;
use rustls::{
    CipherSuite, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};

use super::certificate::Certificate;
use super::ciphers::{Choice, Protocols};
use super::identity::Identity;
use super::ocsp::Network;
use super::problem::Problem;
use super::provider::{algorithms, warm_up};
use super::sessions::{SessionCache, Storage};
use super::tickets::{Ticketer, Tickets};
use super::verify::Trust;

/// What a server's settings are made of.
pub struct ServerOptions {
    /// The versions that are spoken.
    pub protocols: Protocols,
    /// Suites and groups.
    pub choice: Choice,
    /// The server's order of suites counts, not the client's.
    pub prefer_server_ciphers: bool,
    /// The certificates; none when they depend on the client.
    pub identities: Vec<Arc<Identity>>,
    /// Clients are asked for a certificate, which is judged by this.
    pub client_certificates: Option<ClientCertificates>,
    /// What is agreed on by ALPN, the best first; none: no ALPN.
    pub alpn: Vec<Vec<u8>>,
    /// Remembered sessions.
    pub cache: Option<Arc<SessionCache>>,
    /// Tickets; `None`: no tickets.
    pub tickets: Option<Arc<Tickets>>,
    /// How long a session may be resumed, in seconds.
    pub session_timeout: u32,
    /// The most bytes of a record; 0: as many as allowed.
    pub record_size: usize,
    /// The most bytes of early data; 0: none is taken.
    pub early_data: u32,
    /// Certificates are sent compressed where the client can read that.
    pub compress_certificates: bool,
    /// What tells sessions of one engine from those of another.
    pub context: Vec<u8>,
}

/// What clients' certificates are judged by.
#[derive(Clone)]
pub struct ClientCertificates {
    /// Whom to believe.
    pub trust: Arc<Trust>,
    /// The authorities that are named to clients: subjects, encoded.
    pub named: Vec<Vec<u8>>,
}

/// A server's settings.
#[derive(Clone)]
pub struct ServerSettings {
    pub(super) config: Arc<ServerConfig>,
    pub(super) identities: Vec<Arc<Identity>>,
    pub(super) trust: Option<Arc<Trust>>,
    speaks_1_3: bool,
    /// What its sessions depend on.
    pub(super) context: [u8; 32],
    /// How long a session may be resumed, in seconds.
    pub(super) session_timeout: u32,
}

impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerSettings").finish_non_exhaustive()
    }
}

impl ServerOptions {
    /// Puts them together.
    pub fn build(self) -> Result<ServerSettings, Problem> {
        warm_up();
        let context = self.session_context();
        let protocols = self.choice.usable(self.protocols);
        if protocols.is_none() {
            return Err(Problem::new(
                "no TLS version is left: neither \"ssl_protocols\" nor \"ssl_ciphers\" names anything that is supported",
            ));
        }
        let builder = ServerConfig::builder_with_provider(self.choice.provider())
            .with_protocol_versions(&protocols.versions())
            .map_err(|error| Problem::new(error.to_string()))?;
        let verifier: Arc<dyn ClientCertVerifier> = match &self.client_certificates {
            None => Arc::new(NoClientAuth),
            Some(wanted) => Arc::new(Asking::new(wanted)),
        };
        let mut config = builder
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(Resolver {
                identities: self.identities.clone(),
                newest: protocols.speaks_1_3(),
            }));
        config.ignore_client_order = self.prefer_server_ciphers;
        config.alpn_protocols = self.alpn.clone();
        config.max_fragment_size = fragment_size(self.record_size);
        let sessions = |cache: &Arc<SessionCache>| -> Arc<dyn StoresServerSessions> {
            Arc::new(Storage {
                cache: Arc::clone(cache),
                context,
                timeout: self.session_timeout,
            })
        };
        config.session_storage = match &self.cache {
            Some(cache) => sessions(cache),
            None => Arc::new(NoServerSessionStorage {}),
        };
        if self.early_data > 0 {
            // Each session is taken once, so that nobody can send the same early data twice (RFC 8446, section 8.1).
            config.max_early_data_size = self.early_data;
            config.send_half_rtt_data = true;
            config.session_storage = match &self.cache {
                Some(cache) => sessions(cache),
                None => sessions(&SessionCache::shared("early data", EARLY_SESSIONS)),
            };
        } else if let Some(tickets) = &self.tickets {
            config.ticketer = Arc::new(Ticketer {
                tickets: Arc::clone(tickets),
                context,
                timeout: self.session_timeout,
            });
        }
        if self.tickets.is_none() && self.cache.is_none() && self.early_data == 0 {
            config.send_tls13_tickets = 0;
        }
        if !self.compress_certificates {
            config.cert_compressors = Vec::new();
        }
        config.cert_decompressors = Vec::new();
        Ok(ServerSettings {
            config: Arc::new(config),
            identities: self.identities,
            trust: self.client_certificates.map(|wanted| wanted.trust),
            speaks_1_3: protocols.speaks_1_3(),
            context,
            session_timeout: self.session_timeout,
        })
    }

    /// What a session depends on: it is not resumed by a server with other certificates, or which trusts others.
    fn session_context(&self) -> [u8; 32] {
        let mut context = Context::new(&SHA256);
        context.update(&self.context);
        for identity in &self.identities {
            context.update(identity.leaf());
        }
        if let Some(wanted) = &self.client_certificates {
            for name in &wanted.named {
                context.update(name);
            }
        }
        let mut out = [0; 32];
        out.copy_from_slice(context.finish().as_ref());
        out
    }
}

/// Sessions that are kept for early data when no cache is configured, in bytes.
const EARLY_SESSIONS: usize = 4 << 20;

/// How many bytes of records are tried, and found to be early data that is skipped. Clients may have been promised 16 KB
/// of content, which OpenSSL and nginx promise, and all records that have come are tried again with each piece that
/// comes. rustls holds 18 KB of them: of so much content in records of less than 140 bytes it refuses the end. To try
/// all this takes a few milliseconds, once a connection.
const SKIPPED_EARLY_DATA: u32 = 1 << 20;

/// What rustls calls a fragment holds the record's overhead too.
fn fragment_size(record: usize) -> Option<usize> {
    const OVERHEAD: usize = 5;
    const MOST: usize = 16 * 1024;
    (1..MOST)
        .contains(&record)
        .then_some(record.max(512) + OVERHEAD)
}

impl ServerSettings {
    /// The same with other certificates.
    pub(super) fn config_with(&self, identities: &[Arc<Identity>]) -> Arc<ServerConfig> {
        let mut config = ServerConfig::clone(&self.config);
        config.cert_resolver = Arc::new(Resolver {
            identities: identities.to_vec(),
            newest: self.speaks_1_3,
        });
        Arc::new(config)
    }

    /// What answers a hello that comes with early data of this session, where such data is not going to be taken; `None`
    /// where it is.
    ///
    /// It must be skipped then (RFC 8446, section 4.2.10). How much rustls skips before it gives up with bad_record_mac
    /// depends on how much it would take: 16 KB, the records' own bytes counted as well, and what is skipped counted again
    /// each time that more of it comes. So clients that send as much as they may, or a little in several pieces, are
    /// refused. These settings skip more; they know no sessions, so that rustls neither takes early data nor promises
    /// to, and the client gets a session of the usual kind with its next handshake. What remains: a session that is known
    /// and still not taken, as it is too old or the client's protocols are others.
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
        // Tickets that hold the session itself may go on: with these rustls takes no early data.
        if !config.ticketer.enabled() {
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        Some(Arc::new(config))
    }

    /// The same with other protocols for ALPN.
    pub fn with_alpn(&self, alpn: Vec<Vec<u8>>) -> ServerSettings {
        let mut config = ServerConfig::clone(&self.config);
        config.alpn_protocols = alpn;
        ServerSettings {
            config: Arc::new(config),
            ..self.clone()
        }
    }

    /// Whether version 1.3 is among those that are spoken.
    pub(super) fn speaks_1_3(&self) -> bool {
        self.speaks_1_3
    }

    /// Has what is stapled to the certificates fetched by this loop, if it is time to. `log` gets what goes wrong.
    pub fn refresh_staples(
        &self,
        network: impl Fn() -> Network,
        log: impl Fn(String) + Clone + 'static,
    ) {
        for staple in self.identities.iter().filter_map(|known| known.staple()) {
            staple.refresh(&network, log.clone());
        }
    }

    /// The certificates.
    pub(super) fn identities(&self) -> &[Arc<Identity>] {
        &self.identities
    }

    /// Whom to believe about clients.
    pub fn trust(&self) -> Option<&Trust> {
        self.trust.as_deref()
    }
}

/// Chooses among certificates of several kinds: what the client prefers to see signed.
struct Resolver {
    identities: Vec<Arc<Identity>>,
    /// TLS 1.3 is spoken with who can.
    newest: bool,
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Resolver {
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
        // PKCS #1 padding signs certificates only, in version 1.3 (RFC 8446, section 4.2.3).
        let newest = self.newest && hello.cipher_suites().iter().any(|suite| is_of_1_3(*suite));
        let signs = |scheme: &&SignatureScheme| !newest || !is_pkcs1(**scheme);
        let identity = schemes
            .iter()
            .filter(signs)
            .find_map(fits)
            .or_else(|| schemes.iter().find_map(fits))
            .or(identities.first())?;
        Some(identity.certified())
    }
}

fn is_of_1_3(suite: CipherSuite) -> bool {
    u16::from(suite) >> 8 == 0x13
}

/// Whether signatures of this scheme have the padding of PKCS #1, version 1.5.
pub(super) fn is_pkcs1(scheme: SignatureScheme) -> bool {
    matches!(u16::from(scheme), 0x0401 | 0x0501 | 0x0601)
}

/// Asks for a certificate and takes any: it is judged when the handshake is over. That its owner holds the key is
/// proved here all the same.
#[derive(Debug)]
struct Asking {
    named: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Asking {
    fn new(wanted: &ClientCertificates) -> Asking {
        Asking {
            named: wanted
                .named
                .iter()
                .map(|name| DistinguishedName::from(name.clone()))
                .collect(),
            algorithms: algorithms(),
        }
    }
}

impl ClientCertVerifier for Asking {
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

/// Whether the owner of a certificate has signed the handshake. (rustls's own function refuses certificates of version
/// 1, which it can not read.)
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
    // In version 1.3 a scheme names its curve (RFC 8446, section 4.2.3).
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
    /// Trusts the certificates of `trust`, and names those of `named`.
    pub fn new(trust: Trust, named: &Trust) -> ClientCertificates {
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
