//! `restart`: a start with a million objects in the cache. How long until the first hit, until the index is whole, and
//! how much memory an object takes: after a clean end, after `kill -9`, and with nothing but the log itself.
//!
//! One object comes through the server; the others are copies of it under other keys, written through the store. nginx is
//! filled by requests, with fewer: its index is complete when its loader has walked over all files, in portions and
//! with pauses, beginning a minute after the start.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use cache::{
    CacheKey, CacheStore, FillCoverage, FillStart, ObjectHead, SeenLocation, StoreOptions,
};
use xtask::flags::Flags;
use xtask::{packages, shell};

use crate::Bench;
use crate::loop_device::drop_caches;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, free_port};
use crate::wrk::Load;

pub(crate) const FLAGS: &str = "\
  --objects N        objects in Weir's cache (1000000: a gigabyte)
  --nginx-objects N  in nginx's, whose loader takes a minute and half a millisecond each (20000); 0 leaves it out";

const CONFIGURATION: &str = "
worker_processes 2;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000000;
    proxy_cache_path cache levels=1:2 keys_zone=cache:128m max_size=8g inactive=30d use_temp_path=off;
    server {
        listen 127.0.0.1:%%PORT%%;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_cache cache;
            proxy_cache_key $uri;
            proxy_cache_valid 200 30d;
            add_header X-Cache $upstream_cache_status;
        }
        %%DIRECTIVES%%
    }
    server {
        listen 127.0.0.1:%%ORIGIN%%;
        location / { return 200 %%CONTENT%%; }
    }
}
";

/// Half a kilobyte.
const CONTENT: usize = 512;
const STATUS: &str = "location = /status { weir_status json; }";
/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(300);
/// What is fetched before a `kill -9`, so that it leaves open segments behind a checkpoint that is older.
const BUSY_SECONDS: u32 = 3;

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let objects: u64 = flags.value("--objects", 1_000_000)?;
    let few: u64 = flags.value("--nginx-objects", 20_000)?;
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;
    let mut figures = [Figures::default(), Figures::default()];
    if few > 0 {
        figures[0] = nginx(bench, few)?;
    }
    let made = weir(bench, objects, &mut figures[1])?;
    Ok(Section {
        title: "A start with a full cache".to_owned(),
        how: format!(
            "{objects} objects of {CONTENT} bytes in Weir's cache, made in {:.0} s through its store; {few} in nginx's, whose loader \
             begins a minute after the start and takes 100 files at a time with pauses of 50 ms. From the start of the program until \
             a request for what was stored is a hit, and until all is in the index. Weir after a clean end; after kill -9 under a \
             load of new objects; the same without its checkpoint. Page caches warm but where said.",
            made.as_secs_f64()
        ),
        tables: vec![table(figures)],
        ..Section::default()
    })
}

/// What was measured of a server: a cell for each row of [`ROWS`].
#[derive(Default)]
struct Figures([Cell; ROWS.len()]);

const ROWS: [(&str, Option<Goal>); 9] = [
    ("objects", None),
    ("first answer after a clean end, ms", None),
    (
        "first hit after a clean end, ms",
        Some(Goal::AtMost(1000.0)),
    ),
    (
        "whole index after a clean end, ms",
        Some(Goal::AtMost(1000.0)),
    ),
    ("first hit after kill -9, ms", Some(Goal::AtMost(1000.0))),
    ("whole index after kill -9, ms", Some(Goal::AtMost(1000.0))),
    (
        "whole index after kill -9 and without checkpoint, ms",
        Some(Goal::AtMost(1000.0)),
    ),
    ("the same, all of it to be read from the disk, ms", None),
    ("memory of an object, bytes", Some(Goal::AtMost(64.0))),
];

