//! Ratchets: figures that have a bound, and a list of what is beyond it today. What is on the list may come nearer to
//! the bound and never go further away; what is not on it keeps the bound.

use std::collections::BTreeMap;
use std::fs;

use xtask::Outcome;

use super::source::Source;
use super::{Finding, measures};

/// The list: `measure what = value`, one a line.
const LIST: &str = "xtask/ratchet.txt";

const HEAD: &str = "\
# What is beyond the bounds of xtask/src/tidy/measures.rs: measure, what, value of the day it was written.
# A value may come nearer to its bound and never go further away. `cargo xtask tidy --ratchet` writes values that have
# become better, and removes what keeps its bound now. A line for something new needs a reason in the same change.
";

/// A figure that is bounded.
pub(super) struct Measure {
    pub(super) name: &'static str,
    pub(super) bound: Bound,
    pub(super) of: fn(&[Source]) -> Vec<Measured>,
    /// What to do about a value beyond the bound.
    pub(super) remedy: &'static str,
}

#[derive(Clone, Copy)]
pub(super) enum Bound {
    AtMost(usize),
    AtLeast(usize),
}

/// The value of one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Measured {
    /// What the list calls it.
    pub(super) what: String,
    pub(super) value: usize,
    /// Where to look.
    pub(super) place: String,
}

impl Bound {
    fn holds(self, value: usize) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }

    /// The bound for something whose value on the list is this.
    fn or_listed(self, value: usize) -> Self {
        match self {
            Self::AtMost(bound) => Self::AtMost(bound.max(value)),
            Self::AtLeast(bound) => Self::AtLeast(bound.min(value)),
        }
    }

    fn words(self) -> String {
        match self {
            Self::AtMost(bound) => format!("more than {bound}"),
            Self::AtLeast(bound) => format!("less than {bound}"),
        }
    }
}

/// The values on the list, by measure and what they belong to.
type Listed = BTreeMap<(String, String), usize>;

/// Compares all measures with their bounds and the list.
pub(super) fn nothing_gets_worse(sources: &[Source], findings: &mut Vec<Finding>) {
    let listed = read(&fs::read_to_string(LIST).unwrap_or_default());
    for measure in measures::ALL {
        compare(measure, &(measure.of)(sources), &listed, findings);
    }
    for (name, what) in listed.keys() {
        if !measures::ALL.iter().any(|measure| measure.name == name) {
            findings.push(Finding::new(
                LIST,
                format!("nothing is measured as `{name}`: remove the line of `{what}`"),
            ));
        }
    }
}

fn compare(measure: &Measure, all: &[Measured], listed: &Listed, findings: &mut Vec<Finding>) {
    let key = |what: &str| (measure.name.to_owned(), what.to_owned());
    for measured in all {
        let entry = listed.get(&key(&measured.what));
        let bound = entry.map_or(measure.bound, |value| measure.bound.or_listed(*value));
        if !bound.holds(measured.value) {
            let (name, value, beyond) = (measure.name, measured.value, bound.words());
            let remedy = format!("{name} {value}, {beyond}: {}", measure.remedy);
            findings.push(Finding::new(&measured.place, remedy));
        }
    }
    let is_beyond = |what: &str| {
        all.iter()
            .any(|measured| measured.what == what && !measure.bound.holds(measured.value))
    };
    for (name, what) in listed.keys() {
        if name == measure.name && !is_beyond(what) {
            let remedy = format!(
                "`{name} {what}` keeps its bound now, or is gone: `cargo xtask tidy --ratchet` removes its line"
            );
            findings.push(Finding::new(LIST, remedy));
        }
    }
}

/// Writes the list anew: better values, and none that keep their bounds. Never a worse value, nor a new line.
pub(super) fn tighten(sources: &[Source]) -> Outcome {
    let listed = read(&fs::read_to_string(LIST).unwrap_or_default());
    let mut text = HEAD.to_owned();
    for measure in measures::ALL {
        let kept = tightened(measure, &(measure.of)(sources), &listed);
        if !kept.is_empty() {
            text.push('\n');
        }
        for (what, value) in kept {
            text.push_str(&format!("{} {what} = {value}\n", measure.name));
        }
    }
    fs::write(LIST, text).map_err(|error| format!("{LIST}: {error}"))
}

fn tightened(measure: &Measure, all: &[Measured], listed: &Listed) -> BTreeMap<String, usize> {
    let beyond = all
        .iter()
        .filter(|measured| !measure.bound.holds(measured.value));
    let mut kept = BTreeMap::new();
    for measured in beyond {
        let Some(before) = listed.get(&(measure.name.to_owned(), measured.what.clone())) else {
            continue;
        };
        let better = match measure.bound {
            Bound::AtMost(_) => measured.value.min(*before),
            Bound::AtLeast(_) => measured.value.max(*before),
        };
        // Two functions of a file may have one name; the longer one counts.
        let value = kept.entry(measured.what.clone()).or_insert(better);
        *value = better.max(*value);
    }
    kept
}

fn read(list: &str) -> Listed {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (key, value) = line.rsplit_once(" = ")?;
            let (name, what) = key.split_once(' ')?;
            Some(((name.to_owned(), what.to_owned()), value.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Measure = Measure {
        name: "lines",
        bound: Bound::AtMost(70),
        of: |_| Vec::new(),
        remedy: "split it",
    };

    fn measured(what: &str, value: usize) -> Measured {
        Measured {
            what: what.to_owned(),
            value,
            place: format!("{what}:1"),
        }
    }

    fn findings(listed: &str, all: &[Measured]) -> Vec<String> {
        let mut findings = Vec::new();
        compare(&LINES, all, &read(listed), &mut findings);
        findings
            .into_iter()
            .map(|finding| finding.to_string())
            .collect()
    }

    #[test]
    fn what_is_not_listed_keeps_the_bound() {
        assert_eq!(findings("", &[measured("a", 70)]), [""; 0]);
        assert_eq!(
            findings("", &[measured("a", 71)]),
            ["a:1: lines 71, more than 70: split it"]
        );
    }

    #[test]
    fn what_is_listed_may_shrink_and_not_grow() {
        let list = "# x\nlines a b = 90\n";
        assert_eq!(findings(list, &[measured("a b", 90)]), [""; 0]);
        assert_eq!(findings(list, &[measured("a b", 80)]), [""; 0]);
        assert_eq!(
            findings(list, &[measured("a b", 91)]),
            ["a b:1: lines 91, more than 90: split it"]
        );
    }

    #[test]
    fn a_line_goes_when_it_is_not_needed() {
        let found = findings("lines a = 90\n", &[measured("a", 70)]);
        assert!(found[0].contains("removes its line"), "{found:?}");
        assert_eq!(findings("lines gone = 90\n", &[]).len(), 1);
    }

    #[test]
    fn tightening_lowers_and_adds_nothing() {
        let listed = read("lines a = 90\nlines b = 80\nlines c = 75\n");
        let all = [
            measured("a", 85),
            measured("b", 99),
            measured("c", 70),
            measured("d", 100),
        ];
        let kept = tightened(&LINES, &all, &listed);
        assert_eq!(kept, [("a".to_owned(), 85), ("b".to_owned(), 80)].into());
    }

    #[test]
    fn a_floor_is_the_other_way_round() {
        let floor = Bound::AtLeast(15).or_listed(9);
        assert!(floor.holds(9) && !floor.holds(8));
        assert!(Bound::AtLeast(15).or_listed(20).holds(15));
    }
}
