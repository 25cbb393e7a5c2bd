//! `health_check`: servers of a group are asked at intervals, so that one that is ill gets no requests.
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
//! One loop asks for the whole process. A probe is a GET of HTTP/1.0 on a connection of its own; what it found goes into
//! the group's state, which every balancer heeds. Where the location speaks TLS to its servers, so do the probes. Not here:
//! protocols other than HTTP.

mod condition;
mod probe;

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use conf::{Arity, Diagnostic, Directive, HTTP, LOCATION, Line, Repeat, Setter, Table, parse};
use http::Module;
use http::engine::HttpLoop;
use net::upstream::{Group, Health, Peer, Secure};
use rt::error_log::{Level, Logger};

use condition::Condition;
use probe::Probe;

pub(crate) static MODULE: Module = Module {
    name: "health_check",
    doc: "Active health checks of upstream servers.",
    main: &CONDITIONS,
    location: &DIRECTIVES,
    enabled: |_| false,
    nested: |confs| {
        confs.change_if::<Conf>(|conf| conf.check.is_some(), |conf| *conf = Conf::default())
    },
    start,
    stop: |_| drop(CHECKS.take()),
    ..Module::EMPTY
};

static CONDITIONS: Table<Conditions> = Table::new(&[Directive {
    name: "match",
    syntax: "name { ... }",
    default: None,
    contexts: HTTP,
    since: "0.1",
    doc: "The conditions for a healthy response: `status [!] code | code-code ...`, `header [!] name [= | != | ~ | !~ \
          value]`, `body ~ | !~ \"regex\"`, one test per line; all must hold.",
    set: Setter::Block(Arity::ONE, Repeat::Many, |conditions, line| {
        line.level.build.needs().executable_memory = true;
        let condition = Condition::read(line)?;
        match conditions
            .0
            .insert(line.text(0).to_owned(), Arc::new(condition))
        {
            Some(_) => Err(line.error_at(0, format!("duplicate match \"{}\"", line.text(0)))),
            None => {
                // Locations are read after this, and see it there.
                line.shared::<Conditions>().clone_from(conditions);
                Ok(())
            }
        }
    }),
}]);

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
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
    set: Setter::Custom(Arity::ANY, Repeat::Once, |conf, line| {
        conf.check = Some(Arc::new(read(line)?));
        Ok(())
    }),
}]);

/// The `match` blocks by name.
#[derive(Clone, Default)]
struct Conditions(HashMap<BString, Arc<Condition>>);

#[derive(Clone, Default)]
struct Conf {
    check: Option<Arc<Check>>,
}

/// The parameters of `health_check`.
struct Check {
    interval: Duration,
    jitter: Duration,
    fails: u32,
    passes: u32,
    uri: BString,
    first: First,
    condition: Option<Arc<Condition>>,
    port: Option<u16>,
}

/// What a server is before its first check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// Well.
    Well,
    /// Not to be used (`mandatory`).
    Unknown,
    /// Not to be used, unless it was well before a reload (`persistent`).
    UnknownUnlessKnown,
}

fn read(line: &mut Line) -> Result<Check, Diagnostic> {
    let mut check = Check {
        interval: Duration::from_secs(5),
        jitter: Duration::ZERO,
        fails: 1,
        passes: 1,
        uri: "/".into(),
        first: First::Well,
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
                    .filter(|time| !time.is_zero())
                    .ok_or_else(invalid)?;
            }
            b"jitter" => check.jitter = parse::millis(value).ok_or_else(invalid)?,
            b"fails" => check.fails = positive().ok_or_else(invalid)?,
            b"passes" => check.passes = positive().ok_or_else(invalid)?,
            b"uri" if value.starts_with(b"/") => check.uri = value.into(),
            b"mandatory" if value.is_empty() => check.first = First::Unknown,
            b"persistent" if check.first == First::Unknown => {
                check.first = First::UnknownUnlessKnown
            }
            b"port" => {
                check.port = Some(
                    positive()
                        .and_then(|n| u16::try_from(n).ok())
                        .ok_or_else(invalid)?,
                )
            }
            b"match" => {
                let condition = line.shared::<Conditions>().0.get(value.as_bstr()).cloned();
                let unknown = || line.error_at(i, format!("unknown match \"{}\"", value.as_bstr()));
                check.condition = Some(condition.ok_or_else(unknown)?);
            }
            b"type" if value == b"http" => {}
            _ => return Err(invalid()),
        }
    }
    Ok(check)
}

