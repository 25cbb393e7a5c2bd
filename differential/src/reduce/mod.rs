//! From a case that differs to the smallest one that differs in the same class.
//!
//! Trying a case costs a start of both servers, and a start takes a hundred cases. So first all removals are tried, each alone
//! and in chunks, in one start; in a second one what could go alone goes together. When nothing more can be removed, single
//! steps (a word less, half of a content) are tried until none helps.

mod removals;
mod steps;

use std::time::{Duration, Instant};

use crate::batch::{Bench, Outcome};
use crate::case::{Case, text};
use crate::judge::judge;

/// Rounds of removals; each leaves a fraction.
const ROUNDS: usize = 6;
/// Rounds of single steps.
const STEPS: usize = 12;
/// How many candidates are tried at a time.
const AT_ONCE: usize = 100;
/// After this time the smallest one so far is what there is.
const LONGEST: Duration = Duration::from_secs(60);

/// What a smaller case has to show.
pub struct Wanted<'a> {
    /// It has an unknown difference of this class,
    pub class: &'a str,
    /// and none that the case did not have: a smaller case is easily broken in another way.
    pub allowed: &'a [String],
}

/// Reduces a case.
pub fn reduce(bench: &Bench, case: &Case, class: &Wanted<'_>) -> Case {
    // Most candidates have lost what they waited for.
    let bench = &bench.for_reduction();
    let started = Instant::now();
    let is_over = || started.elapsed() > LONGEST;
    let mut best = case.clone();
    for _ in 0..ROUNDS {
        if is_over() {
            return best;
        }
        match fewer(bench, &best, class) {
            Some(next) => best = next,
            None => break,
        }
    }
    for _ in 0..STEPS {
        let mut candidates = steps::smaller(&best);
        let size = length(&best);
        candidates.retain(|case| length(case) < size);
        candidates.sort_by_key(length);
        let found = candidates
            .chunks(AT_ONCE)
            .take_while(|_| !is_over())
            .find_map(|candidates| smallest(&differing(bench, candidates, class), candidates));
        match found {
            Some(next) => best = next,
            None => break,
        }
    }
    best
}

fn length(case: &Case) -> usize {
    text::print(case).len()
}

/// One round of removals.
fn fewer(bench: &Bench, case: &Case, class: &Wanted<'_>) -> Option<Case> {
    let all = removals::all(case);
    let chunks = removals::chunks(&all, AT_ONCE);
    let candidates: Vec<Case> = chunks
        .iter()
        .map(|chunk| removals::without(case, chunk))
        .collect();
    let good = differing(bench, &candidates, class);
    let first = smallest(&good, &candidates);
    // What could go with a chunk, or alone, goes together now.
    let mut together: Vec<removals::Removal> = Vec::new();
    for number in &good {
        let new = chunks[*number]
            .iter()
            .filter(|next| !together.contains(next));
        let new: Vec<_> = new.cloned().collect();
        together.extend(new);
    }
    let mut unions: Vec<Case> = Vec::new();
    let mut size = together.len();
    while size > 1 {
        unions.extend(
            together
                .chunks(size)
                .map(|part| removals::without(case, part)),
        );
        size /= 2;
        if unions.len() > AT_ONCE / 2 {
            break;
        }
    }
    let second = smallest(&differing(bench, &unions, class), &unions);
    let found = [first, second].into_iter().flatten();
    found.min_by_key(length)
}

fn smallest(good: &[usize], candidates: &[Case]) -> Option<Case> {
    let found = good.iter().map(|number| &candidates[*number]);
    found.min_by_key(|case| length(case)).cloned()
}

/// The numbers of the candidates that still differ. Those with other ambient directives need starts of their own.
fn differing(bench: &Bench, candidates: &[Case], class: &Wanted<'_>) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..candidates.len()).collect();
    let mut found = Vec::new();
    while let Some(first) = rest.first() {
        let ambient = candidates[*first].ambient.clone();
        let (same, other): (Vec<usize>, Vec<usize>) = rest
            .into_iter()
            .partition(|number| candidates[*number].ambient == ambient);
        rest = other;
        let cases: Vec<Case> = same
            .iter()
            .map(|number| candidates[*number].clone())
            .collect();
        let outcomes = bench.run(&cases);
        let pairs = same.iter().zip(cases.iter().zip(&outcomes));
        let good = pairs.filter(|(_, (case, outcome))| differs(bench, case, outcome, class));
        found.extend(good.map(|(number, _)| *number));
    }
    found
}

/// True when an outcome has what is wanted.
fn differs(bench: &Bench, case: &Case, outcome: &Outcome, wanted: &Wanted<'_>) -> bool {
    let judged = judge(case, outcome, bench.programs[0].version);
    let classes = || {
        let open = judged.iter().filter(|judged| judged.known.is_none());
        open.map(|judged| judged.difference.class.as_str())
    };
    let is_allowed = |class: &str| wanted.allowed.iter().any(|allowed| allowed == class);
    classes().any(|class| class == wanted.class) && classes().all(is_allowed)
}
