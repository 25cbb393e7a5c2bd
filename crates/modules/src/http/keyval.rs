//! `keyval`: variables whose values are set while the server runs, through `api`.
//!
//! ```nginx
//! keyval_zone zone=denied:1m type=ip timeout=1h state=/var/lib/weir/denied.json;
//! keyval      $remote_addr $is_denied zone=denied;
//! server { if ($is_denied) { return 403; } }
//! ```
//!
//! The mechanism is [`crate::shared::keyval`].

use std::cell::RefCell;

use ::http::http_loop::HttpLoop;
use ::http::{HttpModule, Request};
use conf::{Directive, DirectiveTable, HTTP};

use crate::shared::keyval::{self, HTTP_KIND as KIND, KeyvalZones};
use crate::shared::limit_req_sync::report_missing_redis;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "keyval",
    doc: "Variables whose values are set while the server runs.",
    main: &DIRECTIVES,
    complete: |line| {
        keyval::report_undeclared(line);
        report_missing_redis(line);
    },
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
    start,
    stop: |_| drop(TASKS.take()),
    ..HttpModule::EMPTY
};

rt::local! {
    /// The tasks that follow what Redis has, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to follow the zones that Redis keeps, on one loop.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let zones = site.main_confs.get::<KeyvalZones>().list();
    drop(TASKS.replace(keyval::sync::follow_zones(zones, &engine.log())));
}

static ROWS: [Directive<KeyvalZones>; 2] = keyval::rows(
    HTTP,
    |zones, line| zones.read_zone(line, KIND),
    |_, line| keyval::read_keyval::<Request>(line, KIND),
);

static DIRECTIVES: DirectiveTable<KeyvalZones> = DirectiveTable::new(&ROWS);
