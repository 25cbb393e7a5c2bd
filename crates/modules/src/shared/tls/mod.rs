//! The directives about TLS that http and stream have in common: `ssl_certificate` and its kin, and the variables that
//! tell what came of a handshake.
//!
//! [`rows`] is the table, [`build`] makes of it what the engines use, [`variables`] shows the results. The TLS itself is
//! [`net::tls`].

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
use net::tls::ocsp::Checks;
use net::tls::{Asks, Service};

/// The settings of a server as they are read.
#[derive(Clone, Default)]
pub(crate) struct TlsConf {
    pub(crate) certificates: Vec<Source>,
    pub(crate) keys: Vec<Source>,
    pub(crate) certificate_cache: Option<CertificateCache>,
    /// Of `ssl_password_file`.
    pub(crate) passwords: Arc<Vec<Vec<u8>>>,
    /// `ssl_ech_file` was said.
    pub(crate) ech: bool,
    pub(crate) compress: bool,
    /// Bits of [`net::tls::Protocols::WORDS`].
    pub(crate) protocols: u32,
    pub(crate) ciphers: Word,
    pub(crate) curves: Word,
    pub(crate) prefer_server_ciphers: bool,
    pub(crate) asks: Asks,
    pub(crate) depth: i64,
    pub(crate) client_certificate: Option<File>,
    pub(crate) trusted_certificate: Option<File>,
    pub(crate) crl: Option<File>,
    pub(crate) session_cache: SessionCaching,
    pub(crate) session_timeout: Duration,
    pub(crate) tickets: bool,
    pub(crate) ticket_keys: Vec<File>,
    pub(crate) stapling: bool,
    pub(crate) stapling_file: Option<File>,
    pub(crate) stapling_responder: Option<Word>,
    pub(crate) stapling_verify: bool,
    /// Which clients' certificates are asked about.
    pub(crate) ocsp: Option<Checks>,
    pub(crate) ocsp_responder: Option<Word>,
    /// The name and size of the cache of answers.
    pub(crate) ocsp_cache: Option<(String, usize)>,
    pub(crate) commands: Vec<(BString, BString, Span)>,
    pub(crate) rejects: bool,
    pub(crate) buffer_size: u64,
    pub(crate) early_data: bool,
    /// `ssl_alpn` of stream.
    pub(crate) alpn: Vec<BString>,
    pub(crate) handshake_timeout: Duration,
    /// What all of it came to; `None` before the block is complete, and where there is nothing to use.
    pub(crate) service: Option<Arc<Service>>,
}

/// A word and where it stands.
#[derive(Clone, Default)]
pub(crate) struct Word {
    pub(crate) text: BString,
    pub(crate) span: Option<Span>,
}

/// A file that is read with the configuration.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) span: Span,
}

/// Where a certificate or a key comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The word as it stands: a path, or `data:` and the text.
    Fixed(BString, Span),
    /// A path that depends on the client.
    Dynamic(Expression, Span),
}

impl Source {
    /// The word as it stands.
    pub(crate) fn name(&self) -> &BStr {
        match self {
            Source::Fixed(name, _) => name.as_bstr(),
            Source::Dynamic(expression, _) => expression.source().as_bstr(),
        }
    }
}

/// `ssl_certificate_cache`
#[derive(Clone, Copy)]
pub(crate) struct CertificateCache {
    pub(crate) max: usize,
    pub(crate) inactive: Duration,
    pub(crate) valid: Duration,
}

/// `ssl_session_cache`
#[derive(Clone, Default)]
pub(crate) enum SessionCaching {
    /// Nothing is remembered.
    #[default]
    None,
    /// One of its own, of so many sessions.
    Builtin(usize),
    /// One that has a name, of so many bytes.
    Shared(String, usize),
}
