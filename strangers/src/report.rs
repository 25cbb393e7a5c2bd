//! What a run has found: the two figures by kind of configuration, what was refused, the classes of differences.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use weir_differential::version::Version;

use crate::client::Answer;
use crate::compare::{Observation, differences};
use crate::known::{self, Explanation};
use crate::repositories::Address;
use crate::requests::Request;

/// What became of one configuration.
#[derive(Debug)]
pub(crate) struct Outcome {
    place: String,
    pub(crate) kind: &'static str,
    skipped: Option<String>,
    /// Third-party directives that were taken out.
    pub(crate) removed: Vec<String>,
    /// Why nginx refused it.
    pub(crate) oracle: Option<String>,
    /// Why Weir refused it.
    pub(crate) ours: Option<String>,
    asked: usize,
    /// Answers that nginx itself gave differently at a second time.
    unstable: usize,
    differences: Vec<Difference>,
    /// Differences that are meant to be: rule and request.
    known: Vec<(&'static str, String)>,
    /// Answers that nginx itself gives since a later version: rule and request.
    changed: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Difference {
    class: String,
    request: String,
    theirs: String,
    ours: String,
}

impl Outcome {
    pub(crate) fn new(address: &Address) -> Outcome {
        Outcome {
            place: format!("{}:{}", address.repository, address.path),
            kind: "unknown",
            skipped: None,
            removed: Vec::new(),
            oracle: None,
            ours: None,
            asked: 0,
            unstable: 0,
            differences: Vec::new(),
            known: Vec::new(),
            changed: Vec::new(),
        }
    }

    pub(crate) fn skipped(mut self, why: &str) -> Outcome {
        self.skipped = Some(why.to_owned());
        self
    }

    /// Compares all answers. What differs is asked of nginx `again`: what it does not answer in the same way twice does
    /// not count.
    pub(crate) fn compare(
        &mut self,
        requests: &[Request],
        theirs: &[Observation],
        ours: &[Observation],
        (directives, oracle): (&[String], Version),
        again: &dyn Fn() -> Result<Vec<Observation>, String>,
    ) {
        self.asked = theirs.len().min(ours.len());
        let rows = || requests.iter().zip(theirs.iter().zip(ours));
        if rows().all(|(_, (theirs, ours))| differences(theirs, ours).is_empty()) {
            return;
        }
        let second = again().unwrap_or_default();
        for (index, (request, (theirs, ours))) in rows().enumerate() {
            let found = differences(theirs, ours);
            if found.is_empty() {
                continue;
            }
            let is_stable = second
                .get(index)
                .is_some_and(|second| differences(theirs, second).is_empty());
            if !is_stable {
                self.unstable += 1;
                continue;
            }
            let known =
                known::explanation(&found, theirs, ours, (directives, &request.name), oracle);
            if let Some(Explanation { rule, is_change }) = known {
                let list = match is_change {
                    true => &mut self.changed,
                    false => &mut self.known,
                };
                list.push((rule, request.shown.clone()));
                continue;
            }
            self.differences.push(Difference {
                class: found.join("; "),
                request: request.shown.clone(),
                theirs: shown(theirs),
                ours: shown(ours),
            });
        }
    }
}

fn shown(observation: &Observation) -> String {
    let Answer {
        status,
        fields,
        body,
        is_chunked,
    } = &observation.answer;
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let body: String = String::from_utf8_lossy(body).chars().take(700).collect();
    format!(
        "{status} chunked={is_chunked}\n{}\n\n{body}\nseen: {:#?}",
        fields.join("\n"),
        observation.seen
    )
}

/// All outcomes.
#[derive(Debug)]
pub(crate) struct Report<'r> {
    outcomes: Vec<&'r Outcome>,
    /// Names that nginx's core does not know, with the number of files.
    names: &'r [(String, usize)],
}

#[derive(Debug, Default)]
struct Figures {
    configurations: usize,
    accepted_by_nginx: usize,
    accepted: usize,
    with_removed: usize,
    answers: usize,
    unstable: usize,
    different: usize,
    known: usize,
    changed: usize,
}

impl<'r> Report<'r> {
    pub(crate) fn new(outcomes: &'r [Outcome], names: &'r [(String, usize)]) -> Report<'r> {
        let mut outcomes: Vec<&Outcome> = outcomes.iter().collect();
        outcomes.sort_by(|a, b| a.place.cmp(&b.place));
        Report { outcomes, names }
    }

