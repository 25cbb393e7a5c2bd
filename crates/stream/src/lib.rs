//! The stream engine: TCP connections and UDP sessions, their phases, and their variables.
//!
//! It names no module. What a server does with a session is up to the [`module::StreamModule`]s that the program hands
//! over as a list; the engine knows only their shape. It knows neither processes, signals nor configuration files:
//! those meet it at [`host::engine`]. It knows nothing of HTTP.
//!
//! Begin to read at [`serve_session`], the course of a session; then [`engine`], where sessions come from.
#![forbid(unsafe_code)]

pub mod client;
pub mod configure;
pub mod core;
pub mod datagrams;
pub mod engine;
pub mod listen;
pub mod module;
pub mod phase;
pub mod preread;
pub mod serve_session;
pub mod session;
pub mod stream_loop;
pub mod stream_site;
pub mod tls;
pub mod upstream;
pub mod variables;

pub use engine::StreamEngine;
pub use module::{SessionOutcome, SessionStep, StreamHandler, StreamModule, StreamPhase};
pub use session::StreamSession;
