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

use ::http::{HttpModule, Request};
use conf::{DirectiveTable, HTTP};

use crate::shared::client_scope::VariableOnly;
use crate::shared::geo;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "geo",
    doc: "Variables whose values depend on the client address.",
    main: &DIRECTIVES,
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<VariableOnly> = DirectiveTable::new(&[geo::row::<Request>(
    HTTP,
    "Defines a variable whose value depends on the client address: that of the smallest matching network or, after \
     `ranges`, of the matching range. `delete` removes a network, `default` is for all other addresses; for clients \
     behind a `proxy`, the address is taken from `X-Forwarded-For`.",
)]);