    fn figures(&self) -> BTreeMap<&'static str, Figures> {
        let mut all: BTreeMap<&'static str, Figures> = BTreeMap::new();
        for outcome in self
            .outcomes
            .iter()
            .filter(|outcome| outcome.skipped.is_none())
        {
            for kind in [outcome.kind, "~ all"] {
                let figures = all.entry(kind).or_default();
                figures.configurations += 1;
                figures.with_removed += usize::from(!outcome.removed.is_empty());
                if outcome.oracle.is_none() && outcome.removed.is_empty() {
                    figures.accepted_by_nginx += 1;
                    figures.accepted += usize::from(outcome.ours.is_none());
                }
                figures.answers += outcome.asked - outcome.unstable;
                figures.unstable += outcome.unstable;
                figures.different += outcome.differences.len();
                figures.known += outcome.known.len();
                figures.changed += outcome.changed.len();
            }
        }
        all
    }

    /// The figures, as a table.
    pub(crate) fn short(&self) -> String {
        let mut text = String::from(
            "| kind | configurations | accepted by nginx | of these by Weir | with third-party directives | answers | unstable | different | listed | changed by nginx since | equal |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
        );
        for (kind, figures) in self.figures() {
            let share = |part: usize, whole: usize| 100.0 * part as f64 / whole.max(1) as f64;
            let equal = share(
                figures.answers - figures.different - figures.known,
                figures.answers,
            );
            let _ = writeln!(
                text,
                "| {kind} | {} | {} | {} ({:.1} %) | {} | {} | {} | {} | {} | {} | {equal:.2} % |",
                figures.configurations,
                figures.accepted_by_nginx,
                figures.accepted,
                share(figures.accepted, figures.accepted_by_nginx),
                figures.with_removed,
                figures.answers,
                figures.unstable,
                figures.different,
                figures.known,
                figures.changed,
            );
        }
        text
    }

    /// Everything.
    pub(crate) fn long(&self) -> String {
        let mut text = self.short();
        let outcomes = || self.outcomes.iter().copied();
        let skipped = outcomes()
            .filter_map(|outcome| Some((outcome.skipped.clone()?, outcome.place.clone())));
        section(&mut text, "skipped", skipped);
        let judged = || outcomes().filter(|outcome| outcome.skipped.is_none());
        let refusal = |outcome: &Outcome, message: &Option<String>| {
            message
                .as_deref()
                .map(|message| (reason(message), outcome.place.clone()))
        };
        let ours = judged().filter(|outcome| outcome.oracle.is_none());
        let ours = ours.filter_map(|outcome| refusal(outcome, &outcome.ours));
        section(&mut text, "refused by Weir, accepted by nginx", ours);
        let theirs = judged().filter(|outcome| outcome.ours.is_none());
        let theirs = theirs.filter_map(|outcome| refusal(outcome, &outcome.oracle));
        section(&mut text, "refused by nginx, accepted by Weir", theirs);
        let both = judged().filter(|outcome| outcome.ours.is_some());
        let both = both.filter_map(|outcome| refusal(outcome, &outcome.oracle));
        section(&mut text, "refused by both", both);
        let different = outcomes().flat_map(|outcome| {
            outcome.differences.iter().map(|difference| {
                let Difference {
                    class,
                    request,
                    theirs,
                    ours,
                } = difference;
                let row = format!(
                    "{} {request}\n--- nginx\n{theirs}\n--- weir\n{ours}\n",
                    outcome.place
                );
                (class.clone(), row)
            })
        });
        section(&mut text, "different answers", different);
        let listed = outcomes().flat_map(|outcome| {
            outcome
                .known
                .iter()
                .map(|(rule, request)| ((*rule).to_owned(), format!("{} {request}", outcome.place)))
        });
        section(&mut text, "listed in docs/compat.md", listed);
        let changed = outcomes().flat_map(|outcome| {
            outcome
                .changed
                .iter()
                .map(|(rule, request)| ((*rule).to_owned(), format!("{} {request}", outcome.place)))
        });
        section(
            &mut text,
            "changed by nginx since the oracle's version",
            changed,
        );
        let names = "# directives that nginx's core does not know, with the number of files";
        let _ = writeln!(text, "\n{names}\n");
        for (name, count) in self.names {
            let _ = writeln!(text, "{count:5} {name}");
        }
        text
    }
}

/// Rows by what they have in common, the most frequent first, with a few examples each.
fn section(text: &mut String, title: &str, rows: impl Iterator<Item = (String, String)>) {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (group, row) in rows {
        groups.entry(group).or_default().push(row);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, rows)| std::cmp::Reverse(rows.len()));
    let _ = writeln!(text, "\n# {title}\n");
    for (group, rows) in groups {
        let _ = writeln!(text, "## {} x {group}", rows.len());
        for row in rows.iter().take(4) {
            let _ = writeln!(text, "  {row}");
        }
    }
}

/// A message without its place and the process's number.
fn reason(message: &str) -> String {
    let start = message.find("[emerg]").map_or(0, |at| at + "[emerg]".len());
    let text = message[start..]
        .split(" in /")
        .next()
        .unwrap_or_default()
        .trim();
    let digits = text
        .bytes()
        .take_while(|byte| byte.is_ascii_digit() || *byte == b'#')
        .count();
    let text = text[digits..].trim_start_matches(": ");
    // A path is this run's own.
    let words = text.split(' ').map(|word| {
        if word.contains("/weir-strangers-") {
            "PATH"
        } else {
            word
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
