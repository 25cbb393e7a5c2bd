//! What needs Redis: purges, a member that was away, a limit that counts together, and a Redis that fails.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::ClusterFigure;
use super::fetch_rows::reply_of;
use super::load::{AskedPath, CameBack, ClientStep, LoadScript, run_script};
use super::nodes::{ClusterNodes, NodeLines};
use super::redis::{RedisProcess, start_slow_relay};
use crate::Bench;
use crate::coalesce::origin::Origin;

/// The keys under load, and how often they are purged.
const KEYS: u64 = 100;
const PURGES: usize = 300;

/// The purges while a member is away.
const MISSED: u64 = 1_000;

fn start(bench: &Bench, redis: &str, more: NodeLines) -> Result<(Origin, ClusterNodes), String> {
    let origin = Origin::start(reply_of)?;
    let lines = NodeLines {
        origin: origin.port,
        cluster: format!("redis {redis}; min_uses 1; {}", more.cluster),
        ..more
    };
    let nodes = ClusterNodes::start(bench, 3, 3, lines)?;
    Ok((origin, nodes))
}

fn version_of(body: &[u8]) -> Option<u64> {
    std::str::from_utf8(body).ok()?.parse().ok()
}

fn percentile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = (times.len() as f64 * part) as usize;
    times
        .get(at.min(times.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Clients that ask for keys at all members, and one that purges them, one after the other.
struct PurgeLoad {
    ports: Vec<u16>,
    version: Arc<AtomicU64>,
    /// The oldest version that a key may have in an answer to a request from now on.
    floors: HashMap<u64, u64>,
    asked: u64,
    purges: usize,
    took_ms: Vec<f64>,
    incomplete: usize,
    answered: usize,
    failed: usize,
    stale: usize,
}

/// The clients that ask; the next one purges.
const ASKING: usize = 24;

impl LoadScript for PurgeLoad {
    fn next(&mut self, client: usize, _: Instant) -> ClientStep {
        let is_over = self.purges == PURGES;
        if is_over {
            return ClientStep::Leave;
        }
        if client < ASKING {
            self.asked += 1;
            let key = self.asked * 7 % KEYS;
            let port = self.ports[client % self.ports.len()];
            let mut asked = AskedPath::get(port, format!("/version/{key}"));
            asked.note = self.floors.get(&key).copied().unwrap_or(0);
            return ClientStep::Ask(asked);
        }
        let key = self.purges as u64 * 13 % KEYS;
        self.version.fetch_add(1, SeqCst);
        let port = self.ports[self.purges % self.ports.len()];
        ClientStep::Ask(AskedPath {
            method: "PURGE",
            port,
            path: format!("/purge?key=/version/{key}"),
            note: key,
        })
    }

    fn note(&mut self, client: usize, came: &CameBack<'_>) {
        if client < ASKING {
            self.answered += 1;
            self.failed += usize::from(came.status != 200);
            let version = version_of(came.body);
            self.stale += usize::from(version.is_some_and(|version| version < came.asked.note));
            return;
        }
        self.purges += 1;
        match came.status {
            200 => {
                self.took_ms.push(came.took.as_secs_f64() * 1e3);
                self.floors
                    .insert(came.asked.note, self.version.load(SeqCst));
            }
            _ => self.incomplete += 1,
        }
    }
}

/// A script whose clients ask at most so often.
struct Paced<'a, S> {
    script: &'a mut S,
    interval: Duration,
    due: Vec<Instant>,
}

impl<'a, S: LoadScript> Paced<'a, S> {
    fn new(script: &'a mut S, clients: usize, interval: Duration) -> Self {
        Paced {
            script,
            interval,
            due: vec![Instant::now(); clients],
        }
    }
}

impl<S: LoadScript> LoadScript for Paced<'_, S> {
    fn next(&mut self, client: usize, now: Instant) -> ClientStep {
        if self.due[client] > now {
            return ClientStep::Pause(self.due[client]);
        }
        self.due[client] = now + self.interval;
        self.script.next(client, now)
    }

    fn note(&mut self, client: usize, came: &CameBack<'_>) {
        self.script.note(client, came);
    }
}

