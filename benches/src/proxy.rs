//! `proxy`: what a proxied request costs beside nginx and HAProxy (SCORE row P6), and how many connections an origin
//! sees for it, with several loops.
//!
//! The proxy is pinned to one core, the origin and wrk to another. The origin is nginx, which counts the connections that
//! it accepted; the contenders take turns within each round.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use xtask::flags::Flags;
use xtask::packages;

use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{
    Contender, Folder, Placement, RequestCost, Server, both_times, free_port, names,
};
use crate::wrk::Load;

/// Requests of which the origin's connections are counted.
const REQUESTS: f64 = 100_000.0;

/// How many connections each proxy may keep open to the origin while it has nothing to ask, when its CPU is measured: one
/// for each client.
const KEEPALIVE: usize = 64;

/// The same, when connections are counted. nginx keeps as many in each of its processes.
const KEPT: [usize; 2] = [16, 64];

/// How many clients there are.
const CLIENTS: u32 = 64;

const ORIGIN: &str = "
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        location = /1k { return 200 \"%%TEXT%%\"; }
        location = /status { stub_status; }
    }
}
";

const PROXY: &str = "
worker_processes %%LOOPS%%;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000000;
    upstream origin {
        server 127.0.0.1:%%ORIGIN%%;
        keepalive %%KEEPALIVE%%;
        keepalive_requests 1000000000;
    }
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        location / {
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection '';
        }
    }
}
";

const HAPROXY: &str = "
global
    nbthread 1
    maxconn 4096
defaults
    mode http
    http-reuse always
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind 127.0.0.1:%%PORT%% backlog 4096
    default_backend origin
backend origin
    server origin 127.0.0.1:%%ORIGIN%% pool-max-conn %%KEEPALIVE%%
";

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;
    packages::want(&[packages::HAPROXY]);
    let contenders = [
        Contender::new("nginx", &bench.nginx, ""),
        Contender::new("weir", &bench.weir, ""),
    ];
    let folder = Folder::new("bench-proxy")?;
    let origin_folder = folder.path.join("origin");
    fs::create_dir_all(&origin_folder).map_err(|error| error.to_string())?;
    let origin = Server::start(
        &contenders[0],
        &origin_folder,
        &ORIGIN.replace("%%TEXT%%", &"x".repeat(1024)),
        &Placement {
            cpus: Some(bench.load_cpu.clone()),
            ..Placement::default()
        },
    )?;
    Ok(Section {
        title: "A proxied request".to_owned(),
        how: format!(
            "1 KB from an origin (nginx) that keeps connections, {CLIENTS} clients. One loop on core {}, origin and load on core {}, {} s a measurement, {} rounds. \
             Then the connections that the origin accepts for {REQUESTS} requests, with several loops.",
            bench.server_cpu, bench.load_cpu, bench.seconds, bench.rounds
        ),
        tables: {
            let [cpu, user] = cost_per_request(bench, &contenders, &folder.path, origin.port)?;
            let connections = connections(bench, &contenders, &folder.path, origin.port)?;
            vec![cpu, user, connections]
        },
        ..Section::default()
    })
}

fn cost_per_request(
    bench: &Bench,
    contenders: &[Contender],
    folder: &Path,
    origin: u16,
) -> Result<[Table; 2], String> {
    let mut names = names(contenders);
    let has_haproxy = bench.haproxy.is_file();
    if has_haproxy {
        names.push("HAProxy".to_owned());
    }
    let mut samples = vec![Vec::new(); names.len()];
    for _ in 0..bench.rounds {
        for (contender, samples) in contenders.iter().zip(&mut samples) {
            let proxy = start(bench, contender, folder, origin, (1, KEEPALIVE))?;
            samples.push(measure(bench, &proxy)?);
        }
        if has_haproxy && let Some(last) = samples.last_mut() {
            last.push(measure(bench, &start_haproxy(bench, folder, origin)?)?);
        }
    }
    let (cpu, user) = samples.iter().map(|costs| both_times(costs)).unzip();
    let table = |title: &str, score: &str, goal, samples: Vec<Vec<f64>>| Table {
        title: title.to_owned(),
        unit: "µs of the proxy, ratio to nginx".to_owned(),
        contenders: names.clone(),
        base: Some(0),
        rows: vec![Row {
            score: score.to_owned(),
            name: "1 KB".to_owned(),
            goal: Some(Goal::RatioAtMost(goal)),
            cells: samples.into_iter().map(Cell::of).collect(),
        }],
    };
    Ok([
        table("CPU time per proxied request", "P6", 0.8, cpu),
        table("User time per proxied request", "N8", 0.85, user),
    ])
}

