//! Why a name was not resolved.

use std::fmt;

/// Why a name was not resolved, in the numbers that nginx logs: DNS response codes, and errno's `ETIMEDOUT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolveError {
    /// No `resolver` is configured.
    NoResolver,
    /// The server answered with this response code.
    Code(u8),
    /// There was no answer within `resolver_timeout`.
    TimedOut,
}

impl ResolveError {
    /// The name does not exist, or has no record of the kind that was asked for (NXDOMAIN).
    pub const UNKNOWN: ResolveError = ResolveError::Code(3);
    /// Not the name's fault: too many lookups are under way, or a query failed inside this server (SERVFAIL).
    pub(super) const FAILURE: ResolveError = ResolveError::Code(2);
    /// No server understood the question (FORMERR).
    pub(super) const FORMAT: ResolveError = ResolveError::Code(1);

    /// Whether it is certain that there are no addresses. After any other error, addresses that are known from
    /// before stay in use.
    pub fn is_unknown(self) -> bool {
        self == ResolveError::UNKNOWN
    }

    /// Whether there was no server to ask.
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
