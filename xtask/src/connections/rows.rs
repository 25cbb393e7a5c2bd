//! The rows: what is done to a server while clients use it, and what they saw.

use std::fs;
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Plan;
use super::clients::{self, Crowd, Seen};
use super::site::{Kind, Site, Wish, kill};
use crate::Outcome;
use crate::server::median;
use crate::wrk::Load;

/// Busy clients of R1, R3 and R4: on kept connections, and with one for each request.
const KEPT: usize = 20;
const NEW: usize = 10;
/// Clients of R3 that wait without a request.
const IDLE: usize = 20;
/// Between two reloads or crashes.
const INTERVAL: Duration = Duration::from_millis(200);
/// R2: how long a loop is stuck, and how many clients come meanwhile.
const STUCK: Duration = Duration::from_secs(2);
const ARRIVALS: u32 = 200;

fn show(name: &str, seen: &Seen, more: &str) {
    println!(
        "  {name:<10} answered {:>7}   failed on kept {:>4}   on new {:>4}   closed between requests {:>4}   same socket {:>2} of {KEPT}{more}",
        seen.answered.load(Relaxed),
        seen.failed.load(Relaxed),
        seen.new_failed.load(Relaxed),
        seen.closed.load(Relaxed),
        seen.same_socket.load(Relaxed),
    );
}

pub(super) fn reloads(plan: &Plan) -> Outcome {
    println!(
        "R1: {} reloads under {KEPT} kept and {NEW} new clients",
        plan.times
    );
    for program in &plan.programs {
        let wish = Wish {
            workers: 2,
            ..Wish::default()
        };
        let site = Site::start(program, wish)?;
        let crowd = Crowd::start(site.port, KEPT, NEW);
        std::thread::sleep(INTERVAL);
        for _ in 0..plan.times {
            site.reload();
            std::thread::sleep(INTERVAL);
        }
        show(program.name, &crowd.end(), "");
    }
    Ok(())
}

pub(super) fn stalls(plan: &Plan) -> Outcome {
    println!(
        "R2: one of two loops stuck for {STUCK:?}; of {ARRIVALS} clients, waited over 100 ms, over 500 ms"
    );
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        for listen in ["", "reuseport"] {
            let wish = Wish {
                workers: 2,
                listen,
                ..Wish::default()
            };
            let site = Site::start(program, wish)?;
            let stuck = block(program.kind, &site)?;
            let times = clients::arrivals(site.port, ARRIVALS, STUCK * 9 / 10);
            drop(stuck);
            let over = |limit| times.iter().filter(|time| **time > limit).count();
            let longest = times.iter().max().copied().unwrap_or_default();
            println!(
                "  {:<10} {:<10} {:>4} {:>4}   longest {:>6.1} ms",
                program.name,
                if listen.is_empty() { "shared" } else { listen },
                over(Duration::from_millis(100)),
                over(Duration::from_millis(500)),
                longest.as_secs_f64() * 1e3
            );
        }
    }
    Ok(())
}

