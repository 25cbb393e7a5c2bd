//! The commands of a script and the loop that runs them.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;

use ::http::files::{self, FilePurpose, OpenFileResult};
use ::http::http_site::{HttpSite, LocationId};
use ::http::module::{ScriptProgress, ScriptStep, ScriptTask};
use ::http::response_body::ResponseBody;
use ::http::{HandlerOutcome, HandlerStep, Request, content_type};
use bstr::BString;
use conf::{Diagnostic, DirectiveLine, Expression, VarId, VariableScope};
use proto::uri::{EscapeClass, escape};

use super::Conf;
use super::condition::{ConditionOutcome, FileTest, IfCondition};
use super::pattern_run::{PatternTest, RunSubject, pass_over};
use super::replace::{RewriteResult, RewriteRule};

/// One command of a script.
#[derive(Clone, Debug)]
pub(super) enum ScriptCommand {
    Set {
        variable: VarId,
        value: Expression,
    },
    /// Boxed: it is much larger than the other commands.
    Rewrite(Box<RewriteRule>),
    Return(ReturnCommand),
    /// `break`.
    Break,
    /// Runs the script of `block` if the condition holds. In a location the request is in that
    /// block from then on (`enters`).
    If {
        condition: IfCondition,
        block: LocationId,
        enters: bool,
    },
    /// A step of another module.
    Foreign(ForeignStep),
}

/// A step of another module, at its position in the script.
#[derive(Clone)]
pub(super) struct ForeignStep(pub(super) Arc<dyn ScriptStep>);

impl fmt::Debug for ForeignStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Foreign")
    }
}

impl ScriptCommand {
    /// What it tests, if it has no effect unless a pattern matches.
    pub(super) fn pattern_test(&self) -> Option<PatternTest<'_>> {
        match self {
            Self::Rewrite(rule) => Some((RunSubject::Path, rule.regex())),
            Self::If {
                condition: IfCondition::Matches(variable, pattern),
                ..
            } => {
                let variable = variable.single_variable()?;
                Some((RunSubject::Variable(variable), &pattern.regex))
            }
            _ => None,
        }
    }
}

/// The response of a `return`.
#[derive(Clone, Debug)]
pub(super) struct ReturnCommand {
    status: u16,
    text: Option<Expression>,
}

/// The largest status that `return` accepts, as in nginx.
const MAX_STATUS: i64 = 999;

