//! TLS of the client: it believes every certificate, and tells which one it was shown.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, HandshakeKind, SignatureScheme,
    StreamOwned,
};

/// The certificates that cases may name, as `%%TLS%%/NAME.crt` and `.key`: two of servers, and one of a client, which
/// `%%TLS%%/ca.crt` has signed.
const NAMES: &[&str] = &["a", "b", "client"];

/// Name, certificate and key, in PEM.
type Pair = (String, String, String);

/// Made once: a machine that ends leaves none behind.
fn pairs() -> Option<&'static [Pair]> {
    static PAIRS: OnceLock<Option<Vec<Pair>>> = OnceLock::new();
    PAIRS.get_or_init(|| made().ok()).as_deref()
}

fn made() -> Result<Vec<Pair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ca");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let mut pairs = vec![("ca".to_owned(), issuer.pem(), String::new())];
    for name in NAMES {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![format!("{name}.example")])?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, *name);
        let certificate = params.signed_by(&key, &issuer)?;
        pairs.push(((*name).to_owned(), certificate.pem(), key.serialize_pem()));
    }
    Ok(pairs)
}

/// Writes all of them into a folder.
pub fn write(folder: &Path) -> io::Result<()> {
    let pairs = pairs().ok_or_else(|| io::Error::other("no certificates could be made"))?;
    fs::create_dir_all(folder)?;
    for (name, certificate, key) in pairs {
        fs::write(folder.join(format!("{name}.crt")), certificate)?;
        fs::write(folder.join(format!("{name}.key")), key)?;
    }
    Ok(())
}

/// What the connections of a conversation share: sessions, by what the client has.
#[derive(Default)]
pub struct Sessions(BTreeMap<Vec<String>, Arc<ClientConfig>>);

/// A connection over TLS.
pub type Secured = StreamOwned<ClientConnection, TcpStream>;

impl Sessions {
    fn config(&mut self, has: &[String]) -> Option<Arc<ClientConfig>> {
        if let Some(known) = self.0.get(has) {
            return Some(Arc::clone(known));
        }
        let config = Arc::new(config(has)?);
        self.0.insert(has.to_vec(), Arc::clone(&config));
        Some(config)
    }

    /// The handshake, and what is told of it.
    pub fn begin(
        &mut self,
        stream: TcpStream,
        name: &str,
        has: &[String],
        wait: Duration,
    ) -> Result<(Secured, String), String> {
        let config = self.config(has).ok_or("no configuration")?;
        // An address is no name: nothing is asked for.
        let asked = if name.is_empty() { "127.0.0.1" } else { name };
        let asked = ServerName::try_from(asked.to_owned()).map_err(|why| why.to_string())?;
        let client = ClientConnection::new(config, asked).map_err(|why| why.to_string())?;
        stream
            .set_read_timeout(Some(wait))
            .map_err(|why| why.to_string())?;
        let mut secured = StreamOwned::new(client, stream);
        while secured.conn.is_handshaking() {
            let done = secured.conn.complete_io(&mut secured.sock);
            done.map_err(|why| why.to_string())?;
        }
        let told = told(&secured.conn);
        Ok((secured, told))
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
        CertificateDer::from_pem_slice(pair.1.as_bytes()).is_ok_and(|known| Some(&known) == shown)
    };
    let name = pairs().and_then(|all| all.iter().find(is_it));
    format!(
        "{version} certificate {} protocol {} resumed {resumed}",
        name.map_or("?", |pair| pair.0.as_str()),
        protocol.as_deref().unwrap_or("-"),
    )
}

fn config(has: &[String]) -> Option<ClientConfig> {
    let is = |word: &str| has.iter().any(|known| known == word);
    let versions: &[&rustls::SupportedProtocolVersion] = match (is("1.2"), is("1.3")) {
        (true, false) => &[&rustls::version::TLS12],
        (false, true) => &[&rustls::version::TLS13],
        _ => &[&rustls::version::TLS12, &rustls::version::TLS13],
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Credulous(provider)));
    let mut config = match is("certificate") {
        false => config.with_no_client_auth(),
        true => {
            let (_, certificate, key) = pairs()?.iter().find(|pair| pair.0 == "client")?;
            let certificate = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
            let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
            config.with_client_auth_cert(vec![certificate], key).ok()?
        }
    };
    if is("h2") {
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    }
    Some(config)
}

/// Believes every certificate: which one it was is what is compared.
#[derive(Debug)]
struct Credulous(Arc<CryptoProvider>);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
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
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