fn table(figures: [Figures; 2]) -> Table {
    let [nginx, weir] = figures.map(|figures| figures.0);
    let cells = nginx.into_iter().zip(weir);
    let rows = ROWS
        .iter()
        .zip(cells)
        .map(|((name, goal), (nginx, weir))| Row {
            score: String::new(),
            name: (*name).to_owned(),
            goal: *goal,
            cells: vec![nginx, weir],
        });
    Table {
        title: "A start with a full cache".to_owned(),
        unit: "see the rows".to_owned(),
        contenders: vec!["nginx".to_owned(), "weir".to_owned()],
        base: None,
        rows: rows.collect(),
    }
}

/// What one start took.
struct Started {
    server: Server,
    /// Until any answer, and until one was a hit.
    answer: Duration,
    hit: Duration,
}

/// Starts a server and asks for `path` until it is a hit.
fn start(contender: &Contender, folder: &Path, path: &str) -> Result<Started, String> {
    let content = format!("\"{}\"", "x".repeat(CONTENT));
    let text = CONFIGURATION
        .replace("%%ORIGIN%%", &free_port()?.to_string())
        .replace("%%CONTENT%%", &content);
    let begun = Instant::now();
    let server = Server::start(contender, folder, &text, &Placement::default())?;
    let mut answer = None;
    loop {
        if let Ok(text) = get(server.port, path) {
            let answer = *answer.get_or_insert_with(|| begun.elapsed());
            if text.contains("X-Cache: HIT") {
                let hit = begun.elapsed();
                return Ok(Started {
                    server,
                    answer,
                    hit,
                });
            }
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{}: {path} is never a hit", contender.name));
        }
    }
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The memory of the processes that serve, shared zones included, in bytes.
fn memory(server: &Server) -> u64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes =
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    };
    server.workers().iter().map(of).sum()
}

fn ms(time: Duration) -> Cell {
    Cell::one(time.as_secs_f64() * 1e3)
}

/// Fills a cache through the server, with one request for each object.
fn fill(server: &Server, prefix: &str, seconds: u32) -> Result<f64, String> {
    let script = format!(
        "local number = 0\nrequest = function() number = number + 1 return wrk.format(\"GET\", \"/{prefix}/\" .. number) end\n"
    );
    let load = Load {
        connections: 16,
        seconds,
        url: format!("http://127.0.0.1:{}/", server.port),
        script: Some(script),
        ..Load::default()
    };
    load.run().map(|report| report.requests)
}

fn nginx(bench: &Bench, objects: u64) -> Result<Figures, String> {
    let contender = Contender::new("nginx", &bench.nginx, "");
    let folder = Folder::new("bench-restart-nginx")?;
    let empty = started_empty(&contender, &folder)?;
    let alone = memory(&empty);
    let mut stored = 0.0;
    // Keys begin anew with each load.
    for round in 0.. {
        if stored >= objects as f64 {
            break;
        }
        stored += fill(&empty, &format!("s{round}"), 1)?;
    }
    // What is there already counts in its zone as what its loader finds.
    let memory_each = (memory(&empty).saturating_sub(alone)) as f64 / stored;
    drop(empty);
    let begun = Instant::now();
    let started = start(&contender, &folder.path, "/s0/1")?;
    let loading = |server: &Server| {
        server.workers().iter().any(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("cache loader")
        })
    };
    while loading(&started.server) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let whole = begun.elapsed();
    let million = 60.0 + (whole.as_secs_f64() - 60.0).max(0.0) * 1e6 / stored;
    let note = format!("a million: about {million:.0} s");
    let mut figures = Figures::default();
    let [count, answer, hit, index, .., each] = &mut figures.0;
    *count = Cell::one(stored);
    *answer = ms(started.answer);
    *hit = ms(started.hit).with("by the file's name");
    *index = ms(whole).with(note);
    *each = Cell::one(memory_each);
    Ok(figures)
}

fn started_empty(contender: &Contender, folder: &Folder) -> Result<Server, String> {
    start(contender, &folder.path, "/seed").map(|started| started.server)
}

