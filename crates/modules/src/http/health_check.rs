//! `health_check`: probes the servers of a group at intervals, so that an unhealthy one gets no
//! requests.
//!
//! ```nginx
//! match alive {
//!     status 200-399;
//!     header Content-Type = text/html;
//!     body ~ "Welcome";
//! }
//! server {
//!     location / {
//!         proxy_pass   http://backend;
//!         health_check interval=2s fails=3 passes=2 uri=/health match=alive;
//!     }
//! }
//! ```
//!
//! One loop probes for the whole process. A probe is an HTTP/1.0 GET on a connection of its own;
//! its result goes into the group's state, which every balancing method respects. If the location
//! uses TLS, so do its probes. Protocols other than HTTP are not supported.

mod match_block;
mod probe;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{
    Arity, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP, LOCATION, RepeatRule,
    Setter, parse,
};
use host::error_log::{LogLevel, Logger};
use http::HttpModule;
use http::http_loop::HttpLoop;
use net::upstream::{PeerHealth, UpstreamGroup, UpstreamPeer, UpstreamTls};

use match_block::MatchCondition;
use probe::HealthProbe;

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "health_check",
    doc: "Active health checks of upstream servers.",
    main: &CONDITIONS,
    location: &DIRECTIVES,
    // The directive has no handler: everything happens in `start`.
    enabled: |_| false,
    nested: |confs| {
        confs.change_if::<Conf>(|conf| conf.check.is_some(), |conf| *conf = Conf::default())
    },
    start,
    stop: |_| drop(CHECKS.take()),
    ..HttpModule::EMPTY
};

static CONDITIONS: DirectiveTable<MatchBlocks> = DirectiveTable::<MatchBlocks>::new(&[Directive {
    name: "match",
    syntax: "name { ... }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "The conditions for a healthy response: `status [!] code | code-code ...`, `header [!] name [= | != | ~ | !~ \
          value]`, `body ~ | !~ \"regex\"`, one test per line; all must hold.",
    set: Setter::Block(Arity::ONE, RepeatRule::Many, |conditions, line| {
        // Its regular expressions may be compiled just in time.
        line.level.build.needs().executable_memory = true;
        let condition = MatchCondition::read(line)?;
        match conditions
            .0
            .insert(line.text(0).to_owned(), Arc::new(condition))
        {
            Some(_) => Err(line.error_at(0, format!("duplicate match \"{}\"", line.text(0)))),
            None => {
                // Locations are read later and find the blocks there.
                line.shared::<MatchBlocks>().clone_from(conditions);
                Ok(())
            }
        }
    }),
}])
.finish(|conditions, _, level| {
    conditions.1.clone_from(level.lasting::<ChecksInUse>());
    Ok(())
});

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::new(&[Directive {
    name: "health_check",
    syntax: "[interval=time] [jitter=time] [fails=number] [passes=number] [uri=uri] [mandatory [persistent]] [match=name] \
             [port=number]",
    default: None,
    contexts: LOCATION,
    since: "0.1",
    doc: "Enables active checks of the upstream group of the location: every `interval` (5 s), with a random delay of \
          up to `jitter`, by a request for `uri` (`/`). A server becomes unhealthy after `fails` (1) consecutive \
          failures and healthy after `passes` (1) consecutive successes. A check succeeds if the status is 2xx or 3xx, \
          or if the response satisfies `match`. With `mandatory`, a server gets no requests before its first check; \
          with `persistent`, the state from before a reload is kept.",
    set: Setter::Custom(Arity::ANY, RepeatRule::Once, |conf, line| {
        conf.check = Some(Arc::new(read(line)?));
        line.lasting::<ChecksInUse>().0.store(true, Relaxed);
        Ok(())
    }),
}]);

/// The `match` blocks by name.
#[derive(Clone, Default)]
struct MatchBlocks(HashMap<BString, Arc<MatchCondition>>, ChecksInUse);

/// Whether a location has checks: to look at hundreds of thousands takes a loop longer than a request should wait.
#[derive(Clone, Default)]
struct ChecksInUse(Arc<AtomicBool>);

#[derive(Clone, Default)]
struct Conf {
    check: Option<Arc<HealthCheck>>,
}

