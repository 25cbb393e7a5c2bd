//! `map` in stream: variables whose values depend on other variables. The implementation is
//! [`crate::shared::map`].
//!
//! ```nginx
//! map $ssl_preread_server_name $backend {
//!     mail.example.com mail;
//!     default          web;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table};

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
        contexts: STREAM,
        since: "0.1",
        doc: "Defines a variable by looking up the text, as in http.",
        set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
            map::read::<Session>(line)
        }),
    },
    ignored("map_hash_max_size"),
    ignored("map_hash_bucket_size"),
]);

/// A directive of nginx's that has no meaning here.
const fn ignored(name: &'static str) -> Directive<Conf> {
    Directive {
        name,
        syntax: "size",
        default: None,
        contexts: STREAM,
        since: "0.1",
        doc: "Accepted; has no effect.",
        set: Setter::Ignored(Arity::ONE, "Weir's tables size themselves"),
    }
}

/// Empty: a map is part of its variable's definition.
#[derive(Clone, Default)]
struct Conf;
