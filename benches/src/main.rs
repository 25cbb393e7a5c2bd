//! `weir-bench`: Weir beside its peers. Each experiment starts what it needs on loopback, lets the contenders take turns
//! within each round, is bounded in time, and gives figures for the report.
//!
//! What this is not: a test. Nothing here asserts a time.

#![forbid(unsafe_code)]

mod cache_disks;
mod cache_tests;
mod cgroup;
mod clients;
mod cluster;
mod coalesce;
mod connections;
mod crowd;
mod disk;
mod h2o;
mod hostile;
mod http3;
mod loop_device;
mod lua;
mod machine;
mod micro;
mod php;
mod proxy;
mod report;
mod restart;
mod scale;
mod server;
mod strace;
mod wrk;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use machine::{Machine, congestion_control, load_average};
use report::{Report, Section};
use xtask::flags::Flags;
use xtask::{Outcome, shell};

/// What all experiments share.
pub(crate) struct Bench {
    pub(crate) nginx: PathBuf,
    pub(crate) haproxy: PathBuf,
    pub(crate) weir: PathBuf,
    /// The cores of the server and of the load.
    pub(crate) server_cpu: String,
    pub(crate) load_cpu: String,
    /// For one measurement.
    pub(crate) seconds: u32,
    pub(crate) rounds: usize,
    rows: String,
}

impl Bench {
    /// Whether a row is wanted.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.split(',').any(|wanted| row == wanted)
    }
}

type Experiment = fn(&Bench, &mut Flags) -> Result<Section, String>;

/// The experiments, in the order of the report.
const EXPERIMENTS: &[(&str, &str, Experiment)] = &[
    (
        "micro",
        "P4 P5 P7 P9: CPU time per request, compared with nginx and h2o: return, 1 KB to 4 MB, new connections, TLS, HTTP/2",
        micro::run,
    ),
    (
        "proxy",
        "P6: a proxied request, compared with nginx and HAProxy, and the connections at an origin",
        proxy::run,
    ),
    (
        "hits",
        "P8: CPU time per cache hit, compared with nginx and Varnish",
        coalesce::hits::run,
    ),
    (
        "restart",
        "a start with a million objects in the cache: first hit, complete index, memory per object, compared with nginx",
        restart::run,
    ),
    (
        "disk",
        "E1, P1: hot clients under cold load on throttled disks; root",
        disk::run,
    ),
    (
        "cache-disks",
        "a cache on each of three disks, one of them degraded, compared with nginx; root",
        cache_disks::run,
    ),
    (
        "coalesce",
        "E2, C1–C8: many clients for one uncached key, compared with nginx and Varnish",
        coalesce::run,
    ),
    (
        "kills",
        "kill -9 during fetches, repeatedly on the same cache: every byte compared",
        coalesce::kills::run,
    ),
    (
        "cluster",
        "a cluster of three: one fetch for all, lost members, purges, a common limit, Redis that fails; instructions",
        cluster::run,
    ),
    (
        "connections",
        "E3, P2, R1–R4: sharding, reloads, upgrades, crashes and stalls, compared with nginx and HAProxy",
        connections::run,
    ),
    (
        "scale",
        "10 to 10,000 servers, 1,000 to 50,000 connections: memory, start and reload, compared with nginx and HAProxy",
        scale::run,
    ),
    (
        "lua",
        "CPU time per request with scripts, compared with lua-nginx-module, and the effect of endless ones on other requests",
        lua::run,
    ),
    (
        "php",
        "E4, P3: bursts of clients for a slow PHP page, compared with nginx and Apache",
        php::run,
    ),
    (
        "hostile",
        "S4: a good client and the server's memory during HTTP/2 attacks, compared with nginx",
        hostile::run,
    ),
    (
        "http3",
        "CPU time per request and per gigabyte over HTTP/3, compared with nginx and with quinn-proto alone; memory of idle connections",
        http3::run,
    ),
    (
        "http3-path",
        "goodput over long paths that lose packets, HTTP/3 beside HTTP/2, compared with nginx; root",
        http3::path::run,
    ),
    (
        "http3-life",
        "HTTP/3 connections during reloads, upgrades and changes of address, idle ones' memory, and floods, compared with nginx",
        http3::life::run,
    ),
];

type Tool = fn(&Bench, &mut Flags) -> Outcome;

