//! The TLS directives that http and stream share, `ssl_certificate` and its kin, and the variables
//! that show the result of a handshake.
//!
//! [`rows`] is the table, [`build`] turns it into what the engines use, and [`variables`] shows
//! results. TLS itself is in [`net::tls`].

pub(crate) mod build;
pub(crate) mod commands;
mod ocsp;
pub(crate) mod rows;
pub(crate) mod variables;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::Span;
use bstr::{BStr, BString, ByteSlice};
use conf::Expression;
use net::tls::ocsp::OcspScope;
use net::tls::{ServerTls, VerifyClient};

/// Gets TLS ready where a server uses it: the first use takes many milliseconds to collect
/// randomness, which is better now than while a client waits.
pub(crate) fn warm_up(is_used: bool) {
    if is_used {
        net::tls::warm_up();
    }
}

/// A server's settings as written. They become a [`ServerTls`] once the block is complete, because
/// several lines have to be seen together.
#[derive(Clone, Default)]
pub(crate) struct TlsConf {
    pub(crate) certificates: Vec<CertificateSource>,
    pub(crate) keys: Vec<CertificateSource>,
    pub(crate) certificate_cache: Option<CertificateCache>,
    /// The passphrases of `ssl_password_file`.
    pub(crate) passwords: Arc<Vec<Vec<u8>>>,
    /// `ssl_ech_file` is set.
    pub(crate) has_ech_file: bool,
    /// `ssl_certificate_compression`.
    pub(crate) compress: bool,
    /// Bits of [`net::tls::TlsProtocols::WORDS`].
    pub(crate) protocols: u32,
    pub(crate) ciphers: SpannedWord,
    /// `ssl_ecdh_curve`.
    pub(crate) curves: SpannedWord,
    pub(crate) prefer_server_ciphers: bool,
    /// `ssl_verify_client`.
    pub(crate) verify_client: VerifyClient,
    /// `ssl_verify_depth`.
    pub(crate) depth: i64,
    pub(crate) client_certificate: Option<SpannedFile>,
    pub(crate) trusted_certificate: Option<SpannedFile>,
    /// `ssl_crl`.
    pub(crate) crl: Option<SpannedFile>,
    pub(crate) session_cache: SessionCaching,
    pub(crate) session_timeout: Duration,
    pub(crate) tickets: bool,
    pub(crate) ticket_keys: Vec<SpannedFile>,
    pub(crate) stapling: bool,
    pub(crate) stapling_file: Option<SpannedFile>,
    pub(crate) stapling_responder: Option<SpannedWord>,
    pub(crate) stapling_verify: bool,
    /// Which certificates are checked by OCSP; `None`: none.
    pub(crate) ocsp: Option<OcspScope>,
    pub(crate) ocsp_responder: Option<SpannedWord>,
    /// Name and size of the cache of OCSP responses.
    pub(crate) ocsp_cache: Option<(String, usize)>,
    /// `ssl_conf_command`, applied last, as in OpenSSL.
    pub(crate) commands: Vec<(BString, BString, Span)>,
    /// `ssl_reject_handshake`.
    pub(crate) reject_handshake: bool,
    pub(crate) buffer_size: u64,
    pub(crate) early_data: bool,
    /// `ssl_alpn` of stream.
    pub(crate) alpn: Vec<BString>,
    pub(crate) handshake_timeout: Duration,
    /// The result of all this; `None` before the block is complete, and if there is nothing to use.
    pub(crate) service: Option<Arc<ServerTls>>,
}

/// A word and its place, for errors that only show later.
#[derive(Clone, Default)]
pub(crate) struct SpannedWord {
    pub(crate) text: BString,
    pub(crate) span: Option<Span>,
}

/// A file that is read together with the configuration.
#[derive(Clone)]
pub(crate) struct SpannedFile {
    pub(crate) path: PathBuf,
    pub(crate) span: Span,
}

/// Where a certificate or a key comes from.
#[derive(Clone)]
pub(crate) enum CertificateSource {
    /// Known now: a path, or `data:` and the text itself.
    Fixed(BString, Span),
    /// Depends on the connection, the server name for example.
    Dynamic(Expression, Span),
}

impl CertificateSource {
    /// The word as written.
    pub(crate) fn name(&self) -> &BStr {
        match self {
            CertificateSource::Fixed(name, _) => name.as_bstr(),
            CertificateSource::Dynamic(expression, _) => expression.source().as_bstr(),
        }
    }
}

/// `ssl_certificate_cache`
#[derive(Clone, Copy)]
pub(crate) struct CertificateCache {
    /// The number of certificates.
    pub(crate) max: usize,
    /// An unused one is dropped after this time.
    pub(crate) inactive: Duration,
    /// Its files are checked for changes after this time.
    pub(crate) valid: Duration,
}

/// `ssl_session_cache`
#[derive(Clone, Default)]
pub(crate) enum SessionCaching {
    /// No cache: sessions are resumed by tickets only.
    #[default]
    None,
    /// A cache of this server's own, for this many sessions.
    Builtin(usize),
    /// A named cache that servers share, with its size in bytes.
    Shared(String, usize),
}
