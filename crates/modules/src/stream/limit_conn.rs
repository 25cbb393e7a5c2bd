//! `limit_conn` in stream: how many sessions of each key may be under way at the same time.
//!
//! The counting is [`crate::shared::limit_conn`].

use ::stream::module::status::SERVICE_UNAVAILABLE;
use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::contexts::STREAM_AND_SERVER;
use conf::{Arity, Directive, Repeat, STREAM, Setter, Table, Variable};
use rt::error_log::Level;

use crate::shared::limit_conn::{
    ConnZone, Counters, Declaration, Declared, Limits, MAX_KEY, NoPlace, Place,
};
use crate::shared::zones;

pub(crate) static MODULE: Module = Module {
    name: "limit_conn",
    doc: "Limits how many sessions of each client, or of whatever the key is, are under way at the same time.",
    main: &ZONES,
    server: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |server| !server.confs.get::<Conf>().limits.0.is_empty(),
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
    doc: "A zone of counters, one for each value of the key. Sessions with an empty key are not counted. When the zone is \
          full, sessions with new keys are refused.",
    set: Setter::Custom(Arity::exactly(2), Repeat::Many, |declared, line| {
        declared.read(line, KIND)
    }),
}]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "limit_conn",
        syntax: "zone number",
        default: None,
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "So many sessions of each key of the zone may be under way. With several lines all must let it through; one \
              that is refused ends with status 503.",
        set: Setter::Custom(
            Arity::exactly(2),
            Repeat::Fresh(|c| c.limits.0.clear()),
            |c, line| c.limits.read(line, KIND),
        ),
    },
    Directive {
        name: "limit_conn_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "The level of log lines about refused sessions.",
        set: Setter::Word(&["info", "notice", "warn", "error"], |c, i| {
            c.level = [Level::Info, Level::Notice, Level::Warn, Level::Error][i];
        }),
    },
    Directive {
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: STREAM_AND_SERVER,
        since: "0.1",
        doc: "Counts and logs, but does not refuse.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

#[derive(Clone)]
struct Conf {
    limits: Limits,
    level: Level,
    dry_run: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            limits: Limits::default(),
            level: Level::Error,
            dry_run: false,
        }
    }
}

/// What a session has of the limits, until it ends.
struct Held {
    verdict: &'static str,
    _places: Vec<Place>,
}

fn status(session: &mut Session, out: &mut Vec<u8>) -> bool {
    let Some(held) = session.state::<Held>() else {
        return false;
    };
    out.extend_from_slice(held.verdict.as_bytes());
    true
}

fn limit(session: &mut Session) -> Step<'_> {
    let conf = session.conf::<Conf>();
    let mut places = Vec::new();
    let mut counted = false;
    for limit in &conf.limits.0 {
        let Some(key) = key(session, &limit.zone) else {
            continue;
        };
        let Some(counters) = limit.zone.state() else {
            continue;
        };
        counted = true;
        let why = match counters.take(&key, limit.most) {
            Ok(place) => {
                places.push(place);
                continue;
            }
            Err(why) => why,
        };
        log_refusal(session, &conf, &limit.zone, why);
        let (verdict, outcome) = match conf.dry_run {
            true => ("REJECTED_DRY_RUN", Outcome::Declined),
            false => ("REJECTED", Outcome::Status(SERVICE_UNAVAILABLE)),
        };
        // Whoever is refused here holds no places elsewhere.
        session.set_state(Held {
            verdict,
            _places: Vec::new(),
        });
        return outcome.into();
    }
    if counted {
        session.set_state(Held {
            verdict: "PASSED",
            _places: places,
        });
    }
    Outcome::Declined.into()
}

/// The session's key in a zone; `None` when it is not counted there.
fn key(session: &mut Session, zone: &ConnZone) -> Option<Vec<u8>> {
    let expression = &zone.declared()?.key;
    let key = session.value(expression);
    if key.len() > MAX_KEY {
        let source = expression.source();
        session.error(format_args!(
            "the value of the \"{source}\" key is more than {MAX_KEY} bytes: \"{key}\""
        ));
        return None;
    }
    (!key.is_empty()).then(|| key.into())
}

fn log_refusal(session: &Session, conf: &Conf, zone: &ConnZone, why: NoPlace) {
    let name = &zone.name;
    match why {
        NoPlace::Limit => {
            let dry = if conf.dry_run { ", dry run," } else { "" };
            session.log(
                conf.level,
                format_args!("limiting connections{dry} by zone \"{name}\""),
            );
        }
        NoPlace::ZoneFull => {
            session.log(
                Level::Crit,
                format_args!("no room for another key in limit_conn zone \"{name}\""),
            );
        }
    }
}
