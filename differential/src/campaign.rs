//! A run over many cases: lanes that make, run and judge starts, and a tally of what they found.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::batch::{Bench, Outcome};
use crate::case::{Case, text};
use crate::generate::{self, Generator};
use crate::judge::{Judged, judge};
use crate::reduce::reduce;

/// What is asked for.
pub struct Plan {
    /// The areas, in turn.
    pub areas: Vec<&'static dyn Generator>,
    /// The seed.
    pub seed: u64,
    /// Ends after this many cases.
    pub cases: u64,
    /// Ends after this time; what has begun is finished.
    pub time: Duration,
    /// Cases in a start.
    pub batch: usize,
    /// Starts at a time.
    pub lanes: usize,
    /// Reduces what differs.
    pub reduce: bool,
    /// How many cases of one class are confirmed and reduced.
    pub each: usize,
}

/// A class of differences that no rule knows.
#[derive(Clone, Debug)]
pub struct Class {
    /// How many cases were of it.
    pub cases: u64,
    /// Examples, reduced if that was asked for, each with all that differs.
    pub examples: Vec<(Case, Vec<Judged>)>,
    /// Cases that differed among others, and not alone.
    pub passing: u64,
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cases that ran.
    pub cases: u64,
    /// Cases that both servers refused with the same words, by these.
    pub refused: BTreeMap<String, u64>,
    /// Cases that the machine could not run, by why.
    pub failed: BTreeMap<String, u64>,
    /// Cases that differ by known rules only, by rule.
    pub known: BTreeMap<&'static str, u64>,
    /// Unknown differences by class.
    pub classes: BTreeMap<String, Class>,
    /// How long it took.
    pub time: Duration,
}

/// Runs the plan.
pub fn run(plan: &Plan, bench: &Bench) -> Tally {
    let started = Instant::now();
    let tally = Mutex::new(Tally::default());
    let (next, made) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..plan.lanes {
            scope.spawn(|| {
                while started.elapsed() < plan.time {
                    let before = made.fetch_add(plan.batch as u64, Ordering::Relaxed);
                    let left = plan.cases.saturating_sub(before);
                    let size = plan.batch.min(usize::try_from(left).unwrap_or(usize::MAX));
                    if size == 0 {
                        return;
                    }
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let areas = plan.areas.len() as u64;
                    let area = plan.areas[usize::try_from(number % areas).unwrap_or(0)];
                    let cases = generate::batch(area, plan.seed, number, size);
                    let outcomes = bench.run(&cases);
                    note(plan, bench, &tally, &cases, &outcomes);
                }
            });
        }
    });
    let mut tally = tally
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    tally.time = started.elapsed();
    tally
}

/// Counts a start's outcomes, and looks closer at what differs.
fn note(plan: &Plan, bench: &Bench, tally: &Mutex<Tally>, cases: &[Case], outcomes: &[Outcome]) {
    let lock = || {
        tally
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    for (case, outcome) in cases.iter().zip(outcomes) {
        let judged = judge(case, outcome, bench.programs[0].version);
        let suspects: Vec<String> = {
            let mut tally = lock();
            tally.cases += 1;
            match outcome {
                Outcome::Failed(why) => *tally.failed.entry(why.clone()).or_default() += 1,
                Outcome::Refused([Some(refusal), _]) if judged.is_empty() => {
                    let words = crate::judge::kind(&refusal.message);
                    *tally.refused.entry(words).or_default() += 1;
                }
                _ => {}
            }
            let mut rules: Vec<&str> = judged
                .iter()
                .filter_map(|judged| judged.known.map(|rule| rule.name))
                .collect();
            rules.sort_unstable();
            rules.dedup();
            for rule in rules {
                *tally.known.entry(rule).or_default() += 1;
            }
            let unknown = judged.iter().filter(|judged| judged.known.is_none());
            let mut classes: Vec<String> = unknown
                .map(|judged| judged.difference.class.clone())
                .collect();
            classes.sort();
            classes.dedup();
            for class in &classes {
                let entry = tally.classes.entry(class.clone());
                entry.or_insert_with(Class::new).cases += 1;
            }
            classes.retain(|class| tally.classes[class].examples.len() < plan.each);
            classes
        };
        // One class of a case is enough: the others mostly follow from it.
        let Some(class) = suspects.first() else {
            continue;
        };
        let example = confirmed(plan, bench, case, class);
        let mut tally = lock();
        if let Some(entry) = tally.classes.get_mut(class) {
            match example {
                Some(example) => {
                    let names = example.0.directives();
                    // The same once more teaches nothing.
                    if !entry
                        .examples
                        .iter()
                        .any(|(known, _)| known.directives() == names)
                    {
                        println!("\n== {class}\n{}", text::print(&example.0));
                        for judged in &example.1 {
                            show(judged);
                        }
                        entry.examples.push(example);
                    }
                }
                None => entry.passing += 1,
            }
        }
    }
}

impl Class {
    fn new() -> Self {
        Self {
            cases: 0,
            examples: Vec::new(),
            passing: 0,
        }
    }

    /// True when at least one case of it was confirmed.
    pub fn is_confirmed(&self) -> bool {
        !self.examples.is_empty()
    }
}

/// Prints one difference.
pub fn show(judged: &Judged) {
    let known = judged
        .known
        .map_or(String::new(), |rule| format!(" ({})", rule.name));
    let difference = &judged.difference;
    println!("   {}{known}", difference.class);
    println!("      nginx: {}", difference.oracle);
    println!("      weir:  {}", difference.weir);
}

/// Runs a case alone, twice; what differs in this class both times counts, and is reduced.
fn confirmed(plan: &Plan, bench: &Bench, case: &Case, class: &str) -> Option<(Case, Vec<Judged>)> {
    let patient = Bench {
        patience: bench.patience.doubled(),
        ..bench.clone()
    };
    let again = |case: &Case| {
        let outcomes = patient.run(std::slice::from_ref(case));
        let judged = judge(case, outcomes.first()?, bench.programs[0].version);
        let same = |judged: &Judged| judged.known.is_none() && judged.difference.class == class;
        judged.iter().any(same).then_some(judged)
    };
    again(case)?;
    let judged = again(case)?;
    if !plan.reduce {
        return Some((case.clone(), judged));
    }
    let small = reduce(bench, case, class);
    match again(&small) {
        Some(judged) => Some((small, judged)),
        None => Some((case.clone(), judged)),
    }
}
