//! `http3-path`: goodput over a long path that loses packets, HTTP/3 beside HTTP/2 over the same path, for Weir and nginx.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use xtask::flags::Flags;
use xtask::{packages, shell};

use super::client::{QuicClients, Work};
use super::relay::{HERE, PathConditions, PathRelay, SERVER};
use super::{prepare, serve};
use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, names};

/// Set in the namespace, where the experiment runs once more.
const INSIDE: &str = "--inside";

/// No download takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// A file, and its length.
const FILE: (&str, u64) = ("/10m", 10_000_000);

const fn path(delay_ms: u64, loss: f64, rate: u64) -> PathConditions {
    PathConditions {
        delay: Duration::from_millis(delay_ms),
        loss,
        rate,
        reordering: 0.0,
        duplication: 0.0,
        corruption: 0.0,
        bleaches_ecn: false,
        seed: 0,
    }
}

/// The paths. `delay` is of one direction.
const PATHS: &[(&str, PathConditions)] = &[
    ("100ms-0.1%", path(50, 0.001, 50_000_000)),
    ("100ms", path(50, 0.0, 50_000_000)),
    ("20ms-1%", path(10, 0.01, 50_000_000)),
    (
        "100ms-reordering",
        PathConditions {
            reordering: 0.01,
            ..path(50, 0.0, 50_000_000)
        },
    ),
];

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let is_inside = flags.has(INSIDE);
    let control: String = flags.value("--congestion", "cubic".to_owned())?;
    if !is_inside {
        return apart(bench, &control, flags);
    }
    flags.finish()?;
    let folder = prepare()?;
    let quic = match control.as_str() {
        "bbr" => "quic_congestion_control bbr;",
        _ => "",
    };
    let contenders = [
        Contender::new("nginx", &bench.nginx, "http2 on; quic_gso on;"),
        Contender::new("weir", &bench.weir, &format!("http2 on; {quic}")),
    ];
    let mut table = Table {
        title: "Goodput over a long path".to_owned(),
        unit: "Mbit/s of a file of 10 MB on a new connection".to_owned(),
        contenders: names(&contenders),
        ..Table::default()
    };
    let mut part = Table {
        title: "HTTP/3 as part of HTTP/2".to_owned(),
        unit: "ratio of the two over the same path".to_owned(),
        contenders: names(&contenders),
        ..Table::default()
    };
    for (name, conditions) in PATHS.iter().filter(|(name, _)| bench.wants(name)) {
        let mut rates = [[const { Vec::new() }; 2], [const { Vec::new() }; 2]];
        for round in 0..bench.rounds {
            let conditions = PathConditions {
                seed: round as u64,
                ..*conditions
            };
            for (index, contender) in contenders.iter().enumerate() {
                let both = goodput(bench, contender, &folder, conditions)?;
                println!("{name}: {}: h2 {:.2}, h3 {:.2} Mbit/s", contender.name, both[0], both[1]);
                rates[index][0].push(both[0]);
                rates[index][1].push(both[1]);
            }
        }
        for (at, protocol) in ["HTTP/2", "HTTP/3"].iter().enumerate() {
            let cells = rates.iter().map(|both| Cell::of(both[at].clone()));
            table.rows.push(Row {
                name: format!("{name}, {protocol}"),
                cells: cells.collect(),
                ..Row::default()
            });
        }
        let cells = rates.iter().map(|both| {
            let [two, three] = [0, 1].map(|at| Cell::of(both[at].clone()).middle());
            Cell::one(three.unwrap_or(f64::NAN) / two.unwrap_or(f64::NAN))
        });
        part.rows.push(Row {
            name: (*name).to_owned(),
            goal: Some(Goal::AtLeast(0.95)),
            cells: cells.collect(),
            ..Row::default()
        });
    }
    Ok(Section {
        title: "HTTP/3 over long paths".to_owned(),
        how: format!(
            "Packets pass a relay behind a TUN device: the round trip and the loss in each direction are in the name, the rate is 50 \
             Mbit/s, the queue 625 KB. Both protocols with {control}. HTTP/2 by curl, HTTP/3 by quinn-proto. A ratio is of the \
             medians of {} rounds; the same packets are lost in all of them for all.",
            bench.rounds
        ),
        tables: vec![part, table],
        ..Section::default()
    })
}

/// Runs it in a network namespace of its own, where `control` is TCP's congestion control. The figures are shown there.
fn apart(bench: &Bench, control: &str, flags: &mut Flags) -> Result<Section, String> {
    const SET_UP: &str =
        "ip link set lo up && sysctl -qw net.ipv4.tcp_congestion_control=$0 && exec \"$@\"";
    flags.finish()?;
    packages::need(&[packages::SOCAT, packages::CURL])?;
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let figures = crate::scratch().join(format!("http3-path-{}", std::process::id()));
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", SET_UP, control]).arg(this);
    command.args(["http3-path", INSIDE, "--congestion", control]);
    command.arg("--weir").arg(&bench.weir);
    command.arg("--nginx").arg(&bench.nginx);
    command.arg("--keep").arg(&figures);
    command.args(["--rounds", &bench.rounds.to_string()]);
    command.args(["--cpus", &format!("{},{}", bench.server_cpu, bench.load_cpu)]);
    if !bench.rows.is_empty() {
        command.args(["--rows", &bench.rows]);
    }
    let ended = command.status().map_err(|error| format!("unshare: {error}"))?;
    if !ended.success() {
        return Err(format!("in a network namespace: {ended}"));
    }
    let report = crate::report::Report::read(&figures.join("figures.json"))?;
    // It lies in the target folder if it stays.
    let _ = std::fs::remove_dir_all(&figures);
    report.sections.into_iter().next().ok_or("no figures came".to_owned())
}

/// Megabits per second over HTTP/2 and HTTP/3.
fn goodput(
    bench: &Bench,
    contender: &Contender,
    folder: &Folder,
    conditions: PathConditions,
) -> Result<[f64; 2], String> {
    let server = serve(bench, contender, folder)?;
    let megabits = |took: f64| FILE.1 as f64 * 8.0 / 1e6 / took;
    let to = std::net::Ipv4Addr::from(SERVER);
    let two = {
        let _relay = PathRelay::start(&folder.path, conditions)?;
        let url = format!("https://{to}:{}{}", server.port, FILE.0);
        let mut command = Command::new("curl");
        command.args(["--http2", "--insecure", "--silent", "--show-error", "--fail"]);
        command.args(["--output", "/dev/null"]);
        command.args(["--write-out", "%{http_version} %{size_download} %{time_total}", &url]);
        let text = shell::output(&mut command, PATIENCE)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        match words.as_slice() {
            ["2", size, took] if *size == FILE.1.to_string() => {
                megabits(took.parse().map_err(|_| format!("curl: {text}"))?)
            }
            _ => return Err(format!("curl: {text}")),
        }
    };
    let relay = PathRelay::start(&folder.path, conditions)?;
    let work = Work {
        path: FILE.0.to_owned(),
        length: FILE.1,
        streams: 1,
    };
    let began = Instant::now();
    let mut clients = QuicClients::new(SocketAddr::from((SERVER, server.port)), work)?;
    clients.add(1, HERE)?;
    let is_done = |clients: &QuicClients| clients.totals.responses > 0;
    if !clients.run_until(PATIENCE, is_done)? {
        let (passed, lost) = relay.counts();
        return Err(format!(
            "{}: no response over HTTP/3: {} ({passed} packets passed, {lost} lost)",
            contender.name,
            clients.lost().1
        ));
    }
    Ok([two, megabits(began.elapsed().as_secs_f64())])
}
