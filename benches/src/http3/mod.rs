//! `http3`: what HTTP/3 costs beside nginx, and beside `quinn-proto` alone. One loop pinned to one core, the load on
//! another, the contenders in turn within each round.
//!
//! The figure is the server's CPU time: the load generator shares the machine, and is no faster than the servers.

mod client;
mod flood;
pub(crate) mod floor;
pub(crate) mod instructions;
pub(crate) mod life;
pub(crate) mod path;
mod relay;
mod response;

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use xtask::flags::Flags;

use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, free_port, names};
use client::{QuicClients, Work};

const CONFIGURATION: &str = "
worker_processes 1;
worker_rlimit_nofile 65536;
events { worker_connections 32768; }
http {
    access_log off;
    keepalive_requests 1000000000;
    open_file_cache max=1000;
    http3_max_concurrent_streams 128;
    %%DIRECTIVES%%
    server {
        listen %%PORT%% ssl;
        listen %%PORT%% quic reuseport;
        ssl_certificate cert.pem;
        ssl_certificate_key key.pem;
        root html;
    }
}
";

/// The name of the contender that is no server.
const FLOOR: &str = "quinn-proto alone";

/// A measurement: what is asked for, and by whom.
struct Http3Row {
    name: &'static str,
    path: &'static str,
    length: u64,
    clients: usize,
    streams: usize,
    goal: f64,
}

const ROWS: &[Http3Row] = &[
    Http3Row {
        name: "1k",
        path: "/1k",
        length: 1 << 10,
        clients: 50,
        streams: 10,
        goal: 0.90,
    },
    Http3Row {
        name: "100m",
        path: "/100m",
        length: 100_000_000,
        clients: 1,
        streams: 1,
        goal: 0.8,
    },
];

/// How long clients may take to connect, and to end.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    let folder = prepare()?;
    let contenders = vec![
        Contender::new("nginx", &bench.nginx, "quic_gso on;"),
        Contender::new("nginx, quic_gso off", &bench.nginx, ""),
        Contender::new("weir", &bench.weir, ""),
        Contender::new(FLOOR, Path::new(""), ""),
    ];
    let mut cpu = Table::beside_the_first(
        "CPU time over HTTP/3",
        "1k: µs of the server per request; 100m: ms of the server per 100 MB",
        names(&contenders),
    );
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let mut samples = vec![Vec::new(); contenders.len()];
        for _ in 0..bench.rounds {
            for (index, contender) in contenders.iter().enumerate() {
                let cost = cost(bench, row, contender, &folder)?;
                println!("{}: {}: {cost:.2}", row.name, contender.name);
                samples[index].push(cost);
            }
        }
        cpu.rows.push(Row {
            score: String::new(),
            name: row.name.to_owned(),
            goal: Some(Goal::RatioAtMost(row.goal)),
            cells: samples.into_iter().map(Cell::of).collect(),
        });
    }
    Ok(Section {
        title: "HTTP/3".to_owned(),
        how: format!(
            "One loop on core {}, the load on core {}, {} s a measurement, {} rounds. The load is quinn-proto with a socket for \
             each client; every response's status and length is checked. 1k: 50 connections with 10 requests each. 100m: one \
             connection, one file after the other.",
            bench.server_cpu, bench.load_cpu, bench.seconds, bench.rounds
        ),
        tables: vec![cpu],
        ..Section::default()
    })
}

/// Files and a certificate.
fn prepare() -> Result<Folder, String> {
    let folder = Folder::new("http3")?;
    let write = |name: &str, content: &[u8]| {
        let path = folder.path.join(name);
        fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))
    };
    for (name, length) in [
        ("1k", 1 << 10),
        ("1m", 1_000_000),
        ("10m", 10_000_000),
        ("100m", 100_000_000),
    ] {
        write(&format!("html/{name}"), &vec![b'x'; length])?;
    }
    let told = |error: rcgen::Error| error.to_string();
    let key = KeyPair::generate().map_err(told)?;
    let params = CertificateParams::new(vec!["localhost".to_owned()]).map_err(told)?;
    let certificate = params.self_signed(&key).map_err(told)?;
    write("cert.pem", certificate.pem().as_bytes())?;
    write("key.pem", key.serialize_pem().as_bytes())?;
    Ok(folder)
}

