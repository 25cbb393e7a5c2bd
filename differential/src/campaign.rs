//! A run over many cases: lanes that make, run and judge starts, and a tally of what they found.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::batch::{Bench, Outcome};
use crate::case::{Case, text};
use crate::generate::{self, Generator};
use crate::judge::{Judged, judge};
use crate::reduce::{Wanted, reduce};

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
    /// Ends with the first class that is confirmed.
    pub first: bool,
}

/// A class of differences that no rule knows.
#[derive(Clone, Debug, Default)]
pub struct Class {
    /// How many cases were of it.
    pub cases: u64,
    /// Examples, reduced if that was asked for, each with all that differs.
    pub examples: Vec<Example>,
    /// Cases that differed among others, and not alone.
    pub passing: u64,
}

/// A case, and all that differs.
pub type Example = (Case, Vec<Judged>);

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
    /// Cases that differ by rules without a reason beyond ourselves, by rule.
    pub open: BTreeMap<&'static str, u64>,
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
                while started.elapsed() < plan.time && !is_done(plan, &tally) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let wanted = size_of(plan, number);
                    let before = made.fetch_add(wanted as u64, Ordering::Relaxed);
                    let left = plan.cases.saturating_sub(before);
                    let size = wanted.min(usize::try_from(left).unwrap_or(usize::MAX));
                    if size == 0 {
                        return;
                    }
                    let areas = plan.areas.len() as u64;
                    let area = plan.areas[usize::try_from(number % areas).unwrap_or(0)];
                    let cases = generate::batch(area, plan.seed, number, size);
                    let outcomes = bench.run(&cases);
                    note(plan, bench, &tally, &cases, &outcomes);
                }
            });
        }
    });
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.time = started.elapsed();
    tally
}

/// True when there is what was searched for.
fn is_done(plan: &Plan, tally: &Mutex<Tally>) -> bool {
    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    plan.first && tally.classes.values().any(Class::is_confirmed)
}

/// How many cases the start of this number has. Where the number of all is known, each area has as many, in as few starts as possible.
/// Otherwise the first ones of each lane are small: on a busy machine a start of two hundred takes a minute, and what is wrong
/// everywhere shows in a few.
fn size_of(plan: &Plan, number: u64) -> usize {
    const SMALLER: u64 = 3;
    if plan.cases != u64::MAX {
        let of_area = plan.cases.div_ceil(plan.areas.len().max(1) as u64);
        let of_area = usize::try_from(of_area).unwrap_or(usize::MAX);
        return of_area.div_ceil(of_area.div_ceil(plan.batch.max(1)).max(1));
    }
    let round = number / (plan.lanes.max(1) * plan.areas.len().max(1)) as u64;
    let halved = plan.batch >> SMALLER.saturating_sub(round);
    halved.max(1)
}

/// Counts a start's outcomes, and looks closer at what differs.
fn note(plan: &Plan, bench: &Bench, tally: &Mutex<Tally>, cases: &[Case], outcomes: &[Outcome]) {
    let spent = &bench.spent;
    let oracle = bench.programs[0].version;
    let mut suspects: Vec<Suspect<'_>> = Vec::new();
    for (case, outcome) in cases.iter().zip(outcomes) {
        let judged = spent.on("judgement", || judge(case, outcome, oracle));
        let mut tally = lock(tally);
        // One class of a case is enough: the others mostly follow from it.
        let class = tally
            .count(outcome, &judged)
            .into_iter()
            .find(|class| tally.classes[class].examples.len() < plan.each);
        if let Some(class) = class {
            // What passes is chance, so a few more than needed are looked at, and not all of a batch.
            let alike = suspects.iter().filter(|other| other.class == class).count();
            if alike < plan.each + SPARE {
                suspects.push(Suspect { case, class });
            }
        }
    }
    if suspects.is_empty() {
        return;
    }
    spent.on("confirmation", || confirm(plan, bench, tally, suspects));
}

/// How many cases of a class are confirmed beyond those that are wanted.
const SPARE: usize = 2;

/// A case that differed among others, and the class that counts for it.
#[derive(Clone)]
struct Suspect<'a> {
    case: &'a Case,
    class: String,
}

