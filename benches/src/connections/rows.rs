//! The rows: what is done to a server while clients use it, and what they saw.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::clients::{self, Crowd, STEP, Seen};
use super::site::{Kind, Program, Site, Wish, kill};
use super::{Found, Plan};
use crate::report::{Cell, Goal, Plot, Row, Table};
use crate::wrk::Load;

/// Busy clients of R1, R3 and R4: on kept connections, and with one for each request.
const KEPT: usize = 20;
const NEW: usize = 10;
/// Clients of R3 that wait without a request.
const IDLE: usize = 20;
/// Between two reloads or crashes.
const INTERVAL: Duration = Duration::from_millis(200);
/// R2: how long a loop is stuck, and how many clients come meanwhile.
const STUCK: Duration = Duration::from_secs(2);
const ARRIVALS: u32 = 200;

/// The columns of a table that grows program by program, and the progress beside it.
struct Columns {
    table: Table,
    progress: BTreeMap<String, Vec<f64>>,
}

/// What the clients of R1, R3 and R4 saw; failures have the goal 0.
const SEEN: [(&str, Option<Goal>); 5] = [
    ("failed on a kept connection", Some(Goal::AtMost(0.0))),
    ("failed on a new connection", Some(Goal::AtMost(0.0))),
    (
        "kept connections that are the same socket at the end, of 20",
        Some(Goal::AtLeast(KEPT as f64)),
    ),
    ("kept connections closed between two requests", None),
    ("requests answered", None),
];

impl Columns {
    fn new(title: String) -> Self {
        Self {
            table: Table {
                title,
                unit: "counts, if nothing else is said".to_owned(),
                ..Table::default()
            },
            progress: BTreeMap::new(),
        }
    }

    /// The rows that all crowds have, with these goals or without.
    fn with_seen(score: &str, title: String, has_goals: bool) -> Self {
        let mut columns = Self::new(title);
        for (name, goal) in SEEN {
            columns.row(score, name, goal.filter(|_| has_goals));
        }
        columns
    }

    fn row(&mut self, score: &str, name: &str, goal: Option<Goal>) {
        self.table.rows.push(Row {
            score: score.to_owned(),
            name: name.to_owned(),
            goal,
            cells: Vec::new(),
        });
    }

    fn add(&mut self, name: &str, cells: Vec<Cell>) {
        self.table.contenders.push(name.to_owned());
        for (row, cell) in self.table.rows.iter_mut().zip(cells) {
            row.cells.push(cell);
        }
    }

    fn add_crowd(&mut self, name: &str, crowd: Crowd, more: Vec<Cell>) {
        let (seen, progress) = crowd.end();
        let mut cells = seen_cells(&seen);
        cells.extend(more);
        self.add(name, cells);
        self.progress.insert(name.to_owned(), progress);
    }

    fn found(self, title: &str) -> Found {
        let plot = Plot::Progress {
            title: title.to_owned(),
            unit: "answers/s".to_owned(),
            step_seconds: STEP.as_secs_f64(),
            curves: self.progress,
        };
        (vec![self.table], vec![plot])
    }
}

fn seen_cells(seen: &Seen) -> Vec<Cell> {
    let counters = [
        &seen.failed,
        &seen.new_failed,
        &seen.same_socket,
        &seen.closed,
        &seen.answered,
    ];
    let cell = |counter: &std::sync::atomic::AtomicU64| Cell::one(counter.load(Relaxed) as f64);
    counters.into_iter().map(cell).collect()
}

fn two_loops(program: &Program) -> Result<Site, String> {
    let wish = Wish {
        workers: 2,
        ..Wish::default()
    };
    Site::start(program, wish)
}

pub(super) fn reloads(plan: &Plan) -> Result<Found, String> {
    let mut columns = Columns::with_seen("R1", format!("{} reloads", plan.times), true);
    for program in &plan.programs {
        let site = two_loops(program)?;
        let crowd = Crowd::start(site.port, KEPT, NEW);
        std::thread::sleep(INTERVAL);
        for _ in 0..plan.times {
            site.reload();
            std::thread::sleep(INTERVAL);
        }
        columns.add_crowd(program.name, crowd, Vec::new());
    }
    Ok(columns.found("Answers while the configuration is loaded anew five times a second"))
}

