//! `split_clients` in stream: splits clients into groups. The implementation is
//! [`crate::shared::split_clients`].
//!
//! ```nginx
//! split_clients $remote_addr $backend {
//!     5%  db_canary;
//!     *   db;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table};

use crate::shared::split_clients;

pub(crate) static MODULE: Module = Module {
    name: "split_clients",
    doc: "Variables that split clients into groups of given sizes.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "split_clients",
    syntax: "text $variable { ... }",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a variable by a hash of the text: each line has a percentage, or `*` for the rest, and a value.",
    set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
        split_clients::read::<Session>(line)
    }),
}]);

/// Empty: the groups are part of the variable's definition.
#[derive(Clone, Default)]
struct Conf;
