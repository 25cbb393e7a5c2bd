//! TLS of the client: it believes every certificate, and tells which one it was shown.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::certificates::{self, Pair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme,
    StreamOwned,
};

/// What the connections of a conversation share: sessions, by what the client has.
#[derive(Default)]
pub struct Sessions(BTreeMap<Vec<String>, Known>);

/// A configuration of the client, and how long the OCSP response was that came with the last certificate.
#[derive(Clone)]
struct Known(Arc<ClientConfig>, Arc<AtomicUsize>);

/// What a client that has `early` sends as early data, where a session allows it.
pub(super) const EARLY: &[u8] = b"GET /t/early HTTP/1.1\r\nHost: a.example\r\n\r\n";

/// What became of a request that was sent as early data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyData {
    /// None was sent.
    None,
    /// The server has it.
    Taken,
    /// It is to be sent again.
    Refused,
}

/// A connection over TLS.
pub type Secured = StreamOwned<ClientConnection, TcpStream>;

impl Sessions {
    fn config(&mut self, has: &[String]) -> Option<Known> {
        if let Some(known) = self.0.get(has) {
            return Some(known.clone());
        }
        let stapled = Arc::default();
        let known = Known(Arc::new(config(has, &stapled)?), stapled);
        self.0.insert(has.to_vec(), known.clone());
        Some(known)
    }

    /// The handshake, and what is told of it.
    pub fn begin(
        &mut self,
        stream: TcpStream,
        name: &str,
        has: &[String],
        wait: Duration,
    ) -> Result<(Secured, String, EarlyData), String> {
        let Known(config, stapled) = self.config(has).ok_or("no configuration")?;
        stapled.store(0, Ordering::Relaxed);
        let mut has_early = false;
        // An address is no name: nothing is asked for.
        let asked = if name.is_empty() { "127.0.0.1" } else { name };
        let asked = ServerName::try_from(asked.to_owned()).map_err(|why| why.to_string())?;
        let mut client = ClientConnection::new(config, asked).map_err(|why| why.to_string())?;
        if let Some(mut early) = client.early_data() {
            early.write_all(EARLY).map_err(|why| why.to_string())?;
            has_early = true;
        }
        stream
            .set_read_timeout(Some(wait))
            .map_err(|why| why.to_string())?;
        let mut secured = StreamOwned::new(client, stream);
        while secured.conn.is_handshaking() {
            let done = secured.conn.complete_io(&mut secured.sock);
            done.map_err(|why| why.to_string())?;
        }
        let mut told = told(&secured.conn);
        let stapled = stapled.load(Ordering::Relaxed);
        if stapled > 0 {
            told.push_str(&format!(" stapled {stapled}"));
        }
        let early = match (has_early, secured.conn.is_early_data_accepted()) {
            (false, _) => EarlyData::None,
            (true, true) => EarlyData::Taken,
            (true, false) => EarlyData::Refused,
        };
        Ok((secured, told, early))
    }
}

/// What a handshake showed. Suites and groups are each library's own.
fn told(client: &ClientConnection) -> String {
    let version = client
        .protocol_version()
        .map_or("?", |version| version.as_str().unwrap_or("?"));
    let protocol = client.alpn_protocol().map(String::from_utf8_lossy);
    let resumed = client.handshake_kind() == Some(HandshakeKind::Resumed);
    let shown = client.peer_certificates().and_then(|all| all.first());
    let is_it = |pair: &&Pair| {
        CertificateDer::from_pem_slice(pair.certificates.as_bytes())
            .is_ok_and(|known| Some(&known) == shown)
    };
    let name = certificates::pairs().iter().find(is_it);
    format!(
        "{version} certificate {} protocol {} resumed {resumed}",
        name.map_or("?", |pair| pair.name.as_str()),
        protocol.as_deref().unwrap_or("-"),
    )
}

fn config(has: &[String], stapled: &Arc<AtomicUsize>) -> Option<ClientConfig> {
    let is = |word: &str| has.iter().any(|known| known == word);
    let versions: &[&rustls::SupportedProtocolVersion] = match (is("1.2"), is("1.3")) {
        (true, false) => &[&rustls::version::TLS12],
        (false, true) => &[&rustls::version::TLS13],
        _ => &[&rustls::version::TLS12, &rustls::version::TLS13],
    };
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    for (word, part) in SUITES.iter().filter(|(word, _)| is(word)) {
        let has_it = |suite: &rustls::SupportedCipherSuite| {
            let name = suite.suite().as_str().unwrap_or("");
            // The suites of TLS 1.3 tell nothing of a key.
            name.contains(part) || (name.starts_with("TLS13") && ["rsa", "ecdsa"].contains(word))
        };
        provider.cipher_suites.retain(has_it);
    }
    // Those that libraries of all ages know by name.
    let group = |group: &&dyn rustls::crypto::SupportedKxGroup| match is("p256") {
        true => group.name() == rustls::NamedGroup::secp256r1,
        false => group.name() != rustls::NamedGroup::X25519MLKEM768,
    };
    provider.kx_groups.retain(group);
    let provider = Arc::new(provider);
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous {
            provider,
            stapled: Arc::clone(stapled),
        }));
    let own = has.iter().find_map(|word| match word.as_str() {
        "certificate" => Some("client"),
        word => word.strip_prefix("as:"),
    });
    let mut config = match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let pair = certificates::pairs().iter().find(|pair| pair.name == own)?;
            let chain = CertificateDer::pem_slice_iter(pair.certificates.as_bytes());
            let chain: Vec<_> = chain.collect::<Result<_, _>>().ok()?;
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).ok()?;
            config.with_client_auth_cert(chain, key).ok()?
        }
    };
    config.enable_early_data = is("early") && !is("h2");
    if is("h2") {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    } else if is("http/1.1") {
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
    } else if is("none") {
        config.alpn_protocols = vec![b"x".to_vec()];
    }
    Some(config)
}

/// Words of what a client has, and what the names of the suites hold that it offers then.
const SUITES: &[(&str, &str)] = &[
    ("rsa", "_RSA_"),
    ("ecdsa", "_ECDSA_"),
    ("aes128", "AES_128"),
    ("aes256", "AES_256"),
    ("chacha", "CHACHA20"),
];

/// Believes every certificate: which one it was is what is compared.
#[derive(Debug)]
struct Credulous {
    provider: Arc<CryptoProvider>,
    /// How long the OCSP response was.
    stapled: Arc<AtomicUsize>,
}

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        stapled: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.stapled.store(stapled.len(), Ordering::Relaxed);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
