//! `limit_req`: how many requests per second a client, or whatever a key names, may make.
//!
//! ```nginx
//! limit_req_zone $binary_remote_addr zone=clients:10m rate=10r/s;
//! server {
//!     limit_req zone=clients burst=20 nodelay;
//! }
//! ```
//!
//! Requests above the rate wait until it is their turn, `burst` of them at most; `delay=N` and `nodelay` let some or
//! all of those go at once. What comes beyond is refused. Several limits hold together: a request that one refuses is
//! counted by none. The counting is in [`zone`].

mod zone;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::{Duration, Instant};

use bstr::{BStr, BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP, HTTP_SERVER_LOCATION, Level as Block, Line,
    Repeat, Scope, Setter, Table, VarId, Variable,
};
use http::site::Frozen;
use http::{Module, Outcome, Phase, Request, Step};
use rt::engine::Zones;
use rt::error_log::Level;

use zone::{Leak, REQUEST, Verdict, Zone};

pub(crate) static MODULE: Module = Module {
    name: "limit_req",
    doc: "Limits the rate of requests by a key.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<Conf>().limits.is_empty(),
    variables: &[Variable::new(
        STATUS,
        |_, _| false,
        "What became of the request: `PASSED`, `DELAYED`, `REJECTED`, `DELAYED_DRY_RUN` or `REJECTED_DRY_RUN`.",
    )],
    commit,
    ..Module::EMPTY
};

/// The variable that also remembers that a request was judged: it stays through internal redirects, and subrequests
/// share it.
const STATUS: &str = "limit_req_status";

static ZONES: Table<Main> = Table::new(&[Directive {
    name: "limit_req_zone",
    syntax: "key zone=name:size rate=rate",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "A zone that counts requests by a key, at so many per second (`r/s`) or minute (`r/m`). One megabyte counts \
          8192 keys; when there are more, those used longest ago are forgotten. Requests with an empty key are not \
          counted.",
    set: Setter::Custom(Arity::exactly(3), Repeat::Many, limit_req_zone),
}]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "limit_req",
        syntax: "zone=name [burst=number] [nodelay | delay=number]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Limits requests by a zone. `burst` requests above the rate are delayed until their turn, or let go at \
              once: all with `nodelay`, the first ones with `delay`. More are refused.",
        set: Setter::Custom(Arity::between(1, 3), Repeat::Fresh(|c| c.limits.clear()), limit_req),
    },
    Directive {
        name: "limit_req_status",
        syntax: "code",
        default: Some("503"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The status of refused requests.",
        set: Setter::Number(|c| &mut c.status, 400, 599),
    },
    Directive {
        name: "limit_req_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The level of the log lines about refusals. Those about delays are one level less serious.",
        set: Setter::Word(&["info", "notice", "warn", "error"], |c, word| c.log_level = word),
    },
    Directive {
        name: "limit_req_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Requests are counted and logged, but neither delayed nor refused.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
])
.finish(check_zones);

/// All zones, for [`commit`].
#[derive(Clone, Default)]
struct Main {
    zones: Vec<Arc<Slot>>,
}

/// The limits of a location.
#[derive(Clone, Default)]
struct Conf {
    limits: Vec<Limit>,
    status: i64,
    /// A position in [`LEVELS`].
    log_level: usize,
    dry_run: bool,
}

const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];

#[derive(Clone)]
struct Limit {
    zone: Arc<Slot>,
    /// In thousandths of a request, as the delay.
    burst: u64,
    /// What is above the rate by no more than this goes at once.
    undelayed: u64,
    status: VarId,
}

/// A zone by name. A `limit_req` may stand before the zone that it names.
#[derive(Default)]
struct Slot {
    name: BString,
    defined: OnceLock<Definition>,
    /// There once the worker has committed the configuration.
    zone: OnceLock<Arc<Kept>>,
}

struct Definition {
    key: Expression,
    /// In thousandths of a request per second.
    rate: u64,
    size: u64,
}

/// What outlives a reload: it goes on counting if the key and the size are the same.
struct Kept {
    key: BString,
    size: u64,
    zone: Zone,
}

/// The slots of a configuration that is being read.
#[derive(Default)]
struct Slots(BTreeMap<BString, Arc<Slot>>);

fn slot(line: &mut Line, name: &BStr) -> Arc<Slot> {
    let slots = &mut line.shared::<Slots>().0;
    let new = || {
        Arc::new(Slot {
            name: name.to_owned(),
            ..Slot::default()
        })
    };
    Arc::clone(slots.entry(name.to_owned()).or_insert_with(new))
}

/// The smallest zone, in bytes: eight pages, as in nginx.
const MIN_ZONE: u64 = 8 * 4096;

