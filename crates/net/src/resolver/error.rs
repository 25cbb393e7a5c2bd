//! Why a name was not resolved.

use std::fmt;

/// Why a name was not resolved, in the numbers that nginx logs: DNS response codes, and errno's `ETIMEDOUT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// No `resolver` is configured.
    NoResolver,
    /// The server said so, with this response code.
    Code(u8),
    /// There was no answer within `resolver_timeout`.
    TimedOut,
}

impl ResolveError {
    /// The name, or what was asked for of it, does not exist (NXDOMAIN).
    pub const UNKNOWN: ResolveError = ResolveError::Code(3);
    /// Not the fault of the name: too much is going on, or a query was lost inside the server (SERVFAIL).
    pub(super) const FAILURE: ResolveError = ResolveError::Code(2);
    /// No server understood the question (FORMERR).
    pub(super) const FORMAT: ResolveError = ResolveError::Code(1);

    /// Whether it is certain that there are no addresses. After any other error, those known before may still be good.
    pub fn is_unknown(self) -> bool {
        self == ResolveError::UNKNOWN
    }

    /// Whether nobody could be asked.
    pub fn is_no_resolver(self) -> bool {
        self == ResolveError::NoResolver
    }

    fn number(self) -> i32 {
        match self {
            ResolveError::NoResolver => 0,
            ResolveError::Code(code) => i32::from(code),
            ResolveError::TimedOut => 110,
        }
    }
}

impl fmt::Display for ResolveError {
    /// What follows `NAME could not be resolved ` in the error log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ResolveError::NoResolver => "no resolver defined",
            ResolveError::Code(1) => "Format error",
            ResolveError::Code(2) => "Server failure",
            ResolveError::Code(3) => "Host not found",
            ResolveError::Code(4) => "Unimplemented",
            ResolveError::Code(5) => "Operation refused",
            ResolveError::Code(_) => "Unknown error",
            ResolveError::TimedOut => "Operation timed out",
        };
        write!(f, "({}: {text})", self.number())
    }
}

impl std::error::Error for ResolveError {}
