//! What is wrong with a setting or a file of TLS.

use std::fmt;

use conf::{Diagnostic, Span};

/// What is wrong with a setting, in nginx's words, or with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfigError {
    /// The message.
    pub message: String,
}

impl TlsConfigError {
    pub(super) fn new(message: impl Into<String>) -> TlsConfigError {
        TlsConfigError {
            message: message.into(),
        }
    }
}

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The error about a server that has to accept TLS connections and has no certificate. `server` is its block.
pub fn certificate_missing(server: Option<Span>) -> Diagnostic {
    let message = "no \"ssl_certificate\" is defined for the \"listen ... ssl\" directive";
    Diagnostic::error(message, server).note(
        "give this server \"ssl_certificate\" and \"ssl_certificate_key\", or refuse TLS here with \"ssl_reject_handshake on;\"",
    )
}
