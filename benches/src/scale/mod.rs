//! `scale`: what many servers cost in a configuration, many connections in memory, and many patterns and a file that is
//! compressed in CPU time per request, compared with nginx and HAProxy.
//!
//! Each size has servers of its own, which start, are measured and end. Times are shown, and none is asserted.

pub(crate) mod client_crowd;
pub(crate) mod client_socket;
mod connections;
mod memory;
mod origin;
mod repeated_work;
mod servers;

use std::collections::BTreeMap;
use std::path::PathBuf;

use xtask::flags::Flags;

use crate::Bench;
use crate::report::{Cell, Goal, Plot, Row, Section, Table};

pub(crate) const FLAGS: &str = "\
  --oracle PATH      nginx to compare with, in place of --nginx; `none` leaves it out
  --servers A,B      sizes of configurations (10,100,1000,10000); 0: none
  --tls-servers N    servers with a certificate file each (3000)
  --connections A,B  how many connections (1000,10000,50000); 0: none
  --patterns A,B     sizes of lists of patterns (1,10,100,1000); 0: none, and no compressed file either
  --kinds A,B        only these connections: silent idle idle-twice tls tls-h2 upload upload-streamed
                     reader reader-copied reader-proxied reader-unbuffered reader-cached
  --leave N          seconds between the last connection's end and the last look at memory (15)";

/// A server program.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) kind: ProgramKind,
    pub(crate) binary: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Weir,
    Nginx,
    Haproxy,
}

/// One figure of one program at one size.
pub(crate) struct Figure {
    /// What was measured; figures of one name make a table and a picture.
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) size: usize,
    pub(crate) program: &'static str,
    pub(crate) value: f64,
}

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let oracle: PathBuf = flags.value("--oracle", bench.nginx.clone())?;
    let server_counts = sizes(flags, "--servers", "10,100,1000,10000")?;
    let tls_servers: usize = flags.value("--tls-servers", 3000)?;
    let connection_counts = sizes(flags, "--connections", "1000,10000,50000")?;
    let pattern_counts = sizes(flags, "--patterns", "1,10,100,1000")?;
    let kinds: String = flags.value("--kinds", String::new())?;
    let leave = flags.value("--leave", 15)?;
    flags.finish()?;
    let contenders = [
        ("nginx", ProgramKind::Nginx, oracle),
        ("weir", ProgramKind::Weir, bench.weir.clone()),
        ("HAProxy", ProgramKind::Haproxy, bench.haproxy.clone()),
    ];
    let contenders: Vec<Contender> = contenders
        .into_iter()
        .filter(|(_, _, binary)| binary.is_file())
        .map(|(name, kind, binary)| Contender { name, kind, binary })
        .collect();
    let mut figures = Vec::new();
    for size in server_counts {
        servers::measure(&contenders, size, servers::Encryption::Off, &mut figures)?;
    }
    if tls_servers > 0 {
        servers::measure(
            &contenders,
            tls_servers,
            servers::Encryption::On,
            &mut figures,
        )?;
    }
    for size in connection_counts {
        connections::measure(&contenders, size, &kinds, leave, &mut figures)?;
    }
    if !pattern_counts.is_empty() {
        repeated_work::measure(&contenders, &pattern_counts, bench.rounds, &mut figures)?;
    }
    Ok(section(&contenders, figures))
}

/// Numbers separated by commas, without zeros.
fn sizes(flags: &mut Flags, name: &str, default: &str) -> Result<Vec<usize>, String> {
    let text: String = flags.value(name, default.to_owned())?;
    let numbers: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
    let mut numbers = numbers.map_err(|_| format!("{name} cannot be {text:?}"))?;
    numbers.retain(|size| *size > 0);
    Ok(numbers)
}

/// A table for each figure, with a row for each size, and a picture where there are several sizes.
fn section(contenders: &[Contender], figures: Vec<Figure>) -> Section {
    let names: Vec<String> = contenders.iter().map(|one| one.name.to_owned()).collect();
    let mut tables: Vec<Table> = Vec::new();
    let mut curves: Vec<BTreeMap<String, Vec<(f64, f64)>>> = Vec::new();
    for figure in figures {
        let at = tables.iter().position(|table| table.title == figure.name);
        let at = at.unwrap_or_else(|| {
            let names = names.clone();
            tables.push(Table::beside_the_first(&figure.name, figure.unit, names));
            curves.push(BTreeMap::new());
            tables.len() - 1
        });
        let size = figure.size.to_string();
        let rows = &mut tables[at].rows;
        if rows.last().is_none_or(|row| row.name != size) {
            rows.push(Row {
                name: size,
                goal: goal_of(&figure),
                cells: vec![Cell::default(); names.len()],
                ..Row::default()
            });
        }
        let column = names.iter().position(|name| name == figure.program);
        if let (Some(row), Some(column)) = (rows.last_mut(), column) {
            row.cells[column] = Cell::one(figure.value);
        }
        let curve = curves[at].entry(figure.program.to_owned()).or_default();
        curve.push((figure.size as f64, figure.value));
    }
    let plots = tables.iter().zip(curves).filter_map(|(table, curves)| {
        let is_growth = curves.values().any(|points| points.len() > 1);
        is_growth.then(|| Plot::Growth {
            title: table.title.clone(),
            unit: table.unit.clone(),
            curves,
        })
    });
    Section {
        title: "Many servers, connections and patterns".to_owned(),
        how: "One worker or loop; of connections one for each 16,000, if a process may have 20,000 descriptors. Servers have 20 locations each. Memory of connections is the growth of Private_Dirty of all \
              processes, divided by their number; of processes, PSS. Readers and uploads do nothing after their request, \
              on sockets with Ethernet's segment size and a receive buffer of 4 KB. CPU time per request is the least of all \
              rounds, with the programs in turn; of patterns none matches."
            .to_owned(),
        plots: plots.collect(),
        tables,
        ..Section::default()
    }
}

/// What Weir is to reach.
fn goal_of(figure: &Figure) -> Option<Goal> {
    let most = match (figure.name.as_str(), figure.size) {
        ("-t: CPU time", 1000) => 0.25,
        ("-t: CPU time", 10_000) => 2.5,
        ("-t: most memory", 1000) => 60.0,
        ("-t: most memory", 10_000) => 500.0,
        ("TLS servers, -t: CPU time", 3000) => 1.0,
        ("TLS servers, start to first answer", 3000) => 1.5,
        (repeated_work::COMPRESSED_NAME, _) => 40.0,
        ("silent", _) => 1024.0,
        ("idle" | "idle-twice", _) => 1536.0,
        ("tls-h2", _) => 12.0 * 1024.0,
        ("upload" | "upload-streamed", _) => 10.0 * 1024.0,
        ("reader", _) => 4.0 * 1024.0,
        (name, _) if name.ends_with("held after the end") => 5.0,
        _ => return None,
    };
    Some(Goal::AtMost(most))
}
