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

/// The error about a server that has to accept TLS connections and has no certificate. `parameter` of its `listen` says so,
/// and `server` is its block.
pub fn certificate_missing(parameter: &str, server: Option<Span>) -> Diagnostic {
    let message =
        format!("no \"ssl_certificate\" is defined for the \"listen ... {parameter}\" directive");
    Diagnostic::error(message, server).note(
        "give this server \"ssl_certificate\" and \"ssl_certificate_key\", or refuse TLS here with \"ssl_reject_handshake on;\"",
    )
}
