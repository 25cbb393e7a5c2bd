//! The modules of http, in the order in which they run.

mod geo;
mod map;
mod rewrite;
mod session;
mod split_clients;

/// All of them. The order is that of handlers within a phase and of filters over a response: to move a module is to
/// change behaviour.
pub static MODULES: &[&::http::Module] = &[
    // Variables.
    &map::MODULE,
    &geo::MODULE,
    &split_clients::MODULE,
    // Rewriting.
    &rewrite::MODULE,
    // Limits (preaccess), access, precontent.

    // Content: the first that does not decline.

    // Filters, from the handler to the wire: not_modified, headers, userid, gunzip, addition, sub, charset, ssi, gzip,
    // range.

    // Log.
];