pub(super) fn stalls(plan: &Plan) -> Result<Found, String> {
    let mut columns = Columns::new(format!(
        "One of two loops stuck for {STUCK:?}, {ARRIVALS} clients"
    ));
    columns.row("R2", "waited over 100 ms", Some(Goal::AtMost(0.0)));
    columns.row("", "waited over 500 ms", None);
    columns.row("", "longest wait, ms", None);
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        for (name, listen) in [("shared", ""), ("reuseport", "reuseport")] {
            let wish = Wish {
                workers: 2,
                listen,
                ..Wish::default()
            };
            let site = Site::start(program, wish)?;
            let name = format!("{} {name}", program.name);
            let stuck = match block(program.kind, &site) {
                Ok(stuck) => stuck,
                Err(why) => {
                    columns.add(
                        &name,
                        vec![Cell::default().with(why), Cell::default(), Cell::default()],
                    );
                    continue;
                }
            };
            let times = clients::arrivals(site.port, ARRIVALS, STUCK * 9 / 10);
            drop(stuck);
            let over = |ms| {
                let limit = Duration::from_millis(ms);
                Cell::one(times.iter().filter(|time| **time > limit).count() as f64)
            };
            let longest = times.iter().max().copied().unwrap_or_default();
            columns.add(
                &name,
                vec![over(100), over(500), Cell::one(longest.as_secs_f64() * 1e3)],
            );
        }
    }
    Ok((vec![columns.table], Vec::new()))
}

/// Lets one of two loops do nothing for a while; it goes on when the result is dropped at the latest.
fn block(kind: Kind, site: &Site) -> Result<Stuck, String> {
    if kind == Kind::Weir {
        let file = site.folder.path.join("block.conf");
        let seconds = STUCK.as_secs();
        fs::write(
            &file,
            format!("location = /block {{ debug_block {seconds}s; }}"),
        )
        .map_err(|error| error.to_string())?;
        site.reload();
        std::thread::sleep(INTERVAL);
        let stream = clients::open(site.port).ok_or("no connection")?;
        use std::io::Write as _;
        let sent = (&stream).write_all(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n");
        sent.map_err(|error| error.to_string())?;
        // It answers 404 at once when the directive is not there.
        std::thread::sleep(Duration::from_millis(50));
        if clients::is_closed(&stream) {
            return Err("this Weir was built without the feature debug-stall".to_owned());
        }
        return Ok(Stuck::Loop(stream));
    }
    let worker = site.workers().first().copied().ok_or("no worker")?;
    kill("STOP", worker);
    Ok(Stuck::Worker(worker))
}

enum Stuck {
    Loop(#[allow(dead_code, reason = "the loop is held up while it is open")] TcpStream),
    Worker(u32),
}

impl Drop for Stuck {
    fn drop(&mut self) {
        if let Stuck::Worker(worker) = self {
            kill("CONT", *worker);
        }
    }
}

pub(super) fn upgrades(plan: &Plan) -> Result<Found, String> {
    let times = plan.times.div_ceil(3);
    let mut columns = Columns::with_seen("R3", format!("{times} upgrades of the binary"), true);
    // The process that held them is another one now, so the sockets that survive are the idle ones.
    columns.table.rows[2].goal = None;
    columns.row(
        "R3",
        "idle connections that live on, of 20",
        Some(Goal::AtLeast(IDLE as f64)),
    );
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        let site = two_loops(program)?;
        let idle: Vec<TcpStream> = (0..IDLE).filter_map(|_| clients::open(site.port)).collect();
        for stream in &idle {
            clients::request(stream, false, true).map_err(|error| error.to_string())?;
        }
        let crowd = Crowd::start(site.port, KEPT, NEW);
        let upgraded = (0..times).try_for_each(|_| site.upgrade().map(drop));
        let alive = |stream: &&TcpStream| {
            !clients::is_closed(stream) && clients::request(stream, false, true).is_ok()
        };
        let alive = Cell::one(idle.iter().filter(alive).count() as f64);
        let alive = match upgraded {
            Ok(()) => alive,
            Err(why) => alive.with(why),
        };
        columns.add_crowd(program.name, crowd, vec![alive]);
    }
    Ok(columns.found("Answers while the binary is replaced"))
}

pub(super) fn crashes(plan: &Plan) -> Result<Found, String> {
    let times = plan.times.div_ceil(3);
    let mut columns =
        Columns::with_seen("R4", format!("kill -9 of a worker, {times} times"), false);
    columns.row(
        "R4",
        "until the next answer to a new client, longest, ms",
        Some(Goal::AtMost(100.0)),
    );
    for program in &plan.programs {
        // One worker, so that nobody else answers.
        let wish = Wish {
            workers: if program.kind == Kind::Weir { 2 } else { 1 },
            ..Wish::default()
        };
        let site = Site::start(program, wish)?;
        let crowd = Crowd::start(site.port, KEPT, NEW);
        let mut longest = 0.0_f64;
        let mut trouble = "";
        for _ in 0..times {
            std::thread::sleep(INTERVAL);
            let Some(worker) = site.workers().last().copied() else {
                trouble = "no worker is left";
                break;
            };
            kill("KILL", worker);
            let Some(waited) = next_answer(site.port) else {
                trouble = "it does not come back";
                break;
            };
            longest = longest.max(waited.as_secs_f64() * 1e3);
        }
        let waited = Cell::one(longest).with(trouble);
        columns.add_crowd(program.name, crowd, vec![waited]);
    }
    Ok(columns.found("Answers while the worker is killed"))
}

/// How long until somebody who comes now is answered.
fn next_answer(port: u16) -> Option<Duration> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        let stream = clients::open(port);
        if stream.is_some_and(|stream| clients::request(&stream, false, false).is_ok()) {
            return Some(began.elapsed());
        }
    }
    None
}

