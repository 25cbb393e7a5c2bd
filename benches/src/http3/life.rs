//! `http3-life`: what HTTP/3 connections outlive, what idle ones cost, and what floods do to others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::shell;

use super::client::{QuicClients, Work};
use super::flood::{FLOODS, Flood};
use super::prepare;
use crate::Bench;
use crate::connections::site::{Kind, Program, Site, wait};
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::children_of;

/// No row takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// How many idle clients share a socket: descriptors are fewer than they are.
const CLIENTS_OF_A_SOCKET: usize = 50;

/// What the worker may grow by in a flood, in MB.
const GROWTH: f64 = 64.0;

const ONE_KB: (&str, u64) = ("/1k", 1 << 10);

/// What happened to the clients of a row.
#[derive(Clone, Copy, Debug, Default)]
struct Survival {
    lost: usize,
    failed: u64,
    responses: u64,
}

struct LifeRow {
    name: &'static str,
    /// How many loops, and more of the main context for Weir.
    loops: u32,
    main: &'static str,
    run: fn(&Site, &mut QuicClients) -> Result<(), String>,
    clients: usize,
    work: (&'static str, u64, usize),
}

const ROWS: &[LifeRow] = &[
    LifeRow {
        name: "30 reloads",
        loops: 2,
        main: "",
        run: reloads,
        clients: 20,
        work: (ONE_KB.0, ONE_KB.1, 4),
    },
    LifeRow {
        name: "10 upgrades",
        loops: 2,
        main: "",
        run: upgrades,
        clients: 0,
        work: ("/slow/10m", 10_000_000, 1),
    },
    LifeRow {
        name: "1000 rebinds",
        loops: 4,
        main: "",
        run: rebinds,
        clients: 20,
        work: (ONE_KB.0, ONE_KB.1, 1),
    },
    LifeRow {
        name: "1000 rebinds without BPF",
        loops: 4,
        main: "quic_bpf off;",
        run: rebinds,
        clients: 20,
        work: (ONE_KB.0, ONE_KB.1, 1),
    },
    LifeRow {
        name: "1000 rebinds with 2 worker groups",
        loops: 4,
        main: "worker_groups 2;",
        run: rebinds,
        clients: 20,
        work: (ONE_KB.0, ONE_KB.1, 1),
    },
];

/// What is done.
const HOW: &str = "Reloads: 20 clients with 4 requests each at a time. Upgrades: USR2, QUIT to the old master once the new one has workers; \
              before each, 3 downloads of 10 MB begin at 4 MB/s. Rebinds: 4 loops or workers, 20 clients, each in turn sends from \
              another port. Idle: PSS with the connections less that before the first, 50 clients to a socket. Floods: a client on a connection of its \
              own asks again and again, before and meanwhile; the attacker does nothing else than attack.";

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let idle: usize = flags.value("--connections", 10_000)?;
    flags.finish()?;
    let programs = [
        Program {
            name: "nginx",
            kind: Kind::Nginx,
            binary: bench.nginx.clone(),
            groups: 0,
        },
        Program {
            name: "weir",
            kind: Kind::Weir,
            binary: bench.weir.clone(),
            groups: 0,
        },
    ];
    let table = |title: &str, unit: &str| Table {
        title: title.to_owned(),
        unit: unit.to_owned(),
        contenders: programs
            .iter()
            .map(|program| program.name.to_owned())
            .collect(),
        ..Table::default()
    };
    let mut survival = table(
        "What connections outlive",
        "requests that failed and connections that were lost",
    );
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let cells = programs.iter().map(|program| {
            // One that loses its clients for good is a figure, and the others are measured.
            survive(program, row).unwrap_or_else(|why| {
                println!("{}: {}: {why}", row.name, program.name);
                Cell::one(f64::NAN).with(why)
            })
        });
        survival
            .rows
            .push(row_of(row.name, Some(Goal::AtMost(0.0)), cells.collect()));
    }
    let mut memory = table(
        "Idle connections",
        "KB of the workers for each, after one request",
    );
    if bench.wants("idle") {
        let cells: Vec<Cell> = programs
            .iter()
            .map(|program| idle_memory(program, idle))
            .collect::<Result<_, _>>()?;
        // Without nginx's figure: that of 2,000 connections, measured before.
        let goal = Goal::AtMost(cells[0].middle().unwrap_or(87.6));
        let goal = Some(goal);
        memory
            .rows
            .push(row_of(&format!("{idle} connections"), goal, cells));
    }
    let [times, grown] = floods(bench, &programs, &table)?;
    Ok(Section {
        title: "The life of HTTP/3 connections".to_owned(),
        how: HOW.to_owned(),
        tables: vec![survival, memory, times, grown],
        ..Section::default()
    })
}