impl ReturnCommand {
    /// Parses a `return` directive.
    pub(super) fn read(line: &mut DirectiveLine) -> Result<ReturnCommand, Diagnostic> {
        let first = line.text(0);
        let Some(status) = base::text::decimal(first) else {
            // `return URL` is short for `return 302 URL`.
            if line.args().len() == 1 && is_absolute(first) {
                return Ok(ReturnCommand {
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
        Ok(ReturnCommand {
            status: status as u16,
            text,
        })
    }

    /// Makes the response.
    fn run(&self, request: &mut Request) -> HandlerOutcome {
        // Without a text, an error is for `error_page` or the built-in page; a text is sent as it
        // is.
        if self.status >= 400 && self.text.as_ref().is_none_or(Expression::is_empty) {
            return HandlerOutcome::Status(self.status);
        }
        // Before the text is evaluated, since it may contain `$status`.
        request.out.status = self.status;
        // The length is that of the text, which is not there yet.
        request.out.transforms.unannounced_length = true;
        let text = self
            .text
            .as_ref()
            .map(|text| request.value(text))
            .unwrap_or_default();
        request.out.transforms.unannounced_length = false;
        if matches!(self.status, 301..=303 | 307 | 308) {
            request.out.location = Some(text);
            return HandlerOutcome::Status(self.status);
        }
        // `X-Accel-Redirect` keeps the type that the application named.
        if request.out.content_type.is_empty() {
            content_type::set_content_type(request);
        }
        let out = &mut request.out;
        out.content_length = Some(text.len() as u64);
        out.body = ResponseBody::bytes(Vec::from(text));
        HandlerOutcome::Respond
    }
}

/// Whether a target begins with a scheme, or with `$scheme`, and therefore can only be a redirect.
pub(super) fn is_absolute(target: &[u8]) -> bool {
    [&b"http://"[..], b"https://", b"$scheme"]
        .iter()
        .any(|start| target.starts_with(start))
}

/// A script in progress for one request.
pub(super) struct ScriptMachine {
    /// The block whose script is running, and the index of its next command.
    block: LocationId,
    next: usize,
    /// Where to continue after the script of an `if`. One level suffices: an `if` must not contain
    /// another.
    outer: Option<(LocationId, usize)>,
    quoting: CaptureEscaping,
    /// Whether steps are logged (`rewrite_log`).
    log: bool,
    /// Whether commands without an effect are passed over together. Not where each has a line of its own: in the log, and
    /// in `weir explain`.
    passes_over: bool,
}

/// Whether captures are escaped where they are inserted.
///
/// As in nginx they are in redirects and in values of `set`, except after a rewrite of the path in
/// the same script, and only if the client's path had escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureEscaping {
    Escaped,
    Plain,
}

/// The result of running a script as far as possible.
pub(super) enum RunProgress {
    Done(HandlerOutcome),
    /// A condition needs a file that the kernel does not have in memory.
    Wait(FileTest, BString),
    /// A step of another module has to wait.
    Task(Box<dyn ScriptTask>),
}

impl ScriptMachine {
    /// Starts the script of the request's current location.
    #[inline]
    pub(super) fn new(request: &Request) -> ScriptMachine {
        let log = script_of(&request.site, request.location).log;
        ScriptMachine {
            block: request.location,
            next: 0,
            outer: None,
            quoting: CaptureEscaping::Escaped,
            log,
            passes_over: !log,
        }
    }

    /// The same, one command at a time.
    pub(super) fn step_by_step(request: &Request) -> ScriptMachine {
        ScriptMachine {
            passes_over: false,
            ..ScriptMachine::new(request)
        }
    }

    /// The block whose script is running.
    pub(super) fn block(&self) -> LocationId {
        self.block
    }

    /// Runs the script. Most scripts never wait, so the future is only created for those that do.
    pub(super) fn step(mut self, request: &mut Request) -> HandlerStep<'_> {
        match self.run(request) {
            RunProgress::Done(outcome) => outcome.into(),
            waiting => HandlerStep::later(self.wait(request, waiting)),
        }
    }

    /// Runs the rest of a script that had to wait.
    async fn wait(mut self, request: &mut Request, mut progress: RunProgress) -> HandlerOutcome {
        loop {
            if let Some(outcome) = self.settle(request, progress).await {
                return outcome;
            }
            progress = self.run(request);
        }
    }

    /// Waits for a command that has to; the outcome if the script ends with it.
    pub(super) async fn settle(
        &mut self,
        request: &mut Request,
        progress: RunProgress,
    ) -> Option<HandlerOutcome> {
        match progress {
            RunProgress::Done(outcome) => Some(outcome),
            RunProgress::Wait(test, path) => {
                let found = files::open_request_file(request, &path, FilePurpose::Look).await;
                self.take_branch(request, test.holds(request, &path, found));
                None
            }
            RunProgress::Task(mut task) => {
                let outcome = poll_fn(|context| task.poll(request, context)).await;
                (outcome != HandlerOutcome::Declined).then_some(outcome)
            }
        }
    }

    /// Runs commands until the script ends or has to wait.
    fn run(&mut self, request: &mut Request) -> RunProgress {
        // A request keeps its configuration, so a script that waits across a reload goes on with the same one.
        let site = Rc::clone(&request.site);
        while let Some((_, command)) = self.next_command(&site, request) {
            if let Some(progress) = self.run_command(command, request) {
                return progress;
            }
        }
        RunProgress::Done(HandlerOutcome::Declined)
    }

    /// The next command with its position in its block; `None` at the end.
    // Like `run_command` inlined into `run`, which every request runs: `weir explain` is the other caller of both.
    #[inline]
    pub(super) fn next_command<'s>(
        &mut self,
        site: &'s HttpSite,
        request: &mut Request,
    ) -> Option<&'s (usize, ScriptCommand)> {
        loop {
            let conf = script_of(site, self.block);
            // The log has a line for each command.
            if !conf.runs().is_empty() && self.passes_over {
                self.next = pass_over(conf.runs(), self.next, request);
            }
            if let Some(command) = conf.commands.get(self.next) {
                // Before the command runs: if it has to wait, the script continues after it.
                self.next += 1;
                return Some(command);
            }
            // The end of the script of an `if` is not the end of the whole.
            (self.block, self.next) = self.outer.take()?;
        }
    }

