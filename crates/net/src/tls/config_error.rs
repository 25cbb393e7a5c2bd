//! What is wrong with a setting or a file of TLS.

use std::fmt;

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
