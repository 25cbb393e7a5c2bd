//! `map` in stream: variables whose values depend on other variables. The implementation is
//! [`crate::shared::map`].
//!
//! ```nginx
//! map $ssl_preread_server_name $backend {
//!     mail.example.com mail;
//!     default          web;
//! }
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{Directive, DirectiveTable, STREAM};

use crate::shared::client_scope::VariableOnly;
use crate::shared::map;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "map",
    doc: "Variables whose values depend on other variables.",
    main: &DIRECTIVES,
    ..StreamModule::EMPTY
};

static ROWS: [Directive<VariableOnly>; 3] = map::rows::<StreamSession>(
    STREAM,
    "Defines a variable by looking up the text, as in http.",
);

static DIRECTIVES: DirectiveTable<VariableOnly> = DirectiveTable::new(&ROWS);