/// The parameters of `health_check`.
struct HealthCheck {
    interval: Duration,
    /// A random delay of up to this is added to each interval, so that probes of many servers do
    /// not coincide.
    jitter: Duration,
    /// The number of consecutive failures after which a server is unhealthy.
    fails: u32,
    /// The number of consecutive successes after which it is healthy again.
    passes: u32,
    uri: BString,
    first: InitialHealth,
    /// The `match` block; `None`: any status from 200 to 399.
    condition: Option<Arc<MatchCondition>>,
    /// Probes go to this port instead of the server's.
    port: Option<u16>,
}

/// The health of a server before its first check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InitialHealth {
    /// Healthy.
    Healthy,
    /// Unknown, and not used (`mandatory`).
    Unknown,
    /// Not used, unless it was known to be healthy before a reload (`persistent`).
    Persistent,
}

/// Reads `health_check`.
fn read(line: &mut DirectiveLine) -> Result<HealthCheck, Diagnostic> {
    let mut check = HealthCheck {
        interval: Duration::from_secs(5),
        jitter: Duration::ZERO,
        fails: 1,
        passes: 1,
        uri: "/".into(),
        first: InitialHealth::Healthy,
        condition: None,
        port: None,
    };
    for i in 0..line.args().len() {
        let text = line.text(i);
        let invalid = || line.invalid_parameter(i);
        let (name, value) = text.split_once_str("=").unwrap_or((text.as_bytes(), b""));
        let positive = || {
            parse::number(value)
                .and_then(|n| u32::try_from(n).ok())
                .filter(|&n| n > 0)
        };
        match name {
            b"interval" => {
                check.interval = parse::millis(value)
                    // Without a pause the probes would be a flood.
                    .filter(|time| !time.is_zero())
                    .ok_or_else(invalid)?;
            }
            b"jitter" => check.jitter = parse::millis(value).ok_or_else(invalid)?,
            b"fails" => check.fails = positive().ok_or_else(invalid)?,
            b"passes" => check.passes = positive().ok_or_else(invalid)?,
            b"uri" if value.starts_with(b"/") => check.uri = value.into(),
            b"mandatory" if value.is_empty() => check.first = InitialHealth::Unknown,
            // Only meaningful after `mandatory`, as in nginx.
            b"persistent" if check.first == InitialHealth::Unknown => {
                check.first = InitialHealth::Persistent
            }
            b"port" => {
                check.port = Some(
                    positive()
                        .and_then(|n| u16::try_from(n).ok())
                        .ok_or_else(invalid)?,
                )
            }
            b"match" => {
                let condition = line.shared::<MatchBlocks>().0.get(value.as_bstr()).cloned();
                let unknown = || line.error_at(i, format!("unknown match \"{}\"", value.as_bstr()));
                check.condition = Some(condition.ok_or_else(unknown)?);
            }
            // The only type there is, and the default.
            b"type" if value == b"http" => {}
            _ => return Err(invalid()),
        }
    }
    Ok(check)
}

rt::local! {
    /// The checks of the current configuration, on the loop that runs them.
    static CHECKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

/// Starts the checks, on one loop: the results are shared, and several probes per interval would
/// tell no more.
fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let mut tasks = Vec::new();
    let is_used = site.main_confs.get::<MatchBlocks>().1.0.load(Relaxed);
    let locations = is_used.then(|| site.all_locations());
    for location in locations.into_iter().flatten() {
        let Some(check) = &location.confs.get::<Conf>().check else {
            continue;
        };
        // A location whose server is only known per request has no group to check.
        let Some(group) = engine.group_of(location) else {
            continue;
        };
        let checking = GroupChecks {
            group,
            secure: engine.secure_of(location).map(Arc::new),
            check: check.clone(),
            log: engine.log(),
            // Streaks start anew with each configuration; the health itself is kept in the group.
            streaks: HashMap::new(),
        };
        tasks.push(rt::spawn_handle("health check", checking.run()).abort_on_drop());
    }
    // The checks of the previous configuration end here.
    drop(CHECKS.replace(tasks));
}

/// The checks of one group.
struct GroupChecks {
    group: Arc<UpstreamGroup>,
    /// The TLS settings and the host to verify; `None`: plain connections.
    secure: Option<Arc<(UpstreamTls, BString)>>,
    check: Arc<HealthCheck>,
    log: Logger,
    /// By peer: the current streak of equal results.
    streaks: HashMap<BString, ResultStreak>,
}

