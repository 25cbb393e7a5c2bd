//! What a run found: sections of tables and plots, kept as JSON and shown as a page.
//!
//! The figures are kept raw, a sample for each round, so that a page made later can show more than the one made now. A
//! comparison is by ratio: the contenders take turns within a round, each sample is divided by the base's of the same
//! round, and the median of these is the figure.

mod opening;
mod page;
mod plot;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::server::median;

/// All of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    pub(crate) sections: Vec<Section>,
    /// What was not measured, and why.
    pub(crate) left_out: Vec<String>,
}

/// One experiment.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Section {
    /// The name of the experiment, as the command line has it.
    pub(crate) id: String,
    pub(crate) title: String,
    /// What was done, for somebody who wants to judge it.
    pub(crate) how: String,
    /// The load average of the machine before and after.
    pub(crate) load: (f64, f64),
    pub(crate) seconds: f64,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
}

/// Contenders beside each other.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) unit: String,
    pub(crate) contenders: Vec<String>,
    /// The contender that the others are compared with; without one there are no ratios.
    pub(crate) base: Option<usize>,
    pub(crate) rows: Vec<Row>,
}

/// One measurement of every contender.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The row of the scoreboard, where there is one.
    pub(crate) score: String,
    pub(crate) name: String,
    pub(crate) goal: Option<Goal>,
    /// In the contenders' order.
    pub(crate) cells: Vec<Cell>,
}

/// What one contender reached.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// A sample for each round; none when there is nothing to be measured.
    pub(crate) samples: Vec<f64>,
    /// What a number does not say.
    #[serde(default)]
    pub(crate) note: String,
}

/// What Weir is to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Goal {
    RatioAtMost(f64),
    RatioAtLeast(f64),
    AtMost(f64),
    AtLeast(f64),
}

/// A picture.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub(crate) enum Plot {
    /// How long requests took: percentile and milliseconds.
    Latencies {
        title: String,
        curves: BTreeMap<String, Vec<(f64, f64)>>,
    },
    /// What came in each step of time.
    Progress {
        title: String,
        unit: String,
        step_seconds: f64,
        curves: BTreeMap<String, Vec<f64>>,
    },
    /// What grew with a size; both axes are logarithmic.
    Growth {
        title: String,
        unit: String,
        curves: BTreeMap<String, Vec<(f64, f64)>>,
    },
    /// What each worker or loop had.
    Spread {
        title: String,
        bars: Vec<(String, Vec<f64>)>,
    },
}

impl Cell {
    pub(crate) fn of(samples: Vec<f64>) -> Self {
        Self {
            samples,
            note: String::new(),
        }
    }

    pub(crate) fn one(sample: f64) -> Self {
        Self::of(vec![sample])
    }

    pub(crate) fn with(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(crate) fn middle(&self) -> Option<f64> {
        (!self.samples.is_empty()).then(|| median(self.samples.clone()))
    }
}

/// The median of the ratios of the rounds, the least and the largest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) middle: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Table {
    /// A table in which the others are compared with the first.
    pub(crate) fn beside_the_first(title: &str, unit: &str, contenders: Vec<String>) -> Self {
        Self {
            title: title.to_owned(),
            unit: unit.to_owned(),
            contenders,
            base: Some(0),
            rows: Vec::new(),
        }
    }

    pub(crate) fn ratio(&self, row: &Row, contender: usize) -> Option<Ratio> {
        let base = row.cells.get(self.base?)?;
        let cell = row.cells.get(contender)?;
        let mut ratios: Vec<f64> = cell
            .samples
            .iter()
            .zip(&base.samples)
            .filter(|(_, base)| **base != 0.0)
            .map(|(sample, base)| sample / base)
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some(Ratio {
            least: *ratios.first()?,
            most: *ratios.last()?,
            middle: median(ratios),
        })
    }

    /// Weir's column: the first whose name begins so.
    pub(crate) fn ours(&self) -> Option<usize> {
        let is_ours = |name: &String| name.to_lowercase().starts_with("weir");
        self.contenders.iter().position(is_ours)
    }

    /// Whether Weir reached the goal of a row.
    pub(crate) fn is_reached(&self, row: &Row) -> Option<bool> {
        let ours = self.ours()?;
        let ratio = || self.ratio(row, ours).map(|ratio| ratio.middle);
        let value = || row.cells.get(ours).and_then(Cell::middle);
        Some(match row.goal? {
            Goal::RatioAtMost(limit) => ratio()? <= limit,
            Goal::RatioAtLeast(limit) => ratio()? >= limit,
            Goal::AtMost(limit) => value()? <= limit,
            Goal::AtLeast(limit) => value()? >= limit,
        })
    }

