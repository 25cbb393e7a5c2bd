//! Settings of `http` as a whole.

use conf::{Arity, Directive, HTTP, Repeat, Setter, Table};

/// The settings: so far none that has an effect.
#[derive(Clone, Debug, Default)]
pub struct MainConf;

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

/// The rows.
pub static DIRECTIVES: Table<MainConf> = Table::new(&[
    hash_row(
        "server_names_hash_max_size",
        "Accepted; the table of server names sizes itself.",
    ),
    hash_row(
        "server_names_hash_bucket_size",
        "Accepted; the table of server names sizes itself.",
    ),
    hash_row(
        "variables_hash_max_size",
        "Accepted; the table of variables sizes itself.",
    ),
    hash_row(
        "variables_hash_bucket_size",
        "Accepted; the table of variables sizes itself.",
    ),
    Directive {
        name: "server",
        syntax: "{ … }",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Defines a virtual server: the addresses it listens on, the names it answers to, and what it does.",
        set: Setter::Deferred(Arity::exactly(0), super::blocks::server),
    },
]);

const fn hash_row(name: &'static str, doc: &'static str) -> Directive<MainConf> {
    Directive {
        name,
        syntax: "size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc,
        set: Setter::Custom(Arity::ONE, Repeat::Once, |_, line| {
            line.number(0, 0, i64::MAX).map(drop)
        }),
    }
}
