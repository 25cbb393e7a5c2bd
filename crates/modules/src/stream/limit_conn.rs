//! `limit_conn` in stream: limits the number of concurrent sessions per key.
//!
//! The counters are in [`crate::shared::limit_conn`].
//!
//! ```nginx
//! limit_conn_zone $binary_remote_addr zone=addr:10m;
//! server { listen 25; limit_conn addr 4; proxy_pass mail; }
//! ```

use ::stream::module::status::SERVICE_UNAVAILABLE;
use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table, Variable};

use crate::shared::limit_conn::{
    ConnCounters, ConnLimitPolicy, ConnSlot, ConnZoneDeclaration, ConnZones, LEVEL_WORDS, LEVELS,
    LimitConnStatus,
};
use crate::shared::zones;

pub(crate) static MODULE: Module = Module {
    name: "limit_conn",
    doc: "Limits the number of concurrent sessions per key, such as the client address.",
    main: &ZONES,
    server: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |server| !server.confs.get::<ConnLimitPolicy>().limits.is_empty(),
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

/// The user of a zone, as named in messages.
const KIND: &str = "limit_conn of stream";

/// The directive of the main context.
static ZONES: Table<ConnZones> = Table::new(&[Directive {
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

static DIRECTIVES: Table<ConnLimitPolicy> = Table::<ConnLimitPolicy>::new(&[
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
        // To find good limits under real traffic before they reject anything.
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Counts and logs, but does not reject.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

/// The result of the limits, and the places in the counters, which the session gives back when it
/// ends.
struct SessionConnSlots {
    status: LimitConnStatus,
    /// Only held: dropping them counts down.
    _places: Vec<ConnSlot>,
}

/// `$limit_conn_status`.
fn status(session: &mut Session, out: &mut Vec<u8>) -> bool {
    session.state::<SessionConnSlots>().is_some_and(|held| {
        out.extend_from_slice(held.status.text().as_bytes());
        true
    })
}

/// The phase handler.
fn limit(session: &mut Session) -> Step<'_> {
    let Some((verdict, places)) = session.conf::<ConnLimitPolicy>().take_slots(session) else {
        return Outcome::Declined.into();
    };
    // Also for rejected sessions: `$limit_conn_status` shows it in the log.
    session.set_state(SessionConnSlots {
        status: verdict,
        _places: places,
    });
    match verdict {
        LimitConnStatus::Rejected => Outcome::Status(SERVICE_UNAVAILABLE).into(),
        LimitConnStatus::Passed | LimitConnStatus::RejectedDryRun => Outcome::Declined.into(),
    }
}