    fn print(&self) {
        println!("\n{} ({})", self.title, self.unit);
        for row in &self.rows {
            let reached = match self.is_reached(row) {
                Some(true) => "reached",
                Some(false) => "missed",
                None => "",
            };
            let goal = row.goal.map(|goal| goal.shown()).unwrap_or_default();
            let score = format!("{} {}", row.score, row.name);
            println!(
                "  {}",
                format!("{} {goal} {reached}", score.trim()).trim_end()
            );
            for (at, (name, cell)) in self.contenders.iter().zip(&row.cells).enumerate() {
                let value = cell.middle().map_or("–".to_owned(), number);
                let ratio = self.ratio(row, at).map_or(String::new(), |ratio| {
                    format!(
                        "{:>6.2} ({:.2}–{:.2})",
                        ratio.middle, ratio.least, ratio.most
                    )
                });
                println!("    {name:<26} {value:>10} {ratio:<20} {}", cell.note);
            }
        }
    }
}

impl Goal {
    pub(crate) fn shown(self) -> String {
        // What was computed from a measurement has more digits than anybody wants to read.
        let short = |limit: f64| (limit * 1e4).round() / 1e4;
        match self {
            Goal::RatioAtMost(limit) => format!("goal: ratio ≤ {}", short(limit)),
            Goal::RatioAtLeast(limit) => format!("goal: ratio ≥ {}", short(limit)),
            Goal::AtMost(limit) => format!("goal: ≤ {}", short(limit)),
            Goal::AtLeast(limit) => format!("goal: ≥ {}", short(limit)),
        }
    }
}

/// A number with as many digits as somebody wants to read.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == value.round() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl Report {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine,
            sections: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// A report that was kept.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let text =
            fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Adds a section, in place of an earlier one of the same experiment.
    pub(crate) fn add(&mut self, section: Section) {
        section.tables.iter().for_each(Table::print);
        let same = self.sections.iter().position(|one| one.id == section.id);
        match same {
            Some(at) => self.sections[at] = section,
            None => self.sections.push(section),
        }
        let place = |section: &Section| {
            crate::EXPERIMENTS
                .iter()
                .position(|(id, ..)| *id == section.id)
        };
        self.sections.sort_by_key(place);
    }

    /// The page made of the figures.
    pub(crate) fn page(&self) -> String {
        page::html(self)
    }

    /// Keeps the figures and the page made of them.
    pub(crate) fn write(&self, figures: &Path, page: &Path) -> Result<(), String> {
        let put = |file: &Path, text: String| {
            let folder = file.parent().unwrap_or(Path::new("."));
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(file, text))
                .map_err(|error| format!("{}: {error}", file.display()))
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        put(figures, text + "\n")?;
        put(page, self.page())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(goal: Goal, ours: &[f64]) -> Table {
        Table {
            contenders: vec!["nginx".into(), "weir".into()],
            base: Some(0),
            rows: vec![Row {
                goal: Some(goal),
                cells: vec![Cell::of(vec![10.0, 20.0, 10.0]), Cell::of(ours.to_vec())],
                ..Row::default()
            }],
            ..Table::default()
        }
    }

    #[test]
    fn samples_are_compared_within_their_round() {
        let table = table(Goal::RatioAtMost(0.8), &[8.0, 16.0, 9.0]);
        let ratio = table.ratio(&table.rows[0], 1).unwrap();
        assert_eq!((ratio.least, ratio.middle, ratio.most), (0.8, 0.8, 0.9));
        assert_eq!(table.is_reached(&table.rows[0]), Some(true));
    }

    #[test]
    fn a_goal_may_be_a_value() {
        let reached = |goal| {
            let table = table(goal, &[8.0, 16.0, 9.0]);
            table.is_reached(&table.rows[0])
        };
        assert_eq!(reached(Goal::AtMost(9.0)), Some(true));
        assert_eq!(reached(Goal::AtLeast(9.5)), Some(false));
        assert_eq!(reached(Goal::RatioAtLeast(1.0)), Some(false));
    }

    #[test]
    fn what_was_kept_is_read_again() {
        let mut report = Report::new(Machine::default());
        report.add(Section {
            id: "micro".into(),
            tables: vec![table(Goal::AtMost(1.0), &[1.0])],
            plots: vec![Plot::Spread {
                title: "loops".into(),
                bars: vec![("weir".into(), vec![1.0, 2.0])],
            }],
            ..Section::default()
        });
        let text = serde_json::to_string(&report).unwrap();
        let again: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), text);
        assert!(page::html(&again).contains("</html>"));
    }
}
