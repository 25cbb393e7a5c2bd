//! `set_by_lua`: a variable whose value a script computes, in order among `set`, `rewrite` and
//! `if`.
//!
//! Those directives run as one list of steps, so this one adds its step to that list instead of
//! registering a handler for the rewrite phase.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bstr::{BString, ByteSlice};
use conf::{Diagnostic, DirectiveLine, Expression, VarId};
use http::module::{ScriptProgress, ScriptStep, ScriptSteps, ScriptTask, assigned_variable};
use http::{HandlerOutcome, Request};

use crate::chunk::{LuaChunk, ScriptKind};
use crate::loop_vms;
use crate::run::{RunEnd, RunEvent, ScriptRun};
use crate::scope::RunScope;
use crate::scripts::HttpScripts;

/// One `set_by_lua` line: a step of the rewrite list.
struct SetByLua {
    /// The variable that gets the result.
    variable: VarId,
    /// The code.
    chunk: Arc<LuaChunk>,
    /// What follows the code: `ngx.arg[1]` and so on.
    arguments: Vec<Expression>,
}

/// Reads a line of any of the three spellings.
pub(crate) fn read(_: &mut HttpScripts, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let variable = assigned_variable(line)?;
    let chunk = LuaChunk::read(line, ScriptKind::Set, 1)?;
    // The rewrite module evaluates these beforehand: a variable may have to wait, and the script
    // must not.
    let arguments = (2..line.args().len())
        .map(|i| line.expression(i))
        .collect::<Result<_, _>>()?;
    let set = SetByLua {
        variable,
        chunk,
        arguments,
    };
    // As documented, `set_by_lua` runs among the directives of the rewrite module, in the order of
    // their lines.
    ScriptSteps::add(line, set);
    Ok(())
}

impl ScriptStep for SetByLua {
    fn inputs(&self) -> &[Expression] {
        &self.arguments
    }

    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress {
        let Some(vm) = loop_vms::for_request(request) else {
            // The variable would stay without its value, and later directives may decide by it.
            return ScriptProgress::Done(HandlerOutcome::Status(500));
        };
        let function = match vm.function(&self.chunk, request.into()) {
            Ok(function) => function,
            Err(unloaded) => {
                request.error(format_args!("{}", unloaded.message.as_bstr()));
                return ScriptProgress::Done(HandlerOutcome::Status(500));
            }
        };
        let scope = RunScope::new(Rc::clone(&vm), ScriptKind::Set, request.logger().clone());
        if !inputs.is_empty() {
            *scope.set_arguments.borrow_mut() = inputs.into_iter().map(Into::into).collect();
        }
        let run = ScriptRun::new(scope, &function, &vm.settings.limits).of_chunk(&self.chunk);
        let mut task = SetByLuaTask {
            run,
            variable: self.variable,
        };
        match task.run.advance(request.into()) {
            // The time slice is over; the request goes on when it is the script's turn.
            RunEvent::Waiting => ScriptProgress::Later(Box::new(task)),
            event => ScriptProgress::Done(task.finish(request, event)),
        }
    }
}

/// A script that was preempted in its first time slice: `set_by_lua` cannot wait, but may compute
/// for longer than a slice.
struct SetByLuaTask {
    run: ScriptRun,
    variable: VarId,
}

impl SetByLuaTask {
    /// The script has ended: assigns its first result to the variable.
    fn finish(&self, request: &mut Request, event: RunEvent) -> HandlerOutcome {
        match event {
            RunEvent::Ended(RunEnd::Completed(returned)) => {
                // Only the first result counts, and nil is the empty string.
                match returned.into_iter().next().flatten() {
                    Some(value) => request.set_variable(self.variable, &value),
                    None => request.set_variable(self.variable, b""),
                }
                HandlerOutcome::Declined
            }
            RunEvent::Ended(_) => HandlerOutcome::Status(500),
            RunEvent::NeedBody(_) | RunEvent::Flush(_) | RunEvent::Waiting => {
                request.error(format_args!(
                    "API disabled in the context of set_by_lua*: it cannot yield"
                ));
                HandlerOutcome::Status(500)
            }
        }
    }
}

impl ScriptTask for SetByLuaTask {
    fn poll(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<HandlerOutcome> {
        self.run
            .poll(request.into(), context)
            .map(|event| self.finish(request, event))
    }
}
