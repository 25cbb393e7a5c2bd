//! Mechanisms shared by several modules. Those that http and stream share know neither engine, only
//! what they need of a request or session ([`ClientScope`]).

pub(crate) mod access;
pub(crate) mod client_scope;
pub(crate) mod compressed_copies;
pub(crate) mod compression;
pub(crate) mod compression_rows;
pub(crate) mod content;
pub(crate) mod file_permissions;
pub(crate) mod file_response;
pub(crate) mod file_tree;
pub(crate) mod forwarded_for;
pub(crate) mod gateway;
pub(crate) mod geo;
pub(crate) mod geoip;
pub(crate) mod geoip2;
pub(crate) mod gzip_accept;
pub(crate) mod html_page;
pub(crate) mod http1_client;
pub(crate) mod http2;
pub(crate) mod keyval;
pub(crate) mod limit_conn;
pub(crate) mod limit_req;
pub(crate) mod log;
pub(crate) mod map;
pub(crate) mod media_types;
pub(crate) mod member_request;
pub(crate) mod observation;
pub(crate) mod password;
pub(crate) mod precompressed;
pub(crate) mod realip;
pub(crate) mod request_fields;
pub(crate) mod span_counters;
pub(crate) mod split_clients;
pub(crate) mod status;
pub(crate) mod tls;
pub(crate) mod transform;
pub(crate) mod upstream_block;
pub(crate) mod upstream_block_rows;
pub(crate) mod upstream_rows;
pub(crate) mod upstream_state;
pub(crate) mod upstream_tls_rows;
pub(crate) mod user_file;
pub(crate) mod zones;

pub(crate) use client_scope::ClientScope;
