//! What a fetch costs the origin and the clients: a cold key, an owner that is lost, views that differ, a new member.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::ClusterFigure;
use super::load::{AskedPath, CameBack, ClientStep, LoadScript, field, run_script};
use super::nodes::{ClusterNodes, NodeLines};
use crate::Bench;
use crate::coalesce::clients::{Answer, Crowd, come_to};
use crate::coalesce::origin::{Origin, Reply};

/// The clients of a cold key.
const CLIENTS: usize = 300;

/// The length of the long response, and how long the origin takes for its header.
const LENGTH: usize = 10 << 20;
const HEAD_MS: u64 = 100;

/// The budget of the rows in which a member is lost: the default.
const BUDGET_MS: f64 = 500.0;

/// The keys of the rows about views.
const KEYS: usize = 1_000;

/// The clients there: three for each fortieth of the keys.
const WALKERS: usize = 120;

pub(super) fn reply_of(kind: &str) -> Option<Reply> {
    match kind {
        "long" => Some(Reply {
            head_ms: HEAD_MS,
            length: LENGTH,
            rate: 1024,
            ..Reply::default()
        }),
        "small" => Some(Reply {
            head_ms: 5,
            length: 1024,
            ..Reply::default()
        }),
        "version" => Some(Reply {
            is_version: true,
            ..Reply::default()
        }),
        _ => None,
    }
}

const fn crowd(size: usize) -> Crowd {
    Crowd {
        size,
        ahead_ms: 0,
        first_leaves_ms: None,
    }
}

fn start(
    bench: &Bench,
    count: usize,
    started: usize,
    cluster: &str,
) -> Result<(Origin, ClusterNodes), String> {
    let origin = Origin::start(reply_of)?;
    let lines = NodeLines {
        origin: origin.port,
        cluster: cluster.to_owned(),
        ..NodeLines::default()
    };
    let nodes = ClusterNodes::start(bench, count, started, lines)?;
    Ok((origin, nodes))
}

fn worst(answers: &[Answer], of: fn(&Answer) -> Duration) -> f64 {
    let all = answers.iter().map(|answer| of(answer).as_secs_f64());
    all.fold(0.0, f64::max)
}

fn cut(answers: &[Answer]) -> f64 {
    answers.iter().filter(|answer| !answer.is_whole).count() as f64
}

/// All clients ask for one cold key at once, at all members.
pub(super) fn cold(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let (origin, nodes) = start(bench, 3, 3, "")?;
    let direct = come_to(crowd(1), &[origin.port], "/long/direct");
    let base_total = worst(&direct, |answer| answer.total);
    let base_first = worst(&direct, |answer| answer.first_byte);
    let answers = come_to(crowd(CLIENTS), &nodes.ports(), "/long/cold");
    let slowest = worst(&answers, |answer| answer.total);
    let first = worst(&answers, |answer| answer.first_byte);
    let mut firsts: Vec<Duration> = answers.iter().map(|answer| answer.first_byte).collect();
    firsts.sort();
    let middle = firsts
        .get(firsts.len() / 2)
        .map_or(0.0, Duration::as_secs_f64);
    let seen = origin.seen("/long/cold");
    Ok(vec![
        ClusterFigure::new(
            "requests at the origin",
            "cold key, 300 clients",
            seen.requests.into(),
        )
        .at_most(1.0),
        ClusterFigure::new("clients cut", "cold key, 300 clients", cut(&answers)).at_most(0.0),
        ClusterFigure::new(
            "of the origin's rate",
            "slowest client",
            base_total / slowest,
        )
        .at_least(0.98)
        .with(format!(
            "{slowest:.3} s, a client of the origin {base_total:.3} s"
        )),
        ClusterFigure::new(
            "of the origin's time",
            "last client's first byte",
            first / base_first,
        )
        .at_most(1.1)
        .with(format!(
            "{:.1} ms, {:.1} ms; median {:.1} ms",
            first * 1e3,
            base_first * 1e3,
            middle * 1e3
        )),
        ClusterFigure::new(
            "ms",
            "stall without a loss",
            worst(&answers, |answer| answer.stall) * 1e3,
        ),
    ])
}

pub(super) fn killed(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    lose_owner(bench, "killed", 100.0, |nodes| nodes.kill(2))
}

pub(super) fn stopped(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    lose_owner(bench, "stopped", BUDGET_MS + 50.0, |nodes| {
        nodes.signal(2, "STOP")
    })
}

/// The owner is lost when the origin has sent half.
fn lose_owner(
    bench: &Bench,
    how: &str,
    stall_ms: f64,
    lose: fn(&mut ClusterNodes),
) -> Result<Vec<ClusterFigure>, String> {
    let (origin, mut nodes) = start(bench, 3, 3, "")?;
    let path = nodes.path_owned_by(2, "long");
    let ports = nodes.ports();
    let answers = std::thread::scope(|scope| {
        let clients = scope.spawn(|| come_to(crowd(CLIENTS), &ports[..2], &path));
        let end = Instant::now() + Duration::from_secs(30);
        while origin.seen(&path).sent < LENGTH / 2 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        lose(&mut nodes);
        clients.join().unwrap_or_default()
    });
    nodes.signal(2, "CONT");
    let seen = origin.seen(&path);
    let name = format!("owner {how} at half, 300 clients");
    let stall = worst(&answers, |answer| answer.stall) * 1e3;
    let slowest = worst(&answers, |answer| answer.total);
    Ok(vec![
        ClusterFigure::new("requests at the origin", &name, seen.requests.into())
            .at_most(2.0)
            .with(format!("{} for a part", seen.partial)),
        ClusterFigure::new(
            "clients cut",
            &name,
            cut(&answers) + (CLIENTS - answers.len()) as f64,
        )
        .at_most(0.0),
        ClusterFigure::new("ms", format!("stall, {name}"), stall)
            .at_most(stall_ms)
            .with(format!("slowest client {slowest:.2} s")),
    ])
}

