//! Instructions of a hit on a local copy, and of a request with a limit, with and without the cluster, counted by callgrind.
//!
//! What the process does by the clock (questions to members, rounds of a common limit) is counted in a run that pauses, and
//! taken off: under callgrind a request takes fifty times as long, and so would have fifty times its part of that.

use std::path::Path;
use std::time::{Duration, Instant};

use super::ClusterFigure;
use super::fetch_rows::reply_of;
use super::nodes::{ClusterNodes, NodeLines};
use super::redis::RedisProcess;
use crate::Bench;
use crate::clients::ask;
use crate::coalesce::origin::Origin;
use crate::http3::instructions::instructions as sum_of;

/// The requests of a short and of a long run.
const REQUESTS: [u32; 2] = [500, 5500];

/// How often each run is made. What a start costs differs by what else the machine does; the least counts.
const REPEATS: usize = 3;

/// How long the run pauses that tells what goes by the clock.
const PAUSE: Duration = Duration::from_secs(5);

/// What is counted.
struct CountedKind<'a> {
    path: Option<&'static str>,
    lines: NodeLines,
    /// What the plain server has instead.
    plain: &'a [(&'static str, &'static str)],
}

pub(super) fn instructions(bench: &Bench, _: u64) -> Result<Vec<ClusterFigure>, String> {
    let origin = Origin::start(reply_of)?;
    let redis = RedisProcess::start("counted", "")?;
    let lines = NodeLines {
        origin: origin.port,
        cluster: "budget 60s;".to_owned(),
        ..NodeLines::default()
    };
    let limited = |sync: &str, cluster: &str| NodeLines {
        cluster: format!("budget 60s; {cluster}"),
        http: format!("limit_req_zone all zone=limit:1m rate=1000000r/s {sync};"),
        limit: "limit_req zone=limit burst=1000000 nodelay;".to_owned(),
        ..lines.clone()
    };
    let place = format!("redis 127.0.0.1:{};", redis.port());
    let plain = [
        ("proxy_cache one cluster=edge", "proxy_cache one"),
        ("sync=redis cluster=edge", ""),
    ];
    let kinds = [
        (
            "a hit on a local copy",
            1.01,
            CountedKind {
                path: None,
                lines: lines.clone(),
                plain: &plain,
            },
        ),
        (
            "limit_req sync=redis",
            1.02,
            CountedKind {
                path: Some("/limited"),
                lines: limited("sync=redis cluster=edge", &place),
                plain: &plain,
            },
        ),
    ];
    let mut figures = Vec::new();
    for (name, goal, kind) in kinds {
        let without = count(bench, &kind, false)?;
        let with = count(bench, &kind, true)?;
        figures.push(
            ClusterFigure::new(
                "of the instructions without",
                name,
                with.each / without.each,
            )
            .at_most(goal)
            .with(format!(
                "{:.0} and {:.0} a request, by the clock {:.0} and {:.0} a second",
                with.each, without.each, with.by_clock, without.by_clock
            )),
        );
    }
    Ok(figures)
}

/// Instructions.
struct InstructionCount {
    /// Of a request.
    each: f64,
    /// Of a second without requests.
    by_clock: f64,
}

fn count(
    bench: &Bench,
    kind: &CountedKind<'_>,
    is_cluster: bool,
) -> Result<InstructionCount, String> {
    let [few, many] = REQUESTS;
    let least = |requests, pause| {
        let runs = (0..REPEATS).map(|_| one_run(bench, kind, is_cluster, requests, pause));
        let runs: Result<Vec<_>, String> = runs.collect();
        Ok::<_, String>(runs?.into_iter().min().unwrap_or_default())
    };
    let (less, short) = least(few, Duration::ZERO)?;
    let (more, long) = least(many, Duration::ZERO)?;
    let (paused, _) = least(few, PAUSE)?;
    let by_clock = (paused as f64 - less as f64).max(0.0) / PAUSE.as_secs_f64();
    let longer = (long.saturating_sub(short)).as_secs_f64();
    let each = (more as f64 - less as f64 - by_clock * longer) / f64::from(many - few);
    Ok(InstructionCount { each, by_clock })
}

/// The instructions of a process that answers this number of requests, and how long they took.
fn one_run(
    bench: &Bench,
    kind: &CountedKind<'_>,
    is_cluster: bool,
    requests: u32,
    pause: Duration,
) -> Result<(u64, Duration), String> {
    let mut nodes = ClusterNodes::start(bench, 2, 0, kind.lines.clone())?;
    nodes.start_one(1)?;
    let profile = nodes.profile(0);
    let changed: &[(&str, &str)] = if is_cluster { &[] } else { kind.plain };
    nodes.start_counted(0, &profile, changed)?;
    let port = nodes.ports()[0];
    let path = match kind.path {
        Some(path) => path.to_owned(),
        None => nodes.path_owned_by(1, "small"),
    };
    let mut stream = None;
    let mut ask = || ask(&mut stream, port, &path).map_err(|error| format!("{path}: {error}"));
    // The first ones leave a copy.
    for _ in 0..20 {
        ask()?;
    }
    let began = Instant::now();
    for _ in 0..requests {
        ask()?;
    }
    let took = began.elapsed();
    std::thread::sleep(pause);
    drop(nodes);
    let sum = sum_of(Path::new(&profile))?;
    // The next run writes a new one.
    let _ = std::fs::remove_file(&profile);
    Ok((sum, took))
}
