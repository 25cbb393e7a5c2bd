//! `geo`: variables whose values depend on the client's address.
//!
//! ```nginx
//! geo $country {
//!     default        ZZ;
//!     include        conf/geo.conf;
//!     127.0.0.0/16   RU;
//!     2001:db8::/32  US;
//! }
//! ```
//!
//! The mechanism is [`crate::shared::geo`].

use ::http::{Module, Request};
use conf::{Arity, Directive, HTTP, Repeat, Setter, Table};

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
    contexts: HTTP,
    since: "0.1",
    doc: "A variable whose value is that of the smallest network that the client's address is in, or after `ranges` of \
          the range. `delete` takes one away, `default` is for all others; behind a `proxy` the address is that of \
          `X-Forwarded-For`.",
    set: Setter::Block(Arity::between(1, 2), Repeat::Many, |_, line| {
        geo::read::<Request>(line)
    }),
}]);

/// Nothing: the networks live in the definition of the variable.
#[derive(Clone, Default)]
struct Conf;