fn limit_req_zone(main: &mut Main, line: &mut Line) -> Result<(), Diagnostic> {
    let key = line.expression(0)?;
    let (mut zone, mut rate) = (None, REQUEST);
    for index in 1..line.args().len() {
        let text = line.text(index);
        if let Some(value) = conf::parse::parameter(text, "zone") {
            let invalid = || line.error_at(index, format!("invalid zone size \"{text}\""));
            let (name, size) = value.split_once_str(b":").ok_or_else(invalid)?;
            let size = conf::parse::size(size).ok_or_else(invalid)?;
            if size < MIN_ZONE {
                return Err(line.error_at(index, format!("zone \"{text}\" is too small")));
            }
            zone = Some((name.as_bstr(), size));
        } else if let Some(value) = conf::parse::parameter(text, "rate") {
            let parsed = conf::parse::rate(value)
                .ok_or_else(|| line.error_at(index, format!("invalid rate \"{text}\"")))?;
            rate = parsed.thousandths_per_second.max(1);
        } else {
            return Err(line.invalid_parameter(index));
        }
    }
    let Some((name, size)) = zone.filter(|(name, _)| !name.is_empty()) else {
        return Err(line.error("\"limit_req_zone\" must have \"zone\" parameter"));
    };
    let slot = slot(line, name);
    if slot.defined.set(Definition { key, rate, size }).is_err() {
        let key = slot
            .defined
            .get()
            .map(|defined| defined.key.source().to_owned())
            .unwrap_or_default();
        return Err(line.error(format!(
            "limit_req_zone \"{name}\" is already bound to key \"{key}\""
        )));
    }
    main.zones.push(slot);
    Ok(())
}

fn limit_req(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let (mut zone, mut burst, mut undelayed) = (None, 0, 0);
    for index in 0..line.args().len() {
        let text = line.text(index);
        let number = |value: &[u8], what: &str| {
            let number = conf::parse::number(value).filter(|number| *number > 0);
            let invalid = || line.error_at(index, format!("invalid {what} value \"{text}\""));
            number
                .map(|number| number.unsigned_abs().saturating_mul(REQUEST))
                .ok_or_else(invalid)
        };
        if let Some(name) = conf::parse::parameter(text, "zone") {
            zone = Some(name.as_bstr());
        } else if let Some(value) = conf::parse::parameter(text, "burst") {
            burst = number(value, "burst")?;
        } else if let Some(value) = conf::parse::parameter(text, "delay") {
            undelayed = number(value, "delay")?;
        } else if text == "nodelay" {
            undelayed = u64::MAX;
        } else {
            return Err(line.invalid_parameter(index));
        }
    }
    let Some(name) = zone else {
        return Err(line.error("\"limit_req\" must have \"zone\" parameter"));
    };
    let zone = slot(line, name);
    if conf
        .limits
        .iter()
        .any(|limit| Arc::ptr_eq(&limit.zone, &zone))
    {
        return Err(line.directive_error("is duplicate"));
    }
    let status = line.level.names.id(STATUS.as_bytes(), None);
    conf.limits.push(Limit {
        zone,
        burst,
        undelayed,
        status,
    });
    Ok(())
}

/// Every zone that is named must be there. All of `http`'s own lines were read before its first server is finished.
fn check_zones(conf: &mut Conf, _: Option<&Conf>, block: &mut Block) -> Result<(), Diagnostic> {
    let missing = conf
        .limits
        .iter()
        .find(|limit| limit.zone.defined.get().is_none());
    match missing.filter(|_| block.context != HTTP) {
        None => Ok(()),
        Some(limit) => {
            let error = Diagnostic::error(
                format!("zero size shared memory zone \"{}\"", limit.zone.name),
                None,
            );
            Err(error.note("no \"limit_req_zone\" has this name"))
        }
    }
}

/// Finds the zones of the last configuration again, or makes them.
fn commit(frozen: &Frozen, zones: &Zones) -> Result<(), String> {
    for slot in &frozen.main_confs.get::<Main>().zones {
        let Some(defined) = slot.defined.get() else {
            continue;
        };
        let name = format!("limit_req {}", slot.name);
        let key = defined.key.source().to_owned();
        let make = || Kept {
            key: key.clone(),
            size: defined.size,
            zone: Zone::new(defined.size),
        };
        let mut kept = zones.get_or_create(&name, make);
        if (&kept.key, kept.size) != (&key, defined.size) {
            kept = Arc::new(make());
            zones.replace(&name, Arc::clone(&kept));
        }
        // A second commit of the same generation would find the same zone.
        let _ = slot.zone.set(kept);
    }
    Ok(())
}

