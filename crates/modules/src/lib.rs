//! All directive modules: each is a file or a directory in [`http`] or [`stream`], named after its
//! nginx counterpart.
//!
//! A module depends on the engine, but the engine on no module, and modules do not depend on each
//! other. What http and stream have in common is in `shared`, written once over a small trait.
#![forbid(unsafe_code)]

pub mod http;
mod shared;
pub mod stream;
