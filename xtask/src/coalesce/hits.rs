//! `bench-hits`: CPU time per hit of the cache (SCORE row P8), by wrk, for Weir, nginx and Varnish in turn. The servers
//! have one loop each (Varnish its threads); all that their workers burn is counted.

use std::time::Duration;

use super::origin::{Origin, Reply};
use super::varnish::Varnish;
use super::{Cache, contender};
use crate::flags::Flags;
use crate::server::{Folder, Placement, Server, cpu_time, median, weir};
use crate::wrk::Load;
use crate::{Outcome, packages};

const HELP: &str = "\
cargo xtask bench-hits [flags]
  --weir PATH      a built Weir (default: builds one)
  --nginx PATH     nginx to compare with (/usr/sbin/nginx)
  --seconds N      per measurement (3)
  --rounds N       rounds, of which the median counts (3)
  --cpus S,L       cores of the servers and of the load (0,1)
  --without-varnish";

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
        is_private: false,
        breaks: false,
    })
}

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let named: String = flags.value("--weir", String::new())?;
    let nginx: String = flags.value("--nginx", "/usr/sbin/nginx".to_owned())?;
    let seconds: u32 = flags.value("--seconds", 3)?;
    let rounds: usize = flags.value("--rounds", 3)?;
    let cpus: String = flags.value("--cpus", "0,1".to_owned())?;
    let without_varnish = flags.has("--without-varnish");
    flags.finish()?;
    packages::need(&[packages::WRK])?;
    let (server_cpu, load_cpu) = cpus.split_once(',').ok_or("--cpus is two lists")?;
    let origin = Origin::start(reply_of)?;
    let contenders = [
        contender("Weir", weir(&named)?, ""),
        contender("nginx", nginx.into(), ""),
    ];
    let placement = || Placement {
        cpus: Some(server_cpu.to_owned()),
        groups: Vec::new(),
    };
    let text = CONFIGURATION.replace("%%ORIGIN%%", &origin.port.to_string());
    let mut folders = Vec::new();
    let mut caches = Vec::new();
    for contender in &contenders {
        let folder = Folder::new(&format!("bench-hits-{}", contender.name))?;
        let server = Server::start(contender, &folder.path, &text, &placement())?;
        caches.push((contender.name.clone(), Cache::Nginx(server)));
        folders.push(folder);
    }
    if !without_varnish && Varnish::is_installed() {
        let folder = Folder::new("bench-hits-varnish")?;
        let varnish = Varnish::start(&folder.path, origin.port, Some(server_cpu))?;
        caches.push(("Varnish".to_owned(), Cache::Varnish(varnish)));
        folders.push(folder);
    }
    println!(
        "\n| hit of | {} |",
        caches
            .iter()
            .map(|(name, _)| name.as_str())
            .collect::<Vec<_>>()
            .join(" | ")
    );
    println!("|---|{}", "---|".repeat(caches.len()));
    for (kind, connections) in ROWS {
        let load = |cache: &Cache| Load {
            cpus: Some(load_cpu.to_owned()),
            connections: *connections,
            seconds,
            url: format!("http://127.0.0.1:{}/{kind}/x", cache.port()),
            ..Load::default()
        };
        let mut costs = vec![Vec::new(); caches.len()];
        for _ in 0..rounds {
            for (costs, (name, cache)) in costs.iter_mut().zip(&caches) {
                costs.push(
                    micros_per_hit(cache, &load(cache)).map_err(|why| format!("{name}: {why}"))?,
                );
            }
        }
        let costs: Vec<f64> = costs.into_iter().map(median).collect();
        let first = costs.get(1).copied().unwrap_or(f64::NAN);
        let cells: Vec<String> = costs
            .iter()
            .map(|cost| format!("{cost:.1} µs ({:.2})", cost / first))
            .collect();
        println!("| {kind} | {} |", cells.join(" | "));
    }
    Ok(())
}

fn micros_per_hit(cache: &Cache, load: &Load) -> Result<f64, String> {
    let before: Duration = cache.pids().iter().map(|&pid| cpu_time(pid)).sum();
    let report = load.run()?;
    let after: Duration = cache.pids().iter().map(|&pid| cpu_time(pid)).sum();
    if report.failures > 0.0 || report.requests < 1.0 {
        return Err(format!(
            "{} of {} requests failed",
            report.failures, report.requests
        ));
    }
    Ok((after - before).as_secs_f64() * 1e6 / report.requests)
}
