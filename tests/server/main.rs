//! The integration tests: one file per area, each test a whole configuration and a conversation.
//!
//! Everything here is stated about nginx too, unless a test says `skip_on_oracle` and why.

mod access;
mod addition;
mod auth_request;
mod autoindex;
mod bodies;
mod charset;
mod command_line;
mod conditional;
mod config_errors;
mod delivery;
mod empty_gif;
mod error_pages;
mod fastcgi;
mod gateways;
mod gunzip;
mod gzip;
mod headers;
mod keepalive;
mod limit_req;
mod limits;
mod listings;
mod locations;
mod log_files;
mod logs;
mod malformed;
mod maps;
mod random_index;
mod proxy;
mod ranges;
mod referer;
mod resolver;
mod rewriting;
mod secure_link;
mod serve;
mod server_names;
mod signals;
mod ssi;
mod static_files;
mod stub_status;
mod sub_filter;
mod thread_pools;
mod try_files;
mod userid;
mod weir_status;
