//! `split_clients` in stream: splits clients into groups. The implementation is
//! [`crate::shared::split_clients`].
//!
//! ```nginx
//! split_clients $remote_addr $backend {
//!     5%  db_canary;
//!     *   db;
//! }
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{DirectiveTable, STREAM};

use crate::shared::client_scope::VariableOnly;
use crate::shared::split_clients;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "split_clients",
    doc: "Variables that split clients into groups of given sizes.",
    main: &DIRECTIVES,
    ..StreamModule::EMPTY
};

static DIRECTIVES: DirectiveTable<VariableOnly> =
    DirectiveTable::new(&[split_clients::row::<StreamSession>(STREAM)]);
