//! The HTTP engine: connections, requests, routing, phases, filters, responses.
//!
//! It names no module. The program passes in a list of [`module::HttpModule`]s that say what a location does; the
//! engine knows only their shape. It does not know processes, signals or configuration files either: those meet it in
//! [`host::engine`].
//!
//! Start reading at `lifecycle`, the life of a request from its head to its last log line; then [`phase`], which
//! decides the response; then `h1`, where the request comes from and the response goes to.
#![forbid(unsafe_code)]

mod absolute_redirect;
mod accepted_connection;
mod block_ids;
pub mod body_reader;
mod buffers;
pub mod byte_stream;
pub mod cache;
pub mod client;
mod client_budget;
pub mod client_stream;
pub mod clock;
pub mod cluster;
pub mod configure;
mod connection_start;
mod connection_tasks;
mod connection_transfer;
pub mod content_identity;
pub mod content_type;
pub mod core;
mod credentials;
pub mod current_loop;
pub mod engine;
pub mod explain;
pub mod files;
pub mod filter;
mod h1;
mod h2;
mod h3;
pub mod handler;
pub mod http_loop;
pub mod http_site;
pub mod kept_servers;
pub mod ledger;
mod lifecycle;
mod limit_rate;
mod lingering_close;
pub mod listen;
mod location_parts;
mod location_tree;
pub mod log_phase;
mod loop_connections;
mod memory_peak;
pub mod mime_types;
pub mod module;
pub mod phase;
pub mod process_request;
mod quic;
mod received_head;
pub mod request;
mod request_body;
pub mod request_feed;
mod request_flow;
pub mod request_properties;
pub mod request_times;
pub mod response;
pub mod response_body;
mod response_section;
mod response_send;
pub mod route;
pub mod stall;
pub mod status_response;
mod stream_request;
mod stream_tasks;
pub mod subrequest;
pub mod text;
pub mod tls;
pub mod upstream;
pub mod variables;
mod virtual_server;
mod waiting_connection;

pub use engine::HttpEngine;
pub use module::{
    FilterVerdict, HandlerOutcome, HandlerStep, HttpModule, HttpPhase, PhaseHandler, ResponseFilter,
};
pub use request::Request;
