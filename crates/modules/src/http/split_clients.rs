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

use ::http::{HttpModule, Request};
use conf::{DirectiveTable, HTTP};

use crate::shared::client_scope::VariableOnly;
use crate::shared::split_clients;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "split_clients",
    doc: "Variables that split clients into groups, for A/B tests.",
    main: &DIRECTIVES,
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<VariableOnly> =
    DirectiveTable::new(&[split_clients::row::<Request>(HTTP)]);