pub(super) fn sharding(plan: &Plan) -> Result<Found, String> {
    let mut columns = Columns::new("4 workers or loops, 200 clients".to_owned());
    columns.table.unit = "see the rows".to_owned();
    columns.row(
        "P2",
        "connections of the fullest, as a multiple of the mean",
        Some(Goal::AtMost(1.1)),
    );
    for (name, goal) in [
        ("kept connections: requests/s", None),
        ("kept connections: deviation of latency, ms", None),
        ("connection per request: requests/s", None),
        ("connection per request: deviation of latency, ms", None),
    ] {
        columns.row("P2", name, goal);
    }
    let mut bars = Vec::new();
    let (mut kept_curves, mut new_curves) = (BTreeMap::new(), BTreeMap::new());
    let modes = [
        ("default", "", ""),
        ("accept_mutex", "", "accept_mutex on;"),
        ("reuseport", "reuseport", ""),
    ];
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        for (mode, listen, events) in modes {
            let wish = Wish {
                workers: 4,
                listen,
                events,
            };
            let site = Site::start(program, wish)?;
            let name = format!("{} {mode}", program.name);
            let counts = spread(program.kind, &site)?;
            let most = counts.iter().copied().fold(0.0, f64::max);
            let mean = counts.iter().sum::<f64>() / counts.len().max(1) as f64;
            bars.push((name.clone(), counts));
            let load = |close| Load {
                connections: 200,
                seconds: plan.seconds,
                url: format!("http://127.0.0.1:{}/", site.port),
                new_connection_each: close,
                ..Load::default()
            };
            let (kept, new) = (load(false).run()?, load(true).run()?);
            let figures = [
                most / mean,
                kept.per_second,
                kept.deviation,
                new.per_second,
                new.deviation,
            ];
            columns.add(&name, figures.map(Cell::one).to_vec());
            kept_curves.insert(name.clone(), kept.percentiles);
            new_curves.insert(name, new.percentiles);
        }
    }
    let latencies = |title: &str, curves| Plot::Latencies {
        title: title.to_owned(),
        curves,
    };
    let plots = vec![
        Plot::Spread {
            title: "200 connections over 4 workers or loops".to_owned(),
            bars,
        },
        latencies("Kept connections", kept_curves),
        latencies("A connection for each request", new_curves),
    ];
    Ok((vec![columns.table], plots))
}

/// 200 clients connect and ask once; how many each worker or loop has.
fn spread(kind: Kind, site: &Site) -> Result<Vec<f64>, String> {
    let workers = site.workers();
    let sockets = |process: &u32| {
        let entries = fs::read_dir(format!("/proc/{process}/fd"))
            .into_iter()
            .flatten();
        let links = entries
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let before: Vec<usize> = workers.iter().map(sockets).collect();
    let clients: Vec<TcpStream> = (0..200).filter_map(|_| clients::open(site.port)).collect();
    for client in &clients {
        clients::request(client, false, true).map_err(|error| error.to_string())?;
    }
    let counts: Vec<usize> = match kind {
        Kind::Weir => {
            let stream = clients::open(site.port).ok_or("no connection")?;
            let text = "GET /loops HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let status = clients::exchange(&stream, text).map_err(|error| error.to_string())?;
            let parts = status.split("\"active\":").skip(1);
            parts
                .filter_map(|part| part.split(',').next()?.parse().ok())
                .collect()
        }
        Kind::Nginx | Kind::Haproxy => {
            let after = workers.iter().map(sockets).zip(before);
            after
                .map(|(after, before)| after.saturating_sub(before))
                .collect()
        }
    };
    Ok(counts.into_iter().map(|count| count as f64).collect())
}
