//! Settings of the `http` block as a whole.

use conf::{Arity, Directive, HTTP, Repeat, Setter, Table};

/// The settings. None has an effect: they exist so that nginx's directives are accepted and checked.
#[derive(Clone, Debug, Default)]
pub struct MainConf;

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

/// The directives.
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

/// A row for one of nginx's hash tables. The number is still checked, so that a mistake is reported as nginx does.
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
