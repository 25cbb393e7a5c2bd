//! The modules of http, in the order in which they run.

mod access;
mod acme;
mod addition;
mod api;
mod auth_basic;
mod auth_digest;
mod auth_request;
mod autoindex;
mod brotli;
mod browser;
mod cache_path;
mod cache_purge;
mod charset;
mod client_scope;
mod cluster;
mod compressed_copies;
mod dav;
#[cfg(feature = "debug-stall")]
mod debug_block;
mod echo;
mod empty_gif;
mod fastcgi;
mod flv;
mod geo;
mod geoip;
mod geoip2;
mod grpc;
mod gunzip;
mod gzip;
mod gzip_static;
mod headers;
mod headers_more;
mod health_check;
mod index;
mod keyval;
mod limit_conn;
mod limit_req;
mod log;
mod map;
mod markdown;
mod memcached;
mod mirror;
mod mp4;
mod not_modified;
mod otel;
mod prometheus;
mod proxy;
mod random_index;
mod range;
mod realip;
mod referer;
mod rewrite;
mod scgi;
mod secure_link;
mod server_timing;
mod set_misc;
mod slice;
mod split_clients;
mod ssi;
mod ssl;
mod static_file;
mod stub_status;
mod sub_filter;
mod try_files;
mod tunnel;
mod upstream;
mod userid;
mod uwsgi;
mod weir_status;
mod zstd;

/// All modules. The order is that of handlers within a phase and of filters over a response: moving
/// a module changes behaviour.
pub static MODULES: &[&::http::HttpModule] = &[
    // TLS.
    &ssl::MODULE,
    // Variables.
    &map::MODULE,
    &keyval::MODULE,
    &browser::MODULE,
    &geo::MODULE,
    &geoip::MODULE,
    &geoip2::MODULE,
    &split_clients::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    // Upstream groups and caches.
    &upstream::MODULE,
    &cluster::MODULE,
    &cache_path::MODULE,
    &health_check::MODULE,
    // Tracing comes before all that can change a request or answer it.
    &otel::MODULE,
    // Rewriting: the modules that add steps to scripts come before the one that collects and runs
    // them.
    &set_misc::MODULE,
    &rewrite::MODULE,
    // Limits (preaccess).
    &realip::MODULE,
    &limit_req::MODULE,
    &limit_conn::MODULE,
    // Certificates.
    &acme::MODULE,
    // Access.
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_digest::MODULE,
    &auth_request::MODULE,
    // The end of the rewrite phase, after Lua scripts, which come after the access handlers.
    &headers_more::INPUT,
    // Precontent.
    &mirror::MODULE,
    &try_files::MODULE,
    // Content: a location's own handler, or else the first module that does not decline.
    &proxy::MODULE,
    &proxy::UPSTREAM,
    &fastcgi::MODULE,
    &fastcgi::UPSTREAM,
    &scgi::MODULE,
    &scgi::UPSTREAM,
    &uwsgi::MODULE,
    &uwsgi::UPSTREAM,
    &memcached::MODULE,
    &memcached::UPSTREAM,
    &grpc::MODULE,
    &grpc::UPSTREAM,
    &tunnel::MODULE,
    &tunnel::UPSTREAM,
    &flv::MODULE,
    &mp4::MODULE,
    #[cfg(feature = "debug-stall")]
    &debug_block::MODULE,
    &echo::MODULE,
    &empty_gif::MODULE,
    &cache_purge::MODULE,
    &stub_status::MODULE,
    &weir_status::MODULE,
    &prometheus::MODULE,
    &api::MODULE,
    &prometheus::ZONES,
    &random_index::MODULE,
    &index::MODULE,
    &autoindex::MODULE,
    &markdown::MODULE,
    &dav::MODULE,
    &brotli::STATIC,
    &zstd::STATIC,
    &gzip_static::MODULE,
    &static_file::MODULE,
    // Filters, from the handler to the wire. What changes the content must precede what compresses
    // it, and ranges come last because they count the bytes that are sent.
    &slice::MODULE,
    &not_modified::MODULE,
    &headers_more::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    &addition::MODULE,
    &sub_filter::MODULE,
    &charset::MODULE,
    &ssi::MODULE,
    &addition::JOIN,
    &compressed_copies::MODULE,
    &brotli::MODULE,
    &zstd::MODULE,
    &gzip::MODULE,
    &crate::shared::gzip_accept::MODULE,
    &range::MODULE,
    &server_timing::MODULE,
    &headers::TRAILERS,
    // Log.
    &log::MODULE,
];
