//! `disk`: hot clients under cold load (experiment E1, SCORE rows P1 to P1d). Disks that read 120 MB/s, a page cache much
//! smaller than the files on them, 200 clients that ask for random files and 50 for one file that everybody has in
//! memory. A server whose loop waits for the disk keeps the 50 waiting too; the question is how many answers they get,
//! and how late.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::{Outcome, packages, shell};

use crate::Bench;
use crate::cgroup::Bounds;
use crate::clients::{self, Visit};
use crate::crowd;
use crate::loop_device::{LoopDevice, drop_caches};
use crate::report::{Cell, Goal, Plot, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, names};
use crate::wrk::{Background, Load};

pub(crate) const FLAGS: &str = "\
  --gigabytes N    files on the first disk (4; the seed's experiment: 8)
  --memory MB      the server's memory with its page cache (1024)
  --rate MB        what a disk reads in a second (120); a degraded one: 10
  --time N         seconds of each measurement under cold load (15)
  --cold N         clients on random files (200)
  --hot N          clients on the hot file (50)";

const FILE: u64 = 4 << 20;
/// Files on each of three disks, and what the degraded one reads in a second.
const FEW: u64 = 256;
const DEGRADED: u64 = 10 << 20;
/// A step of the plot.
const STEP: Duration = Duration::from_millis(500);

const CONFIGURATION: &str = "
%%POOLS%%
worker_processes 2;
events { worker_connections 2048; }
http {
    access_log off;
    sendfile on;
    sendfile_max_chunk 512k;
    keepalive_requests 1000000000;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=2048;
        root .;
        location ~ ^/(?<disk>disk.)/ { %%LOCATION%% }
    }
}
";

struct Plan {
    files: u64,
    memory: u64,
    rate: u64,
    time: Duration,
    cold: u32,
    hot: u32,
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let gigabytes: f64 = flags.value("--gigabytes", 4.0)?;
    let plan = Plan {
        files: (gigabytes * 256.0) as u64,
        memory: flags.value("--memory", 1024_u64)? << 20,
        rate: flags.value("--rate", 120_u64)? << 20,
        time: Duration::from_secs(flags.value("--time", 15)?),
        cold: flags.value("--cold", 200)?,
        hot: flags.value("--hot", 50)?,
    };
    flags.finish()?;
    if !shell::is_root() {
        return Err(
            "needs root: loop devices, control groups and the page cache are root's".to_owned(),
        );
    }
    packages::need(&[packages::NGINX, packages::WRK])?;
    let folder = Folder::new("bench-disk")?;
    let disks = [("disk0", plan.files), ("disk1", FEW), ("disk2", FEW)].map(|(name, files)| {
        // A tenth more than the files, for the file system's own blocks.
        let disk = LoopDevice::create(&folder.path, name, files * FILE * 11 / 10 + (64 << 20))?;
        fill(&disk, files).map(|()| disk)
    });
    let disks = disks.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut section = Section {
        title: "Cold files must not make hot ones wait".to_owned(),
        how: format!(
            "Loop devices that read {} MB/s, {} MB of memory with the page cache, files of 4 MB, {} GB of them on the first disk; {} clients on random files, \
             {} on one hot file, {} s; two loops or workers, sendfile_max_chunk 512k.",
            plan.rate >> 20,
            plan.memory >> 20,
            plan.files / 256,
            plan.cold,
            plan.hot,
            plan.time.as_secs()
        ),
        ..Section::default()
    };
    let world = World {
        plan: &plan,
        bench,
        folder: &folder.path,
        disks: &disks,
    };
    let experiments: [(&str, Part); 4] = [
        ("P1", hot_under_cold),
        ("P1b", price),
        ("P1c", short_queue),
        ("P1d", three_disks),
    ];
    for (name, experiment) in experiments {
        if bench.wants(name) {
            experiment(&world, &mut section)?;
        }
    }
    Ok(section)
}

/// An experiment, which adds what it finds.
type Part = fn(&World<'_>, &mut Section) -> Outcome;

/// What the experiments share.
struct World<'a> {
    plan: &'a Plan,
    bench: &'a Bench,
    folder: &'a Path,
    disks: &'a [LoopDevice],
}

impl World<'_> {
    /// The limits of memory and of the disks' rates, the last one's as given.
    fn bounds(&self, last_rate: u64) -> Result<Bounds, String> {
        let rates = [self.plan.rate, self.plan.rate, last_rate];
        let devices = self
            .disks
            .iter()
            .zip(rates)
            .map(|(disk, rate)| Ok((disk.number()?, rate)));
        Bounds::create(
            &devices.collect::<Result<Vec<_>, String>>()?,
            self.plan.memory,
        )
    }

    /// Starts a server within bounds on cold disks. `location` says how files are read, `pools` comes before all.
    fn start(
        &self,
        contender: &Contender,
        bounds: Option<&Bounds>,
        pools: &str,
        location: &str,
    ) -> Result<Server, String> {
        drop_caches()?;
        let placement = Placement {
            cpus: None,
            groups: bounds.map_or(Vec::new(), |bounds| bounds.folders.clone()),
        };
        let text = CONFIGURATION
            .replace("%%POOLS%%", pools)
            .replace("%%LOCATION%%", location);
        Server::start(contender, self.folder, &text, &placement)
    }

    fn peers(&self) -> [Contender; 3] {
        [
            Contender::new("nginx", &self.bench.nginx, ""),
            Contender::new("nginx aio threads", &self.bench.nginx, "aio threads;"),
            Contender::new("weir", &self.bench.weir, "aio threads;"),
        ]
    }
}

