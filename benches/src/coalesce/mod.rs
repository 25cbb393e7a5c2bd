//! `coalesce`: many clients for one key that is not in the cache (SCORE rows C1 to C8). Weir, nginx with and
//! without its lock, and Varnish where it is installed, on loopback, one after the other, with the same origin and the
//! same clients, which are ours.
//!
//! A cell is: requests that the origin saw · the waiters' median time to the first byte / the slowest waiter's whole
//! time, in seconds, and how many were cut or got wrong bytes.

pub(crate) mod clients;
pub(crate) mod hits;
pub(crate) mod kills;
mod objects;
pub(crate) mod origin;
mod varnish;

use std::time::Instant;

use xtask::flags::Flags;
use xtask::packages;

use clients::{Answer, Crowd};
use origin::{Origin, Reply};

use crate::Bench;
use crate::clients::curve;
use crate::report::{self, Cell, Goal, Plot, Section, Table};
use crate::server::{Contender, Folder, Placement, Server};

const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 8192; }
worker_rlimit_nofile 65536;
http {
    access_log off;
    proxy_cache_path cache keys_zone=cache:10m max_size=4g inactive=1h use_temp_path=off;
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_cache cache;
            proxy_cache_key $uri;
            proxy_max_temp_file_size 100m;
            %%DIRECTIVES%%
        }
    }
}
";

struct Row {
    name: &'static str,
    what: &'static str,
    kind: &'static str,
    crowd: Crowd,
    /// The crowd comes so often; the last time counts.
    times: usize,
    goals: Goals,
}

/// Asked for in a row: of the requests at the origin, of the waiters' median in seconds, of the slowest; NaN: nothing.
/// The times are what no server can be better than before this origin (its head, its body, less the 30 ms that the first one
/// is ahead; a second fetch in C5), and 10 to 30 ms.
type Goals = (f64, f64, f64);

const fn crowd(size: usize, ahead_ms: u64) -> Crowd {
    Crowd {
        size,
        ahead_ms,
        first_leaves_ms: None,
    }
}

const fn row(
    name: &'static str,
    what: &'static str,
    kind: &'static str,
    crowd: Crowd,
    goals: Goals,
) -> Row {
    Row {
        name,
        what,
        kind,
        crowd,
        times: 1,
        goals,
    }
}

const ROWS: &[Row] = &[
    row(
        "C1",
        "cacheable, 50 ms, 1 KB",
        "fresh",
        crowd(20, 30),
        (1.0, 0.03, 0.04),
    ),
    row(
        "C2",
        "head after 0.1 s, 1 MB trickles for 1 s",
        "trickle",
        crowd(20, 30),
        (1.0, 0.08, 1.1),
    ),
    Row {
        times: 2,
        ..row(
            "C3",
            "private, 200 ms",
            "private",
            crowd(20, 30),
            (20.0, 0.21, 0.22),
        )
    },
    row(
        "C4",
        "the first client leaves before the head (0.3 s + 0.5 s)",
        "leave",
        Crowd {
            first_leaves_ms: Some(100),
            ..crowd(20, 30)
        },
        (1.0, 0.28, 0.8),
    ),
    row(
        "C5",
        "the origin breaks at half of the first body",
        "broken",
        crowd(20, 30),
        (2.0, 0.03, 0.84),
    ),
    row(
        "C6",
        "the origin needs 7 s for the head",
        "slow",
        crowd(20, 30),
        (1.0, 6.98, 6.99),
    ),
    row(
        "C7",
        "100 clients at once, 100 ms",
        "burst",
        crowd(100, 0),
        (1.0, 0.105, 0.110),
    ),
    row(
        "C8a",
        "1,000 waiters, 0.5 s, 10 KB",
        "many-small",
        crowd(1000, 30),
        (1.0, f64::NAN, 0.52),
    ),
    row(
        "C8b",
        "1,000 waiters, 0.5 s, 10 MB",
        "many-large",
        crowd(1000, 30),
        (1.0, f64::NAN, f64::NAN),
    ),
];

fn reply_of(kind: &str) -> Option<Reply> {
    let reply = |head_ms, length, body_ms| Reply {
        head_ms,
        length,
        body_ms,
        ..Reply::default()
    };
    Some(match kind {
        "fresh" => reply(50, 1 << 10, 0),
        "trickle" => reply(100, 1 << 20, 1000),
        "private" => Reply {
            is_private: true,
            ..reply(200, 1 << 10, 0)
        },
        "leave" => reply(300, 200 << 10, 500),
        "broken" => Reply {
            breaks: true,
            ..reply(50, 1 << 20, 500)
        },
        "slow" => reply(7000, 1 << 10, 0),
        "burst" => reply(100, 1 << 10, 0),
        objects::KIND => reply(20, 200 << 10, 0),
        "many-small" => reply(500, 10 << 10, 0),
        "many-large" => reply(500, 10 << 20, 0),
        _ => return None,
    })
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    packages::need(&[packages::NGINX])?;
    packages::want(&[packages::VARNISH]);
    let origin = Origin::start(reply_of)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| bench.wants(row.name)).collect();
    let contenders = [
        Contender::new("weir", &bench.weir, ""),
        Contender::new("nginx, lock on", &bench.nginx, "proxy_cache_lock on;"),
        Contender::new("nginx, lock off", &bench.nginx, ""),
        Contender::new(
            "nginx, lock 400 ms",
            &bench.nginx,
            "proxy_cache_lock on; proxy_cache_lock_timeout 400ms;",
        ),
    ];
    let mut names = Vec::new();
    let mut columns = Vec::new();
    for contender in &contenders {
        let folder = Folder::new("bench-coalesce")?;
        let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
        let server = Server::start(contender, &folder.path, &text, &Placement::default())?;
        names.push(contender.name.clone());
        columns.push(measure(&server, &origin, &rows, &contender.name));
    }
    if varnish::is_installed() {
        let folder = Folder::new("bench-coalesce")?;
        let varnish = varnish::start(&folder.path, origin.port, None)?;
        names.push("Varnish".to_owned());
        columns.push(measure(&varnish, &origin, &rows, "varnish"));
    }
    let mut section = section(&rows, names, columns);
    if bench.wants("objects") {
        let (table, plot) = objects::run(bench, &origin)?;
        section.tables.push(table);
        section.plots.push(plot);
    }
    Ok(section)
}

