//! TLS to upstream servers: the `…_ssl_…` directives, and the handshake.
//!
//! The directives fill in an [`UpstreamTls`]. [`UpstreamTls::build_client`] turns it into settings when the
//! configuration is read, if anything is proxied over TLS at all. For a connection, the variables are evaluated first
//! ([`UpstreamTls::handshake_parameters`]), so that the handshake needs nothing of the request.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use conf::{Expression, VariableScope};
use rt::net::SocketAddress;

use crate::Transport;
use crate::quic::{QuicConnectError, QuicConnection, connect_quic};
use crate::tls::{
    CipherChoice, ClientName, ClientOptions, ClientSettings, HandshakeError, IdentityCache,
    TlsConfigError, TlsIdentity, TlsProtocols, TlsSession, TrustStore, connect, load_file,
};

/// The values of the directives, named like them without `…_ssl_`.
#[derive(Clone, Default)]
pub struct UpstreamTls {
    /// Whether sessions are resumed.
    pub session_reuse: bool,
    /// The protocol versions, as bits of [`TlsProtocols::WORDS`].
    pub protocols: u32,
    /// The cipher suites, in OpenSSL's notation.
    pub ciphers: BString,
    /// The name that the certificate is verified for; `None`: the host of the URL.
    pub name: Option<Expression>,
    /// Whether that name is sent (SNI).
    pub server_name: bool,
    /// Whether the server's certificate is verified.
    pub verify: bool,
    /// How many intermediate certificates may be between it and a trusted one.
    pub verify_depth: i64,
    /// The file of trusted certificates; empty: none.
    pub trusted_certificate: PathBuf,
    /// The file of revocation lists; empty: none.
    pub crl: PathBuf,
    /// The client certificate to present; empty: none.
    pub certificate: Option<Expression>,
    /// Its key.
    pub certificate_key: Option<Expression>,
    /// The cache of certificates whose paths have variables.
    pub certificate_cache: Option<Arc<IdentityCache>>,
    /// Passwords of encrypted keys.
    pub passwords: Arc<Vec<Vec<u8>>>,
    /// `conf_command` lines: OpenSSL's own commands.
    pub conf_commands: Vec<(BString, BString)>,
    /// The protocols to offer by ALPN.
    pub alpn: Vec<Expression>,
    /// Something is proxied over TLS with these settings. Otherwise they are not checked and no file is read.
    pub is_used: bool,
    /// Verified certificates may have any name: the authority signs for members only.
    any_name: bool,
    built: Option<BuiltTlsClient>,
}

/// The name that a certificate must have, where one is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertifiedName {
    /// That of the server that is asked.
    Asked,
    /// Any: the authority signs for members only.
    Any,
}

impl fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamTls")
            .field("name", &self.name)
            .field("verify", &self.verify)
            .field("is_used", &self.is_used)
            .finish_non_exhaustive()
    }
}

/// The settings built from the directives.
#[derive(Clone)]
struct BuiltTlsClient {
    settings: ClientSettings,
    /// Unique: a part of the key under which idle connections are reused.
    id: u64,
    /// The directory that relative paths made of variables start from.
    prefix: PathBuf,
}

/// What one connection needs, with the variables evaluated.
#[derive(Clone, Debug, Default)]
pub struct HandshakeParameters {
    /// The name of the server, without a port.
    name: String,
    /// The paths of certificate and key if they contain variables and are not empty.
    certificate: Option<(BString, BString)>,
    alpn: Vec<Vec<u8>>,
    key: u64,
}

impl HandshakeParameters {
    /// Requests with an equal key may share connections: the same settings, server name and client certificate.
    /// Never 0, which stands for connections without TLS.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Asks for another name than `…_ssl_name`.
    pub fn set_name(&mut self, name: &BStr) {
        self.name = without_port(name).to_str_lossy().into_owned();
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        self.key = hasher.hash_one((self.key, &self.name)).max(1);
    }
}

