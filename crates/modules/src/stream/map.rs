//! `map` in stream: variables whose values depend on other variables. The implementation is
//! [`crate::shared::map`].
//!
//! ```nginx
//! map $ssl_preread_server_name $backend {
//!     mail.example.com mail;
//!     default          web;
//! }
//! ```

use ::stream::{Module, Session};
use conf::{Directive, STREAM, Table};

use crate::shared::client_scope::VariableOnly;
use crate::shared::map;

pub(crate) static MODULE: Module = Module {
    name: "map",
    doc: "Variables whose values depend on other variables.",
    main: &DIRECTIVES,
    ..Module::EMPTY
};

static ROWS: [Directive<VariableOnly>; 3] = map::rows::<Session>(
    STREAM,
    "Defines a variable by looking up the text, as in http.",
);

static DIRECTIVES: Table<VariableOnly> = Table::new(&ROWS);
