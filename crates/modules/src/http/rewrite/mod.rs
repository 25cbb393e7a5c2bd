//! `rewrite`, `return`, `break`, `if`, `set`: requests changed, sent elsewhere or answered before there is any content.
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
//! The directives of a block are a script ([`script`]): commands as data, in the order of the file, run by one loop
//! before the location is chosen (those of the server) and after it (those of the location). An `if` is a block with a
//! script of its own; in a location its other directives count from then on.

mod condition;
mod replace;
mod script;

use ::http::configure;
use ::http::module::ScriptSteps;
use ::http::{Module, Phase, Request, Step};
use conf::{
    Arity, Confs, Contexts, Definition, Diagnostic, Directive, HTTP, LOCATION, Line, Repeat,
    SERVER, SERVER_LOCATION, SERVER_LOCATION_IF, Setter, Table,
};
use rt::error_log::Level;

use self::condition::Condition;
use self::replace::Rewrite;
use self::script::{Command, Foreign, Machine, Return};

pub(crate) static MODULE: Module = Module {
    name: "rewrite",
    doc: "Changes the path of a request, answers or redirects it, sets variables, on conditions.",
    location: &DIRECTIVES,
    phases: &[
        (Phase::ServerRewrite, rewrite_in_server),
        (Phase::Rewrite, rewrite_in_location),
    ],
    enabled: |location| !location.confs.get::<Conf>().commands.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::<Conf>::new(&[
    Directive {
        name: "rewrite",
        syntax: "regex replacement [last | break | redirect | permanent]",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Replaces the path when the expression matches it. With `last` the location is chosen again at once, with \
              `break` not at all; `redirect` (302), `permanent` (301) and a replacement that begins with a scheme \
              redirect the client. The request's arguments are added, unless the replacement ends in `?`.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Many, rewrite),
    },
    Directive {
        name: "return",
        syntax: "code [text] | code URL | URL",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Answers with this status, and with the text or, for redirects, with the address. 444 closes the \
              connection without an answer.",
        set: Setter::Custom(Arity::between(1, 2), Repeat::Many, return_),
    },
    Directive {
        name: "break",
        syntax: "",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Ends the script; a path that it changed is served here.",
        set: Setter::Custom(Arity::NONE, Repeat::Many, |conf, line| {
            conf.add(line, Command::Break);
            Ok(())
        }),
    },
    Directive {
        name: "if",
        syntax: "(condition) { ... }",
        default: None,
        contexts: SERVER_LOCATION,
        since: "0.1",
        doc: "A block for requests that meet a condition: a variable that is neither empty nor `0`; `=` and `!=` with a \
              text; `~`, `~*`, `!~`, `!~*` with an expression; `-f`, `-d`, `-e`, `-x`, with `!` before them, about a file.",
        set: Setter::Deferred(Arity::at_least(1), if_),
    },
    Directive {
        name: "set",
        syntax: "$variable value",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Gives a variable a value.",
        set: Setter::Custom(Arity::exactly(2), Repeat::Many, set),
    },
    Directive {
        name: "rewrite_log",
        syntax: "on | off",
        default: Some("off"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether the error log tells, at level `notice`, what rewrites do.",
        set: Setter::Flag(|c| &mut c.log),
    },
    Directive {
        name: "uninitialized_variable_warn",
        syntax: "on | off",
        default: Some("on"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether the use of a variable that was never set is logged.",
        set: Setter::Flag(|c| &mut c.warn_uninitialized),
    },
])
.inherit(|outer| Conf { commands: Vec::new(), ..*outer }, |outer| outer.commands.is_empty())
.finish_changed_or(|level| !level.shared::<ScriptSteps>().0.is_empty(), |conf, _, level| {
    for (index, step) in std::mem::take(&mut level.shared::<ScriptSteps>().0) {
        conf.put(index, Command::Foreign(Foreign(step)));
    }
    Ok(())
});

const ANYWHERE: Contexts = HTTP.or(SERVER_LOCATION_IF);

/// The script of a block. It is not inherited.
#[derive(Clone, Debug, Default)]
struct Conf {
    /// Each with its position in the file; see [`Conf::add`].
    commands: Vec<(usize, Command)>,
    log: bool,
    warn_uninitialized: bool,
}

impl Conf {
    /// Adds the command of a line. Blocks are read after everything else, so that an `if` comes late and has to be
    /// put where it stands in the file.
    fn add(&mut self, line: &Line, command: Command) {
        self.put(line.index, command);
    }

    fn put(&mut self, index: usize, command: Command) {
        let at = self.commands.partition_point(|(known, _)| *known < index);
        self.commands.insert(at, (index, command));
    }
}

fn rewrite(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let rewrite = Rewrite::read(line)?;
    conf.add(line, Command::Rewrite(Box::new(rewrite)));
    Ok(())
}

fn return_(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let answer = Return::read(line)?;
    conf.add(line, Command::Return(answer));
    Ok(())
}

fn if_(line: &mut Line, confs: &mut Confs) -> Result<(), Diagnostic> {
    debug_assert!(line.level.context == SERVER || line.level.context == LOCATION);
    let enters = line.level.context == LOCATION;
    let condition = Condition::read(line)?;
    let block = configure::condition(line, confs);
    let conf = confs
        .get_mut::<Conf>()
        .expect("an if stands where this module has a struct");
    conf.add(
        line,
        Command::If {
            condition,
            block,
            enters,
        },
    );
    Ok(())
}

fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Request>()
        .expect("http's rows stand in http");
    // What a map defines, or a family such as `http_`, stays what it is wherever it is not set.
    let variable = if registry.is_defined(name) {
        registry.slot(name)
    } else {
        registry.define(name, unset(name))
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    let value = line.expression(1)?;
    if let (Some(text), Some(registry)) = (value.constant(), line.level.registry::<Request>()) {
        registry.note_text(name, text);
    }
    conf.add(line, Command::Set { variable, value });
    Ok(())
}

/// A variable that only `set` gives a value: until then it is empty, and using it is worth a warning.
fn unset(name: &str) -> Definition<Request> {
    let name = name.to_ascii_lowercase();
    Definition::dynamic(move |request: &mut Request, _| {
        if request.conf::<Conf>().warn_uninitialized {
            request.log(
                Level::Warn,
                format_args!("using uninitialized \"{name}\" variable"),
            );
        }
        true
    })
}

fn rewrite_in_server(request: &mut Request) -> Step<'_> {
    Machine::new(request).step(request)
}

/// A request that no location matched is at the server's own level still, whose script has run.
fn rewrite_in_location(request: &mut Request) -> Step<'_> {
    if request.location == request.site.server(request.server).root {
        return ::http::Outcome::Declined.into();
    }
    Machine::new(request).step(request)
}
