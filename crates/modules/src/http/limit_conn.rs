//! `limit_conn`: how many requests of each key may be under way at the same time.
//!
//! ```nginx
//! limit_conn_zone $binary_remote_addr zone=addr:10m;
//! server { location /download/ { limit_conn addr 1; } }
//! ```
//!
//! A connection counts while it serves a request whose head was read. The counting is [`crate::shared::limit_conn`].

use std::cell::{Cell, RefCell};

use conf::{Arity, Directive, HTTP, HTTP_SERVER_LOCATION, Repeat, Setter, Table, Variable};
use http::{Module, Outcome, Phase, Request, Step};

use crate::shared::limit_conn::{
    Counters, Declaration, Declared, LEVEL_WORDS, LEVELS, Place, Policy, Verdict,
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
    complete: |line| zones::check::<Declaration, Counters>(line, "limit_conn_zone"),
    commit: |site, zones| site.main_confs.get::<Declared>().commit(zones, KIND),
    ..Module::EMPTY
};

/// Who uses a zone, as messages name it.
const KIND: &str = "limit_conn";

static ZONES: Table<Declared> = Table::new(&[Directive {
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
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Counts and logs, but does not reject.",
        set: Setter::Flag(|c| &mut c.policy.dry_run),
    },
]);

#[derive(Clone)]
struct Conf {
    policy: Policy,
    status: i64,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            policy: Policy::default(),
            status: 503,
        }
    }
}

/// What a request has of the limits until it ends. Internal redirects and subrequests share it, so that the request is
/// counted once.
#[derive(Default)]
struct Held {
    verdict: Cell<Option<Verdict>>,
    places: RefCell<Vec<Place>>,
}

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let verdict = request.shared::<Held>().verdict.get();
    verdict.is_some_and(|verdict| {
        out.extend_from_slice(verdict.text().as_bytes());
        true
    })
}

fn limit(request: &mut Request) -> Step<'_> {
    let held = request.shared::<Held>();
    if held.verdict.get().is_some() {
        return Outcome::Declined.into();
    }
    let conf = request.conf::<Conf>();
    let Some((verdict, places)) = conf.policy.take(request) else {
        return Outcome::Declined.into();
    };
    held.verdict.set(Some(verdict));
    held.places.replace(places);
    match verdict {
        Verdict::Rejected => Outcome::Status(conf.status as u16).into(),
        Verdict::Passed | Verdict::RejectedDryRun => Outcome::Declined.into(),
    }
}
