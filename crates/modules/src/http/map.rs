//! `map`: variables whose values depend on other variables.
//!
//! ```nginx
//! map $http_user_agent $mobile {
//!     default       0;
//!     "~Opera Mini" 1;
//! }
//! ```
//!
//! The mechanism is [`crate::shared::map`].

use ::http::{HttpModule, Request};
use conf::{Directive, DirectiveTable, HTTP};

use crate::shared::client_scope::VariableOnly;
use crate::shared::map;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "map",
    doc: "Variables whose values depend on other variables.",
    main: &DIRECTIVES,
    ..HttpModule::EMPTY
};

static ROWS: [Directive<VariableOnly>; 3] = map::rows::<Request>(
    HTTP,
    "Defines a variable by looking up the text: an exact string; with `hostnames`, a name with a leading or trailing `*`; \
     or a regular expression after `~` or `~*`. `default` is the value if nothing matches; `volatile` disables caching of \
     the result.",
);

static DIRECTIVES: DirectiveTable<VariableOnly> = DirectiveTable::new(&ROWS);
