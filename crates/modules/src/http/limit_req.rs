//! `limit_req`: limits the request rate of each key.
//!
//! ```nginx
//! limit_req_zone $binary_remote_addr zone=one:10m rate=1r/s;
//! server { location /search/ { limit_req zone=one burst=5 delay=3; } }
//! ```
//!
//! Requests above the rate wait, up to `burst` of them; beyond that they are rejected. The counting
//! is in [`crate::shared::limit_req`]. If a client disconnects while its request waits, the request
//! ends.
//!
//! A full zone forgets the least recently used keys, as many as a new one needs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, HTTP_SERVER_LOCATION,
    RepeatRule, Setter, Variable, parse,
};
use host::error_log::LogLevel;
use http::http_loop::HttpLoop;
use http::ledger::{EndedBy, LedgerPhase};
use http::{HandlerOutcome, HandlerStep, HttpModule, HttpPhase, Request};
use net::metrics::{MetricFamily, MetricSink};

use crate::shared::limit_req::{
    CountMode, OUTCOMES, PourResult, REQUEST, RatePart, ReqZone, ReqZoneDeclaration, ReqZones,
    RequestBuckets,
};
use crate::shared::limit_req_sync::{SyncWords, ZoneSync, report_missing_redis, report_shares};
use crate::shared::zones;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "limit_req",
    doc: "Limits the request rate per key, such as the client address.",
    main: &ZONES,
    location: &DIRECTIVES,
    phases: &[(HttpPhase::Preaccess, limit)],
    enabled: |location| !location.confs.get::<Conf>().limits.is_empty(),
    variables: &[Variable::new(
        "limit_req_status",
        status,
        "`PASSED`, `DELAYED`, `REJECTED`, `DELAYED_DRY_RUN` or `REJECTED_DRY_RUN`.",
    )
    .volatile()],
    complete: |line| {
        zones::report_undeclared::<ReqZoneDeclaration, RequestBuckets>(line, "limit_req_zone");
        report_missing_redis(line);
    },
    metrics: |site, sink| tell_metrics(site.main_confs.get::<ReqZones>(), sink),
    accept: |site, zones| site.main_confs.get::<ReqZones>().adopt_states(zones),
    commit: |site, zones| {
        let all = &site.main_confs.get::<ReqZones>().0;
        all.iter().for_each(|zone| zone.commit_state(zones, KIND));
    },
    start,
    stop: |_| drop(TASKS.take()),
    explain: http::module::ModuleExplain::Depends(&[(http::HttpPhase::Preaccess, &["limit_req"])]),
    ..HttpModule::EMPTY
};

/// The owner of the zones in messages.
const KIND: &str = "limit_req";

static ZONES: DirectiveTable<ReqZones> = DirectiveTable::new(&[Directive {
    name: "limit_req_zone",
    syntax: "key zone=name:size rate=rate [sync=share|redis cluster=name]",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "Defines a zone that tracks requests per value of the key, and their maximum rate (`r/s` or `r/m`). Requests \
          with an empty key are not counted. When the zone is full, the least recently used entry is removed. With `sync`, \
          the rate and the bursts are those of all members of the `cluster` together: `share` gives each an equal part, \
          `redis` one by what is asked of it, counted in the `redis` of the cluster ten times a second. No request waits \
          for that, and while Redis is away the parts are equal.",
    set: Setter::Custom(Arity::between(3, 5), RepeatRule::Many, |declared, line| {
        declared.read(line)
    }),
}]);

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
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
            RepeatRule::Fresh(|c| c.limits.clear()),
            |c, line| c.read(line),
        ),
    },
    Directive {
        // For rejections; delays are logged one level lower.
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
        // To find good limits under real traffic before they reject anything.
        name: "limit_req_dry_run",
        syntax: "on | off",
        default: Some("off"),
        contexts: HTTP_SERVER_LOCATION,
        since: "0.1",
        doc: "Counts and logs, but neither rejects nor delays.",
        set: Setter::Flag(|c| &mut c.dry_run),
    },
]);

