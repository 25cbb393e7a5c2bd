//! `connections`: are connections kept, and how do they spread (SCORE rows P2, R1 to R4)?
//!
//! The clients are our own, since the question is not how fast answers come but whether each came,
//! and on which socket. Each row starts its servers itself, in the background with a pid file, as an
//! operator would.

mod clients;
mod rows;
pub(crate) mod site;

use std::path::{Path, PathBuf};
use std::time::Duration;

use xtask::flags::Flags;
use xtask::{packages, shell};

use crate::Bench;
use crate::report::{Plot, Section, Table};
use site::{Kind, Program};
pub(crate) use site::{kill, wait};

pub(crate) const FLAGS: &str = "\
  --without A,B    leave out weir, nginx, haproxy, or weir-groups: Weir with two worker groups, in R1 and R3
  --stalling PATH  a Weir with the feature debug-stall, for R2 (default: builds one; without sources, R2 is left out)
  --times N        reloads (30); a third of it upgrades and crashes";

/// What a run is made of.
pub(crate) struct Plan {
    pub(crate) programs: Vec<Program>,
    pub(crate) times: u32,
    pub(crate) seconds: u32,
}

impl Plan {
    fn with(&self, more: &[Program]) -> Plan {
        Plan {
            programs: [&self.programs[..], more].concat(),
            ..*self
        }
    }
}

/// What a row found.
type Found = (Vec<Table>, Vec<Plot>);

type Row = fn(&Plan) -> Result<Found, String>;

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let without: String = flags.value("--without", String::new())?;
    let stalling: String = flags.value("--stalling", String::new())?;
    let times = flags.value("--times", 30)?;
    flags.finish()?;
    packages::need(&[packages::NGINX, packages::WRK])?;
    packages::want(&[packages::HAPROXY]);
    let all = [
        ("weir", Kind::Weir, bench.weir.clone(), 0),
        ("nginx", Kind::Nginx, bench.nginx.clone(), 0),
        ("HAProxy", Kind::Haproxy, bench.haproxy.clone(), 0),
        ("weir-groups", Kind::Weir, bench.weir.clone(), 2),
    ];
    let is_left_out = |name: &str| {
        without
            .split(',')
            .any(|word| word.eq_ignore_ascii_case(name))
    };
    let programs = all
        .into_iter()
        .filter(|(name, _, binary, _)| !is_left_out(name) && binary.is_file());
    let programs = programs.map(|(name, kind, binary, groups)| Program {
        name,
        kind,
        binary,
        groups,
    });
    let (grouped, programs): (Vec<Program>, Vec<Program>) =
        programs.partition(|program| program.groups > 0);
    let mut plan = Plan {
        programs,
        times,
        seconds: bench.seconds,
    };
    let rows: [(&str, Row); 5] = [
        ("P2", rows::sharding),
        ("R1", rows::reloads),
        ("R3", rows::upgrades),
        ("R4", rows::crashes),
        ("R2", rows::stalls),
    ];
    let mut section = Section {
        title: "Connections: how they spread, and whether they are kept".to_owned(),
        how: format!(
            "R1: {times} reloads under 20 clients that keep their connection (10 GET, 10 POST) and 10 that open one for each request. R3, R4: the same load, \
             upgrades of the binary and kill -9 of the worker. R2: one of two loops stuck for 2 s while 200 clients come. P2: 4 workers or loops, 200 clients."
        ),
        ..Section::default()
    };
    for (name, row) in rows {
        if name == "R2" {
            let ours = plan.programs.iter_mut().find(|one| one.kind == Kind::Weir);
            if let Some(ours) = ours.filter(|_| bench.wants(name)) {
                ours.binary = stalling_weir(&stalling, &bench.weir)?;
            }
        }
        if bench.wants(name) {
            // What has to hold for two worker groups, too.
            let more: &[Program] = match name {
                "R1" | "R3" => &grouped,
                _ => &[],
            };
            let (tables, plots) = row(&plan.with(more))?;
            section.tables.extend(tables);
            section.plots.extend(plots);
        }
    }
    Ok(section)
}

/// A Weir in which a location may block its loop; without one and without sources, the ordinary one.
fn stalling_weir(named: &str, ordinary: &Path) -> Result<PathBuf, String> {
    if !named.is_empty() {
        return Ok(named.into());
    }
    if !Path::new("Cargo.toml").is_file() {
        return Ok(ordinary.to_owned());
    }
    // In a folder of its own: the ordinary binary must stay what it is.
    let folder = shell::target().join("debug-stall");
    let mut build = shell::cargo();
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "weir",
        "--features",
        "debug-stall",
        "--target-dir",
    ]);
    shell::run(build.arg(&folder), Duration::from_secs(30 * 60))?;
    Ok(folder.join("release/weir"))
}