/// Clients of random files, until they are dropped. File 0 is the hot one.
fn cold_load(
    server: &Server,
    disk: &str,
    files: u64,
    clients: u32,
    seconds: u32,
) -> Result<Background, String> {
    let script = format!(
        "math.randomseed(os.time())\nrequest = function() return wrk.format(\"GET\", \"/{disk}/\" .. math.random(1, {})) end\n",
        files - 1
    );
    let load = Load {
        connections: clients,
        seconds,
        url: format!("http://127.0.0.1:{}/", server.port),
        script: Some(script),
        ..Load::default()
    };
    load.start()
}

fn hot_under_cold(world: &World<'_>, section: &mut Section) -> Outcome {
    let plan = world.plan;
    let bounds = world.bounds(plan.rate)?;
    let contenders = world.peers();
    let mut table = Table {
        title: "50 clients of one hot file".to_owned(),
        unit: "see the rows".to_owned(),
        contenders: names(&contenders),
        base: None,
        rows: [
            ("hot requests/s without cold load", None),
            ("hot requests/s under cold load", None),
            ("as a part of those without", Some(Goal::AtLeast(0.9))),
            ("p50 under cold load, ms", None),
            ("p99 under cold load, ms", None),
            ("p99 as a multiple of that without", Some(Goal::AtMost(1.5))),
            (
                "what the disk reads, of its rate",
                Some(Goal::AtLeast(0.95)),
            ),
        ]
        .map(|(name, goal)| Row {
            score: "P1".to_owned(),
            name: name.to_owned(),
            goal,
            cells: Vec::new(),
        })
        .into(),
    };
    let (mut latencies, mut progress) = (BTreeMap::new(), BTreeMap::new());
    for contender in &contenders {
        let hot = |server: &Server| crowd::visits(server.port, "/disk0/0", plan.hot, plan.time);
        let rate = |visits: &[Visit]| {
            visits.iter().filter(|visit| visit.is_whole).count() as f64 / plan.time.as_secs_f64()
        };
        let server = world.start(contender, Some(&bounds), "", "")?;
        let alone = hot(&server);
        drop(server);
        let server = world.start(contender, Some(&bounds), "", "")?;
        // The hot file comes into memory, by one client; then all the cold ones wait.
        crowd::visits(server.port, "/disk0/0", 1, Duration::from_secs(1));
        let seconds = plan.time.as_secs() as u32 + 30;
        let cold = cold_load(&server, "disk0", plan.files, plan.cold, seconds)?;
        std::thread::sleep(Duration::from_secs(3));
        let (before, began) = (world.disks[0].bytes_read(), Instant::now());
        let under = hot(&server);
        let took = began.elapsed().as_secs_f64();
        let read = world.disks[0].bytes_read() - before;
        drop(cold);
        let p99 = |visits| clients::percentile(visits, 99.0);
        let cells = [
            rate(&alone),
            rate(&under),
            rate(&under) / rate(&alone),
            clients::percentile(&under, 50.0),
            p99(&under),
            p99(&under) / p99(&alone),
            read as f64 / took / plan.rate as f64,
        ];
        for (row, value) in table.rows.iter_mut().zip(cells) {
            row.cells.push(Cell::one(value));
        }
        latencies.insert(contender.name.clone(), clients::percentiles(&under));
        progress.insert(
            contender.name.clone(),
            clients::progress(&under, STEP, plan.time),
        );
    }
    section.tables.push(table);
    section.plots.push(Plot::Latencies {
        title: "A hot file under cold load".to_owned(),
        curves: latencies,
    });
    section.plots.push(Plot::Progress {
        title: "Hot requests under cold load".to_owned(),
        unit: "requests/s".to_owned(),
        step_seconds: STEP.as_secs_f64(),
        curves: progress,
    });
    Ok(())
}

