//! `set_by_lua`: a variable whose value a script computes, in its place among `set` and `rewrite`.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bstr::{BString, ByteSlice};
use conf::{Definition, Diagnostic, Expression, Get, Line, VarId};
use http::module::{ScriptProgress, ScriptStep, ScriptSteps, ScriptTask};
use http::{Outcome, Request};

use crate::chunk::{Chunk, Kind};
use crate::directives::Code;
use crate::run::{End, Event, Run};
use crate::scope::Scope;
use crate::vm;

/// One line.
struct Set {
    variable: VarId,
    chunk: Arc<Chunk>,
    arguments: Vec<Expression>,
}

/// The setter of the rows.
pub(crate) fn read(_: &mut Code, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    let variable = match registry.is_defined(name) {
        true => registry.slot(name),
        false => registry.define(name, Definition::new(Get::Slot)),
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    let chunk = Chunk::read(line, Kind::Set, 1)?;
    let arguments = (2..line.args().len())
        .map(|i| line.expression(i))
        .collect::<Result<_, _>>()?;
    let set = Set {
        variable,
        chunk,
        arguments,
    };
    let index = line.index;
    line.shared::<ScriptSteps>().0.push((index, Arc::new(set)));
    Ok(())
}

impl ScriptStep for Set {
    fn inputs(&self) -> &[Expression] {
        &self.arguments
    }

    fn run(&self, request: &mut Request, inputs: Vec<BString>) -> ScriptProgress {
        let Some(vm) = vm::of(request) else {
            return ScriptProgress::Done(Outcome::Status(500));
        };
        let function = match vm.function(&self.chunk, request.into()) {
            Ok(function) => function,
            Err(unloaded) => {
                request.error(format_args!("{}", unloaded.message.as_bstr()));
                return ScriptProgress::Done(Outcome::Status(500));
            }
        };
        let scope = Scope::new(Rc::clone(&vm), Kind::Set, request.logger().clone());
        if !inputs.is_empty() {
            *scope.arguments.borrow_mut() = inputs.into_iter().map(Into::into).collect();
        }
        let run = Run::new(scope, &function, &vm.settings.limits);
        let mut task = Setting {
            run,
            variable: self.variable,
        };
        match task.run.advance(request.into()) {
            Event::Waiting => ScriptProgress::Later(Box::new(task)),
            event => ScriptProgress::Done(task.end(request, event)),
        }
    }
}

/// A script that needs more than its first slice.
struct Setting {
    run: Run,
    variable: VarId,
}

impl Setting {
    fn end(&self, request: &mut Request, event: Event) -> Outcome {
        match event {
            Event::Done(End::Through(returned)) => {
                match returned.into_iter().next().flatten() {
                    Some(value) => request.set_variable(self.variable, &value),
                    None => request.set_variable(self.variable, b""),
                }
                Outcome::Declined
            }
            Event::Done(_) => Outcome::Status(500),
            Event::NeedBody(_) | Event::Flush(_) | Event::Waiting => {
                request.error(format_args!(
                    "API disabled in the context of set_by_lua*: it cannot yield"
                ));
                Outcome::Status(500)
            }
        }
    }
}

impl ScriptTask for Setting {
    fn poll(&mut self, request: &mut Request, context: &mut Context<'_>) -> Poll<Outcome> {
        self.run
            .poll(request.into(), context)
            .map(|event| self.end(request, event))
    }
}
