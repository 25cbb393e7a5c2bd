//! S4: what hostile clients of HTTP/2 do to everybody else: the times of a good client, and the server's memory.

mod attacks;

use std::fs;
use std::time::Duration;

use crate::Bench;
use crate::clients::visits;
use crate::report::{Cell, Goal, Row, Section, Table};
use crate::server::{Contender, Folder, Placement, Server, names};
use attacks::{ATTACKS, Attack};

const CONFIGURATION: &str = "
worker_processes 1;
events { worker_connections 4096; }
http {
    access_log off;
    %%DIRECTIVES%%
    server { listen 127.0.0.1:%%PORT%%; root html; }
}
";

/// The largest of what an attack asks for, in bytes.
const BIG: usize = 1 << 20;

/// What the worker may grow by, in MB.
const GROWTH: f64 = 64.0;

pub(crate) fn run(bench: &Bench, flags: &mut xtask::flags::Flags) -> Result<Section, String> {
    flags.finish()?;
    let folder = Folder::new("hostile")?;
    let file = |name: &str, size: usize| {
        let path = folder.path.join("html").join(name);
        fs::write(path, vec![b'x'; size]).map_err(|error| error.to_string())
    };
    file("big", BIG)?;
    file("small", 1024)?;
    let contenders = vec![
        Contender::new("nginx", &bench.nginx, "http2 on;"),
        Contender::new("weir", &bench.weir, "http2 on;"),
    ];
    let table = |title: &str, unit: &str| Table::beside_the_first(title, unit, names(&contenders));
    let mut times = table(
        "A good client while others attack",
        "p99 of a 1 KB file over HTTP/1.1, milliseconds",
    );
    let mut memory = table("Memory", "most of the worker, less what it had before, MB");
    for attack in ATTACKS.iter().filter(|attack| bench.wants(attack.name)) {
        let mut quiet = vec![Cell::default(); contenders.len()];
        let mut during = quiet.clone();
        let mut grown = quiet.clone();
        for _ in 0..bench.rounds {
            for (index, contender) in contenders.iter().enumerate() {
                let seen = measure(bench, contender, &folder, attack)?;
                quiet[index].samples.push(seen.quiet);
                during[index].samples.push(seen.during);
                during[index].note = format!("{} connections", seen.connections);
                grown[index].samples.push(seen.grown);
            }
        }
        let name = attack.name;
        times.rows.push(row(format!("{name}: before"), None, quiet));
        let most = times.rows.last().and_then(|row| row.cells.last()?.middle());
        let goal = most.map(|quiet| Goal::AtMost(2.0 * quiet));
        times.rows.push(row(name.to_owned(), goal, during));
        let goal = Some(Goal::AtMost(GROWTH));
        memory.rows.push(row(name.to_owned(), goal, grown));
    }
    Ok(Section {
        title: "Hostile HTTP/2 clients".to_owned(),
        how: format!(
            "One loop on core {}. Four clients attack without a pause for {} s, each with a new connection whenever the server \
             ends theirs; one good client asks again and again, before and meanwhile. Attackers and good client share what \
             the server leaves, and the attackers have of it what the good client does not want (SCHED_IDLE): on machines of \
             their own they would not be in its way. {} rounds, a new server for each.",
            bench.server_cpu, bench.seconds, bench.rounds
        ),
        tables: vec![times, memory],
        ..Section::default()
    })
}

fn row(name: String, goal: Option<Goal>, cells: Vec<Cell>) -> Row {
    Row {
        score: "S4".to_owned(),
        name,
        goal,
        cells,
    }
}

/// What one attack did to one server.
struct Seen {
    /// Milliseconds.
    quiet: f64,
    during: f64,
    /// Megabytes.
    grown: f64,
    connections: u32,
}

fn measure(
    bench: &Bench,
    contender: &Contender,
    folder: &Folder,
    attack: &Attack,
) -> Result<Seen, String> {
    let placement = Placement {
        cpus: Some(bench.server_cpu.clone()),
        groups: Vec::new(),
    };
    let server = Server::start(contender, &folder.path, CONFIGURATION, &placement)?;
    let time = Duration::from_secs(bench.seconds.into());
    let p99 = || {
        let visits = visits(server.port, "/small", 1, time);
        let mut took: Vec<f64> = visits
            .iter()
            .map(|visit| visit.took.as_secs_f64() * 1000.0)
            .collect();
        took.sort_by(f64::total_cmp);
        took.get(took.len() * 99 / 100).copied().unwrap_or(f64::NAN)
    };
    let quiet = p99();
    let before = memory(&server, "VmRSS:");
    let (during, connections) = std::thread::scope(|scope| {
        let attackers = scope.spawn(|| attack.run(server.port, time));
        let during = p99();
        (during, attackers.join().unwrap_or_default())
    });
    let grown = (memory(&server, "VmHWM:") - before).max(0.0);
    Ok(Seen {
        quiet,
        during,
        grown,
        connections,
    })
}

/// What the workers have in memory, or had at most, in MB.
fn memory(server: &Server, line: &str) -> f64 {
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let found = status.lines().find_map(|text| text.strip_prefix(line))?;
        let kilobytes: f64 = found.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kilobytes / 1024.0)
    };
    server.workers().into_iter().filter_map(of).sum()
}
