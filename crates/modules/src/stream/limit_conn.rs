//! `limit_conn` in stream: how many sessions of each key may be under way at the same time.
//!
//! The counting is [`crate::shared::limit_conn`].

use ::stream::module::status::SERVICE_UNAVAILABLE;
use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table, Variable};

use crate::shared::limit_conn::{
    Counters, Declaration, Declared, LEVEL_WORDS, LEVELS, Place, Policy, Verdict,
};
use crate::shared::zones;

pub(crate) static MODULE: Module = Module {
    name: "limit_conn",
    doc: "Limits the number of concurrent sessions per key, such as the client address.",
    main: &ZONES,
    server: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |server| !server.confs.get::<Policy>().limits.is_empty(),
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
const KIND: &str = "limit_conn of stream";

static ZONES: Table<Declared> = Table::new(&[Directive {
    name: "limit_conn_zone",
    syntax: "key zone=name:size",
    default: None,
    contexts: STREAM,
    since: "0.1",
    doc: "Defines a zone that counts sessions per value of the key. Sessions with an empty key are not counted. When \
          the zone is full, sessions with new keys are rejected.",
    set: Setter::Custom(Arity::exactly(2), Repeat::Many, |declared, line| {
        declared.read(line, KIND)
    }),
}]);

static DIRECTIVES: Table<Policy> = Table::<Policy>::new(&[
    Directive {
        name: "limit_conn",
        syntax: "zone number",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The maximum number of concurrent sessions per key of the zone; further ones end with status 503. If \
              there are several limits, all of them apply.",
        set: Setter::Custom(
            Arity::exactly(2),
            Repeat::Fresh(|c| c.limits.clear()),
            |c, line| c.limits.read(line, KIND),
        ),
    },
    Directive {
        name: "limit_conn_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The log level for rejected sessions.",
        set: Setter::Word(&LEVEL_WORDS, |c, i| c.level = LEVELS[i]),
    },
    Directive {
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Counts and logs, but does not reject.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

/// What a session has of the limits, until it ends.
struct Held {
    verdict: Verdict,
    _places: Vec<Place>,
}

fn status(session: &mut Session, out: &mut Vec<u8>) -> bool {
    session.state::<Held>().is_some_and(|held| {
        out.extend_from_slice(held.verdict.text().as_bytes());
        true
    })
}

fn limit(session: &mut Session) -> Step<'_> {
    let Some((verdict, places)) = session.conf::<Policy>().take(session) else {
        return Outcome::Declined.into();
    };
    session.set_state(Held {
        verdict,
        _places: places,
    });
    match verdict {
        Verdict::Rejected => Outcome::Status(SERVICE_UNAVAILABLE).into(),
        Verdict::Passed | Verdict::RejectedDryRun => Outcome::Declined.into(),
    }
}
