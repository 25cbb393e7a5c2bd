//! Every directive module, each a file or a folder of [`http`] or [`stream`], named after its nginx counterpart.
//!
//! A module knows the engine; the engine knows none of them; they do not know each other. What http and stream both
//! have stands in `shared`, written once over a small trait.
#![forbid(unsafe_code)]

pub mod http;
mod shared;
pub mod stream;