/// A good client's times during floods, and what they take of memory.
fn floods(
    bench: &Bench,
    programs: &[Program],
    table: &dyn Fn(&str, &str) -> Table,
) -> Result<[Table; 2], String> {
    let mut times = table(
        "A good client during a flood",
        "p99 of 1 KB over HTTP/3, milliseconds",
    );
    let mut grown = table(
        "Memory during a flood",
        "most of the workers, less what they had before, MB",
    );
    for flood in FLOODS.iter().filter(|flood| bench.wants(flood.name)) {
        let seen = programs.iter().map(|program| endure(bench, program, flood));
        let seen: Vec<[f64; 3]> = seen.collect::<Result<_, _>>()?;
        let cells = |at: usize| seen.iter().map(|seen| Cell::one(seen[at])).collect();
        let quiet = seen.last().map_or(f64::NAN, |seen| seen[0]);
        times
            .rows
            .push(row_of(&format!("{}: before", flood.name), None, cells(0)));
        times.rows.push(row_of(
            flood.name,
            Some(Goal::AtMost(2.0 * quiet)),
            cells(1),
        ));
        grown
            .rows
            .push(row_of(flood.name, Some(Goal::AtMost(GROWTH)), cells(2)));
    }
    Ok([times, grown])
}

fn row_of(name: &str, goal: Option<Goal>, cells: Vec<Cell>) -> Row {
    Row {
        name: name.to_owned(),
        goal,
        cells,
        ..Row::default()
    }
}

fn start(program: &Program, loops: u32, main: &str) -> Result<Site, String> {
    let user = if shell::is_root() { "user root;" } else { "" };
    Site::start_in(prepare()?, program, |site| {
        let main = match program.kind {
            Kind::Weir => main,
            // nginx steers only with this, which needs CAP_BPF; without it connections that move are lost.
            Kind::Nginx | Kind::Haproxy => "quic_bpf on;",
        };
        let main = match (program.kind, shell::is_root()) {
            (Kind::Nginx, false) => "",
            _ => main,
        };
        format!(
            "{user} worker_processes {loops}; {main} pid server.pid; error_log error.log notice; worker_rlimit_nofile 65536;
             events {{ worker_connections 32768; }}
             http {{
                 access_log off; keepalive_requests 1000000000; keepalive_time 24h; keepalive_timeout 1h;
                 ssl_certificate cert.pem; ssl_certificate_key key.pem;
                 server {{
                     listen 127.0.0.1:{port};
                     listen 127.0.0.1:{port} quic reuseport;
                     root html;
                     location = / {{ return 200 ok; }}
                     location /slow/ {{ alias html/; limit_rate 4m; }}
                 }}
             }}",
            port = site.port
        )
    })
}

fn clients(site: &Site, work: (&str, u64, usize)) -> Result<QuicClients, String> {
    let (path, length, streams) = work;
    let work = Work {
        path: path.to_owned(),
        length,
        streams,
    };
    QuicClients::new(SocketAddr::from(([127, 0, 0, 1], site.port)), work)
}

fn survive(program: &Program, row: &LifeRow) -> Result<Cell, String> {
    let site = start(program, row.loops, row.main)?;
    let mut clients = clients(&site, row.work)?;
    clients.add(row.clients, [127, 0, 0, 1])?;
    if !clients.run_until(PATIENCE, QuicClients::all_connected)? {
        return Err("clients could not connect".to_owned());
    }
    (row.run)(&site, &mut clients)?;
    clients.stop_asking();
    let is_quiet = clients.run_until(Duration::from_secs(20), QuicClients::is_quiet)?;
    let seen = Survival {
        lost: clients.lost().0,
        failed: clients.totals.failed + if is_quiet { 0 } else { clients.open_requests() },
        responses: clients.totals.responses,
    };
    let why = clients.lost().1;
    println!("{}: {}: {seen:?} {why}", row.name, program.name);
    let note = format!(
        "{} lost, {} failed, {} answered",
        seen.lost, seen.failed, seen.responses
    );
    Ok(Cell::one(seen.failed as f64 + seen.lost as f64).with(note))
}

fn reloads(site: &Site, clients: &mut QuicClients) -> Result<(), String> {
    for _ in 0..30 {
        site.reload();
        clients.run(Duration::from_millis(300))?;
    }
    Ok(())
}

