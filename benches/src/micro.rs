//! `micro`: CPU time per request beside nginx and h2o (SCORE rows P4, P5, P7, P9). One loop pinned to one core, the load on
//! another, the contenders in turn within each round.
//!
//! The figure is the server's CPU time, since the load generator shares the machine; where a file is large enough to
//! fill the wire it is what comes through in a second, too.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{packages, shell};

use crate::Bench;
use crate::h2o::{self, H2O};
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, RequestCost, Server, both_times, names};
use crate::wrk::Load;

/// How clients come.
#[derive(Clone, Copy, PartialEq)]
enum Clients {
    /// HTTP/1.1 on connections that stay.
    Kept,
    /// A new connection for each request.
    New,
    /// The same, and all but the first contender wait with `accept` until the request is there.
    Deferred,
    /// The same with TLS, and a full handshake for each new connection.
    TlsKept,
    TlsNew,
    /// HTTP/2 with TLS.
    Http2,
}

impl Clients {
    fn speak_tls(self) -> bool {
        matches!(self, Self::TlsKept | Self::TlsNew | Self::Http2)
    }
}

/// A measurement: the scoreboard's row, the name, the path, connections.
struct Measured {
    score: &'static str,
    name: &'static str,
    path: &'static str,
    connections: u32,
    clients: Clients,
    /// Of the ratio of CPU time to nginx's with `sendfile`.
    goal: Option<f64>,
}

const fn row(
    score: &'static str,
    name: &'static str,
    path: &'static str,
    connections: u32,
    clients: Clients,
    goal: Option<f64>,
) -> Measured {
    Measured {
        score,
        name,
        path,
        connections,
        clients,
        goal,
    }
}

const ROWS: &[Measured] = &[
    row("P4", "return-64", "/return", 64, Clients::Kept, Some(0.85)),
    row(
        "P4",
        "return-512",
        "/return",
        512,
        Clients::Kept,
        Some(0.85),
    ),
    row("P5", "1k", "/1k", 64, Clients::Kept, Some(0.58)),
    row("P5", "10k", "/10k", 64, Clients::Kept, Some(0.70)),
    row("P5", "100k", "/100k", 64, Clients::Kept, None),
    row("P5", "4m", "/4m", 16, Clients::Kept, None),
    row("", "1k-headers", "/headers/1k", 64, Clients::Kept, None),
    row("", "1k-try-files", "/fallback/x", 64, Clients::Kept, None),
    row("", "1k-limits", "/limits/1k", 64, Clients::Kept, None),
    row("", "1k-auth-request", "/auth/1k", 64, Clients::Kept, None),
    row("P7", "close", "/return", 64, Clients::New, Some(0.95)),
    row(
        "P7",
        "close-deferred",
        "/return",
        64,
        Clients::Deferred,
        Some(0.85),
    ),
    row("P7", "close-1k", "/1k", 64, Clients::New, None),
    row(
        "P9",
        "tls-return",
        "/return",
        64,
        Clients::TlsKept,
        Some(0.80),
    ),
    row("P9", "tls-1k", "/1k", 64, Clients::TlsKept, Some(0.80)),
    row("P9", "tls-handshake", "/1k", 64, Clients::TlsNew, Some(1.0)),
    row("P9", "h2-1k", "/1k", 64, Clients::Http2, Some(0.80)),
    row("P9", "h2-4m", "/4m", 16, Clients::Http2, None),
];

/// User time, as a part of nginx's.
const USER_GOALS: &[(&str, f64)] = &[("return-64", 0.75), ("1k", 0.70), ("close", 1.0)];

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
    limit_req_zone $binary_remote_addr zone=rates:1m rate=1000000r/s;
    limit_conn_zone $binary_remote_addr zone=connections:1m;
    %%DIRECTIVES%%
    server {
        listen 127.0.0.1:%%PORT%% backlog=4096 %%LISTEN%%;
        root html;
        location = /return { return 200 \"%%TEXT%%\"; }
        location /headers/ {
            alias html/;
            add_header X-Scheme $scheme;
            add_header X-Server $host:$server_port;
            add_header X-Method $request_method;
            add_header X-Client $remote_addr;
            add_header X-Path $uri;
        }
        location /fallback/ { try_files $uri $uri/index.html /1k; }
        location /limits/ {
            alias html/;
            limit_req zone=rates burst=100000 nodelay;
            limit_conn connections 10000;
        }
        location /auth/ { alias html/; auth_request /allowed; }
        location = /allowed { internal; return 204; }
    }
}
";

/// Rows that are large enough for what comes through in a second to be a figure.
const LARGE: [&str; 2] = ["100k", "4m"];

const WEIR_READ: &str = "weir read";

/// The mode without `sendfile` that nginx is fastest in.
const READ: &str = "sendfile off; output_buffers 2 64k;";

