//! `limit_req`: how many requests per second each key may make.
//!
//! ```nginx
//! limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s;
//! server { location /search/ { limit_req zone=one burst=5 delay=3; } }
//! ```
//!
//! What is above the rate waits, up to `burst` requests; what is above that is refused. The counting is
//! [`crate::shared::limit_req`]. A client that leaves while its request waits costs nothing more.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use conf::{
    Arity, Diagnostic, Directive, Expression, HTTP, HTTP_SERVER_LOCATION, Line, Repeat, Setter,
    Table, Variable, parse,
};
use http::{Module, Outcome, Phase, Request, Step};
use rt::error_log::Level;

use crate::shared::limit_req::{Buckets, Count, Fill, REQUEST};
use crate::shared::zones::{self, Zone};

pub(crate) static MODULE: Module = Module {
    name: "limit_req",
    doc: "Limits the request rate per key, such as the client address.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(Phase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<Conf>().limits.is_empty(),
    variables: &[Variable::new(
        "limit_req_status",
        status,
        "`PASSED`, `DELAYED`, `REJECTED`, `DELAYED_DRY_RUN` or `REJECTED_DRY_RUN`.",
    )
    .volatile()],
    complete: |line| zones::check::<Declaration, Buckets>(line, "limit_req_zone"),
    commit: |site, zones| site.main_confs.get::<Declared>().commit(zones),
    ..Module::EMPTY
};

/// Who uses a zone, as messages name it.
const KIND: &str = "limit_req";

static ZONES: Table<Declared> = Table::new(&[Directive {
    name: "limit_req_zone",
    syntax: "key zone=name:size rate=rate",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a zone that tracks requests per value of the key, and their maximum rate (`r/s` or `r/m`). Requests \
          with an empty key are not counted. When the zone is full, the least recently used entry is removed.",
    set: Setter::Custom(Arity::exactly(3), Repeat::Many, |declared, line| {
        declared.read(line)
    }),
}]);

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "limit_req",
        syntax: "zone=name [burst=number] [nodelay | delay=number]",
        default: None,
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Limits the request rate according to a zone. Up to `burst` requests in excess of the rate are delayed \
              until they conform to it; further ones are rejected. With `delay=number`, up to that many excess \
              requests are not delayed; with `nodelay`, none are. If there are several limits, the strictest applies.",
        set: Setter::Custom(
            Arity::between(1, 3),
            Repeat::Fresh(|c| c.limits.clear()),
            |c, line| c.read(line),
        ),
    },
    Directive {
        name: "limit_req_log_level",
        syntax: "info | notice | warn | error",
        default: Some("error"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The log level for rejected requests; delays are logged one level lower.",
        set: Setter::Word(&LEVEL_WORDS, |c, i| c.level = LEVELS[i]),
    },
    Directive {
        name: "limit_req_status",
        syntax: "code",
        default: Some("503"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "The status of rejected requests.",
        set: Setter::Number(|c| &mut c.status, 400, 599),
    },
    Directive {
        name: "limit_req_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Counts and logs, but neither rejects nor delays.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

/// The words of `limit_req_log_level` and of `limit_conn_log_level`.
const LEVEL_WORDS: [&str; 4] = ["info", "notice", "warn", "error"];
const LEVELS: [Level; 4] = [Level::Info, Level::Notice, Level::Warn, Level::Error];

/// The zones that `http` declares.
#[derive(Clone, Default)]
struct Declared(Vec<Arc<ReqZone>>);

type ReqZone = Zone<Declaration, Buckets>;

/// What a zone counts, and how fast.
struct Declaration {
    key: Expression,
    /// Thousandths of requests per second.
    rate: u64,
}

#[derive(Clone)]
struct Conf {
    limits: Vec<Limit>,
    level: Level,
    status: i64,
    dry_run: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            limits: Vec::new(),
            level: Level::Error,
            status: 503,
            dry_run: false,
        }
    }
}

#[derive(Clone)]
struct Limit {
    zone: Arc<ReqZone>,
    /// Thousandths of requests that may wait or hurry above the rate.
    burst: u64,
    /// Thousandths of requests above the rate that need not wait.
    delay: u64,
}

/// A key that is longer is not counted, in bytes.
const MAX_KEY: usize = 65_535;

impl Declared {
    fn read(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        let key = line.expression(0)?;
        let (mut zone, mut rate) = (None, REQUEST);
        for i in 1..line.args().len() {
            let word = line.text(i);
            if let Some(value) = parse::parameter(word, "zone") {
                zone = Some(zones::name_and_size(line, i, value)?);
            } else if let Some(value) = parse::parameter(word, "rate") {
                let read = parse_rate(value);
                rate = read.ok_or_else(|| line.error_at(i, format!("invalid rate \"{word}\"")))?;
            } else {
                return Err(line.invalid_parameter(i));
            }
        }
        let zone =
            zone.ok_or_else(|| line.error("\"limit_req_zone\" must have \"zone\" parameter"))?;
        let name = zone.name.clone();
        let twice = |first: &Declaration| {
            format!(
                "limit_req_zone \"{name}\" is already bound to key \"{}\"",
                first.key.source()
            )
        };
        self.0.push(zones::declare(
            line,
            zone,
            KIND,
            Declaration { key, rate },
            twice,
        )?);
        Ok(())
    }

    fn commit(&self, zones: &rt::engine::Zones) -> Result<(), String> {
        for zone in &self.0 {
            let source = |declared: &Declaration| declared.key.source().to_vec();
            let buckets = zone.commit(zones, KIND, |size, declared| {
                Buckets::new(size, &source(declared), Instant::now())
            });
            let key = zone.declared().map(source).unwrap_or_default();
            if *buckets.key != *key {
                let (key, former) = (bstr::BStr::new(&key), bstr::BStr::new(&*buckets.key));
                let name = &zone.name;
                return Err(format!(
                    "limit_req \"{name}\" uses the \"{key}\" key while previously it used the \"{former}\" key"
                ));
            }
        }
        Ok(())
    }
}

/// `10r/s`, `30r/m`, or a number per second, in thousandths per second.
fn parse_rate(text: &[u8]) -> Option<u64> {
    let (number, seconds) = match (text.strip_suffix(b"r/s"), text.strip_suffix(b"r/m")) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, 60),
        (None, None) => (text, 1),
    };
    let number = positive(number)?;
    Some(number.saturating_mul(REQUEST) / seconds)
}

