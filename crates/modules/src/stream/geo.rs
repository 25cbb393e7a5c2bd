//! `geo` in stream: variables whose values depend on the client's address. The implementation is
//! [`crate::shared::geo`].
//!
//! ```nginx
//! geo $backend {
//!     default    10.0.0.1:5432;
//!     10.2.0.0/16 10.2.0.1:5432;
//! }
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{DirectiveTable, STREAM};

use crate::shared::client_scope::VariableOnly;
use crate::shared::geo;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "geo",
    doc: "Variables whose values depend on the client address.",
    main: &DIRECTIVES,
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<VariableOnly> = DirectiveTable::new(&[
    geo::row::<StreamSession>(
        STREAM,
        "Defines a variable whose value depends on the client address: that of the smallest matching network or, after \
     `ranges`, of the matching range. `delete` removes a network, `default` is for all other addresses.",
    ),
]);
