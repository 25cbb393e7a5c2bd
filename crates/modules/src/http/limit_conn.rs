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
use rt::error_log::Level;

use crate::shared::limit_conn::{
    ConnZone, Counters, Declaration, Declared, Limits, MAX_KEY, NoPlace, Place,
};
use crate::shared::zones;

pub(crate) static MODULE: Module = Module {
    name: "limit_conn",
    doc: "Limits how many requests of each client, or of whatever the key is, are served at the same time.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<Conf>().limits.0.is_empty(),
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
    doc: "A zone of counters, one for each value of the key. Requests with an empty key are not counted. When the zone \
          is full, requests with new keys are refused.",
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
        doc: "So many requests of each key of the zone may be under way. With several lines all must let it through.",
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
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The level of log lines about refused requests.",
        set: Setter::Word(&["info", "notice", "warn", "error"], |c, i| {
            c.level = [Level::Info, Level::Notice, Level::Warn, Level::Error][i];
        }),
    },
    Directive {
        name: "limit_conn_status",
        syntax: "code",
        default: Some("503"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The status of refused requests.",
        set: Setter::Number(|c| &mut c.status, 400, 599),
    },
    Directive {
        name: "limit_conn_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Counts and logs, but does not refuse.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

#[derive(Clone)]
struct Conf {
    limits: Limits,
    level: Level,
    status: i64,
    dry_run: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            limits: Limits::default(),
            level: Level::Error,
            status: 503,
            dry_run: false,
        }
    }
}

/// What became of the request, for the variable and so that it is counted once.
#[derive(Clone, Copy, Default)]
enum Verdict {
    #[default]
    Unlimited,
    Passed,
    Rejected,
    RejectedDryRun,
}

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let text = match request.shared::<Cell<Verdict>>().get() {
        Verdict::Unlimited => return false,
        Verdict::Passed => "PASSED",
        Verdict::Rejected => "REJECTED",
        Verdict::RejectedDryRun => "REJECTED_DRY_RUN",
    };
    out.extend_from_slice(text.as_bytes());
    true
}

/// The places that a request has, until it ends.
type Places = RefCell<Vec<Place>>;

fn limit(request: &mut Request) -> Step<'_> {
    let verdict = request.shared::<Cell<Verdict>>();
    if !matches!(verdict.get(), Verdict::Unlimited) {
        return Outcome::Declined.into();
    }
    let conf = request.conf::<Conf>();
    let places = request.shared::<Places>();
    for limit in &conf.limits.0 {
        let Some(key) = key(request, &limit.zone) else {
            continue;
        };
        let Some(counters) = limit.zone.state() else {
            continue;
        };
        verdict.set(Verdict::Passed);
        match counters.take(&key, limit.most) {
            Ok(place) => places.borrow_mut().push(place),
            Err(why) => {
                log_refusal(request, &conf, &limit.zone, why);
                // Whoever is refused here holds no places elsewhere.
                places.borrow_mut().clear();
                verdict.set(if conf.dry_run {
                    Verdict::RejectedDryRun
                } else {
                    Verdict::Rejected
                });
                return match conf.dry_run {
                    true => Outcome::Declined.into(),
                    false => Outcome::Status(conf.status as u16).into(),
                };
            }
        }
    }
    Outcome::Declined.into()
}

/// The request's key in a zone; `None` when it is not counted there.
fn key(request: &mut Request, zone: &ConnZone) -> Option<Vec<u8>> {
    let expression = &zone.declared()?.key;
    let key = request.value(expression);
    if key.len() > MAX_KEY {
        let source = expression.source();
        request.error(format_args!(
            "the value of the \"{source}\" key is more than {MAX_KEY} bytes: \"{key}\""
        ));
        return None;
    }
    (!key.is_empty()).then(|| key.into())
}

fn log_refusal(request: &Request, conf: &Conf, zone: &ConnZone, why: NoPlace) {
    let name = &zone.name;
    match why {
        NoPlace::Limit => {
            let dry = if conf.dry_run { ", dry run," } else { "" };
            request.log(
                conf.level,
                format_args!("limiting connections{dry} by zone \"{name}\""),
            );
        }
        NoPlace::ZoneFull => {
            request.log(
                Level::Crit,
                format_args!("no room for another key in limit_conn zone \"{name}\""),
            );
        }
    }
}