/// Starts a server on one core.
fn serve(bench: &Bench, contender: &Contender, folder: &Folder) -> Result<Server, String> {
    let placement = Placement {
        cpus: Some(bench.server_cpu.clone()),
        groups: Vec::new(),
    };
    Server::start(contender, &folder.path, CONFIGURATION, &placement)
}

fn start(
    bench: &Bench,
    row: &Http3Row,
    contender: &Contender,
    folder: &Folder,
) -> Result<Server, String> {
    if contender.name != FLOOR {
        return serve(bench, contender, folder);
    }
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let (port, length) = (free_port()?, row.length.to_string());
    let text = port.to_string();
    // `--weir`: it would be built else.
    let weir = bench.weir.as_os_str();
    let words = ["http3-floor", "--port", &text, "--length", &length];
    let mut words: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
    words.extend([OsStr::new("--folder"), folder.path.as_os_str()]);
    words.extend([OsStr::new("--weir"), weir]);
    Server::peer(&this, &words, Some(&bench.server_cpu), port)
}

/// The server's CPU time for a response, in microseconds, or for 100 MB in milliseconds.
fn cost(
    bench: &Bench,
    row: &Http3Row,
    contender: &Contender,
    folder: &Folder,
) -> Result<f64, String> {
    let server = start(bench, row, contender, folder)?;
    let work = Work {
        path: row.path.to_owned(),
        length: row.length,
        streams: row.streams,
    };
    let address = SocketAddr::from(([127, 0, 0, 1], server.port));
    let load = || -> Result<f64, String> {
        let mut clients = QuicClients::new(address, work)?;
        clients.add(row.clients, [127, 0, 0, 1])?;
        if !clients.run_until(PATIENCE, QuicClients::all_connected)? {
            return Err(format!("{}: clients could not connect", contender.name));
        }
        clients.run(Duration::from_millis(500))?;
        let (before, began) = (clients.totals, Instant::now());
        let used_before = server.used_time();
        clients.run(Duration::from_secs(bench.seconds.into()))?;
        let used_after = server.used_time();
        let used = used_after.cpu - used_before.cpu;
        let took = began.elapsed().as_secs_f64();
        let after = clients.totals;
        if after.failed > 0 || clients.lost().0 > 0 {
            return Err(format!(
                "{}: {} failed, {}",
                contender.name,
                after.failed,
                clients.lost().1
            ));
        }
        let responses = (after.responses - before.responses) as f64;
        let bytes = (after.bytes - before.bytes) as f64;
        let outside = used_after.user.saturating_sub(used_before.user);
        println!(
            "    {:.0} responses/s, {:.1} MB/s; {:.0} % of the time outside of the kernel",
            responses / took,
            bytes / took / 1e6,
            100.0 * outside.as_secs_f64() / used.as_secs_f64()
        );
        Ok(match row.streams {
            1 => used.as_secs_f64() * 1e3 / (bytes / 1e8),
            _ => used.as_secs_f64() * 1e6 / responses,
        })
    };
    on_core(&bench.load_cpu, load)
}

/// Runs a load in a thread of its own on one core.
fn on_core<T: Send>(
    core: &str,
    load: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let core: usize = core
        .parse()
        .map_err(|_| "--cpus needs numbers of cores".to_owned())?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let mut set = rustix::thread::CpuSet::new();
            set.set(core);
            // A core that does not exist: anywhere.
            let _ = rustix::thread::sched_setaffinity(None, &set);
            load()
        });
        thread
            .join()
            .map_err(|_| "the load ended in a panic".to_owned())?
    })
}