    /// Runs a command. `None`: the script goes on.
    #[inline]
    pub(super) fn run_command(
        &mut self,
        command: &ScriptCommand,
        request: &mut Request,
    ) -> Option<RunProgress> {
        let outcome = match command {
            ScriptCommand::Set { variable, value } => {
                // The common case: neither evaluation nor a copy is needed.
                match value.constant() {
                    Some(text) => request.set_variable(*variable, text),
                    None => {
                        let value = escaped_value(request, value, self.quoting);
                        request.set_variable(*variable, &value);
                    }
                }
                None
            }
            ScriptCommand::Rewrite(rewrite) => self.rewrite(rewrite, request),
            ScriptCommand::Return(answer) => Some(answer.run(request)),
            ScriptCommand::Break => Some(break_script(request)),
            ScriptCommand::Foreign(ForeignStep(step)) => {
                let inputs = step.inputs().iter();
                let inputs = inputs.map(|input| escaped_value(request, input, self.quoting));
                let inputs = inputs.collect();
                match step.run(request, inputs) {
                    ScriptProgress::Done(HandlerOutcome::Declined) => None,
                    ScriptProgress::Done(outcome) => Some(outcome),
                    ScriptProgress::Later(task) => return Some(RunProgress::Task(task)),
                }
            }
            ScriptCommand::If { condition, .. } => {
                match condition.test(request, self.quoting, self.log) {
                    ConditionOutcome::Known(holds) => self.take_branch(request, holds),
                    ConditionOutcome::File(test, path) => match try_stat(request, &path) {
                        Some(found) => {
                            let holds = test.holds(request, &path, found);
                            self.take_branch(request, holds);
                        }
                        None => return Some(RunProgress::Wait(test, path)),
                    },
                }
                None
            }
        };
        outcome.map(RunProgress::Done)
    }

    /// Continues after the condition that was tested last: in its block, or past it.
    fn take_branch(&mut self, request: &mut Request, holds: bool) {
        let site = Rc::clone(&request.site);
        let commands = &script_of(&site, self.block).commands;
        // The condition was the command before `next`; the script cannot have moved on while it waited.
        let Some((_, ScriptCommand::If { block, enters, .. })) = commands.get(self.next - 1) else {
            return;
        };
        if !holds {
            return;
        }
        // Also before its script runs: directives of the block, such as `set`, see its settings.
        if *enters {
            request.enter_location(*block);
            request.limit_keepalive(&request.core());
        }
        self.outer = Some((self.block, self.next));
        (self.block, self.next) = (*block, 0);
    }

    /// Runs a `rewrite`; the outcome if the script ends with it.
    fn rewrite(&mut self, rewrite: &RewriteRule, request: &mut Request) -> Option<HandlerOutcome> {
        match rewrite.run(request, self.log) {
            RewriteResult::NoMatch => return None,
            RewriteResult::Answer(outcome) => return Some(outcome),
            RewriteResult::Path => {}
        }
        // The path is no longer the client's escaped one; nginx stops escaping captures here, too.
        self.quoting = CaptureEscaping::Plain;
        rewrite.is_last().then_some(HandlerOutcome::Declined)
    }
}

/// The script of a block.
fn script_of(site: &HttpSite, block: LocationId) -> &Conf {
    site.location(block).confs.get()
}

/// `break`: the rest of the script is skipped, and a path that was rewritten is served by this
/// location.
fn break_script(request: &mut Request) -> HandlerOutcome {
    // Without `break`, the changed path would cause a new search for a location.
    if request.flow.uri_changed {
        request.flow.uri_changed = false;
        request.flow.rewritten = true;
    }
    HandlerOutcome::Declined
}

/// Looks for a file without waiting; `None` if that is impossible.
fn try_stat(request: &mut Request, path: &BString) -> Option<OpenFileResult> {
    files::try_open(request, path, FilePurpose::Look)
}

/// Evaluates an expression; its captures are escaped if `quoting` asks for it and the client's path
/// had escapes.
pub(super) fn escaped_value(
    request: &mut Request,
    expression: &Expression,
    quoting: CaptureEscaping,
) -> BString {
    if quoting == CaptureEscaping::Plain
        || !expression.has_captures()
        || !request.has_escaped_path()
    {
        return request.value(expression);
    }
    let mut out = Vec::new();
    expression.eval(&mut EscapedCaptures(request), &mut out);
    out.into()
}

/// Evaluates expressions with captures escaped so that they can be part of arguments.
struct EscapedCaptures<'a>(&'a mut Request);

impl VariableScope for EscapedCaptures<'_> {
    fn variable(&mut self, id: VarId, out: &mut Vec<u8>) -> bool {
        self.0.variable(id, out)
    }

    fn capture(&mut self, n: usize, out: &mut Vec<u8>) -> bool {
        let group = self.0.captured.group(n);
        if let Some(text) = group {
            escape(EscapeClass::Args, text, out);
        }
        group.is_some()
    }
}
