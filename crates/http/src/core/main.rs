//! Settings of the `http` block as a whole.

use conf::{Arity, Directive, DirectiveTable, HTTP, Setter};
use net::core_rows::{self, HashSizes};

/// The names by which the server identifies itself.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// `weir`, or `nginx`: shown with `server_tokens off`.
    pub name: String,
    /// Name and version: `server_tokens on`.
    pub token: String,
    /// Name, version and the build's name: `server_tokens build`.
    pub build_token: String,
    /// The version alone, for `$nginx_version`.
    pub version: String,
}

impl Default for ServerIdentity {
    fn default() -> Self {
        ServerIdentity::new("weir", env!("CARGO_PKG_VERSION"))
    }
}

impl ServerIdentity {
    /// The identity for a program name and a version.
    pub fn new(name: &str, version: &str) -> ServerIdentity {
        let token = format!("{name}/{version}");
        ServerIdentity {
            name: name.into(),
            build_token: token.clone(),
            token,
            version: version.into(),
        }
    }
}

static HASH_SIZE_ROWS: [Directive<HashSizes>; 4] = core_rows::hash_sizes(HTTP);

/// The rows of hash tables' sizes.
pub static HASH_SIZES: DirectiveTable<HashSizes> = DirectiveTable::new(&HASH_SIZE_ROWS);

/// What `server` leaves in `http` itself: nothing.
#[derive(Clone, Debug, Default)]
pub struct MainConf;

/// The directives.
pub static DIRECTIVES: DirectiveTable<MainConf> = DirectiveTable::new(&[Directive {
    name: "server",
    syntax: "{ … }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a virtual server: the addresses it listens on, the names it answers to, and what it does.",
    set: Setter::Deferred(Arity::exactly(0), super::blocks::server),
}]);
