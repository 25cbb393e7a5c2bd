//! `split_clients` in stream: splits clients into groups. The implementation is
//! [`crate::shared::split_clients`].
//!
//! ```nginx
//! split_clients $remote_addr $backend {
//!     5%  db_canary;
//!     *   db;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{STREAM, Table};

use crate::shared::client_scope::VariableOnly;
use crate::shared::split_clients;

pub(crate) static MODULE: Module = Module {
    name: "split_clients",
    doc: "Variables that split clients into groups of given sizes.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static DIRECTIVES: Table<VariableOnly> = Table::new(&[split_clients::row::<Session>(STREAM)]);
