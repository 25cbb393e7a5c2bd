//! `split_clients` in stream: clients divided into parts. The mechanism is [`crate::shared::split_clients`].

use ::stream::{Module, Session};
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table};

use crate::shared::split_clients;

pub(crate) static MODULE: Module = Module {
    name: "split_clients",
    doc: "Variables that divide clients into parts of given sizes.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "split_clients",
    syntax: "text $variable { ... }",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "A variable whose value depends on a hash of the text: each line is a percentage, or `*` for the rest, and a \
          value.",
    set: Setter::Block(Arity::exactly(2), Repeat::Many, |_, line| {
        split_clients::read::<Session>(line)
    }),
}]);

/// Nothing: the parts live in the definition of the variable.
#[derive(Clone, Default)]
struct Conf;