rt::local! {
    /// The tasks that report to Redis, on the loop that runs them.
    static TASKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts to report the zones that Redis counts, on one loop.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let zones = site.main_confs.get::<ReqZones>().0.iter();
    let counted = zones.filter(|zone| {
        let sync = zone.declared().and_then(|declared| declared.sync.as_ref());
        sync.is_some_and(ZoneSync::needs_redis)
    });
    let report = |zone: &Arc<ReqZone>| {
        rt::spawn_handle("limit_req reports", report_shares(Arc::clone(zone))).abort_on_drop()
    };
    drop(TASKS.replace(counted.map(report).collect()));
}

/// The words of `limit_req_log_level` and of `limit_conn_log_level`.
const LEVEL_WORDS: [&str; 4] = ["info", "notice", "warn", "error"];
/// The levels of [`LEVEL_WORDS`], in the same order.
const LEVELS: [LogLevel; 4] = [
    LogLevel::Info,
    LogLevel::Notice,
    LogLevel::Warn,
    LogLevel::Error,
];

/// The limits of a location.
#[derive(Clone, Default)]
struct Conf {
    limits: Vec<ReqLimit>,
    level: LogLevel,
    status: i64,
    dry_run: bool,
}

/// One `limit_req` line.
#[derive(Clone)]
struct ReqLimit {
    zone: Arc<ReqZone>,
    /// The maximum excess, in thousandths of requests.
    burst: u64,
    /// The excess that is not delayed, in thousandths of requests.
    delay: u64,
}

/// Longer keys are not counted, in bytes; nginx keeps the length in 16 bits.
const MAX_KEY: usize = 65_535;

/// The zones as this module reads them; the type is shared with pages that show them.
trait ReqZoneReader {
    fn read(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic>;
    fn adopt_states(&self, zones: &host::engine::ZoneRegistry) -> Result<(), String>;
}

impl ReqZoneReader for ReqZones {
    /// Reads `limit_req_zone`.
    fn read(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        let key = line.expression(0)?;
        // One request per second if the line names no rate, as in nginx.
        let (mut zone, mut rate, mut sync) = (None, REQUEST, SyncWords::default());
        for i in 1..line.args().len() {
            let word = line.text(i);
            if let Some(value) = parse::parameter(word, "zone") {
                zone = Some(zones::name_and_size(line, i, value)?);
            } else if let Some(value) = parse::parameter(word, "rate") {
                let read = parse_rate(value);
                rate = read.ok_or_else(|| line.error_at(i, format!("invalid rate \"{word}\"")))?;
            } else if !sync.take(line, i)? {
                return Err(line.invalid_parameter(i));
            }
        }
        let sync = sync.finish(line)?;
        if let Some(sync) = &sync {
            sync.note_need(line);
        }
        let zone =
            zone.ok_or_else(|| line.error("\"limit_req_zone\" must have \"zone\" parameter"))?;
        let name = zone.name.clone();
        let twice = |first: &ReqZoneDeclaration| {
            format!(
                "limit_req_zone \"{name}\" is already bound to key \"{}\"",
                first.key.source()
            )
        };
        self.0.push(zones::declare(
            line,
            zone,
            KIND,
            ReqZoneDeclaration { key, rate, sync },
            twice,
        )?);
        Ok(())
    }