fn positive(text: &[u8]) -> Option<u64> {
    u64::try_from(parse::number(text)?)
        .ok()
        .filter(|number| *number > 0)
}

impl Conf {
    fn read(&mut self, line: &mut Line) -> Result<(), Diagnostic> {
        let (mut zone, mut burst, mut delay) = (None, 0, 0);
        for i in 0..line.args().len() {
            let word = line.text(i);
            let number = |value, what: &str| {
                let number = positive(value).map(|number| number.saturating_mul(REQUEST));
                number.ok_or_else(|| line.error_at(i, format!("invalid {what} value \"{word}\"")))
            };
            if let Some(name) = parse::parameter(word, "zone") {
                zone = Some(zones::refer(line, name.into(), KIND)?);
            } else if let Some(value) = parse::parameter(word, "burst") {
                burst = number(value, "burst")?;
            } else if let Some(value) = parse::parameter(word, "delay") {
                delay = number(value, "delay")?;
            } else if word == "nodelay" {
                delay = u64::MAX;
            } else {
                return Err(line.invalid_parameter(i));
            }
        }
        let zone = zone.ok_or_else(|| line.error("\"limit_req\" must have \"zone\" parameter"))?;
        if self
            .limits
            .iter()
            .any(|limit| Arc::ptr_eq(&limit.zone, &zone))
        {
            return Err(line.directive_error("is duplicate"));
        }
        self.limits.push(Limit { zone, burst, delay });
        Ok(())
    }

    /// The level of lines about delays: one less grave, but not below `info`.
    fn delay_level(&self) -> Level {
        match self.level {
            Level::Error => Level::Warn,
            Level::Warn => Level::Notice,
            _ => Level::Info,
        }
    }
}

/// What became of the request, for the variable and so that it is counted once.
#[derive(Clone, Copy, Default)]
enum Verdict {
    #[default]
    Unlimited,
    Passed,
    Delayed,
    Rejected,
    DelayedDryRun,
    RejectedDryRun,
}

fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let text = match request.shared::<Cell<Verdict>>().get() {
        Verdict::Unlimited => return false,
        Verdict::Passed => "PASSED",
        Verdict::Delayed => "DELAYED",
        Verdict::Rejected => "REJECTED",
        Verdict::DelayedDryRun => "DELAYED_DRY_RUN",
        Verdict::RejectedDryRun => "REJECTED_DRY_RUN",
    };
    out.extend_from_slice(text.as_bytes());
    true
}

