//! `limit_conn` in stream: limits the number of concurrent sessions per key.
//!
//! The counters are in [`crate::shared::limit_conn`].
//!
//! ```nginx
//! limit_conn_zone $binary_remote_addr zone=addr:10m;
//! server { listen 25; limit_conn addr 4; proxy_pass mail; }
//! ```

use std::cell::RefCell;

use ::stream::module::status::SERVICE_UNAVAILABLE;
use ::stream::stream_loop::StreamLoop;
use ::stream::{SessionOutcome, SessionStep, StreamModule, StreamPhase, StreamSession};
use conf::directive_contexts::STREAM_AND_SERVER;
use conf::{DirectiveTable, STREAM};
use net::cluster::Clusters;

use crate::shared::limit_conn::{
    self, ConnCounters, ConnLimitPolicy, ConnSlot, ConnZoneDeclaration, ConnZones, LimitConnStatus,
};
use crate::shared::limit_req_sync::report_missing_redis;
use crate::shared::zones;

pub(crate) static MODULE: StreamModule = StreamModule {
    name: "limit_conn",
    doc: "Limits the number of concurrent sessions per key, such as the client address.",
    main: &ZONES,
    server: &DIRECTIVES,
    phases: &[(StreamPhase::Preaccess, limit)],
    enabled: |server| !server.confs.get::<ConnLimitPolicy>().limits.is_empty(),
    variables: &[limit_conn::status_variable(status)],
    complete: |line| {
        zones::report_undeclared::<ConnZoneDeclaration, ConnCounters>(line, "limit_conn_zone");
        // A cluster is declared in http, which may stand before or behind: who is read last reports what is missing.
        Clusters::check_if_read(line);
        report_missing_redis(line);
    },
    accept: |site, zones| {
        let all = site.main_confs.get::<ConnZones>();
        all.check_clusters()?;
        all.adopt_states(zones, KIND)
    },
    commit: |site, zones| {
        site.main_confs
            .get::<ConnZones>()
            .commit_states(zones, KIND)
    },
    start,
    stop: |_| drop(TASKS.take()),
    ..StreamModule::EMPTY
};

rt::local! {
    /// The tasks that tell the other members of a cluster, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to tell the other members what is in progress, on one loop.
fn start(engine: &StreamLoop) {
    if engine.index == 0 {
        let site = engine.site();
        drop(TASKS.replace(site.main_confs.get::<ConnZones>().start_reports()));
    }
}

/// The user of a zone, as named in messages.
const KIND: &str = "limit_conn of stream";

/// The directive of the main context.
static ZONES: DirectiveTable<ConnZones> = DirectiveTable::new(&[limit_conn::zone_row(
    STREAM,
    "Defines a zone that counts sessions per value of the key. Sessions with an empty key are not counted. When the zone \
     is full, sessions with new keys are rejected. With `sync`, a limit is that of all members of the `cluster` together: \
     `share` gives each an equal part, `redis` one of what is free, as they tell each other ten times a second by its \
     Redis. No session waits for that.",
    |declared, line| declared.read(line, KIND),
)]);

static DIRECTIVES: DirectiveTable<ConnLimitPolicy> = DirectiveTable::<ConnLimitPolicy>::new(&[
    limit_conn::limit_row(
        STREAM_AND_SERVER,
        "The maximum number of concurrent sessions per key of the zone; further ones end with status 503. If there are \
         several limits, all of them apply.",
        |policy, line| policy.limits.read(line, KIND),
    ),
    limit_conn::log_level_row(STREAM_AND_SERVER, "The log level for rejected sessions."),
    limit_conn::dry_run_row(STREAM_AND_SERVER),
]);

/// The result of the limits, and the places in the counters, which the session gives back when it
/// ends.
struct SessionConnSlots {
    status: LimitConnStatus,
    /// Only held: dropping them counts down.
    _places: Vec<ConnSlot>,
}

/// `$limit_conn_status`.
fn status(session: &mut StreamSession, out: &mut Vec<u8>) -> bool {
    session.state::<SessionConnSlots>().is_some_and(|held| {
        out.extend_from_slice(held.status.text().as_bytes());
        true
    })
}

/// The phase handler.
fn limit(session: &mut StreamSession) -> SessionStep<'_> {
    let Some((verdict, places)) = session.conf::<ConnLimitPolicy>().take_slots(session) else {
        return SessionOutcome::Declined.into();
    };
    // Also for rejected sessions: `$limit_conn_status` shows it in the log.
    session.set_state(SessionConnSlots {
        status: verdict,
        _places: places,
    });
    match verdict {
        LimitConnStatus::Rejected => SessionOutcome::Status(SERVICE_UNAVAILABLE).into(),
        LimitConnStatus::Passed | LimitConnStatus::RejectedDryRun => {
            SessionOutcome::Declined.into()
        }
    }
}
