//! `geoip2` in stream: variables from a MaxMind database, by the client's address. The
//! implementation is [`crate::shared::geoip2`].
//!
//! ```nginx
//! geoip2 /usr/share/GeoIP/GeoLite2-Country.mmdb {
//!     $country default=ZZ country iso_code;
//! }
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{DirectiveTable, STREAM};

use crate::shared::client_scope::VariableOnly;
use crate::shared::geoip2;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "geoip2",
    doc: "Variables from a MaxMind database, by client address.",
    main: &DIRECTIVES,
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<VariableOnly> =
    DirectiveTable::new(&[geoip2::row::<_, StreamSession>(STREAM)]);