fn limit(request: &mut Request) -> Step<'_> {
    let verdict = request.shared::<Cell<Verdict>>();
    if !matches!(verdict.get(), Verdict::Unlimited) {
        return Outcome::Declined.into();
    }
    let conf = request.conf::<Conf>();
    let excess = match judge(request, &conf.limits) {
        Judgement::Unlimited => return Outcome::Declined.into(),
        Judgement::Over => {
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
        Judgement::Within(delay) => delay,
    };
    let Some(Wait {
        delay,
        excess,
        zone,
    }) = excess
    else {
        verdict.set(Verdict::Passed);
        return Outcome::Declined.into();
    };
    let (dry, zone) = (if conf.dry_run { ", dry run" } else { "" }, &zone.name);
    let (whole, part) = (excess / REQUEST, excess % REQUEST);
    request.log(
        conf.delay_level(),
        format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{zone}\""),
    );
    if conf.dry_run {
        verdict.set(Verdict::DelayedDryRun);
        return Outcome::Declined.into();
    }
    verdict.set(Verdict::Delayed);
    Step::later(wait(request, delay))
}

/// Lets the request wait, unless its client leaves.
async fn wait(request: &mut Request, delay: Duration) -> Outcome {
    let client = request.presence();
    match rt::timeout(delay, client.left()).await {
        Err(_elapsed) => Outcome::Declined,
        Ok(()) => {
            request.log(
                Level::Info,
                format_args!("client prematurely closed connection"),
            );
            Outcome::Status(http::module::internal_status::CLIENT_CLOSED)
        }
    }
}

/// What all limits together say.
enum Judgement {
    Unlimited,
    Over,
    Within(Option<Wait>),
}

/// The longest wait that a limit wants.
struct Wait {
    delay: Duration,
    excess: u64,
    zone: Arc<ReqZone>,
}

/// A limit that has a key for this request.
struct Pending<'a> {
    limit: &'a Limit,
    key: Vec<u8>,
}

/// Asks each limit, in order. Nothing is counted in any zone unless all let the request through.
fn judge(request: &mut Request, limits: &[Limit]) -> Judgement {
    let now = rt::now();
    let mut pending: Vec<Pending> = Vec::new();
    let mut counted = None;
    for (n, limit) in limits.iter().enumerate() {
        let Some(key) = key(request, &limit.zone) else {
            continue;
        };
        let count = if n + 1 == limits.len() {
            Count::Now
        } else {
            Count::Later
        };
        match pour(limit, &key, count, now) {
            Fill::Excess(excess) if count == Count::Now => counted = Some((limit, excess)),
            Fill::Excess(_) => pending.push(Pending { limit, key }),
            refused => {
                log_refusal(request, &limit.zone, refused);
                return Judgement::Over;
            }
        }
    }
    if pending.is_empty() && counted.is_none() {
        return Judgement::Unlimited;
    }
    let mut longest = counted.and_then(|(limit, excess)| limit.wait(excess));
    for Pending { limit, key } in pending {
        // Another loop may have been faster; then this one counts too, as it was let through.
        if let Fill::Excess(excess) = limit.pour_unbounded(&key, now)
            && let Some(wait) = limit.wait(excess)
            && longest
                .as_ref()
                .is_none_or(|longest| wait.delay > longest.delay)
        {
            longest = Some(wait);
        }
    }
    Judgement::Within(longest)
}

fn pour(limit: &Limit, key: &[u8], count: Count, now: Instant) -> Fill {
    match (limit.zone.state(), limit.zone.declared()) {
        (Some(buckets), Some(zone)) => buckets.pour(key, zone.rate, limit.burst, count, now),
        _ => Fill::NoRoom,
    }
}

impl Limit {
    fn pour_unbounded(&self, key: &[u8], now: Instant) -> Fill {
        let unbounded = Limit {
            burst: u64::MAX,
            ..self.clone()
        };
        pour(&unbounded, key, Count::Now, now)
    }

    fn wait(&self, excess: u64) -> Option<Wait> {
        let above = excess.checked_sub(self.delay).filter(|above| *above > 0)?;
        let rate = self.zone.declared()?.rate.max(1);
        let delay = Duration::from_millis(above.saturating_mul(1000) / rate);
        (!delay.is_zero()).then(|| Wait {
            delay,
            excess,
            zone: Arc::clone(&self.zone),
        })
    }
}

/// The request's key in a zone; `None` when it is not counted there.
fn key(request: &mut Request, zone: &ReqZone) -> Option<Vec<u8>> {
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

fn log_refusal(request: &Request, zone: &ReqZone, refused: Fill) {
    let conf = request.conf::<Conf>();
    let name = &zone.name;
    match refused {
        Fill::Over(excess) => {
            let dry = if conf.dry_run { ", dry run" } else { "" };
            let (whole, part) = (excess / REQUEST, excess % REQUEST);
            request.log(
                conf.level,
                format_args!(
                    "limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\""
                ),
            );
        }
        Fill::NoRoom => {
            request.log(
                Level::Alert,
                format_args!("could not allocate node in limit_req zone \"{name}\""),
            );
        }
        Fill::Excess(_) => {}
    }
}
