//! TLS to the servers of a group: what the rows `…_ssl_…` say, and the handshake that comes of it.
//!
//! The rows fill in a [`Secure`]; [`Secure::settle`] makes settings of it when the configuration is read, where something
//! is passed on by TLS at all. For a connection the variables are evaluated first ([`Secure::asked`]); the handshake
//! needs nothing of the request any more.

use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bstr::{BStr, BString, ByteSlice};
use conf::{Expression, Scope};

use crate::Transport;
use crate::tls::{
    Choice, ClientName, ClientOptions, ClientSettings, HandshakeError, Identity, IdentityCache,
    Problem, Protocols, Trust, connect, load_file,
};

/// What the rows say. Names are those of the directives, without `…_ssl_`.
#[derive(Clone, Default)]
pub struct Secure {
    /// Sessions are resumed.
    pub session_reuse: bool,
    /// The versions, as bits of [`Protocols::WORDS`].
    pub protocols: u32,
    /// The suites, in OpenSSL's notation.
    pub ciphers: BString,
    /// The name that the certificate must have; `None`: the host of the URL.
    pub name: Option<Expression>,
    /// That name is sent (SNI).
    pub server_name: bool,
    /// The server's certificate is judged.
    pub verify: bool,
    /// How many certificates may stand between it and a trusted one.
    pub verify_depth: i64,
    /// The file of trusted certificates; empty: none.
    pub trusted_certificate: PathBuf,
    /// The file of revocation lists; empty: none.
    pub crl: PathBuf,
    /// The certificate that is shown to servers; empty: none.
    pub certificate: Option<Expression>,
    /// Its key.
    pub certificate_key: Option<Expression>,
    /// Where certificates are kept whose paths have variables.
    pub certificate_cache: Option<Arc<IdentityCache>>,
    /// Passwords of encrypted keys.
    pub passwords: Arc<Vec<Vec<u8>>>,
    /// `conf_command` lines: OpenSSL's own commands.
    pub conf_commands: Vec<(BString, BString)>,
    /// The protocols to agree on (ALPN).
    pub alpn: Vec<Expression>,
    /// Something is passed on by TLS with these settings.
    pub is_used: bool,
    built: Option<Built>,
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secure")
            .field("name", &self.name)
            .field("verify", &self.verify)
            .field("is_used", &self.is_used)
            .finish_non_exhaustive()
    }
}

/// What was made of the rows.
#[derive(Clone)]
struct Built {
    settings: ClientSettings,
    /// Tells it from all others.
    id: u64,
    /// Where relative paths made of variables begin.
    prefix: PathBuf,
}

/// What a connection needs, with its variables evaluated.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The name of the server, without a port.
    name: String,
    /// The paths of certificate and key, where they have variables and are not empty.
    certificate: Option<(BString, BString)>,
    alpn: Vec<Vec<u8>>,
    key: u64,
}

impl Asked {
    /// Who may use the same connections: the same settings for the same name with the same certificate. Never 0, which
    /// stands for connections without TLS.
    pub fn key(&self) -> u64 {
        self.key
    }
}

/// Why there is no TLS on a connection to a server, as a line for the error log.
#[derive(Debug)]
pub enum NotSecure {
    /// The server is to blame, or the way to it: another one may be tried.
    Peer(String),
    /// It took too long.
    TimedOut,
    /// No server can change it: a certificate of ours can not be loaded.
    Ours(String),
}