fn weir(bench: &Bench, objects: u64, figures: &mut Figures) -> Result<Duration, String> {
    let contender = Contender::new("weir", &bench.weir, STATUS);
    let folder = Folder::new("bench-restart-weir")?;
    let cache = folder.path.join("cache");
    let empty = started_empty(&contender, &folder)?;
    let alone = memory(&empty);
    drop(empty);
    let begun = Instant::now();
    multiply(&cache, objects)?;
    let made = begun.elapsed();
    let path = format!("/s/{}", objects / 2);
    let [
        count,
        answer,
        hit,
        index,
        killed_hit,
        killed_index,
        lost,
        cold,
        each,
    ] = &mut figures.0;

    let started = start(&contender, &folder.path, &path)?;
    *answer = ms(started.answer);
    *hit = ms(started.hit);
    let (found, took) = whole(&started.server, started.hit)?;
    *index = took;
    *count = Cell::one(found);
    *each = Cell::one(memory(&started.server).saturating_sub(alone) as f64 / found);
    fill(&started.server, "new", BUSY_SECONDS)?;
    started.server.kill();

    let started = start(&contender, &folder.path, &path)?;
    *killed_hit = ms(started.hit);
    *killed_index = whole(&started.server, started.hit)?.1;
    fill(&started.server, "newer", BUSY_SECONDS)?;
    started.server.kill();

    fs::remove_file(cache.join("checkpoint")).map_err(|error| error.to_string())?;
    let started = start(&contender, &folder.path, &path)?;
    *lost = whole(&started.server, started.hit)?.1;
    started.server.kill();
    // Such a start finishes the segments that it found open, but writes no checkpoint.
    let _ = fs::remove_file(cache.join("checkpoint"));
    if shell::is_root() {
        drop_caches()?;
        let started = start(&contender, &folder.path, &path)?;
        *cold = whole(&started.server, started.hit)?.1;
    }
    Ok(made)
}

/// How many objects were found, and how long after the start all were in the index. A store answers from the moment at
/// which its index is whole, so the first hit is the proof; the note says how long the store itself took.
fn whole(server: &Server, hit: Duration) -> Result<(f64, Cell), String> {
    let status = get(server.port, "/status").map_err(|error| error.to_string())?;
    let number = |name: &str| {
        let rest = status.split_once(&format!("\"{name}\":"))?.1;
        rest.split([',', '}']).next()?.parse::<f64>().ok()
    };
    let found = number("found").ok_or("the status page has no cache")?;
    let took = number("opened_ms").unwrap_or(f64::NAN);
    Ok((
        found,
        ms(hit).with(format!("{took:.0} of them in the store, {found} objects")),
    ))
}

/// Copies the one object that the server stored to as many keys.
fn multiply(path: &Path, objects: u64) -> Result<(), String> {
    let mut head = None;
    cache::survey_store(path, false, |listed| head = Some(listed.head.clone()))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    let head = head.ok_or("the server stored nothing")?;
    let path = path.to_owned();
    let copy = move || async move {
        let mut options = StoreOptions::new(&path, rt::pool::default_pool());
        options.inactive_ms = 0;
        options.max_size = 8 << 30;
        let store =
            CacheStore::open(options, rt::wall_millis()).map_err(|error| error.to_string())?;
        put_all(&store, &head, objects).await;
        store.close().await.map_err(|error| error.to_string())
    };
    rt::run(rt::LoopOptions::default(), copy).map_err(|error| error.to_string())?
}

async fn put_all(store: &CacheStore, head: &ObjectHead, objects: u64) {
    let content = bytes::Bytes::from(vec![b'x'; CONTENT]);
    // Else they would be inactive for long.
    let now_ms = rt::wall_millis();
    for number in 0..objects {
        let key = CacheKey::new(format!("/s/{number}").as_bytes());
        if let FillStart::Started(mut writer, _) =
            store.join_or_start_fill(&key, FillCoverage::Whole, SeenLocation::NOTHING, now_ms)
        {
            writer.start_storing(head.clone());
            // What is stored cannot be abandoned.
            let _ = writer.write(content.clone()).await;
            writer.finish();
        }
        if number % 10_000 == 0 {
            store.flush().await;
        }
    }
}
