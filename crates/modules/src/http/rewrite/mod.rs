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
    doc: "Changes the request URI, returns responses and redirects, sets variables, tests conditions.",
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
        doc: "Replaces the URI if the regular expression matches. `last` then searches for a new location, `break` \
              stays in this one; `redirect` (302), `permanent` (301) and a replacement that starts with a scheme \
              redirect the client. The arguments of the request are appended unless the replacement ends with `?`.",
        set: Setter::Custom(Arity::between(2, 3), Repeat::Many, rewrite),
    },
    Directive {
        name: "return",
        syntax: "code [text] | code URL | URL",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Responds with this status and, optionally, a text or a redirect URL. 444 closes the connection without a \
              response.",
        set: Setter::Custom(Arity::between(1, 2), Repeat::Many, return_),
    },
    Directive {
        name: "break",
        syntax: "",
        default: None,
        contexts: SERVER_LOCATION_IF,
        since: "0.1",
        doc: "Stops processing rewrite directives; the request continues in this location.",
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
        set: Setter::Custom(Arity::exactly(2), Repeat::Many, set),
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
        name: "uninitialized_variable_warn",
        syntax: "on | off",
        default: Some("on"),
        contexts: ANYWHERE,
        since: "0.1",
        doc: "Whether to log uses of uninitialised variables.",
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