const TLS: &str = "ssl_certificate cert.pem; ssl_certificate_key key.pem;";

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;
    packages::want(&[packages::OPENSSL, packages::H2LOAD, packages::H2O]);
    let folder = Folder::new("bench")?;
    for (name, length) in FILES {
        fs::write(folder.path.join("html").join(name), vec![b'x'; *length])
            .map_err(|error| error.to_string())?;
    }
    let mut contenders = vec![
        Contender::new("nginx sendfile", &bench.nginx, "sendfile on;"),
        Contender::new("nginx read", &bench.nginx, READ),
        Contender::new("weir", &bench.weir, "sendfile on;"),
        Contender::new(WEIR_READ, &bench.weir, READ),
    ];
    if shell::is_installed(H2O) {
        contenders.push(Contender::new(H2O, Path::new(H2O), ""));
    }
    let mut tables = MicroTables::new(&contenders);
    let has_certificate = certificate(&folder.path);
    for measured in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let needs_tls = measured.clients.speak_tls();
        let is_possible = match measured.clients {
            Clients::Http2 => shell::is_installed("h2load") && has_certificate,
            _ => has_certificate || !needs_tls,
        };
        if !is_possible {
            println!(
                "left out: {}: needs openssl, and h2load for HTTP/2",
                measured.name
            );
            continue;
        }
        let (costs, rates) = rounds(bench, measured, &contenders, &folder.path)?;
        tables.add(measured, &costs, rates);
    }
    Ok(Section {
        title: "What a request costs".to_owned(),
        how: format!(
            "One loop on core {}, the load on core {}, {} s a measurement, {} rounds. return: 128 bytes; h2o has nothing like it. close: a new \
             connection for each request; deferred: with this parameter of listen, but for the first column. \
             tls-handshake: the same with a full handshake (ECDSA P-256). h2: HTTP/2 with TLS, by h2load.",
            bench.server_cpu, bench.load_cpu, bench.seconds, bench.rounds
        ),
        tables: vec![tables.cpu, tables.user, tables.rate],
        ..Section::default()
    })
}

/// The tables of the section.
struct MicroTables {
    cpu: Table,
    user: Table,
    rate: Table,
}

impl MicroTables {
    fn new(contenders: &[Contender]) -> MicroTables {
        let table =
            |title: &str, unit: &str| Table::beside_the_first(title, unit, names(contenders));
        let mut rate = table(
            "Files through the wire",
            "requests/s by one client core, ratio to the better mode of nginx",
        );
        let better = ["nginx, better of both", "weir, better of both"].map(str::to_owned);
        rate.contenders.splice(0..0, better);
        MicroTables {
            cpu: table(
                "CPU time per request",
                "µs of the server, ratio to nginx with sendfile",
            ),
            user: table(
                "User time per request",
                "µs of the server outside of the kernel, ratio to nginx with sendfile",
            ),
            rate,
        }
    }

    /// Adds the rows of a measurement.
    fn add(&mut self, measured: &Measured, costs: &[Vec<RequestCost>], rates: Vec<Vec<f64>>) {
        let (cpus, users): (Vec<_>, Vec<_>) = costs.iter().map(|costs| both_times(costs)).unzip();
        let row = |score: &str, goal, samples: Vec<Vec<f64>>| Row {
            score: score.to_owned(),
            name: measured.name.to_owned(),
            goal,
            cells: samples.into_iter().map(Cell::of).collect(),
        };
        let cpu_goal = measured.goal.map(Goal::RatioAtMost);
        self.cpu.rows.push(row(measured.score, cpu_goal, cpus));
        let user_goal = USER_GOALS.iter().find(|(name, _)| *name == measured.name);
        let score = user_goal.map_or("", |_| "N8");
        let user_goal = user_goal.map(|(_, most)| Goal::RatioAtMost(*most));
        self.user.rows.push(row(score, user_goal, users));
        if LARGE.contains(&measured.name) {
            let better = |one: usize| -> Vec<f64> {
                let both = rates[one].iter().zip(&rates[one + 1]);
                both.map(|(one, other)| one.max(*other)).collect()
            };
            let both = [better(0), better(2)];
            let goal = Some(Goal::RatioAtLeast(1.0));
            let samples = both.into_iter().chain(rates).collect();
            self.rate.rows.push(row(measured.score, goal, samples));
        }
    }
}

/// A certificate for the servers; without the tool there is none.
fn certificate(folder: &Path) -> bool {
    let mut command = Command::new("openssl");
    command.current_dir(folder).args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]);
    shell::succeeds(&mut command)
}

/// For each contender the samples of all rounds.
type Samples<T> = Vec<Vec<T>>;