/// Lets one of two loops do nothing for a while; it goes on when the result is dropped at the latest.
fn block(kind: Kind, site: &Site) -> Result<Stuck, String> {
    if kind == Kind::Weir {
        let file = site.folder.path.join("block.conf");
        let seconds = STUCK.as_secs();
        fs::write(
            &file,
            format!("location = /block {{ debug_block {seconds}s; }}"),
        )
        .map_err(|error| error.to_string())?;
        site.reload();
        std::thread::sleep(INTERVAL);
        let stream = clients::open(site.port).ok_or("no connection")?;
        use std::io::Write as _;
        let sent = (&stream).write_all(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n");
        sent.map_err(|error| error.to_string())?;
        // It answers 404 at once when the directive is not there.
        std::thread::sleep(Duration::from_millis(50));
        if clients::is_closed(&stream) {
            return Err("this Weir was built without the feature debug-stall".to_owned());
        }
        return Ok(Stuck::Loop(stream));
    }
    let worker = site.workers().first().copied().ok_or("no worker")?;
    kill("STOP", worker);
    Ok(Stuck::Worker(worker))
}

enum Stuck {
    Loop(#[allow(dead_code)] TcpStream),
    Worker(u32),
}

impl Drop for Stuck {
    fn drop(&mut self) {
        if let Stuck::Worker(worker) = self {
            kill("CONT", *worker);
        }
    }
}

pub(super) fn upgrades(plan: &Plan) -> Outcome {
    let times = plan.times.div_ceil(3);
    println!("R3: {times} upgrades of the binary under the same load, and {IDLE} idle clients");
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        let wish = Wish {
            workers: 2,
            ..Wish::default()
        };
        let site = Site::start(program, wish)?;
        let idle: Vec<TcpStream> = (0..IDLE).filter_map(|_| clients::open(site.port)).collect();
        for stream in &idle {
            clients::request(stream, false, true).map_err(|error| error.to_string())?;
        }
        let crowd = Crowd::start(site.port, KEPT, NEW);
        let mut trouble = String::new();
        for _ in 0..times {
            if let Err(error) = site.upgrade() {
                trouble = format!("   {error}");
                break;
            }
        }
        let seen = crowd.end();
        let alive = |stream: &&TcpStream| {
            !clients::is_closed(stream) && clients::request(stream, false, true).is_ok()
        };
        let alive = idle.iter().filter(alive).count();
        show(
            program.name,
            &seen,
            &format!("   idle alive {alive} of {IDLE}{trouble}"),
        );
    }
    Ok(())
}

pub(super) fn crashes(plan: &Plan) -> Outcome {
    let times = plan.times.div_ceil(3);
    println!(
        "R4: kill -9 of a worker, {times} times under the same load: until the next answer to a new client"
    );
    for program in &plan.programs {
        // One worker, so that nobody else answers.
        let wish = Wish {
            workers: if program.kind == Kind::Weir { 2 } else { 1 },
            ..Wish::default()
        };
        let site = Site::start(program, wish)?;
        let crowd = Crowd::start(site.port, KEPT, NEW);
        let mut times_ms = Vec::new();
        let mut trouble = "";
        for _ in 0..times {
            std::thread::sleep(INTERVAL);
            let Some(worker) = site.workers().last().copied() else {
                trouble = "   no worker is left";
                break;
            };
            kill("KILL", worker);
            let killed = Instant::now();
            let answers = || {
                clients::open(site.port)
                    .is_some_and(|stream| clients::request(&stream, false, false).is_ok())
            };
            let mut answered = answers();
            while !answered && killed.elapsed() < Duration::from_secs(5) {
                answered = answers();
            }
            if !answered {
                trouble = "   it does not come back";
                break;
            }
            times_ms.push(killed.elapsed().as_secs_f64() * 1e3);
        }
        let longest = times_ms.iter().copied().fold(f64::NAN, f64::max);
        let middle = median(times_ms);
        show(
            program.name,
            &crowd.end(),
            &format!("   median {middle:.1} ms, longest {longest:.1} ms{trouble}"),
        );
    }
    Ok(())
}

pub(super) fn sharding(plan: &Plan) -> Outcome {
    println!(
        "P2: 4 workers or loops. 200 kept clients: spread (most/mean); wrk with 200 connections, {} s: requests/s, latency mean and deviation in ms",
        plan.seconds
    );
    let modes = [
        ("default", "", ""),
        ("accept_mutex", "", "accept_mutex on;"),
        ("reuseport", "reuseport", ""),
    ];
    for program in plan.programs.iter().filter(|one| one.kind != Kind::Haproxy) {
        for (name, listen, events) in modes {
            if program.kind == Kind::Weir && name == "accept_mutex" {
                continue;
            }
            let site = Site::start(
                program,
                Wish {
                    workers: 4,
                    listen,
                    events,
                },
            )?;
            let (spread, ratio) = spread(program.kind, &site)?;
            let load = |close| Load {
                connections: 200,
                seconds: plan.seconds,
                url: format!("http://127.0.0.1:{}/", site.port),
                new_connection_each: close,
                ..Load::default()
            };
            let kept = load(false).run()?;
            let new = load(true).run()?;
            println!(
                "  {:<6} {name:<13} {spread:<18} {ratio:.2}   kept {:>7.0}/s {:>6.2} ±{:>6.2}   new {:>6.0}/s {:>6.2} ±{:>6.2}",
                program.name,
                kept.per_second,
                kept.mean,
                kept.deviation,
                new.per_second,
                new.mean,
                new.deviation
            );
        }
    }
    Ok(())
}

/// 200 clients connect and ask once; how many each worker or loop has.
fn spread(kind: Kind, site: &Site) -> Result<(String, f64), String> {
    let workers = site.workers();
    let sockets = |process: &u32| {
        let entries = fs::read_dir(format!("/proc/{process}/fd"))
            .into_iter()
            .flatten();
        let links = entries
            .flatten()
            .filter_map(|entry| fs::read_link(entry.path()).ok());
        links
            .filter(|link| link.to_string_lossy().starts_with("socket:"))
            .count()
    };
    let before: Vec<usize> = workers.iter().map(sockets).collect();
    let clients: Vec<TcpStream> = (0..200).filter_map(|_| clients::open(site.port)).collect();
    for client in &clients {
        clients::request(client, false, true).map_err(|error| error.to_string())?;
    }
    let counts: Vec<usize> = match kind {
        Kind::Weir => {
            let stream = clients::open(site.port).ok_or("no connection")?;
            let text = "GET /loops HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            let status = clients::exchange(&stream, text).map_err(|error| error.to_string())?;
            let parts = status.split("\"active\":").skip(1);
            parts
                .filter_map(|part| part.split(',').next()?.parse().ok())
                .collect()
        }
        Kind::Nginx | Kind::Haproxy => {
            let after = workers.iter().map(sockets).zip(before);
            after
                .map(|(after, before)| after.saturating_sub(before))
                .collect()
        }
    };
    let most = counts.iter().copied().max().unwrap_or(0) as f64;
    let mean = counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64;
    let shown: Vec<String> = counts.iter().map(usize::to_string).collect();
    Ok((shown.join("/"), most / mean))
}
