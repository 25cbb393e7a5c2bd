//! `geoip2` in stream: variables from a MaxMind database, by the client's address. The
//! implementation is [`crate::shared::geoip2`].
//!
//! ```nginx
//! geoip2 /usr/share/GeoIP/GeoLite2-Country.mmdb {
//!     $country default=ZZ country iso_code;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table};

use crate::shared::geoip2;

pub(crate) static MODULE: Module = Module {
    name: "geoip2",
    doc: "Variables from a MaxMind database, by client address.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "geoip2",
    syntax: "file { ... }",
    default: None,
    contexts: STREAM,
    since: "0.2",
    doc: "A MaxMind database and the variables taken from it: `$name [default=value] [source=$address] path …;`, where \
          the path selects a field of the record for the client address. `$name metadata build_epoch | last_check | \
          last_change;` gives facts about the file. With `auto_reload time;` the file is reloaded after it has \
          changed.",
    set: Setter::Block(Arity::ONE, Repeat::Many, |_, line| {
        geoip2::read::<Session>(line)
    }),
}]);

/// Empty: the databases are part of their variables' definitions.
#[derive(Clone, Default)]
struct Conf;