/// Purges of single keys, while all members are asked for them.
pub(super) fn purge(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let redis = RedisProcess::start("purge", "")?;
    let (origin, nodes) = start(
        bench,
        &format!("127.0.0.1:{}", redis.port()),
        NodeLines::default(),
    )?;
    let mut load = PurgeLoad {
        ports: nodes.ports(),
        version: Arc::clone(&origin.version),
        floors: HashMap::new(),
        asked: 0,
        purges: 0,
        took_ms: Vec::new(),
        incomplete: 0,
        answered: 0,
        failed: 0,
        stale: 0,
    };
    let begun = Instant::now();
    run_script(
        ASKING + 1,
        &mut Paced::new(&mut load, ASKING + 1, Duration::from_millis(10)),
    )?;
    let rate = load.answered as f64 / begun.elapsed().as_secs_f64();
    let note = format!(
        "{} purges, {rate:.0} requests a second meanwhile",
        load.purges
    );
    Ok(vec![
        ClusterFigure::new(
            "ms",
            "purge, until all members have applied it: p50",
            percentile(&mut load.took_ms, 0.5),
        )
        .with(note),
        ClusterFigure::new(
            "ms",
            "purge, until all members have applied it: p99",
            percentile(&mut load.took_ms, 0.99),
        )
        .at_most(100.0),
        ClusterFigure::new(
            "failed requests",
            "purges that named not all members",
            load.incomplete as f64,
        )
        .at_most(0.0),
        ClusterFigure::new("failed requests", "purge under load", load.failed as f64)
            .at_most(0.0)
            .with(format!("of {}", load.answered)),
        ClusterFigure::new(
            "stale answers",
            "after a purge has named all members",
            load.stale as f64,
        )
        .at_most(0.0)
        .with(format!("of {}", load.answered)),
    ])
}

/// Requests for a list of paths, in order.
struct PathList {
    ports: Vec<u16>,
    method: &'static str,
    prefix: &'static str,
    next: u64,
    count: u64,
    statuses: HashMap<u16, usize>,
    old: usize,
    current: u64,
}

impl PathList {
    fn new(ports: &[u16], prefix: &'static str, count: u64) -> PathList {
        PathList {
            ports: ports.to_vec(),
            method: "GET",
            prefix,
            next: 0,
            count,
            statuses: HashMap::new(),
            old: 0,
            current: 0,
        }
    }
}

impl LoadScript for PathList {
    fn next(&mut self, _: usize, _: Instant) -> ClientStep {
        if self.next == self.count {
            return ClientStep::Leave;
        }
        let number = self.next;
        self.next += 1;
        let port = self.ports[number as usize % self.ports.len()];
        let mut asked = AskedPath::get(port, format!("{}{}", self.prefix, number % MISSED));
        asked.method = self.method;
        ClientStep::Ask(asked)
    }

    fn note(&mut self, _: usize, came: &CameBack<'_>) {
        *self.statuses.entry(came.status).or_default() += 1;
        let is_old = version_of(came.body).is_some_and(|version| version < self.current);
        self.old += usize::from(is_old);
    }
}

/// A member is killed, and then one is stopped, while a thousand keys are purged.
pub(super) fn away(bench: &Bench, seconds: u64) -> Result<Vec<ClusterFigure>, String> {
    let mut figures = Vec::new();
    for how in ["killed and started again", "stopped and continued"] {
        let redis = RedisProcess::start("away", "")?;
        let (origin, mut nodes) = start(
            bench,
            &format!("127.0.0.1:{}", redis.port()),
            NodeLines::default(),
        )?;
        for port in nodes.ports() {
            run_script(8, &mut PathList::new(&[port], "/version/", MISSED))?;
        }
        // Its position is kept once in a second.
        std::thread::sleep(Duration::from_millis(1500));
        let is_killed = how.starts_with("killed");
        match is_killed {
            true => nodes.kill(2),
            false => nodes.signal(2, "STOP"),
        }
        let begun = Instant::now();
        origin.version.store(1, SeqCst);
        let mut purges = PathList::new(&nodes.ports()[..2], "/purge?key=/version/", MISSED);
        purges.method = "PURGE";
        run_script(50, &mut purges)?;
        let left = Duration::from_secs(seconds).saturating_sub(begun.elapsed());
        std::thread::sleep(left);
        match is_killed {
            true => nodes.start_one(2)?,
            false => nodes.signal(2, "CONT"),
        }
        let mut hits = PathList::new(&nodes.ports()[2..], "/version/", 3 * MISSED);
        hits.current = 1;
        let away = begun.elapsed().as_secs_f64();
        run_script(8, &mut hits)?;
        let ok = hits.statuses.get(&200).copied().unwrap_or(0);
        figures.push(
            ClusterFigure::new(
                "stale answers",
                format!("of a member that was {how}"),
                hits.old as f64,
            )
            .at_most(0.0)
            .with(format!(
                "of {ok}, after {away:.0} s and {MISSED} purges ({:?})",
                purges.statuses
            )),
        );
    }
    Ok(figures)
}

/// Clients with rates of their own; a client asks one member.
struct UnevenLoad {
    ports: Vec<u16>,
    began: Instant,
    /// When each client asks next, and its interval in each half.
    due: Vec<Instant>,
    /// When what passed had passed.
    passed: Vec<Duration>,
    failed: usize,
    slowest: Duration,
}

