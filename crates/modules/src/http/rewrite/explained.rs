//! For `weir explain`: the same script, with a line for each of its commands.

use std::rc::Rc;

use ::http::explain::StepResult;
use ::http::http_site::LocationId;
use ::http::module::ExplainNotes;
use ::http::{HandlerOutcome, HandlerStep, HttpPhase, Request};
use bstr::BString;
use conf::VariableScope as _;

use super::script::{ForeignStep, ScriptCommand, ScriptMachine};

/// Runs the script of a phase in the place of its handler.
pub(super) fn describe<'a>(
    request: &'a mut Request,
    phase: HttpPhase,
    notes: &'a mut ExplainNotes,
) -> HandlerStep<'a> {
    // As the handler: a request that no location matched has run its server's script already.
    let root = request.site.server(request.server).root;
    if phase == HttpPhase::Rewrite && request.location == root {
        return HandlerOutcome::Declined.into();
    }
    HandlerStep::later(run(request, notes))
}

/// Runs the commands one at a time, and looks at the request between two of them: what has changed is what the command did.
/// A step of another module that does more than compute is not run. Its variable keeps its value, and what follows depends
/// on it, which the notes say.
async fn run(request: &mut Request, notes: &mut ExplainNotes) -> HandlerOutcome {
    // A request keeps its configuration, as in the server.
    let site = Rc::clone(&request.site);
    let mut machine = ScriptMachine::step_by_step(request);
    while let Some((index, command)) = machine.next_command(&site, request) {
        let before = ScriptSight {
            block: machine.block(),
            index: *index,
            path: request.uri.path.clone(),
            args: request.uri.args.clone(),
        };
        // A script of Lua, for one: it could write, or ask another server.
        if let ScriptCommand::Foreign(ForeignStep(step)) = command
            && !step.only_computes()
        {
            let tree = Rc::clone(&notes.tree);
            if let Some(line) = tree.line_at(before.block, before.index) {
                notes.not_run("script", &line);
            }
            continue;
        }
        let outcome = match machine.run_command(command, request) {
            Some(progress) => machine.settle(request, progress).await,
            None => None,
        };
        before.tell(command, &machine, outcome, request, notes);
        if let Some(outcome) = outcome {
            return outcome;
        }
    }
    HandlerOutcome::Declined
}

/// What there was before a command.
struct ScriptSight {
    /// The block of the command, in which its line is found.
    block: LocationId,
    /// Its position there.
    index: usize,
    /// The path before it.
    path: BString,
    /// The arguments before it.
    args: BString,
}

impl ScriptSight {
    /// Notes what the command did, in the words of its line. A value is shown as it was set: later commands may change it
    /// again, and each has a line of its own.
    fn tell(
        &self,
        command: &ScriptCommand,
        machine: &ScriptMachine,
        outcome: Option<HandlerOutcome>,
        request: &mut Request,
        notes: &mut ExplainNotes,
    ) {
        use StepResult::{Applies, Passes};
        let tree = Rc::clone(&notes.tree);
        let Some(line) = tree.line_at(self.block, self.index) else {
            return;
        };
        let (kind, result, more) = match command {
            ScriptCommand::Set { variable, .. } => {
                let mut value = Vec::new();
                request.variable(*variable, &mut value);
                ("set", Applies, format!(" → \"{}\"", BString::from(value)))
            }
            ScriptCommand::Rewrite(rule) if !rule.regex().is_match(&self.path) => {
                ("rewrite", Passes, format!(": does not match {}", self.path))
            }
            ScriptCommand::Rewrite(_) => match (outcome, &request.out.location) {
                (Some(HandlerOutcome::Status(status)), Some(location)) => {
                    ("rewrite", Applies, format!(" → {status} {location}"))
                }
                _ => ("rewrite", Applies, format!(" → {}", self.target(request))),
            },
            ScriptCommand::Return(_) => ("return", Applies, String::new()),
            ScriptCommand::Break => ("break", Applies, String::new()),
            ScriptCommand::If { block, .. } => match machine.block() == *block {
                true => ("if", Applies, ": holds".to_owned()),
                false => ("if", Passes, ": does not hold".to_owned()),
            },
            ScriptCommand::Foreign(_) => ("set", Applies, String::new()),
        };
        notes.step(kind, result, format!("{}{more}", line.text), line.place);
    }

    /// Where a rewrite led: without arguments where there were none before, so that the line is short.
    fn target(&self, request: &Request) -> String {
        let uri = &request.uri;
        match uri.args == self.args && uri.args.is_empty() {
            true => uri.path.to_string(),
            false => format!("{}?{}", uri.path, uri.args),
        }
    }
}
