//! `geoip2` in stream: variables from a MaxMind database, by the client's address. The
//! implementation is [`crate::shared::geoip2`].
//!
//! ```nginx
//! geoip2 /usr/share/GeoIP/GeoLite2-Country.mmdb {
//!     $country default=ZZ country iso_code;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{STREAM, Table};

use crate::shared::client_scope::VariableOnly;
use crate::shared::geoip2;

pub(crate) static MODULE: Module = Module {
    name: "geoip2",
    doc: "Variables from a MaxMind database, by client address.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<VariableOnly> = Table::new(&[geoip2::row::<_, Session>(STREAM)]);
