//! What is left out of a run, so that a seed that breaks an invariant can be shown with as little as it takes.
//!
//! A run is drawn whole, and what is cut is then not done: what remains does the same as before, as far as the schedule
//! allows.

use std::collections::BTreeSet;
use std::fmt;

/// What can be cut by its name alone. Each is asked for where it would be done.
const NAMES: [&str; 34] = [
    "moods",
    "breaks",
    "refusals",
    "slow wires",
    "reloads",
    "wall",
    "crash",
    "upgrade",
    "losses",
    "stream",
    "datagrams",
    "full disk",
    "loops",
    "hostile",
    "h2",
    "leaves",
    "slow readers",
    "ranges",
    "heads",
    "uploads",
    "purges",
    "return",
    "file",
    "proxied",
    "by name",
    "tls",
    "quic",
    "limited",
    "plain",
    "stale",
    "parts",
    "vary",
    "slice",
    "apart",
];

/// The most clients and resources that a run may have.
const CLIENTS_MOST: usize = 12;
const RESOURCES_MOST: usize = 8;
/// Other schedules that are tried when a cut makes the violation go.
const SCHEDULES: usize = 2;

/// A set of cuts, as on the command line: `client 3,moods,requests 4`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunCuts(BTreeSet<String>);

impl RunCuts {
    pub(crate) fn parse(text: &str) -> RunCuts {
        let words = text.split(',').map(str::trim);
        RunCuts(
            words
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect(),
        )
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    /// Whether this one of several is cut: `client 3`.
    pub(crate) fn has_one(&self, name: &str, number: usize) -> bool {
        !self.0.is_empty() && self.0.contains(&format!("{name} {number}"))
    }

    /// The number behind a name: `requests 4`.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        let of_name = |cut: &String| cut.strip_prefix(name)?.trim().parse().ok();
        self.0.iter().find_map(of_name)
    }

    /// These and one more. A number takes the place of the one before.
    fn with(&self, cut: &str) -> RunCuts {
        let mut cuts = self.clone();
        for name in ["requests ", "schedule "] {
            if cut.starts_with(name) {
                cuts.0.retain(|known| !known.starts_with(name));
            }
        }
        cuts.0.insert(cut.to_owned());
        cuts
    }

    /// Cuts as much as can be cut for as long as `breaks` says that the violation is still there, which is asked at most as
    /// long as `goes_on`.
    pub(crate) fn extend(
        self,
        mut breaks: impl FnMut(&RunCuts) -> bool,
        goes_on: impl Fn() -> bool,
    ) -> RunCuts {
        let mut cuts = self;
        let mut took_one = true;
        while took_one {
            took_one = false;
            for cut in every_cut() {
                if cuts.has(&cut)
                    || cuts
                        .number("requests")
                        .is_some_and(|most| is_no_less(&cut, most))
                {
                    continue;
                }
                let schedules = (0..=SCHEDULES).map(|schedule| match schedule {
                    0 => cuts.with(&cut),
                    _ => cuts.with(&cut).with(&format!("schedule {schedule}")),
                });
                let shorter = schedules
                    .into_iter()
                    .find(|shorter| goes_on() && breaks(shorter));
                if let Some(shorter) = shorter {
                    cuts = shorter;
                    took_one = true;
                }
                if !goes_on() {
                    return cuts;
                }
            }
        }
        cuts
    }
}

/// Whether a cut leaves as many requests as there are.
fn is_no_less(cut: &str, most: usize) -> bool {
    let left = cut
        .strip_prefix("requests ")
        .and_then(|left| left.parse::<usize>().ok());
    left.is_some_and(|left| left >= most)
}

/// All cuts, those that are likely to take much first.
fn every_cut() -> impl Iterator<Item = String> {
    let requests = [16, 8, 4, 2, 1].map(|left| format!("requests {left}"));
    let clients = (0..CLIENTS_MOST).map(|client| format!("client {client}"));
    let resources = (0..RESOURCES_MOST).map(|resource| format!("resource {resource}"));
    let names = NAMES.map(str::to_owned);
    requests
        .into_iter()
        .chain(clients)
        .chain(names)
        .chain(resources)
}

impl fmt::Display for RunCuts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.0.iter().map(String::as_str).collect();
        f.write_str(&words.join(","))
    }
}
