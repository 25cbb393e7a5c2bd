//! What a server of the configuration does about TLS, as the engines see it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bstr::BString;
use conf::Expression;

use super::cache::IdentityCache;
use super::ocsp::StatusCheck;
use super::server::ServerSettings;
use super::verify::{Assessment, Fault};

/// The TLS of one `server {}` block.
pub struct Service {
    /// The settings; `None`: it has no certificate of its own, and another server's settings serve.
    pub settings: Option<ServerSettings>,
    /// The same with HTTP/2 offered.
    pub http2: Option<ServerSettings>,
    /// Clients that ask for it are refused before anything else (`ssl_reject_handshake`).
    pub rejects: bool,
    /// How clients' certificates are judged.
    pub asks: Asks,
    /// Their authorities are asked about them.
    pub status: Option<StatusCheck>,
    /// Certificates whose names depend on the client, with their keys.
    pub dynamic: Vec<(Expression, Expression)>,
    /// Where those are kept.
    pub cache: IdentityCache,
    /// How long a handshake may take, where the engine has no other time for it.
    pub handshake_timeout: Duration,
    /// What decrypts their keys.
    pub passwords: Arc<Vec<Vec<u8>>>,
}

/// The path of a certificate that variables have made: it counts from the directory of the configuration.
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
pub enum Asks {
    /// No certificate is asked for.
    #[default]
    No,
    /// One must be there and be good.
    Required,
    /// One that is there must be good.
    Optional,
    /// One that is there need not be signed by anybody who is known here.
    OptionalUnsigned,
}

/// Why a client is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its certificate is bad.
    Bad(Fault),
    /// It has none.
    Missing,
}

impl Asks {
    /// Whether a client with such a certificate is served.
    pub fn judge(self, assessment: Option<&Assessment>) -> Result<(), Refusal> {
        let assessment = assessment.unwrap_or(&Assessment::Absent);
        match (self, assessment) {
            (Asks::No, _) | (_, Assessment::Good) => Ok(()),
            (Asks::Required, Assessment::Absent) => Err(Refusal::Missing),
            (_, Assessment::Absent) => Ok(()),
            (Asks::OptionalUnsigned, Assessment::Bad(fault)) if fault.is_unknown_issuer() => Ok(()),
            (_, Assessment::Bad(fault)) => Err(Refusal::Bad(*fault)),
        }
    }
}
