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
use crate::server::{Contender, Folder, Server, names};

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
        dark: Duration::ZERO,
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

/// A download under conditions of which each alone must not stop it: the quic-interop-runner has such a list.
struct PathCase {
    name: &'static str,
    conditions: PathConditions,
    /// The client's address changes as often.
    moves_every: Option<Duration>,
}

const fn case(name: &'static str, conditions: PathConditions) -> PathCase {
    PathCase {
        name,
        conditions,
        moves_every: None,
    }
}

const CASES: &[PathCase] = &[
    case("longrtt", path(750, 0.0, 0)),
    case("transferloss", path(15, 0.02, 0)),
    case("handshakeloss", path(15, 0.3, 0)),
    case(
        "transfercorruption",
        PathConditions {
            corruption: 0.02,
            ..path(15, 0.0, 0)
        },
    ),
    case(
        "handshakecorruption",
        PathConditions {
            corruption: 0.3,
            ..path(15, 0.0, 0)
        },
    ),
    case(
        "blackhole",
        PathConditions {
            dark: Duration::from_secs(2),
            ..path(15, 0.0, 5_000_000)
        },
    ),
    case(
        "duplicates",
        PathConditions {
            duplication: 0.1,
            reordering: 0.1,
            ..path(15, 0.0, 0)
        },
    ),
    case(
        "bleached-ecn",
        PathConditions {
            bleaches_ecn: true,
            ..path(15, 0.0, 0)
        },
    ),
    PathCase {
        name: "rebind-addr",
        conditions: path(15, 0.0, 10_000_000),
        moves_every: Some(Duration::from_millis(300)),
    },
];

/// The file of the cases. It is small: one of them loses a third of all packets.
const SMALL: (&str, u64) = ("/1m", 1_000_000);

/// Seconds that each case's download takes; no sample where it does not end.
fn cases(bench: &Bench, contenders: &[Contender], folder: &Folder) -> Result<Table, String> {
    let mut table = Table {
        title: "Downloads over bad paths".to_owned(),
        unit: "seconds of a file of 1 MB on a new connection over HTTP/3".to_owned(),
        contenders: names(contenders),
        ..Table::default()
    };
    for case in CASES.iter().filter(|case| bench.wants(case.name)) {
        let mut cells = Vec::new();
        for contender in contenders {
            let server = serve(bench, contender, folder)?;
            let relay = PathRelay::start(&folder.path, case.conditions)?;
            let ended = download(&server, &relay, SMALL, case.moves_every);
            println!("{}: {}: {ended:?}", case.name, contender.name);
            cells.push(match ended {
                Ok(took) => Cell::one(took),
                Err(why) => Cell::default().with(why),
            });
        }
        table.rows.push(Row {
            name: case.name.to_owned(),
            cells,
            ..Row::default()
        });
    }
    Ok(table)
}

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
                println!("{name}: {}: {both:.2?} Mbit/s", contender.name);
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
        how: how(bench, &control),
        tables: vec![part, table, cases(bench, &contenders, &folder)?],
        ..Section::default()
    })
}

/// What was done.
fn how(bench: &Bench, control: &str) -> String {
    format!(
        "Packets pass a relay behind a TUN device: the round trip and the loss in each direction are in the name, the rate is 50 \
             Mbit/s, the queue 625 KB. Both protocols with {control}. HTTP/2 by curl, HTTP/3 by quinn-proto. A ratio is of the \
             medians of {} rounds; the same packets are lost in all of them for all.",
        bench.rounds
    )
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
    command
        .args(["--net", "sh", "-c", SET_UP, control])
        .arg(this);
    command.args(["http3-path", INSIDE, "--congestion", control]);
    command.arg("--weir").arg(&bench.weir);
    command.arg("--nginx").arg(&bench.nginx);
    command.arg("--keep").arg(&figures);
    command.args(["--rounds", &bench.rounds.to_string()]);
    command.args([
        "--cpus",
        &format!("{},{}", bench.server_cpu, bench.load_cpu),
    ]);
    if !bench.rows.is_empty() {
        command.args(["--rows", &bench.rows]);
    }
    let ended = command
        .status()
        .map_err(|error| format!("unshare: {error}"))?;
    if !ended.success() {
        return Err(format!("in a network namespace: {ended}"));
    }
    let report = crate::report::Report::read(&figures.join("figures.json"))?;
    // It lies in the target folder if it stays.
    let _ = std::fs::remove_dir_all(&figures);
    report
        .sections
        .into_iter()
        .next()
        .ok_or("no figures came".to_owned())
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
        command.args([
            "--http2",
            "--insecure",
            "--silent",
            "--show-error",
            "--fail",
        ]);
        command.args(["--output", "/dev/null"]);
        command.args([
            "--write-out",
            "%{http_version} %{size_download} %{time_total}",
            &url,
        ]);
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
    let three = download(&server, &relay, FILE, None);
    let three = three.map_err(|why| format!("{}: {why}", contender.name))?;
    Ok([two, megabits(three)])
}

/// How long a download over HTTP/3 takes, in seconds.
fn download(
    server: &Server,
    relay: &PathRelay,
    (path, length): (&str, u64),
    moves_every: Option<Duration>,
) -> Result<f64, String> {
    let work = Work {
        path: path.to_owned(),
        length,
        streams: 1,
    };
    let began = Instant::now();
    let mut clients = QuicClients::new(SocketAddr::from((SERVER, server.port)), work)?;
    clients.add(1, HERE)?;
    let mut moved = began;
    let is_done = |clients: &QuicClients| {
        if moves_every.is_some_and(|every| moved.elapsed() > every) {
            relay.move_client();
            moved = Instant::now();
        }
        clients.totals.responses > 0 || clients.lost().0 > 0
    };
    clients.run_until(PATIENCE, is_done)?;
    let (passed, lost) = relay.counts();
    match clients.totals.responses {
        0 => Err(format!(
            "no response: {} ({passed} packets passed, {lost} lost)",
            clients.lost().1
        )),
        _ => Ok(began.elapsed().as_secs_f64()),
    }
}
