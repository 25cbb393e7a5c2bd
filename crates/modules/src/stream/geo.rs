//! `geo` in stream: variables whose values depend on the client's address. The mechanism is [`crate::shared::geo`].

use ::stream::{Module, Session};
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table};

use crate::shared::geo;

pub(crate) static MODULE: Module = Module {
    name: "geo",
    doc: "Variables whose values depend on the client's address.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "geo",
    syntax: "[$address] $variable { ... }",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "A variable whose value is that of the smallest network that the client's address is in, or after `ranges` of \
          the range. `delete` takes one away, `default` is for all others.",
    set: Setter::Block(Arity::between(1, 2), Repeat::Many, |_, line| {
        geo::read::<Session>(line)
    }),
}]);

/// Nothing: the networks live in the definition of the variable.
#[derive(Clone, Default)]
struct Conf;
