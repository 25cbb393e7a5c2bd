//! Settings of the `http` block as a whole.

use conf::{Arity, Directive, HTTP, Setter, Table};
use net::core_rows::{self, HashSizes};

/// The names by which the server identifies itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `weir`, or `nginx`: shown with `server_tokens off`.
    pub name: String,
    /// Name and version: `server_tokens on`.
    pub token: String,
    /// Name, version and the build's name: `server_tokens build`.
    pub build_token: String,
    /// The version alone, for `$nginx_version`.
    pub version: String,
}

impl Default for Identity {
    fn default() -> Self {
        Identity::new("weir", env!("CARGO_PKG_VERSION"))
    }
}

impl Identity {
    /// The identity for a program name and a version.
    pub fn new(name: &str, version: &str) -> Identity {
        let token = format!("{name}/{version}");
        Identity {
            name: name.into(),
            build_token: token.clone(),
            token,
            version: version.into(),
        }
    }
}

static HASH_SIZE_ROWS: [Directive<HashSizes>; 4] = core_rows::hash_sizes(HTTP);

/// The rows of hash tables' sizes.
pub static HASH_SIZES: Table<HashSizes> = Table::new(&HASH_SIZE_ROWS);

/// What `server` leaves in `http` itself: nothing.
#[derive(Clone, Debug, Default)]
pub struct MainConf;

/// The directives.
pub static DIRECTIVES: Table<MainConf> = Table::new(&[Directive {
    name: "server",
    syntax: "{ … }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a virtual server: the addresses it listens on, the names it answers to, and what it does.",
    set: Setter::Deferred(Arity::exactly(0), super::blocks::server),
}]);
