//! OCSP: asking authorities whether certificates are revoked (RFC 6960).
//!
//! - [`OcspStaple`] is about the server's own certificates: the response is sent along with them (RFC 6066, section 8).
//! - [`StatusCheck`] is about clients' certificates: a client whose certificate is revoked, or whose status cannot
//!   be determined, is refused.
//! - [`OcspSubject`] is a certificate that a script asks about, with requests of its own.
//!
//! Responders are asked over HTTP, which this crate does not know: the builder of the settings passes a function
//! ([`SendOcspRequest`]).

mod check;
mod message;
mod responder;
mod staple;
mod subject;

pub use check::{OcspScope, StatusCache, StatusCheck};
#[doc(hidden)]
pub use message::is_believed;
pub use responder::{
    MAX_ANSWER, OcspResolver, OcspResponder, OcspResponseFuture, PATIENCE, SendOcspRequest,
};
pub use staple::OcspStaple;
pub use subject::OcspSubject;