fn measure(bench: &Bench, proxy: &Server) -> Result<RequestCost, String> {
    let load = |seconds| Load {
        cpus: Some(bench.load_cpu.clone()),
        connections: CLIENTS,
        seconds,
        url: format!("http://127.0.0.1:{}/1k", proxy.port),
        ..Load::default()
    };
    load(1).run()?;
    let before = proxy.used_time();
    let report = load(bench.seconds).run()?;
    let after = proxy.used_time();
    if report.requests == 0.0 || report.failures > 0.0 {
        return Err(format!(
            "{} requests, {} failures",
            report.requests, report.failures
        ));
    }
    Ok(after.per_request(before, report.requests))
}

/// How many connections the origin accepts for so many requests, with several loops.
fn connections(
    bench: &Bench,
    contenders: &[Contender],
    folder: &Path,
    origin: u16,
) -> Result<Table, String> {
    let mut table = Table {
        title: format!("Connections that the origin accepted for {REQUESTS} requests"),
        unit: "connections".to_owned(),
        contenders: names(contenders),
        ..Table::default()
    };
    for (loops, keepalive) in [2, 4].into_iter().flat_map(|n| KEPT.map(|kept| (n, kept))) {
        let mut cells = Vec::new();
        for contender in contenders {
            let proxy = start(bench, contender, folder, origin, (loops, keepalive))?;
            let before = accepted(origin)?;
            let mut done = 0.0;
            let mut failures = 0.0;
            while done < REQUESTS {
                let load = Load {
                    cpus: Some(bench.load_cpu.clone()),
                    connections: CLIENTS,
                    seconds: 1,
                    url: format!("http://127.0.0.1:{}/1k", proxy.port),
                    ..Load::default()
                };
                let report = load.run()?;
                done += report.requests;
                failures += report.failures;
            }
            // The questions about it are connections too.
            let count = accepted(origin)? - before - 1;
            let cell = Cell::one((count as f64 * REQUESTS / done).round());
            cells.push(match failures > 0.0 {
                true => cell.with(format!("{failures} failures")),
                false => cell,
            });
        }
        table.rows.push(Row {
            name: format!("{loops} loops or workers, keepalive {keepalive}"),
            cells,
            ..Row::default()
        });
    }
    Ok(table)
}

/// What nginx's `stub_status` says.
fn accepted(origin: u16) -> Result<u64, String> {
    let text = get(origin, "/status").map_err(|error| format!("the origin: {error}"))?;
    let numbers = text
        .lines()
        .skip_while(|line| !line.contains("accepts"))
        .nth(1)
        .unwrap_or_default();
    numbers
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| format!("no count in {text:?}"))
}

fn get(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn start(
    bench: &Bench,
    contender: &Contender,
    folder: &Path,
    origin: u16,
    (loops, keepalive): (u32, usize),
) -> Result<Server, String> {
    let configuration = PROXY
        .replace("%%ORIGIN%%", &origin.to_string())
        .replace("%%KEEPALIVE%%", &keepalive.to_string())
        .replace("%%LOOPS%%", &loops.to_string());
    let cpus = (loops == 1).then(|| bench.server_cpu.clone());
    let placement = Placement {
        cpus,
        ..Placement::default()
    };
    Server::start(contender, folder, &configuration, &placement)
}

/// HAProxy with one thread.
fn start_haproxy(bench: &Bench, folder: &Path, origin: u16) -> Result<Server, String> {
    let port = free_port()?;
    let file = folder.join("haproxy.cfg");
    let configuration = HAPROXY
        .replace("%%ORIGIN%%", &origin.to_string())
        .replace("%%KEEPALIVE%%", &KEEPALIVE.to_string())
        .replace("%%PORT%%", &port.to_string());
    fs::write(&file, configuration).map_err(|error| error.to_string())?;
    let arguments = ["-db".as_ref(), "-f".as_ref(), file.as_os_str()];
    Server::peer(&bench.haproxy, &arguments, Some(&bench.server_cpu), port)
}
