//! `cache-disks`: a cache on each of three disks, chosen by the URL, as in the configuration that thread pools were
//! introduced with. Clients ask for what is stored and for what is not; then one of the disks becomes slow. Clients
//! of the other two must not notice.
//!
//! The disks are loop devices whose reads are bounded by control groups (writes go to the page cache, and version 1 bounds
//! only those that somebody waits for), and the memory is too small for what is stored, so that hits are read from the disks.

use std::fs;
use std::path::Path;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

use crate::Bench;
use crate::cgroup::Bounds;
use crate::clients::{self, Visit};
use crate::loop_device::{LoopDevice, drop_caches};
use crate::report::{Cell, Goal, Plot, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, free_port, names};

pub(crate) const FLAGS: &str = "\
  --rate MB        what a disk reads in a second (60); a degraded one: 5
  --memory MB      the server's memory with its page cache (768)
  --time N         seconds of each measurement (12)";

/// The seed's configuration with an origin in it; the names of its variables and pools are the seed's.
const CONFIGURATION: &str = "
thread_pool pool_1 threads=16;
thread_pool pool_2 threads=16;
thread_pool pool_3 threads=16;
worker_processes 2;
events { worker_connections 2048; }
http {
    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path disk1 levels=1:2 keys_zone=cache_1:16m max_size=1024G use_temp_path=off;
    proxy_cache_path disk2 levels=1:2 keys_zone=cache_2:16m max_size=1024G use_temp_path=off;
    proxy_cache_path disk3 levels=1:2 keys_zone=cache_3:16m max_size=1024G use_temp_path=off;
    map $uri $disk { ~^/1/ 1; ~^/2/ 2; default 3; }
    server {
        listen 127.0.0.1:%%PORT%% backlog=2048;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_cache_key $request_uri;
            proxy_cache cache_$disk;
            proxy_cache_valid 200 1h;
            aio threads=pool_$disk;
            sendfile on;
            %%DIRECTIVES%%
        }
    }
    server {
        listen 127.0.0.1:%%ORIGIN%% backlog=2048;
        location / { root origin; try_files /body =404; }
    }
}
";

const BODY: usize = 256 << 10;
/// Objects that are stored on each disk before: more than there is memory for.
const STORED: usize = 1_200;
/// Clients of what is stored, and of what is not, on each disk.
const HITS: u32 = 12;
const MISSES: u32 = 4;
/// What the degraded disk still does in a second.
const DEGRADED: u64 = 5 << 20;

struct Plan {
    rate: u64,
    memory: u64,
    time: Duration,
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let plan = Plan {
        rate: flags.value("--rate", 60_u64)? << 20,
        memory: flags.value("--memory", 768_u64)? << 20,
        time: Duration::from_secs(flags.value("--time", 12)?),
    };
    flags.finish()?;
    if !shell::is_root() {
        return Err(
            "needs root: loop devices, control groups and the page cache are root's".to_owned(),
        );
    }
    packages::need(&[packages::NGINX])?;
    let folder = Folder::new("bench-cache-disks")?;
    let origin = folder.path.join("origin");
    fs::create_dir_all(&origin).map_err(|error| error.to_string())?;
    fs::write(origin.join("body"), vec![b'x'; BODY]).map_err(|error| error.to_string())?;
    let contenders = [
        Contender::new("nginx", &bench.nginx, ""),
        Contender::new("weir", &bench.weir, ""),
    ];
    let mut table = table(&contenders);
    let mut curves = std::collections::BTreeMap::new();
    for contender in &contenders {
        let well = measure(contender, &folder.path, &plan, plan.rate)?;
        let degraded = measure(contender, &folder.path, &plan, DEGRADED)?;
        put(&mut table, &plan, &well, &degraded);
        let name = |what| format!("{}, {what}", contender.name);
        curves.insert(name("all disks well"), clients::percentiles(&well.hits));
        curves.insert(name("one degraded"), clients::percentiles(&degraded.hits));
    }
    Ok(Section {
        title: "A slow disk under one of three caches".to_owned(),
        how: format!(
            "The configuration cache-three-disks.conf with a map in place of split_clients: loop devices that read {} MB/s, \
             {STORED} objects of {} KB stored on each before, {} MB of memory with the page cache; on each disk {HITS} clients of what \
             is stored and {MISSES} of what is not, {} s; then the same with the third disk at {} MB/s. The figures are of the clients of \
             the two healthy disks.",
            plan.rate >> 20,
            BODY >> 10,
            plan.memory >> 20,
            plan.time.as_secs(),
            DEGRADED >> 20
        ),
        tables: vec![table],
        plots: vec![Plot::Latencies {
            title: "Hits on the two healthy disks".to_owned(),
            curves,
        }],
        ..Section::default()
    })
}

/// What clients of the two healthy disks saw, and how many of the third one's had an answer.
struct Seen {
    hits: Vec<Visit>,
    misses: Vec<Visit>,
    third: usize,
}