/// What measures, but makes no part of the report.
const TOOLS: &[(&str, &str, Tool)] = &[
    (
        "http3-floor",
        "a server that is quinn-proto alone, for http3",
        http3::floor::run,
    ),
    (
        "http3-instructions",
        "instructions per request over HTTP/3, by callgrind, compared with nginx and with quinn-proto alone",
        http3::instructions::run,
    ),
    (
        "scale-clients",
        "connections that wait, for scale, in a process of their own",
        scale::client_crowd::run,
    ),
    (
        "cache-tests",
        "the public conformance suite of HTTP caches; needs node",
        cache_tests::run,
    ),
    (
        "strace",
        "the file system calls of a loaded server, by thread",
        strace::run,
    ),
];

const HELP: &str = "\
usage: weir-bench [EXPERIMENT] [flags]      without a name: all, and a report
       weir-bench page --keep FOLDER       writes the page of kept figures once more

  --nginx PATH     nginx to compare with (/usr/sbin/nginx)
  --haproxy PATH   HAProxy to compare with (/usr/sbin/haproxy)
  --weir PATH      a built Weir (default: builds one; without sources, the one in the path)
  --seconds N      for one measurement (2)
  --rounds N       rounds, of which the median is reported (5)
  --rows A,B       only these rows
  --cpus S,L       cores of the server and of the load (0,1)
  --tcp NAME       TCP congestion control, in a separate network namespace, as root
                   (default: that of the system)
  --keep FOLDER    directory for figures and page; replaces those of an earlier run of the same experiment
                   (default for all: benches/runs/DATE and benches/report; for one: not kept)
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let name = arguments.next_if(|word| !word.starts_with('-'));
    let mut flags = Flags::new(arguments);
    if flags.has("--help") {
        help();
        return ExitCode::SUCCESS;
    }
    let outcome = match flags.value("--tcp", String::new()) {
        Err(problem) => Err(problem),
        Ok(tcp) if tcp.is_empty() => run(name.as_deref(), &mut flags),
        Ok(tcp) => run_apart(&tcp, name, &mut flags),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("\nweir-bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Shows all flags. A reader that has seen enough (`| head`) is no error.
fn help() {
    let mut out = std::io::stdout().lock();
    let _reader_has_left = write_help(&mut out);
}

fn write_help(out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "{HELP}")?;
    let experiments = EXPERIMENTS.iter().map(|(name, what, _)| (name, what));
    let tools = TOOLS.iter().map(|(name, what, _)| (name, what));
    for (name, what) in experiments.chain(tools) {
        writeln!(out, "  {name:<12} {what}")?;
    }
    for (title, flags) in [
        ("restart", restart::FLAGS),
        ("disk", disk::FLAGS),
        ("cache-disks", cache_disks::FLAGS),
        ("kills", coalesce::kills::FLAGS),
        ("cluster", cluster::FLAGS),
        ("connections", connections::FLAGS),
        ("scale", scale::FLAGS),
        ("php", php::FLAGS),
        ("cache-tests", cache_tests::FLAGS),
        ("strace", strace::FLAGS),
        ("http3-instructions", http3::instructions::FLAGS),
    ] {
        writeln!(out, "\n{title}\n  {flags}")?;
    }
    Ok(())
}

/// Runs all of it once more, in a network namespace where TCP is as wished: what the system has is not for a benchmark
/// to change.
fn run_apart(tcp: &str, name: Option<String>, flags: &mut Flags) -> Outcome {
    const SET_UP: &str =
        "ip link set lo up && sysctl -qw net.ipv4.tcp_congestion_control=$0 && exec \"$@\"";
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let ended = Command::new("unshare")
        .args(["--net", "sh", "-c", SET_UP, tcp])
        .arg(this)
        .args(name)
        .args(flags.take_rest())
        .status()
        .map_err(|error| format!("unshare: {error}"))?;
    match ended.success() {
        true => Ok(()),
        false => Err(format!("{ended} (--tcp {tcp})")),
    }
}

fn run(name: Option<&str>, flags: &mut Flags) -> Outcome {
    if name == Some("page") {
        return page(flags);
    }
    let tool = TOOLS.iter().find(|(tool, ..)| Some(*tool) == name);
    let experiment = EXPERIMENTS.iter().find(|(id, ..)| Some(*id) == name);
    if let Some(name) = name.filter(|_| tool.is_none() && experiment.is_none()) {
        return Err(format!(
            "there is no experiment {name:?}; --help lists them"
        ));
    }
    let cpus: String = flags.value("--cpus", "0,1".to_owned())?;
    let (server_cpu, load_cpu) = cpus.split_once(',').ok_or("--cpus needs two cores: 0,1")?;
    let keep: String = flags.value("--keep", String::new())?;
    let bench = Bench {
        nginx: flags.value("--nginx", "/usr/sbin/nginx".into())?,
        haproxy: flags.value("--haproxy", "/usr/sbin/haproxy".into())?,
        weir: server::weir(&flags.value("--weir", String::new())?)?,
        server_cpu: server_cpu.to_owned(),
        load_cpu: load_cpu.to_owned(),
        seconds: flags.value("--seconds", 2)?,
        rounds: flags.value("--rounds", 5)?,
        rows: flags.value("--rows", String::new())?,
    };
    if let Some((_, _, tool)) = tool {
        return tool(&bench, flags);
    }
    let Some((id, _, experiment)) = experiment else {
        flags.finish()?;
        return all(&bench, &keep);
    };
    let section = timed(id, &bench, flags, *experiment)?;
    let machine = Machine::here(&bench.weir, &bench.nginx);
    // Its figures are many, and its curves the point.
    let keep = match (id, keep.is_empty()) {
        (&"scale", true) => scratch().join("scale").display().to_string(),
        _ => keep,
    };
    if keep.is_empty() {
        Report::new(machine).add(section);
        return Ok(());
    }
    let figures = Path::new(&keep).join("figures.json");
    let mut report = match figures.exists() {
        true => Report::read(&figures)?,
        false => Report::new(machine),
    };
    report
        .left_out
        .retain(|line| !line.starts_with(&format!("{id}: ")));
    report.add(section);
    let page = Path::new(&keep).join("index.html");
    report.write(&figures, &page)?;
    println!("\nkept: {} and {}", figures.display(), page.display());
    Ok(())
}

/// Writes the page of a run that was kept, after a change of how it looks.
fn page(flags: &mut Flags) -> Outcome {
    let keep: String = flags.value("--keep", String::new())?;
    flags.finish()?;
    let folder = Path::new(&keep);
    let report = Report::read(&folder.join("figures.json"))?;
    let page = folder.join("index.html");
    // The figures stay as they were written.
    std::fs::write(&page, report.page()).map_err(|error| format!("{}: {error}", page.display()))
}

/// All experiments. What cannot be measured here is named in the report and stops nothing.
fn all(bench: &Bench, keep: &str) -> Outcome {
    let mut report = Report::new(Machine::here(&bench.weir, &bench.nginx));
    let (figures, page) = match keep {
        "" => (
            Path::new("benches/runs")
                .join(&report.machine.date)
                .join("figures.json"),
            PathBuf::from("benches/report/index.html"),
        ),
        folder => (
            Path::new(folder).join("figures.json"),
            Path::new(folder).join("index.html"),
        ),
    };
    for (id, what, experiment) in EXPERIMENTS {
        println!("\n== {id}: {what}");
        match timed(id, bench, &mut Flags::new(std::iter::empty()), *experiment) {
            Ok(section) => report.add(section),
            Err(why) => {
                println!("left out: {why}");
                report.left_out.push(format!("{id}: {why}"));
            }
        }
        // After each, so that a run that is ended early has kept what it had.
        report.write(&figures, &page)?;
    }
    println!("\nkept: {} and {}", figures.display(), page.display());
    Ok(())
}

fn timed(id: &str, bench: &Bench, flags: &mut Flags, run: Experiment) -> Result<Section, String> {
    let (before, began) = (load_average(), Instant::now());
    let mut section = run(bench, flags)?;
    section.id = id.to_owned();
    section.how = format!("{} TCP {}.", section.how, congestion_control());
    section.load = (before, load_average());
    section.seconds = began.elapsed().as_secs_f64();
    Ok(section)
}

/// A folder for what experiments write: where Cargo builds, or without sources where the system keeps what is passing.
pub(crate) fn scratch() -> PathBuf {
    match Path::new("Cargo.toml").is_file() {
        true => shell::target(),
        false => std::env::temp_dir(),
    }
}