/// Why the handshake with an upstream server failed, as a line for the error log.
#[derive(Debug)]
pub enum UpstreamTlsError {
    /// The fault is the server's or the network's: another server may be tried.
    Peer(String),
    /// The handshake took too long.
    TimedOut,
    /// The fault is ours, and no other server would help: a certificate of ours cannot be loaded.
    Ours(String),
}

/// The numbers of settings that were built.
fn next_id() -> u64 {
    static IDS: AtomicU64 = AtomicU64::new(1);
    IDS.fetch_add(1, Ordering::Relaxed)
}

impl fmt::Display for UpstreamTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpstreamTlsError::Peer(line) | UpstreamTlsError::Ours(line) => f.write_str(line),
            UpstreamTlsError::TimedOut => f.write_str("timed out while SSL handshaking"),
        }
    }
}

impl UpstreamTls {
    /// TLS without directives of an upstream: the settings are there, and certificates are verified by their authorities.
    pub fn of_client(settings: ClientSettings, name: CertifiedName) -> UpstreamTls {
        UpstreamTls {
            verify: true,
            is_used: true,
            any_name: name == CertifiedName::Any,
            built: Some(BuiltTlsClient {
                settings,
                id: next_id(),
                prefix: PathBuf::new(),
            }),
            ..UpstreamTls::default()
        }
    }

    /// What a connection to this host needs, where nothing depends on a request.
    pub fn fixed_parameters(&self, host: &BStr) -> HandshakeParameters {
        let mut parameters = HandshakeParameters {
            key: self.built.as_ref().map_or(0, |built| built.id),
            ..HandshakeParameters::default()
        };
        parameters.set_name(host);
        parameters
    }