/// A longer key is not counted, in bytes; nginx's bound.
const MAX_KEY: usize = 65535;

fn limit(request: &mut Request) -> Step<'_> {
    let conf = request.conf::<Conf>();
    let Some(status) = conf.limits.first().map(|limit| limit.status) else {
        return Outcome::Declined.into();
    };
    if request.variable(status, &mut Vec::new()) {
        return Outcome::Declined.into();
    }
    let dry = if conf.dry_run { ", dry run" } else { "" };
    let level = LEVELS[conf.log_level];
    match judge(request, &conf) {
        Judgement::Uncounted => Outcome::Declined.into(),
        Judgement::Refused { excess, limit } => {
            let (whole, rest, zone) = (excess / 1000, excess % 1000, &conf.limits[limit].zone.name);
            request.log(
                level,
                format_args!(
                    "limiting requests{dry}, excess: {whole}.{rest:03} by zone \"{zone}\""
                ),
            );
            if conf.dry_run {
                request.set_variable(status, b"REJECTED_DRY_RUN");
                return Outcome::Declined.into();
            }
            request.set_variable(status, b"REJECTED");
            Outcome::Status(u16::try_from(conf.status).unwrap_or(503)).into()
        }
        Judgement::Passed { delay, .. } if delay.is_zero() => {
            request.set_variable(status, b"PASSED");
            Outcome::Declined.into()
        }
        Judgement::Passed {
            delay,
            excess,
            limit,
        } => {
            let (whole, rest, zone) = (excess / 1000, excess % 1000, &conf.limits[limit].zone.name);
            let level = LEVELS[conf.log_level.saturating_sub(1)];
            request.log(
                level,
                format_args!(
                    "delaying request{dry}, excess: {whole}.{rest:03}, by zone \"{zone}\""
                ),
            );
            if conf.dry_run {
                request.set_variable(status, b"DELAYED_DRY_RUN");
                return Outcome::Declined.into();
            }
            request.set_variable(status, b"DELAYED");
            Step::later(async move {
                rt::sleep(delay).await;
                Outcome::Declined
            })
        }
    }
}

/// What all limits of a location say together.
enum Judgement {
    /// No limit has a key for this request.
    Uncounted,
    /// This limit refuses it.
    Refused { excess: u64, limit: usize },
    /// It may go on after a while; this limit makes it wait for longest.
    Passed {
        delay: Duration,
        excess: u64,
        limit: usize,
    },
}

fn judge(request: &mut Request, conf: &Conf) -> Judgement {
    let now = now_ms();
    let mut counted: Vec<(usize, BString)> = Vec::new();
    for (index, limit) in conf.limits.iter().enumerate() {
        let (Some(defined), Some(kept)) = (limit.zone.defined.get(), limit.zone.zone.get()) else {
            continue;
        };
        let key = request.value(&defined.key);
        if key.len() > MAX_KEY {
            let name = defined.key.source();
            request.error(format_args!(
                "the value of the \"{name}\" key is more than 65535 bytes: \"{key}\""
            ));
            continue;
        }
        if key.is_empty() {
            continue;
        }
        // With several limits all are asked before the first one counts.
        if conf.limits.len() > 1
            && let Verdict::Overflows(excess) = kept.zone.ask(&key, limit.leak(defined), now)
        {
            return Judgement::Refused {
                excess,
                limit: index,
            };
        }
        counted.push((index, key));
    }
    let mut judgement = Judgement::Uncounted;
    for (index, key) in counted {
        let limit = &conf.limits[index];
        let (Some(defined), Some(kept)) = (limit.zone.defined.get(), limit.zone.zone.get()) else {
            continue;
        };
        match kept.zone.add(&key, limit.leak(defined), now) {
            Verdict::Overflows(excess) => {
                return Judgement::Refused {
                    excess,
                    limit: index,
                };
            }
            Verdict::Fits(excess) => {
                let late = excess.saturating_sub(limit.undelayed);
                let delay = Duration::from_millis(late.saturating_mul(1000) / defined.rate);
                match judgement {
                    Judgement::Passed { delay: longest, .. } if delay <= longest => {}
                    _ => {
                        judgement = Judgement::Passed {
                            delay,
                            excess,
                            limit: index,
                        }
                    }
                }
            }
        }
    }
    judgement
}

impl Limit {
    fn leak(&self, defined: &Definition) -> Leak {
        Leak {
            rate: defined.rate,
            burst: self.burst,
        }
    }
}

/// Milliseconds on a clock that all loops share.
fn now_ms() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    // The turn's time may be from just before the first call.
    let since = rt::now().saturating_duration_since(*BEGIN);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
