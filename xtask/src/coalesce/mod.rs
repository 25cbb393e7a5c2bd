//! `bench-coalesce`: many clients for one key that is not in the cache (SCORE rows C1 to C8). Weir, nginx with and
//! without its lock, and Varnish where it is installed, on loopback, one after the other, with the same origin and the
//! same clients, which are ours.
//!
//! A cell is: requests that the origin saw · the waiters' median time to the first byte / the slowest waiter's whole
//! time, in seconds, and how many were cut or got wrong bytes.

mod clients;
pub(crate) mod hits;
mod origin;
mod varnish;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clients::{Answer, Crowd};
use origin::{Origin, Reply};
use varnish::Varnish;

use crate::Outcome;
use crate::flags::Flags;
use crate::server::{Contender, Folder, Placement, Server, weir};

const HELP: &str = "\
cargo xtask bench-coalesce [flags]
  --weir PATH      a built Weir (default: builds one)
  --nginx PATH     nginx to compare with (/usr/sbin/nginx); `none` leaves it out
  --rows A,B       only these rows (C1 … C8)
  --without-varnish";

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
    /// The crowd comes so often; what is shown is each time.
    times: usize,
}

const fn crowd(size: usize, ahead_ms: u64) -> Crowd {
    Crowd {
        size,
        ahead_ms,
        first_leaves_ms: None,
    }
}

const fn row(name: &'static str, what: &'static str, kind: &'static str, crowd: Crowd) -> Row {
    Row {
        name,
        what,
        kind,
        crowd,
        times: 1,
    }
}

const ROWS: &[Row] = &[
    row("C1", "cacheable, 50 ms, 1 KB", "fresh", crowd(20, 30)),
    row(
        "C2",
        "head after 0.1 s, 1 MB trickles for 1 s",
        "trickle",
        crowd(20, 30),
    ),
    Row {
        times: 2,
        ..row("C3", "private, 200 ms", "private", crowd(20, 30))
    },
    row(
        "C4",
        "the first client leaves before the head (0.3 s + 0.5 s)",
        "leave",
        Crowd {
            first_leaves_ms: Some(100),
            ..crowd(20, 30)
        },
    ),
    row(
        "C5",
        "the origin breaks at half of the first body",
        "broken",
        crowd(20, 30),
    ),
    row(
        "C6",
        "the origin needs 7 s for the head",
        "slow",
        crowd(20, 30),
    ),
    row("C7", "100 clients at once, 100 ms", "burst", crowd(100, 0)),
    row(
        "C8a",
        "1,000 waiters, 0.5 s, 10 KB",
        "many-small",
        crowd(1000, 30),
    ),
    row(
        "C8b",
        "1,000 waiters, 0.5 s, 10 MB",
        "many-large",
        crowd(1000, 30),
    ),
];

fn reply_of(kind: &str) -> Option<Reply> {
    let reply = |head_ms, length, body_ms| Reply {
        head_ms,
        length,
        body_ms,
        is_private: false,
        breaks: false,
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
        "many-small" => reply(500, 10 << 10, 0),
        "many-large" => reply(500, 10 << 20, 0),
        _ => return None,
    })
}

/// What answers: started for all rows, stopped when dropped.
enum Cache {
    Nginx(Server),
    Varnish(Varnish),
}

impl Cache {
    fn port(&self) -> u16 {
        match self {
            Cache::Nginx(server) => server.port,
            Cache::Varnish(varnish) => varnish.port,
        }
    }

    /// The processes that serve.
    fn pids(&self) -> Vec<u32> {
        match self {
            Cache::Nginx(server) => server.workers(),
            Cache::Varnish(varnish) => varnish.workers(),
        }
    }

    /// The largest memory that its processes ever had, in megabytes.
    fn peak_mb(&self) -> u64 {
        let of = |pid: &u32| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().trim_end_matches(" kB").parse::<u64>().ok()
        };
        self.pids().iter().filter_map(of).sum::<u64>() / 1024
    }
}

