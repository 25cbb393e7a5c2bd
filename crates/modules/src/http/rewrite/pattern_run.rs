//! Commands in a row that test one text: hundreds of `rewrite`s after a site was moved, or an `if` for each robot.
//!
//! Those whose pattern cannot match the text are passed over without asking PCRE2 ([`PatternFilter`]). The text is looked
//! at again after each command that is not passed over, since that one may have changed it.

use std::ops::Range;

use ::http::Request;
use conf::{PatternFilter, Regex, VarId, VariableScope};

/// Shorter runs are executed as they are.
const MIN_COMMANDS: usize = 3;

/// Adjacent commands that have no effect unless their pattern matches the same text.
#[derive(Clone, Debug)]
pub(super) struct PatternRun {
    commands: Range<usize>,
    subject: RunSubject,
    filter: PatternFilter,
}

/// The text that a pattern is matched with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunSubject {
    /// The path of the request: `rewrite`.
    Path,
    /// `if ($variable ~ …)`.
    Variable(VarId),
}

/// What a command tests, if nothing happens unless its pattern matches.
pub(super) type PatternTest<'c> = (RunSubject, &'c Regex);

/// The runs of a script, given what each of its commands tests.
pub(super) fn find_runs<'c>(
    tests: impl Iterator<Item = Option<PatternTest<'c>>>,
) -> Box<[PatternRun]> {
    // A pattern that the filter knows nothing of ends a run, which is looked at again for each pattern that is tried.
    let known = |test: &PatternTest| PatternFilter::knows(test.1);
    let tests: Vec<_> = tests.map(|test| test.filter(known)).collect();
    let subject = |test: &Option<PatternTest>| test.map(|(subject, _)| subject);
    let mut begin = 0;
    let runs = tests.chunk_by(|one, next| subject(one).is_some() && subject(one) == subject(next));
    let runs = runs.filter_map(|run| {
        let commands = begin..begin + run.len();
        begin = commands.end;
        let regexes: Vec<&Regex> = run.iter().flatten().map(|(_, regex)| *regex).collect();
        (regexes.len() >= MIN_COMMANDS).then_some(PatternRun {
            commands,
            subject: subject(&run[0])?,
            filter: PatternFilter::new(regexes.into_iter()),
        })
    });
    runs.collect()
}

/// The next command that can have an effect, from `next` on.
pub(super) fn pass_over(runs: &[PatternRun], next: usize, request: &mut Request) -> usize {
    let at = runs.partition_point(|run| run.commands.end <= next);
    let Some(run) = runs.get(at).filter(|run| run.commands.contains(&next)) else {
        return next;
    };
    let place = next - run.commands.start;
    let is_ahead = |candidate: &usize| *candidate >= place;
    let found = match run.subject {
        RunSubject::Path => run.filter.candidates(&request.uri.path).find(is_ahead),
        RunSubject::Variable(variable) => {
            let mut text = Vec::new();
            request.variable(variable, &mut text);
            run.filter.candidates(&text).find(is_ahead)
        }
    };
    let found = found.map_or(run.commands.end, |place| run.commands.start + place);
    if found > next {
        // As after a pattern that was tried and did not match.
        request.captured.clear();
    }
    found
}
