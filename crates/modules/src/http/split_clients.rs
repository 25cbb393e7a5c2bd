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
use conf::{HTTP, Table};

use crate::shared::client_scope::VariableOnly;
use crate::shared::split_clients;

pub(crate) static MODULE: Module = Module {
    name: "split_clients",
    doc: "Variables that split clients into groups, for A/B tests.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<VariableOnly> = Table::new(&[split_clients::row::<Request>(HTTP)]);
