//! The settings for header fields of requests, whichever version of HTTP they arrive in, and the
//! fields that must not be repeated.

use crate::known_fields::KnownField;

/// How underscores in names are treated: `underscores_in_headers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnderscorePolicy {
    /// A letter like any other.
    Allowed,
    /// They make the name invalid, because CGI cannot tell `_` from `-`: a client could spoof a
    /// variable that a proxy sets.
    Invalid,
}

/// How header lines with invalid names are treated: `ignore_invalid_headers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidHeaders {
    /// Dropped; [`RequestHead::ignored`](super::RequestHead::ignored) lists it.
    Ignored,
    /// Kept as a field like any other.
    Kept,
}

/// Fields that a request must not repeat; nginx's list.
pub(crate) const UNIQUE: u128 = KnownField::Host.bit()
    | KnownField::IfModifiedSince.bit()
    | KnownField::IfUnmodifiedSince.bit()
    | KnownField::IfMatch.bit()
    | KnownField::IfNoneMatch.bit()
    | KnownField::IfRange.bit()
    | KnownField::ContentLength.bit()
    | KnownField::ContentRange.bit()
    | KnownField::TransferEncoding.bit()
    | KnownField::Expect.bit()
    | KnownField::Authorization.bit()
    | KnownField::ProxyAuthorization.bit();