/// Requests in a second at each member, in each half.
const RATES: [[u64; 3]; 2] = [[200, 40, 10], [10, 40, 200]];
const HALF: Duration = Duration::from_secs(12);

impl LoadScript for UnevenLoad {
    fn next(&mut self, client: usize, now: Instant) -> ClientStep {
        let half = match now - self.began {
            first if first < HALF => 0,
            second if second < 2 * HALF => 1,
            _ => return ClientStep::Leave,
        };
        if self.due[client] > now {
            return ClientStep::Pause(self.due[client]);
        }
        self.due[client] += Duration::from_micros(1_000_000 / RATES[half][client]);
        // What it was late for is not made up for.
        self.due[client] = self.due[client].max(now);
        ClientStep::Ask(AskedPath::get(self.ports[client], "/limited".to_owned()))
    }

    fn note(&mut self, _: usize, came: &CameBack<'_>) {
        match came.status {
            200 => self.passed.push(self.began.elapsed()),
            503 => {}
            _ => self.failed += 1,
        }
        self.slowest = self.slowest.max(came.took);
    }
}

/// 100 requests in a second for all, which come unevenly, and after a while unevenly in the other way.
pub(super) fn limit(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    const BURST: f64 = 20.0;
    let redis = RedisProcess::start("limit", "")?;
    let lines = NodeLines {
        http: "limit_req_zone all zone=limit:1m rate=100r/s sync=redis cluster=edge;".to_owned(),
        limit: format!("limit_req zone=limit burst={BURST} nodelay;"),
        ..NodeLines::default()
    };
    let (_origin, nodes) = start(bench, &format!("127.0.0.1:{}", redis.port()), lines)?;
    let now = Instant::now();
    let mut load = UnevenLoad {
        ports: nodes.ports(),
        began: now,
        due: vec![now; 3],
        passed: Vec::new(),
        failed: 0,
        slowest: Duration::ZERO,
    };
    run_script(3, &mut load)?;
    let between = |from: f64, to: f64| {
        let passed = load.passed.iter().map(Duration::as_secs_f64);
        passed.filter(|at| *at >= from && *at < to).count() as f64
    };
    let half = HALF.as_secs_f64();
    let error = |from: f64| (between(from, from + 10.0) - 1000.0) / 10.0;
    Ok(vec![
        ClusterFigure::new(
            "% of the limit",
            "error over 10 s from the beginning",
            (between(0.0, 10.0) - 1000.0 - BURST) / 10.0,
        )
        .with("100/s and a burst of 20; 200, 40 and 10 requests a second at the members")
        .at_most(5.0),
        ClusterFigure::new("% of the limit", "error over 10 s, later", error(2.0).abs())
            .at_most(5.0)
            .with(format!("{} of 1000", between(2.0, 12.0))),
        ClusterFigure::new(
            "% of the limit",
            "error over 10 s, when the load moves to another member",
            error(half).abs(),
        )
        .at_most(5.0)
        .with(format!("{} of 1000", between(half, half + 10.0))),
        ClusterFigure::new(
            "requests",
            "more than 100 and the burst in the first second",
            between(0.0, 1.0) - 100.0 - BURST,
        )
        .with("the leases of the beginning: a third of the burst for each"),
        ClusterFigure::new(
            "ms",
            "limit: slowest answer",
            load.slowest.as_secs_f64() * 1e3,
        ),
        ClusterFigure::new("failed requests", "limit", load.failed as f64).at_most(0.0),
    ])
}

/// Hits, misses and requests with a common limit, at all members.
struct MixedLoad {
    ports: Vec<u16>,
    until: Instant,
    asked: u64,
    answered: usize,
    failed: usize,
    slowest: Duration,
}

impl LoadScript for MixedLoad {
    fn next(&mut self, client: usize, now: Instant) -> ClientStep {
        if now >= self.until {
            return ClientStep::Leave;
        }
        self.asked += 1;
        let path = match self.asked % 3 {
            0 => "/limited".to_owned(),
            1 => format!("/version/{}", self.asked % 50),
            _ => format!("/small/{}", self.asked),
        };
        ClientStep::Ask(AskedPath::get(self.ports[client % self.ports.len()], path))
    }

    fn note(&mut self, _: usize, came: &CameBack<'_>) {
        self.answered += 1;
        self.failed += usize::from(came.status != 200);
        self.slowest = self.slowest.max(came.took);
    }
}

