//! `hits`: CPU time per hit of the cache (SCORE row P8), by wrk, for Weir, nginx and Varnish in turn. The servers
//! have one loop each (Varnish its threads); all that their workers burn is counted.

use xtask::flags::Flags;
use xtask::packages;

use super::origin::{Origin, Reply};
use super::varnish;
use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, RequestCost, Server, both_times};
use crate::wrk::Load;

/// nginx in its best mode for hits.
const CONFIGURATION: &str = "
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    sendfile on;
    open_file_cache max=1000;
    keepalive_requests 1000000000;
    proxy_cache_path cache keys_zone=cache:10m max_size=4g inactive=1h use_temp_path=off;
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        location / {
            proxy_pass http://127.0.0.1:%%ORIGIN%%;
            proxy_cache cache;
            proxy_cache_key $uri;
            %%DIRECTIVES%%
        }
    }
}
";

/// A kind of path, and how many connections ask for it.
const ROWS: &[(&str, u32)] = &[("1k", 64), ("10k", 64), ("1m", 16)];

fn reply_of(kind: &str) -> Option<Reply> {
    let length = match kind {
        "1k" => 1 << 10,
        "10k" => 10 << 10,
        "1m" => 1 << 20,
        _ => return None,
    };
    Some(Reply {
        head_ms: 0,
        length,
        body_ms: 0,
        ..Reply::default()
    })
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;
    packages::want(&[packages::VARNISH]);
    let origin = Origin::start(reply_of)?;
    let (caches, _folders) = start_caches(bench, origin.port)?;
    let table = |title: &str| Table {
        title: title.to_owned(),
        unit: "µs of the server, ratio to nginx".to_owned(),
        contenders: caches.iter().map(|(name, _)| name.clone()).collect(),
        base: Some(0),
        rows: Vec::new(),
    };
    let mut tables = [table("CPU time per hit"), table("User time per hit")];
    for (kind, connections) in ROWS.iter().filter(|(kind, _)| bench.wants(kind)) {
        let load = |cache: &Server| Load {
            cpus: Some(bench.load_cpu.clone()),
            connections: *connections,
            seconds: bench.seconds,
            url: format!("http://127.0.0.1:{}/{kind}/x", cache.port),
            ..Load::default()
        };
        let mut samples = vec![Vec::new(); caches.len()];
        for _ in 0..bench.rounds {
            for (samples, (name, cache)) in samples.iter_mut().zip(&caches) {
                samples.push(
                    cost_of_hit(cache, &load(cache)).map_err(|why| format!("{name}: {why}"))?,
                );
            }
        }
        let (cpu, user): (Vec<_>, Vec<_>) = samples.iter().map(|costs| both_times(costs)).unzip();
        for (table, samples) in tables.iter_mut().zip([cpu, user]) {
            let is_cpu = table.title.starts_with("CPU");
            table.rows.push(Row {
                score: if is_cpu { "P8" } else { "" }.to_owned(),
                name: (*kind).to_owned(),
                goal: is_cpu.then_some(Goal::RatioAtMost(0.8)),
                cells: samples.into_iter().map(Cell::of).collect(),
            });
        }
    }
    Ok(Section {
        title: "A hit of the cache".to_owned(),
        how: format!(
            "One loop or worker on core {} (Varnish: its threads), the load on core {}, {} s a measurement, {} rounds, nginx with sendfile and open_file_cache.",
            bench.server_cpu, bench.load_cpu, bench.seconds, bench.rounds
        ),
        tables: tables.into(),
        ..Section::default()
    })
}

/// Caches with their names.
type NamedCaches = Vec<(String, Server)>;

/// The caches in front of an origin at this port, and the folders that they work in.
fn start_caches(bench: &Bench, origin: u16) -> Result<(NamedCaches, Vec<Folder>), String> {
    let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.to_string());
    let mut folders = Vec::new();
    let mut caches = Vec::new();
    for contender in [
        Contender::new("nginx", &bench.nginx, ""),
        Contender::new("weir", &bench.weir, ""),
    ] {
        let folder = Folder::new(&format!("bench-hits-{}", contender.name))?;
        let placement = Placement {
            cpus: Some(bench.server_cpu.clone()),
            groups: Vec::new(),
        };
        let server = Server::start(&contender, &folder.path, &text, &placement)?;
        caches.push((contender.name, server));
        folders.push(folder);
    }
    if varnish::is_installed() {
        let folder = Folder::new("bench-hits-varnish")?;
        let varnish = varnish::start(&folder.path, origin, Some(&bench.server_cpu))?;
        caches.push(("Varnish".to_owned(), varnish));
        folders.push(folder);
    }
    Ok((caches, folders))
}

fn cost_of_hit(cache: &Server, load: &Load) -> Result<RequestCost, String> {
    let before = cache.used_time();
    let report = load.run()?;
    let after = cache.used_time();
    if report.failures > 0.0 || report.requests < 1.0 {
        return Err(format!(
            "{} of {} requests failed",
            report.failures, report.requests
        ));
    }
    Ok(after.per_request(before, report.requests))
}