fn contender(name: &str, binary: PathBuf, directives: &str) -> Contender {
    Contender {
        name: name.to_owned(),
        binary,
        directives: directives.to_owned(),
    }
}

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let named: String = flags.value("--weir", String::new())?;
    let nginx: String = flags.value("--nginx", "/usr/sbin/nginx".to_owned())?;
    let rows: String = flags.value("--rows", String::new())?;
    let without_varnish = flags.has("--without-varnish");
    flags.finish()?;
    let wanted = |name: &str| rows.is_empty() || rows.split(',').any(|row| name.starts_with(row));
    let mut contenders = vec![contender("Weir", weir(&named)?, "")];
    if nginx != "none" {
        contenders.push(contender(
            "nginx, lock on",
            nginx.clone().into(),
            "proxy_cache_lock on;",
        ));
        contenders.push(contender("nginx, lock off", nginx.into(), ""));
    }
    let origin = Origin::start(reply_of)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| wanted(row.name)).collect();
    let mut names = Vec::new();
    let mut columns = Vec::new();
    for contender in &contenders {
        let folder = Folder::new("bench-coalesce")?;
        let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
        let server = Server::start(contender, &folder.path, &text, &Placement::default())?;
        names.push(contender.name.clone());
        columns.push(measure(
            &Cache::Nginx(server),
            &origin,
            &rows,
            &contender.name,
        ));
    }
    if !without_varnish && Varnish::is_installed() {
        let folder = Folder::new("bench-coalesce")?;
        let varnish = Cache::Varnish(Varnish::start(&folder.path, origin.port, None)?);
        names.push("Varnish".to_owned());
        columns.push(measure(&varnish, &origin, &rows, "varnish"));
    }
    println!("\n| row | case | {} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len()));
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<&str> = columns
            .iter()
            .map(|column| column[index].as_str())
            .collect();
        println!("| {} | {} | {} |", row.name, row.what, cells.join(" | "));
    }
    Ok(())
}

fn measure(cache: &Cache, origin: &Origin, rows: &[&Row], name: &str) -> Vec<String> {
    rows.iter()
        .map(|row| {
            let path = format!("/{}/{}", row.kind, name.replace([' ', ','], "-"));
            let cells: Vec<String> = (0..row.times)
                .map(|_| one(cache, origin, row, &path))
                .collect();
            eprintln!("{name} {}: {}", row.name, cells.join("; then "));
            cells.join("; then ")
        })
        .collect()
}

fn one(cache: &Cache, origin: &Origin, row: &Row, path: &str) -> String {
    let before = origin.seen(path);
    let answers = clients::come(row.crowd, cache.port(), path);
    let seen = origin.seen(path);
    let mut first: Vec<Duration> = answers.iter().map(|answer| answer.first_byte).collect();
    first.sort_unstable();
    let median = first.get(first.len() / 2).copied().unwrap_or_default();
    let slowest = answers
        .iter()
        .map(|answer| answer.total)
        .max()
        .unwrap_or_default();
    let cut = answers.iter().filter(|answer| !answer.is_whole).count();
    let mut cell = format!(
        "{} · {:.3} / {:.3}",
        seen.requests - before.requests,
        median.as_secs_f64(),
        slowest.as_secs_f64()
    );
    if seen.partial > before.partial {
        cell.push_str(&format!(", {} for a part", seen.partial - before.partial));
    }
    if cut > 0 {
        cell.push_str(&format!(", **{cut} cut**"));
    }
    if row.crowd.size >= 1000 {
        cell.push_str(&format!(
            ", last {:.0} ms after the fill, {} MB",
            last_after(&answers, seen.ended) * 1000.0,
            cache.peak_mb()
        ));
    }
    cell
}

/// Seconds from the end of the origin's last response to the end of the last client's.
fn last_after(answers: &[Answer], fill: Option<Instant>) -> f64 {
    let last = answers.iter().map(|answer| answer.ended).max();
    match (last, fill) {
        (Some(last), Some(fill)) => last.saturating_duration_since(fill).as_secs_f64(),
        _ => f64::NAN,
    }
}
