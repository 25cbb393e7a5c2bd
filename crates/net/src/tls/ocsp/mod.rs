//! OCSP: asking authorities about certificates that may have been revoked (RFC 6960).
//!
//! - [`Staple`] is about the server's own certificates: the answer is sent along with them (RFC 6066, section 8).
//! - [`StatusCheck`] is about clients' certificates: who is revoked, or can not be asked about, is not let in.
//!
//! Responders are asked by HTTP, of which this crate knows nothing: whoever builds the settings says how ([`Ask`]).

mod check;
mod message;
mod responder;
mod staple;

pub use check::{Checks, StatusCache, StatusCheck};
#[doc(hidden)]
pub use message::is_believed;
pub use responder::{Ask, Asked, MAX_ANSWER, Network, PATIENCE, Responder};
pub use staple::Staple;
