//! Settings of `http` as a whole.

use conf::{Arity, Directive, HTTP, Setter, Table};
use net::core_rows::{self, HashSizes};

/// The names under which the server presents itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// `weir` or `nginx`: with `server_tokens off`.
    pub name: String,
    /// With the version.
    pub token: String,
    /// With the version and the build's name.
    pub build_token: String,
    /// The bare version.
    pub version: String,
}

impl Default for Identity {
    fn default() -> Self {
        Identity::new("weir", env!("CARGO_PKG_VERSION"))
    }
}

impl Identity {
    /// An identity of a program name and a version.
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

/// The rows.
pub static DIRECTIVES: Table<MainConf> = Table::new(&[Directive {
    name: "server",
    syntax: "{ … }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a virtual server: the addresses it listens on, the names it answers to, and what it does.",
    set: Setter::Deferred(Arity::exactly(0), super::blocks::server),
}]);