thread_local! {
    /// The checks of the generation that is served, on the loop that does them.
    static CHECKS: RefCell<Vec<rt::JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

fn start(engine: &HttpLoop) {
    if engine.index != 0 {
        return;
    }
    let site = engine.site();
    let mut tasks = Vec::new();
    for location in &site.locations {
        let Some(check) = &location.confs.get::<Conf>().check else {
            continue;
        };
        let Some(group) = engine.group_of(location) else {
            continue;
        };
        let checking = Checking {
            group,
            secure: engine.secure_of(location).map(Arc::new),
            check: check.clone(),
            log: engine.log.clone(),
            runs: HashMap::new(),
        };
        tasks.push(rt::spawn_handle("health check", checking.run()).abort_on_drop());
    }
    // Those of the former generation end here.
    drop(CHECKS.replace(tasks));
}

/// The checks of one group.
struct Checking {
    group: Arc<Group>,
    /// How TLS is spoken to its servers, and the host that they are taken for.
    secure: Option<Arc<(Secure, BString)>>,
    check: Arc<Check>,
    log: Logger,
    /// By peer: how often in a row checks had the same result.
    runs: HashMap<BString, Run>,
}

#[derive(Clone, Copy)]
struct Run {
    passed: bool,
    length: u32,
}

impl Checking {
    async fn run(mut self) {
        loop {
            let peers = self.group.state().peers();
            self.prepare(&peers);
            let probes: Vec<_> = peers.into_iter().map(|peer| self.begin(peer)).collect();
            for (peer, probe) in probes {
                match probe.await {
                    Ok(result) => self.count(&peer, result),
                    // It panicked, which was logged; the next one may not.
                    Err(_) => continue,
                }
            }
            rt::sleep(self.check.interval + part_of(self.check.jitter)).await;
        }
    }

    /// Peers that are new are unknown, if that matters.
    fn prepare(&self, peers: &[Arc<Peer>]) {
        for peer in peers {
            let unknown = match self.check.first {
                First::Well => false,
                First::Unknown => !self.runs.contains_key(peer.name()),
                First::UnknownUnlessKnown => {
                    !self.runs.contains_key(peer.name()) && peer.health() == Health::Unchecked
                }
            };
            if unknown {
                self.group.state().set_health(peer, Health::Checking);
            }
        }
    }

    fn begin(&self, peer: Arc<Peer>) -> (Arc<Peer>, rt::JoinHandle<Result<(), String>>) {
        let probe = Probe {
            address: probe::with_port(peer.address(), self.check.port),
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

    fn count(&mut self, peer: &Arc<Peer>, result: Result<(), String>) {
        let passed = result.is_ok();
        let run = self
            .runs
            .entry(peer.name().clone())
            .or_insert(Run { passed, length: 0 });
        *run = if run.passed == passed {
            Run {
                length: run.length.saturating_add(1),
                ..*run
            }
        } else {
            Run { passed, length: 1 }
        };
        let enough = if passed {
            self.check.passes
        } else {
            self.check.fails
        };
        // A first good answer is enough where nothing is known.
        let enough = if passed && peer.health() == Health::Unchecked {
            1
        } else {
            enough
        };
        let health = if passed {
            Health::Healthy
        } else {
            Health::Unhealthy
        };
        if run.length < enough || peer.health() == health {
            return;
        }
        let (was, name, group) = (peer.health(), peer.name(), &self.group.settings.name);
        self.group.state().set_health(peer, health);
        match result {
            Err(why) => self.log.plain(
                Level::Warn,
                format_args!("peer {name} in upstream \"{group}\" is unhealthy: {why}"),
            ),
            Ok(()) if was == Health::Unhealthy => {
                self.log.plain(
                    Level::Notice,
                    format_args!("peer {name} in upstream \"{group}\" is healthy again"),
                );
            }
            Ok(()) => {}
        }
    }
}

/// Some part of a time: the time of day is dice enough to keep checks of many servers apart.
fn part_of(jitter: Duration) -> Duration {
    let nanos = u64::from(
        rt::wall()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos()),
    );
    let mixed = nanos.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    jitter.mul_f64(mixed as f64 / f64::from(1 << 24))
}
