//! `bench`: CPU time per request beside nginx (SCORE rows P4, P5, P7). One loop pinned to one
//! core, wrk on another, the contenders in turn within each round, medians over the rounds.
//! Absolute numbers move from machine to machine; the ratios of one run hold.

use std::fs;
use std::path::Path;

use crate::flags::Flags;
use crate::server::{Contender, Folder, Placement, Server, median, weir};
use crate::wrk::Load;
use crate::{Outcome, packages};

const HELP: &str = "\
cargo xtask bench [flags]
  --nginx PATH     nginx to compare with (/usr/sbin/nginx)
  --weir PATH      a built Weir (default: builds one)
  --without-weir   nginx alone
  --seconds N      per measurement (3)
  --rounds N       rounds, of which the median counts (3)
  --rows A,B       only these rows
  --cpus S,L       cores of the server and of the load (0,1)";

/// A row: name, path, connections, a new connection for each request.
const ROWS: &[(&str, &str, u32, bool)] = &[
    ("return-64", "/return", 64, false),
    ("return-512", "/return", 512, false),
    ("1k", "/1k", 64, false),
    ("10k", "/10k", 64, false),
    ("100k", "/100k", 64, false),
    ("4m", "/4m", 16, false),
    ("close", "/return", 64, true),
];

const FILES: &[(&str, usize)] = &[
    ("1k", 1 << 10),
    ("10k", 10 << 10),
    ("100k", 100 << 10),
    ("4m", 4 << 20),
];

const CONFIGURATION: &str = "
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    keepalive_requests 1000000000;
    open_file_cache max=1000;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096;
        root html;
        location = /return { return 200 \"%%TEXT%%\"; }
    }
}
";

struct Plan {
    seconds: u32,
    rounds: u32,
    rows: String,
    server_cpu: String,
    load_cpu: String,
}

pub(crate) fn run(flags: &mut Flags) -> Outcome {
    if flags.has("--help") {
        println!("{HELP}");
        return Ok(());
    }
    let nginx: String = flags.value("--nginx", "/usr/sbin/nginx".to_owned())?;
    let named: String = flags.value("--weir", String::new())?;
    let alone = flags.has("--without-weir");
    let cpus: String = flags.value("--cpus", "0,1".to_owned())?;
    let (server_cpu, load_cpu) = cpus.split_once(',').ok_or("--cpus needs two cores: 0,1")?;
    let plan = Plan {
        seconds: flags.value("--seconds", 3)?,
        rounds: flags.value("--rounds", 3)?,
        rows: flags.value("--rows", String::new())?,
        server_cpu: server_cpu.to_owned(),
        load_cpu: load_cpu.to_owned(),
    };
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;

    let contender = |name: &str, binary: &Path, directives: &str| Contender {
        name: name.to_owned(),
        binary: binary.to_owned(),
        directives: directives.to_owned(),
    };
    let nginx = Path::new(&nginx);
    let mut contenders = vec![
        contender("nginx sendfile", nginx, "sendfile on;"),
        contender("nginx read", nginx, "sendfile off; output_buffers 2 64k;"),
    ];
    if !alone {
        contenders.push(contender("weir", &weir(&named)?, "sendfile on;"));
    }
    measure(&plan, &contenders)
}

fn measure(plan: &Plan, contenders: &[Contender]) -> Outcome {
    let folder = Folder::new("bench")?;
    for (name, length) in FILES {
        fs::write(folder.path.join("html").join(name), vec![b'x'; *length])
            .map_err(|error| error.to_string())?;
    }
    let configuration = CONFIGURATION.replace("%%TEXT%%", &"x".repeat(128));
    println!(
        "{} s each, {} rounds; CPU µs per request, ratio to the first, requests/s",
        plan.seconds, plan.rounds
    );
    for &(row, path, connections, close) in ROWS {
        if !plan.rows.is_empty() && !plan.rows.split(',').any(|wanted| wanted == row) {
            continue;
        }
        let mut figures = vec![(Vec::new(), Vec::new()); contenders.len()];
        for _ in 0..plan.rounds {
            for (contender, figures) in contenders.iter().zip(&mut figures) {
                let (cpu, rate) = once(
                    plan,
                    contender,
                    &folder.path,
                    &configuration,
                    (path, connections, close),
                )?;
                figures.0.push(cpu);
                figures.1.push(rate);
            }
        }
        let base = median(figures[0].0.clone());
        for (contender, (cpu, rate)) in contenders.iter().zip(figures) {
            let (cpu, rate) = (median(cpu), median(rate));
            println!(
                "{row:<11} {:<15} {cpu:>9.2} µs  {:>5.2}  {rate:>9.0}/s",
                contender.name,
                cpu / base
            );
        }
    }
    Ok(())
}

/// One measurement: microseconds of CPU per request, and requests per second.
fn once(
    plan: &Plan,
    contender: &Contender,
    folder: &Path,
    configuration: &str,
    row: (&str, u32, bool),
) -> Result<(f64, f64), String> {
    let (path, connections, close) = row;
    let placement = Placement {
        cpus: Some(plan.server_cpu.clone()),
        groups: Vec::new(),
    };
    let server = Server::start(contender, folder, configuration, &placement)?;
    let load = |seconds| Load {
        cpus: Some(plan.load_cpu.clone()),
        connections,
        seconds,
        url: format!("http://127.0.0.1:{}{path}", server.port),
        script: None,
        new_connection_each: close,
    };
    load(1).run()?;
    let before = server.cpu_time();
    let report = load(plan.seconds).run()?;
    let used = server.cpu_time() - before;
    // wrk counts the end of a connection that the server closes as a read error.
    if report.requests == 0.0 || (report.failures > 0.0 && !close) {
        return Err(format!(
            "{}: {path}: {} requests, {} failures",
            contender.name, report.requests, report.failures
        ));
    }
    Ok((
        used.as_secs_f64() * 1e6 / report.requests,
        report.per_second,
    ))
}
