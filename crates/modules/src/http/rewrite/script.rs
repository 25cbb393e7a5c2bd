//! The commands of a script and the loop that runs them.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use ::http::body::Body;
use ::http::files::{self, Found, Purpose};
use ::http::module::{ScriptProgress, ScriptStep, ScriptTask};
use ::http::site::{LocationId, Site};
use ::http::{Outcome, Request, Step, types};
use bstr::BString;
use conf::{Diagnostic, Expression, Line, Scope, VarId};
use proto::uri::{Escape, escape};

use super::Conf;
use super::condition::{Condition, FileTest, Test};
use super::replace::{Replaced, Rewrite};

/// One directive of a script.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Set {
        variable: VarId,
        value: Expression,
    },
    Rewrite(Box<Rewrite>),
    Return(Return),
    Break,
    /// The script of `block` runs if the condition is met; in a location the request is in that block from then on.
    If {
        condition: Condition,
        block: LocationId,
        enters: bool,
    },
    /// A step of another module.
    Foreign(Foreign),
}

/// A step of another module, in its place in the script.
#[derive(Clone)]
pub(super) struct Foreign(pub(super) Arc<dyn ScriptStep>);

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Foreign")
    }
}

/// What `return` answers.
#[derive(Clone, Debug)]
pub(super) struct Return {
    status: u16,
    text: Option<Expression>,
}

/// The largest status that `return` takes.
const MAX_STATUS: i64 = 999;

impl Return {
    pub(super) fn read(line: &mut Line) -> Result<Return, Diagnostic> {
        let first = line.text(0);
        let Some(status) = base::text::decimal(first) else {
            if line.args().len() == 1 && is_absolute(first) {
                return Ok(Return {
                    status: 302,
                    text: Some(line.expression(0)?),
                });
            }
            return Err(line.error_at(0, format!("invalid return code \"{first}\"")));
        };
        if status > MAX_STATUS {
            return Err(line.error_at(0, format!("invalid return code \"{first}\"")));
        }
        let text = if line.args().len() == 2 {
            Some(line.expression(1)?)
        } else {
            None
        };
        Ok(Return {
            status: status as u16,
            text,
        })
    }

    fn run(&self, request: &mut Request) -> Outcome {
        if self.status >= 400 && self.text.as_ref().is_none_or(Expression::is_empty) {
            return Outcome::Status(self.status);
        }
        // The text may show it.
        request.out.status = self.status;
        let text = self
            .text
            .as_ref()
            .map(|text| request.value(text))
            .unwrap_or_default();
        if matches!(self.status, 301..=303 | 307 | 308) {
            request.out.location = Some(text);
            return Outcome::Status(self.status);
        }
        // `X-Accel-Redirect` keeps the type that the application named.
        if request.out.content_type.is_empty() {
            types::set_content_type(request);
        }
        let out = &mut request.out;
        out.content_length = Some(text.len() as u64);
        out.body = Body::bytes(Vec::from(text));
        Outcome::Respond
    }
}

/// Whether a target is recognised as the address of another place, so that it can only be redirected to.
pub(super) fn is_absolute(target: &[u8]) -> bool {
    [&b"http://"[..], b"https://", b"$scheme"]
        .iter()
        .any(|start| target.starts_with(start))
}

/// How far a script has run for one request.
pub(super) struct Machine {
    site: Rc<Site>,
    /// The block whose script is running, and the next command of it.
    block: LocationId,
    next: usize,
    /// Where to go on when the script of an `if` has ended. An `if` can not stand in another one.
    outer: Option<(LocationId, usize)>,
    quoting: Quoting,
    /// Whether steps are logged (`rewrite_log`).
    log: bool,
}

/// Whether captures are escaped where they are inserted.
///
/// nginx does so in what becomes a redirect and in what `set` sets, but for what stands after a rewrite of the path in
/// the same script; and only if the client's path had escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    Escaped,
    Plain,
}

/// What came of running a script for a while.
enum Progress {
    Done(Outcome),
    /// A condition asks about a file that is not in memory.
    Wait(FileTest, BString),
    /// A step of another module takes time.
    Task(Box<dyn ScriptTask>),
}

impl Machine {
    /// A script at its beginning: that of the request's present location.
    pub(super) fn new(request: &Request) -> Machine {
        Machine {
            site: Rc::clone(&request.site),
            block: request.location,
            next: 0,
            outer: None,
            quoting: Quoting::Escaped,
            log: request.conf::<Conf>().log,
        }
    }

