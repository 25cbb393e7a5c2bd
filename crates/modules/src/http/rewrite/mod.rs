//! `rewrite`, `return`, `break`, `if`, `set`: change requests, redirect them or respond before any
//! content handler runs.
//!
//! ```nginx
//! server {
//!     if ($host = old.example.com) {
//!         return 301 https://www.example.com$request_uri;
//!     }
//!     rewrite ^/users/(.*)$ /show?user=$1 last;
//! }
//! ```
//!
//! The directives of a block form a script ([`script`]): commands as data, in file order, which one
//! loop runs before the location is chosen (the server's script) and after it (the location's). An
//! `if` is a block with a script of its own; in a location, its other directives apply from then
//! on.

mod condition;
mod explained;
mod pattern_run;
mod replace;
mod script;

use std::sync::OnceLock;

use ::http::configure;
use ::http::module::ScriptSteps;
use ::http::{HandlerStep, HttpModule, HttpPhase, Request};
use conf::{
    Arity, BlockConfs, Contexts, Diagnostic, Directive, DirectiveLine, DirectiveTable, HTTP,
    LOCATION, RepeatRule, SERVER, SERVER_LOCATION, SERVER_LOCATION_IF, Setter, VariableDefinition,
};
use host::error_log::LogLevel;

use self::condition::IfCondition;
use self::pattern_run::PatternRun;
use self::replace::RewriteRule;
use self::script::{ForeignStep, ReturnCommand, ScriptCommand, ScriptMachine};

pub(crate) static MODULE: HttpModule = HttpModule {
    name: "rewrite",
    doc: "Changes the request URI, returns responses and redirects, sets variables, tests conditions.",
    location: &DIRECTIVES,
    phases: &[
        (HttpPhase::ServerRewrite, rewrite_in_server),
        (HttpPhase::Rewrite, rewrite_in_location),
    ],
    enabled: |location| {
        let conf = location.confs.get::<Conf>();
        // The block is complete now, with its `if`s. No event loop should have to do this.
        conf.runs();
        !conf.commands.is_empty()
    },
    explain: ::http::module::ModuleExplain::Described(explained::describe),
    ..HttpModule::EMPTY
};

