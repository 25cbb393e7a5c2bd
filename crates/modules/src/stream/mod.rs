//! The modules of stream, in the order in which they run.

mod access;
mod client_scope;
mod geo;
mod geoip;
mod geoip2;
mod keyval;
mod limit_conn;
mod log;
mod map;
mod pass;
mod proxy;
mod realip;
mod return_text;
mod set;
mod split_clients;
mod ssl;
mod ssl_preread;
mod status_zone;
mod upstream;

/// All modules. Their order is that of the handlers within a phase, so moving one changes
/// behaviour.
pub static MODULES: &[&::stream::StreamModule] = &[
    // TLS.
    &ssl::MODULE,
    // Variables.
    &map::MODULE,
    &keyval::MODULE,
    &geo::MODULE,
    &geoip::MODULE,
    &geoip2::MODULE,
    &split_clients::MODULE,
    // Groups of servers.
    &upstream::MODULE,
    // What is counted: before anything can end a session.
    &status_zone::MODULE,
    // The client's address.
    &realip::MODULE,
    // Limits.
    &set::MODULE,
    &limit_conn::MODULE,
    // Access.
    &access::MODULE,
    // The client's first bytes.
    &ssl_preread::MODULE,
    // Content: a server's one handler.
    &proxy::MODULE,
    &proxy::secure::MODULE,
    &pass::MODULE,
    &return_text::MODULE,
    // Log.
    &log::MODULE,
];
