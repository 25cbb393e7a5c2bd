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

use conf::{Arity, Directive, HTTP, HTTP_SERVER_LOCATION, Repeat, Setter, Table, Variable};
use http::{Module, Outcome, Phase, Request, Step};

use crate::shared::limit_conn::{
    ConnCounters, ConnLimitPolicy, ConnSlot, ConnZoneDeclaration, ConnZones, LEVEL_WORDS, LEVELS,
    LimitConnStatus,
};
use crate::shared::zones;

pub(crate) static MODULE: Module = Module {
    name: "limit_conn",
    doc: "Limits the number of concurrent requests per key, such as the client address.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<Conf>().policy.limits.is_empty(),
    variables: &[Variable::new(
        "limit_conn_status",
        status,
        "`PASSED`, `REJECTED` or `REJECTED_DRY_RUN`.",
    )
    .volatile()],
    complete: |line| {
        zones::report_undeclared::<ConnZoneDeclaration, ConnCounters>(line, "limit_conn_zone")
    },
    commit: |site, zones| site.main_confs.get::<ConnZones>().commit(zones, KIND),
    ..Module::EMPTY
};

/// The owner of the zones in messages.
const KIND: &str = "limit_conn";

static ZONES: Table<ConnZones> = Table::new(&[Directive {
    name: "limit_conn_zone",
    syntax: "key zone=name:size",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a zone that counts requests per value of the key. Requests with an empty key are not counted. When \
          the zone is full, requests with new keys are rejected.",
    set: Setter::Custom(Arity::exactly(2), Repeat::Many, |declared, line| {
        declared.read(line, KIND)
    }),
}]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "limit_conn",
        syntax: "zone number",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The maximum number of concurrent requests per key of the zone. If there are several limits, all of them \
              apply.",
        set: Setter::Custom(
            Arity::exactly(2),
            Repeat::Fresh(|c| c.policy.limits.clear()),
            |c, line| c.policy.limits.read(line, KIND),
        ),
    },
    Directive {
        name: "limit_conn_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The log level for rejected requests.",
        set: Setter::Word(&LEVEL_WORDS, |c, i| c.policy.level = LEVELS[i]),
    },
    Directive {
        name: "limit_conn_status",
        syntax: "code",
        default: Some("503"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The status of rejected requests.",
        set: Setter::Number(|c| &mut c.status, 400, 599),
    },
    Directive {
        // To find good limits under real traffic before they reject anything.
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Counts and logs, but does not reject.",
        set: Setter::Flag(|c| &mut c.policy.dry_run),
    },
]);

/// The limits of a location.
#[derive(Clone, Default)]
struct Conf {
    policy: ConnLimitPolicy,
    status: i64,
}

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
fn limit(request: &mut Request) -> Step<'_> {
    let held = request.shared::<RequestConnSlots>();
    // An internal redirect comes here again.
    if held.status.get().is_some() {
        return Outcome::Declined.into();
    }
    let conf = request.conf::<Conf>();
    let Some((verdict, places)) = conf.policy.take_slots(request) else {
        return Outcome::Declined.into();
    };
    held.status.set(Some(verdict));
    held.slots.replace(places);
    match verdict {
        LimitConnStatus::Rejected => Outcome::Status(conf.status as u16).into(),
        LimitConnStatus::Passed | LimitConnStatus::RejectedDryRun => Outcome::Declined.into(),
    }
}
