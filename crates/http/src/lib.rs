//! The HTTP engine: connections, requests, routing, phases, filters, responses.
//!
//! It names no module. What a location does is said by [`module::Module`]s that the program hands over as a list; the
//! engine knows their shape only. It does not know processes, signals or configuration files either: those meet it at
//! [`rt::engine`].
//!
//! Begin to read at [`phase`], the way of a request; then [`h1`], where it comes from and where its response goes.
#![forbid(unsafe_code)]

pub mod body;
pub mod body_reader;
mod buffers;
pub mod cache;
pub mod client;
pub mod clock;
pub mod configure;
pub mod connection;
pub mod core;
pub mod current;
pub mod engine;
pub mod files;
pub mod filter;
pub mod h1;
pub mod h2;
pub mod lane;
pub mod ledger;
pub mod listen;
pub mod log_phase;
pub mod module;
pub mod moving;
pub mod phase;
pub mod request;
pub mod request_facts;
pub mod response;
pub mod route;
pub mod serve;
pub mod site;
pub mod special;
pub mod subrequest;
mod tasks;
pub mod text;
pub mod tls;
pub mod types;
pub mod upstream;
pub mod variables;

pub use engine::Engine;
pub use module::{Filter, Handler, Module, Outcome, Phase, Step, Verdict};
pub use request::Request;