/// The load for a time, during which something happens.
fn mixed(
    nodes: &ClusterNodes,
    seconds: u64,
    name: &str,
    happens: impl FnOnce() -> Result<String, String> + Send,
) -> Result<Vec<ClusterFigure>, String> {
    let clients = 18;
    let mut load = MixedLoad {
        ports: nodes.ports(),
        until: Instant::now() + Duration::from_secs(seconds),
        asked: 0,
        answered: 0,
        failed: 0,
        slowest: Duration::ZERO,
    };
    let said = std::thread::scope(|scope| {
        let fault = scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            happens()
        });
        let mut paced = Paced::new(&mut load, clients, Duration::from_millis(10));
        run_script(clients, &mut paced)?;
        fault.join().map_err(|_| "the fault failed".to_owned())?
    })?;
    Ok(vec![
        ClusterFigure::new(
            "failed requests",
            format!("Redis {name}"),
            load.failed as f64,
        )
        .at_most(0.0)
        .with(format!("of {}; {said}", load.answered)),
        ClusterFigure::new(
            "ms",
            format!("Redis {name}: slowest request"),
            load.slowest.as_secs_f64() * 1e3,
        ),
    ])
}

/// Redis is killed and comes back, is failed over, is full, is slow.
pub(super) fn redis(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let lines = NodeLines {
        http: "limit_req_zone all zone=limit:1m rate=1000000r/s sync=redis cluster=edge;"
            .to_owned(),
        limit: "limit_req zone=limit burst=100000 nodelay;".to_owned(),
        ..NodeLines::default()
    };
    let mut figures = Vec::new();
    let one = RedisProcess::start("one", "")?;
    let port = one.port();
    let (_origin, nodes) = start(bench, &format!("127.0.0.1:{port}"), lines.clone())?;
    let full = || {
        one.ask("CONFIG SET maxmemory-policy noeviction")?;
        one.ask("CONFIG SET maxmemory 1")?;
        std::thread::sleep(Duration::from_secs(2));
        let said = one.ask("XADD x * a b")?;
        one.ask("CONFIG SET maxmemory 0")?;
        Ok(said.trim().to_owned())
    };
    figures.extend(mixed(&nodes, 6, "is full", full)?);
    figures.extend(mixed(&nodes, 6, "is killed and comes back", move || {
        one.server.kill();
        std::thread::sleep(Duration::from_secs(2));
        let again = RedisProcess::start_again(port, "one")?;
        std::thread::sleep(Duration::from_secs(3));
        drop(again);
        Ok("at 2 and 4 s, and away again at 7".to_owned())
    })?);
    drop(nodes);
    figures.extend(slow(bench, &lines)?);
    figures.extend(failed_over(bench, &lines)?);
    Ok(figures)
}

fn slow(bench: &Bench, lines: &NodeLines) -> Result<Vec<ClusterFigure>, String> {
    let redis = RedisProcess::start("slow", "")?;
    let delay = Arc::new(AtomicU64::new(0));
    let relay = start_slow_relay(redis.port(), Arc::clone(&delay))?;
    let (_origin, nodes) = start(bench, &format!("127.0.0.1:{relay}"), lines.clone())?;
    mixed(&nodes, 8, "is slow by 1 s", move || {
        delay.store(1000, SeqCst);
        Ok("from 2 s on".to_owned())
    })
}

fn failed_over(bench: &Bench, lines: &NodeLines) -> Result<Vec<ClusterFigure>, String> {
    let master = RedisProcess::start("master", "repl-diskless-sync-delay 0")?;
    let follow = format!(
        "repl-diskless-sync-delay 0\nreplicaof 127.0.0.1 {}",
        master.port()
    );
    let replica = RedisProcess::start("replica", &follow)?;
    replica.until("INFO replication", "master_link_status:up")?;
    let monitor = format!(
        "sentinel monitor one 127.0.0.1 {} 1\nsentinel down-after-milliseconds one 500\nsentinel failover-timeout one 2000",
        master.port()
    );
    let sentinel = RedisProcess::start_sentinel("sentinel", &monitor)?;
    sentinel.until("INFO sentinel", "slaves=1")?;
    let place = format!("127.0.0.1:{} sentinel=one", sentinel.port());
    let (_origin, nodes) = start(bench, &place, lines.clone())?;
    let port = nodes.ports()[0];
    let figures = mixed(&nodes, 12, "is failed over by Sentinel", || {
        let begun = Instant::now();
        master.server.signal("KILL");
        replica.until("ROLE", "*3")?;
        replica.until("INFO replication", "role:master")?;
        Ok(format!(
            "the other one is the master after {:.1} s",
            begun.elapsed().as_secs_f64()
        ))
    })?;
    // Who went on without Redis has found the other one.
    let up = nodes.metric("weir_cluster_redis_up");
    let mut figures = figures;
    figures.push(
        ClusterFigure::new("members", "that have found the new master", up)
            .at_least(3.0)
            .with(format!("port {port}")),
    );
    Ok(figures)
}