const ROWS: [(&str, Option<Goal>); 9] = [
    ("hits/s, all disks well", None),
    ("hits/s, one degraded", None),
    ("as a part of those before", Some(Goal::AtLeast(0.95))),
    ("p50 of hits, all well, ms", None),
    ("p50 of hits, one degraded, ms", None),
    ("p99 of hits, all well, ms", None),
    ("p99 of hits, one degraded, ms", None),
    ("p99 of fills, all well, ms", None),
    ("p99 of fills, one degraded, ms", None),
];

fn table(contenders: &[Contender]) -> Table {
    let rows = ROWS.iter().map(|(name, goal)| Row {
        score: String::new(),
        name: (*name).to_owned(),
        goal: *goal,
        cells: Vec::new(),
    });
    Table {
        title: "Clients of two healthy disks beside a third one".to_owned(),
        unit: "see the rows".to_owned(),
        contenders: names(contenders),
        base: None,
        rows: rows.collect(),
    }
}

fn put(table: &mut Table, plan: &Plan, well: &Seen, degraded: &Seen) {
    let rate = |visits: &[Visit]| {
        visits.iter().filter(|visit| visit.is_whole).count() as f64 / plan.time.as_secs_f64()
    };
    let of = |visits: &[Visit], mark| Cell::one(clients::percentile(visits, mark));
    let third = |seen: &Seen| format!("{} answers from the third disk", seen.third);
    let failed = |visits: &[Visit]| match visits.iter().filter(|visit| !visit.is_whole).count() {
        0 => String::new(),
        failed => format!("{failed} failed"),
    };
    let cells = [
        Cell::one(rate(&well.hits)).with(third(well)),
        Cell::one(rate(&degraded.hits)).with(third(degraded)),
        Cell::one(rate(&degraded.hits) / rate(&well.hits)).with(failed(&degraded.hits)),
        of(&well.hits, 50.0),
        of(&degraded.hits, 50.0),
        of(&well.hits, 99.0),
        of(&degraded.hits, 99.0),
        of(&well.misses, 99.0),
        of(&degraded.misses, 99.0).with(failed(&degraded.misses)),
    ];
    for (row, cell) in table.rows.iter_mut().zip(cells) {
        row.cells.push(cell);
    }
}

/// Disks of its own for each measurement: nothing is left of the one before.
fn measure(
    contender: &Contender,
    folder: &Path,
    plan: &Plan,
    third_rate: u64,
) -> Result<Seen, String> {
    let disks = ["disk1", "disk2", "disk3"].map(|name| LoopDevice::create(folder, name, 1 << 30));
    let disks = disks.into_iter().collect::<Result<Vec<_>, _>>()?;
    let rates = [plan.rate, plan.rate, third_rate];
    let devices = disks.iter().zip(rates);
    let devices = devices.map(|(disk, rate)| Ok((disk.number()?, rate)));
    let devices = devices.collect::<Result<Vec<_>, String>>()?;
    let text = CONFIGURATION.replace("%%ORIGIN%%", &free_port()?.to_string());
    // Filled without bounds.
    let server = Server::start(contender, folder, &text, &Placement::default())?;
    fill(&server)?;
    drop(server);
    drop_caches()?;
    let bounds = Bounds::create(&devices, plan.memory)?;
    let placement = Placement {
        cpus: None,
        groups: bounds.folders.clone(),
    };
    let server = Server::start(contender, folder, &text, &placement)?;
    let seen = load(&server, plan);
    drop(server);
    Ok(seen)
}

fn fill(server: &Server) -> Outcome {
    for disk in 1..=3 {
        let path = |number| format!("/{disk}/s{number}");
        let visits = clients::burst(server.port, path, STORED, Duration::from_secs(3));
        if visits.iter().any(|visit| !visit.is_whole) {
            return Err("the cache could not be filled".to_owned());
        }
    }
    Ok(())
}

fn load(server: &Server, plan: &Plan) -> Seen {
    let crowd = |disk: u32, clients: u32, of: &'static str| {
        let path = move |client: usize, turn: usize| match of {
            // Each client has an order of its own; 97 and the number of objects have no divisor in common.
            "s" => format!("/{disk}/s{}", (client * 50 + turn * 97) % STORED),
            _ => format!("/{disk}/n{client}-{turn}"),
        };
        clients::walks(server.port, path, clients, plan.time)
    };
    std::thread::scope(|scope| {
        let start = |disk, clients, of| scope.spawn(move || crowd(disk, clients, of));
        let third = [start(3, HITS, "s"), start(3, MISSES, "n")];
        let hits = [start(1, HITS, "s"), start(2, HITS, "s")];
        let misses = [start(1, MISSES, "n"), start(2, MISSES, "n")];
        let all = |threads: [std::thread::ScopedJoinHandle<'_, Vec<Visit>>; 2]| {
            let ended = threads.into_iter().filter_map(|thread| thread.join().ok());
            ended.flatten().collect::<Vec<Visit>>()
        };
        Seen {
            hits: all(hits),
            misses: all(misses),
            third: all(third).iter().filter(|visit| visit.is_whole).count(),
        }
    })
}