    /// Finds the buckets that a previous configuration left, or creates them. A changed key is an
    /// error, as in nginx.
    fn adopt_states(&self, zones: &host::engine::ZoneRegistry) -> Result<(), String> {
        for zone in &self.0 {
            let source = |declared: &ReqZoneDeclaration| declared.key.source().to_vec();
            let buckets = zone.adopt_state(zones, KIND, |size, declared| {
                RequestBuckets::new(size, &source(declared), rt::clock::read_clock())
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

/// Parses `10r/s`, `30r/m` or a number per second, as thousandths per second.
fn parse_rate(text: &[u8]) -> Option<u64> {
    let (number, seconds) = match (text.strip_suffix(b"r/s"), text.strip_suffix(b"r/m")) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, 60),
        (None, None) => (text, 1),
    };
    let number = positive(number)?;
    // Multiplied first: `1r/m` would be zero requests per second.
    Some(number.saturating_mul(REQUEST) / seconds)
}

/// A number above 0.
fn positive(text: &[u8]) -> Option<u64> {
    u64::try_from(parse::number(text)?)
        .ok()
        .filter(|number| *number > 0)
}

impl Conf {
    /// Reads `limit_req`.
    fn read(&mut self, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
        let (mut zone, mut burst, mut delay) = (None, 0, 0);
        for i in 0..line.args().len() {
            let word = line.text(i);
            let number = |value, what: &str| {
                let number = positive(value).map(|number| number.saturating_mul(REQUEST));
                number.ok_or_else(|| line.error_at(i, format!("invalid {what} value \"{word}\"")))
            };
            if let Some(name) = parse::parameter(word, "zone") {
                zone = Some(zones::refer_to(line, name.into(), KIND)?);
            } else if let Some(value) = parse::parameter(word, "burst") {
                burst = number(value, "burst")?;
            } else if let Some(value) = parse::parameter(word, "delay") {
                delay = number(value, "delay")?;
            } else if word == "nodelay" {
                // `nodelay` is a `delay` that no excess exceeds.
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
        self.limits.push(ReqLimit { zone, burst, delay });
        Ok(())
    }

    /// The log level for delays: one below that for rejections, but at least `info`.
    fn delay_level(&self) -> LogLevel {
        match self.level {
            LogLevel::Error => LogLevel::Warn,
            LogLevel::Warn => LogLevel::Notice,
            // There is no lower level that could be logged by default.
            _ => LogLevel::Info,
        }
    }
}

/// The outcome for a request, for the variable, and so that a request is counted once.
#[derive(Clone, Copy, Default)]
enum LimitReqStatus {
    /// No limit applied, or none has been evaluated yet.
    #[default]
    Unlimited,
    Passed,
    Delayed,
    Rejected,
    DelayedDryRun,
    RejectedDryRun,
}

/// `$limit_req_status`.
fn status(request: &mut Request, out: &mut Vec<u8>) -> bool {
    let text = match request.shared::<Cell<LimitReqStatus>>().get() {
        LimitReqStatus::Unlimited => return false,
        LimitReqStatus::Passed => "PASSED",
        LimitReqStatus::Delayed => "DELAYED",
        LimitReqStatus::Rejected => "REJECTED",
        LimitReqStatus::DelayedDryRun => "DELAYED_DRY_RUN",
        LimitReqStatus::RejectedDryRun => "REJECTED_DRY_RUN",
    };
    out.extend_from_slice(text.as_bytes());
    true
}

/// The handler of the preaccess phase. It runs again after an internal redirect, but the first
/// outcome stands.
fn limit(request: &mut Request) -> HandlerStep<'_> {
    let verdict = request.shared::<Cell<LimitReqStatus>>();
    // Shared with subrequests, which do not count again either.
    if !matches!(verdict.get(), LimitReqStatus::Unlimited) {
        return HandlerOutcome::Declined.into();
    }
    let conf = request.conf::<Conf>();
    let excess = match check_limits(request, &conf.limits, DryRun(conf.dry_run)) {
        LimitDecision::Unlimited => return HandlerOutcome::Declined.into(),
        LimitDecision::Reject => {
            verdict.set(if conf.dry_run {
                LimitReqStatus::RejectedDryRun
            } else {
                LimitReqStatus::Rejected
            });
            return match conf.dry_run {
                true => HandlerOutcome::Declined.into(),
                false => HandlerOutcome::Status(conf.status as u16).into(),
            };
        }
        LimitDecision::Pass(delay) => delay,
    };
    let Some(RequestDelay {
        delay,
        excess,
        zone,
    }) = excess
    else {
        verdict.set(LimitReqStatus::Passed);
        return HandlerOutcome::Declined.into();
    };
    let (dry, zone) = (if conf.dry_run { ", dry run" } else { "" }, &zone.name);
    let (whole, part) = (excess / REQUEST, excess % REQUEST);
    request.log(
        conf.delay_level(),
        format_args!("delaying request{dry}, excess: {whole}.{part:03}, by zone \"{zone}\""),
    );
    if conf.dry_run {
        verdict.set(LimitReqStatus::DelayedDryRun);
        return HandlerOutcome::Declined.into();
    }
    verdict.set(LimitReqStatus::Delayed);
    HandlerStep::later(wait(request, delay))
}

/// Delays the request, unless its client disconnects.
async fn wait(request: &mut Request, delay: Duration) -> HandlerOutcome {
    let client = Rc::clone(&request.stream);
    let former = request.ledger.enter(LedgerPhase::Limit);
    let left = rt::timeout(delay, client.wait_until_left()).await;
    if left.is_ok() {
        request.ledger.end_by(EndedBy::Client);
    }
    request.ledger.enter(former);
    match left {
        // The client is still there: the request continues.
        Err(_elapsed) => HandlerOutcome::Declined,
        Ok(()) => {
            request.log(
                LogLevel::Info,
                format_args!("client prematurely closed connection"),
            );
            HandlerOutcome::Status(http::module::internal_status::CLIENT_CLOSED)
        }
    }
}

/// The decision of all limits together.
enum LimitDecision {
    Unlimited,
    /// At least one limit rejects the request.
    Reject,
    /// All limits accept it, possibly after a delay.
    Pass(Option<RequestDelay>),
}

/// The longest delay that any limit demands.
struct RequestDelay {
    delay: Duration,
    /// For the log, in thousandths of requests.
    excess: u64,
    zone: Arc<ReqZone>,
}

/// Whether `limit_req_dry_run` is on, which is counted apart.
#[derive(Clone, Copy)]
struct DryRun(bool);

/// A limit that accepts the request but has not counted it yet.
struct UncountedLimit<'a> {
    limit: &'a ReqLimit,
    key: Vec<u8>,
}

/// Applies all limits in order. Nothing is counted in any zone unless all accept the request: a
/// rejected request must not use up the rate of other keys.
fn check_limits(request: &mut Request, limits: &[ReqLimit], dry: DryRun) -> LimitDecision {
    let now = rt::now();
    let mut pending: Vec<UncountedLimit> = Vec::new();
    let mut counted = None;
    for (n, limit) in limits.iter().enumerate() {
        let Some(key) = key(request, &limit.zone) else {
            continue;
        };
        // Only the last limit knows that all others have accepted; it counts at once, which saves
        // the usual single limit a second look.
        let count = if n + 1 == limits.len() {
            CountMode::Now
        } else {
            CountMode::Later
        };
        match pour(limit, &key, count, now) {
            PourResult::Excess(excess) if count == CountMode::Now => {
                counted = Some((limit, excess))
            }
            PourResult::Excess(_) => pending.push(UncountedLimit { limit, key }),
            refused => {
                log_refusal(request, &limit.zone, refused);
                count_outcome(&limit.zone, if dry.0 { 4 } else { 2 });
                return LimitDecision::Reject;
            }
        }
    }
    if pending.is_empty() && counted.is_none() {
        return LimitDecision::Unlimited;
    }
    let mut longest = counted.and_then(|(limit, excess)| limit.delay_for(excess));
    for UncountedLimit { limit, key } in pending {
        // Since the test, another loop may have used up the burst. The request has been accepted,
        // so it is counted regardless.
        if let PourResult::Excess(excess) = limit.pour_unbounded(&key, now)
            && let Some(wait) = limit.delay_for(excess)
            && longest
                .as_ref()
                // The strictest limit determines the delay; waiting for each of them in turn would add up.
                .is_none_or(|longest| wait.delay > longest.delay)
        {
            longest = Some(wait);
        }
    }
    match (&longest, limits) {
        (Some(delay), _) => count_outcome(&delay.zone, if dry.0 { 3 } else { 1 }),
        (None, limits) => limits
            .iter()
            .for_each(|limit| count_outcome(&limit.zone, 0)),
    }
    LimitDecision::Pass(longest)
}

/// Counts what became of a request in a zone, by its number in [`OUTCOMES`].
fn count_outcome(zone: &ReqZone, outcome: usize) {
    if let Some(buckets) = zone.state() {
        // The bucket of the request was behind a lock that loops share; next to that this is nothing.
        buckets.outcomes[outcome].fetch_add(1, Relaxed);
    }
}

static REQUESTS: MetricFamily = MetricFamily::counter(
    "weir_limit_req_requests",
    "Requests that a zone of limit_req judged: passed at once, delayed, refused, or what they would have been.",
);

static LEASES: MetricFamily = MetricFamily::counter(
    "weir_limit_req_leases",
    "Leases of keys that Redis has given, for zones with sync=redis.",
);
static ROUNDS_WITHOUT: MetricFamily = MetricFamily::counter(
    "weir_limit_req_rounds_without_redis",
    "Reports that Redis did not take, so that each member used an equal part.",
);

/// Tells what became of the requests of each zone.
fn tell_metrics(zones: &ReqZones, sink: &mut dyn MetricSink) {
    sink.family(&REQUESTS);
    for zone in &zones.0 {
        let Some(buckets) = zone.state() else {
            continue;
        };
        for (outcome, count) in OUTCOMES.iter().zip(&buckets.outcomes) {
            let labels = [("zone", &zone.name[..]), ("outcome", outcome.as_bytes())];
            sink.count(&labels, count.load(Relaxed));
        }
    }
    let counted = zones.0.iter().filter_map(|zone| {
        let sync = zone.declared()?.sync.as_ref()?;
        Some((zone, zone.state().filter(|_| sync.needs_redis())?))
    });
    let counted: Vec<_> = counted.collect();
    if counted.is_empty() {
        return;
    }
    for (family, index) in [(&LEASES, 0), (&ROUNDS_WITHOUT, 1)] {
        sink.family(family);
        for (zone, buckets) in &counted {
            let counters = [&buckets.leases, &buckets.rounds_without];
            sink.count(&[("zone", &zone.name[..])], counters[index].load(Relaxed));
        }
    }
}

/// Adds the request to its bucket in the limit's zone.
fn pour(limit: &ReqLimit, key: &[u8], count: CountMode, now: Instant) -> PourResult {
    match (limit.zone.state(), limit.zone.declared()) {
        (Some(buckets), Some(zone)) => match &zone.sync {
            None => buckets.pour(key, (zone.rate, limit.burst), RatePart::Whole, count, now),
            Some(sync) => sync.pour(buckets, key, (zone.rate, limit.burst), count, now),
        },
        // Not reached: zones exist once the configuration is in use.
        _ => PourResult::NoRoom,
    }
}

impl ReqLimit {
    /// Counts a request that has been accepted already.
    fn pour_unbounded(&self, key: &[u8], now: Instant) -> PourResult {
        let unbounded = ReqLimit {
            burst: u64::MAX,
            ..self.clone()
        };
        pour(&unbounded, key, CountMode::Now, now)
    }

    /// The delay for an excess; `None` if there is none.
    fn delay_for(&self, excess: u64) -> Option<RequestDelay> {
        // Up to `delay`, requests of a burst pass at once.
        let above = excess.checked_sub(self.delay).filter(|above| *above > 0)?;
        let rate = self.zone.declared()?.rate.max(1);
        let delay = Duration::from_millis(above.saturating_mul(1000) / rate);
        (!delay.is_zero()).then(|| RequestDelay {
            delay,
            excess,
            zone: Arc::clone(&self.zone),
        })
    }
}

/// The request's key in a zone; `None` if the zone does not count it.
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

/// Logs a rejection in nginx's words.
fn log_refusal(request: &Request, zone: &ReqZone, refused: PourResult) {
    let conf = request.conf::<Conf>();
    let name = &zone.name;
    match refused {
        PourResult::OverBurst(excess) => {
            let dry = if conf.dry_run { ", dry run" } else { "" };
            let (whole, part) = (excess / REQUEST, excess % REQUEST);
            request.log(
                conf.level,
                format_args!(
                    "limiting requests{dry}, excess: {whole}.{part:03} by zone \"{name}\""
                ),
            );
        }
        PourResult::NoRoom => {
            request.log(
                LogLevel::Alert,
                format_args!("could not allocate node in limit_req zone \"{name}\""),
            );
        }
        PourResult::Excess(_) => {}
    }
}