    /// Builds the settings if they are used, and `changed` since they were built for the outer block. `read` reads
    /// files. Relative paths made of variables start at `conf_prefix`. `prefix` is that of the directives, such as
    /// `proxy_`, for messages.
    ///
    /// Returns the names of ciphers and groups that are not available but can be done without, for a warning.
    pub fn build_client(
        &mut self,
        changed: bool,
        prefix: &str,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Vec<String>, TlsConfigError> {
        if !self.is_used || self.built.is_some() && !changed {
            return Ok(Vec::new());
        }
        let mut choice = CipherChoice::default();
        choice.set_ciphers(&self.ciphers.to_str_lossy())?;
        let mut options = ClientOptions {
            protocols: TlsProtocols::from_bits(self.protocols),
            server_name: self.server_name,
            session_reuse: self.session_reuse,
            identity: self.constant_identity(prefix, conf_prefix, read)?,
            trust: self.trust(prefix, read)?,
            ..ClientOptions::default()
        };
        self.run_commands(&mut choice, &mut options, conf_prefix, read)?;
        let missing = choice.missing.clone();
        options.choice = choice;
        self.built = Some(BuiltTlsClient {
            settings: options.build()?,
            id: next_id(),
            prefix: conf_prefix.to_owned(),
        });
        Ok(missing)
    }

    /// The settings; `None` if they are not used.
    pub fn client_settings(&self) -> Option<&ClientSettings> {
        self.built.as_ref().map(|built| &built.settings)
    }

    /// The texts of certificate paths with variables: these files are opened while serving, so a sandbox must allow
    /// them.
    pub fn files_named_while_serving(&self) -> Vec<BString> {
        let names = [&self.certificate, &self.certificate_key];
        let mut texts: Vec<BString> = names
            .into_iter()
            .flatten()
            .map(|name| name.source().to_owned())
            .collect();
        if !texts.iter().any(|text| Expression::has_variables(text)) {
            texts.clear();
        }
        texts
    }

    /// The client certificate, if its path and its key's have no variables.
    fn constant_identity(
        &self,
        prefix: &str,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Arc<TlsIdentity>>, TlsConfigError> {
        let Some(certificate) = self.certificate.as_ref().filter(|text| !is_empty(text)) else {
            return Ok(None);
        };
        let Some(key) = &self.certificate_key else {
            return Err(TlsConfigError {
                message: format!(
                    "no \"{prefix}ssl_certificate_key\" is defined for certificate \"{}\"",
                    certificate.source()
                ),
            });
        };
        match (certificate.constant(), key.constant()) {
            (Some(certificate), Some(key)) => {
                let certificate = in_prefix(certificate, conf_prefix);
                let key = in_prefix(key, conf_prefix);
                TlsIdentity::load_shared(
                    certificate.as_bstr(),
                    key.as_bstr(),
                    &self.passwords,
                    read,
                )
                .map(Some)
            }
            _ => Ok(None),
        }
    }

    fn trust(
        &self,
        prefix: &str,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Arc<TrustStore>>, TlsConfigError> {
        if !self.verify {
            return Ok(None);
        }
        // nginx refuses this too: to verify against nothing would reject every server at run time.
        if self.trusted_certificate.as_os_str().is_empty() {
            return Err(TlsConfigError {
                message: format!("no {prefix}ssl_trusted_certificate for {prefix}ssl_verify"),
            });
        }
        let mut trust =
            TrustStore::without_anchors(usize::try_from(self.verify_depth).unwrap_or(0));
        let name = self.trusted_certificate.to_string_lossy().into_owned();
        let anchors = load_file("certificate", &self.trusted_certificate, read)?;
        trust.add_certificates(&anchors, &name)?;
        if !self.crl.as_os_str().is_empty() {
            let name = self.crl.to_string_lossy().into_owned();
            let lists = load_file("CRL", &self.crl, read)?;
            trust.add_revocations(&lists, &name)?;
        }
        Ok(Some(Arc::new(trust)))
    }

    /// Applies `…_ssl_conf_command`: OpenSSL's configuration commands, as far as they have a meaning here.
    fn run_commands(
        &self,
        choice: &mut CipherChoice,
        options: &mut ClientOptions,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(), TlsConfigError> {
        let mut certificate = None;
        for (name, value) in &self.conf_commands {
            let text = value.to_str_lossy();
            let failed = || TlsConfigError {
                message: format!(
                    "SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: error:0A000180:SSL routines::bad value:cmd={name}, \
                     value={value})"
                ),
            };
            let unknown = || TlsConfigError {
                message: format!(
                    "SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: error:0A000182:SSL routines::unknown cmd name:cmd={name})"
                ),
            };
            match name.to_ascii_lowercase().as_slice() {
                b"ciphersuites" => choice.set_ciphersuites(&text)?,
                b"cipherstring" => choice.set_ciphers(&text)?,
                b"curves" | b"groups" => choice.set_curves(&text)?,
                b"minprotocol" => match &*text {
                    "TLSv1.3" => options.protocols.tls12 = false,
                    "TLSv1.2" | "TLSv1.1" | "TLSv1" | "SSLv3" | "None" => {}
                    _ => return Err(failed()),
                },
                b"maxprotocol" => match &*text {
                    "TLSv1.2" => options.protocols.tls13 = false,
                    "TLSv1.3" | "None" => {}
                    _ => return Err(failed()),
                },
                b"protocol" => {
                    let bits =
                        TlsProtocols::apply_protocol_command(&text, options.protocols.bits());
                    options.protocols = TlsProtocols::from_bits(bits.ok_or_else(failed)?);
                }
                b"certificate" => certificate = Some(in_prefix(value.as_bstr(), conf_prefix)),
                b"privatekey" => {
                    let key = in_prefix(value.as_bstr(), conf_prefix);
                    let certificate = certificate.as_ref().ok_or_else(failed)?;
                    options.identity = Some(TlsIdentity::load(
                        certificate.as_bstr(),
                        key.as_bstr(),
                        &self.passwords,
                        read,
                    )?);
                }
                // Switches of OpenSSL's implementation, without a counterpart here. Accepted, so that existing
                // configurations load.
                b"options"
                | b"signaturealgorithms"
                | b"clientsignaturealgorithms"
                | b"numtickets"
                | b"recordpadding"
                | b"verifymode" => {}
                _ => return Err(unknown()),
            }
        }
        Ok(())
    }

    /// Evaluates the variables for a connection to `host`. `dialect` is the protocol that must be agreed on, if
    /// any.
    pub fn handshake_parameters<S: VariableScope>(
        &self,
        scope: &mut S,
        host: &BStr,
        dialect: &str,
    ) -> HandshakeParameters {
        let name = match &self.name {
            Some(name) => BString::from(name.to_bytes(scope)),
            None => host.to_owned(),
        };
        let name = without_port(&name).to_str_lossy().into_owned();
        let mut alpn: Vec<Vec<u8>> = match dialect {
            "" => Vec::new(),
            dialect => vec![dialect.into()],
        };
        alpn.extend(self.alpn.iter().filter_map(|protocol| {
            let protocol = protocol.to_bytes(scope);
            // ALPN has one byte for the length, and no empty names (RFC 7301, section 3.1).
            (1..=255).contains(&protocol.len()).then_some(protocol)
        }));
        let certificate = self.variable_certificate(scope);
        let id = self.built.as_ref().map_or(0, |built| built.id);
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        // All that a handshake depends on. A connection that was made for another name or certificate must not be
        // found under this key.
        let key = hasher.hash_one((id, &name, &certificate, &alpn)).max(1);
        HandshakeParameters {
            name,
            certificate,
            alpn,
            key,
        }
    }

    /// The paths of certificate and key, if one of them contains variables.
    fn variable_certificate<S: VariableScope>(&self, scope: &mut S) -> Option<(BString, BString)> {
        let (certificate, key) = (self.certificate.as_ref()?, self.certificate_key.as_ref()?);
        if certificate.constant().is_some() && (key.constant().is_some() || is_empty(certificate)) {
            return None;
        }
        let prefix = &self.built.as_ref()?.prefix;
        let certificate = certificate.to_bytes(scope);
        if certificate.is_empty() {
            return None;
        }
        let key = key.to_bytes(scope);
        Some((
            in_prefix(certificate.as_bstr(), prefix),
            in_prefix(key.as_bstr(), prefix),
        ))
    }

    /// Does the handshake on a connection that was just established.
    pub async fn handshake(
        &self,
        transport: &mut Transport,
        parameters: &HandshakeParameters,
        patience: Duration,
    ) -> Result<(), UpstreamTlsError> {
        let (settings, identity) = self.settings_for(parameters).await?;
        let name = ClientName {
            name: &parameters.name,
            identity,
        };
        // The caller's time limit covers the handshake: a server that accepts and then stays silent would hold the
        // request for ever.
        let session = rt::timeout(patience, connect(transport.socket(), &settings, name))
            .await
            .map_err(|_| UpstreamTlsError::TimedOut)?
            .map_err(|error: HandshakeError| UpstreamTlsError::Peer(error.to_string()))?;
        self.judge(&session, parameters)?;
        transport.set_tls(session);
        Ok(())
    }

    /// Makes a QUIC connection, whose handshake is the same but for the records.
    pub async fn connect_quic(
        &self,
        to: SocketAddr,
        from: Option<&SocketAddress>,
        parameters: &HandshakeParameters,
        patience: Duration,
    ) -> Result<Rc<QuicConnection>, UpstreamTlsError> {
        let (settings, identity) = self.settings_for(parameters).await?;
        let name = ClientName {
            name: &parameters.name,
            identity,
        };
        let connected = rt::timeout(patience, connect_quic(to, from, &settings, name))
            .await
            .map_err(|_| UpstreamTlsError::TimedOut)?;
        let connection = connected.map_err(|error| match error {
            QuicConnectError::Settings(_) => UpstreamTlsError::Ours(error.to_string()),
            QuicConnectError::Socket(_) | QuicConnectError::Closed(_) => {
                UpstreamTlsError::Peer(error.to_string())
            }
        })?;
        self.judge(connection.tls(), parameters)?;
        Ok(connection)
    }

    /// The settings of a connection, and its certificate if that depends on the request.
    async fn settings_for(
        &self,
        parameters: &HandshakeParameters,
    ) -> Result<(ClientSettings, Option<Arc<TlsIdentity>>), UpstreamTlsError> {
        let Some(built) = &self.built else {
            return Err(UpstreamTlsError::Ours("TLS is not configured".to_owned()));
        };
        let identity = match &parameters.certificate {
            None => None,
            Some(paths) => Some(self.load(paths).await?),
        };
        let settings = match parameters.alpn.is_empty() {
            true => built.settings.clone(),
            false => built.settings.with_alpn(parameters.alpn.clone()),
        };
        Ok((settings, identity))
    }

    /// As in nginx, the handshake accepts any certificate, and the chain and the name are judged afterwards: the log then says
    /// in OpenSSL's words what is wrong.
    fn judge(
        &self,
        session: &TlsSession,
        parameters: &HandshakeParameters,
    ) -> Result<(), UpstreamTlsError> {
        if !self.verify {
            return Ok(());
        }
        if let Some(error) = session.verify_error() {
            return Err(UpstreamTlsError::Peer(format!(
                "upstream SSL certificate verify error: {error}"
            )));
        }
        match self.any_name || session.is_for(&parameters.name) {
            true => Ok(()),
            false => Err(UpstreamTlsError::Peer(format!(
                "upstream SSL certificate does not match \"{}\"",
                parameters.name
            ))),
        }
    }

    async fn load(&self, paths: &(BString, BString)) -> Result<Arc<TlsIdentity>, UpstreamTlsError> {
        let (certificate, key) = (paths.0.as_bstr(), paths.1.as_bstr());
        let loaded = match &self.certificate_cache {
            Some(cache) => cache.get(certificate, key, &self.passwords).await,
            None => {
                // Without a cache each connection reads the files, as in nginx.
                let none = IdentityCache::new(0, Duration::ZERO, Duration::ZERO);
                none.get(certificate, key, &self.passwords).await
            }
        };
        loaded.map_err(|problem| UpstreamTlsError::Ours(problem.message))
    }
}

fn is_empty(text: &Expression) -> bool {
    text.constant().is_some_and(|text| text.is_empty())
}

/// Resolves a path like the configuration's other paths. `data:`, `engine:` and `store:` are not paths.
fn in_prefix(path: &BStr, prefix: &Path) -> BString {
    if ["data:", "engine:", "store:"]
        .iter()
        .any(|scheme| path.starts_with(scheme.as_bytes()))
    {
        return path.to_owned();
    }
    <[u8]>::from_path(&prefix.join(path.to_path_lossy()))
        .unwrap_or(path)
        .into()
}

/// A host without its port, which `$proxy_host` and `$http_host` may have. A colon within brackets belongs to an
/// IPv6 address.
fn without_port(name: &[u8]) -> &[u8] {
    let from = match name.first() {
        Some(b'[') => name.find_byte(b']').unwrap_or(0),
        _ => 0,
    };
    match name[from..].find_byte(b':') {
        Some(at) => &name[..from + at],
        None => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_do_not_belong_to_names() {
        for (name, expected) in [
            ("example.com", "example.com"),
            ("example.com:8443", "example.com"),
            ("[::1]:443", "[::1]"),
            ("[::1]", "[::1]"),
            ("", ""),
        ] {
            assert_eq!(without_port(name.as_bytes()), expected.as_bytes());
        }
    }

    #[test]
    fn what_is_no_path_stays_as_it_is() {
        let prefix = Path::new("/etc/x");
        for (path, expected) in [
            ("a.pem", "/etc/x/a.pem"),
            ("/a.pem", "/a.pem"),
            ("data:-----BEGIN", "data:-----BEGIN"),
        ] {
            assert_eq!(in_prefix(path.into(), prefix), expected);
        }
    }
}