fn lock(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the suspects of a start once more, among themselves, and what is left of them alone. What differs in its class all
/// three times counts. Most of what is chance goes in the first of these, which is one start for all.
fn confirm(plan: &Plan, bench: &Bench, tally: &Mutex<Tally>, suspects: Vec<Suspect<'_>>) {
    let patient = Bench {
        patience: bench.patience.doubled(),
        ..bench.clone()
    };
    let oracle = bench.programs[0].version;
    let cases: Vec<Case> = suspects
        .iter()
        .map(|suspect| suspect.case.clone())
        .collect();
    let outcomes = patient.run(&cases);
    let is_left = |(suspect, outcome): (&Suspect<'_>, &Outcome)| {
        differs(&judge(suspect.case, outcome, oracle), &suspect.class)
    };
    let left: Vec<bool> = suspects.iter().zip(&outcomes).map(is_left).collect();
    let (left, passed): (Vec<_>, Vec<_>) =
        suspects.into_iter().zip(left).partition(|(_, left)| *left);
    for (suspect, _) in passed {
        lock(tally).pass(&suspect.class);
    }
    for (suspect, _) in left {
        // Another start, or one before in this list, may have found it meanwhile.
        let is_found = |tally: &Tally| {
            let class = tally.classes.get(&suspect.class);
            class.is_some_and(|class| class.examples.len() >= plan.each)
        };
        if is_found(&lock(tally)) {
            continue;
        }
        let example = alone(plan, &patient, suspect.case, &suspect.class);
        let mut tally = lock(tally);
        match example {
            Some(example) => tally.keep(plan, &suspect.class, example),
            None => tally.pass(&suspect.class),
        }
    }
}

/// Runs a case alone; what differs in this class is reduced, if that is asked for.
fn alone(plan: &Plan, bench: &Bench, case: &Case, class: &str) -> Option<Example> {
    let again = |case: &Case| {
        let outcomes = bench.run(std::slice::from_ref(case));
        let judged = judge(case, outcomes.first()?, bench.programs[0].version);
        differs(&judged, class).then_some(judged)
    };
    let judged = again(case)?;
    if plan.reduce {
        let open = judged.iter().filter(|judged| judged.known.is_none());
        let allowed: Vec<String> = open.map(|judged| judged.difference.class.clone()).collect();
        let wanted = Wanted {
            class,
            allowed: &allowed,
        };
        let small = bench.spent.on("reduction", || reduce(bench, case, &wanted));
        if let Some(judged) = again(&small) {
            return Some((small, judged));
        }
    }
    Some((case.clone(), judged))
}

fn differs(judged: &[Judged], class: &str) -> bool {
    let same = |judged: &Judged| judged.known.is_none() && judged.difference.class == class;
    judged.iter().any(same)
}

impl Tally {
    /// Counts an outcome; the classes of its differences that no rule knows.
    fn count(&mut self, outcome: &Outcome, judged: &[Judged]) -> Vec<String> {
        self.cases += 1;
        match outcome {
            Outcome::Failed(why) => *self.failed.entry(why.clone()).or_default() += 1,
            Outcome::Refused([Some(refusal), _]) if judged.is_empty() => {
                let words = crate::judge::kind(&refusal.message);
                *self.refused.entry(words).or_default() += 1;
            }
            _ => {}
        }
        let pairs = judged.iter();
        let mut rules: Vec<(&str, bool)> = pairs
            .filter_map(|judged| Some((judged.known?.name, judged.is_open())))
            .collect();
        rules.sort_unstable();
        rules.dedup();
        for (rule, is_open) in rules {
            let counts = if is_open {
                &mut self.open
            } else {
                &mut self.known
            };
            *counts.entry(rule).or_default() += 1;
        }
        let unknown = judged.iter().filter(|judged| judged.known.is_none());
        let mut classes: Vec<String> = unknown
            .map(|judged| judged.difference.class.clone())
            .collect();
        classes.sort();
        classes.dedup();
        for class in &classes {
            self.classes.entry(class.clone()).or_default().cases += 1;
        }
        classes
    }

    fn pass(&mut self, class: &str) {
        if let Some(class) = self.classes.get_mut(class) {
            class.passing += 1;
        }
    }

    /// Keeps an example and shows it at once, so that a run that is ended has told what it found.
    fn keep(&mut self, plan: &Plan, class: &str, example: Example) {
        let Some(entry) = self.classes.get_mut(class) else {
            return;
        };
        let names = example.0.directives();
        // The same once more teaches nothing.
        let is_same = |(known, _): &Example| known.directives() == names;
        if entry.examples.len() >= plan.each || entry.examples.iter().any(is_same) {
            return;
        }
        println!("\n== {class}\n{}", text::print(&example.0));
        example.1.iter().for_each(show);
        entry.examples.push(example);
    }
}

impl Class {
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
