//! `keyval`: variables whose values are set while the server runs, through `api`.
//!
//! ```nginx
//! keyval_zone zone=denied:1m type=ip timeout=1h state=/var/lib/weir/denied.json;
//! keyval      $remote_addr $is_denied zone=denied;
//! server { if ($is_denied) { return 403; } }
//! ```
//!
//! The mechanism is [`crate::shared::keyval`].

use ::http::{HttpModule, Request};
use conf::{Directive, DirectiveTable, HTTP};

use crate::shared::keyval::{self, KeyvalZones};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "keyval",
    doc: "Variables whose values are set while the server runs.",
    main: &DIRECTIVES,
    complete: keyval::report_undeclared,
    accept: |site, zones| {
        site.main_confs
            .get::<KeyvalZones>()
            .adopt_states(zones, KIND)
    },
    commit: |site, zones| {
        site.main_confs
            .get::<KeyvalZones>()
            .commit_states(zones, KIND)
    },
    ..HttpModule::EMPTY
};

/// The owner of the zones in messages.
const KIND: &str = "keyval";

static ROWS: [Directive<KeyvalZones>; 2] = keyval::rows(
    HTTP,
    |zones, line| zones.read_zone(line, KIND),
    |_, line| keyval::read_keyval::<Request>(line, KIND),
);

static DIRECTIVES: DirectiveTable<KeyvalZones> = DirectiveTable::new(&ROWS);
