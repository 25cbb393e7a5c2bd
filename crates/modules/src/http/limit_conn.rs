//! `limit_conn`: limits how many requests of each key are in progress at the same time.
//!
//! ```nginx
//! limit_conn_zone $binary_remote_addr zone=addr:10m;
//! server { location /download/ { limit_conn addr 1; } }
//! ```
//!
//! As in nginx a connection counts while it has a request whose header has been read; an idle one
//! does not. The counting is in [`crate::shared::limit_conn`].

use std::cell::{Cell, RefCell};

use conf::{Directive, DirectiveTable, HTTP, HTTP_SERVER_LOCATION, Setter};
use http::http_loop::HttpLoop;
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};

use crate::shared::limit_conn::{
    self, ConnCounters, ConnLimitPolicy, ConnSlot, ConnZoneDeclaration, ConnZones, LimitConnStatus,
};
use crate::shared::limit_req_sync::report_missing_redis;
use crate::shared::zones;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "limit_conn",
    doc: "Limits the number of concurrent requests per key, such as the client address.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<ConnLimitPolicy>().limits.is_empty(),
    variables: &[limit_conn::status_variable(status)],
    complete: |line| {
        zones::report_undeclared::<ConnZoneDeclaration, ConnCounters>(line, "limit_conn_zone");
        report_missing_redis(line);
    },
    metrics: |site, sink| limit_conn::tell_metrics(site.main_confs.get::<ConnZones>(), sink),
    accept: |site, zones| site.main_confs.get::<ConnZones>().adopt_states(zones, KIND),
    commit: |site, zones| {
        site.main_confs
            .get::<ConnZones>()
            .commit_states(zones, KIND)
    },
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Preaccess, &["limit_conn"])]),
    start,
    stop: |_| drop(TASKS.take()),
    ..HttpModule::EMPTY
};

rt::local! {
    /// The tasks that tell the other members of a cluster, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to tell the other members what is in progress, on one loop.
fn start(engine: &HttpLoop) {
    if engine.index == 0 {
        let site = engine.site();
        drop(TASKS.replace(site.main_confs.get::<ConnZones>().start_reports()));
    }
}

/// The owner of the zones in messages.
const KIND: &str = "limit_conn";

static ZONES: DirectiveTable<ConnZones> = DirectiveTable::new(&[limit_conn::zone_row(
    HTTP,
    "Defines a zone that counts requests per value of the key. Requests with an empty key are not counted. When the zone \
     is full, requests with new keys are rejected. With `sync`, a limit is that of all members of the `cluster` together: \
     `share` gives each an equal part, `redis` one of what is free, as they tell each other ten times a second by its \
     Redis. No request waits for that.",
    |declared, line| declared.read(line, KIND),
)]);

static DIRECTIVES: DirectiveTable<ConnLimitPolicy> = DirectiveTable::<ConnLimitPolicy>::new(&[
    limit_conn::limit_row(
        HTTP_SERVER_LOCATION,
        "The maximum number of concurrent requests per key of the zone. If there are several limits, all of them apply.",
        |policy, line| policy.limits.read(line, KIND),
    ),
    limit_conn::log_level_row(HTTP_SERVER_LOCATION, "The log level for rejected requests."),
    Directive {
        name: "limit_conn_status",
        syntax: "code",
        default: Some("503"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The status of rejected requests.",
        set: Setter::Number(|policy| &mut policy.status, 400, 599),
    },
    limit_conn::dry_run_row(HTTP_SERVER_LOCATION),
]);

/// A request's places, held until it ends. Internal redirects and subrequests share them, so that a
/// request is counted once.
#[derive(Default)]
struct RequestConnSlots {
    status: Cell<Option<LimitConnStatus>>,
    slots: RefCell<Vec<ConnSlot>>,
}

/// `$limit_conn_status`.
fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let verdict = request.shared::<RequestConnSlots>().status.get();
    verdict.is_some_and(|verdict| {
        out.extend_from_slice(verdict.text().as_bytes());
        true
    })
}

/// The handler of the preaccess phase. It runs again after an internal redirect, but the first
/// outcome stands.
fn limit(request: &mut Request) -> HandlerStep<'_> {
    let held = request.shared::<RequestConnSlots>();
    // An internal redirect comes here again.
    if held.status.get().is_some() {
        return HandlerOutcome::Declined.into();
    }
    let policy = request.conf::<ConnLimitPolicy>();
    let Some((verdict, places)) = policy.take_slots(request) else {
        return HandlerOutcome::Declined.into();
    };
    held.status.set(Some(verdict));
    held.slots.replace(places);
    match verdict {
        LimitConnStatus::Rejected => HandlerOutcome::Status(policy.status as u16).into(),
        LimitConnStatus::Passed | LimitConnStatus::RejectedDryRun => {
            HandlerOutcome::Declined.into()
        }
    }
}
