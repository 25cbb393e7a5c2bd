//! The load of the seed (`cache-lock.conf`, DESIGN's second): clients go through the same objects of a storage service
//! one after the other, and at first none is cached. What a lock costs shows in the slowest of them, what it saves at
//! the origin.

use std::collections::BTreeMap;

use super::CONFIGURATION;
use super::origin::Origin;
use crate::Bench;
use crate::clients::{Visit, curve, percentile, walk};
use crate::report::{Cell, Goal, Plot, Row, Table};
use crate::server::{Contender, Folder, Placement, Server, names};

const CLIENTS: u32 = 50;
const OBJECTS: usize = 40;

/// What is asked for, of each object: 200 KB after 20 ms.
pub(super) const KIND: &str = "object";

pub(super) fn run(bench: &Bench, origin: &Origin) -> Result<(Table, Plot), String> {
    let contenders = [
        Contender::new("weir, lock on", &bench.weir, "proxy_cache_lock on;"),
        Contender::new("weir, lock off", &bench.weir, "proxy_cache_lock off;"),
        Contender::new("nginx, lock on", &bench.nginx, "proxy_cache_lock on;"),
        Contender::new("nginx, lock off", &bench.nginx, ""),
        Contender::new(
            "nginx, lock 400 ms",
            &bench.nginx,
            "proxy_cache_lock on; proxy_cache_lock_timeout 400ms;",
        ),
    ];
    let mut table = Table {
        title: format!("{CLIENTS} clients go through {OBJECTS} objects of 200 KB"),
        unit: "ms, requests".to_owned(),
        contenders: names(&contenders),
        base: None,
        rows: [
            ("median", None),
            ("p99", None),
            ("the slowest answer", None),
            ("requests at the origin", Some(Goal::AtMost(OBJECTS as f64))),
            ("answers that were not whole", Some(Goal::AtMost(0.0))),
        ]
        .map(|(name, goal)| Row {
            score: "E2".to_owned(),
            name: name.to_owned(),
            goal,
            cells: vec![Cell::default(); contenders.len()],
        })
        .into(),
    };
    let mut curves = BTreeMap::new();
    for round in 0..bench.rounds {
        for (at, contender) in contenders.iter().enumerate() {
            let (visits, asked) = visit(origin, contender, round)?;
            let broken = visits.iter().filter(|visit| !visit.is_whole).count();
            let point = |percent| percentile(&visits, percent);
            let figures = [point(50.0), point(99.0), point(100.0), asked, broken as f64];
            for (row, figure) in table.rows.iter_mut().zip(figures) {
                row.cells[at].samples.push(figure);
            }
            let times = visits.iter().map(|visit| visit.took).collect();
            curves.insert(contender.name.clone(), curve(times));
        }
    }
    let plot = Plot::Latencies {
        title: format!("{}: the last round", table.title),
        curves,
    };
    Ok((table, plot))
}

/// All clients go through objects that nobody has asked for before; and how often the origin was asked.
fn visit(
    origin: &Origin,
    contender: &Contender,
    round: usize,
) -> Result<(Vec<Visit>, f64), String> {
    let folder = Folder::new("bench-objects")?;
    let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
    let server = Server::start(contender, &folder.path, &text, &Placement::default())?;
    let name = contender.name.replace([' ', ','], "-");
    let paths: Vec<String> = (0..OBJECTS)
        .map(|object| format!("/{KIND}/{name}/{round}/{object}"))
        .collect();
    let visits = walk(server.port, &paths, CLIENTS);
    let asked: u32 = paths.iter().map(|path| origin.seen(path).requests).sum();
    Ok((visits, f64::from(asked)))
}
