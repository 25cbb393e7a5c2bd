//! What is wrong with a setting or a file of TLS.

use std::fmt;

/// What is wrong with a setting, in nginx's words, or with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The message.
    pub message: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>) -> Problem {
        Problem {
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
