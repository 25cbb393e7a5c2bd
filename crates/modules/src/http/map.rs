//! `map`: variables whose values depend on other variables.
//!
//! ```nginx
//! map $http_user_agent $mobile {
//!     default       0;
//!     "~Opera Mini" 1;
//! }
//! ```
//!
//! The mechanism is [`crate::shared::map`].

use ::http::{Module, Request};
use conf::{Arity, Directive, HTTP, Repeat, Setter, Table};

use crate::shared::map;

pub(crate) static MODULE: Module = Module {
    name: "map",
    doc: "Variables whose values depend on other variables.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[
    Directive {
        name: "map",
        syntax: "text $variable { ... }",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Defines a variable by looking up the text: an exact string; with `hostnames`, a name with a leading or \
              trailing `*`; or a regular expression after `~` or `~*`. `default` is the value if nothing matches; \
              `volatile` disables caching of the result.",
        set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
            map::read::<Request>(line)
        }),
    },
    Directive {
        name: "map_hash_max_size",
        syntax: "size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    },
    Directive {
        name: "map_hash_bucket_size",
        syntax: "size",
        default: None,
        contexts: HTTP,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    },
]);

/// Empty: a map belongs to the definition of its variable.
#[derive(Clone, Default)]
struct Conf;