/// What `aio threads` costs when everything is in memory anyhow.
fn price(world: &World<'_>, section: &mut Section) -> Outcome {
    let contenders = [
        Contender::new("nginx", &world.bench.nginx, ""),
        Contender::new("weir", &world.bench.weir, ""),
    ];
    let mut table = Table {
        title: "aio threads when everything is in memory".to_owned(),
        unit: "requests/s as a part of those without aio threads".to_owned(),
        contenders: names(&contenders),
        ..Table::default()
    };
    let disk = &world.disks[0].mount;
    for (name, length) in [
        ("10k", 10 << 10),
        ("100k", 100 << 10),
        ("4m", FILE as usize),
    ] {
        let file = disk.join(name);
        fs::write(&file, vec![b'x'; length])
            .map_err(|error| format!("{}: {error}", file.display()))?;
        let mut cells = vec![Cell::default(); contenders.len()];
        for _ in 0..world.bench.rounds.min(3) {
            for (contender, cell) in contenders.iter().zip(&mut cells) {
                let rate = |location: &str| {
                    let server = world.start(contender, None, "", location)?;
                    let load = |seconds| Load {
                        connections: 32,
                        seconds,
                        url: format!("http://127.0.0.1:{}/disk0/{name}", server.port),
                        ..Load::default()
                    };
                    load(1).run()?;
                    Ok::<f64, String>(load(world.bench.seconds).run()?.per_second)
                };
                cell.samples.push(rate("aio threads;")? / rate("")?);
            }
        }
        table.rows.push(Row {
            score: "P1b".to_owned(),
            name: name.to_owned(),
            goal: Some(Goal::AtLeast(0.97)),
            cells,
        });
    }
    section.tables.push(table);
    Ok(())
}

/// A queue that is full at once: cold downloads that come together.
fn short_queue(world: &World<'_>, section: &mut Section) -> Outcome {
    let bounds = world.bounds(world.plan.rate)?;
    let contenders = [
        Contender::new("nginx", &world.bench.nginx, "aio threads;"),
        Contender::new("weir", &world.bench.weir, "aio threads;"),
    ];
    let mut cells = Vec::new();
    for contender in &contenders {
        let pool = "thread_pool default threads=128 max_queue=0;";
        let server = world.start(contender, Some(&bounds), pool, "")?;
        let file = |number: usize| format!("/disk0/{}", number + 1);
        let visits = clients::burst(server.port, file, 200, Duration::from_millis(100));
        let whole = visits.iter().filter(|visit| visit.is_whole).count();
        cells.push(Cell::one(whole as f64));
    }
    section.tables.push(Table {
        title: "200 cold downloads, threads=128 max_queue=0".to_owned(),
        unit: "that come whole".to_owned(),
        contenders: names(&contenders),
        base: None,
        rows: vec![Row {
            score: "P1c".to_owned(),
            name: "complete".to_owned(),
            goal: Some(Goal::AtLeast(200.0)),
            cells,
        }],
    });
    Ok(())
}

/// One of three disks is slow; the others must not notice.
fn three_disks(world: &World<'_>, section: &mut Section) -> Outcome {
    let plan = world.plan;
    let bounds = world.bounds(DEGRADED)?;
    let pools =
        "thread_pool disk0 threads=16; thread_pool disk1 threads=16; thread_pool disk2 threads=16;";
    let contenders = [
        (
            Contender::new("nginx, one pool", &world.bench.nginx, ""),
            "",
            "aio threads;",
        ),
        (
            Contender::new("nginx, a pool per disk", &world.bench.nginx, ""),
            pools,
            "aio threads=$disk;",
        ),
        (
            Contender::new("weir, one pool", &world.bench.weir, ""),
            "",
            "aio threads;",
        ),
    ];
    let whole = plan.rate as f64 / (1 << 20) as f64;
    let mut rows: Vec<Row> = ["disk0", "disk1", "disk2 (degraded)"]
        .iter()
        .enumerate()
        .map(|(at, name)| Row {
            score: "P1d".to_owned(),
            name: (*name).to_owned(),
            goal: (at < 2).then_some(Goal::AtLeast((whole * 0.95).round())),
            cells: Vec::new(),
        })
        .collect();
    let seconds = plan.time.as_secs() as u32 + 30;
    for (contender, pools, location) in &contenders {
        let server = world.start(contender, Some(&bounds), pools, location)?;
        let load = |(name, files)| cold_load(&server, name, files, 60, seconds);
        let loads = [("disk0", plan.files), ("disk1", FEW), ("disk2", FEW)].map(load);
        let loads = loads.into_iter().collect::<Result<Vec<_>, _>>()?;
        std::thread::sleep(Duration::from_secs(3));
        let read = || {
            world
                .disks
                .iter()
                .map(LoopDevice::bytes_read)
                .collect::<Vec<_>>()
        };
        let before = read();
        std::thread::sleep(plan.time);
        for ((row, before), after) in rows.iter_mut().zip(before).zip(read()) {
            let rate = (after - before) as f64 / plan.time.as_secs_f64() / (1 << 20) as f64;
            row.cells.push(Cell::one(rate));
        }
        drop(loads);
    }
    section.tables.push(Table {
        title: "Three disks, one degraded to 10 MB/s, 60 clients of random files on each"
            .to_owned(),
        unit: "MB/s that the disk reads".to_owned(),
        contenders: contenders
            .iter()
            .map(|(one, _, _)| one.name.clone())
            .collect(),
        base: None,
        rows,
    });
    Ok(())
}

/// Files with contents of their own, so that nothing below can share or skip their blocks.
fn fill(disk: &LoopDevice, files: u64) -> Outcome {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block: Vec<u8> = Vec::with_capacity(FILE as usize);
    for _ in 0..FILE / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        block.extend_from_slice(&state.to_le_bytes());
    }
    for number in 0..files {
        block[..8].copy_from_slice(&number.to_le_bytes());
        fs::write(disk.mount.join(number.to_string()), &block)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}
