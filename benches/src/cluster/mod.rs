//! `cluster`: three Weirs in front of one origin. How often it is asked, what the loss of a member costs, how long purges
//! take, how exactly a limit is counted together, and what a Redis that is away, full or slow does to requests.
//!
//! The servers, the origin and the clients share the machine. A member has one loop.

mod fetch_rows;
mod instructions;
mod load;
mod nodes;
mod redis;
mod shared_rows;

use xtask::flags::Flags;
use xtask::packages;

use crate::Bench;
use crate::report::{Cell, Goal, Row, Section, Table};

pub(crate) const FLAGS: &str = "\
  --away SECONDS   how long a member is away, and stopped, while purges are written (20)";

/// A figure of the report.
pub(crate) struct ClusterFigure {
    unit: &'static str,
    name: String,
    goal: Option<Goal>,
    value: f64,
    note: String,
}

impl ClusterFigure {
    pub(crate) fn new(unit: &'static str, name: impl Into<String>, value: f64) -> ClusterFigure {
        ClusterFigure {
            unit,
            name: name.into(),
            goal: None,
            value,
            note: String::new(),
        }
    }

    pub(crate) fn at_most(mut self, goal: f64) -> ClusterFigure {
        self.goal = Some(Goal::AtMost(goal));
        self
    }

    pub(crate) fn at_least(mut self, goal: f64) -> ClusterFigure {
        self.goal = Some(Goal::AtLeast(goal));
        self
    }

    pub(crate) fn with(mut self, note: impl Into<String>) -> ClusterFigure {
        self.note = note.into();
        self
    }
}

type ClusterRow = fn(&Bench, u64) -> Result<Vec<ClusterFigure>, String>;

/// The rows by their names for `--rows`.
const ROWS: &[(&str, ClusterRow)] = &[
    ("cold", fetch_rows::cold),
    ("killed", fetch_rows::killed),
    ("stopped", fetch_rows::stopped),
    ("views", fetch_rows::views),
    ("join", fetch_rows::join),
    ("purge", shared_rows::purge),
    ("away", shared_rows::away),
    ("limit", shared_rows::limit),
    ("redis", shared_rows::redis),
    ("instructions", instructions::instructions),
];

pub(crate) fn run(bench: &Bench, flags: &mut Flags) -> Result<Section, String> {
    let away = flags.value("--away", 20)?;
    flags.finish()?;
    packages::need(&[packages::REDIS, packages::VALGRIND])?;
    let mut figures: Vec<ClusterFigure> = Vec::new();
    for (name, row) in ROWS.iter().filter(|(name, _)| bench.wants(name)) {
        let found = row(bench, away).map_err(|why| format!("{name}: {why}"))?;
        for figure in &found {
            println!(
                "{}: {:.3} {} {}",
                figure.name, figure.value, figure.unit, figure.note
            );
        }
        figures.extend(found);
    }
    Ok(section(figures))
}

/// A table for each unit, in the order in which they came.
fn section(figures: Vec<ClusterFigure>) -> Section {
    let mut tables: Vec<Table> = Vec::new();
    for figure in figures {
        let at = tables.iter().position(|table| table.unit == figure.unit);
        let at = at.unwrap_or_else(|| {
            tables.push(Table {
                title: format!("In {}", figure.unit),
                unit: figure.unit.to_owned(),
                contenders: vec!["weir".to_owned()],
                base: None,
                rows: Vec::new(),
            });
            tables.len() - 1
        });
        tables[at].rows.push(Row {
            score: String::new(),
            name: figure.name,
            goal: figure.goal,
            cells: vec![Cell::one(figure.value).with(figure.note)],
        });
    }
    Section {
        title: "A cluster".to_owned(),
        how: "Three members with one loop each, at 127.0.0.11 to 13, one origin, clients in one thread, all on this machine. \
              The origin sends 10 MB in 10 s, its header after 100 ms. A stall is the longest time without a byte that any \
              client had. Redis is Debian's."
            .to_owned(),
        tables,
        ..Section::default()
    }
}
