//! `bench-proxy`: what a proxied request costs beside nginx and HAProxy (SCORE row P6), and how many connections an origin
//! sees for it, with several loops.
//!
//! The proxy is pinned to one core, the origin and wrk to another. The origin is nginx, which counts the connections that
//! it accepted; the contenders take turns within each round.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::flags::Flags;
use crate::server::{Contender, Folder, Placement, Server, cpu_time, free_port, median, weir};
use crate::wrk::Load;
use crate::{Outcome, packages};

const HELP: &str = "\
cargo xtask bench-proxy [flags]
  --nginx PATH     nginx to compare with, and the origin (/usr/sbin/nginx)
  --weir PATH      a built Weir (default: builds one)
  --seconds N      per measurement (3)
  --rounds N       rounds, of which the median counts (3)
  --requests N     requests of which the origin's connections are counted (100000)
  --cpus P,L       cores of the proxy, and of origin and load (0,1)";

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

struct Plan {
    seconds: u32,
    rounds: u32,
    requests: f64,
    proxy_cpu: String,
    load_cpu: String,
}

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let nginx: PathBuf = flags.value("--nginx", "/usr/sbin/nginx".into())?;
    let named: String = flags.value("--weir", String::new())?;
    let cpus: String = flags.value("--cpus", "0,1".to_owned())?;
    let (proxy_cpu, load_cpu) = cpus.split_once(',').ok_or("--cpus needs two cores: 0,1")?;
    let plan = Plan {
        seconds: flags.value("--seconds", 3)?,
        rounds: flags.value("--rounds", 3)?,
        requests: flags.value("--requests", 100_000.0)?,
        proxy_cpu: proxy_cpu.to_owned(),
        load_cpu: load_cpu.to_owned(),
    };
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK, packages::HAPROXY])?;

    let contender = |name: &str, binary: &Path| Contender {
        name: name.to_owned(),
        binary: binary.to_owned(),
        directives: String::new(),
    };
    let contenders = [
        contender("nginx", &nginx),
        contender("weir", &weir(&named)?),
    ];
    let folder = Folder::new("bench-proxy")?;
    let origin_folder = folder.path.join("origin");
    fs::create_dir_all(&origin_folder).map_err(|error| error.to_string())?;
    let origin = Server::start(
        &contenders[0],
        &origin_folder,
        &ORIGIN.replace("%%TEXT%%", &"x".repeat(1024)),
        &Placement {
            cpus: Some(plan.load_cpu.clone()),
            ..Placement::default()
        },
    )?;
    println!("load average before: {}", load_average());
    cpu_per_request(&plan, &contenders, &folder.path, origin.port)?;
    connections(&plan, &contenders, &folder.path, origin.port)?;
    println!("load average after: {}", load_average());
    Ok(())
}

fn cpu_per_request(plan: &Plan, contenders: &[Contender], folder: &Path, origin: u16) -> Outcome {
    println!("CPU µs per proxied request of 1 KB, one loop, ratio to nginx, requests/s");
    let mut figures = vec![(Vec::new(), Vec::new()); contenders.len() + 1];
    for _ in 0..plan.rounds {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            let proxy = start(plan, contender, folder, origin, (1, KEEPALIVE))?;
            let (cpu, rate) = measure(plan, proxy.port, &|| proxy.cpu_time())?;
            figures.0.push(cpu);
            figures.1.push(rate);
        }
        let proxy = Haproxy::start(plan, folder, origin)?;
        let (cpu, rate) = measure(plan, proxy.port, &|| cpu_time(proxy.child.id()))?;
        let last = figures.last_mut().expect("there is one for HAProxy");
        last.0.push(cpu);
        last.1.push(rate);
    }
    let base = median(figures[0].0.clone());
    let names = contenders.iter().map(|contender| contender.name.as_str());
    for (name, (cpu, rate)) in names.chain(["haproxy"]).zip(figures) {
        let (cpu, rate) = (median(cpu), median(rate));
        println!(
            "{name:<10} {cpu:>9.2} µs  {:>5.2}  {rate:>9.0}/s",
            cpu / base
        );
    }
    Ok(())
}

/// Microseconds of CPU per request, and requests per second.
fn measure(plan: &Plan, port: u16, cpu_time: &dyn Fn() -> Duration) -> Result<(f64, f64), String> {
    let load = |seconds| Load {
        cpus: Some(plan.load_cpu.clone()),
        connections: CLIENTS,
        seconds,
        url: format!("http://127.0.0.1:{port}/1k"),
        ..Load::default()
    };
    load(1).run()?;
    let before = cpu_time();
    let report = load(plan.seconds).run()?;
    let used = cpu_time() - before;
    if report.requests == 0.0 || report.failures > 0.0 {
        return Err(format!(
            "{} requests, {} failures",
            report.requests, report.failures
        ));
    }
    let micros = used.as_secs_f64() * 1e6 / report.requests;
    Ok((micros, report.per_second))
}

/// How many connections the origin accepts for so many requests, with several loops.
fn connections(plan: &Plan, contenders: &[Contender], folder: &Path, origin: u16) -> Outcome {
    println!(
        "connections that the origin accepted for {} requests of {CLIENTS} clients",
        plan.requests
    );
    for (loops, keepalive) in [2, 4].into_iter().flat_map(|n| KEPT.map(|kept| (n, kept))) {
        for contender in contenders {
            let proxy = start(plan, contender, folder, origin, (loops, keepalive))?;
            let before = accepted(origin)?;
            let mut done = 0.0;
            let mut failures = 0.0;
            while done < plan.requests {
                let load = Load {
                    cpus: Some(plan.load_cpu.clone()),
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
            println!(
                "{:<10} {loops} loops, keepalive {keepalive}: {count} connections for {done} requests, {:.0} for {}; {failures} failures",
                contender.name,
                count as f64 * plan.requests / done,
                plan.requests
            );
        }
    }
    Ok(())
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
    plan: &Plan,
    contender: &Contender,
    folder: &Path,
    origin: u16,
    (loops, keepalive): (u32, usize),
) -> Result<Server, String> {
    let configuration = PROXY
        .replace("%%ORIGIN%%", &origin.to_string())
        .replace("%%KEEPALIVE%%", &keepalive.to_string())
        .replace("%%LOOPS%%", &loops.to_string());
    let cpus = (loops == 1).then(|| plan.proxy_cpu.clone());
    let placement = Placement {
        cpus,
        ..Placement::default()
    };
    Server::start(contender, folder, &configuration, &placement)
}

/// A HAProxy of ours, with one thread.
struct Haproxy {
    child: Child,
    port: u16,
}

impl Haproxy {
    fn start(plan: &Plan, folder: &Path, origin: u16) -> Result<Haproxy, String> {
        let port = free_port()?;
        let file = folder.join("haproxy.cfg");
        let configuration = HAPROXY
            .replace("%%ORIGIN%%", &origin.to_string())
            .replace("%%KEEPALIVE%%", &KEEPALIVE.to_string())
            .replace("%%PORT%%", &port.to_string());
        fs::write(&file, configuration).map_err(|error| error.to_string())?;
        let child = Command::new("taskset")
            .args(["-c", &plan.proxy_cpu, "haproxy", "-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("haproxy: {error}"))?;
        let mut haproxy = Haproxy { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline || !matches!(haproxy.child.try_wait(), Ok(None)) {
                return Err("haproxy does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(haproxy)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        // Whether it still runs does not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn load_average() -> String {
    fs::read_to_string("/proc/loadavg")
        .unwrap_or_default()
        .trim()
        .to_owned()
}
