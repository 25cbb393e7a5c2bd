//! `set` in stream: assigns a value to a variable before limits and access rules are applied.
//!
//! ```nginx
//! server {
//!     listen     5432;
//!     set        $backend db;
//!     proxy_pass $backend;
//! }
//! ```

use ::stream::{Module, Outcome, Phase, Session, Step};
use conf::{
    Arity, Definition, Diagnostic, Directive, Expression, Line, Repeat, STREAM_SERVER, Setter,
    Table, VarId,
};

pub(crate) static MODULE: Module = Module {
    name: "set",
    doc: "Sets variables.",
    server: &DIRECTIVES,
    phases: &[(Phase::Preaccess, run)],
    enabled: |server| !server.confs.get::<Conf>().commands.is_empty(),
    ..Module::EMPTY
};

static DIRECTIVES: Table<Conf> = Table::new(&[Directive {
    name: "set",
    syntax: "$variable value",
    default: None,
    contexts: STREAM_SERVER,
    since: "0.1",
    doc: "Sets a variable to a value, which may contain variables.",
    set: Setter::Custom(Arity::exactly(2), Repeat::Many, set),
}]);

#[derive(Clone, Default)]
struct Conf {
    commands: Vec<(VarId, Expression)>,
}

/// Reads `set`.
fn set(conf: &mut Conf, line: &mut Line) -> Result<(), Diagnostic> {
    let name = line.variable_name(0)?;
    let registry = line
        .level
        .registry::<Session>()
        .expect("stream's rows stand in stream");
    // A variable that is defined otherwise, such as by a `map`, keeps that definition until it is
    // set; one that only `set` defines is empty until then.
    let variable = if registry.is_defined(name) {
        registry.slot(name)
    } else {
        registry.define(
            name,
            Definition::dynamic(|_: &mut Session, _: &mut Vec<u8>| true),
        )
    };
    let variable = variable.map_err(|message| line.error_at(0, message))?;
    conf.commands.push((variable, line.expression(1)?));
    Ok(())
}

/// The phase handler. The values are evaluated in file order, so one may use those before it.
fn run(session: &mut Session) -> Step<'_> {
    let conf = session.conf::<Conf>();
    for (variable, value) in &conf.commands {
        let value = session.value(value);
        session.set_variable(*variable, &value);
    }
    Outcome::Declined.into()
}