impl Secure {
    /// Makes settings of the rows, if they are used and `changed` since they were made for the outer block. `read` reads
    /// files; paths made of variables count from `conf_prefix`. `prefix` is that of the directives: `proxy_`.
    ///
    /// Gives too what is not to be had and can be gone without, for a warning.
    pub fn settle(
        &mut self,
        changed: bool,
        prefix: &str,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Vec<String>, Problem> {
        if !self.is_used || self.built.is_some() && !changed {
            return Ok(Vec::new());
        }
        static IDS: AtomicU64 = AtomicU64::new(1);
        let mut choice = Choice::default();
        choice.set_ciphers(&self.ciphers.to_str_lossy())?;
        let mut options = ClientOptions {
            protocols: Protocols::from_bits(self.protocols),
            server_name: self.server_name,
            session_reuse: self.session_reuse,
            identity: self.constant_identity(prefix, conf_prefix, read)?,
            trust: self.trust(prefix, read)?,
            ..ClientOptions::default()
        };
        self.run_commands(&mut choice, &mut options, conf_prefix, read)?;
        let missing = choice.missing.clone();
        options.choice = choice;
        self.built = Some(Built {
            settings: options.build()?,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            prefix: conf_prefix.to_owned(),
        });
        Ok(missing)
    }

    /// What was made of the rows; `None` where they are not used.
    pub fn client(&self) -> Option<&ClientSettings> {
        self.built.as_ref().map(|built| &built.settings)
    }

    /// The texts of paths that are known only while serving.
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

    /// The certificate, if its path and its key's are known now.
    fn constant_identity(
        &self,
        prefix: &str,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Arc<Identity>>, Problem> {
        let Some(certificate) = self.certificate.as_ref().filter(|text| !is_empty(text)) else {
            return Ok(None);
        };
        let Some(key) = &self.certificate_key else {
            return Err(Problem {
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
                Identity::load(certificate.as_bstr(), key.as_bstr(), &self.passwords, read)
                    .map(Some)
            }
            _ => Ok(None),
        }
    }

    fn trust(
        &self,
        prefix: &str,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Option<Arc<Trust>>, Problem> {
        if !self.verify {
            return Ok(None);
        }
        if self.trusted_certificate.as_os_str().is_empty() {
            return Err(Problem {
                message: format!("no {prefix}ssl_trusted_certificate for {prefix}ssl_verify"),
            });
        }
        let mut trust = Trust::nobody(usize::try_from(self.verify_depth).unwrap_or(0));
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

    /// OpenSSL's commands, as far as they mean something here.
    fn run_commands(
        &self,
        choice: &mut Choice,
        options: &mut ClientOptions,
        conf_prefix: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(), Problem> {
        let mut certificate = None;
        for (name, value) in &self.conf_commands {
            let text = value.to_str_lossy();
            let failed = || Problem {
                message: format!(
                    "SSL_CONF_cmd(\"{name}\", \"{value}\") failed (SSL: error:0A000180:SSL routines::bad value:cmd={name}, \
                     value={value})"
                ),
            };
            let unknown = || Problem {
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
                    let bits = Protocols::command(&text, options.protocols.bits());
                    options.protocols = Protocols::from_bits(bits.ok_or_else(failed)?);
                }
                b"certificate" => certificate = Some(in_prefix(value.as_bstr(), conf_prefix)),
                b"privatekey" => {
                    let key = in_prefix(value.as_bstr(), conf_prefix);
                    let certificate = certificate.as_ref().ok_or_else(failed)?;
                    options.identity = Some(Identity::load(
                        certificate.as_bstr(),
                        key.as_bstr(),
                        &self.passwords,
                        read,
                    )?);
                }
                // Switches of OpenSSL's own ways, which have no counterpart.
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

    /// Evaluates what a connection to `host` needs; `dialect` is the protocol that it must speak, if that matters.
    pub fn asked<S: Scope>(&self, scope: &mut S, host: &BStr, dialect: &str) -> Asked {
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
            // Longer ones can not be written.
            (1..=255).contains(&protocol.len()).then_some(protocol)
        }));
        let certificate = self.variable_certificate(scope);
        let id = self.built.as_ref().map_or(0, |built| built.id);
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let key = hasher.hash_one((id, &name, &certificate, &alpn)).max(1);
        Asked {
            name,
            certificate,
            alpn,
            key,
        }
    }

    /// The paths of the certificate and its key, where one of them has variables.
    fn variable_certificate<S: Scope>(&self, scope: &mut S) -> Option<(BString, BString)> {
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

    /// Speaks TLS on a connection that was just made.
    pub async fn handshake(
        &self,
        transport: &mut Transport,
        asked: &Asked,
        patience: Duration,
    ) -> Result<(), NotSecure> {
        let Some(built) = &self.built else {
            return Err(NotSecure::Ours("TLS is not configured".to_owned()));
        };
        let identity = match &asked.certificate {
            None => None,
            Some(paths) => Some(self.load(paths).await?),
        };
        let settings = match asked.alpn.is_empty() {
            true => built.settings.clone(),
            false => built.settings.with_alpn(asked.alpn.clone()),
        };
        let name = ClientName {
            name: &asked.name,
            identity,
        };
        let session = rt::timeout(patience, connect(transport.socket(), &settings, name))
            .await
            .map_err(|_| NotSecure::TimedOut)?
            .map_err(|error: HandshakeError| NotSecure::Peer(error.to_string()))?;
        if self.verify {
            if let Some(error) = session.verify_error() {
                return Err(NotSecure::Peer(format!(
                    "upstream SSL certificate verify error: {error}"
                )));
            }
            if !session.is_for(&asked.name) {
                return Err(NotSecure::Peer(format!(
                    "upstream SSL certificate does not match \"{}\"",
                    asked.name
                )));
            }
        }
        transport.secure(session);
        Ok(())
    }

    async fn load(&self, paths: &(BString, BString)) -> Result<Arc<Identity>, NotSecure> {
        let (certificate, key) = (paths.0.as_bstr(), paths.1.as_bstr());
        let loaded = match &self.certificate_cache {
            Some(cache) => cache.get(certificate, key, &self.passwords).await,
            None => {
                let none = IdentityCache::new(0, Duration::ZERO, Duration::ZERO);
                none.get(certificate, key, &self.passwords).await
            }
        };
        loaded.map_err(|problem| NotSecure::Ours(problem.message))
    }
}

fn is_empty(text: &Expression) -> bool {
    text.constant().is_some_and(|text| text.is_empty())
}

/// A path as the configuration's other paths are; `data:` is none.
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

/// A host without its port, which `$proxy_host` and `$http_host` may have.
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