/// The cost of a request, and requests per second.
fn rounds(
    bench: &Bench,
    measured: &Measured,
    contenders: &[Contender],
    folder: &Path,
) -> Result<(Samples<RequestCost>, Samples<f64>), String> {
    let mut costs = vec![Vec::new(); contenders.len()];
    let mut rates = vec![Vec::new(); contenders.len()];
    for _ in 0..bench.rounds {
        for (at, contender) in contenders.iter().enumerate() {
            let has_row = match contender.name.as_str() {
                H2O => FILES.iter().any(|(name, _)| measured.path[1..] == **name),
                WEIR_READ => LARGE.contains(&measured.name),
                _ => true,
            };
            if !has_row {
                continue;
            }
            let server = start(bench, measured, contender, folder, at == 0)?;
            let (cost, rate) = once(bench, measured, &server)?;
            costs[at].push(cost);
            rates[at].push(rate);
        }
    }
    Ok((costs, rates))
}

/// One measurement: the cost of a request, and requests per second.
fn once(bench: &Bench, measured: &Measured, server: &Server) -> Result<(RequestCost, f64), String> {
    ask(bench, measured, server, 1)?;
    let before = server.used_time();
    let (requests, rate) = ask(bench, measured, server, bench.seconds)?;
    Ok((server.used_time().per_request(before, requests), rate))
}

fn start(
    bench: &Bench,
    measured: &Measured,
    contender: &Contender,
    folder: &Path,
    is_first: bool,
) -> Result<Server, String> {
    if contender.name == H2O {
        return h2o::start(folder, &bench.server_cpu, measured.clients.speak_tls());
    }
    let placement = Placement {
        cpus: Some(bench.server_cpu.clone()),
        groups: Vec::new(),
    };
    let listen = match measured.clients {
        Clients::Deferred if !is_first => "deferred",
        Clients::Kept | Clients::New | Clients::Deferred => "",
        Clients::TlsKept | Clients::TlsNew => "ssl",
        // nginx before 1.25 knows no other way to say it.
        Clients::Http2 => "ssl http2",
    };
    let mut contender = contender.clone();
    if measured.clients.speak_tls() {
        contender.directives.push_str(TLS);
    }
    let configuration = CONFIGURATION
        .replace("%%TEXT%%", &"x".repeat(128))
        .replace("%%LISTEN%%", listen);
    Server::start(&contender, folder, &configuration, &placement)
}

/// Requests that were answered, and how many in a second.
fn ask(
    bench: &Bench,
    measured: &Measured,
    server: &Server,
    seconds: u32,
) -> Result<(f64, f64), String> {
    let scheme = match measured.clients.speak_tls() {
        true => "https",
        false => "http",
    };
    let url = format!("{scheme}://127.0.0.1:{}{}", server.port, measured.path);
    if measured.clients == Clients::Http2 {
        return h2load(bench, measured.connections, &url, seconds);
    }
    let new_connection_each = matches!(
        measured.clients,
        Clients::New | Clients::Deferred | Clients::TlsNew
    );
    let load = Load {
        cpus: Some(bench.load_cpu.clone()),
        connections: measured.connections,
        seconds,
        url,
        new_connection_each,
        ..Load::default()
    };
    let report = load.run()?;
    // wrk counts the end of a connection that the server closes as a read error.
    if report.requests == 0.0 || (report.failures > 0.0 && !new_connection_each) {
        return Err(format!(
            "{}: {} requests, {} failures",
            measured.name, report.requests, report.failures
        ));
    }
    Ok((report.requests, report.per_second))
}

fn h2load(bench: &Bench, connections: u32, url: &str, seconds: u32) -> Result<(f64, f64), String> {
    let mut command = Command::new("taskset");
    command.args([
        "-c",
        &bench.load_cpu,
        "h2load",
        "-c",
        &connections.to_string(),
        "-m",
        "4",
    ]);
    command.args(["-D", &seconds.to_string(), url]);
    let text = shell::output(&mut command, Duration::from_secs(u64::from(seconds) + 60))?;
    h2load_report(&text).ok_or_else(|| format!("h2load: {text}"))
}

fn h2load_report(text: &str) -> Option<(f64, f64)> {
    let rate = text.lines().find_map(|line| {
        let (_, rest) = line.strip_prefix("finished in")?.split_once(", ")?;
        rest.split_whitespace().next()?.parse().ok()
    })?;
    let counts = text
        .lines()
        .find_map(|line| line.strip_prefix("requests: "))?;
    let count = |what: &str| {
        let part = counts.split(", ").find(|part| part.ends_with(what))?;
        part.split_whitespace().next()?.parse::<f64>().ok()
    };
    let is_good = count("failed")? == 0.0 && count("errored")? == 0.0;
    (is_good && count("succeeded")? > 0.0).then_some((count("succeeded")?, rate))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_report_of_h2load_is_read() {
        let text = "finished in 1.00s, 5000.00 req/s, 1.00MB/s\nrequests: 5064 total, 5064 started, 5000 done, 5000 succeeded, 0 failed, 0 errored, 0 timeout\n";
        assert_eq!(super::h2load_report(text), Some((5_000.0, 5_000.0)));
        assert_eq!(
            super::h2load_report(&text.replace("0 failed", "3 failed")),
            None
        );
    }
}