    /// Runs the script.
    pub(super) fn step(mut self, request: &mut Request) -> Step<'_> {
        match self.run(request) {
            Progress::Done(outcome) => outcome.into(),
            waiting => Step::later(self.wait(request, waiting)),
        }
    }

    async fn wait(mut self, request: &mut Request, mut progress: Progress) -> Outcome {
        loop {
            match progress {
                Progress::Done(outcome) => return outcome,
                Progress::Wait(test, path) => {
                    let found = files::open(request, &path, Purpose::Look).await;
                    self.decide(request, test.holds(request, &path, found));
                }
                Progress::Task(mut task) => {
                    let outcome = poll_fn(|context| task.poll(request, context)).await;
                    if outcome != Outcome::Declined {
                        return outcome;
                    }
                }
            }
            progress = self.run(request);
        }
    }

    fn run(&mut self, request: &mut Request) -> Progress {
        let site = Rc::clone(&self.site);
        loop {
            let commands = &site.location(self.block).confs.get::<Conf>().commands;
            let Some((_, command)) = commands.get(self.next) else {
                match self.outer.take() {
                    Some((block, next)) => (self.block, self.next) = (block, next),
                    None => return Progress::Done(Outcome::Declined),
                }
                continue;
            };
            self.next += 1;
            let outcome = match command {
                Command::Set { variable, value } => {
                    match value.constant() {
                        Some(text) => request.set_variable(*variable, text),
                        None => {
                            let value = quoted(request, value, self.quoting);
                            request.set_variable(*variable, &value);
                        }
                    }
                    None
                }
                Command::Rewrite(rewrite) => self.rewrite(rewrite, request),
                Command::Return(answer) => Some(answer.run(request)),
                Command::Break => Some(end_here(request)),
                Command::Foreign(Foreign(step)) => {
                    let inputs = step.inputs().iter();
                    let inputs = inputs.map(|input| quoted(request, input, self.quoting));
                    let inputs = inputs.collect();
                    match step.run(request, inputs) {
                        ScriptProgress::Done(Outcome::Declined) => None,
                        ScriptProgress::Done(outcome) => Some(outcome),
                        ScriptProgress::Later(task) => return Progress::Task(task),
                    }
                }
                Command::If { condition, .. } => {
                    match condition.test(request, self.quoting, self.log) {
                        Test::Known(holds) => {
                            self.decide(request, holds);
                            None
                        }
                        Test::File(test, path) => match look(request, &path) {
                            Some(found) => {
                                let holds = test.holds(request, &path, found);
                                self.decide(request, holds);
                                None
                            }
                            None => return Progress::Wait(test, path),
                        },
                    }
                }
            };
            if let Some(outcome) = outcome {
                return Progress::Done(outcome);
            }
        }
    }

    /// Goes on behind the condition that was run last: into its block, or past it.
    fn decide(&mut self, request: &mut Request, holds: bool) {
        let site = Rc::clone(&self.site);
        let commands = &site.location(self.block).confs.get::<Conf>().commands;
        let Some((_, Command::If { block, enters, .. })) = commands.get(self.next - 1) else {
            return;
        };
        if !holds {
            return;
        }
        if *enters {
            request.enter_location(*block);
        }
        self.outer = Some((self.block, self.next));
        (self.block, self.next) = (*block, 0);
    }

    fn rewrite(&mut self, rewrite: &Rewrite, request: &mut Request) -> Option<Outcome> {
        match rewrite.run(request, self.log) {
            Replaced::Not => return None,
            Replaced::Answer(outcome) => return Some(outcome),
            Replaced::Path => {}
        }
        self.quoting = Quoting::Plain;
        rewrite.is_last().then_some(Outcome::Declined)
    }
}

/// `break`: a path that was changed is served in this location.
fn end_here(request: &mut Request) -> Outcome {
    if request.flow.uri_changed {
        request.flow.uri_changed = false;
        request.flow.rewritten = true;
    }
    Outcome::Declined
}

fn look(request: &mut Request, path: &BString) -> Option<Found> {
    files::try_open(request, path, Purpose::Look)
}

/// The value of an expression in which captures are escaped, if need be.
pub(super) fn quoted(request: &mut Request, expression: &Expression, quoting: Quoting) -> BString {
    if quoting == Quoting::Plain || !expression.has_captures() || !request.has_escaped_path() {
        return request.value(expression);
    }
    let mut out = Vec::new();
    expression.eval(&mut Escaping(request), &mut out);
    out.into()
}

/// A request of which captures are escaped as a part of arguments.
struct Escaping<'a>(&'a mut Request);

impl Scope for Escaping<'_> {
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
        self.0.variable(id, out)
    }

    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let group = self.0.captured.group(n);
        if let Some(text) = group {
            escape(Escape::Args, text, out);
        }
        group.is_some()
    }
}
