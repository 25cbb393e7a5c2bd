//! Mechanisms that http and stream share: they know neither, only what they need of a request or session
//! ([`Session`]).

pub(crate) mod forwarded;
pub(crate) mod geo;
pub(crate) mod map;
pub(crate) mod session;
pub(crate) mod split_clients;

pub(crate) use session::Session;