fn section(rows: &[&Row], names: Vec<String>, columns: Vec<Vec<Seen>>) -> Section {
    let table = |title: &str, unit: &str, goal: fn(Goals) -> f64, of: fn(&Seen) -> f64| Table {
        title: title.to_owned(),
        unit: unit.to_owned(),
        contenders: names.clone(),
        base: None,
        rows: rows
            .iter()
            .enumerate()
            .map(|(at, row)| report::Row {
                score: row.name.to_owned(),
                name: row.what.to_owned(),
                goal: Some(goal(row.goals))
                    .filter(|goal| goal.is_finite())
                    .map(Goal::AtMost),
                cells: columns
                    .iter()
                    .map(|column| Cell::one(of(&column[at])))
                    .collect(),
            })
            .collect(),
    };
    let many = rows
        .iter()
        .enumerate()
        .filter(|(_, row)| row.crowd.size >= 100);
    let plots = many.map(|(at, row)| Plot::Latencies {
        title: format!("{}: {}", row.name, row.what),
        curves: names
            .iter()
            .zip(&columns)
            .map(|(name, column)| (name.clone(), column[at].curve.clone()))
            .collect(),
    });
    let mut slowest = table(
        "The slowest waiter's whole time",
        "s",
        |goals| goals.2,
        |seen| seen.slowest,
    );
    for (at, row) in slowest.rows.iter_mut().enumerate() {
        for (cell, column) in row.cells.iter_mut().zip(&columns) {
            cell.note.clone_from(&column[at].note);
        }
    }
    Section {
        title: "One fetch for all".to_owned(),
        how: "Clients ask for one key that is not cached, the first 30 ms ahead (C7: all at once); C3 comes twice, the second burst counts. \
              Two loops or workers each, the same origin and clients. Then the load of the seed for caches: clients that go through the \
              same objects, each with a connection of its own, the servers in turn."
            .to_owned(),
        tables: vec![
            table("Requests at the origin", "requests", |goals| goals.0, |seen| seen.requests),
            table("Waiters' median time to the first byte", "s", |goals| goals.1, |seen| seen.first_byte),
            slowest,
        ],
        plots: plots.collect(),
        ..Section::default()
    }
}

fn measure(cache: &Server, origin: &Origin, rows: &[&Row], name: &str) -> Vec<Seen> {
    // The first request of a new process has to wait for much that no later one waits for, whoever's it is.
    if let Some(row) = rows.first() {
        let path = format!("/{}/first", row.kind);
        clients::come(crowd(1, 0), cache.port, &path);
    }
    let column = rows.iter().map(|row| {
        let path = format!("/{}/{}", row.kind, name.replace([' ', ','], "-"));
        // Of bursts that come again the last one counts: what was learned shows in it.
        for _ in 1..row.times {
            one(cache, origin, row, &path);
        }
        one(cache, origin, row, &path)
    });
    column.collect()
}

/// What a burst saw.
#[derive(Debug, Default)]
struct Seen {
    /// At the origin.
    requests: f64,
    /// The waiters' median, in seconds.
    first_byte: f64,
    slowest: f64,
    note: String,
    /// Percentile and milliseconds.
    curve: Vec<(f64, f64)>,
}

fn one(cache: &Server, origin: &Origin, row: &Row, path: &str) -> Seen {
    let before = origin.seen(path);
    let answers = clients::come(row.crowd, cache.port, path);
    let seen = origin.seen(path);
    let mut first: Vec<f64> = answers
        .iter()
        .map(|answer| answer.first_byte.as_secs_f64())
        .collect();
    first.sort_by(f64::total_cmp);
    let mut total: Vec<f64> = answers
        .iter()
        .map(|answer| answer.total.as_secs_f64())
        .collect();
    total.sort_by(f64::total_cmp);
    let cut = answers.iter().filter(|answer| !answer.is_whole).count();
    let mut notes = Vec::new();
    if seen.partial > before.partial {
        notes.push(format!("{} for a part", seen.partial - before.partial));
    }
    if cut > 0 {
        notes.push(format!("{cut} cut"));
    }
    if row.crowd.size >= 1000 {
        let last = last_after(&answers, seen.ended) * 1000.0;
        notes.push(format!(
            "last {last:.0} ms after the fill, {} MB",
            cache.peak_mb()
        ));
    }
    Seen {
        requests: (seen.requests - before.requests) as f64,
        first_byte: first.get(first.len() / 2).copied().unwrap_or(f64::NAN),
        slowest: total.last().copied().unwrap_or(f64::NAN),
        note: notes.join(", "),
        curve: curve(answers.iter().map(|answer| answer.total).collect()),
    }
}

/// Seconds from the end of the origin's last response to the end of the last client's.
fn last_after(answers: &[Answer], fill: Option<Instant>) -> f64 {
    let last = answers.iter().map(|answer| answer.ended).max();
    match (last, fill) {
        (Some(last), Some(fill)) => last.saturating_duration_since(fill).as_secs_f64(),
        _ => f64::NAN,
    }
}
