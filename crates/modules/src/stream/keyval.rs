//! `keyval` in stream: variables whose values are set while the server runs. The implementation is
//! [`crate::shared::keyval`].
//!
//! ```nginx
//! keyval_zone zone=routes:64k;
//! keyval      $ssl_preread_server_name $backend zone=routes;
//! ```

use ::stream::{StreamModule, StreamSession};
use conf::{Directive, DirectiveTable, STREAM};

use crate::shared::keyval::{self, KeyvalZones};

pub(crate) static MODULE: StreamModule = StreamModule {
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
    ..StreamModule::EMPTY
};

/// The owner of the zones in messages.
const KIND: &str = "keyval of stream";

static ROWS: [Directive<KeyvalZones>; 2] = keyval::rows(
    STREAM,
    |zones, line| zones.read_zone(line, KIND),
    |_, line| keyval::read_keyval::<StreamSession>(line, KIND),
);

static DIRECTIVES: DirectiveTable<KeyvalZones> = DirectiveTable::new(&ROWS);
