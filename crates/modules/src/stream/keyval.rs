//! `keyval` in stream: variables whose values are set while the server runs. The implementation is
//! [`crate::shared::keyval`].
//!
//! ```nginx
//! keyval_zone zone=routes:64k;
//! keyval      $ssl_preread_server_name $backend zone=routes;
//! ```

use std::cell::RefCell;

use ::stream::stream_loop::StreamLoop;
use ::stream::{StreamModule, StreamSession};
use conf::{Directive, DirectiveTable, STREAM};
use net::cluster::Clusters;

use crate::shared::keyval::{self, KeyvalZones};
use crate::shared::limit_req_sync::report_missing_redis;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "keyval",
    doc: "Variables whose values are set while the server runs.",
    main: &DIRECTIVES,
    complete: |line| {
        keyval::report_undeclared(line);
        // A cluster is declared in http, which may stand before or behind: who is read last reports what is missing.
        Clusters::check_if_read(line);
        report_missing_redis(line);
    },
    accept: |site, zones| {
        let all = site.main_confs.get::<KeyvalZones>();
        all.check_clusters()?;
        all.adopt_states(zones, KIND)
    },
    commit: |site, zones| {
        site.main_confs
            .get::<KeyvalZones>()
            .commit_states(zones, KIND)
    },
    start,
    stop: |_| drop(TASKS.take()),
    ..StreamModule::EMPTY
};

rt::local! {
    /// The tasks that follow what Redis has, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to follow the zones that Redis keeps, on one loop.
fn start(engine: &StreamLoop) {
    if engine.index == 0 {
        let site = engine.site();
        let zones = site.main_confs.get::<KeyvalZones>().list();
        drop(TASKS.replace(keyval::sync::follow_zones(zones, &engine.log())));
    }
}

/// The owner of the zones in messages.
const KIND: &str = "keyval of stream";

static ROWS: [Directive<KeyvalZones>; 2] = keyval::rows(
    STREAM,
    |zones, line| zones.read_zone(line, KIND),
    |_, line| keyval::read_keyval::<StreamSession>(line, KIND),
);

static DIRECTIVES: DirectiveTable<KeyvalZones> = DirectiveTable::new(&ROWS);