/// How many checks in a row had the same result.
#[derive(Clone, Copy)]
struct ResultStreak {
    passed: bool,
    length: u32,
}

impl GroupChecks {
    /// Checks all peers, then waits for the interval; forever.
    async fn run(mut self) {
        loop {
            // The peers can change between rounds, as names resolve differently.
            let peers = self.group.state().peers();
            self.mark_unchecked(&peers);
            let probes: Vec<_> = peers
                .into_iter()
                .map(|peer| self.start_probe(peer))
                .collect();
            for (peer, probe) in probes {
                match probe.await {
                    Ok(result) => self.record_result(&peer, result),
                    // The probe panicked, which has been logged.
                    Err(_) => continue,
                }
            }
            rt::sleep(self.check.interval + jitter_delay(self.check.jitter)).await;
        }
    }

    /// Marks new peers as unknown, if the configuration wants that.
    fn mark_unchecked(&self, peers: &[Arc<UpstreamPeer>]) {
        for peer in peers {
            let unknown = match self.check.first {
                InitialHealth::Healthy => false,
                InitialHealth::Unknown => !self.streaks.contains_key(peer.name()),
                InitialHealth::Persistent => {
                    !self.streaks.contains_key(peer.name())
                        && peer.health() == PeerHealth::Unchecked
                }
            };
            if unknown {
                self.group.state().set_health(peer, PeerHealth::Checking);
            }
        }
    }

    /// Starts a probe. All of a round run at the same time, so that a dead server does not delay
    /// the others' results.
    fn start_probe(
        &self,
        peer: Arc<UpstreamPeer>,
    ) -> (Arc<UpstreamPeer>, rt::JoinHandle<Result<(), String>>) {
        let probe = HealthProbe {
            address: probe::with_port(peer.address(), self.check.port),
            // The name of the group, as in requests without `proxy_set_header Host`.
            host: self.group.settings.name.clone(),
            secure: self.secure.clone(),
            uri: self.check.uri.clone(),
            condition: self.check.condition.clone(),
        };
        (
            peer,
            rt::spawn_handle("health probe", probe.run()).abort_on_drop(),
        )
    }

    /// Adds a result to the peer's streak, and changes its health if the streak is long enough.
    fn record_result(&mut self, peer: &Arc<UpstreamPeer>, result: Result<(), String>) {
        let passed = result.is_ok();
        self.group.state().count_check(peer, passed);
        let run = self
            .streaks
            .entry(peer.name().to_owned())
            .or_insert(ResultStreak { passed, length: 0 });
        *run = if run.passed == passed {
            ResultStreak {
                length: run.length.saturating_add(1),
                ..*run
            }
        } else {
            ResultStreak { passed, length: 1 }
        };
        let enough = if passed {
            self.check.passes
        } else {
            self.check.fails
        };
        // If nothing is known yet, one success is enough.
        let enough = if passed && peer.health() == PeerHealth::Unchecked {
            1
        } else {
            enough
        };
        let health = if passed {
            PeerHealth::Healthy
        } else {
            PeerHealth::Unhealthy
        };
        if run.length < enough || peer.health() == health {
            return;
        }
        let (was, name, group) = (peer.health(), peer.name(), &self.group.settings.name);
        self.group.state().set_health(peer, health);
        match result {
            Err(why) => self.log.log_plain(
                LogLevel::Warn,
                format_args!("peer {name} in upstream \"{group}\" is unhealthy: {why}"),
            ),
            Ok(()) if was == PeerHealth::Unhealthy => {
                self.log.log_plain(
                    LogLevel::Notice,
                    format_args!("peer {name} in upstream \"{group}\" is healthy again"),
                );
            }
            Ok(()) => {}
        }
    }
}

/// A random part of the jitter. The nanoseconds of the clock are random enough to keep the checks
/// of many servers apart.
fn jitter_delay(jitter: Duration) -> Duration {
    let nanos = u64::from(
        rt::wall()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos()),
    );
    let mixed = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    jitter.mul_f64(mixed as f64 / f64::from(1 << 24))
}
