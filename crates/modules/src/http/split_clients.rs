//! `split_clients`: divides clients into groups, for A/B tests or to spread them over caches.
//!
//! ```nginx
//! split_clients "${remote_addr}AAA" $variant {
//!     0.5%  .one;
//!     2.0%  .two;
//!     *     "";
//! }
//! ```
//!
//! The mechanism is [`crate::shared::split_clients`].

use ::http::{Module, Request};
use conf::{Arity, Directive, HTTP, Repeat, Setter, Table};

use crate::shared::split_clients;

pub(crate) static MODULE: Module = Module {
    name: "split_clients",
    doc: "Variables that split clients into groups, for A/B tests.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "split_clients",
    syntax: "text $variable { ... }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a variable by a hash of the text: each line has a percentage, or `*` for the rest, and a value.",
    set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
        split_clients::read::<Request>(line)
    }),
}]);

/// Empty: the groups belong to the definition of the variable.
#[derive(Clone, Default)]
struct Conf;