static DIRECTIVES: DirectiveTable<Conf> = DirectiveTable::<Conf>::new(&[
    Directive {
        name: "rewrite",
        syntax: "regex replacement [last | break | redirect | permanent]",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Replaces the URI if the regular expression matches. `last` then searches for a new location, `break` \
              stays in this one; `redirect` (302), `permanent` (301) and a replacement that starts with a scheme \
              redirect the client. The arguments of the request are appended unless the replacement ends with `?`.",
        set: Setter::Custom(Arity::between(2, 3), RepeatRule::Many, rewrite),
    },
    Directive {
        name: "return",
        syntax: "code [text] | code URL | URL",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Responds with this status and, optionally, a text or a redirect URL. 444 closes the connection without a \
              response.",
        set: Setter::Custom(Arity::between(1, 2), RepeatRule::Many, return_),
    },
    Directive {
        name: "break",
        syntax: "",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Stops processing rewrite directives; the request continues in this location.",
        set: Setter::Custom(Arity::NONE, RepeatRule::Many, |conf, line| {
            conf.add(line, ScriptCommand::Break);
            Ok(())
        }),
    },
    Directive {
        name: "if",
        syntax: "(condition) { ... }",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "A block for requests that satisfy a condition: a variable that is neither empty nor `0`; a comparison \
              with `=` or `!=`; a regular expression with `~`, `~*`, `!~` or `!~*`; a file test with `-f`, `-d`, `-e`, \
              `-x` or their negation with `!`.",
        set: Setter::Deferred(Arity::at_least(1), if_),
    },
    Directive {
        name: "set",
        syntax: "$variable value",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Sets a variable.",
        set: Setter::Custom(Arity::exactly(2), RepeatRule::Many, set),
    },
    Directive {
        name: "rewrite_log",
        syntax: "on | off",
        default: Some("off"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether to log the processing of rewrite directives at level `notice`.",
        set: Setter::Flag(|c| &mut c.log),
    },
    Directive {
        // The name is nginx's, spelling included.
        name: "uninitialized_variable_warn",
        syntax: "on | off",
        default: Some("on"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether to log uses of uninitialised variables.",
        set: Setter::Flag(|c| &mut c.warn_uninitialized),
    },
])
.inherit(
    |outer| Conf { commands: Vec::new(), runs: OnceLock::new(), ..*outer },
    |outer| outer.commands.is_empty(),
)
.finish_changed_or(|level| !level.lasting::<ScriptSteps>().0.is_empty(), |conf, _, level| {
    for (index, step) in std::mem::take(&mut level.lasting::<ScriptSteps>().0) {
        conf.insert(index, ScriptCommand::Foreign(ForeignStep(step)));
    }
    Ok(())
});

const ANYWHERE: Contexts = HTTP.or(SERVER_LOCATION_IF);

/// The script of a block. The commands are not inherited, as in nginx; the two flags are.
#[derive(Clone, Debug, Default)]
struct Conf {
    /// The commands with their positions in the block; see [`Conf::add`].
    commands: Vec<(usize, ScriptCommand)>,
    /// Parts of `commands` in which most are passed over.
    runs: OnceLock<Box<[PatternRun]>>,
    log: bool,
    warn_uninitialized: bool,
}

impl Conf {
    /// Adds the command of a directive. Blocks are read after all simple directives, so an `if`
    /// comes late and is inserted at its position in the file.
    fn add(&mut self, line: &DirectiveLine, command: ScriptCommand) {
        self.insert(line.index, command);
    }

    /// Inserts a command by its position in the block.
    fn insert(&mut self, index: usize, command: ScriptCommand) {
        // Most blocks have one command, and there may be many thousands of them.
        if self.commands.is_empty() {
            self.commands.reserve_exact(1);
        }
        // The commands are sorted, and mostly arrive in order.
        let at = self.commands.partition_point(|(known, _)| *known < index);
        self.commands.insert(at, (index, command));
    }

    /// See [`PatternRun`].
    fn runs(&self) -> &[PatternRun] {
        let tests = self
            .commands
            .iter()
            .map(|(_, command)| command.pattern_test());
        self.runs.get_or_init(|| pattern_run::find_runs(tests))
    }
}

/// Reads `rewrite`.
fn rewrite(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let rewrite = RewriteRule::read(line)?;
    conf.add(line, ScriptCommand::Rewrite(Box::new(rewrite)));
    Ok(())
}

/// Reads `return`.
fn return_(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let answer = ReturnCommand::read(line)?;
    conf.add(line, ScriptCommand::Return(answer));
    Ok(())
}

/// Reads an `if` and its block.
fn if_(line: &mut DirectiveLine, confs: &mut BlockConfs) -> Result<(), Diagnostic> {
    debug_assert!(line.level.context == SERVER || line.level.context == LOCATION);
    // In a server there is no location yet that could be replaced.
    let enters = line.level.context == LOCATION;
    let condition = IfCondition::read(line)?;
    let block = configure::read_if_block(line, confs);
    let conf = confs
        .get_mut::<Conf>()
        .expect("an if stands where this module has a struct");
    conf.add(
        line,
        ScriptCommand::If {
            condition,
            block,
            enters,
        },
    );
    Ok(())
}

/// Reads `set`.
fn set(conf: &mut Conf, line: &mut DirectiveLine) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    // A variable that is defined otherwise, by a `map` or as part of a family such as `http_`,
    // keeps that definition wherever it is not set.
    let variable = if registry.is_defined(name) {
        registry.settable_id(name)
    } else {
        registry.define(name, unset(name))
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    let value = line.expression(1)?;
    if let (Some(text), Some(registry)) = (value.constant(), line.level.registry::<Request>()) {
        // A line end in this text comes from the configuration, not from a client, and so is no
        // header injection.
        registry.note_text(name, text);
    }
    conf.add(line, ScriptCommand::Set { variable, value });
    Ok(())
}

/// The definition of a variable that only `set` assigns: until then it is empty, and using it is
/// worth a warning, since it usually is a typing error.
fn unset(name: &str) -> VariableDefinition<Request> {
    let name = name.to_ascii_lowercase();
    VariableDefinition::dynamic(move |request: &mut Request, _| {
        if request.conf::<Conf>().warn_uninitialized {
            request.log(
                LogLevel::Warn,
                format_args!("using uninitialized \"{name}\" variable"),
            );
        }
        true
    })
}

/// Runs the server's script.
fn rewrite_in_server(request: &mut Request) -> HandlerStep<'_> {
    ScriptMachine::new(request).step(request)
}

/// Runs the location's script. A request that no location matched is still at the server level,
/// whose script has already run.
fn rewrite_in_location(request: &mut Request) -> HandlerStep<'_> {
    if request.location == request.site.server(request.server).root {
        return ::http::HandlerOutcome::Declined.into();
    }
    ScriptMachine::new(request).step(request)
}
