//! Mechanisms that http and stream share: they know neither, only what they need of a request or session
//! ([`Session`]).

pub(crate) mod access;
pub(crate) mod compression;
pub(crate) mod content;
pub(crate) mod fetch;
pub(crate) mod file_access;
pub(crate) mod file_response;
pub(crate) mod file_tree;
pub(crate) mod forwarded;
pub(crate) mod gateway;
pub(crate) mod geo;
pub(crate) mod geoip2;
pub(crate) mod gzip_accept;
pub(crate) mod http2;
pub(crate) mod limit_conn;
pub(crate) mod limit_req;
pub(crate) mod log;
pub(crate) mod map;
pub(crate) mod media_types;
pub(crate) mod page;
pub(crate) mod password;
pub(crate) mod precompressed;
pub(crate) mod realip;
pub(crate) mod request_fields;
pub(crate) mod session;
pub(crate) mod split_clients;
pub(crate) mod tls;
pub(crate) mod tls_rows;
pub(crate) mod transform;
pub(crate) mod upstream;
pub(crate) mod upstream_rows;
pub(crate) mod zones;

pub(crate) use session::Session;