/// Clients that walk through all keys, one at each member through the same part of them at a time.
struct KeyWalk {
    ports: Vec<u16>,
    until: Instant,
    /// The requests of each client.
    steps: Vec<usize>,
    answered: usize,
    failed: usize,
    slowest: Duration,
}

impl LoadScript for KeyWalk {
    fn next(&mut self, client: usize, now: Instant) -> ClientStep {
        if now >= self.until {
            return ClientStep::Leave;
        }
        let members = self.ports.len();
        let part = KEYS * members / self.steps.len();
        let key = client / members * part + self.steps[client] % part;
        self.steps[client] += 1;
        let port = self.ports[client % members];
        ClientStep::Ask(AskedPath::get(port, format!("/small/{key}")))
    }

    fn note(&mut self, _: usize, came: &CameBack<'_>) {
        self.answered += 1;
        self.failed += usize::from(came.status != 200);
        self.slowest = self.slowest.max(came.took);
    }
}

/// One member is stopped and continued for ten seconds, so that the views of the others flap, each in its own time.
pub(super) fn views(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let (origin, nodes) = start(bench, 3, 3, "budget 200ms;")?;
    let mut walk = KeyWalk {
        ports: nodes.ports(),
        until: Instant::now() + Duration::from_secs(10),
        steps: vec![0; WALKERS],
        answered: 0,
        failed: 0,
        slowest: Duration::ZERO,
    };
    std::thread::scope(|scope| {
        let until = walk.until;
        let nodes = &nodes;
        scope.spawn(move || {
            while Instant::now() < until {
                nodes.signal(2, "STOP");
                std::thread::sleep(Duration::from_millis(300));
                nodes.signal(2, "CONT");
                std::thread::sleep(Duration::from_millis(300));
            }
        });
        run_script(WALKERS, &mut walk)
    })?;
    let counts: Vec<u32> = origin.requests().into_values().collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    let sum: u32 = counts.iter().sum();
    let above = counts.iter().filter(|count| **count > 2).count();
    let losses = nodes.metric("weir_cluster_losses");
    let asked = nodes.metric("weir_cluster_asked") / walk.answered.max(1) as f64;
    Ok(vec![
        ClusterFigure::new(
            "requests at the origin",
            "views flap for 10 s, most for a key",
            most.into(),
        )
        .at_most(2.0)
        .with(format!(
            "{} keys, {:.2} a key, {above} keys above 2; {losses} losses of members",
            counts.len(),
            f64::from(sum) / counts.len().max(1) as f64
        )),
        ClusterFigure::new("failed requests", "views flap for 10 s", walk.failed as f64)
            .at_most(0.0)
            .with(format!("of {}", walk.answered)),
        ClusterFigure::new(
            "ms",
            "views flap: slowest request",
            walk.slowest.as_secs_f64() * 1e3,
        )
        .with(format!(
            "a loop would last; {asked:.2} requests among members for each"
        )),
    ])
}

/// Asks for each key once at one member, and notes who had it.
struct OnePass {
    port: u16,
    next: usize,
    came_from: HashMap<String, String>,
}

impl LoadScript for OnePass {
    fn next(&mut self, _: usize, _: Instant) -> ClientStep {
        if self.next == KEYS {
            return ClientStep::Leave;
        }
        self.next += 1;
        ClientStep::Ask(AskedPath::get(
            self.port,
            format!("/small/{}", self.next - 1),
        ))
    }

    fn note(&mut self, _: usize, came: &CameBack<'_>) {
        let member = field(came.head, "x-upstream").unwrap_or_default();
        self.came_from
            .insert(came.asked.path.clone(), member.to_owned());
    }
}

fn pass(port: u16) -> Result<OnePass, String> {
    let mut pass = OnePass {
        port,
        next: 0,
        came_from: HashMap::new(),
    };
    run_script(8, &mut pass)?;
    Ok(pass)
}

/// A fourth member comes.
pub(super) fn join(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let (origin, mut nodes) = start(bench, 4, 3, "min_uses 1000;")?;
    let requests = |origin: &Origin| -> u32 { origin.requests().into_values().sum() };
    let port = nodes.ports()[0];
    pass(port)?;
    let before = requests(&origin);
    // Members that start within two seconds count as started together, and ask each other nothing.
    std::thread::sleep(Duration::from_secs(3));
    nodes.start_one(3)?;
    nodes.until_live(4)?;
    let after = pass(port)?;
    let fourth = nodes.nodes[3].peer.to_string();
    let moved = after
        .came_from
        .values()
        .filter(|from| from.contains(&fourth))
        .count();
    let again = requests(&origin) - before;
    Ok(vec![
        ClusterFigure::new(
            "% of the keys",
            "a fourth member: keys that moved",
            moved as f64 * 100.0 / KEYS as f64,
        )
        .at_most(100.0 / 4.0 + 2.0)
        .with("all of them to the new one: the others answer from what they have"),
        ClusterFigure::new(
            "requests at the origin",
            "a fourth member: for keys that were stored",
            again.into(),
        )
        .with("the new owner asks the former one first"),
    ])
}
