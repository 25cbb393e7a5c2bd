//! The TLS configuration of one `server` block, as the engines use it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::BString;
use conf::Expression;

use super::identity_cache::IdentityCache;
use super::ocsp::StatusCheck;
use super::server::ServerSettings;
use super::verify::{VerifyError, VerifyResult};

/// The TLS of one `server {}` block.
pub struct ServerTls {
    /// The settings; `None` if it has no certificate: then the default server's settings apply.
    pub settings: Option<ServerSettings>,
    /// The settings with HTTP/2 in ALPN.
    pub http2: Option<ServerSettings>,
    /// The settings for QUIC, made when the first client connects.
    pub quic: OnceLock<ServerSettings>,
    /// Handshakes for this server are refused (`ssl_reject_handshake`).
    pub rejects: bool,
    /// Whether clients need a certificate.
    pub verify_client: VerifyClient,
    /// OCSP checks of clients' certificates.
    pub status: Option<StatusCheck>,
    /// Certificates and keys whose paths contain variables.
    pub dynamic: Vec<(Expression, Expression)>,
    /// The cache of those.
    pub cache: IdentityCache,
    /// The time limit of a handshake, if the engine has no other.
    pub handshake_timeout: Duration,
    /// The passwords of their keys.
    pub passwords: Arc<Vec<Vec<u8>>>,
}

impl ServerTls {
    /// The settings for QUIC, with these ALPN protocols: always the same, which its configuration says.
    pub fn quic_settings(
        &self,
        protocols: impl FnOnce() -> Vec<Vec<u8>>,
    ) -> Option<&ServerSettings> {
        let settings = self.settings.as_ref()?;
        Some(self.quic.get_or_init(|| settings.with_quic(protocols())))
    }
}

/// The full path of a certificate whose path was made of variables: relative to the directory of the configuration.
pub fn full_path(conf_prefix: &Path, text: &[u8]) -> BString {
    let is_word = [&b"data:"[..], b"engine:", b"store:", b"/"]
        .iter()
        .any(|prefix| text.starts_with(prefix));
    if is_word {
        return text.into();
    }
    let full = conf_prefix.join(OsStr::from_bytes(text));
    full.as_os_str().as_bytes().into()
}

/// `ssl_verify_client`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyClient {
    /// No certificate is asked for.
    #[default]
    No,
    /// A valid certificate is required.
    Required,
    /// A certificate must be valid if the client sends one.
    Optional,
    /// A certificate need not be signed by a known authority (`optional_no_ca`).
    OptionalUnsigned,
}

/// Why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateRefusal {
    /// Its certificate is bad.
    Bad(VerifyError),
    /// It has none.
    Missing,
}

impl VerifyClient {
    /// Whether a client with this result is served.
    pub fn check_verify_result(
        self,
        verify_result: Option<&VerifyResult>,
    ) -> Result<(), CertificateRefusal> {
        let verify_result = verify_result.unwrap_or(&VerifyResult::Absent);
        match (self, verify_result) {
            (VerifyClient::No, _) | (_, VerifyResult::Good) => Ok(()),
            (VerifyClient::Required, VerifyResult::Absent) => Err(CertificateRefusal::Missing),
            (_, VerifyResult::Absent) => Ok(()),
            (VerifyClient::OptionalUnsigned, VerifyResult::Bad(fault))
                if fault.is_unknown_issuer() =>
            {
                Ok(())
            }
            (_, VerifyResult::Bad(fault)) => Err(CertificateRefusal::Bad(*fault)),
        }
    }
}