fn upgrades(site: &Site, clients: &mut QuicClients) -> Result<(), String> {
    for _ in 0..10 {
        let begun = clients.count();
        clients.add(3, [127, 0, 0, 1])?;
        let goal = clients.totals.responses + 3;
        if !clients.run_until(PATIENCE, QuicClients::all_connected)? {
            return Err("clients could not connect".to_owned());
        }
        clients.run(Duration::from_millis(200))?;
        clients.retire_from(begun);
        // Only then does the old binary have nothing left to do: how long downloads take is the machine's.
        let is_done =
            |clients: &QuicClients| clients.totals.responses + clients.totals.failed >= goal;
        let old = meanwhile(clients, || site.begin_upgrade())?;
        if !clients.run_until(PATIENCE, is_done)? {
            return Err(format!(
                "{} downloads have not ended",
                clients.open_requests()
            ));
        }
        meanwhile(clients, || site.end_upgrade(old))?;
    }
    Ok(())
}

/// Does something while the clients run.
fn meanwhile<T: Send>(
    clients: &mut QuicClients,
    act: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        let acting = scope.spawn(act);
        // Short turns: what is waited for is not the clients'.
        while !acting.is_finished() {
            clients.run(Duration::from_millis(10))?;
        }
        acting
            .join()
            .map_err(|_| "the thread ended in a panic".to_owned())?
    })
}

fn rebinds(_: &Site, clients: &mut QuicClients) -> Result<(), String> {
    for round in 0..1000 {
        clients.rebind(round % 20)?;
        let goal = clients.totals.responses + 20;
        let is_done = |clients: &QuicClients| clients.totals.responses >= goal;
        clients.run_until(Duration::from_secs(5), is_done)?;
    }
    Ok(())
}

fn idle_memory(program: &Program, count: usize) -> Result<Cell, String> {
    let site = start(program, 1, "")?;
    let mut clients = clients(&site, (ONE_KB.0, ONE_KB.1, 0))?;
    clients.share_sockets(CLIENTS_OF_A_SOCKET);
    let before = memory(&site, "Pss:");
    let began = Instant::now();
    for first in (0..count).step_by(50) {
        clients.add(50.min(count - first), [127, 0, 0, 1])?;
        let most = PATIENCE.saturating_sub(began.elapsed());
        if !clients.run_until(most, QuicClients::all_connected)? {
            let why = format!("only {first} clients could connect");
            println!("idle: {}: {why}", program.name);
            return Ok(Cell::default().with(why));
        }
        for index in first..clients.count() {
            clients.ask_once(index)?;
        }
        if !clients.run_until(PATIENCE, QuicClients::is_quiet)? {
            return Err(format!("{}: a request has no response", program.name));
        }
    }
    // What follows the last response: acknowledgements, and what servers free after a while.
    clients.run(Duration::from_secs(3))?;
    let grown = memory(&site, "Pss:") - before;
    let (lost, why) = clients.lost();
    println!(
        "idle: {}: {grown:.0} KB for {count}, {lost} lost {why}",
        program.name
    );
    let note = format!("{:.1} MB, {lost} lost", grown / 1024.0);
    Ok(Cell::one(grown / count as f64).with(note))
}

/// The p99 of a good client before and during a flood in milliseconds, and what the workers grew by in MB.
fn endure(bench: &Bench, program: &Program, flood: &Flood) -> Result<[f64; 3], String> {
    let site = start(program, 1, "")?;
    let time = Duration::from_secs(bench.seconds.into());
    let p99 = || -> Result<f64, String> {
        let mut good = clients(&site, (ONE_KB.0, ONE_KB.1, 1))?;
        good.add(1, [127, 0, 0, 1])?;
        good.times = Some(Vec::new());
        good.run(time)?;
        if good.lost().0 + good.totals.failed as usize > 0 {
            return Err(format!(
                "{}: the good client was lost: {}",
                program.name,
                good.lost().1
            ));
        }
        let mut times = good.times.take().unwrap_or_default();
        times.sort_unstable();
        let at = times.get(times.len() * 99 / 100);
        Ok(at.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3))
    };
    let quiet = p99()?;
    let before = memory(&site, "Rss:");
    let port = site.port;
    let (during, done) = std::thread::scope(|scope| {
        let attack = scope.spawn(move || (flood.run)(port, time));
        (p99(), attack.join())
    });
    let (during, done) = (
        during?,
        done.map_err(|_| "the attack ended in a panic".to_owned())??,
    );
    let grown = (memory(&site, "Rss:") - before).max(0.0) / 1024.0;
    println!(
        "{}: {}: p99 {quiet:.2} → {during:.2} ms, {grown:.1} MB, {done}",
        flood.name, program.name
    );
    Ok([quiet, during, grown])
}

/// What the workers have, in KB.
fn memory(site: &Site, line: &str) -> f64 {
    // A worker that is starting has no line yet.
    wait(|| !site.workers().is_empty());
    let of = |pid: u32| -> Option<f64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|text| text.strip_prefix(line))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    };
    let workers = site.workers();
    let more: Vec<u32> = workers.iter().flat_map(|pid| children_of(*pid)).collect();
    workers.into_iter().chain(more).filter_map(of).sum()
}
