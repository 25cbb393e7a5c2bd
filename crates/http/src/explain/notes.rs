//! What modules say to `weir explain`, and how.

use std::fmt;
use std::rc::Rc;

use bstr::BString;

use super::places::{ExplainedLine, ExplainedPlace, ExplainedTree};
use crate::block_ids::LocationId;
use crate::handler::{HandlerOutcome, HandlerStep, HttpPhase};
use crate::request::Request;

/// What `weir explain` does in the place of a module's handlers and its filter.
///
/// The rule: nothing is written, no other server is asked, no script runs, no state of the running server is guessed.
#[derive(Clone, Copy)]
pub enum ModuleExplain {
    /// They only read the request and files: they are run. These directives are shown as the reason.
    Runs(&'static [&'static str]),
    /// The same, and what they answer with success is the file of the request's path, with this ending.
    ServesFiles(&'static str),
    /// They are not run: what follows depends on them. These directives say so, by the phase that they act in; for the
    /// filter, all of them.
    Depends(&'static [(HttpPhase, &'static [&'static str])]),
    /// They are not run, and nothing depends on them: what they do is not a part of the response.
    Aside(&'static [&'static str]),
    /// This function takes the place of the handlers, and says what it does.
    Described(DescribedHandler),
    /// The content handler asks another server, which is described and not asked: by `explain::describe_cached` or
    /// `explain::describe_direct`.
    Exchange(fn(&mut Request, &mut ExplainNotes) -> Result<(), HandlerOutcome>),
}

/// Takes the place of a handler in a phase, and notes what it decides.
pub type DescribedHandler =
    for<'a> fn(&'a mut Request, HttpPhase, &'a mut ExplainNotes) -> HandlerStep<'a>;

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// It decided or changed something.
    Applies,
    /// It was considered, and changed nothing.
    Passes,
    /// It was not run: what follows depends on it.
    NotRun,
}

impl StepResult {
    /// For programs.
    pub fn word(self) -> &'static str {
        match self {
            StepResult::Applies => "applies",
            StepResult::Passes => "passes",
            StepResult::NotRun => "not run",
        }
    }
}

/// One step on the way of a request.
#[derive(Clone, Debug)]
pub struct ExplainedStep {
    /// What it is: `location`, `rewrite`, `access`, …
    pub kind: &'static str,
    /// What it came to.
    pub result: StepResult,
    /// What it does, in words of the configuration.
    pub text: BString,
    /// The directive that says so; `None` for a default.
    pub place: Option<ExplainedPlace>,
}

/// The record of an explained request. It exists for `weir explain` only: nothing on the path of a served request refers
/// to it.
pub struct ExplainNotes {
    /// Where directives stand.
    pub tree: Rc<ExplainedTree>,
    /// The steps so far.
    pub steps: Vec<ExplainedStep>,
    /// What the rest depends on.
    pub depends_on: Vec<BString>,
    /// The response is made by what was not run.
    pub(super) is_elsewhere: bool,
}

impl ExplainNotes {
    /// No steps yet.
    pub(super) fn new(tree: Rc<ExplainedTree>) -> ExplainNotes {
        ExplainNotes {
            tree,
            steps: Vec::new(),
            depends_on: Vec::new(),
            is_elsewhere: false,
        }
    }

    /// Adds a step.
    pub fn step(
        &mut self,
        kind: &'static str,
        result: StepResult,
        text: impl fmt::Display,
        place: Option<ExplainedPlace>,
    ) {
        self.steps.push(ExplainedStep {
            kind,
            result,
            text: text.to_string().into(),
            place,
        });
    }

    /// Adds a step that is not run, on which the rest depends.
    pub fn not_run(&mut self, kind: &'static str, line: &ExplainedLine<'_>) {
        let (text, place) = (line.text.clone(), line.place.clone());
        self.step(kind, StepResult::NotRun, &text, place);
        self.depends_on.push(text);
    }

    /// Ends the explanation: what would answer is not run.
    pub fn ends_elsewhere(&mut self) {
        self.is_elsewhere = true;
    }

    /// The place of the first directive with one of these names that applies to a location.
    pub fn place_of(&self, location: LocationId, names: &[&str]) -> Option<ExplainedPlace> {
        let lines = self.tree.lines(location, names);
        lines.first().and_then(|line| line.place.clone())
    }
}
